//! Requests that end before a model has answered are counted as generations too, each once and as what it was.

use crate::stages::{counted, metrics};
use crate::talk::until;
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::{BARE, Gateway, ask};
use tokio::net::TcpListener;

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
