//! What who sees an encrypted stream sees of it: the size of each event.

use crate::conversations::{Keeping, ask, new_conversation};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tidegate_tests::Gateway;

/// Of the events of tokens: the lengths of their texts, and of themselves without the numbers that count them.
struct Seen {
    texts: BTreeSet<usize>,
    events: BTreeSet<usize>,
}

fn text(event: &Value) -> Option<&str> {
    let choice = &event["choices"][0];
    let says = [&choice["delta"]["content"], &choice["text"], &event["delta"], &event["text"]];
    let is_token = choice.is_object() || event["type"] == "response.output_text.delta" || event["type"] == "token";
    says.into_iter().find_map(Value::as_str).filter(|text| is_token && !text.is_empty())
}

fn seen(body: &[u8]) -> Seen {
    let mut seen = Seen { texts: BTreeSet::new(), events: BTreeSet::new() };
    for event in std::str::from_utf8(body).unwrap().split_terminator("\n\n") {
        let Some((name, data)) = event.split_once("data: ") else { continue };
        let Ok(data_read) = serde_json::from_str::<Value>(data) else { continue };
        let Some(text) = text(&data_read) else { continue };
        // An id of the event, and a number of the sequence, count what anybody can count.
        let name: usize = name.lines().filter(|line| !line.starts_with("id: ")).map(str::len).sum();
        let number = data_read["sequence_number"].as_u64().map_or(0, |number| number.to_string().len());
        seen.texts.insert(text.len());
        seen.events.insert(name + data.len() - number);
    }
    assert!(seen.texts.len() > 3, "texts of few lengths: {:?}", seen.texts);
    seen
}

async fn stream(gateway: &Gateway, path: &str, mut body: Value, options: Value) -> Seen {
    body["model"] = "tidegate-starter".into();
    body["stream"] = true.into();
    if options.is_object() {
        body["stream_options"] = options;
    }
    let answer = gateway.post(path, &body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    seen(&answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sizes_of_events_do_not_tell_the_lengths_of_tokens() {
    let keeping = Keeping::start("[pipeline]\n").await;
    let gateway = &keeping.gateway;
    let question = "Tell me a story about a lighthouse.";
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": question}], "temperature": 0})),
        (
            "/v1/completions",
            json!({"prompt": question, "max_tokens": 60, "seed": 1, "temperature": 2, "logit_bias": {"2": -100}}),
        ),
        ("/v1/responses", json!({"input": question})),
    ] {
        for options in [Value::Null, json!({"include_obfuscation": true})] {
            let padded = stream(gateway, path, body.clone(), options).await;
            assert_eq!(padded.events.len(), 1, "{path}: {:?}", padded.events);
        }
        let plain = stream(gateway, path, body, json!({"include_obfuscation": false})).await;
        assert!(plain.events.len() > 3, "{path}: without, the lengths are to be seen: {:?}", plain.events);
    }
    let id = new_conversation(gateway).await;
    let accepted = ask(gateway, &id, json!({"message_id": "1", "content": question})).await;
    let answer = gateway.get(&format!("/v1/streams/{}", accepted["stream_id"].as_str().unwrap())).await;
    assert_eq!(seen(&answer.body).events.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_says_what_a_caller_does_not() {
    let gateway = Gateway::start("[server.streams]\nobfuscation = false\n[pipeline]\n").await;
    let body = json!({"messages": [{"role": "user", "content": "Tell me a story about a lighthouse."}]});
    let path = "/v1/chat/completions";
    assert!(stream(&gateway, path, body.clone(), Value::Null).await.events.len() > 1);
    assert_eq!(stream(&gateway, path, body, json!({"include_obfuscation": true})).await.events.len(), 1);
}
