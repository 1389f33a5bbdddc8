//! Answers that a guard ends: what was said before is judged by the guards behind it too, and stays where it was said.

mod beside;
mod choices;

use crate::tool_turns::whole;
use serde_json::{Value, json};
use std::path::Path;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Gateway, ask, events, finish_reason, joined, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const SAID: &str = "Write to john@example.com about secretword.";

/// An event of a model's stream.
pub(crate) fn chunk(delta: &Value, finish: &Value) -> String {
    let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    let event = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices});
    format!("data: {event}\n\n")
}

/// A model of a server that streams these pieces of `field`, each as an event, to everyone.
async fn says(field: &str, pieces: Vec<String>) -> String {
    streams(pieces.iter().map(|piece| json!({field: piece})).collect()).await
}

async fn streams(deltas: Vec<Value>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let deltas: String = deltas.iter().map(|delta| chunk(delta, &Value::Null)).collect();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{deltas}{}data: [DONE]\n\n",
        chunk(&json!({}), &"stop".into())
    );
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut vec![0; 65536]).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    format!("[[models]]\nname = \"tidegate-starter\"\nupstream = \"http://{address}/v1\"\n")
}

/// The same of these pieces, each of a field of its own.
async fn says_each(pieces: &[(&str, &str)]) -> String {
    let deltas = pieces.iter().map(|(field, piece)| json!({*field: piece})).collect();
    streams(deltas).await
}

/// In one event, and in one for each few bytes.
fn cuts(text: &str) -> [Vec<String>; 4] {
    [text.len(), 11, 3, 1].map(|len| {
        let pieces = text.as_bytes().chunks(len).map(|piece| String::from_utf8(piece.to_vec()).unwrap());
        pieces.collect()
    })
}

pub(crate) fn stage(plugin: &str, config: &str) -> String {
    format!(
        "[[pipeline.stage]]\nplugin = \"{plugin}\"\n{config}\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n"
    )
}

pub(crate) fn blocks(word: &str) -> String {
    stage("word-guard", &format!("config = {{ words = [\"{word}\"], action = \"block\" }}"))
}

/// The upstream has said what it counted, with the answer: that is billed, and not what of it the guards were given.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_a_guard_halts_costs_what_its_upstream_says() {
    let upstream =
        StandIn::start(|_, _| whole(&json!({"role": "assistant", "content": "All about herons"}), "stop", 70, 900));
    let upstream = upstream.await;
    let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &blocks("about"))).await;
    let answer = gateway.chat(ask("Hello!")).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "content_filter");
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(70), &json!(900)));
}

/// What a client reads of a stream, and of the whole answer: text, and reasoning.
async fn read(gateway: &Gateway, stream: bool) -> [String; 2] {
    let mut request = with_model(ask("Hello!"));
    request["stream"] = stream.into();
    let answer = gateway.post("/v1/chat/completions", &request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    if !stream {
        let choice = answer.json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "content_filter");
        return ["content", "reasoning_content"]
            .map(|field| choice["message"][field].as_str().unwrap_or("").to_owned());
    }
    let events = events(&answer.body);
    assert_eq!(finish_reason(&events, 0), "content_filter");
    let thought = events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
    [joined(&events, 0), thought.collect()]
}

/// The guard that ends the answer comes first: what it leaves has an address, which is the second one's to judge.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_halt_leaves_is_judged_by_the_guards_behind_however_it_was_cut() {
    for pieces in cuts(SAID) {
        let model = says("content", pieces.clone()).await;
        let gateway = Gateway::start(&format!("{model}{}{}", blocks("secretword"), stage("pii-guard", ""))).await;
        for stream in [true, false] {
            let [text, thought] = read(&gateway, stream).await;
            assert_eq!((text.as_str(), thought.as_str()), ("Write to [email] about ", ""), "{pieces:?}");
        }
    }
}

