//! Measures the CUDA backend on whatever device there is; `tests/gpu/run.sh` calls it and makes a table of its rows.
//!
//! ```text
//! gpu_bench device                              name and memory
//! gpu_bench checkpoint CONFIG DIR TOKENIZER     random weights of that config, as a folder to serve
//! gpu_bench rates BYTES SIZE                    bandwidth of a copy; rate of a SIZE x SIZE x SIZE bf16 product
//! gpu_bench kernels CONFIG NAME BATCHES CONTEXT PROMPTS
//! gpu_bench steps DIR NAME BATCHES CONTEXT PROMPTS [--deterministic]
//! gpu_bench host DIR NAME SEQS STEPS            what the host does in a step, beside waiting
//! ```
//! One line of JSON for each figure, as soon as it is known. `TIDEGATE_GPU_CACHE` is where compiled kernels are kept.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::print_stderr, reason = "a benchmark")]

mod checkpoint;
mod host;
mod kernels;
mod rates;
mod row;
mod steps;

use std::path::Path;
use std::process::ExitCode;
use tidegate_kernels::blas::Algorithms;
use tidegate_kernels::compile;
use tidegate_kernels::driver::Context;
use tidegate_kernels::{CudaBackend, CudaOptions};

/// Why a figure is not there; `run.sh` writes it into the table.
pub type Failure = Box<dyn std::error::Error>;

/// The backend with the kernels that earlier calls compiled.
fn open(algorithms: Algorithms) -> Result<CudaBackend, Failure> {
    let cache = std::env::var_os("TIDEGATE_GPU_CACHE").map(Into::into);
    Ok(CudaBackend::open(CudaOptions { cache, algorithms, ..CudaOptions::default() })?)
}

/// The kernels for a device, from the same cache.
fn images(device: &Context) -> Result<Vec<Vec<u8>>, Failure> {
    let cache = std::env::var_os("TIDEGATE_GPU_CACHE");
    Ok(compile::images(&compile::arch_name(device.capability()?), cache.as_deref().map(Path::new))?)
}

/// Numbers separated by commas.
fn list(text: &str) -> Result<Vec<usize>, Failure> {
    text.split(',').map(|number| number.parse().map_err(|_| format!("`{number}` is not a number").into())).collect()
}

fn device() -> Result<(), Failure> {
    open(Algorithms::Best)?;
    let context = Context::open(0)?;
    let (_, total) = context.memory()?;
    row::print(&serde_json::json!({"device": context.name()?, "memory_mib": total >> 20}));
    Ok(())
}

fn run(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["device"] => device(),
        ["checkpoint", config, folder, tokenizer] => {
            checkpoint::write(Path::new(config), Path::new(folder), Path::new(tokenizer))
        }
        ["rates", bytes, size] => rates::measure(bytes.parse()?, size.parse()?),
        ["steps", folder, name, batches, context, prompts, rest @ ..] => {
            let algorithms = if rest == ["--deterministic"] { Algorithms::Fixed } else { Algorithms::Best };
            let work = steps::Work { batches: list(batches)?, context: context.parse()?, prompts: list(prompts)? };
            steps::measure(Path::new(folder), name, &work, algorithms)
        }
        ["kernels", config, name, batches, context, prompts] => {
            kernels::measure(Path::new(config), name, &list(batches)?, context.parse()?, &list(prompts)?)
        }
        ["host", folder, name, seqs, steps] => host::measure(Path::new(folder), name, seqs.parse()?, steps.parse()?),
        _ => Err("usage: see the head of kernels/examples/gpu_bench/main.rs".into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
