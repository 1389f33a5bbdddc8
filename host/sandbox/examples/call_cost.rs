//! Measures what a call costs: `cargo run --release -p tidegate-sandbox --example call_cost [PART OF A ROW'S NAME]`.
//!
//! The guest is `honest` of the sandbox's tests, which does next to nothing, so what is measured is the host's path:
//! pool, limits, the crossing itself, the check of the result. One thread; CPU time where the system tells it, so
//! that other programs' work does not count; medians over batches. Nothing is asserted.
#![allow(clippy::print_stdout, reason = "a program that prints its figures")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{CallContext, CallError, Channel, Limits, Prompt, Window};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{Caller, Message, RequestId, Retention, Role};

const BATCHES: usize = 31;
const CALLS: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/honest.wasm");
    let component: Arc<[u8]> = std::fs::read(component)?.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let load = |config: SandboxConfig| -> Result<Arc<Plugin>, Box<dyn Error>> {
        let limits = Limits { wall: Duration::from_secs(10), ..Limits::default() };
        Ok(Sandbox::new(config)?.load(PluginSpec { limits, ..PluginSpec::new("honest", component.clone()) })?)
    };
    let started = Instant::now();
    let warm = load(SandboxConfig::default())?;
    println!("{:<44} {:>9.1} ms", "load, compiled", started.elapsed().as_secs_f64() * 1e3);
    let cache_dir = std::env::temp_dir().join(format!("tidegate-call-cost-{}", std::process::id()));
    let cached = || SandboxConfig { cache_dir: Some(cache_dir.clone()), ..SandboxConfig::default() };
    load(cached())?;
    let started = Instant::now();
    load(cached())?;
    println!("{:<44} {:>9.1} ms", "load, from the cache", started.elapsed().as_secs_f64() * 1e3);
    std::fs::remove_dir_all(&cache_dir)?;

    let fresh = load(SandboxConfig { recycle_after_calls: 1, ..SandboxConfig::default() })?;
    let short = "The tide comes in.";
    let long = "The tide comes in. ".repeat(27);
    let prompt = "A question about the tides and the moon. ".repeat(100);
    runtime.block_on(async {
        show("inspect_window, 18 bytes, warm", async || window(&warm, short).await).await?;
        show("inspect_window, 513 bytes, warm", async || window(&warm, &long).await).await?;
        show("inspect_prompt, 4100 bytes, warm", async || inspect(&warm, &prompt).await).await?;
        show("inspect_window, 18 bytes, new instance each", async || window(&fresh, short).await).await
    })?;
    Ok(())
}

fn context() -> CallContext {
    thread_local! {
        static CALLER: Arc<Caller> = Arc::new(Caller::local());
        static ID: RequestId = RequestId::new("req-0123456789abcdef");
    }
    let (caller, request_id) = (CALLER.with(Arc::clone), ID.with(RequestId::clone));
    let retention = Retention::Kept;
    CallContext {
        request_id,
        caller,
        hops: 0,
        retention,
        deadline: Duration::from_secs(10),
        began: None,
        streaming: true,
    }
}

async fn window(plugin: &Plugin, text: &str) -> Result<(), CallError> {
    let window = Window { seq: 0, choice: 0, channel: &Channel::Text, text, settled: 4, ending: None };
    plugin.inspect_window(&context(), &[1], window).await.map(|_| ())
}

async fn inspect(plugin: &Plugin, text: &str) -> Result<(), CallError> {
    let messages = [Message::text("m0", Role::User, text)];
    let prompt = Prompt { messages: &messages, tools: &[], params: &[] };
    plugin.inspect_prompt(&context(), prompt).await.map(|_| ())
}

async fn show(what: &str, call: impl AsyncFn() -> Result<(), CallError>) -> Result<(), CallError> {
    if std::env::args().nth(1).is_some_and(|wanted| !what.contains(&wanted)) {
        return Ok(());
    }
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let before = spent();
        for _ in 0..CALLS {
            call().await?;
        }
        batches.push((spent() - before).as_secs_f64() * 1e6 / f64::from(CALLS));
    }
    batches.sort_by(f64::total_cmp);
    println!("{what:<44} {:>9.2} us (best {:.2})", batches[BATCHES / 2], batches[0]);
    Ok(())
}

/// CPU time of this thread on Linux, else time.
fn spent() -> Duration {
    thread_local! {
        static START: Instant = Instant::now();
    }
    let on_cpu = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = on_cpu.and_then(|text| text.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| START.with(Instant::elapsed), Duration::from_nanos)
}
