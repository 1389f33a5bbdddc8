//! What the guard's own work costs: its code compiled for this machine, in no sandbox. `cargo xtask bench plugins` runs it
//! and prints the figures beside the component's.
//!
//! The text comes on standard input; `native prompt` asks about it as a prompt, `native event` as an event of a
//! stream. It prints microseconds of this thread's CPU for one call, the median of batches.
#![allow(clippy::print_stdout)]

use pii_guard::PiiGuard;
use std::hint::black_box;
use std::io::Read;
use std::time::Duration;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::screen::ScreenState;
use tidegate_plugin_sdk::{
    Channel, Context, Error, Inspection, Message, Prompt, PromptGuard, Role, StreamGuard, Verdict, Window,
};

const BATCHES: usize = 21;
const CALLS: u32 = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let guard: PiiGuard = configure("").map_err(|error| format!("no guard without a config: {error}"))?;
    let us = match std::env::args().nth(1).as_deref() {
        Some("prompt") => time(|| prompt(&guard, &text))?,
        Some("event") => time(|| event(&guard, &text))?,
        _ => return Err("usage: native prompt|event, with the text on standard input".into()),
    };
    println!("{us}");
    Ok(())
}

/// The component is handed a copy of the text as well.
fn prompt(guard: &PiiGuard, text: &str) -> Result<Verdict, Error> {
    let prompt = Prompt { messages: vec![Message::text("m0", Role::User, text)], ..Prompt::default() };
    guard.inspect_prompt(&Context::default(), black_box(&prompt))
}

fn event(guard: &PiiGuard, text: &str) -> Result<Inspection, Error> {
    let window = Window {
        seq: 3,
        choice: 0,
        channel: Channel::Text,
        text: text.to_owned(),
        settled: 0,
        ending: None,
        attrs: Vec::new(),
    };
    guard.inspect_window(&Context::default(), &mut ScreenState::default(), black_box(&window))
}

fn time<T>(call: impl Fn() -> Result<T, Error>) -> Result<f64, Box<dyn std::error::Error>> {
    let mut batches = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let before = thread_us()?;
        for _ in 0..CALLS {
            black_box(call()).map_err(|error| format!("the guard failed: {error}"))?;
        }
        batches.push((thread_us()? - before) / f64::from(CALLS));
    }
    batches.sort_by(f64::total_cmp);
    Ok(batches[BATCHES / 2])
}

/// What the kernel charged this thread. It settles that at ticks, milliseconds apart, and when a thread sleeps.
fn thread_us() -> Result<f64, Box<dyn std::error::Error>> {
    std::thread::sleep(Duration::from_nanos(1));
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split(' ').next().unwrap_or_default().parse::<f64>()? / 1000.0)
}
