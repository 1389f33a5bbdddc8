//! Time, coarse.

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::base::tidegate::plugin::clock as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake as imp;

/// Milliseconds since 1970.
pub fn now_unix_ms() -> u64 {
    imp::now_unix_ms()
}

/// Milliseconds since some moment in the past; never goes back.
pub fn monotonic_ms() -> u64 {
    imp::monotonic_ms()
}
