//! Components of released lines of the contract, in four languages, on the path of real requests.

use crate::conversations::send;
use hyper::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate::config::LimitsConfig;
use tidegate_sandbox::stage::StageKind;
use tidegate_tests::{Answer, Gateway, ask, events, finish_reason, joined, with_model};

/// Of a tenant each. No instance serves both, so the first request of either finds none.
const KEYS: [&str; 2] = ["ann", "bob"];

fn frozen() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("frozen/0.1.0")
}

/// With the limits that a server gives unasked.
fn stage(name: &str, file: &Path, kind: StageKind, config: &str) -> String {
    let (file, limits) = (file.display(), LimitsConfig::default());
    let (cpu, wall) = (limits.cpu(kind).as_millis(), limits.wall(kind).as_millis());
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{file}\"\nstages = [\"{}\"]\n\
         [pipeline.stage.limits]\ncpu_ms = {cpu}\nwall_ms = {wall}\n[pipeline.stage.config]\n{config}\n",
        kind.as_str()
    )
}

fn keys() -> String {
    let key = |name: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\nadmin = true\n")
    };
    KEYS.map(key).concat()
}

async fn chat(gateway: &Gateway, key: &str, body: Value) -> Answer {
    send(gateway, Method::POST, "/v1/chat/completions", key, Some(&with_model(body))).await
}

async fn none_failed(gateway: &Gateway, plugins: &[&str]) {
    let metrics = send(gateway, Method::GET, "/metrics", KEYS[0], None).await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    for plugin in plugins {
        let called = format!("tidegate_plugin_call_seconds_count{{plugin=\"{plugin}\"");
        assert!(metrics.contains(&called), "{plugin} was not called");
        let failed = format!("tidegate_plugin_failures_total{{plugin=\"{plugin}\"");
        assert!(!metrics.contains(&failed), "{plugin} failed");
    }
}

/// Python's component is kept compressed.
fn unpacked(name: &str, into: &Path) -> PathBuf {
    let file = into.join(format!("{name}.wasm"));
    let gunzip = Command::new("gzip").arg("-dc").arg(frozen().join(format!("{name}.wasm.gz"))).output().unwrap();
    assert!(gunzip.status.success());
    std::fs::write(&file, gunzip.stdout).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_0_1_0_in_rust_c_and_python_serve_one_request_together() {
    let folder = tempfile::tempdir().unwrap();
    let python = unpacked("word-retriever-python", folder.path());
    let passages = "passages = [{ id = \"kelso\", text = \"Kelso is a port on the northern coast.\" }]";
    let pipeline = [
        keys(),
        stage("pii", &frozen().join("pii-guard-rust.wasm"), StageKind::PromptGuard, ""),
        stage("words", &python, StageKind::Retriever, passages),
        stage("length", &frozen().join("length-router-c.wasm"), StageKind::Router, "long_tokens = 100"),
    ]
    .concat();
    let gateway = Gateway::start(&pipeline).await;
    for key in KEYS {
        let mut body = ask("What is Kelso? Write to jane.roe@example.com.");
        body["model"] = "auto".into();
        let answer = chat(&gateway, key, body).await;
        assert_eq!(answer.status, 200, "{key}: {:?}", answer.body);
        assert_eq!(answer.json()["model"], tidegate::bundled::STARTER_NAME, "the router named it");
    }
    none_failed(&gateway, &["pii", "words", "length"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_of_0_1_0_in_javascript_holds_answers_to_its_shape() {
    let file = frozen().join("json-guard-javascript.wasm");
    let guard = stage("shape", &file, StageKind::OutputGuard, "required = { name = \"string\" }");
    let gateway = Gateway::start(&(keys() + &guard)).await;
    for key in KEYS {
        let answer = chat(&gateway, key, ask("What is Tidegate?")).await;
        let choice = &answer.json()["choices"][0];
        assert_eq!((answer.status, &choice["finish_reason"]), (200, &json!("content_filter")), "{key}: {choice}");
        let mut streamed = ask("What is Tidegate?");
        streamed["stream"] = true.into();
        let events = events(&chat(&gateway, key, streamed).await.body);
        assert_eq!(finish_reason(&events, 0), "content_filter");
        assert!(!joined(&events, 0).contains("gateway"), "prose left: {}", joined(&events, 0));
    }
    none_failed(&gateway, &["shape"]).await;
}
