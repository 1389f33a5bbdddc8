//! An upstream that counts what it generates for each request, at a model's pace.

use crate::gateway::Random;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Between two tokens.
pub(crate) const TOKEN_MS: f64 = 4.0;

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    counts: Counts,
}

impl Upstream {
    /// Tokens by the end user that the request named.
    pub(crate) fn generated(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) async fn start() -> anyhow::Result<Upstream> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (addr, counts) = (listener.local_addr()?, Counts::default());
    let of_all = Arc::clone(&counts);
    tokio::task::spawn(async move {
        let mut random = Random(99);
        while let Ok((socket, _)) = listener.accept().await {
            let (counts, tokens) = (Arc::clone(&of_all), 5 + random.below(250));
            // A gateway that was killed, or whose client left, is gone; what was counted stays.
            tokio::task::spawn(async move { serve(socket, counts, tokens).await });
        }
    });
    Ok(Upstream { addr, counts })
}

async fn serve(mut socket: TcpStream, counts: Counts, tokens: u64) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::new();
    let mut tokens = tokens;
    while let Some(user) = next_user(&mut socket, &mut buffer).await? {
        answer(&mut socket, &counts, &user, tokens).await?;
        tokens = 5 + (tokens * 37 + 11) % 250;
    }
    Ok(())
}

async fn answer(socket: &mut TcpStream, counts: &Counts, user: &str, tokens: u64) -> anyhow::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await?;
    for number in 0..tokens {
        let text = format!("{{\"content\":\"t{number} \"}}");
        socket.write_all(&event(&format!("[{{\"index\":0,\"delta\":{text},\"finish_reason\":null}}]"), "")).await?;
        *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(user.to_owned()).or_default() += 1;
        tokio::time::sleep(Duration::from_secs_f64(TOKEN_MS / 1e3)).await;
    }
    socket.write_all(&event("[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]", "")).await?;
    let all = tokens + 20;
    let usage = format!(",\"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":{tokens},\"total_tokens\":{all}}}");
    socket.write_all(&event("[]", &usage)).await?;
    socket.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await?;
    Ok(())
}

fn event(choices: &str, more: &str) -> Vec<u8> {
    let start = "{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":";
    let body = format!("data: {start}{choices}{more}}}\n\n");
    format!("{:x}\r\n{body}\r\n", body.len()).into_bytes()
}

/// Reads one request; gives the end user that its body names.
async fn next_user(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> anyhow::Result<Option<String>> {
    loop {
        let text = String::from_utf8_lossy(buffer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
            let length: usize = length.unwrap_or(0);
            if body.len() >= length {
                let body: serde_json::Value = serde_json::from_str(&body[..length])?;
                buffer.drain(..head.len() + 4 + length);
                return Ok(Some(body["user"].as_str().unwrap_or_default().to_owned()));
            }
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}
