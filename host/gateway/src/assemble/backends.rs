//! What models compute on: opened once, chosen for each model, with the reason where `auto` took the CPU.

use crate::config::{BackendConfig, ComputeConfig};
use std::path::Path;
use std::sync::Arc;
use tidegate_device::cpu::{CpuBackend, CpuOptions};
use tidegate_device::reference::ReferenceBackend;
use tidegate_device::{Backend, Program};
use tidegate_kernels::blas::Algorithms;
use tidegate_kernels::probe::probe;
use tidegate_kernels::{CudaBackend, CudaOptions};

/// The backends that the config allows.
pub(super) struct Backends {
    /// Also what `auto` falls back to.
    host: Arc<dyn Backend>,
    cuda: Cuda,
}

enum Cuda {
    /// The config asks for another backend.
    Unwanted,
    /// `auto` found none; why, in one line.
    Missing(String),
    /// The boolean: this or nothing.
    Found(Arc<CudaBackend>, bool),
}

/// What a model computes on.
pub(super) struct Chosen {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) kind: BackendConfig,
    /// One line for the operator.
    pub(super) fact: String,
}

impl Backends {
    /// Opens what is wanted. Only a backend that was asked for by name must be there.
    pub(super) fn open(compute: &ComputeConfig, cache: &Path) -> anyhow::Result<Self> {
        let algorithms = if compute.deterministic { Algorithms::Fixed } else { Algorithms::Best };
        let cache = Some(cache.join("cuda"));
        let options = CudaOptions { device: compute.device, cache, algorithms, ..CudaOptions::default() };
        let cuda = match compute.backend {
            BackendConfig::Cpu | BackendConfig::Reference => Cuda::Unwanted,
            BackendConfig::Cuda => {
                let named = |why| anyhow::anyhow!("compute.backend is \"cuda\": {why}");
                Cuda::Found(Arc::new(CudaBackend::open(options).map_err(named)?), true)
            }
            BackendConfig::Auto => match CudaBackend::open(options) {
                Ok(found) => Cuda::Found(Arc::new(found), false),
                Err(why) => Cuda::Missing(first_line(&why)),
            },
        };
        let host: Arc<dyn Backend> = match compute.backend {
            BackendConfig::Reference => Arc::new(ReferenceBackend),
            _ => Arc::new(CpuBackend::new(cpu_options(compute))?),
        };
        Ok(Self { host, cuda })
    }

    /// Whether models may lie in a device's memory.
    pub(super) fn has_device(&self) -> bool {
        matches!(self.cuda, Cuda::Found(..))
    }

    /// The backend of one model.
    pub(super) fn choose(&self, program: &Program) -> Chosen {
        let why_not = match &self.cuda {
            Cuda::Unwanted => None,
            Cuda::Missing(why) => Some(why.clone()),
            Cuda::Found(cuda, required) => match cuda.check(program) {
                Err(why) if !required => Some(first_line(&why)),
                // Loading says the same again, if it cannot be.
                _ => return Chosen::new(cuda.clone(), None),
            },
        };
        Chosen::new(Arc::clone(&self.host), why_not)
    }
}

impl Chosen {
    fn new(backend: Arc<dyn Backend>, why_not_cuda: Option<String>) -> Self {
        let kind = match backend.name() {
            "cuda" => BackendConfig::Cuda,
            "reference" => BackendConfig::Reference,
            _ => BackendConfig::Cpu,
        };
        let mut fact = format!("{} ({})", backend.name(), backend.describe());
        if let Some(why) = why_not_cuda {
            fact = format!("{fact}; not cuda: {why}");
        }
        Self { backend, kind, fact }
    }
}

/// For `tidegate check`: a line where the backend that the config asks for by name is not on this machine.
pub(super) fn missing(compute: &ComputeConfig) -> Option<String> {
    if compute.backend != BackendConfig::Cuda {
        return None;
    }
    let why = match probe() {
        Ok(count) if compute.device < count => return None,
        Ok(count) => format!("compute.device is {}, and the driver finds {count}, counted from 0", compute.device),
        Err(why) => why.to_string(),
    };
    Some(format!("compute   \"cuda\" of compute.backend is not here, and a server would not start without: {why}"))
}

fn cpu_options(compute: &ComputeConfig) -> CpuOptions {
    let mut options = CpuOptions::default();
    if compute.threads > 0 {
        options.threads = compute.threads;
    }
    options
}

/// A kernel that does not compile says so at length.
fn first_line(why: &dyn std::fmt::Display) -> String {
    why.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On machines without a driver; with one, `auto` takes it.
    #[test]
    fn without_a_driver_auto_takes_the_cpu_and_says_why_in_one_line() {
        let cache = tempfile::tempdir().unwrap();
        if CudaBackend::open(CudaOptions::default()).is_ok() {
            return tidegate_skipped::skipped!("this machine has a device");
        }
        let open = |backend| Backends::open(&ComputeConfig { backend, ..ComputeConfig::default() }, cache.path());
        let fact = |backends: &Backends| match &backends.cuda {
            Cuda::Missing(why) => Chosen::new(Arc::clone(&backends.host), Some(why.clone())).fact,
            _ => panic!("auto found a device"),
        };
        let fact = fact(&open(BackendConfig::Auto).unwrap());
        assert!(fact.starts_with("cpu (") && fact.contains("; not cuda: ") && !fact.contains('\n'), "{fact}");
        let refused = open(BackendConfig::Cuda).err().unwrap().to_string();
        assert!(refused.starts_with("compute.backend is \"cuda\": "), "{refused}");
        let said = |backend| missing(&ComputeConfig { backend, ..ComputeConfig::default() });
        assert!(said(BackendConfig::Cuda).is_some_and(|said| said.contains("is not here")));
        assert_eq!(said(BackendConfig::Auto), None);
    }
}
