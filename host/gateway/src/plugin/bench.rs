//! `tidegate plugin bench`: what a component costs. Medians over batches on this machine; nothing is judged.
//!
//! A case is asked many times, each time with the HTTP and the notes that its first call found; what calls keep stays. What is
//! measured is the call, and nothing that a report makes of what it says. So is what a guard says of it at a glance.

use super::fixture::{Ask, Case, Stream};
use super::workbench::World;
use super::{TestArgs, cases, stream, test, workbench};
use std::io::Write;
use std::time::{Duration, Instant};
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::{CallError, Channel, Window};
use tidegate_types::Message;
use tokio::runtime::Runtime;

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
            Ok(call) => {
                writeln!(out, "call        {:>9} ns  {}", call.as_nanos(), case.name)?;
                glanced(plugin, &runtime, case, out)?;
            }
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

/// Writes what a first look at a case costs, of a guard that servers ask for them, however long the case is: without an answer the call comes
/// behind it.
fn glanced(plugin: &Plugin, runtime: &Runtime, case: &Case, out: &mut dyn Write) -> anyhow::Result<()> {
    let Some(look) = Look::at(&case.ask).filter(|_| plugin.is_asked_for_glances(case.ask.kind())) else {
        return Ok(());
    };
    let measured = runtime.block_on(async {
        let has_answer = look.has_answer(plugin).await?;
        let look_often = async |count| {
            let started = Instant::now();
            for _ in 0..count {
                look.has_answer(plugin).await?;
            }
            Ok(started.elapsed())
        };
        anyhow::Ok((has_answer, median_of(CALLS, look_often).await?))
    });
    match measured {
        Ok((has_answer, took)) => {
            let none = if has_answer { "" } else { ": no answer, so that the call comes behind it" };
            writeln!(out, "glance      {:>9} ns  {}{none}", took.as_nanos(), case.name)?;
        }
        Err(error) => writeln!(out, "left out                {}, at a glance: {error:#}", case.name)?,
    }
    Ok(())
}

/// What a case shows at a glance.
enum Look<'a> {
    Prompt(&'a [Message]),
    Window(Window<'a>),
}

impl<'a> Look<'a> {
    /// Of a stream, that its text goes on: a guard is asked about the last window, and about arguments.
    fn at(ask: &'a Ask) -> Option<Self> {
        match ask {
            Ask::Prompt(prompt) => Some(Self::Prompt(&prompt.messages)),
            Ask::Stream(Stream { channel: Channel::ToolArguments(_), .. }) => None,
            Ask::Stream(Stream { channel, text }) => Some(Self::Window(window(channel, text, None))),
            _ => None,
        }
    }

    async fn has_answer(&self, plugin: &Plugin) -> Result<bool, CallError> {
        let ctx = workbench::context(true);
        match self {
            Self::Prompt(messages) => plugin.glance_prompt(&ctx, messages).await,
            Self::Window(window) => Ok(plugin.glance(&ctx, window).await?.is_some()),
        }
    }
}

fn window<'a>(channel: &'a Channel, text: &'a str, ending: Option<&'a str>) -> Window<'a> {
    Window { seq: 0, choice: 0, channel, text, settled: 0, ending }
}

async fn instantiate(plugin: &Plugin) -> anyhow::Result<Duration> {
    median_of(INSTANCES, async |count| make(plugin, count).await).await
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

/// The time of one, by batches of at most so many of them.
async fn median_of(most: u32, time: impl AsyncFn(u32) -> anyhow::Result<Duration>) -> anyhow::Result<Duration> {
    let count = repeats(time(1).await?, most);
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        batches.push(time(count).await? / count);
    }
    Ok(median(batches))
}

/// One call of a case; a stream is one window of the whole text, on its channel.
async fn call_time(world: &World, ask: &Ask) -> anyhow::Result<Duration> {
    let found = Found { times_left: world.http.left(), notes: world.notes.borrow().clone() };
    median_of(CALLS, async |count| time(world, &found, ask, count).await).await
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
                let window = window(channel, text, Some(stream::finish_reason(channel)));
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
