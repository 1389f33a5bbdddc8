//! Counters and histograms. A name must be declared in the descriptor; labels are the host's.

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::base::tidegate::plugin::metrics as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake as imp;

/// Adds to a counter.
pub fn count(name: &str, delta: u64) {
    imp::count(name, delta);
}

/// Adds a value to a histogram.
pub fn observe(name: &str, value: f64) {
    imp::observe(name, value);
}
