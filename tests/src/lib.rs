//! Support for the end-to-end tests: a gateway in this process on a free port, and a small HTTP client that
//! shows everything the server says.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::net::SocketAddr;
use tidegate::Running;
use tidegate::config::Config;

pub mod issuer;
pub mod kafka;
pub mod nats;
pub mod postgres;
pub mod redis;
pub mod schema;
pub mod scripted;
pub mod stalling;
pub mod stand_in;

/// A gateway on a free port of this machine, and a client of it.
pub struct Gateway {
    pub running: Running,
    pub addr: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    _cache: tempfile::TempDir,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// `error.message`, `error.param`, `error.code`.
    pub fn error(&self) -> (String, Value, Value) {
        let error = &self.json()["error"];
        assert!(error["type"].is_string(), "no error in {}", self.json());
        (error["message"].as_str().unwrap().to_owned(), error["param"].clone(), error["code"].clone())
    }

    /// The text of the first choice.
    pub fn text(&self) -> String {
        assert_eq!(self.status, 200, "{:?}", self.body);
        let choice = &self.json()["choices"][0];
        choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default().to_owned()
    }
}

impl Gateway {
    /// With `config`, but on a free port and with a cache of its own.
    pub async fn start(config: &str) -> Self {
        Self::start_with(Config::parse(config).unwrap()).await
    }

    pub async fn start_with(mut config: Config) -> Self {
        config.server.listen.set_port(0);
        Self::start_at(config).await
    }

    /// At the config's own port.
    pub async fn start_at(mut config: Config) -> Self {
        let cache = tempfile::tempdir().unwrap();
        // Compiled plugins are shared between tests; their cache checks what it reads.
        config.cache_dir.get_or_insert_with(|| std::env::temp_dir().join("tidegate-tests-cache"));
        // Two mappings for each that could be live, and a process may have 65,530: a machine of many cores runs many tests.
        config.plugins.instances = config.plugins.instances.min(64);
        config.plugins.waiting_instances = config.plugins.waiting_instances.min(320);
        // A machine that is busy makes no call fail, unless its test says how long it may take.
        let bundled = || Config::parse(&tidegate::bundled::PIPELINE.replace("[[stage", "[[pipeline.stage"));
        for stage in &mut config.pipeline.get_or_insert_with(|| bundled().unwrap().pipeline.unwrap()).stage {
            stage.limits.wall_ms.get_or_insert(20_000);
            stage.limits.cpu_ms.get_or_insert(5_000);
        }
        let running = tidegate::start(config).await.unwrap();
        let addr = running.addr;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { running, addr, client, _cache: cache }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.client.request(request).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        let request = Request::get(self.url(path)).body(Full::default()).unwrap();
        collect(self.send(request).await).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        collect(self.send(self.json_request(path, body)).await).await
    }

    pub async fn post_raw(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.url(path))
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .unwrap();
        collect(self.send(request).await).await
    }

    pub fn json_request(&self, path: &str, body: &Value) -> Request<Full<Bytes>> {
        Request::builder()
            .method(Method::POST)
            .uri(self.url(path))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap()
    }

    /// A chat with the starter model, not streamed.
    pub async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", &with_model(body)).await
    }

    /// The JSON events of a streamed chat, without `[DONE]`, which must be the last.
    pub async fn stream(&self, body: Value) -> Vec<Value> {
        let mut body = with_model(body);
        body["stream"] = true.into();
        let answer = self.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        events(&answer.body)
    }
}

/// Adds the bundled model's name, where none is given.
pub fn with_model(mut body: Value) -> Value {
    if body["model"].is_null() {
        body["model"] = tidegate::bundled::STARTER_NAME.into();
    }
    body
}

pub async fn collect(response: Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Parses a whole SSE body whose last event is `[DONE]`.
pub fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let mut events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{text}");
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// The text of one choice of a streamed chat.
pub fn joined(events: &[Value], choice: u64) -> String {
    let of_choice = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    of_choice
        .filter(|c| c["index"] == choice)
        .filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()))
        .collect()
}

/// The finish reason of one choice of a streamed chat.
pub fn finish_reason(events: &[Value], choice: u64) -> Value {
    let of_choice = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let mut reasons = of_choice.filter(|c| c["index"] == choice && !c["finish_reason"].is_null());
    let reason = reasons.next().expect("a finish reason")["finish_reason"].clone();
    assert!(reasons.next().is_none(), "one finish reason");
    reason
}

/// A chat request of one user message.
pub fn ask(question: &str) -> Value {
    serde_json::json!({"messages": [{"role": "user", "content": question}]})
}

/// A config without a pipeline: the model alone.
pub const BARE: &str = "[pipeline]\n";
