//! Clients that read the stream of a response slowly, or not at all: what is made for them waits for them.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::Value;
use std::time::Duration;
use support::{Client, Running, finish, get, limits, post, scored, start, start_keeping, text};
use tidegate_api::{Limits, StreamLimits};
use tidegate_types::Delta;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// More than systems keep of what a client does not read, of words with [`WORD`] bytes each.
const MOST: usize = 10_000;
const WORD: usize = 2000;

fn narrow() -> Limits {
    let streams = StreamLimits { log_bytes: 64 << 10, ..StreamLimits::default() };
    Limits { streams, ..limits() }
}

fn ask(model: &str, store: bool) -> Vec<u8> {
    post("/v1/responses", format!(r#"{{"model":"{model}","input":"Hello!","stream":true,"store":{store}}}"#))
}

/// What the model says, and nobody else can.
fn gate(running: &mut Running) -> mpsc::Sender<Delta> {
    std::mem::replace(&mut running.gate, mpsc::channel(1).0)
}

fn word(n: usize) -> Delta {
    scored(&format!("<{n}>"), WORD)
}

/// The data of typed events.
fn events(body: &str) -> Vec<Value> {
    let events = body.split("\n\n").filter_map(|event| event.split_once("data: "));
    events.map(|(_, data)| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn who_reads_a_response_slowly_misses_nothing() {
    let mut running = start(narrow(), Vec::new(), None);
    let mut client = running.connect_narrowly().await;
    client.send(ask("gated", false)).await;
    let (gate, mut said) = (gate(&mut running), 0);
    while said < MOST && timeout(Duration::from_secs(1), gate.send(word(said))).await.is_ok() {
        said += 1;
    }
    assert!(said < MOST, "the model goes on, and nobody reads");
    let rest = async move {
        for n in said..said + 200 {
            gate.send(word(n)).await.unwrap();
        }
        gate.send(finish(0)).await.unwrap();
    };
    let (answered, ()) = tokio::join!(client.answer(), rest);
    let events = events(&answered.body);
    let numbers: Vec<usize> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap() as usize).collect();
    assert_eq!(numbers, (0..events.len()).collect::<Vec<_>>(), "{}", &answered.body[answered.body.len() - 300..]);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let heard: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(heard, (0..said + 200).map(|n| format!("<{n}>")).collect::<String>());
    assert_eq!(events.last().unwrap()["type"], "response.completed");
}

/// As any write is given up that its client does not take.
#[tokio::test]
async fn who_reads_nothing_holds_no_answer_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { write_timeout: Duration::from_millis(200), ..narrow() };
    let running = start_keeping(limits, folder.path()).await;
    for store in [false, true] {
        let mut client = running.connect_narrowly().await;
        client.send(ask("flood", store)).await;
        let id = named(&mut client).await;
        running.all_dropped().await;
        if store {
            let found = kept(&running, &id).await;
            assert_eq!(found["status"], "cancelled", "{:?}", found["status"]);
            assert!(!found["output"][0]["content"][0]["text"].as_str().unwrap().is_empty());
        }
        drop(client);
    }
}

/// The id of the response whose stream begins.
async fn named(client: &mut Client) -> String {
    let begun = client.read_to("\"status\":\"in_progress\"").await;
    begun.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// The response, once it is there.
async fn kept(running: &Running, id: &str) -> Value {
    let finding = async {
        loop {
            let found = running.ask(get(&format!("/v1/responses/{id}"))).await;
            if found.status == 200 {
                return found.json();
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), finding).await.expect("it is not kept")
}

/// All that comes, of many megabytes.
async fn rest(mut client: Client) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n0\r\n\r\n") {
        assert_ne!(client.stream.read_buf(&mut bytes).await.unwrap(), 0, "closed before its end");
    }
    String::from_utf8(bytes).unwrap()
}

/// The store waits for no reader.
#[tokio::test]
async fn an_answer_is_kept_though_its_end_is_not_read_yet() {
    const LONG: usize = 5 << 20;
    let folder = tempfile::tempdir().unwrap();
    let mut running = start_keeping(narrow(), folder.path()).await;
    let mut client = running.connect_narrowly().await;
    client.send(ask("gated", true)).await;
    let gate = gate(&mut running);
    // The client's system has the beginning of the first, and the second waits for it.
    gate.send(text(&"x".repeat(LONG))).await.unwrap();
    let id = named(&mut client).await;
    gate.send(text("!")).await.unwrap();
    gate.send(finish(0)).await.unwrap();
    drop(gate);
    let found = kept(&running, &id).await;
    assert_eq!(found["status"], "completed");
    let rest = rest(client).await;
    assert!(rest.contains("event: response.output_text.done") && rest.contains("event: response.completed"));
    assert!(!rest.contains("\"error\":{"));
}
