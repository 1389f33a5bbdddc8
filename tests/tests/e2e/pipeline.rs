//! The bundled pipeline on the path of real requests.

use serde_json::json;
use tidegate_tests::stand_in::{StandIn, completion, last_text};
use tidegate_tests::{Gateway, ask, finish_reason, joined};

#[tokio::test(flavor = "multi_thread")]
async fn the_model_calls_the_calculator_and_answers_with_its_result() {
    let gateway = Gateway::start("").await;
    let answer = gateway.chat(ask("What is 17*23?")).await;
    assert!(answer.text().contains("391"), "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert!(body["choices"][0]["message"]["tool_calls"].is_null());
    let events = gateway.stream(ask("What is 17*23?")).await;
    assert_eq!(joined(&events, 0), answer.text());
    assert_eq!(finish_reason(&events, 0), "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_callers_own_tool_is_returned() {
    let gateway = Gateway::start("[pipeline]\n").await;
    let mut request = ask("What is 12*12?");
    request["tools"] = json!([{"type": "function", "function": {
        "name": "calculator", "description": "Works out a sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}},
            "required": ["expression"]}}}]);
    let body = gateway.chat(request.clone()).await.json();
    let message = &body["choices"][0]["message"];
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "calculator");
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(arguments).unwrap()["expression"], "12*12");

    request["messages"].as_array_mut().unwrap().push(message.clone());
    let id = message["tool_calls"][0]["id"].clone();
    request["messages"].as_array_mut().unwrap().push(json!({"role": "tool", "tool_call_id": id, "content": "144"}));
    let answer = gateway.chat(request).await.text();
    assert!(answer.contains("144"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_name_of_the_server_is_taken() {
    let gateway = Gateway::start("").await;
    let mut request = ask("What is 12*12?");
    request["tools"] = json!([{"type": "function", "function": {"name": "calculator", "parameters": {}}}]);
    let answer = gateway.chat(request).await;
    assert_eq!(answer.status, 400);
    let (message, param, _) = answer.error();
    assert!(message.contains("calculator"), "{message}");
    assert_eq!(param, "tools[0].function.name");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_and_tools_of_the_server_exclude_each_other() {
    let gateway = Gateway::start("").await;
    let mut request = ask("Hello!");
    request["n"] = 2.into();
    let answer = gateway.chat(request.clone()).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error().1, "n");
    request["tool_choice"] = "none".into();
    assert_eq!(gateway.chat(request).await.json()["choices"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn personal_data_is_redacted_before_the_model_sees_it_and_before_the_client_does() {
    // A model that says what it was not to say.
    let upstream = StandIn::start(|_, _| completion("Write to john.doe@example.com instead.")).await;
    let gateway = Gateway::start(&upstream.model("tidegate-starter")).await;
    let answer = gateway.chat(ask("Repeat after me: write to jane.roe@example.com today")).await;
    assert_eq!(answer.text(), "Write to [email] instead.");
    let seen = last_text(&upstream.asked("/v1/chat/completions")[0]);
    assert_eq!(seen, "Repeat after me: write to [email] today");
}
