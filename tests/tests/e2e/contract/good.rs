//! Requests that are right: what anybody may ask, what a model is asked, who may ask.

use super::{Ask, Contract};
use crate::talk::until;
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;
use tidegate::config::Config;
use tidegate_tests::Gateway;
use tidegate_tests::issuer::Provider;

/// A gateway that has all that a config can give it.
pub struct Server {
    pub gateway: Gateway,
    pub provider: Provider,
    _folder: tempfile::TempDir,
}

impl Server {
    pub async fn start() -> Self {
        let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
        let key = |name: &str, more: &str| {
            format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n{more}\n", blake3::hash(name.as_bytes()))
        };
        let keys = [
            key("root", "admin = true"),
            key("reader", "role = \"read-only\""),
            key("hasty", "limits = { requests_per_minute = 1, tokens_per_minute = 100000 }"),
            // Of whom nothing is remembered yet, which would change what a small model says.
            FRESH.map(|name| key(name, "")).concat(),
        ];
        let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/remembers.wasm");
        let text = format!(
            "{}[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\nprice = {{ input = 1.0, output = 2.0 }}\n{}{}\
             [store]\npath = {:?}\n{}[[pipeline.stage]]\nplugin = \"told-remembers\"\nfile = {guest:?}\n\
             stages = [\"memory\"]\n[pipeline.stage.grants]\nkv_kib = 64\n[pipeline.stage.limits]\nwall_ms = 20000\n",
            keys.concat(),
            crate::embeddings::model(""),
            crate::classifiers::model("moderation", ""),
            folder.path().join("store"),
            provider.login(),
        );
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, text).unwrap();
        let mut config = Config::load(&file).unwrap();
        config.cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache"));
        Self { gateway: Gateway::start_with(config).await, provider, _folder: folder }
    }
}

/// Callers that ask once.
pub const FRESH: [&str; 4] = ["fresh-0", "fresh-1", "fresh-2", "fresh-3"];

