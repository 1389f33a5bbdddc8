//! Log-probabilities behind guards: a token is words too, and leaves only with its text. Names of tools likewise.

use crate::halts::{blocks, chunk, stage};
use serde_json::{Value, json};
use std::path::Path;
use tidegate_tests::{Answer, BARE, Gateway, ask, events, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const ADDRESS: &str = "john.doe@example.com";
const PARTS: [&str; 3] = [" john", ".doe@example", ".com"];

/// A model that gives everyone this answer, of this type.
async fn model(kind: &str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}");
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut vec![0; 65536]).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    format!("[[models]]\nname = \"tidegate-starter\"\nupstream = \"http://{address}/v1\"\n")
}

/// Log-probabilities of these tokens; raw ones have no bytes.
fn logprobs(tokens: &[&str], raw: bool) -> Value {
    let entry = |token: &&str| {
        let bytes = if raw { Value::Null } else { json!(token.as_bytes()) };
        json!({"token": token, "logprob": -0.5, "bytes": bytes, "top_logprobs": []})
    };
    json!({"content": tokens.iter().map(entry).collect::<Vec<Value>>()})
}

/// A chunk of a stream with log-probabilities beside what it says.
fn told(delta: &Value, logprobs: &Value) -> String {
    let choices = json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": null}]);
    let event = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices});
    format!("data: {event}\n\n")
}

async fn streams(chunks: &[(Value, Value)]) -> String {
    let chunks: String = chunks.iter().map(|(delta, logprobs)| told(delta, logprobs)).collect();
    model("text/event-stream", format!("{chunks}{}data: [DONE]\n\n", chunk(&json!({}), &"stop".into()))).await
}

async fn says(message: &Value, logprobs: &Value) -> String {
    let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"});
    let body = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]});
    model("application/json", body.to_string()).await
}

