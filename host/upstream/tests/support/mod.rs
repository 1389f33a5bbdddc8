//! Servers that do to requests what a script says, and a client of several of them.

// Helpers of tests may fail like tests; not every test file uses all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate_types::{Chat, Delta, DeltaKind, EmbedInput, EmbedRequest, FinishReason, Reject, RequestId, Retention};
use tidegate_upstream::{Attempts, BreakerConfig, Replicas, RetryConfig, Sending, UpstreamConfig, UpstreamEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// What a server does with a request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Writes this and closes the connection.
    Say(String),
    /// Closes the connection with the request half read, which resets it, behind the first bytes of a head.
    Reset,
    /// The same after a while.
    Late(Duration, String),
    /// Says nothing more behind this.
    Hang(&'static str),
    /// Streams text for as long as it is read.
    Talk,
}

pub struct Server {
    pub address: SocketAddr,
    seen: Arc<AtomicUsize>,
}

impl Server {
    /// Does to the n-th request, from 0, what the script says.
    pub async fn start(script: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (count, script) = (Arc::clone(&seen), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (count, script) = (Arc::clone(&count), Arc::clone(&script));
                tokio::spawn(async move { serve(stream, &count, &*script).await });
            }
        });
        Self { address, seen }
    }

    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    pub async fn wait_for(&self, seen: usize) {
        let begun = Instant::now();
        while self.seen() < seen {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} of {seen} requests came", self.seen());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn serve(mut stream: TcpStream, count: &AtomicUsize, script: &(dyn Fn(usize) -> Act + Send + Sync)) {
    stream.readable().await.unwrap();
    let act = script(count.fetch_add(1, Ordering::SeqCst));
    if let Act::Reset = act {
        stream.read_exact(&mut [0; 4]).await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-ty").await;
        return;
    }
    // One write holds the whole request of these tests.
    let _ = stream.read(&mut vec![0; 65536]).await;
    match act {
        Act::Say(text) => drop(stream.write_all(text.as_bytes()).await),
        Act::Late(pause, text) => {
            tokio::time::sleep(pause).await;
            drop(stream.write_all(text.as_bytes()).await);
        }
        Act::Hang(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            // Until the other side is gone.
            let _ = stream.read(&mut [0; 16]).await;
        }
        Act::Talk => {
            let mut written = stream.write_all(HEAD.as_bytes()).await;
            while written.is_ok() {
                written = stream.write_all(format!("data: {A}\n\n").as_bytes()).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Act::Reset => {}
    }
}

pub const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
pub const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
pub const A: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#;
/// Of a tool call.
pub const PIECE: &str = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{"}}]}}]}"#;
pub const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

/// What some servers count in each chunk, before the first text too.
pub const COUNTED: &str = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}"#;

pub fn stream(events: &[&str]) -> Act {
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    Act::Say(format!("{HEAD}{events}"))
}

pub fn good() -> Act {
    stream(&[ROLE, A, STOP, "[DONE]"])
}

pub fn status(status: &str) -> Act {
    Act::Say(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"))
}

/// Short pauses, and as many retries as a test wants to see.
pub fn quick() -> RetryConfig {
    RetryConfig {
        backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(1100),
        ..RetryConfig::default()
    }
}

pub fn never() -> BreakerConfig {
    BreakerConfig { failures: 0, ..BreakerConfig::default() }
}

pub fn replicas(servers: &[SocketAddr], retry: RetryConfig, breaker: &BreakerConfig) -> Replicas {
    let config = |address: &SocketAddr| UpstreamConfig::new("east", format!("http://{address}/v1"), "theirs");
    Replicas::new("mine", servers.iter().map(config).collect(), retry, breaker).unwrap()
}

pub fn chat(stream: bool) -> Arc<Chat> {
    let body = format!(r#"{{"model":"mine","messages":[{{"role":"user","content":"hi"}}],"stream":{stream}}}"#);
    Arc::new(tidegate_wire::parse_chat(body.as_bytes()).unwrap().chat)
}

pub fn sending(hops: u8) -> Sending {
    Sending { request_id: RequestId::new("r"), hops, retention: Retention::Kept }
}

/// A question about one text.
pub fn about(text: &str) -> EmbedRequest {
    EmbedRequest { model: "mine".into(), inputs: vec![EmbedInput::Text(text.into())], dimensions: None, user: None }
}

#[derive(Debug)]
pub struct Outcome {
    pub events: Vec<UpstreamEvent>,
    pub error: Option<Reject>,
    pub attempts: u32,
}

impl Outcome {
    pub fn code(&self) -> &str {
        self.error.as_ref().and_then(|reject| reject.code.as_deref()).unwrap_or_default()
    }
}

pub async fn ask(replicas: &Replicas, stream: bool, hops: u8) -> Outcome {
    let (attempts, mut events) = (Attempts::default(), Vec::new());
    let error = match replicas.generate(chat(stream), sending(hops), &attempts).await {
        Err(reject) => Some(reject),
        Ok(mut answer) => loop {
            match answer.next().await {
                None => break None,
                Some(Ok(event)) => events.push(event),
                Some(Err(reject)) => {
                    assert!(answer.next().await.is_none());
                    break Some(reject);
                }
            }
        },
    };
    Outcome { events, error, attempts: attempts.count() }
}

pub fn delta(kind: DeltaKind) -> UpstreamEvent {
    UpstreamEvent::Delta(Delta { choice: 0, kind })
}

pub fn text(text: &str) -> UpstreamEvent {
    delta(DeltaKind::Text { text: text.into(), logprobs: Vec::new() })
}

pub fn whole() -> Vec<UpstreamEvent> {
    vec![text("a"), delta(DeltaKind::Finish(FinishReason::Stop))]
}

/// It has a port that nobody else takes meanwhile, and listens to nobody.
pub fn closed_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}
