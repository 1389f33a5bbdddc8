//! Measures what the gateway adds: CPU for a request, CPU for a streamed event, delay, memory. It starts the
//! release build of `tidegate`, and a bare hyper proxy as the floor, before a stand-in upstream on loopback, loads it over real sockets, and prints a
//! table and JSON. Figures are printed, never asserted: machines differ and are shared. CPU is what the kernel
//! charged the gateway's process; latencies are medians of interleaved rounds.
#![allow(clippy::print_stdout)]

mod awake;
mod chaos_ledger;
mod chaos_streams;
mod cores;
mod floor;
mod gateway;
mod load;
mod native;
mod plugins;
mod report;
mod served;
mod stamp;
mod standin;
mod train;

use anyhow::Context;
use gateway::{Gateway, Stages};
use load::Load;
use native::Native;
use report::Report;
use std::path::PathBuf;

const USAGE: &str = "usage: tidegate-bench PATH-TO-TIDEGATE [plugins NATIVE BOUNDARY|streams|ledger|train]";

/// Requests of one round; three rounds, the median counts.
const REQUESTS: usize = 4000;
const STREAMS: usize = 400;
const ROUNDS: usize = 3;
/// Streams at once of a model of the gateway's own.
const MANY: usize = 200;
/// Events of a streamed answer.
const EVENTS: usize = 64;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, listen, upstream] = &arguments[..]
        && command == "floor"
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        return runtime.block_on(floor::run(listen.parse()?, upstream.parse()?));
    }
    if arguments == ["awake"] {
        return awake::run();
    }
    let program = PathBuf::from(arguments.first().context(USAGE)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut report = Report::default();
    match arguments.get(1).map(String::as_str) {
        None => runtime.block_on(measure(&program, &mut report))?,
        Some("streams") => runtime.block_on(chaos_streams::run(&program, &mut report))?,
        Some("plugins") => {
            let [_, _, native, boundary] = &arguments[..] else { anyhow::bail!(USAGE) };
            plugins::boundary(boundary.as_ref(), &mut report)?;
            runtime.block_on(plugins::measure(&Native::at(native), &mut report))?;
            runtime.block_on(served::measure(&program, &mut report))?;
        }
        Some("ledger") => runtime.block_on(chaos_ledger::run(&program, &mut report))?,
        Some("train") => return runtime.block_on(train::run(&program)),
        Some(other) => {
            anyhow::bail!("there is no `{other}`; leave it out, or say `plugins`, `streams`, `ledger` or `train`")
        }
    }
    println!("{}", report.table());
    println!("{}", report.json());
    Ok(())
}

async fn measure(program: &std::path::Path, report: &mut Report) -> anyhow::Result<()> {
    let upstream = standin::start(EVENTS).await?;
    let apart = cores::two_of(&cores::allowed()?);
    if let Some([_, callers]) = &apart {
        cores::keep_on(std::process::id(), callers)?;
    }
    alone(upstream, report).await?;
    for stages in [Stages::Floor, Stages::None, Stages::NoOp, Stages::PromptGuard, Stages::StreamGuard, Stages::Both] {
        let gateway = apart.as_ref().map_or_else(
            || Gateway::start(program, upstream, stages),
            |[gateways, callers]| cores::started_on(gateways, callers, || Gateway::start(program, upstream, stages)),
        )?;
        gateway.wait_ready().await?;
        if stages == Stages::None {
            report.add("idle memory without a model", gateway.resident_mib()?, "MiB", Some(60.0));
        }
        requests(&gateway, upstream, stages, report).await?;
        streams(&gateway, upstream, stages, report).await?;
    }
    many_streams(program, report).await
}

/// What the stand-in and its client take without a gateway. The delays are taken off below; CPU is the gateway's alone.
async fn alone(upstream: std::net::SocketAddr, report: &mut Report) -> anyhow::Result<()> {
    let own_cpu_us = || gateway::cpu_us(std::process::id());
    for (stream, what, count, parts) in [(false, "a request", REQUESTS, 1), (true, "a streamed event", STREAMS, EVENTS)]
    {
        let direct = Load::to(upstream, stream);
        direct.run(16, count / 4).await?;
        let before = own_cpu_us()?;
        direct.run(16, count).await?;
        let cpu = (own_cpu_us()? - before) / (count * parts) as f64;
        report.add(&format!("CPU for {what}, the stand-in and its client alone"), cpu, "us", None);
        let whole = if stream { format!("a burst of {EVENTS} events") } else { what.to_owned() };
        let p50 = direct.run(1, count / 4).await?.median_us();
        report.add(&format!("p50 of {whole}, the stand-in and its client alone"), p50, "us", None);
    }
    Ok(())
}

/// Memory of a gateway with the starter model that answers many at once.
async fn many_streams(program: &std::path::Path, report: &mut Report) -> anyhow::Result<()> {
    let gateway = Gateway::with_starter(program, "[pipeline]\n")?;
    gateway.wait_ready().await?;
    let load = Load::to(gateway.addr, true);
    load.run(1, 1).await?;
    report.add("resident memory with the starter model, after one stream", gateway.resident_mib()?, "MiB", None);
    load.run(MANY, MANY).await?;
    report.add(&format!("the most of it, with {MANY} streams at once"), gateway.most_resident_mib()?, "MiB", None);
    Ok(())
}

/// Whole answers: CPU for each at 32 connections, delay at one.
async fn requests(
    gateway: &Gateway,
    upstream: std::net::SocketAddr,
    stages: Stages,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (direct, through) = (Load::to(upstream, false), Load::to(gateway.addr, false));
    through.run(32, REQUESTS / 4).await?;
    let (mut cpu, mut added) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = gateway.cpu_us()?;
        through.run(32, REQUESTS).await?;
        cpu.push((gateway.cpu_us()? - before) / REQUESTS as f64);
        let alone = direct.run(1, REQUESTS / 8).await?.median_us();
        added.push(through.run(1, REQUESTS / 8).await?.median_us() - alone);
    }
    report.add_median(&format!("CPU for a request, {stages}"), cpu, "us", stages.request_goal());
    report.add_median(&format!("p50 added to a request, {stages}"), added, "us", None);
    Ok(())
}

/// Streams without a gap: CPU for each event at 16 connections, first event and events out for events in at one.
async fn streams(
    gateway: &Gateway,
    upstream: std::net::SocketAddr,
    stages: Stages,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (direct, through) = (Load::to(upstream, true), Load::to(gateway.addr, true));
    through.run(16, STREAMS / 4).await?;
    let (mut cpu, mut added, mut out) = (Vec::new(), Vec::new(), 0.0);
    for _ in 0..ROUNDS {
        let before = gateway.cpu_us()?;
        let seen = through.run(16, STREAMS).await?;
        cpu.push((gateway.cpu_us()? - before) / (STREAMS * EVENTS) as f64);
        out = seen.text_events as f64 / (STREAMS * EVENTS) as f64;
        let alone = direct.run(1, STREAMS / 4).await?.median_us();
        added.push(through.run(1, STREAMS / 4).await?.median_us() - alone);
    }
    report.add_median(&format!("CPU for a streamed event, {stages}"), cpu, "us", stages.event_goal());
    report.add(&format!("events out for one in, {stages}"), out, "", None);
    report.add_median(&format!("p50 added to a burst of {EVENTS} events, {stages}"), added, "us", Some(2000.0));
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}
