//! What guards that redact leave of a prompt, as the model is asked.

use super::stage;
use serde_json::{Value, json};
use tidegate_tests::stand_in::{StandIn, completion};
use tidegate_tests::{Gateway, ask};

const CHAT: &str = "/v1/chat/completions";

async fn behind_pii_guard() -> (StandIn, Gateway) {
    let service = StandIn::start(|_, _| completion("Thank you.")).await;
    let model = format!("{}context_tokens = 1000000\n", service.model("tidegate-starter"));
    let gateway = Gateway::start(&format!("{model}{}", stage("pii-guard", ""))).await;
    (service, gateway)
}

/// All texts of the last message that the model was asked with.
fn asked(service: &StandIn) -> String {
    let asked = service.asked(CHAT);
    let content = &asked.last().unwrap()["messages"][0]["content"];
    let text = |part: &Value| part["text"].as_str().unwrap_or_default().to_owned();
    match content {
        Value::Array(parts) => parts.iter().map(text).collect(),
        content => content.as_str().unwrap().to_owned(),
    }
}

/// However often: more than a verdict has edits, and none of it counts as a failure of the guard.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_addresses_are_all_redacted() {
    let (service, gateway) = behind_pii_guard().await;
    for n in 1..=6 {
        let answer = gateway.chat(ask(&"jane@example.com\n".repeat(5_000))).await;
        assert_eq!(answer.status, 200, "{n}: {:?}", answer.body);
        assert_eq!(asked(&service), "[email]\n".repeat(5_000));
    }
    // Of so many parts, nothing can be said in one verdict.
    let parts = vec![json!({"type": "text", "text": "jane@example.com "}); 4_097];
    let before = service.asked(CHAT).len();
    for _ in 0..6 {
        let refused = gateway.chat(json!({"messages": [{"role": "user", "content": parts}]})).await;
        assert_eq!((refused.status, refused.error().2), (400, "content_filter".into()));
    }
    assert_eq!(service.asked(CHAT).len(), before);
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200, "the guard is not left out");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_split_over_parts_of_a_message_is_redacted() {
    let (service, gateway) = behind_pii_guard().await;
    let parts =
        ["I am jane@exam", "ple.com, ", "4111 1111", " 1111 1111"].map(|text| json!({"type": "text", "text": text}));
    let answer = gateway.chat(json!({"messages": [{"role": "user", "content": parts}]})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(asked(&service), "I am [email], [card]");
}

/// In what the model is told that it declined or thought before, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_split_over_refusals_or_reasoning_is_redacted() {
    let (service, gateway) = behind_pii_guard().await;
    let refusal = |text: &str| json!({"type": "refusal", "refusal": text});
    let declined = json!([{"role": "user", "content": "Hi."},
        {"role": "assistant", "content": [refusal("Write to jane@exam"), refusal("ple.com")], "refusal": ", please."}]);
    let answer = gateway.chat(json!({"messages": declined})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(service.asked(CHAT).last().unwrap()["messages"][1]["refusal"], "Write to [email], please.");
    let thought = |text: &str| json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]});
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": text});
    let input = json!([
        message("user", "Hi."),
        thought("It is jane@exam"),
        thought("ple.com"),
        message("assistant", "Yes."),
        message("user", "And?")
    ]);
    let answer = gateway.post("/v1/responses", &json!({"model": "tidegate-starter", "input": input})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(service.asked(CHAT).last().unwrap()["messages"][1]["reasoning_content"], "It is [email]");
}
