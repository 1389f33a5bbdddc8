//! Requests that are right, about what is kept.

use super::{Ask, Contract};
use crate::talk::until;
use hyper::Method;
use serde_json::{Value, json};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

const ONE: &str = "/v1/conversations/{conversation_id}";
const ITEMS: &str = "/v1/conversations/{conversation_id}/items";
const ITEM: &str = "/v1/conversations/{conversation_id}/items/{item_id}";

/// Items of all kinds.
fn items() -> Value {
    json!([
        {"role": "user", "content": [{"type": "input_text", "text": "Look."},
            {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes.",
            "annotations": []}, {"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ])
}

pub async fn conversations(contract: &mut Contract<'_>) {
    let body = json!({"metadata": {"topic": "demo"}, "title": "Demo", "items": items()});
    let made = text(&contract.good(Ask::post("/v1/conversations", &[], body)).await.json()["id"]);
    let id = made.as_str();
    contract.good(Ask::get("/v1/conversations", &[]).query("limit=1&order=asc")).await;
    contract.good(Ask::get("/v1/conversations", &[]).query("q=Look")).await;
    contract.good(Ask::get(ONE, &[id])).await;
    contract.good(Ask::post(ONE, &[id], json!({"title": "Other", "metadata": {}}))).await;
    let added = contract.good(Ask::post(ITEMS, &[id], json!({"items": items()}))).await.json();
    let item = text(&added["data"][0]["id"]);
    contract.good(Ask::get(ITEM, &[id, &item])).await;
    contract.good(Ask::post(ITEM, &[id, &item], json!({"pinned": true, "current": true}))).await;
    let rate = "/v1/conversations/{conversation_id}/items/{item_id}/feedback";
    contract.good(Ask::post(rate, &[id, &item], json!({"rating": -1, "reason": "Not what I asked for."}))).await;
    let other = text(&added["data"][1]["id"]);
    contract.good(Ask::post(rate, &[id, &item], json!({"rating": 0, "swipe": other}))).await;
    let delete = contract.good(Ask::post("/v1/conversations", &[], json!({}))).await.json();
    contract.good(Ask::new(Method::DELETE, ONE, &[&text(&delete["id"])])).await;
    messages(contract).await;
    contract.good(Ask::get(ITEMS, &[id]).query("branch=all&limit=100")).await;
    contract.good(Ask::get("/v1/conversations/{conversation_id}/export", &[id])).await;
    contract.good(Ask::new(Method::DELETE, ITEM, &[id, &item])).await;
}

/// The simple pair.
async fn messages(contract: &mut Contract<'_>) {
    let made = contract.good(Ask::post("/v1/conversations", &[], json!({}))).await.json();
    let id = text(&made["id"]);
    let path = "/v1/conversations/{conversation_id}/messages";
    let body = json!({"message_id": "1", "role": "user", "content": "What is 12*12?", "model": "tidegate-starter"});
    let accepted = contract.good(Ask::post(path, &[&id], body)).await.json();
    let (stream, item) = (text(&accepted["stream_id"]), text(&accepted["item_id"]));
    contract.good(Ask::get("/v1/streams/{stream_id}", &[&stream])).await;
    let again = "/v1/conversations/{conversation_id}/items/{item_id}/regenerate";
    let accepted = contract.good(Ask::post(again, &[&id, &item], json!({}))).await.json();
    contract.good(Ask::get("/v1/streams/{stream_id}", &[&text(&accepted["stream_id"])])).await;
    let listed = contract.good(Ask::get(ITEMS, &[&id]).query("order=asc&limit=1")).await.json();
    assert_eq!(listed["has_more"], true);
    contract.good(Ask::get(ITEMS, &[&id]).query(&format!("leaf={item}&after={item}"))).await;
    contract.good(Ask::get("/v1/conversations/{conversation_id}/export", &[&id])).await;
}

pub async fn responses(contract: &mut Contract<'_>) {
    let tool = json!({"type": "function", "name": "calculator", "description": "Works out a sum.", "strict": false,
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}});
    let (path, one) = ("/v1/responses", "/v1/responses/{response_id}");
    let mut ids = Vec::new();
    for more in [
        json!({"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 1,
            "reasoning": {"effort": null}, "text": {"format": {"type": "text"}}, "truncation": "auto"}),
        json!({"max_output_tokens": 1, "store": false}),
        json!({"stream": true, "top_logprobs": 1, "include": ["message.output_text.logprobs"]}),
        json!({"include": ["message.output_text.logprobs"]}),
        json!({"stream": true, "max_output_tokens": 1}),
        json!({"background": true}),
    ] {
        let mut body = json!({"model": "tidegate-starter", "input": "What is Tidegate?"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = contract.good(Ask::post(path, &[], body)).await;
        if answer.headers["content-type"] == "application/json" {
            ids.push(text(&answer.json()["id"]));
        }
    }
    for (key, stream) in super::good::FRESH.into_iter().skip(2).zip([false, true]) {
        let body = json!({"model": "tidegate-starter", "input": "What is 12*12?", "tools": [tool], "temperature": 0,
            "tool_choice": "auto", "stream": stream});
        let answer = contract.good(Ask::post(path, &[], body).by(key)).await;
        assert!(String::from_utf8_lossy(&answer.body).contains("\"function_call\""), "{answer:?}");
    }
    let (first, background) = (ids[0].as_str(), ids.last().unwrap().as_str());
    contract.good(Ask::get(one, &[background]).query("stream=true")).await;
    contract.good(Ask::get(one, &[background]).query("stream=true&starting_after=3")).await;
    let behind = Ask::get(one, &[background]).query(&format!("stream=true&starting_after={}", u64::MAX));
    assert_eq!(contract.ask(behind).await.status, 200);
    contract.good(Ask::get(one, &[first])).await;
    contract.good(Ask::get("/v1/responses/{response_id}/input_items", &[first]).query("order=asc")).await;
    let answered = contract.good(Ask::get(one, &[first])).await.json()["output"][0]["id"].clone();
    let input = json!([{"type": "item_reference", "id": answered}, {"role": "user", "content": "Who are you?"}]);
    contract.good(Ask::post(path, &[], json!({"model": "tidegate-starter", "input": input}))).await;
    contract.good(Ask::new(Method::POST, "/v1/responses/{response_id}/cancel", &[background])).await;
    let body = json!({"model": "tidegate-starter", "input": "Tell me a story.", "background": true,
        "logit_bias": {"2": -100}});
    let long = text(&contract.good(Ask::post(path, &[], body)).await.json()["id"]);
    contract.good(Ask::new(Method::POST, "/v1/responses/{response_id}/cancel", &[&long])).await;
    contract.good(Ask::new(Method::DELETE, one, &[first])).await;
}

pub async fn usage(contract: &mut Contract<'_>) {
    let paths = ["/v1/usage", "/v1/usage/costs", "/v1/organization/usage/completions", "/v1/organization/costs"];
    let start = tidegate_tests::issuer::now_s() - 3600;
    let query = format!("start_time={start}&bucket_width=1h&group_by=project_id,api_key_id,user_id,model&limit=3");
    // What was used comes to the store a moment later.
    until("something was used", async || {
        let page = contract.good(Ask::get(paths[0], &[]).query(&query)).await.json();
        let mut buckets = page["data"].as_array().unwrap().iter();
        buckets.any(|bucket| !bucket["results"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    for path in paths {
        for more in ["", "&format=csv", "&page=0"] {
            contract.good(Ask::get(path, &[]).query(&format!("{query}{more}"))).await;
        }
    }
}
