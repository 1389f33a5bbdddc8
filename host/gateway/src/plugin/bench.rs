//! `tidegate plugin bench`: what a component costs. Medians over batches on this machine; nothing is judged.

use super::fixture::{Ask, Stream};
use super::{TestArgs, cases, test, workbench};
use anyhow::bail;
use serde_json::Value;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{Channel, Window};
use tidegate_sandbox::{Plugin, Sandbox};

/// Batches whose median is told.
const BATCHES: usize = 11;
/// What one batch should take, so that the clock's grain does not matter.
const BATCH: Duration = Duration::from_millis(20);
/// Instances that are made and dropped in a batch.
const INSTANCES: u32 = 50;

pub(super) fn run(args: &TestArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (component, fixtures) = test::open(args)?;
    let started = Instant::now();
    let (sandbox, plugin) = workbench::load_with(&component, &fixtures, &fixtures.config)?;
    writeln!(out, "load        {} (compiled before, where the cache has it)", shown(started.elapsed()))?;
    let runtime = workbench::runtime()?;
    let instantiate = runtime.block_on(instantiate(&plugin))?;
    writeln!(out, "instantiate {} with `configure`, and dropped", shown(instantiate))?;
    for case in fixtures.case.iter().filter(|case| case.config.is_none()) {
        let call = runtime.block_on(call_time(&plugin, &case.ask))?;
        writeln!(out, "call        {:>9} ns  {}", call.as_nanos(), case.name)?;
    }
    writeln!(out, "memory      {} KiB of one instance after these", held(&sandbox) / 1024)?;
    Ok(())
}

/// One instance after the calls, which were one at a time.
fn held(sandbox: &Sandbox) -> usize {
    let usage = sandbox.usage();
    usage.memory_bytes / usage.instances.max(1)
}

async fn instantiate(plugin: &Arc<Plugin>) -> anyhow::Result<Duration> {
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let started = Instant::now();
        for _ in 0..INSTANCES {
            plugin.make_instance().await?;
        }
        batches.push(started.elapsed() / INSTANCES);
    }
    Ok(median(batches))
}

/// One call of a case; a stream is one window of the whole text.
async fn call_time(plugin: &Plugin, ask: &Ask) -> anyhow::Result<Duration> {
    let once = time(plugin, ask, 1).await?;
    let count = (BATCH.as_nanos() / once.as_nanos().max(1)).clamp(1, 100_000) as u32;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        batches.push(time(plugin, ask, count).await? / count);
    }
    Ok(median(batches))
}

async fn time(plugin: &Plugin, ask: &Ask, count: u32) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for _ in 0..count {
        match ask {
            Ask::Stream(Stream::Text(text) | Stream::Of { text, .. }) => {
                let channel = Channel::Text;
                let window = Window { seq: 0, choice: 0, channel: &channel, text, settled: 0, ending: Some("stop") };
                plugin.inspect_window(&workbench::context(), &[], window).await?;
            }
            ask => {
                let (outcome, _) = cases::outcome(plugin, ask).await?;
                if let Value::String(error) = &outcome["error"] {
                    bail!("{error}");
                }
            }
        }
    }
    Ok(started.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn shown(time: Duration) -> String {
    format!("{:.1} us", time.as_secs_f64() * 1e6)
}
