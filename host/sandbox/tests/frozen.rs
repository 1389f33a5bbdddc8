//! Components of every released line of the contract, as they were built then: they load and behave for ever. A new
//! line adds a folder to `tests/frozen`; no component there is ever rebuilt.

use crate::support::{by, ctx, inspect, shared, window};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use tidegate_sandbox::stage::{Action, Candidate, Grants, Output, Query, RouteRequest, StageKind, WindowAction};
use tidegate_sandbox::{Plugin, PluginSpec};
use tidegate_types::{Message, Role, ToolCall};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/frozen/0.1.0")
}

/// The components that the tests below run.
const RUN: [&str; 6] = [
    "honest-rust",
    "json-guard-javascript",
    "keeper-rust",
    "length-router-c",
    "pii-guard-rust",
    "word-retriever-python",
];

fn frozen(name: &str, grants: Grants) -> Arc<Plugin> {
    frozen_with(name, grants, serde_json::Value::Null)
}

fn frozen_with(name: &str, grants: Grants, config: serde_json::Value) -> Arc<Plugin> {
    let limits = crate::support::spec("honest").limits;
    shared().load(PluginSpec { grants, limits, config, ..PluginSpec::new(name, component(name)) }).unwrap()
}

/// A component; those of some languages are large, and kept compressed.
fn component(name: &str) -> Vec<u8> {
    let plain = folder().join(format!("{name}.wasm"));
    if plain.exists() {
        return std::fs::read(plain).unwrap();
    }
    let gunzip = Command::new("gzip").arg("-dc").arg(folder().join(format!("{name}.wasm.gz"))).output().unwrap();
    assert!(gunzip.status.success(), "{}", String::from_utf8_lossy(&gunzip.stderr));
    gunzip.stdout
}

#[test]
fn every_frozen_component_is_run() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let names = files.map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
    let name = |file: String| file.strip_suffix(".wasm.gz").or(file.strip_suffix(".wasm")).map(str::to_owned);
    let mut names: Vec<String> = names.filter_map(name).collect();
    names.sort();
    assert_eq!(names, RUN);
}

#[tokio::test]
async fn the_stages_of_0_1_0_are_called_as_they_were() {
    let plugin = frozen("honest-rust", Grants::default());
    let stages: Vec<&str> = plugin.exported_stages().iter().map(|stage| stage.as_str()).collect();
    assert_eq!(stages, ["prompt-guard", "stream-guard", "router", "tool-provider", "retriever"]);
    let rewritten = inspect(&plugin, &ctx(), "rewrite").await.unwrap();
    assert!(matches!(&rewritten.action, Action::Rewrite(edits) if edits.len() == 1), "{rewritten:?}");
    let redacted = plugin.inspect_window(&ctx(), &[], window("a ####", 0)).await.unwrap();
    assert!(matches!(&redacted.action, WindowAction::Redact(cuts) if cuts[0].span.start == 2), "{redacted:?}");
    let messages = [Message::text("m0", Role::User, "hi")];
    let request = RouteRequest { messages: &messages, prompt_tokens: 1, findings: &[], attrs: &[] };
    let candidate =
        |id: &str| Candidate { id: id.into(), model: id.into(), healthy: true, context_tokens: 9, attrs: Vec::new() };
    let decision = plugin.route(&ctx(), request, &[candidate("a"), candidate("b")]).await.unwrap();
    assert_eq!(decision.order, ["b", "a"]);
    let call = ToolCall { id: "c".into(), name: "echo".into(), arguments: "{\"a\":1}".into() };
    assert_eq!(plugin.list_tools(&ctx()).await.unwrap()[0].name, "echo");
    assert_eq!(plugin.call_tool(&ctx(), &call).await.unwrap().content, "{\"a\":1}");
    assert_eq!(plugin.retrieve(&ctx(), &Query { text: "x".into(), top_k: 2 }).await.unwrap().len(), 2);
    assert!(!plugin.exported_stages().contains(&StageKind::Observer));
}

#[tokio::test]
async fn the_capabilities_of_0_1_0_are_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "alpha").unwrap();
    let documents = [("docs".to_owned(), folder.path().to_owned())].into();
    let plugin = frozen("keeper-rust", Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() });
    for (function, arguments, expected) in [
        ("set", "key value", "set"),
        ("get", "key", "value"),
        ("add", "count 5", "5"),
        ("list", "", "docs/a.txt:5"),
        ("read", "docs/a.txt", "alpha"),
        ("count", "kept", "counted"),
        ("log", "a line", "logged"),
    ] {
        let call = ToolCall { id: "c".into(), name: function.into(), arguments: arguments.into() };
        assert_eq!(plugin.call_tool(&by("acme"), &call).await.unwrap().content, expected, "{function}");
    }
}

#[tokio::test]
async fn a_plugin_of_the_sdk_of_0_1_0_goes_on() {
    let plugin = frozen("pii-guard-rust", Grants::default());
    let text = "write to jane.roe@example.com today, please";
    let inspection = plugin.inspect_window(&ctx(), &[], window(text, 0)).await.unwrap();
    assert!(matches!(&inspection.action, WindowAction::Redact(cuts) if cuts.len() == 1), "{inspection:?}");
}

/// Built by clang 14 and wit-bindgen 0.63 from `plugins/languages/c-router`.
#[tokio::test]
async fn a_router_in_c_goes_on() {
    let plugin = frozen_with("length-router-c", Grants::default(), json!({"long_tokens": 100}));
    let candidate = |id: &str, context_tokens| Candidate {
        id: id.into(),
        model: id.into(),
        healthy: true,
        context_tokens,
        attrs: Vec::new(),
    };
    let candidates = [candidate("small", 1000), candidate("large", 9000)];
    let messages = [Message::text("m0", Role::User, "größe")];
    for (prompt_tokens, expected) in [(5, ["small", "large"]), (500, ["large", "small"])] {
        let request = RouteRequest { messages: &messages, prompt_tokens, findings: &[], attrs: &[] };
        assert_eq!(plugin.route(&ctx(), request, &candidates).await.unwrap().order, expected);
    }
}

/// Built by componentize-qjs 0.4.5 from `plugins/languages/javascript-json-guard`.
#[tokio::test]
async fn a_guard_in_javascript_goes_on() {
    let config = json!({"required": {"name": "string"}});
    let plugin = frozen_with("json-guard-javascript", Grants::default(), config);
    for (text, passes) in [(r#"{"name": "größe"}"#, true), (r#"{"name": 3}"#, false), ("hello", false)] {
        let choices = [Message::text("choice-0", Role::Assistant, text)];
        let output = Output { choices: &choices, finish_reasons: &["stop"], usage: None, attrs: &[] };
        let verdict = plugin.inspect_output(&ctx(), output).await.unwrap();
        assert_eq!(verdict.action == Action::Allow, passes, "{text}: {verdict:?}");
    }
}

/// Built by componentize-py 0.25.1 from `plugins/languages/python-retriever`.
#[tokio::test]
async fn a_retriever_in_python_goes_on() {
    let config =
        json!({"passages": [{"id": "a", "text": "The ferry leaves."}, {"id": "b", "text": "Granite, at größe."}]});
    let plugin = frozen_with("word-retriever-python", Grants::default(), config);
    let found = plugin.retrieve(&ctx(), &Query { text: "größe of granite".into(), top_k: 2 }).await.unwrap();
    assert_eq!(found.iter().map(|chunk| chunk.id.as_str()).collect::<Vec<_>>(), ["b"]);
}
