//! Guards that are asked while the model reads the prompt: nothing leaves before their verdict.

use crate::stages::{counted, metrics, refusals};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_tests::{Gateway, ask};
use tokio::net::TcpListener;

fn stage(guest: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{guest}\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\n\
         when = \"during-prefill\"\n[pipeline.stage.limits]\ncpu_ms = 20000\nwall_ms = 60000\n",
        file.display()
    )
}

fn model(name: &str) -> String {
    format!("[[models]]\nname = \"{name}\"\npath = \"bundled\"\n")
}

fn to(model: &str, words: &str) -> serde_json::Value {
    let mut request = ask(words);
    request["model"] = model.into();
    request
}

/// The engine's count of prompt tokens that it has read for a model.
async fn tokens_read(gateway: &Gateway, model: &str) -> f64 {
    let metrics = gateway.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let name = format!("tidegate_engine_prompt_tokens_total{{model=\"{model}\"}}");
    let line = text.lines().find(|line| line.starts_with(&name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_reads_while_the_guard_thinks_and_says_nothing() {
    const THINKS: Duration = Duration::from_secs(6);
    let gateway = Arc::new(Gateway::start(&(model("reads-early") + &stage("tarries"))).await);
    let (asked, begun) = (Arc::clone(&gateway), Instant::now());
    let answering = tokio::spawn(async move {
        let events = asked.stream(to("reads-early", &format!("tarry {}", THINKS.as_millis()))).await;
        (events.len(), begun.elapsed())
    });
    let mut read = None;
    while read.is_none() && !answering.is_finished() {
        read = (tokens_read(&gateway, "reads-early").await > 0.0).then(|| begun.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (events, took) = answering.await.unwrap();
    assert!(events > 1 && took >= THINKS, "{events} events after {took:?}");
    assert!(read.is_some_and(|after| after < THINKS), "the prompt was read after the verdict only: {read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_refusal_is_a_refusal() {
    let gateway = Gateway::start(&(model("refused-late") + &stage("tarries"))).await;
    for stream in [false, true] {
        let mut request = to("refused-late", "tarry 100 refuse");
        request["stream"] = stream.into();
        let answer = gateway.post("/v1/chat/completions", &request).await;
        assert_eq!((answer.status, answer.error().2), (400, json!("content_filter")), "stream: {stream}");
    }
    assert_eq!(gateway.chat(to("refused-late", "tarry 100 respond")).await.text(), "from the guard");
    assert_eq!(gateway.chat(to("refused-late", "Hello!")).await.status, 200);
}

/// The first one's verdict is followed.
#[tokio::test(flavor = "multi_thread")]
async fn each_late_refusal_is_counted() {
    let names = ["refuses-late", "refuses-later"];
    let guards = names.map(|name| stage("tarries").replace("plugin = \"tarries\"", &format!("plugin = \"{name}\"")));
    let gateway = Gateway::start(&(model("refused-twice") + &guards.concat())).await;
    assert_eq!(gateway.chat(to("refused-twice", "tarry 1 refuse")).await.status, 400);
    for name in names {
        counted(&gateway, &refusals(name, "prompt-guard"), 1).await;
    }
}

/// Passages are looked for beside the guard: the model was given them, and the guard's answer is not made from them.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_guards_own_answer_cites_nothing() {
    let finds = stage("honest").replace("prompt-guard", "retriever").replace("when = \"during-prefill\"\n", "");
    let gateway = Gateway::start(&(model("cites-late") + &finds + &stage("tarries"))).await;
    for (question, is_cited) in [("tarry 1 respond", false), ("Hello!", true)] {
        let body = json!({"model": "cites-late", "input": question, "store": false, "max_output_tokens": 16});
        let response = gateway.post("/v1/responses", &body).await.json();
        assert_eq!(response.to_string().contains("file_citation"), is_cited, "{response}");
    }
}

/// What a guard answers in the model's place waits too.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_guard_waits_for_the_verdict() {
    let answers = stage("bloats").replace("when = \"during-prefill\"\n", "");
    let gateway = Gateway::start(&(model("answered-early") + &answers + &stage("tarries"))).await;
    let refused = gateway.chat(to("answered-early", "tarry 100 refuse")).await;
    assert_eq!((refused.status, refused.error().2), (400, json!("content_filter")));
    let answered = gateway.chat(to("answered-early", "Hello!")).await;
    assert_eq!((answered.status, answered.headers["x-tidegate-answered-by"].to_str().unwrap()), (200, "bloats"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaves_the_machine_before_the_verdict() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let remote =
        format!("[[models]]\nname = \"remote\"\nupstream = \"http://{}/v1\"\n", upstream.local_addr().unwrap());
    let gateway = Gateway::start(&(remote + &stage("tarries"))).await;
    let answer = gateway.chat(to("remote", "tarry 100 refuse")).await;
    assert_eq!((answer.status, answer.error().2), (400, json!("content_filter")));
    let called = tokio::time::timeout(Duration::from_millis(200), upstream.accept()).await;
    assert!(called.is_err(), "the upstream was called");
}

/// Where a plugin keeps things, others may read them: a later request, another gateway.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_by_a_plugin_before_the_verdict() {
    let keeps = stage("remembers").replace("prompt-guard", "memory").replace("when = \"during-prefill\"\n", "");
    let keeps = keeps.replace("plugin = \"remembers\"", "plugin = \"keeps-late\"");
    let config = format!("{}{keeps}[pipeline.stage.grants]\nkv_kib = 64\n{}", model("kept-late"), stage("tarries"));
    let gateway = Gateway::start(&config).await;
    assert_eq!(gateway.chat(to("kept-late", "tarry 100 refuse")).await.status, 400);
    let called = "tidegate_plugin_call_seconds_count{plugin=\"keeps-late\",stage=\"memory\"}";
    assert!(!metrics(&gateway).await.contains(called), "it was asked, and could keep what it was asked");
    assert_eq!(gateway.chat(to("kept-late", "Hello!")).await.status, 200);
    // What it knows, and what it is to remember.
    counted(&gateway, called, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_may_rewrite_cannot_be_late() {
    let gateway = Gateway::start(&(model("rewrites-late") + &stage("honest"))).await;
    let answer = gateway.chat(to("rewrites-late", "Hello!")).await;
    assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")));
    assert!(gateway.running.facts.iter().any(|fact| fact.contains("rewrite nothing")), "{:?}", gateway.running.facts);
    let config = "[[pipeline.stage]]\nplugin = \"calculator\"\nwhen = \"before\"\n";
    let mut config = tidegate::config::Config::parse(config).unwrap();
    config.server.listen.set_port(0);
    let why = tidegate::start(config).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(why.contains("`when` is for prompt guards"), "{why}");
}
