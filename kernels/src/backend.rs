//! The backend `cuda`: what was found, and executors on it.
//!
//! Opening it answers at once why there is none (no driver, no device, no compiler, ...), so that `auto` can say so in
//! one line and take the CPU. The device's context belongs to the executors: when the last of them goes, a lost device
//! is given back with it, and a new executor starts on a fresh context.

use crate::blas::{self, Algorithms};
use crate::compile::{self, CompileError};
use crate::driver::{Context, Kernels};
use crate::error::CudaError;
use crate::executor::{self, CudaExecutor};
use crate::probe::{NoCuda, probe};
use half::bf16;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate_device::{Backend, DeviceError, Executor, Limits, Program, StepLimits, WeightSource};

/// Multiprocessors' least compute capability: bf16 matrix instructions and asynchronous copies.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// One part in so many of the device's memory stays free.
const RESERVE: usize = 20;

/// How to compute.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Which device.
    pub device: usize,
    /// Where compiled kernels are kept.
    pub cache: Option<PathBuf>,
    /// Whether steps that only decode are recorded once for each number of sequences and then played by one call.
    pub graphs: bool,
    /// Which algorithms products take; `Fixed` makes a row's result independent of its batch.
    pub algorithms: Algorithms,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { device: 0, cache: None, graphs: true, algorithms: Algorithms::Best }
    }
}

/// Why this backend cannot be used; one line, but for a kernel that does not compile.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// A driver or a library is missing.
    #[error(transparent)]
    NoCuda(#[from] NoCuda),
    /// There are fewer devices.
    #[error("device {device} was asked for; there are {count}")]
    Device {
        /// Which.
        device: usize,
        /// How many there are.
        count: usize,
    },
    /// The device cannot run the kernels.
    #[error("{name} has compute capability {}.{}; 8.0 is needed", .capability.0, .capability.1)]
    Capability {
        /// The device.
        name: String,
        /// What it has.
        capability: (i32, i32),
    },
    /// The kernels cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refused a call.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The backend.
#[derive(Debug)]
pub struct CudaBackend {
    options: CudaOptions,
    images: Vec<Vec<u8>>,
    description: String,
}

impl CudaBackend {
    /// Looks for everything that is needed, and compiles the kernels or finds them in the cache.
    pub fn open(options: CudaOptions) -> Result<Self, Unavailable> {
        let count = probe()?;
        let device = options.device;
        if device >= count {
            return Err(Unavailable::Device { device, count });
        }
        blas::probe()?;
        let context = Context::open(device)?;
        let (name, capability) = (context.name()?, context.capability()?);
        if capability < LEAST_CAPABILITY {
            return Err(Unavailable::Capability { name, capability });
        }
        let arch = compile::arch_name(capability);
        let images = compile::images(&arch, options.cache.as_deref())?;
        // Kernels that this device cannot load are found out now and not with the first model.
        Kernels::load(&context, &images)?;
        let (_, total) = context.memory()?;
        let description = format!("{name}, {arch}, {} MiB", total >> 20);
        Ok(Self { options, images, description })
    }

    /// Whether the kernels are made for this model; without loading it.
    pub fn check(&self, program: &Program) -> Result<(), DeviceError> {
        let context = Context::open(self.options.device)?;
        executor::check(&Kernels::load(&context, &self.images)?, program)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn kv_elem_bytes(&self, _program: &Program) -> usize {
        size_of::<bf16>()
    }

    fn cache_room(&self, program: &Program, limits: &StepLimits, sharers: usize) -> Result<Option<usize>, DeviceError> {
        let (free, total) = Context::open(self.options.device)?.memory()?;
        // For the driver's own needs: recorded graphs, images of kernels, a library's handle.
        let share = free.saturating_sub(total / RESERVE) / sharers.max(1);
        Ok(Some(share.saturating_sub(executor::bytes_beside_cache(program, limits)?)))
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, DeviceError> {
        let context = Context::open(self.options.device)?;
        let kernels = Kernels::load(&context, &self.images)?;
        let executor = CudaExecutor::new(&context, &kernels, &self.options, program, weights, limits)?;
        Ok(Box::new(executor))
    }
}
