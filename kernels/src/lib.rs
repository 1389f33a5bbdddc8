//! The CUDA backend's kernels with their safe launchers, over a thin layer on the driver.
//!
//! `cuda/*.cu` are the kernels, one file for each operation; [`ops`] has a launcher for each, which checks the shapes
//! and names them when they do not fit. [`driver`] is what is needed of libcuda, behind [`probe`]: nothing here may
//! be called before it has found a driver, since cudarc panics on a library or a symbol that is missing.
//! Read next: `kernels/README.md`, then one `.cu` with its launcher.
#![allow(unsafe_code, reason = "calls into the driver; every block says why it holds")]

pub mod backend;
pub mod blas;
pub mod compile;
pub mod driver;
pub mod error;
mod executor;
mod kept;
pub mod ops;
pub mod probe;

pub use backend::{CudaBackend, CudaOptions, Unavailable};
pub use error::CudaError;
