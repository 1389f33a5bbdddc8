//! `tidegate plugin bench`: what a component costs. Medians over batches on this machine; nothing is judged.

use super::fixture::{Ask, Case, Stream};
use super::{TestArgs, cases, stream, test, workbench};
use anyhow::Context;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::Window;
use tidegate_sandbox::{Plugin, Sandbox};

/// Batches whose median is told.
const BATCHES: usize = 11;
/// What one batch should take, so that the clock's grain does not matter.
const BATCH: Duration = Duration::from_millis(20);
/// Instances that are made and dropped in a batch at most, and calls.
const INSTANCES: u32 = 50;
const CALLS: u32 = 100_000;

pub(super) fn run(args: &TestArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (component, mut fixtures) = test::open(args)?;
    // A case is asked many times here.
    fixtures.host.http.iter_mut().for_each(|answer| answer.times = None);
    let started = Instant::now();
    let (sandbox, plugin) = workbench::load_with(&component, &fixtures, &fixtures.config)?;
    writeln!(out, "load        {} (compiled before, where the cache has it)", shown(started.elapsed()))?;
    let runtime = workbench::runtime()?;
    let instantiate = runtime.block_on(instantiate(&plugin))?;
    let how = if plugin.starts_configured() { "as `configure` left one" } else { "with `configure`" };
    writeln!(out, "instantiate {} {how}, and dropped", shown(instantiate))?;
    for case in &fixtures.case {
        if let Some(why) = unmeasured(case) {
            writeln!(out, "left out                {}: {why}", case.name)?;
            continue;
        }
        let call = runtime.block_on(call_time(&plugin, &case.ask)).with_context(|| format!("`{}`", case.name))?;
        writeln!(out, "call        {:>9} ns  {}", call.as_nanos(), case.name)?;
        if let Some(slow) = workbench::over_default(&plugin, case.ask.kind()) {
            writeln!(out, "            {slow}")?;
        }
    }
    writeln!(out, "memory      {} KiB of one instance after these", held(&sandbox) / 1024)?;
    Ok(())
}

/// Why a case is not measured. What ends in an error may cost an instance, which is no call's price.
fn unmeasured(case: &Case) -> Option<&'static str> {
    if case.expect.contains_key("error") {
        return Some("it expects an error");
    }
    case.config.is_some().then_some("it has a config of its own")
}

/// One instance after the calls, which were one at a time.
fn held(sandbox: &Sandbox) -> usize {
    let usage = sandbox.usage();
    usage.memory_bytes / usage.instances.max(1)
}

async fn instantiate(plugin: &Arc<Plugin>) -> anyhow::Result<Duration> {
    let count = repeats(make(plugin, 1).await?, INSTANCES);
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        batches.push(make(plugin, count).await? / count);
    }
    Ok(median(batches))
}

async fn make(plugin: &Arc<Plugin>, count: u32) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for _ in 0..count {
        plugin.make_instance().await?;
    }
    Ok(started.elapsed())
}

/// How many fill a batch, by what one took.
fn repeats(once: Duration, most: u32) -> u32 {
    (BATCH.as_nanos() / once.as_nanos().max(1)).clamp(1, most.into()) as u32
}

/// One call of a case; a stream is one window of the whole text, on its channel.
async fn call_time(plugin: &Plugin, ask: &Ask) -> anyhow::Result<Duration> {
    let count = repeats(time(plugin, ask, 1).await?, CALLS);
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
            Ask::Stream(Stream { channel, text }) => {
                let ending = Some(stream::finish_reason(channel));
                let window = Window { seq: 0, choice: 0, channel, text, settled: 0, ending };
                plugin.inspect_window(&workbench::context(), &[], window).await?;
            }
            // A server asks for the list of tools once for many calls.
            Ask::Tool(tool) => drop(cases::call_tool(plugin, tool).await?),
            ask => drop(cases::call(plugin, ask).await?),
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