fn call(name: &str, arguments: &str) -> Value {
    json!([{"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}])
}

/// An answer of this model to a caller who wants log-probabilities, and offers the tool `f`.
async fn asked(gateway: &Gateway, stream: bool) -> Answer {
    let mut request = with_model(ask("Hello!"));
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    request["tools"] = json!([{"type": "function", "function": function}]);
    (request["stream"], request["logprobs"]) = (stream.into(), true.into());
    let answer = gateway.post("/v1/chat/completions", &request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer
}

fn body(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

/// The tokens of an answer's log-probabilities.
fn tokens(answer: &Answer) -> Vec<String> {
    let events = if body(answer).starts_with("data:") { events(&answer.body) } else { vec![answer.json()] };
    let entries = events.iter().flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    entries.flatten().map(|entry| entry["token"].as_str().unwrap().to_owned()).collect()
}

/// What leaks nowhere behind the guard, and all of which is there without.
async fn never_leaves(model: &str, what: &str, left: &[&str]) {
    for stream in [true, false] {
        let open = Gateway::start(&format!("{model}{BARE}")).await;
        let all = tokens(&asked(&open, stream).await);
        assert!(all.concat().contains(".doe@example"), "{what}: without a guard all leaves, here {all:?}");
        let guarded = Gateway::start(&format!("{model}{}", stage("pii-guard", ""))).await;
        let answer = asked(&guarded, stream).await;
        for part in ["john", "doe", "example"] {
            assert!(!body(&answer).contains(part), "{what}: {part} in {}", body(&answer));
        }
        assert_eq!(tokens(&answer), left, "{what}");
    }
}

fn around(before: &[&'static str], behind: &[&'static str]) -> Vec<&'static str> {
    [before, &PARTS, behind].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redacted_text_takes_its_tokens_with_it_and_no_others() {
    let said = around(&["mail"], &[" now"]);
    let chunks: Vec<_> = said.iter().map(|text| (json!({"content": text}), logprobs(&[text], false))).collect();
    never_leaves(&streams(&chunks).await, "a token in each event", &["mail", " now"]).await;
    let message = json!({"role": "assistant", "content": said.concat()});
    let model = says(&message, &logprobs(&said, false)).await;
    never_leaves(&model, "whole", &["mail", " now"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_that_come_with_reasoning_are_of_no_text() {
    let thought = around(&["mail"], &[" now"]);
    let text = (json!({"content": "ok fine"}), logprobs(&["ok", " fine"], false));
    let model = streams(&[(json!({"reasoning_content": thought.concat()}), logprobs(&thought, false)), text]).await;
    never_leaves(&model, "streamed", &["ok", " fine"]).await;
    let message = json!({"role": "assistant", "reasoning_content": thought.concat(), "content": "ok fine"});
    let model = says(&message, &logprobs(&around(&["mail"], &[" now", "</think>", "ok", " fine"]), false)).await;
    never_leaves(&model, "whole", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_that_come_with_a_tool_call_are_of_no_text() {
    let arguments = json!({"to": ADDRESS}).to_string();
    let parts = ["{\"to\":\"", "john", ".doe@example", ".com", "\"}"];
    let calls = (json!({"tool_calls": call("f", &arguments)}), logprobs(&parts, false));
    let model = streams(&[calls, (json!({"content": "sent it"}), logprobs(&["sent", " it"], false))]).await;
    never_leaves(&model, "streamed", &["sent", " it"]).await;
    let message = json!({"role": "assistant", "content": "sent it", "tool_calls": call("f", &arguments)});
    let model = says(&message, &logprobs(&[&["sent", " it"][..], &parts].concat(), false)).await;
    never_leaves(&model, "whole", &["sent", " it"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_that_come_late_are_of_no_text() {
    let late = around(&["mail"], &[" now"]);
    let said = "that is all that I have to say to you.";
    let chunks = [(json!({"content": late.concat()}), Value::Null), (json!({"content": said}), logprobs(&late, false))];
    never_leaves(&streams(&chunks).await, "a chunk late", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_by_their_names_in_the_vocabulary_are_of_no_text() {
    let words: Vec<String> = (10..40).map(|n| format!("word{n}")).collect();
    let mut raw: Vec<String> = words.iter().map(|word| format!("Ġ{word}")).collect();
    raw.extend(["Ġjohn", ".doe@example", ".com", "Ġok", "Ġthen"].map(str::to_owned));
    let raw: Vec<&str> = raw.iter().map(String::as_str).collect();
    let text = format!("{} {ADDRESS} ok then", words.join(" "));
    let message = json!({"role": "assistant", "content": text});
    never_leaves(&says(&message, &logprobs(&raw, true)).await, "whole", &[]).await;
    let model = streams(&[(json!({"content": text}), logprobs(&raw, true))]).await;
    never_leaves(&model, "streamed", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_a_completion_are_places_in_what_a_guard_leaves() {
    let said = around(&["mail"], &[" now"]);
    let logprobs = json!({"tokens": said, "token_logprobs": vec![-0.5; said.len()], "top_logprobs": null});
    let choices = json!([{"index": 0, "text": said.concat(), "logprobs": logprobs, "finish_reason": "stop"}]);
    let body = json!({"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": choices});
    let model = model("application/json", body.to_string()).await;
    let gateway = Gateway::start(&format!("{model}{}", stage("pii-guard", ""))).await;
    for stream in [true, false] {
        let asked =
            json!({"model": "tidegate-starter", "prompt": "x", "max_tokens": 9, "logprobs": 1, "stream": stream});
        let answer = gateway.post("/v1/completions", &asked).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let events = if stream { events(&answer.body) } else { vec![answer.json()] };
        let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        let lists = events.iter().map(|event| &event["choices"][0]["logprobs"]);
        let found: Vec<(&Value, &Value)> = lists
            .filter_map(|list| Some(list["tokens"].as_array()?.iter().zip(list["text_offset"].as_array()?)))
            .flatten()
            .collect();
        assert_eq!(text, "mail [email] now");
        assert_eq!(found, [(&json!("mail"), &json!(0)), (&json!(" now"), &json!(12))]);
    }
}

/// Tokens of text that a guard has passed are not those of a special one between them.
#[tokio::test(flavor = "multi_thread")]
async fn special_tokens_of_the_own_engine_move_none_past_a_redaction() {
    let request = |stop: &[&str], seed: u64, stream: bool| {
        let mut request = with_model(ask("hi"));
        let more = json!({"max_tokens": 12, "temperature": 1.5, "seed": seed, "logprobs": true, "stream": stream,
            "logit_bias": {"959": 100, "0": 100}, "stop": stop});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let (open, guard) = (Gateway::start(BARE).await, stage("word-guard", "config = { words = [\"water\"] }"));
    let guarded = Gateway::start(&guard).await;
    let mut both = 0;
    for seed in 0..4 {
        let all = tokens(&open.post("/v1/chat/completions", &request(&[], seed, false)).await);
        let is_there = |token: &str| all.iter().any(|one| one == token);
        both += u32::from(is_there(" water") && is_there("<|endoftext|>"));
        for (stop, stream) in [(&[][..], false), (&[], true), (&["ter"], false), (&["ter"], true)] {
            let answer = guarded.post("/v1/chat/completions", &request(stop, seed, stream)).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            assert!(!body(&answer).contains("water"), "seed {seed}, {stop:?}: {}", body(&answer));
        }
    }
    assert!(both > 0, "no seed has drawn a special token beside a word");
}

/// An output guard judges the text of an answer; what it passes has no token that is not of that text.
#[tokio::test(flavor = "multi_thread")]
async fn an_output_guard_passes_tokens_of_its_text_alone() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let guard = stage("passes", &format!("file = \"{}\"\nstages = [\"output-guard\"]", file.display()));
    let thought = (json!({"reasoning_content": "hm"}), logprobs(&PARTS, false));
    let said = (json!({"content": "ok fine"}), logprobs(&["ok", " fine"], false));
    let gateway = Gateway::start(&format!("{}{guard}", streams(&[thought, said]).await)).await;
    for stream in [true, false] {
        assert_eq!(tokens(&asked(&gateway, stream).await), ["ok", " fine"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_a_tool_that_nobody_offered_is_judged() {
    let named = |name: &str| vec![(json!({"tool_calls": call(name, "{}")}), Value::Null)];
    let finish = |answer: &Answer| {
        let events = if body(answer).starts_with("data:") { events(&answer.body) } else { vec![answer.json()] };
        events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str().map(str::to_owned)).unwrap()
    };
    for (name, guard, expected) in [
        (ADDRESS, stage("pii-guard", ""), "content_filter"),
        ("look_up_falcon", blocks("look_up_falcon"), "content_filter"),
        ("look_up", stage("pii-guard", ""), "tool_calls"),
        ("f", blocks("f"), "tool_calls"),
    ] {
        let gateway = Gateway::start(&format!("{}{guard}", streams(&named(name)).await)).await;
        for stream in [true, false] {
            let answer = asked(&gateway, stream).await;
            assert_eq!(finish(&answer), expected, "{name}");
            assert_eq!(body(&answer).contains(&format!("\"name\":\"{name}\"")), expected == "tool_calls", "{name}");
        }
    }
}