/// A body of a chat with the bundled model.
pub fn chat(question: &str, more: Value) -> Value {
    let mut body = json!({"model": "tidegate-starter", "messages": [{"role": "user", "content": question}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub async fn server(contract: &mut Contract<'_>) {
    for path in ["/livez", "/readyz", "/health", "/openapi.json"] {
        contract.good(Ask::get(path, &[]).by("")).await;
    }
    for path in ["/metrics", "/v1/models"] {
        contract.good(Ask::get(path, &[])).await;
    }
    contract.good(Ask::get("/v1/models/{model}", &["tidegate-starter"])).await;
}

pub async fn generation(contract: &mut Contract<'_>) {
    let tool = json!({"type": "function", "function": {"name": "calculator", "description": "Works out a sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}});
    let path = "/v1/chat/completions";
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "Hello!"}]}]);
    let name = "n".repeat(256);
    let call = json!({"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}});
    let returned = json!([{"role": "user", "content": "Hello!"}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": name, "content": "4"}]);
    for more in [
        json!({}),
        json!({"messages": returned, "max_tokens": 3}),
        json!({"messages": messages, "n": 2, "logprobs": true, "top_logprobs": 2, "max_tokens": 3, "user": "u"}),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
        json!({"stream": true, "stream_options": {"include_obfuscation": false}}),
        json!({"stream": true, "logprobs": true, "n": 2, "max_tokens": 3, "stop": ["x"], "seed": 1}),
    ] {
        contract.good(Ask::post(path, &[], chat("Hello!", more)).with("x-request-id", "mine")).await;
    }
    for (key, stream) in FRESH.into_iter().zip([false, true]) {
        let body = chat("What is 12*12?", json!({"tools": [tool], "temperature": 0, "stream": stream}));
        let answer = contract.good(Ask::post(path, &[], body).by(key)).await;
        assert!(String::from_utf8_lossy(&answer.body).contains("\"tool_calls\":["), "{answer:?}");
    }
    for _ in 0..2 {
        contract.good(Ask::post(path, &[], chat("Hello!", json!({}))).with("idempotency-key", "k")).await;
    }
    let other = Ask::post(path, &[], chat("Bye!", json!({}))).with("idempotency-key", "k");
    assert_eq!(contract.ask(other).await.status, 409);
    let path = "/v1/completions";
    for more in [
        json!({}),
        json!({"logprobs": 2, "n": 2, "parse_special": true}),
        json!({"stream": true}),
        json!({"stream": true, "logprobs": 1}),
        json!({"prompt": ["Once", "Twice"], "n": 2}),
    ] {
        let mut body = json!({"model": "tidegate-starter", "prompt": "Once", "max_tokens": 3});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        contract.good(Ask::post(path, &[], body)).await;
    }
    for more in [
        json!({"input": "Once", "user": "u"}),
        json!({"input": ["Once", "Twice"], "encoding_format": "base64", "dimensions": 3}),
        json!({"input": ["Once"], "dimensions": null, "encoding_format": "float"}),
    ] {
        let mut body = json!({"model": "embedding"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        contract.good(Ask::post("/v1/embeddings", &[], body)).await;
    }
    let body = chat("Tell me a story.", json!({"stream": true, "max_tokens": 40}));
    let begun = contract.good(Ask::post("/v1/chat/completions", &[], body).with("x-tidegate-resumable", "true")).await;
    let stream = begun.headers["x-tidegate-stream-id"].to_str().unwrap();
    contract.good(Ask::get("/v1/streams/{stream_id}", &[stream]).with("last-event-id", "3")).await;
    contract.good(Ask::get("/v1/streams/{stream_id}", &[stream]).query("starting_after=1")).await;
    contract.good(Ask::new(Method::POST, "/v1/streams/{stream_id}/cancel", &[stream])).await;
}

pub async fn memories(contract: &mut Contract<'_>) {
    let said = chat("The harbour of Kelso opens at nine.", json!({"max_tokens": 2}));
    contract.good(Ask::post("/v1/chat/completions", &[], said)).await;
    let ask = Ask::get("/v1/memories", &[]).query("q=When+does+the+harbour+of+Kelso+open%3F&limit=1");
    let found = until("it is remembered", async || {
        Some(contract.good(ask.clone()).await.json()["data"][0]["id"].clone()).filter(Value::is_string)
    })
    .await;
    let told = contract.good(Ask::post("/v1/memories/forget", &[], json!({"ids": [found]}))).await;
    assert_eq!(told.json()["forgotten"], 1);
}

pub async fn administration(contract: &mut Contract<'_>) {
    let limits = json!({"requests_per_minute": 5, "tokens_per_minute": 9, "concurrency": 1, "max_output_tokens": 7});
    let plain = json!({"name": "plain"});
    let full = json!({"name": "full", "tenant": "acme", "class": "batch", "weight": 2, "admin": false,
        "role": "member", "models": ["tidegate-starter"], "plugins": ["told-remembers"], "endpoints": ["chat"], "expires": "2099-01-31",
        "limits": limits, "budget": {"daily": 1.5, "soft_percent": 50}});
    for body in [plain, full] {
        contract.good(Ask::post("/admin/keys", &[], body)).await;
    }
    contract.good(Ask::new(Method::POST, "/admin/keys/{name}/rotate", &["full"]).query("grace_s=5")).await;
    contract.good(Ask::get("/admin/keys", &[])).await;
    contract.good(Ask::new(Method::DELETE, "/admin/keys/{name}", &["plain"])).await;
    projects(contract).await;
    contract.good(Ask::new(Method::POST, "/admin/reload", &[])).await;
}

async fn projects(contract: &mut Contract<'_>) {
    let (all, one) = ("/v1/organization/projects", "/v1/organization/projects/{project_id}");
    let full = json!({"name": "Web", "tenant": "acme", "limits": {"concurrency": 2}, "budget": {"monthly": 1.5},
        "models": ["tidegate-starter"], "plugins": [], "zero_retention": true});
    contract.good(Ask::post(all, &[], full)).await;
    let made = contract.good(Ask::post(all, &[], json!({"name": "Plain", "tenant": "acme"}))).await.json();
    let id = made["id"].as_str().unwrap();
    contract.good(Ask::post("/admin/keys", &[], json!({"name": "acme.web", "tenant": "acme", "project": id}))).await;
    contract.good(Ask::get(all, &[]).query("limit=1")).await;
    contract.good(Ask::get(one, &[id])).await;
    contract.good(Ask::post(one, &[id], json!({"name": "Plainer", "models": null}))).await;
    let people = "/v1/organization/projects/{project_id}/users";
    let (person, ann) = ("/v1/organization/projects/{project_id}/users/{user_id}", "corp%2Fann");
    contract.good(Ask::post(people, &[id], json!({"user_id": "corp/ann", "role": "member"}))).await;
    contract.good(Ask::get(people, &[id]).query("limit=1")).await;
    contract.good(Ask::get(person, &[id, ann])).await;
    contract.good(Ask::post(person, &[id, ann], json!({"role": "admin"}))).await;
    contract.good(Ask::new(Method::DELETE, person, &[id, ann])).await;
    contract.good(Ask::new(Method::POST, "/v1/organization/projects/{project_id}/archive", &[id])).await;
    contract.good(Ask::get(all, &[]).query("include_archived=true")).await;
}

pub async fn login(contract: &mut Contract<'_>, provider: &Provider) {
    let cookies = |answer: &tidegate_tests::Answer| {
        let lines =
            answer.headers.get_all("set-cookie").iter().map(|line| line.to_str().unwrap().split(';').next().unwrap());
        lines.collect::<Vec<_>>().join("; ")
    };
    let begun = contract.good(Ask::get("/auth/login", &[]).by("").query("next=/x")).await;
    let query = provider.log_in(begun.headers["location"].to_str().unwrap(), "ann", json!({}));
    let back = Ask::get("/auth/callback", &[]).by("").query(&query).with("cookie", cookies(&begun));
    let session = cookies(&contract.good(back).await);
    let me = contract.good(Ask::get("/auth/me", &[]).by("").with("cookie", session.clone())).await;
    assert_eq!(me.json()["user"], "ann");
    let leave = Ask::new(Method::POST, "/auth/logout", &[]).by("").with("cookie", session);
    contract.good(leave.with("origin", "https://ai.example")).await;
}
