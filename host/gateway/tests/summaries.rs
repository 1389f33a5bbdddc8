//! A gateway that is killed in the middle of a summary: nothing of the conversation is lost, and the summary is made by the
//! next one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod server;
#[path = "../../../tests/src/stand_in.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod stand_in;

use serde_json::{Value, json};
use server::Server;
use stand_in::{StandIn, completion};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

impl Server {
    fn start(folder: &Path) -> Self {
        Self::with(&folder.join("tidegate.toml"))
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> String {
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let body = body.to_string();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            self.addr,
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn say(&self, conversation: &str, n: usize) -> Value {
        let content = format!("This is word-{n}, {}", "and so on ".repeat(30));
        let body = json!({"model": "chat", "conversation": conversation, "input": content, "truncation": "auto"});
        serde_json::from_str(&self.send("POST", "/v1/responses", &body)).unwrap()
    }
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_killed_within_a_summary_loses_nothing_and_the_next_makes_it() {
    let hangs = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&hangs);
    let upstream = StandIn::start(move |_, body| match body["model"].as_str() {
        Some("sums") if held.load(Ordering::SeqCst) => completion("never").after(Duration::from_secs(600)),
        Some("sums") => completion("In short: words."),
        _ => completion("Yes."),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n{}context_tokens = 400\n{}[store]\npath = \"data\"\n\
         [store.summaries]\nmodel = \"sums\"\n[pipeline]\n[engine]\nkv_cache_mib = 16\n",
        upstream.model("chat"),
        upstream.model("sums")
    );
    std::fs::write(folder.path().join("tidegate.toml"), config).unwrap();
    let shown = || {
        let all = upstream.asked("/v1/chat/completions");
        all.into_iter().filter(|body| body["model"] == "sums").count()
    };

    let first = Server::start(folder.path());
    let made: Value = serde_json::from_str(&first.send("POST", "/v1/conversations", &json!({}))).unwrap();
    let id = made["id"].as_str().unwrap();
    let mut said = 0;
    wait("a summary is being made", || {
        assert_eq!(first.say(id, said)["status"], "completed");
        said += 1;
        std::thread::sleep(Duration::from_millis(50));
        shown() > 0
    });
    // Answers do not wait for it.
    assert_eq!(first.say(id, said)["store"], true);
    said += 1;
    drop(first);

    hangs.store(false, Ordering::SeqCst);
    let second = Server::start(folder.path());
    let items = format!("/v1/conversations/{id}/items?order=asc&limit=100");
    let kept: Value = serde_json::from_str(&second.send("GET", &items, &Value::Null)).unwrap();
    assert_eq!(kept["data"].as_array().unwrap().len(), said * 2);
    wait("the summary is used", || {
        let response = second.say(id, said);
        said += 1;
        std::thread::sleep(Duration::from_millis(50));
        response["context"]["summarized"].as_u64().unwrap() > 0
    });
    let last = upstream.asked("/v1/chat/completions").into_iter().rfind(|body| body["model"] == "chat").unwrap();
    assert!(last.to_string().contains("In short: words."), "{last}");
}
