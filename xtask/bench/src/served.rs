//! `cargo xtask bench plugins`, second half: what a stage adds end to end. Gateways with and without it run beside each
//! other and are asked in turn, in short rounds, so that what else the machine does meets both.

use crate::gateway::{Gateway, Stages};
use crate::load::{KEY, Load};
use crate::report::Report;
use crate::{median, standin};
use anyhow::Context;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Rounds in which each gateway is asked once.
const ROUNDS: usize = 60;
/// Requests of a round, one after the other.
const REQUESTS: usize = 50;
/// Streams at once.
const STREAMS: usize = 1_000;
/// Events of each, and the time between two.
const EVENTS: usize = 40;
const PACE: Duration = Duration::from_millis(200);

pub(crate) async fn measure(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let upstream = standin::start(4).await?;
    let bare = start(program, upstream, Stages::None).await?;
    for (stages, goal) in [(Stages::NoOp, Some(15.0)), (Stages::PromptGuard, None)] {
        let guarded = start(program, upstream, stages).await?;
        let added = added_us(bare.addr, guarded.addr).await?;
        report.add(&format!("p50 added to a request, {stages}"), added, "us", goal);
    }
    let paced = standin::paced(EVENTS, PACE).await?;
    let (mut cpu, mut late) = (Vec::new(), Vec::new());
    for stages in [Stages::None, Stages::StreamGuard] {
        let gateway = start(program, paced, stages).await?;
        let (cpu_us, p99_ms) = streams(&gateway).await?;
        report.add(&format!("CPU for an event of {STREAMS} streams, {stages}"), cpu_us, "us", None);
        report.add(&format!("p99 between two events sent every {} ms, {stages}", PACE.as_millis()), p99_ms, "ms", None);
        cpu.push(cpu_us);
        late.push(p99_ms);
    }
    report.add("CPU that the stream guard adds to each", cpu[1] - cpu[0], "us", Some(3.0));
    report.add("p99 that it adds between two", late[1] - late[0], "ms", Some(5.0));
    Ok(())
}

async fn start(program: &Path, upstream: SocketAddr, stages: Stages) -> anyhow::Result<Gateway> {
    let gateway = Gateway::start(program, upstream, stages)?;
    gateway.wait_ready().await?;
    Load::to(gateway.addr, false).run(1, REQUESTS * 4).await?;
    Ok(gateway)
}

/// The median, over rounds, of the difference of a round's two medians.
async fn added_us(bare: SocketAddr, guarded: SocketAddr) -> anyhow::Result<f64> {
    let (bare, guarded) = (Load::to(bare, false), Load::to(guarded, false));
    let mut differences = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        // Each goes first as often as the other.
        let (first, second) = if round % 2 == 0 { (&bare, &guarded) } else { (&guarded, &bare) };
        let first = first.run(1, REQUESTS).await?.median_us();
        let second = second.run(1, REQUESTS).await?.median_us();
        differences.push(if round % 2 == 0 { second - first } else { first - second });
    }
    Ok(median(differences))
}

/// CPU of the gateway for an event, and the 99th percentile of the time between two.
async fn streams(gateway: &Gateway) -> anyhow::Result<(f64, f64)> {
    let before = gateway.cpu_us()?;
    let mut reading = Vec::with_capacity(STREAMS);
    for number in 0..STREAMS {
        let addr = gateway.addr;
        reading.push(tokio::task::spawn(async move {
            // Spread over one step, as clients are.
            tokio::time::sleep(PACE * number as u32 / STREAMS as u32).await;
            read(addr).await
        }));
    }
    let mut gaps = Vec::with_capacity(STREAMS * EVENTS);
    for stream in reading {
        gaps.extend(stream.await??);
    }
    let cpu = (gateway.cpu_us()? - before) / (STREAMS * EVENTS) as f64;
    gaps.sort_by(f64::total_cmp);
    Ok((cpu, gaps[(gaps.len() - 1) * 99 / 100]))
}

/// Milliseconds between the events of one stream.
async fn read(addr: SocketAddr) -> anyhow::Result<Vec<f64>> {
    let body = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = TcpStream::connect(addr).await?;
    socket.write_all(request.as_bytes()).await?;
    let (mut bytes, mut words, mut last, mut gaps) = (Vec::new(), 0, None::<Instant>, Vec::new());
    loop {
        let read = socket.read_buf(&mut bytes).await.context("the gateway broke off")?;
        let text = String::from_utf8_lossy(&bytes);
        anyhow::ensure!(read > 0, "a stream was cut after {:?}", text.lines().rev().find(|line| line.len() > 2));
        // Where the gateway is behind, an event has several.
        let seen = text.matches("word").count();
        if seen > words {
            words = seen;
            let now = Instant::now();
            gaps.extend(last.replace(now).map(|last| (now - last).as_secs_f64() * 1e3));
        }
        if text.contains("data: [DONE]") {
            anyhow::ensure!(words == EVENTS, "{words} of {EVENTS} events came");
            return Ok(gaps);
        }
    }
}
