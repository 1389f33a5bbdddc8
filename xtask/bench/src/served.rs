//! `cargo xtask bench plugins`, second half: what a stage adds end to end. Gateways with and without it run beside each
//! other and are asked in turn, in short rounds, so that what else the machine does meets both.

use crate::gateway::{Gateway, Stages};
use crate::load::{KEY, Load};
use crate::report::Report;
use crate::{cores, median, standin};
use anyhow::Context;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Rounds in which each gateway is asked once.
const ROUNDS: usize = 60;
/// Requests of a round, one after the other.
const REQUESTS: usize = 50;
/// For gateways, and for who calls them.
const CORES: [&str; 2] = ["0", "1"];
/// Streams at once.
const STREAMS: usize = 1_000;
/// Events of each, and the time between two: of a model that is slow, of one that many read, and none.
const EVENTS: usize = 40;
const PACES_MS: [u64; 3] = [200, 50, 0];

pub(crate) async fn measure(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let upstream = standin::start(4).await?;
    delays(program, upstream, false, report).await?;
    let all = cores::allowed()?;
    cores::keep_on(std::process::id(), CORES[1])?;
    delays(program, upstream, true, report).await?;
    cores::keep_on(std::process::id(), &all)?;
    for pace in PACES_MS {
        guarded_streams(program, Duration::from_millis(pace), report).await?;
    }
    Ok(())
}

/// What guards add to p50. `apart`: gateways on one core and who calls them on another, as on two machines. Left to itself the
/// kernel puts both on one core or on two, as it likes, and a core that sleeps may take longer to wake than a guard takes.
async fn delays(program: &Path, upstream: SocketAddr, apart: bool, report: &mut Report) -> anyhow::Result<()> {
    let started = async |stages| {
        let gateway = start(program, upstream, stages).await?;
        if apart {
            gateway.keep_on(CORES[0])?;
        }
        anyhow::Ok(gateway)
    };
    let place = if apart { ", gateways and callers each on a core" } else { "" };
    let bare = started(Stages::None).await?;
    for (stages, goal) in [(Stages::NoOp, Some(15.0)), (Stages::PromptGuard, None)] {
        let guarded = started(stages).await?;
        let added = added_us(bare.addr, guarded.addr).await?;
        report.add(&format!("p50 added to a request, {stages}{place}"), added, "us", goal);
    }
    Ok(())
}

/// What a stream guard adds where the events of each stream come `pace` apart, or as fast as they can.
async fn guarded_streams(program: &Path, pace: Duration, report: &mut Report) -> anyhow::Result<()> {
    let upstream = standin::paced(EVENTS, pace).await?;
    let how = if pace.is_zero() { "without a pause".into() } else { format!("every {} ms", pace.as_millis()) };
    let (mut cpu, mut late) = (Vec::new(), Vec::new());
    for stages in [Stages::None, Stages::StreamGuard] {
        let gateway = start(program, upstream, stages).await?;
        let (cpu_us, p99_ms) = streams(&gateway, pace).await?;
        report.add(&format!("CPU for an event of {STREAMS} streams, {how}, {stages}"), cpu_us, "us", None);
        report.add(&format!("p99 between two events, {how}, {stages}"), p99_ms, "ms", None);
        cpu.push(cpu_us);
        late.push(p99_ms);
    }
    report.add(&format!("CPU that the stream guard adds to each, {how}"), cpu[1] - cpu[0], "us", Some(3.0));
    report.add(&format!("p99 that it adds between two, {how}"), late[1] - late[0], "ms", Some(5.0));
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
async fn streams(gateway: &Gateway, pace: Duration) -> anyhow::Result<(f64, f64)> {
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
    let (mut seen, mut last, mut gaps) = (Seen::default(), None::<Instant>, Vec::with_capacity(EVENTS));
    loop {
        socket.readable().await?;
        let words = seen.words;
        seen.read(&socket)?;
        if seen.words > words {
            let now = Instant::now();
            gaps.extend(last.replace(now).map(|last| (now - last).as_secs_f64() * 1e3));
        }
        if seen.done {
            anyhow::ensure!(seen.words == EVENTS, "{} of {EVENTS} events came", seen.words);
            return Ok(gaps);
        }
    }
}

/// What was read of a stream. Nothing of it is kept: clients that hold whole answers, on the machine that is measured,
/// leave the gateway no cache, which a thousand clients elsewhere would not touch.
#[derive(Default)]
struct Seen {
    words: usize,
    done: bool,
    /// The end of what was read, in which a mark may have begun.
    tail: Vec<u8>,
}

impl Seen {
    fn read(&mut self, socket: &TcpStream) -> anyhow::Result<()> {
        let mut new = [0; 16 << 10];
        let read = match socket.try_read(&mut new) {
            Ok(0) => anyhow::bail!("a stream was cut after {} events", self.words),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("the gateway broke off"),
        };
        self.take(&new[..read]);
        Ok(())
    }

    fn take(&mut self, new: &[u8]) {
        const DONE: &[u8] = b"data: [DONE]";
        // At the begin of a text and behind another: what events are padded with is random, and may have any word.
        const WORDS: [&[u8]; 2] = [b"content\":\"word", b" word"];
        let old = self.tail.len();
        self.tail.extend_from_slice(new);
        let found = |mark: &[u8]| {
            self.tail
                .windows(mark.len())
                .enumerate()
                .filter(|(at, seen)| at + mark.len() > old && *seen == mark)
                .count()
        };
        self.words += WORDS.into_iter().map(found).sum::<usize>();
        self.done |= found(DONE) > 0;
        let keep = self.tail.len().min(WORDS[0].len() - 1);
        self.tail.drain(..self.tail.len() - keep);
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn marks_are_counted_once_wherever_reads_end() {
        let text =
            b"data: {\"content\":\"word0 word1 \"} \"word-word\"\n\ndata: {\"content\":\"word2 \"}\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut seen = Seen::default();
            text.chunks(size).for_each(|piece| seen.take(piece));
            assert_eq!((seen.words, seen.done), (3, true), "{size}");
        }
    }
}
