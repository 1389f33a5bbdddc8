//! `tidegate plugin bench`: what a component costs. Medians over batches on this machine; nothing is judged.
//!
//! A case is asked many times, each time with the HTTP and the notes that its first call found; what calls keep stays. What is
//! measured is the call, and nothing that a report makes of what it says.

use super::fixture::{Ask, Case, Stream};
use super::workbench::World;
use super::{TestArgs, cases, stream, test, workbench};
use std::io::Write;
use std::time::{Duration, Instant};
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::Window;

/// Batches whose median is told.
const BATCHES: usize = 11;
/// What one batch should take, so that the clock's grain does not matter.
const BATCH: Duration = Duration::from_millis(20);
/// Instances that are made and dropped in a batch at most, and calls.
const INSTANCES: u32 = 50;
const CALLS: u32 = 100_000;
/// For what all those calls keep: a plugin that keeps something new at each would soon be past the quota that it is granted.
const ROOM_BYTES: usize = 1 << 30;

pub(super) fn run(args: &TestArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (component, mut fixtures) = test::open(args, out)?;
    fixtures.grants.kv_kib = fixtures.grants.kv_kib.map(|_| ROOM_BYTES as u64 >> 10);
    let started = Instant::now();
    let world = workbench::world(&component, &fixtures, &fixtures.config, ROOM_BYTES)?;
    let plugin = &world.plugin;
    writeln!(out, "load        {} (compiled before, where the cache has it)", shown(started.elapsed()))?;
    let runtime = workbench::runtime()?;
    let instantiate = runtime.block_on(instantiate(plugin))?;
    let how = if plugin.starts_configured() { "as `configure` left one" } else { "with `configure`" };
    writeln!(out, "instantiate {} {how}, and dropped", shown(instantiate))?;
    for case in &fixtures.case {
        // One with a config of its own would have a world of its own, and a clock.
        if case.config.is_none() {
            plugin.pass_time(Duration::from_millis(case.advance_ms));
        }
        let measured = match unmeasured(case) {
            Some(why) => Err(why.to_owned()),
            None => runtime.block_on(call_time(&world, &case.ask)).map_err(|error| format!("{error:#}")),
        };
        match measured {
            Ok(call) => writeln!(out, "call        {:>9} ns  {}", call.as_nanos(), case.name)?,
            Err(why) => writeln!(out, "left out                {}: {why}", case.name)?,
        }
        for remark in workbench::remarks(plugin, case.ask.kind()) {
            writeln!(out, "            {remark}")?;
        }
    }
    writeln!(out, "memory      at most {} KiB of one instance", plugin.memory_peak() / 1024)?;
    Ok(())
}

/// Why a case is not measured. What ends in an error may cost an instance, which is no call's price.
fn unmeasured(case: &Case) -> Option<&'static str> {
    if case.expect.contains_key("error") {
        return Some("it expects an error");
    }
    case.config.is_some().then_some("it has a config of its own")
}

async fn instantiate(plugin: &Plugin) -> anyhow::Result<Duration> {
    let count = repeats(make(plugin, 1).await?, INSTANCES);
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        batches.push(make(plugin, count).await? / count);
    }
    Ok(median(batches))
}

async fn make(plugin: &Plugin, count: u32) -> anyhow::Result<Duration> {
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
async fn call_time(world: &World, ask: &Ask) -> anyhow::Result<Duration> {
    let found = Found { times_left: world.http.left(), notes: world.notes.borrow().clone() };
    let count = repeats(time(world, &found, ask, 1).await?, CALLS);
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        batches.push(time(world, &found, ask, count).await? / count);
    }
    Ok(median(batches))
}

/// What a case finds: how often the scripted answers are given still, and what its prompt guard noted before.
struct Found {
    times_left: Vec<u32>,
    notes: Vec<(String, String)>,
}

/// So many calls, each of which finds the same.
async fn time(world: &World, found: &Found, ask: &Ask, count: u32) -> anyhow::Result<Duration> {
    let plugin = &world.plugin;
    let started = Instant::now();
    for _ in 0..count {
        world.http.rearm(&found.times_left);
        world.notes.borrow_mut().clone_from(&found.notes);
        match ask {
            Ask::Stream(Stream { channel, text }) => {
                let ending = Some(stream::finish_reason(channel));
                let window = Window { seq: 0, choice: 0, channel, text, settled: 0, ending };
                plugin.inspect_window(&workbench::context(true), &[], window).await?;
            }
            // A server asks for the list of tools once for many calls.
            Ask::Tool(tool) => drop(cases::call_tool(plugin, tool).await?),
            ask => drop(cases::said(world, ask).await?),
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
