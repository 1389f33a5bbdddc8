//! A stand-in upstream: as little work as a server can do, so that what is measured is the gateway.

use crate::stamp;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Answers {
    whole: Vec<u8>,
    /// Of which each stream has the next.
    streamed: Vec<Vec<Vec<u8>>>,
    begun: AtomicUsize,
    /// Between two events.
    pace: Duration,
}

/// What stands in each event.
#[derive(Clone, Copy)]
pub(crate) enum Said {
    /// A word and a short number, which `pii-guard` has declared that it lets through, as it has dates and versions.
    Words,
    /// A word and the next piece of [`PROSE`]: about few of them the guard is asked.
    Prose,
    /// A word and what begins as an address does: about each of them the guard is asked, and all its detectors look.
    Addresses,
}

/// Prose with code and figures in it, as models write it (an earlier README of this repository), and how many characters of it
/// an event has: as many as a token has on average. It does not say "word", which is what stamps are behind.
const PROSE: &str = include_str!("../prose.txt");
const PIECE: usize = 4;
/// Streams that begin at different places of it, after which the first is said again.
const PROSE_STREAMS: usize = 50;

/// Serves on a free port: a whole answer, or one of `events` text events, each in a write of its own, with numbered words.
pub(crate) async fn start(events: usize) -> anyhow::Result<SocketAddr> {
    answering(events, vec![streamed(events, |i| format!("word{i} "))], Duration::ZERO).await
}

/// The same at a model's pace, with words that say when they were sent.
pub(crate) async fn stamped(events: usize, pace: Duration, said: Said) -> anyhow::Result<SocketAddr> {
    let word = stamp::BLANK;
    let streams = match said {
        Said::Words => vec![streamed(events, |_| format!("word{word} 7, "))],
        Said::Addresses => vec![streamed(events, |_| format!("word{word} a@b, "))],
        Said::Prose => {
            let pieces = prose();
            let nth = |stream, i| &pieces[(stream * pieces.len() / PROSE_STREAMS + i) % pieces.len()];
            let of = |stream| streamed(events, |i| format!(" word{word} {}", nth(stream, i)));
            (0..PROSE_STREAMS).map(of).collect()
        }
    };
    answering(events, streams, pace).await
}

/// The pieces of [`PROSE`], as they stand within strings of JSON.
fn prose() -> Vec<String> {
    let text: Vec<char> = PROSE.chars().collect();
    let quoted = text.chunks(PIECE).map(|piece| serde_json::Value::from(String::from_iter(piece)).to_string());
    quoted.map(|quoted| quoted[1..quoted.len() - 1].to_owned()).collect()
}

async fn answering(events: usize, streamed: Vec<Vec<Vec<u8>>>, pace: Duration) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let answers = Arc::new(Answers { whole: whole(events), streamed, begun: AtomicUsize::new(0), pace });
    tokio::task::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let answers = Arc::clone(&answers);
            tokio::task::spawn(async move { serve(socket, &answers).await });
        }
    });
    Ok(addr)
}

/// Begins each stream, and then says nothing.
pub(crate) async fn silent() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let start = streamed(0, |_| String::new()).into_iter().take(2).collect::<Vec<_>>().concat();
    tokio::task::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let start = start.clone();
            tokio::task::spawn(async move {
                if let Ok(Some(_)) = next_request(&mut socket, &mut Vec::new()).await
                    && socket.write_all(&start).await.is_ok()
                {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    Ok(addr)
}

async fn serve(mut socket: TcpStream, answers: &Answers) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(stream) = next_request(&mut socket, &mut buffer).await? {
        if stream {
            let next = answers.begun.fetch_add(1, Ordering::Relaxed) % answers.streamed.len();
            for piece in &answers.streamed[next] {
                socket.write_all(&sent_now(piece)).await?;
                if !answers.pace.is_zero() {
                    tokio::time::sleep(answers.pace).await;
                }
            }
        } else {
            socket.write_all(&answers.whole).await?;
        }
    }
    Ok(())
}

/// An event that says when it is sent, where it has a word.
fn sent_now(piece: &[u8]) -> Vec<u8> {
    let mut piece = piece.to_vec();
    if let Some(at) = find(&piece, stamp::BLANK.as_bytes()) {
        piece[at..at + stamp::BLANK.len()].copy_from_slice(&stamp::letters(stamp::now()));
    }
    piece
}

/// Reads one request; says whether it asks for a stream.
async fn next_request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> anyhow::Result<Option<bool>> {
    loop {
        if let Some(end) = find(buffer, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
            let total = end + 4 + length.unwrap_or(0_usize);
            if buffer.len() >= total {
                let stream = find(&buffer[end..total], b"\"stream\":true").is_some();
                buffer.drain(..total);
                return Ok(Some(stream));
            }
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn whole(events: usize) -> Vec<u8> {
    let body = format!(
        "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
         \"message\":{{\"role\":\"assistant\",\"content\":\"{}\"}},\"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":{events},\"total_tokens\":{}}}}}",
        "word ".repeat(events),
        events + 20
    );
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn streamed(events: usize, word: impl Fn(usize) -> String) -> Vec<Vec<u8>> {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let start =
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":";
    let chunk = |body: String| format!("{:x}\r\n{body}\r\n", body.len()).into_bytes();
    let choice = |delta: &str, reason: &str| {
        chunk(format!("data: {start}[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"))
    };
    let mut pieces = vec![head, choice("{\"role\":\"assistant\"}", "null")];
    pieces.extend((0..events).map(|i| choice(&format!("{{\"content\":\"{}\"}}", word(i)), "null")));
    pieces.push(choice("{}", "\"stop\""));
    pieces.push(chunk(format!(
        "data: {start}[],\"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":{events},\"total_tokens\":{}}}}}\n\n",
        events + 20
    )));
    pieces.push(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n".to_vec());
    pieces
}
