//! Components of released lines of the contract, in four languages, on the path of real requests.

use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_tests::{Gateway, ask, finish_reason, joined};

fn frozen() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("frozen/0.1.0")
}

fn stage(name: &str, file: &Path, kind: &str, config: &str) -> String {
    let file = file.display();
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{file}\"\nstages = [\"{kind}\"]\n\
         [pipeline.stage.limits]\ncpu_ms = 10000\nwall_ms = 60000\n[pipeline.stage.config]\n{config}\n"
    )
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
        stage("pii", &frozen().join("pii-guard-rust.wasm"), "prompt-guard", ""),
        stage("words", &python, "retriever", passages),
        stage("length", &frozen().join("length-router-c.wasm"), "router", "long_tokens = 100"),
    ]
    .concat();
    let gateway = Gateway::start(&pipeline).await;
    let mut body = ask("What is Kelso? Write to jane.roe@example.com.");
    body["model"] = "auto".into();
    let answer = gateway.chat(body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.json()["model"], tidegate::bundled::STARTER_NAME, "the router named it");
    let metrics = gateway.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    for plugin in ["pii", "words", "length"] {
        let called = format!("tidegate_plugin_call_seconds_count{{plugin=\"{plugin}\"");
        assert!(metrics.contains(&called), "{plugin} was not called");
        let failed = format!("tidegate_plugin_failures_total{{plugin=\"{plugin}\"");
        assert!(!metrics.contains(&failed), "{plugin} failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_of_0_1_0_in_javascript_holds_answers_to_its_shape() {
    let file = frozen().join("json-guard-javascript.wasm");
    let gateway = Gateway::start(&stage("shape", &file, "output-guard", "required = { name = \"string\" }")).await;
    let answer = gateway.chat(ask("What is Tidegate?")).await;
    let choice = &answer.json()["choices"][0];
    assert_eq!((answer.status, &choice["finish_reason"]), (200, &json!("content_filter")), "{choice}");
    let events = gateway.stream(ask("What is Tidegate?")).await;
    assert_eq!(finish_reason(&events, 0), "content_filter");
    assert!(!joined(&events, 0).contains("gateway"), "prose left: {}", joined(&events, 0));
}
