//! `cargo xtask bench plugins`, first half: what a call of a plugin costs inside the program, in CPU time of the thread
//! that makes it. The second half, over sockets, is `served.rs`.

use crate::median;
use crate::native::{Native, no_op_ns};
use crate::report::Report;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{CallContext, Channel, Limits, Prompt, Window};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig, Snapshot};
use tidegate_types::{Caller, Message, RequestId, Retention, Role, TenantId};

const BATCHES: usize = 21;
/// Live instances whose memory is measured.
const INSTANCES: usize = 1_000;
/// The guest that does next to nothing, whatever it is asked.
const NO_OP: &str = "honest";
/// Whose memory, and how they begin: as gateways have them, and as they have those that keep or ask for something. More would
/// need more mappings than a process may have.
const LIVE: [(&str, Snapshot); 3] =
    [(NO_OP, Snapshot::WhereSound), (NO_OP, Snapshot::Never), ("pii-guard", Snapshot::WhereSound)];
/// What an event of a stream says.
const EVENT: &str = "word17 ";

/// The boundary alone.
pub(crate) fn boundary(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let (call, future) = no_op_ns(program)?;
    report.add("a no-op export called", call, "ns", Some(200.0));
    report.add("a no-op export called as a future, as stages are", future, "ns", Some(300.0));
    Ok(())
}

/// A sandbox that drops no instance.
fn sandbox() -> anyhow::Result<Sandbox> {
    Ok(Sandbox::new(SandboxConfig {
        cache_dir: Some(std::env::temp_dir().join("tidegate-bench-plugins")),
        total_instances: 2 * INSTANCES as u32 + 8,
        max_idle: Duration::from_secs(600),
        recycle_after_calls: u32::MAX,
        // What instances may grow to counts, not what they touch.
        total_memory_bytes: 16 << 30,
        ..SandboxConfig::default()
    })?)
}

pub(crate) async fn measure(native: &Native, report: &mut Report) -> anyhow::Result<()> {
    let mut live = Vec::new();
    for (name, snapshot) in LIVE {
        live.push(memory(name, snapshot, report).await?);
    }
    drop(live);
    let sandbox = sandbox()?;
    let (no_op, guard) = (load(&sandbox, NO_OP)?, load(&sandbox, "pii-guard")?);
    instances(&sandbox, [("a no-op guest", &no_op), ("pii-guard", &guard)], report).await?;
    let (short, long) = (prompt(64), prompt(4096));
    for (what, prompt, goal) in [("64 B", &short, None), ("4 KB", &long, Some(4.0))] {
        let call = time(2_000, async || inspect(&no_op, &context(0), prompt).await).await?;
        report.add(&format!("a no-op guest asked about a prompt of {what}"), call, "us", goal);
        let call = time(500, async || inspect(&guard, &context(0), prompt).await).await?;
        report.add(&format!("pii-guard asked about a prompt of {what}"), call, "us", None);
        let call = native.prompt_us(&prompt[0].joined_text())?;
        report.add(&format!("the same guard natively in Rust, a prompt of {what}"), call, "us", None);
    }
    for (name, plugin) in [("a no-op guest", &no_op), ("pii-guard", &guard)] {
        let call = time(2_000, async || window(plugin).await).await?;
        report.add(&format!("{name} asked about an event of a stream"), call, "us", None);
    }
    report.add("the same guard natively in Rust, an event of a stream", native.event_us(EVENT)?, "us", None);
    many_words(&sandbox, report).await?;
    loops(&sandbox, report).await?;
    loops_beside_a_stream(&sandbox, &guard, report).await
}

/// What it takes to make an instance and drop it again: of each plugin as it is loaded, and from a snapshot of what its
/// `configure` leaves.
async fn instances(sandbox: &Sandbox, plugins: [(&str, &Plugin); 2], report: &mut Report) -> anyhow::Result<()> {
    for (what, plugin) in plugins {
        let goal = (plugin.name() == NO_OP).then_some(10.0);
        let make = time(200, async || plugin.make_instance().await).await?;
        report.add(&format!("{what} made, configured and dropped"), make, "us", goal);
        let component = std::fs::read(component(plugin.name()))?;
        let from_snapshot = PluginSpec { snapshot: Snapshot::Asked, ..PluginSpec::new(plugin.name(), component) };
        let plugin = sandbox.load(from_snapshot)?;
        anyhow::ensure!(plugin.starts_configured(), "there is no snapshot of {what}");
        let make = time(200, async || plugin.make_instance().await).await?;
        report.add(&format!("{what} made from a snapshot and dropped"), make, "us", goal);
    }
    Ok(())
}

