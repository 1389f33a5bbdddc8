//! Keys that are for some plugins only: what those bring that a key is not for is not there for it, and no key comes past a
//! guard by what it leaves out.

use crate::conversations::send;
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;
use tidegate::config::Config;
use tidegate_tests::{Answer, Gateway, ask, with_model};

fn key(name: &str, more: &str) -> String {
    let hash = blake3::hash(name.as_bytes());
    format!("[[keys]]\nname = \"{name}\"\ntenant = \"acme\"\nhash = \"blake3:{hash}\"\n{more}\n")
}

/// A stage of the guest that exports every kind, under a name of its own.
fn stage(name: &str, stages: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\nstages = {stages}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\n",
        file.display()
    )
}

/// One plugin is a guard and brings something as well.
fn config(folder: &Path) -> String {
    let keys = [
        key("all", ""),
        key("none", "plugins = []"),
        key("tools", "plugins = [\"scoped-guard-and-tool\"]"),
        key("passages", "plugins = [\"scoped-passages\"]"),
        key("memories", "plugins = [\"scoped-memory\"]"),
        key("narrow", "project = \"narrow\"\nplugins = [\"scoped-guard-and-tool\", \"scoped-memory\"]"),
        key("owner", "role = \"owner\"\nplugins = [\"scoped-memory\", \"scoped-passages\"]"),
        key("root", "admin = true"),
    ];
    let stages = [
        stage("scoped-guard-and-tool", "[\"prompt-guard\", \"tool-provider\"]"),
        stage("scoped-passages", "[\"retriever\"]"),
        stage("scoped-memory", "[\"memory\"]"),
    ];
    format!(
        "{}[tenants.acme.projects.narrow]\nplugins = [\"scoped-memory\", \"scoped-passages\"]\n\
         [store]\npath = {:?}\n{}",
        keys.concat(),
        folder.display().to_string(),
        stages.concat()
    )
}

async fn start() -> (Gateway, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Gateway::start(&config(folder.path())).await, folder)
}

