//! The load by which a release is built (`cargo xtask release`): a gateway that counts what its code does meets what the
//! benchmarks send it, and what clients ask a model for. What is measured on the way is told to nobody, for counting takes time.

use crate::gateway::{Gateway, Stages};
use crate::load::Load;
use crate::standin::Said;
use crate::{served, standin};
use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Requests of a gateway, and streams.
const REQUESTS: usize = 4_000;
const STREAMS: usize = 400;
/// Events of a stream.
const EVENTS: usize = 64;
/// Between two events of each of many streams.
const PACE: Duration = Duration::from_millis(50);
/// How often each request of the tour is sent.
const TOURS: usize = 100;

/// What clients ask a model for, of each kind one; the tests hold a gateway to it too.
const TOUR: &str = include_str!("../tour.json");

#[derive(Deserialize)]
struct Asked {
    path: String,
    body: Value,
}

pub(crate) async fn run(program: &Path) -> anyhow::Result<()> {
    // Streams have two connections each here, and most systems begin with 1,024 files.
    rlimit::increase_nofile_limit(u64::MAX).context("cannot raise the limit of open files")?;
    let upstream = standin::start(EVENTS).await?;
    for stages in [Stages::None, Stages::NoOp, Stages::PromptGuard, Stages::StreamGuard, Stages::Both] {
        eprintln!("training: an upstream, {stages}");
        forwarded(program, upstream, stages).await?;
    }
    for (said, what) in [(Said::Prose, "prose"), (Said::Addresses, "an @ in each event")] {
        eprintln!("training: streams that pause, {what}");
        let upstream = standin::stamped(served::EVENTS, PACE, said).await?;
        let gateway = Gateway::start(program, upstream, Stages::StreamGuard)?;
        gateway.wait_ready().await?;
        served::streams(&gateway, PACE).await?;
        gateway.end().await?;
    }
    eprintln!("training: a model");
    let gateway = Gateway::with_starter(program, "[store]\npath = \"data\"\n")?;
    gateway.wait_ready().await?;
    tour(gateway.addr).await?;
    gateway.end().await
}

async fn forwarded(program: &Path, upstream: SocketAddr, stages: Stages) -> anyhow::Result<()> {
    let gateway = Gateway::start(program, upstream, stages)?;
    gateway.wait_ready().await?;
    Load::to(gateway.addr, false).run(32, REQUESTS).await?;
    Load::to(gateway.addr, true).run(16, STREAMS).await?;
    gateway.end().await
}

async fn tour(addr: SocketAddr) -> anyhow::Result<()> {
    for Asked { path, body } in serde_json::from_str::<Vec<Asked>>(TOUR)? {
        let load = Load::of(addr, &path, &body.to_string());
        load.run(8, TOURS).await.with_context(|| format!("{path} with {body}"))?;
    }
    Ok(())
}
