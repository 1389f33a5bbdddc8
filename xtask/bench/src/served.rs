//! `cargo xtask bench plugins`, second half: what a stage adds end to end. One gateway is reloaded with and without it, in turn
//! and in short rounds, so that what else the machine does meets both, and so does where the kernel puts the gateway's threads:
//! of two processes one may have the better place for as long as both run.

use crate::awake::Awake;
use crate::gateway::{Gateway, Stages};
use crate::load::{KEY, Load};
use crate::report::Report;
use crate::standin::Said;
use crate::{cores, stamp, standin};
use anyhow::Context;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Rounds in which a gateway is asked with a stage and without.
const ROUNDS: usize = 60;
/// Requests of a round, one after the other.
const REQUESTS: usize = 50;
/// Streams at once.
const STREAMS: usize = 1_000;
/// Events of each.
pub(crate) const EVENTS: usize = 40;
/// The time between two, of a model that is slow, of one that many read, and of none; and how often a gateway serves them with
/// a guard and without, in turns. One round differs from the next by more than a guard takes, by far where a queue of all events
/// is waited for; those rounds are over in a moment.
const PACES: [Pace; 3] = [Pace { ms: 200, rounds: 8 }, Pace { ms: 50, rounds: 16 }, Pace { ms: 0, rounds: 100 }];
/// What one plugin that reads the request adds to p50 and CPU at SMG 1.13.0 (the model gateway of SGLang): measured in one
/// round on two shared cores of an AMD EPYC, the gateway on one of them, and not here.
const SMG_P50_US: f64 = 108.0;
const SMG_CPU_US: f64 = 63.0;

#[derive(Clone, Copy)]
struct Pace {
    ms: u64,
    rounds: usize,
}

const SAID: [Said; 3] = [Said::Words, Said::Prose, Said::Addresses];
/// What is measured while no core sleeps.
const AWAKE: &str = ", cores kept awake";

pub(crate) async fn measure(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let all = cores::allowed()?;
    delays(program, &all, "", report).await?;
    report.add("p50 that a plugin of SMG 1.13.0 adds to a request, measured elsewhere", SMG_P50_US, "us", None);
    report.add("CPU that it adds, measured elsewhere", SMG_CPU_US, "us", None);
    for said in SAID {
        for pace in PACES {
            guarded_streams(program, pace, said, "", report).await?;
        }
    }
    let mut awake = match Awake::keep(&all) {
        Ok(awake) => awake,
        Err(error) => {
            eprintln!("not measured with cores kept awake: {error:#}");
            return Ok(());
        }
    };
    delays(program, &all, AWAKE, report).await?;
    for said in SAID {
        for pace in PACES.into_iter().filter(|pace| pace.ms > 0) {
            guarded_streams(program, pace, said, AWAKE, report).await?;
        }
    }
    awake.check()
}

/// What guards add to p50: where the kernel puts gateway and callers, and where each are on a core, as on two machines.
async fn delays(program: &Path, all: &str, how: &str, report: &mut Report) -> anyhow::Result<()> {
    let upstream = standin::start(4).await?;
    delays_on(program, upstream, None, how, report).await?;
    match cores::two_of(all) {
        Some([gateway, callers]) => {
            cores::keep_on(std::process::id(), &callers)?;
            delays_on(program, upstream, Some(&gateway), how, report).await?;
            cores::keep_on(std::process::id(), all)
        }
        None => {
            eprintln!("p50 with gateway and callers each on a core: not measured, there is one core");
            Ok(())
        }
    }
}

/// `apart`: the gateway's core, where who calls it is on another. Left to itself the kernel puts both on one core or on two, as
/// it likes, and a core that sleeps may take longer to wake than a guard takes.
async fn delays_on(
    program: &Path,
    upstream: SocketAddr,
    apart: Option<&str>,
    how: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let place = if apart.is_some() { ", gateway and callers each on a core" } else { "" };
    for stages in [Stages::NoOp, Stages::PromptGuard] {
        let gateway = start(program, upstream, stages).await?;
        if let Some(core) = apart {
            gateway.keep_on(core)?;
        }
        let [without, added] = delays_us(&gateway, upstream, stages).await?;
        report.add_median(&format!("p50 of a request without it, {stages}{place}{how}"), without, "us", None);
        report.add_median(&format!("p50 added to a request, {stages}{place}{how}"), added, "us", Some(15.0));
    }
    Ok(())
}

/// What a stream guard adds where the events of each stream come `pace` apart, or as fast as they can. Where they do not
/// pause, an event waits for all that were sent before it, however long each takes: its delay says no more than CPU does.
async fn guarded_streams(
    program: &Path,
    Pace { ms, rounds }: Pace,
    said: Said,
    how: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let pace = Duration::from_millis(ms);
    let upstream = standin::stamped(EVENTS, pace, said).await?;
    let often = if ms == 0 { "without a pause".into() } else { format!("every {ms} ms") };
    let how = match said {
        Said::Words => format!("{often}, words and numbers{how}"),
        Said::Prose => format!("{often}, prose{how}"),
        Said::Addresses => format!("{often}, an @ in each{how}"),
    };
    let stages = [Stages::None, Stages::StreamGuard];
    let gateway = start(program, upstream, stages[0]).await?;
    let mut seen = [const { (Vec::new(), Vec::new()) }; 2];
    for round in 0..rounds {
        for which in order(round) {
            turn_to(&gateway, upstream, stages[which]).await?;
            let (cpu_us, p99_ms) = streams(&gateway, pace).await?;
            seen[which].0.push(cpu_us);
            seen[which].1.push(p99_ms);
        }
    }
    let added = |with: &[f64], without: &[f64]| with.iter().zip(without).map(|(a, b)| a - b).collect();
    let [(cpu, late), (guarded_cpu, guarded_late)] = &seen;
    let (added_cpu, added_late) = (added(guarded_cpu, cpu), added(guarded_late, late));
    for (stages, (cpu, late)) in stages.iter().zip(seen) {
        report.add_median(&format!("CPU for an event of {STREAMS} streams, {how}, {stages}"), cpu, "us", None);
        report.add_median(&format!("p99 of an event's delay, {how}, {stages}"), late, "ms", None);
    }
    report.add_median(&format!("CPU that the stream guard adds to each, {how}"), added_cpu, "us", Some(3.0));
    report.add_median(&format!("p99 that it adds to the delay, {how}"), added_late, "ms", Some(5.0));
    Ok(())
}

