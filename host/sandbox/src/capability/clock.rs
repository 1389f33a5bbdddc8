//! `clock`: coarse time, in milliseconds, so that it is of little use for measuring the host.

use crate::bindings::tidegate::plugin::clock::Host;
use crate::state::HostState;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tidegate_types::clock::unix_ms;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Host for HostState {
    fn now_unix_ms(&mut self) -> wasmtime::Result<u64> {
        self.use_capability("clock.now-unix-ms");
        if let Some(fixed) = &self.blueprint.fixed {
            return Ok(fixed.now_unix_ms.saturating_add(fixed.passed_ms.load(Ordering::Relaxed)));
        }
        Ok(unix_ms())
    }

    fn monotonic_ms(&mut self) -> wasmtime::Result<u64> {
        self.use_capability("clock.monotonic-ms");
        if let Some(fixed) = &self.blueprint.fixed {
            return Ok(fixed.passed_ms.load(Ordering::Relaxed));
        }
        Ok(START.elapsed().as_millis() as u64)
    }
}