/// How much more than its limit of CPU time an endless loop gets.
async fn loops(sandbox: &Sandbox, report: &mut Report) -> anyhow::Result<()> {
    for (limit_ms, rounds) in [(50, BATCHES), (100, BATCHES), (500, BATCHES / 4)] {
        let limit = Duration::from_millis(limit_ms);
        let component = std::fs::read(component("loops"))?;
        let limits = Limits { cpu: limit, wall: Duration::from_secs(60), ..Limits::default() };
        let plugin = sandbox.load(PluginSpec { limits, ..PluginSpec::new("loops", component) })?;
        let messages = [Message::text("m0", Role::User, "loop")];
        let mut over: f64 = 0.0;
        for _ in 0..rounds {
            let before = thread_us()?;
            anyhow::ensure!(inspect(&plugin, &context(0), &messages).await.is_err(), "a loop had an end");
            over = over.max((thread_us()? - before) / 1e3 - limit.as_secs_f64() * 1e3);
        }
        report.add(
            &format!("an endless loop, past its limit of {limit_ms} ms of CPU, at most"),
            over,
            "ms",
            Some(10.0),
        );
    }
    Ok(())
}

/// How much longer than its limit of wall time an endless loop goes on, while its thread has the events of a stream to ask
/// `guard` about.
async fn loops_beside_a_stream(sandbox: &Sandbox, guard: &Plugin, report: &mut Report) -> anyhow::Result<()> {
    let limit = Duration::from_millis(200);
    let limits = Limits { cpu: Duration::from_secs(60), wall: limit, ..Limits::default() };
    let plugin = sandbox.load(PluginSpec { limits, ..PluginSpec::new("loops", std::fs::read(component("loops"))?) })?;
    let asked = |text| [Message::text("m0", Role::User, text)];
    let rounds = async {
        let mut over = Duration::ZERO;
        for _ in 0..BATCHES {
            // Leaves an instance, which is made in no call's time.
            inspect(&plugin, &context(0), &asked("go on")).await?;
            let began = Instant::now();
            anyhow::ensure!(inspect(&plugin, &context(0), &asked("loop")).await.is_err(), "a loop had an end");
            over = over.max(began.elapsed().saturating_sub(limit));
        }
        anyhow::Ok(over)
    };
    let events = async {
        loop {
            if let Err(error) = window(guard).await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let over: Duration = tokio::select! {
        over = rounds => over?,
        error = events => return Err(error),
    };
    let figure = "an endless loop, past a wall limit of 200 ms, beside a stream, at most";
    report.add(figure, over.as_secs_f64() * 1e3, "ms", Some(10.0));
    Ok(())
}

/// An operator's words are a table that `configure` builds: what a fresh instance and its first call take, as those do of
/// whose requests nothing is kept.
async fn many_words(sandbox: &Sandbox, report: &mut Report) -> anyhow::Result<()> {
    let words: Vec<String> = (0..5_000).map(|n| format!("word{n}x{}", n * 7919)).collect();
    let config = serde_json::json!({"words": words, "action": "block"});
    let prompt = prompt(64);
    let mute = CallContext { retention: Retention::Nothing, ..context(0) };
    for (how, snapshot, calls) in
        [("configured", Snapshot::Never, 5), ("from a snapshot, as by default", Snapshot::WhereSound, 100)]
    {
        let component = std::fs::read(component("word-guard"))?;
        let limits = Limits { wall: Duration::from_secs(60), ..Limits::default() };
        let config = config.clone();
        let plugin =
            sandbox.load(PluginSpec { config, limits, snapshot, ..PluginSpec::new("word-guard", component) })?;
        anyhow::ensure!(
            plugin.starts_configured() == (snapshot != Snapshot::Never),
            "there is no snapshot of word-guard"
        );
        let call = time(calls, async || inspect(&plugin, &mute, &prompt).await).await?;
        report.add(&format!("word-guard of 5,000 words, a fresh instance's call: {how}"), call, "us", None);
    }
    Ok(())
}

/// What each of as many instances takes that come after as many others, which fill what room the heap had. Each tenant has one of
/// its own. What it gives is what they live in: they go on to take what room there is.
async fn memory(name: &str, snapshot: Snapshot, report: &mut Report) -> anyhow::Result<(Sandbox, Arc<Plugin>)> {
    let (sandbox, prompt) = (sandbox()?, prompt(64));
    let plugin = sandbox.load(PluginSpec { snapshot, ..spec(name)? })?;
    let how = if plugin.starts_configured() { "from a snapshot" } else { "configured" };
    for tenant in 0..INSTANCES {
        inspect(&plugin, &context(tenant), &prompt).await?;
    }
    let (own, mapped) = (own_kib()?, mapped_kib()?);
    for tenant in INSTANCES..2 * INSTANCES {
        inspect(&plugin, &context(tenant), &prompt).await?;
    }
    let usage = sandbox.usage();
    anyhow::ensure!(usage.instances >= 2 * INSTANCES, "only {} instances are live", usage.instances);
    let each = |before: f64, after: f64| (after - before) / INSTANCES as f64;
    let what = format!("a live instance of `{name}`, {how}, each of {INSTANCES} more");
    report.add(
        &format!("{what}: memory, pages that they share counted once"),
        each(own, own_kib()?),
        "KiB",
        Some(40.0),
    );
    report.add(&format!("{what}: counted by each that maps them"), each(mapped, mapped_kib()?), "KiB", None);
    Ok((sandbox, plugin))
}

fn load(sandbox: &Sandbox, name: &str) -> anyhow::Result<Arc<Plugin>> {
    Ok(sandbox.load(spec(name)?)?)
}

fn spec(name: &str) -> anyhow::Result<PluginSpec> {
    let file = component(name);
    let component = std::fs::read(&file).with_context(|| file.display().to_string())?;
    let limits = Limits { cpu: Duration::from_secs(1), wall: Duration::from_secs(60), ..Limits::default() };
    Ok(PluginSpec { limits, ..PluginSpec::new(name, component) })
}

/// A shipped plugin, or a guest of the tests.
fn component(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shipped = root.join(format!("plugins/dist/{name}.wasm"));
    if shipped.exists() { shipped } else { root.join(format!("tests/guests/dist/{name}.wasm")) }
}

fn context(tenant: usize) -> CallContext {
    let caller = Arc::new(Caller { tenant: TenantId::new(format!("t{tenant}")), ..Caller::local() });
    let (request_id, retention) = (RequestId::new("bench"), Retention::Kept);
    CallContext {
        request_id,
        caller,
        hops: 0,
        retention,
        deadline: Duration::from_secs(60),
        began: None,
        streaming: true,
    }
}

/// Plain words: the guard has nothing to do but to look.
fn prompt(bytes: usize) -> Vec<Message> {
    let mut text = "Please say a word or two about the tide gates of the northern harbour. ".repeat(bytes / 64 + 1);
    text.truncate(bytes);
    vec![Message::text("m0", Role::User, text)]
}

async fn inspect(plugin: &Plugin, cx: &CallContext, messages: &[Message]) -> anyhow::Result<()> {
    plugin.inspect_prompt(cx, Prompt { messages, tools: &[], params: &[] }).await?;
    Ok(())
}

async fn window(plugin: &Plugin) -> anyhow::Result<()> {
    let window = Window { seq: 3, choice: 0, channel: &Channel::Text, text: EVENT, settled: 0, ending: None };
    plugin.inspect_window(&context(0), &[], window).await?;
    Ok(())
}

/// Microseconds of this thread's CPU for one call; the median of batches.
async fn time<T, E: Into<anyhow::Error>>(calls: u32, call: impl AsyncFn() -> Result<T, E>) -> anyhow::Result<f64> {
    let mut batches = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let before = thread_us()?;
        for _ in 0..calls {
            call().await.map_err(Into::into)?;
        }
        batches.push((thread_us()? - before) / f64::from(calls));
    }
    Ok(median(batches))
}

/// What the kernel charged this thread. It settles that at ticks, milliseconds apart, and when a thread sleeps.
fn thread_us() -> anyhow::Result<f64> {
    std::thread::sleep(Duration::from_nanos(1));
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos: f64 = stat.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanos / 1000.0)
}

/// A page that many places map is one page of memory: each has its part of it.
fn own_kib() -> anyhow::Result<f64> {
    kib("/proc/self/smaps_rollup", "Pss:")
}

/// Such a page counts once for each place.
fn mapped_kib() -> anyhow::Result<f64> {
    kib("/proc/self/status", "VmRSS:")
}

fn kib(file: &str, key: &str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(key)).with_context(|| format!("no {key}"))?;
    Ok(line.split_whitespace().nth(1).with_context(|| format!("no {key}"))?.parse()?)
}
