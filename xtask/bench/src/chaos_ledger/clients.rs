//! Clients that stream, leave when they like, and begin again when the gateway is gone.

use crate::gateway::Random;
use crate::load::KEY;
use anyhow::Context;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// How a request ended, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ended {
    /// With `[DONE]`.
    Whole,
    /// The client went away.
    Left,
    /// The gateway did.
    Cut,
    /// No answer began.
    Refused,
}

/// What a client got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) tokens: u64,
    pub(crate) ended: Ended,
    /// When it ended, or had begun.
    pub(crate) at: Instant,
}

pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<BTreeMap<String, Heard>>>,
}

impl Clients {
    /// Lets each end what it does; gives what all got, by the end user that each request named.
    pub(crate) async fn stop(self) -> anyhow::Result<BTreeMap<String, Heard>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for client in self.running {
            all.extend(client.await?);
        }
        Ok(all)
    }
}

pub(crate) fn start(addr: SocketAddr, count: usize) -> Clients {
    let stop = Arc::new(AtomicBool::new(false));
    let client = |number: usize| {
        let stop = Arc::clone(&stop);
        tokio::task::spawn(async move {
            let (mut heard, mut random) = (BTreeMap::new(), Random(number as u64));
            while !stop.load(Ordering::Relaxed) {
                let name = format!("r{number}-{}", heard.len());
                // One in three leaves before the end.
                let leave = if random.below(3) == 0 { Some(random.below(120)) } else { None };
                let got = stream(addr, &name, leave).await;
                if got.ended == Ended::Refused {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                heard.insert(name, got);
            }
            heard
        })
    };
    let running = (0..count).map(client).collect();
    Clients { stop, running }
}

/// Streams one answer and counts its tokens; goes away after `leave` of them.
async fn stream(addr: SocketAddr, name: &str, leave: Option<u64>) -> Heard {
    let mut heard = Heard { tokens: 0, ended: Ended::Refused, at: Instant::now() };
    let body = format!(
        "{{\"model\":\"m\",\"stream\":true,\"user\":\"{name}\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let Ok(mut socket) = TcpStream::connect(addr).await else { return heard };
    if socket.write_all(request.as_bytes()).await.is_err() {
        return heard;
    }
    let (mut bytes, mut seen) = (Vec::new(), 0);
    loop {
        match socket.read_buf(&mut bytes).await {
            Ok(read) if read > 0 => {}
            _ => return heard,
        }
        if bytes.starts_with(b"HTTP/1.1 200") {
            heard.ended = Ended::Cut;
        }
        // An event may come in pieces; what is counted ends behind a whole one.
        let whole = bytes.windows(2).rposition(|pair| pair == b"\n\n").map_or(0, |at| at + 2);
        let text = String::from_utf8_lossy(bytes.get(seen..whole).unwrap_or_default()).into_owned();
        seen = whole.max(seen);
        heard.tokens += text.matches("\"content\":\"t").count() as u64;
        if text.contains("data: [DONE]") {
            heard.ended = Ended::Whole;
            return heard;
        }
        if heard.ended == Ended::Cut && leave.is_some_and(|leave| heard.tokens >= leave) {
            (heard.ended, heard.at) = (Ended::Left, Instant::now());
            return heard;
        }
    }
}

/// A small request; status and body.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut socket = TcpStream::connect(addr).await?;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await?;
    let mut bytes = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), socket.read_to_end(&mut bytes)).await??;
    let text = String::from_utf8(bytes)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}
