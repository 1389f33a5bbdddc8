//! Figures as lines of JSON.

use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// A line, at once: what was measured stays if the rest is cut off.
pub fn print(row: &Value) {
    println!("{row}");
    // A reader that is gone has no use for the rest either.
    let _ = std::io::stdout().flush();
}

/// The median of some times, with the shortest and the longest beside it, in milliseconds.
pub fn times(figure: &str, model: &str, size: usize, context: usize, mut all: Vec<Duration>) {
    all.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return };
    print(&json!({
        "figure": figure, "model": model, "size": size, "context": context, "by": "tidegate", "unit": "ms",
        "value": ms(all[all.len() / 2]), "least": ms(*first), "most": ms(*last), "samples": all.len(),
    }));
}

/// A figure that was not measured, and why.
pub fn skipped(figure: &str, model: &str, size: usize, context: usize, why: &str) {
    print(&json!({
        "figure": figure, "model": model, "size": size, "context": context, "by": "tidegate", "skipped": why,
    }));
}
