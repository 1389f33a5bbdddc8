//! `[compute]`: what the own engine computes on.

use anyhow::bail;
use serde::Deserialize;

/// `[compute]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeConfig {
    /// `auto`, `cpu`, `cuda` or `reference`.
    pub backend: BackendConfig,
    /// Compute threads of the CPU; 0 takes one for each core.
    pub threads: usize,
    /// Which CUDA device.
    pub device: usize,
    /// CUDA: the same tokens whatever runs beside a request, at a cost in speed. The CPU always keeps that.
    pub deterministic: bool,
}

impl Default for ComputeConfig {
    fn default() -> Self {
        Self { backend: BackendConfig::Auto, threads: 0, device: 0, deterministic: false }
    }
}

impl ComputeConfig {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.threads > cores {
            bail!("compute.threads is {}, but this machine has {cores} cores; 0 takes one for each", self.threads);
        }
        Ok(())
    }
}

/// `compute.backend`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendConfig {
    /// The best that is there.
    Auto,
    /// The CPU, with its vector units.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// Naive and slow: for comparison.
    Reference,
}
