//! What the numbers that a caller sends do to an answer of the built-in engine.

use serde_json::{Value, json};
use tidegate_tests::{BARE, Gateway, ask};

const STORY: &str = "Tell me a story about a fox.";

/// What the model says with `more` in the request.
async fn said(gateway: &Gateway, more: &Value) -> String {
    let mut request = ask(STORY);
    request["max_tokens"] = 48.into();
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    let answer = gateway.chat(request).await;
    assert_eq!(answer.status, 200, "{more}: {:?}", answer.body);
    answer.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_leaves_the_likeliest_token_alone_is_greedy_however_hot() {
    let gateway = Gateway::start(BARE).await;
    let greedy = said(&gateway, &json!({"temperature": 0})).await;
    let hot = |name: &str, value: Value| json!({"temperature": 2, "seed": 7, name: value});
    let free = said(&gateway, &hot("top_k", json!(0))).await;
    assert_ne!(free, greedy, "what is hot draws others: the test shows nothing");
    for (name, narrow, open) in [
        ("top_k", json!(1), json!(-1)),
        ("top_p", json!(0), json!(1)),
        ("top_p", json!(1e-6), json!(1.0)),
        ("min_p", json!(1), json!(0)),
    ] {
        assert_eq!(said(&gateway, &hot(name, narrow)).await, greedy, "{name}");
        assert_eq!(said(&gateway, &hot(name, open)).await, free, "{name} that is off");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_penalty_changes_what_is_said_and_its_neutral_value_nothing() {
    let gateway = Gateway::start(BARE).await;
    // Without an end the model comes to repeat itself.
    let endless =
        |name: &str, value: Value| json!({"max_tokens": 160, "temperature": 0, "logit_bias": {"2": -100}, name: value});
    let plain = said(&gateway, &endless("n", json!(1))).await;
    for (name, neutral, strong) in [
        ("presence_penalty", json!(0), json!(2)),
        ("frequency_penalty", json!(0), json!(2)),
        ("repetition_penalty", json!(1), json!(5)),
    ] {
        assert_eq!(said(&gateway, &endless(name, neutral)).await, plain, "{name}");
        assert_ne!(said(&gateway, &endless(name, strong)).await, plain, "{name}");
    }
}
