//! A closed loop over keep-alive connections.

use anyhow::{Context, bail};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The key that the measured gateway knows.
pub(crate) const KEY: &str = "tg-bench";

/// A kind of request to one server.
#[derive(Clone)]
pub(crate) struct Load {
    addr: SocketAddr,
    request: Arc<[u8]>,
}

/// What a run saw.
pub(crate) struct Seen {
    latencies: Vec<Duration>,
    pub(crate) text_events: usize,
}

impl Seen {
    pub(crate) fn median_us(&self) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        sorted[sorted.len() / 2].as_secs_f64() * 1e6
    }
}

impl Load {
    pub(crate) fn to(addr: SocketAddr, stream: bool) -> Self {
        let prompt = "Please say a word or two about the tide gates of the northern harbour. ".repeat(7);
        let body = format!(
            "{{\"model\":\"m\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]}}"
        );
        Self::of(addr, "/v1/chat/completions", &body)
    }

    /// A body of JSON for any path.
    pub(crate) fn of(addr: SocketAddr, path: &str, body: &str) -> Self {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Self { addr, request: request.into_bytes().into() }
    }

    /// Sends `requests` over `connections`.
    pub(crate) async fn run(&self, connections: usize, requests: usize) -> anyhow::Result<Seen> {
        let left = Arc::new(AtomicUsize::new(requests));
        let workers: Vec<_> = (0..connections)
            .map(|_| {
                let (load, left) = (self.clone(), Arc::clone(&left));
                tokio::task::spawn(async move { load.work(&left).await })
            })
            .collect();
        let mut seen = Seen { latencies: Vec::with_capacity(requests), text_events: 0 };
        for worker in workers {
            let (latencies, events) = worker.await??;
            seen.latencies.extend(latencies);
            seen.text_events += events;
        }
        Ok(seen)
    }

    async fn work(&self, left: &AtomicUsize) -> anyhow::Result<(Vec<Duration>, usize)> {
        let mut socket = TcpStream::connect(self.addr).await?;
        socket.set_nodelay(true)?;
        let (mut latencies, mut events, mut answer) = (Vec::new(), 0, Vec::with_capacity(65536));
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            let started = Instant::now();
            answer.clear();
            socket.write_all(&self.request).await?;
            while !is_whole(&answer) {
                if socket.read_buf(&mut answer).await.context("the server broke off")? == 0 {
                    bail!("the server closed the connection after {:?}", String::from_utf8_lossy(&answer));
                }
            }
            latencies.push(started.elapsed());
            let text = String::from_utf8_lossy(&answer);
            if !text.starts_with("HTTP/1.1 200") {
                bail!("the server answered {text}");
            }
            let ends = ["data: [DONE]", "event: response.completed", "event: response.incomplete"];
            if text.contains("text/event-stream") && !ends.iter().any(|end| text.contains(end)) {
                bail!("the stream was not whole: {text}");
            }
            events += text.matches("\"content\":\"word").count();
        }
        Ok((latencies, events))
    }
}

/// By its length, or by its last chunk.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    match head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok()) {
        Some(length) => answer.len() >= end + 4 + length,
        None => answer.ends_with(b"\r\n0\r\n\r\n"),
    }
}
