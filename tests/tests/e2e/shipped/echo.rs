//! Completions that ask for their prompt back get what the guards left of it, and nothing past a guard.

use super::stage;
use serde_json::{Value, json};
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Gateway, events, finish_reason, joined};

const COMPLETIONS: &str = "/v1/completions";

fn words(words: &str, action: &str) -> String {
    let config = format!("stages = [\"stream-guard\"]\nconfig = {{ words = [\"{words}\"], action = \"{action}\" }}");
    stage("word-guard", &config)
}

fn request(more: Value) -> Value {
    // Outside of a dialogue the model may end at once: its end mark (2) is ruled out.
    let mut request = json!({"model": "tidegate-starter", "echo": true, "max_tokens": 4, "logit_bias": {"2": -100}});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// As many answers as are asked for.
fn answers(text: &str, asked: &Value) -> Said {
    let choice = |index: u64| json!({"index": index, "text": text, "finish_reason": "stop"});
    let choices: Vec<Value> = (0..asked["n"].as_u64().unwrap_or(1)).map(choice).collect();
    Said::json(&json!({"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": choices,
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_comes_back_as_guards_left_it_and_is_one_text_with_the_answer() {
    let service = StandIn::start(|_, asked| answers("falcon lands", asked)).await;
    let guards = stage("pii-guard", "") + &words("blue falcon", "redact");
    let gateway = Gateway::start(&format!("{}{guards}", service.model("tidegate-starter"))).await;
    let asked = request(json!({"prompt": "mail john.doe@example.com, blue ", "n": 2}));
    let answer = gateway.post(COMPLETIONS, &asked).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let sent = &service.asked(COMPLETIONS)[0];
    assert_eq!((&sent["prompt"], sent.get("echo")), (&json!("mail [email], blue "), None));
    for choice in answer.json()["choices"].as_array().unwrap() {
        assert_eq!(choice["text"], "mail [email], [redacted] lands");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_what_guards_left_of_the_prompt() {
    let guards = stage("pii-guard", "") + &words("blue falcon", "redact");
    let gateway = Gateway::start(&guards).await;
    let prompt = "jane@example.com saw a blue falcon once upon a time";
    let asked = request(json!({"prompt": prompt, "n": 2, "stream": true}));
    let answer = gateway.post(COMPLETIONS, &asked).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let events = events(&answer.body);
    for choice in 0..2 {
        let text = joined(&events, choice);
        assert!(text.starts_with("[email] saw a [redacted] once upon a time"), "{text}");
        assert!(text.len() > "[email] saw a [redacted] once upon a time".len(), "{text} has no answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_a_stream_guard_halts_is_not_repeated_further() {
    let gateway = Gateway::start(&words("falcon", "block")).await;
    let asked = |stream: bool| request(json!({"prompt": "a falcon lands", "stream": stream}));
    let whole = gateway.post(COMPLETIONS, &asked(false)).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "content_filter", "{whole}");
    let streamed = events(&gateway.post(COMPLETIONS, &asked(true)).await.body);
    assert_eq!(finish_reason(&streamed, 0), "content_filter");
    for text in [whole["choices"][0]["text"].as_str().unwrap().to_owned(), joined(&streamed, 0)] {
        assert!(text.starts_with("a ") && !text.contains("falcon") && !text.contains("lands"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_comes_back_whole() {
    let service = StandIn::start(|_, asked| answers("end", asked)).await;
    for guards in ["[pipeline]\n".to_owned(), words("falcon", "redact")] {
        let gateway = Gateway::start(&format!("{}{guards}", service.model("tidegate-starter"))).await;
        let prompt = "Grüße, ".repeat(4_000);
        let answer = gateway.post(COMPLETIONS, &request(json!({"prompt": prompt}))).await;
        assert_eq!(answer.text(), format!("{prompt}end"));
    }
}

/// Nobody could say which tokens of a prompt a guard has changed.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_repeated_is_refused() {
    let gateway = Gateway::start("[pipeline]\n").await;
    for (more, param) in [
        (json!({"prompt": [1, 2, 3]}), "prompt"),
        (json!({"prompt": "x", "logprobs": 1}), "echo"),
        (json!({"prompt": "x", "best_of": 3}), "best_of"),
    ] {
        let answer = gateway.post(COMPLETIONS, &request(more)).await;
        assert_eq!((answer.status, answer.error().1), (400, json!(param)), "{:?}", answer.body);
    }
}
