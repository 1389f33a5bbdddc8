//! Requests that end before a model has answered are counted as generations too, each once and as what it was.

use crate::stages::{counted, metrics};
use crate::talk::until;
use crate::together::{asks, gate};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_tests::stalling::Stalling;
use tidegate_tests::{BARE, Gateway, ask};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An upstream's model.
fn model(name: &str, upstream: &str) -> String {
    format!("[[models]]\nname = \"{name}\"\nupstream = \"http://{upstream}/v1\"\n")
}

fn of(model: &str, question: &str) -> Value {
    let mut request = ask(question);
    request["model"] = model.into();
    request
}

fn ended(model: &str, outcome: &str) -> String {
    format!("tidegate_requests_total{{model=\"{model}\",tenant=\"local\",class=\"standard\",outcome=\"{outcome}\"}}")
}

/// What is counted of a model's requests, whatever their outcome.
async fn all_of(gateway: &Gateway, model: &str) -> u64 {
    let start = format!("tidegate_requests_total{{model=\"{model}\"");
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
    metrics(gateway).await.lines().filter(|line| line.starts_with(&start)).filter_map(value).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_and_a_prompt_that_is_refused_are_counted() {
    let guard = "[[pipeline.stage]]\nplugin = \"word-guard\"\nconfig = { words = [\"heron\"], action = \"block\" }\n";
    let gateway = Gateway::start(&format!("{}{BARE}{guard}", model("is-down", "127.0.0.1:9"))).await;
    assert_eq!(gateway.chat(of("is-down", "Hello!")).await.status, 502);
    counted(&gateway, &ended("is-down", "failed"), 1).await;
    assert_eq!(gateway.chat(of("is-down", "A heron!")).await.status, 400);
    counted(&gateway, &ended("is-down", "refused"), 1).await;
    let prompts = json!({"model": "is-down", "prompt": ["Hello!", "A heron!", "Good day!"]});
    assert_eq!(gateway.post("/v1/completions", &prompts).await.status, 400);
    counted(&gateway, &ended("is-down", "refused"), 4).await;
    let vectors = json!({"model": "is-down", "input": "A heron!"});
    assert_eq!(gateway.post("/v1/embeddings", &vectors).await.status, 400);
    counted(&gateway, &ended("is-down", "refused"), 5).await;
    assert_eq!(all_of(&gateway, "is-down").await, 6, "none is counted twice");
    counted(&gateway, "tidegate_request_seconds_count{model=\"is-down\"", 6).await;
    assert_eq!(gateway.chat(of("no-such-model", "Hello!")).await.status, 404);
    assert_eq!(all_of(&gateway, "no-such-model").await, 0, "whoever asks for what is not there makes no series");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_upstream_is_silent_is_counted() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap().to_string();
    let gateway = Gateway::start(&format!("{}{BARE}", model("is-silent", &upstream))).await;
    let asking = gateway.send(gateway.json_request("/v1/chat/completions", &of("is-silent", "Hello!")));
    assert!(tokio::time::timeout(Duration::from_millis(500), asking).await.is_err(), "nobody answers");
    counted(&gateway, &ended("is-silent", "client-gone"), 1).await;
    assert_eq!(all_of(&gateway, "is-silent").await, 1);
}

/// The gauge is of the whole process, with what other tests have in work.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_in_work_as_soon_as_it_is_let_in() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap().to_string();
    let gateway = Gateway::start(&format!("{}{BARE}", model("in-work", &upstream))).await;
    const MANY: u64 = 200;
    let asking =
        (0..MANY).map(|_| gateway.send(gateway.json_request("/v1/chat/completions", &of("in-work", "Hello!"))));
    let asking = futures_util::future::join_all(asking);
    let in_work = async || {
        let metrics = metrics(&gateway).await;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("tidegate_requests_in_work ")).map(str::parse::<f64>);
        line.and_then(Result::ok).unwrap_or_default()
    };
    let seen = until("they are in work", async || Some(in_work().await).filter(|seen| *seen >= MANY as f64));
    tokio::select! {
        _ = asking => panic!("nobody answers"),
        _ = seen => {}
    }
    until("none of them is", async || (in_work().await < MANY as f64).then_some(())).await;
    counted(&gateway, &ended("in-work", "client-gone"), MANY).await;
}

/// The engine reads the prompt while the guard thinks, and that was work.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_did_for_a_prompt_that_is_refused_late_is_counted() {
    let gate = gate("403 Forbidden").await;
    let bundled = |name: &str| format!("[[models]]\nname = \"{name}\"\npath = \"bundled\"\n");
    let models = bundled("tidegate-starter") + &bundled("is-read");
    let gateway = Gateway::start(&(models + &asks(&gate, "late-of-read", "during-prefill"))).await;
    let refused = gateway.chat(of("is-read", "Hello!"));
    let decides = async {
        let made = "tidegate_engine_generation_tokens_total";
        until("the engine generates", async || {
            let is_made = |line: &str| line.starts_with(made) && line.contains("is-read") && !line.ends_with(" 0");
            metrics(&gateway).await.lines().any(is_made).then_some(())
        })
        .await;
        gate.open.add_permits(1);
    };
    let (refused, ()) = futures_util::future::join(refused, decides).await;
    assert_eq!(refused.status, 400);
    counted(&gateway, &ended("is-read", "refused"), 1).await;
    let metrics = metrics(&gateway).await;
    for tokens in ["tidegate_input_tokens_total", "tidegate_output_tokens_total"] {
        let is_some = |line: &str| line.starts_with(&format!("{tokens}{{model=\"is-read\"")) && !line.ends_with(" 0");
        assert!(metrics.lines().any(is_some), "{tokens}: {metrics}");
    }
}

/// What comes of a request, on a connection that outlives the gateway.
async fn post(address: SocketAddr, path: &str, body: Value) -> String {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer).await;
    answer
}

async fn came(silent: &TcpListener) -> TcpStream {
    tokio::time::timeout(Duration::from_secs(30), silent.accept()).await.expect("it is asked").unwrap().0
}

/// With a stream that runs, an answer that has not begun, and vectors that nobody makes.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_ends_when_it_stops_has_failed_and_no_client_has_left() {
    let streams = Stalling::start().await.model.replace("slow", "is-cut");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap().to_string();
    let gateway = Gateway::start(&format!("{streams}{}{BARE}", model("is-cut-silent", &upstream))).await;
    let mut request = of("is-cut", "Hello!");
    request["stream"] = true.into();
    let running = gateway.send(gateway.json_request("/v1/chat/completions", &request)).await;
    assert_eq!(running.status(), 200);
    let chat = tokio::spawn(post(gateway.addr, "/v1/chat/completions", of("is-cut-silent", "Hello!")));
    let vectors = json!({"model": "is-cut-silent", "input": "Hello!"});
    let vectors = tokio::spawn(post(gateway.addr, "/v1/embeddings", vectors));
    let asked = [came(&silent).await, came(&silent).await];
    let stops = tokio::time::timeout(Duration::from_secs(30), gateway.running.stop(Duration::ZERO));
    stops.await.expect("it stops");
    for answer in [chat, vectors] {
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    drop((asked, running));
    // Counters are of the whole process.
    let other = Gateway::start(BARE).await;
    counted(&other, &ended("is-cut", "failed"), 1).await;
    counted(&other, &ended("is-cut-silent", "failed"), 2).await;
    assert_eq!(all_of(&other, "is-cut").await + all_of(&other, "is-cut-silent").await, 3, "no client has left");
}
