//! `GET /readyz` while a plugin has not loaded: whether requests will be answered.

use serde_json::json;
use std::path::Path;
use tidegate::config::Config;
use tidegate_tests::{Gateway, ask, with_model};

/// A stage of a component that is not there.
fn absent(stage: &str, more: &str) -> String {
    format!("[[pipeline.stage]]\nplugin = \"absent\"\nfile = \"nowhere.wasm\"\nstages = [\"{stage}\"]\n{more}\n")
}

async fn ready(gateway: &Gateway) -> u16 {
    gateway.get("/readyz").await.status
}

/// Of a chat that is read as a stream, and one that is not.
async fn chats(gateway: &Gateway) -> [u16; 2] {
    let mut asked = with_model(ask("Hello!"));
    let whole = gateway.chat(asked.clone()).await.status;
    asked["stream"] = json!(true);
    [whole, gateway.post("/v1/chat/completions", &asked).await.status]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_not_ready_while_a_closed_stage_that_requests_meet_did_not_load() {
    for (stage, more, answered) in [
        ("prompt-guard", "", [503, 503]),
        ("prompt-guard", "when = \"during-prefill\"", [503, 503]),
        ("stream-guard", "on_error = \"closed\"", [503, 503]),
        ("output-guard", "", [503, 503]),
        ("output-guard", "streamed = \"pass\"", [503, 200]),
        ("tool-provider", "on_error = \"closed\"", [503, 503]),
        ("retriever", "on_error = \"closed\"", [503, 503]),
        ("memory", "on_error = \"closed\"", [503, 503]),
        // These name their model.
        ("router", "on_error = \"closed\"", [200, 200]),
    ] {
        let gateway = Gateway::start(&absent(stage, more)).await;
        assert_eq!((ready(&gateway).await, chats(&gateway).await), (503, answered), "{stage} {more}");
        assert_eq!(gateway.get("/livez").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_ready_while_requests_go_on_without_what_did_not_load() {
    let no_turns = "[pipeline]\nmax_tool_turns = 0\n";
    for (pipeline, stage, more) in [
        ("", "prompt-guard", "on_error = \"open\""),
        ("", "prompt-guard", "on_error = \"skip\""),
        ("", "stream-guard", "on_error = \"open\""),
        ("", "output-guard", "on_error = \"skip\""),
        ("", "tool-provider", ""),
        ("", "retriever", ""),
        ("", "memory", "on_error = \"skip\""),
        ("", "router", ""),
        // It is told of what has ended.
        ("", "observer", "on_error = \"closed\""),
        // Nobody asks it.
        (no_turns, "tool-provider", "on_error = \"closed\""),
    ] {
        let gateway = Gateway::start(&format!("{pipeline}{}", absent(stage, more))).await;
        assert_eq!((ready(&gateway).await, chats(&gateway).await), (200, [200, 200]), "{stage} {more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_with_which_the_guard_loads_makes_the_server_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (file, guard) = (folder.path().join("tidegate.toml"), folder.path().join("guard.wasm"));
    let stage = absent("prompt-guard", "").replace("nowhere.wasm", "guard.wasm");
    std::fs::write(&file, format!("{stage}limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n")).unwrap();
    let mut config = Config::load(&file).unwrap();
    config.cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache"));
    let gateway = Gateway::start_with(config).await;
    assert_eq!(gateway.post_raw("/admin/reload", "").await.status, 400);
    assert_eq!(ready(&gateway).await, 503, "a reload that is refused changes nothing");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm"), &guard).unwrap();
    assert_eq!(gateway.post_raw("/admin/reload", "").await.status, 200);
    assert_eq!((ready(&gateway).await, chats(&gateway).await), (200, [200, 200]));
}
