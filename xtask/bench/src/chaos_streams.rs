//! `cargo xtask chaos streams`: resumable streams, each cut at random bytes and gone on with; and streams that are open
//! and idle. Ends with an error at the first event that is lost, comes twice or is not what was sent; prints how many cuts
//! there were, how long it takes to be read on, and what an idle one holds.

use crate::gateway::{Gateway, Random, Stages};
use crate::load::KEY;
use crate::report::Report;
use crate::{EVENTS, standin};
use anyhow::{Context, bail, ensure};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const STREAMS: usize = 10_000;
const CUTS: usize = 5;
const AT_ONCE: usize = 64;
/// Bytes after which a connection is cut, at most: five such pieces are shorter than a stream.
const SPAN: u64 = 2_000;
/// Fewer where the system gives fewer files, see [`idle_streams`].
const IDLE: usize = 20_000;
/// Files that a process has open beside its streams.
const OTHER_FILES: usize = 200;

pub(crate) async fn run(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let upstream = standin::start(EVENTS).await?;
    let gateway = Arc::new(Gateway::start(program, upstream, Stages::None)?);
    gateway.wait_ready().await?;
    let before = gateway.cpu_us()?;
    let (mut resumed, cuts) = storm(gateway.addr).await?;
    let cpu = (gateway.cpu_us()? - before) / (STREAMS * EVENTS) as f64;
    resumed.sort();
    let at = |part: f64| resumed[((resumed.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    report.add("streams read whole, no event lost or repeated", STREAMS as f64, "", None);
    report.add("cuts of a stream", cuts as f64 / STREAMS as f64, "", None);
    report.add("p50 to the next event after a cut", at(0.5), "ms", None);
    report.add("p99 to the next event after a cut", at(0.99), "ms", Some(50.0));
    report.add("CPU for an event, cuts included", cpu, "us", Some(11.0));
    report.add("resident memory after it", gateway.resident_mib()?, "MiB", None);
    idle(program, report).await
}

/// Reads all streams; gives how long each return took, and how many connections were cut before their stream's end.
async fn storm(addr: SocketAddr) -> anyhow::Result<(Vec<Duration>, usize)> {
    let next = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                let (mut took, mut cuts) = (Vec::new(), 0);
                loop {
                    let stream = next.fetch_add(1, Ordering::Relaxed);
                    if stream >= STREAMS {
                        return anyhow::Ok((took, cuts));
                    }
                    let read = read_in_pieces(addr, stream as u64, &mut took).await;
                    cuts += read.with_context(|| format!("stream {stream}"))?;
                }
            })
        })
        .collect();
    let (mut took, mut cuts) = (Vec::new(), 0);
    for reader in readers {
        let (of_reader, cut) = reader.await??;
        took.extend(of_reader);
        cuts += cut;
    }
    Ok((took, cuts))
}

/// One stream over several connections; how many were cut before its end. An error where an event is lost, comes twice or is not what was sent.
async fn read_in_pieces(addr: SocketAddr, seed: u64, took: &mut Vec<Duration>) -> anyhow::Result<usize> {
    let mut random = Random(seed);
    let first = hear(addr, &begin(), 600 + random.below(SPAN)).await?;
    let id = first.stream_id.context("the response does not name its stream")?;
    let (mut events, mut cuts) = (first.events, 0);
    for cut in 1..=CUTS {
        if events.last().is_none_or(|(_, data)| data != "[DONE]") {
            cuts += 1;
        }
        let limit = if cut == CUTS { u64::MAX } else { random.below(SPAN) };
        let started = Instant::now();
        let heard = hear(addr, &go_on(&id, events.len()), limit).await?;
        if let Some(at) = heard.first_event {
            took.push(at - started);
        }
        for (number, data) in heard.events {
            ensure!(number == events.len() + 1, "event {number} came after {}", events.len());
            events.push((number, data));
        }
    }
    ensure!(events.last().is_some_and(|(_, data)| data == "[DONE]"), "it does not end");
    let words = (0..EVENTS).filter(|i| events.iter().any(|(_, data)| data.contains(&format!("\"word{i} \""))));
    ensure!(words.count() == EVENTS, "a word is missing");
    Ok(cuts)
}

struct Heard {
    stream_id: Option<String>,
    events: Vec<(usize, String)>,
    first_event: Option<Instant>,
}

/// Reads at most `limit` bytes of the answer and closes the connection.
async fn hear(addr: SocketAddr, request: &str, limit: u64) -> anyhow::Result<Heard> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.set_nodelay(true)?;
    socket.write_all(request.as_bytes()).await?;
    let (mut bytes, mut first_event, mut socket) = (Vec::new(), None, socket.take(limit));
    while socket.read_buf(&mut bytes).await? > 0 {
        if first_event.is_none() && bytes.windows(4).any(|window| window == b"id: ") {
            first_event = Some(Instant::now());
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Ok(Heard { stream_id: None, events: Vec::new(), first_event: None });
    };
    if !head.starts_with("HTTP/1.1 200") {
        bail!("the gateway answered {text}");
    }
    let stream_id = head.lines().find_map(|line| line.strip_prefix("x-tidegate-stream-id: ")).map(str::to_owned);
    Ok(Heard { stream_id, events: whole_events(&unchunked(body))?, first_event })
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        out.push_str(rest.get(..size).unwrap_or(rest));
        body = rest.get(size + 2..).unwrap_or("");
    }
    out
}

fn whole_events(body: &str) -> anyhow::Result<Vec<(usize, String)>> {
    let whole = body.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let events = whole.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
    events
        .map(|event| {
            let (id, data) = event.split_once('\n').context("an event of one line")?;
            let id = id.strip_prefix("id: ").context("an event without an id")?.parse()?;
            Ok((id, data.strip_prefix("data: ").context("an event without data")?.to_owned()))
        })
        .collect()
}

fn begin() -> String {
    let body = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/json\r\nx-tidegate-resumable: true\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn go_on(id: &str, seen: usize) -> String {
    format!(
        "GET /v1/streams/{id} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\nlast-event-id: {seen}\r\n\
         connection: close\r\n\r\n"
    )
}

/// Connections that read a stream which says nothing for now.
async fn idle(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let silent = standin::silent().await?;
    let gateway = Gateway::start(program, silent, Stages::None)?;
    gateway.wait_ready().await?;
    let mut first = TcpStream::connect(gateway.addr).await?;
    first.write_all(begin().as_bytes()).await?;
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        ensure!(first.read_buf(&mut head).await? > 0, "the gateway closed a silent stream");
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let id = head.lines().find_map(|line| line.strip_prefix("x-tidegate-stream-id: ")).context("no stream id")?;
    let before = gateway.resident_mib()?;
    let mut open = Vec::with_capacity(IDLE);
    for _ in 0..idle_streams()? {
        let mut socket = TcpStream::connect(gateway.addr).await?;
        socket.write_all(go_on(id, 0).as_bytes()).await?;
        ensure!(socket.read(&mut [0; 512]).await? > 0, "the gateway closed an idle reader");
        open.push(socket);
    }
    let each = (gateway.resident_mib()? - before) * 1024.0 / open.len() as f64;
    report.add("idle open streams", open.len() as f64, "", None);
    report.add("resident memory of an idle open stream", each, "KiB", Some(16.0));
    Ok(())
}

/// As many as this process may have files, `ulimit -n`; the gateway inherits that.
fn idle_streams() -> anyhow::Result<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let files = files.and_then(|soft| soft.parse().ok()).unwrap_or(usize::MAX);
    Ok(IDLE.min(files.saturating_sub(OTHER_FILES)))
}
