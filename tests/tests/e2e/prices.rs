//! Calls of tools and retrievers have prices: each that was answered is billed once, beside the tokens, and told wherever
//! money is told. On SQLite, and on Postgres where there is a server.

use crate::conversations::{get, items, new_conversation, post};
use crate::talk::{Store, on_each, said, until};
use crate::usage::today_s;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate_tests::Gateway;
use tidegate_tests::stand_in::{Said, StandIn};

/// A model that first calls the calculator twice, the second time with nonsense, and then answers.
fn calls_then_answers(_: &str, body: &Value) -> Said {
    let messages = body["messages"].as_array().unwrap();
    if messages.iter().any(|message| message["role"] == "tool") {
        return said(body, "It is 391.");
    }
    let call = |id: &str, expression: &str| {
        let arguments = json!({"expression": expression}).to_string();
        json!({"id": id, "type": "function", "function": {"name": "calculator", "arguments": arguments}})
    };
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call("a", "17*23"), call("b", "1/0")]});
    Said::json(&json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "m-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }))
}

/// A tool and a retriever with prices, and a retriever that cannot be asked.
fn stages(notes: &Path) -> String {
    let limits = "[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
    format!(
        "[[pipeline.stage]]\nplugin = \"calculator\"\nprice = {{ tool_call = 7.0, tools = {{ calculator = 0.01 }} }}\n\
         {limits}[[pipeline.stage]]\nplugin = \"folder-retriever\"\nprice = {{ retrieval = 0.0005 }}\n\
         config = {{ mount = \"notes\" }}\n{limits}[pipeline.stage.grants]\nkv_kib = 1024\n\
         documents = {{ notes = {:?} }}\n[[pipeline.stage]]\nplugin = \"missing\"\nfile = \"missing.wasm\"\n\
         stages = [\"retriever\"]\non_error = \"skip\"\nprice = {{ retrieval = 0.0005 }}\n",
        notes.display().to_string()
    )
}

async fn gateway(store: &Store, upstream: &StandIn, more: &str, notes: &Path) -> Gateway {
    let model = format!("{}price = {{ input = 1.0, output = 2.0 }}\n{more}", upstream.model("chat"));
    store.gateway(&model, &stages(notes)).await
}

fn notes() -> tempfile::TempDir {
    let notes = tempfile::tempdir().unwrap();
    std::fs::write(notes.path().join("sums.txt"), "Sums of Kelso: 17*23 is asked for often.").unwrap();
    notes
}

const CALLS: f64 = 2.0 * 0.01 + 0.0005;

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_billed_and_told_wherever_money_is() {
    on_each("prices", |store| async move {
        let (notes, upstream) = (notes(), StandIn::start(calls_then_answers).await);
        let gateway = gateway(&store, &upstream, "", notes.path()).await;

        let card = get(&gateway, "/v1/models/chat").await;
        let pricing = json!({"currency": "usd", "input_per_million": 1.0, "cached_input_per_million": 1.0,
            "output_per_million": 2.0, "per_tool_call": {"calculator": 7.0, "calculator/calculator": 0.01},
            "per_retrieval": {"folder-retriever": 0.0005, "missing": 0.0005}});
        assert_eq!(card["pricing"], pricing);

        let id = new_conversation(&gateway).await;
        let request = json!({"model": "chat", "input": "What are the sums of Kelso, 17*23?", "conversation": id});
        let response = post(&gateway, "/v1/responses", request).await;
        assert_eq!(response["tool_calls"].as_array().unwrap().len(), 2, "{response}");
        let used = |side: &str| response["usage"][side].as_u64().unwrap() as f64;
        let cost = response["cost"]["value"].as_f64().unwrap();
        assert!((cost - CALLS - (used("input_tokens") + 2.0 * used("output_tokens")) / 1e6).abs() < 1e-9, "{response}");
        assert_eq!(items(&gateway, &id, "").await.last().unwrap()["cost"], response["cost"]);

        // The same in the books, to the last digit.
        let since = format!("start_time={}", today_s());
        let result = until("the bill", async || {
            let result = get(&gateway, &format!("/v1/usage?{since}")).await["data"][0]["results"][0].clone();
            (result["num_model_requests"] == 1).then_some(result)
        });
        let result = result.await;
        assert_eq!((&result["num_tool_calls"], &result["num_retrieval_calls"]), (&json!(2), &json!(1)));
        let costs = get(&gateway, &format!("/v1/usage/costs?{since}")).await["data"][0]["results"][0].clone();
        assert_eq!(costs["calls_amount"], json!({"value": CALLS, "currency": "usd"}));
        assert_eq!(costs["amount"], response["cost"]);
        let csv = gateway.get(&format!("/v1/usage?{since}&format=csv")).await;
        let csv = String::from_utf8(csv.body.to_vec()).unwrap();
        assert!(csv.lines().nth(1).unwrap().ends_with(",2,1,0.020500000"), "{csv}");

        gateway.running.stop(Duration::from_secs(5)).await;
        let audit = tidegate::audit::audit(&store.config("", "")).await.unwrap();
        assert_eq!((audit.num_rows, audit.tool_calls, audit.retrieval_calls), (1, 2, 1), "{audit}");
        assert_eq!(audit.drift, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_holds_for_calls_before_they_are_made() {
    on_each("prices_budget", |store| async move {
        let (notes, upstream) = (notes(), StandIn::start(calls_then_answers).await);
        let budget = |daily: f64| format!("[tenants.local.budget]\ndaily = {daily}\n");
        let ask = async |gateway: &Gateway| {
            let body = json!({"model": "chat", "max_tokens": 50,
                "messages": [{"role": "user", "content": "What is 17*23?"}]});
            gateway.post("/v1/chat/completions", &body).await
        };
        // Less than the retrievers cost: nobody is asked.
        let poor = gateway(&store, &upstream, &budget(0.0001), notes.path()).await;
        let refused = ask(&poor).await;
        assert_eq!((refused.status, refused.error().2), (429, json!("insufficient_quota")), "{:?}", refused.body);
        assert_eq!(upstream.asked("/v1/chat/completions").len(), 0);
        poor.running.stop(Duration::from_secs(5)).await;
        // Enough for the retrievers and one call of the tool: the turn begins, its second call does not.
        let some = gateway(&store, &upstream, &budget(0.015), notes.path()).await;
        let refused = ask(&some).await;
        assert_eq!((refused.status, refused.error().2), (429, json!("insufficient_quota")), "{:?}", refused.body);
        assert_eq!(upstream.asked("/v1/chat/completions").len(), 1);
        some.running.stop(Duration::from_secs(5)).await;
        let audit = tidegate::audit::audit(&store.config("", "")).await.unwrap();
        assert_eq!((audit.num_rows, audit.tool_calls, audit.retrieval_calls), (1, 1, 1), "{audit}");
        assert_eq!(audit.drift, Vec::<String>::new());
    })
    .await;
}
