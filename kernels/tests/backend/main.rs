//! The whole backend, through the stand-in libraries or on a device: against the reference, and behind the engine.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod engine;
mod executor;
#[path = "../../../host/device/tests/support/model.rs"]
mod model;
mod tuning;

use std::sync::Arc;
use tidegate_emu::device;
use tidegate_kernels::{CudaBackend, CudaOptions};

/// `None` where there is no compiler.
fn backend() -> Option<Arc<CudaBackend>> {
    device()?;
    Some(Arc::new(CudaBackend::open(CudaOptions::default()).unwrap()))
}
