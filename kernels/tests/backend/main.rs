//! The whole backend, through the stand-in libraries or on a device: against the reference, and behind the engine.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod accuracy;
mod deterministic;
mod engine;
mod executor;
#[path = "../../../host/device/tests/support/model.rs"]
mod model;
mod products;
mod tuning;
mod vectors;

use std::process::Command;
use std::sync::Arc;
use tidegate_emu::device;
use tidegate_kernels::blas::Algorithms;
use tidegate_kernels::{CudaBackend, CudaOptions};

/// `None` where there is no compiler.
fn backend() -> Option<Arc<CudaBackend>> {
    backend_with(Algorithms::Best)
}

fn backend_with(algorithms: Algorithms) -> Option<Arc<CudaBackend>> {
    device()?;
    Some(Arc::new(CudaBackend::open(CudaOptions { algorithms, ..CudaOptions::default() }).unwrap()))
}

/// Whether this process runs nothing but the test of that name. If not, one is started that does: what it sets in the
/// stand-ins is set for a whole process.
fn is_alone(name: &str) -> bool {
    const ALONE: &str = "TIDEGATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args([name, "--exact"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}