async fn chat(gateway: &Gateway, key: &str, more: Value) -> Answer {
    let mut body = with_model(ask("When does it open?"));
    body["max_tokens"] = 1.into();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    send(gateway, Method::POST, "/v1/chat/completions", key, Some(&body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_the_tools_passages_and_memories_of_its_plugins_only() {
    let (gateway, _folder) = start().await;
    let tokens = async |key: &str| {
        let answer = chat(&gateway, key, json!({})).await;
        assert_eq!(answer.status, 200, "{key}: {:?}", answer.body);
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let none = tokens("none").await;
    let each = [tokens("tools").await, tokens("passages").await, tokens("memories").await];
    assert!(each.iter().all(|each| *each > none), "{each:?} over {none}");
    assert!(tokens("all").await > *each.iter().max().unwrap());
    // What a project leaves out is left out, and what a key does.
    assert_eq!(tokens("narrow").await, each[2]);
    for (key, known) in [("all", 2), ("memories", 2), ("none", 0), ("passages", 0), ("narrow", 2)] {
        let listed = send(&gateway, Method::GET, "/v1/memories?q=x", key, None).await.json();
        assert_eq!(listed["data"].as_array().unwrap().len(), known, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_names_of_a_plugin_that_its_key_is_not_for_is_refused() {
    let (gateway, _folder) = start().await;
    let named = |name: &str| json!({"tool_choice": {"type": "function", "function": {"name": name}}});
    for key in ["none", "passages", "narrow"] {
        let refused = chat(&gateway, key, named("echo")).await;
        let (message, param, code) = refused.error();
        assert_eq!((refused.status, param, code), (403, json!("tool_choice"), json!("insufficient_permissions")));
        assert!(message.contains("`scoped-guard-and-tool`") && message.contains("`plugins`"), "{message}");
    }
    // Who may call the tool may have it called; what is nobody's nobody can call.
    for key in ["all", "tools"] {
        assert_eq!(chat(&gateway, key, named("echo")).await.status, 200, "{key}");
    }
    let refused = chat(&gateway, "none", named("nobodys")).await;
    assert_eq!((refused.status, refused.error().1), (400, json!("tool_choice")));
    // A name that no tool of its has is free for a caller's own.
    let own = json!({"tools": [{"type": "function", "function": {"name": "echo", "parameters": {}}}]});
    let refused = chat(&gateway, "all", own.clone()).await;
    let (_, param, code) = refused.error();
    assert_eq!((param, code), (json!("tools[0].function.name"), json!("tool_name_taken")));
    assert_eq!(chat(&gateway, "none", own).await.status, 200);
    // By the name that it has there.
    let own = json!([{"type": "function", "name": "echo", "parameters": {}}]);
    let body = with_model(json!({"input": "Hello!", "tools": own}));
    let refused = send(&gateway, Method::POST, "/v1/responses", "all", Some(&body)).await;
    assert_eq!((refused.error().1, refused.error().2), (json!("tools[0].name"), json!("tool_name_taken")));
    let forget = async |key: &str| {
        let ids = json!({"ids": ["scoped-memory/i0"]});
        send(&gateway, Method::POST, "/v1/memories/forget", key, Some(&ids)).await
    };
    assert_eq!(forget("memories").await.status, 200);
    let refused = forget("tools").await;
    assert_eq!((refused.status, refused.error().1), (403, json!("ids")));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_comes_past_a_guard_by_what_its_plugins_leave_out() {
    let (gateway, _folder) = start().await;
    for key in ["all", "none", "tools", "passages", "memories", "narrow"] {
        let refused = send(&gateway, Method::POST, "/v1/chat/completions", key, Some(&with_model(ask("refuse")))).await;
        assert_eq!((refused.status, refused.error().2), (400, json!("content_filter")), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_made_has_no_more_plugins_than_its_maker() {
    let (gateway, _folder) = start().await;
    let make = async |by: &str, plugins: Value| {
        let body = json!({"name": "acme.made", "tenant": "acme", "plugins": plugins});
        send(&gateway, Method::POST, "/admin/keys", by, Some(&body)).await
    };
    for plugins in [Value::Null, json!(["scoped-guard-and-tool"]), json!(["scoped-memory", "scoped-guard-and-tool"])] {
        let refused = make("owner", plugins.clone()).await;
        assert_eq!((refused.status, refused.error().1), (403, json!("plugins")), "{plugins}");
    }
    let refused = make("root", json!(["no-such"])).await;
    assert_eq!(refused.status, 400, "{:?}", refused.body);
    assert!(refused.error().0.contains("there are: scoped-guard-and-tool, scoped-passages, scoped-memory"));
    let made = make("owner", json!(["scoped-memory"])).await.json();
    assert_eq!(made["plugins"], json!(["scoped-memory"]));
    let made = made["key"].as_str().unwrap();
    let tokens = async |key: &str| chat(&gateway, key, json!({})).await.json()["usage"]["prompt_tokens"].clone();
    assert_eq!(tokens(made).await, tokens("memories").await);
}

/// What a plugin is whose stage does not say so is known once it has been loaded.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_or_a_project_that_is_made_names_no_plugin_that_was_found_to_be_a_guard() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").display().to_string();
    let stages = ["pii-guard", "calculator"].map(|name| format!("[[pipeline.stage]]\nplugin = \"{name}\"\n")).concat();
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, format!("{}[store]\npath = {store:?}\n{stages}", key("root", "admin = true"))).unwrap();
    let gateway = Gateway::start_with(Config::load(&file).unwrap()).await;
    let post = async |path: &str, body: Value| send(&gateway, Method::POST, path, "root", Some(&body)).await;
    for name in ["made", "made-behind-a-reload"] {
        for path in ["/admin/keys", "/v1/organization/projects"] {
            let body = |plugins: Value| json!({"name": name, "tenant": "acme", "plugins": plugins});
            let refused = post(path, body(json!(["calculator", "pii-guard"]))).await;
            assert_eq!(refused.status, 400, "{name} {path}: {:?}", refused.body);
            let (message, ..) = refused.error();
            assert!(message.contains("`pii-guard` is none, and runs for all callers"), "{name} {path}: {message}");
            assert_eq!(post(path, body(json!(["calculator"]))).await.status, 200, "{name} {path}");
        }
        let reloaded = post("/admin/reload", json!({})).await;
        assert_eq!(reloaded.status, 200, "{:?}", reloaded.body);
    }
}