async fn start(program: &Path, upstream: SocketAddr, stages: Stages) -> anyhow::Result<Gateway> {
    let gateway = Gateway::start(program, upstream, stages)?;
    gateway.wait_ready().await?;
    warm(&gateway).await?;
    Ok(gateway)
}

async fn turn_to(gateway: &Gateway, upstream: SocketAddr, stages: Stages) -> anyhow::Result<()> {
    gateway.reload(upstream, stages).await?;
    warm(gateway).await
}

async fn warm(gateway: &Gateway) -> anyhow::Result<()> {
    Load::to(gateway.addr, false).run(1, REQUESTS * 4).await?;
    Ok(())
}

/// Of a request without a stage, and what that adds: of each round its median, and the difference of its two.
async fn delays_us(gateway: &Gateway, upstream: SocketAddr, stages: Stages) -> anyhow::Result<[Vec<f64>; 2]> {
    let load = Load::to(gateway.addr, false);
    let [mut without, mut differences] = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        let mut seen = [0.0; 2];
        for which in order(round) {
            turn_to(gateway, upstream, [Stages::None, stages][which]).await?;
            seen[which] = load.run(1, REQUESTS).await?.median_us();
        }
        without.push(seen[0]);
        differences.push(seen[1] - seen[0]);
    }
    Ok([without, differences])
}

/// Without a stage and with it: each goes first as often as the other.
fn order(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// CPU of the gateway for an event, and the 99th percentile of the time from the stand-in to the reader.
pub(crate) async fn streams(gateway: &Gateway, pace: Duration) -> anyhow::Result<(f64, f64)> {
    let before = gateway.cpu_us()?;
    let mut reading = Vec::with_capacity(STREAMS);
    for number in 0..STREAMS {
        let addr = gateway.addr;
        reading.push(tokio::task::spawn(async move {
            // Spread over one step, as clients are.
            tokio::time::sleep(pace * number as u32 / STREAMS as u32).await;
            read(addr).await
        }));
    }
    let mut delays = Vec::with_capacity(STREAMS * EVENTS);
    for stream in reading {
        delays.extend(stream.await??);
    }
    let cpu = (gateway.cpu_us()? - before) / (STREAMS * EVENTS) as f64;
    delays.sort();
    Ok((cpu, delays[(delays.len() - 1) * 99 / 100].as_secs_f64() * 1e3))
}

/// The delay of each event of one stream.
async fn read(addr: SocketAddr) -> anyhow::Result<Vec<Duration>> {
    let body = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = TcpStream::connect(addr).await?;
    socket.write_all(request.as_bytes()).await?;
    let mut seen = Seen::default();
    while !seen.done {
        socket.readable().await?;
        seen.read(&socket)?;
    }
    anyhow::ensure!(seen.delays.len() == EVENTS, "{} of {EVENTS} events came", seen.delays.len());
    Ok(seen.delays)
}

/// What was read of a stream. Nothing of it is kept: clients that hold whole answers, on the machine that is measured,
/// leave the gateway no cache, which a thousand clients elsewhere would not touch.
#[derive(Default)]
struct Seen {
    delays: Vec<Duration>,
    done: bool,
    /// The end of what was read, in which a mark may have begun.
    tail: Vec<u8>,
}

impl Seen {
    fn read(&mut self, socket: &TcpStream) -> anyhow::Result<()> {
        let mut new = [0; 16 << 10];
        let read = match socket.try_read(&mut new) {
            Ok(0) => anyhow::bail!("a stream was cut after {} events", self.delays.len()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("the gateway broke off"),
        };
        self.take(&new[..read], stamp::now());
        Ok(())
    }

    fn take(&mut self, new: &[u8], now: Duration) {
        const DONE: &[u8] = b"data: [DONE]";
        self.tail.extend_from_slice(new);
        self.done |= self.tail.windows(DONE.len()).any(|seen| seen == DONE);
        let mut read = 0;
        while let Some((end, sent)) = stamp::next(&self.tail[read..]) {
            self.delays.push(now.saturating_sub(sent));
            read += end;
        }
        self.tail.drain(..read.max(self.tail.len().saturating_sub(stamp::LONGEST)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_once_wherever_reads_end() {
        let word = |ms| String::from_utf8(stamp::letters(Duration::from_millis(ms)).into()).unwrap();
        let (a, b, c) = (word(1), word(2), word(3));
        let text = format!(
            "data: {{\"content\":\"word{a} word{b} \"}} \"word-word\"\n\ndata: {{\"content\":\"word{c} \"}}\n\ndata: [DONE]\n\n"
        );
        for size in 1..text.len() {
            let mut seen = Seen::default();
            text.as_bytes().chunks(size).for_each(|piece| seen.take(piece, Duration::from_millis(5)));
            assert_eq!((seen.delays, seen.done), ([4, 3, 2].map(Duration::from_millis).to_vec(), true), "{size}");
        }
    }
}