/// Each guard behind may end what is left as well.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_halt_leaves_is_ended_earlier_by_a_guard_behind_that_would() {
    for pieces in cuts(SAID) {
        let model = says("content", pieces.clone()).await;
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist/word-guard.wasm");
        let second = blocks("about").replace("\"word-guard\"", &format!("\"second\"\nfile = {file:?}"));
        let gateway = Gateway::start(&format!("{model}{}{second}", blocks("secretword"))).await;
        for stream in [true, false] {
            assert_eq!(read(&gateway, stream).await[0], "Write to john@example.com ", "{pieces:?}");
        }
    }
}

/// The guard keeps the end of what it has seen until it knows more: what the model says next is of another text.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_thought_leaves_before_its_answer_begins() {
    let answer = "the answer, in some words. ".repeat(25);
    let pieces =
        [("reasoning_content", "Six times seven, "), ("reasoning_content", "so it is 42"), ("content", &answer)];
    let model = says_each(&pieces).await;
    let gateway = Gateway::start(&format!("{model}{}", stage("pii-guard", ""))).await;
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let seen = events(&gateway.post("/v1/chat/completions", &request).await.body);
    let said = |field: &str| {
        let is_said = |event: &Value| event["choices"][0]["delta"][field].as_str().is_some_and(|said| !said.is_empty());
        seen.iter().enumerate().filter(|(_, event)| is_said(event)).map(|(i, _)| i).collect::<Vec<_>>()
    };
    let (thought, answered) = (said("reasoning_content"), said("content"));
    assert!(!thought.is_empty() && thought.last() < answered.first(), "{seen:?}");
    for stream in [false, true] {
        let request = json!({"model": "tidegate-starter", "input": "Hello!", "stream": stream});
        let answer = gateway.post("/v1/responses", &request).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
        let body: Value = serde_json::from_str(last.unwrap_or(&text)).unwrap();
        let body = if stream { body["response"].clone() } else { body };
        let items: Vec<&str> =
            body["output"].as_array().unwrap().iter().filter_map(|item| item["type"].as_str()).collect();
        assert_eq!(items, ["reasoning", "message"], "stream: {stream}, {body}");
        assert!(body["output"][0].to_string().contains("so it is 42"), "{body}");
    }
}

/// Each text of reasoning ends where the answer goes on; the guard is told of its last window, and judges the next as a new one.
#[tokio::test(flavor = "multi_thread")]
async fn reasoning_between_two_parts_of_an_answer_is_judged_as_a_text_of_its_own() {
    let pieces = [
        ("reasoning_content", "ask ann@example.com"),
        ("content", "Write to bob@exam"),
        ("reasoning_content", "or eve@example.com"),
        ("content", "ple.com."),
    ];
    let model = says_each(&pieces).await;
    let gateway = Gateway::start(&format!("{model}{}", stage("pii-guard", ""))).await;
    let mut request = with_model(ask("Hello!"));
    for stream in [false, true] {
        request["stream"] = stream.into();
        let answer = gateway.post("/v1/chat/completions", &request).await;
        let (text, thought) = if stream {
            let events = events(&answer.body);
            let thought = events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
            (joined(&events, 0), thought.collect())
        } else {
            let message = answer.json()["choices"][0]["message"].clone();
            let said = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
            (said("content"), said("reasoning_content"))
        };
        assert_eq!(
            (text.as_str(), thought.as_str()),
            ("Write to [email].", "ask [email]or [email]"),
            "stream: {stream}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_thought_before_a_halt_stays_a_thought() {
    for pieces in cuts(SAID) {
        let model = says("reasoning_content", pieces.clone()).await;
        let gateway = Gateway::start(&format!("{model}{}{}", blocks("secretword"), stage("pii-guard", ""))).await;
        for stream in [true, false] {
            let [text, thought] = read(&gateway, stream).await;
            assert_eq!((text.as_str(), thought.as_str()), ("", "Write to [email] about "), "{pieces:?}");
        }
    }
}
