//! The seam between a model and the hardware that runs it.
//!
//! A model is data: a [`Program`] of fused nodes over named weights. A [`Backend`] turns it into an
//! [`Executor`] that computes batches. `reference` is naive and obvious: the truth that every other backend is
//! tested against; `cpu` is fast. Read next: [`program`], then [`executor`].

// Unit tests share `tests/support` with the integration tests, which name the crate.
#[cfg(test)]
extern crate self as tidegate_device;

pub mod check;
pub mod cpu;
pub mod executor;
pub mod fed;
pub mod mapped;
pub mod program;
pub mod reference;
pub mod sampler;
pub mod weights;

pub use cpu::{CacheElem, CpuBackend, CpuOptions, Isa};
pub use executor::{Backend, Batch, BlockId, DeviceError, Drawn, Executor, Limits, SampleRow, Segment, StepLimits};
pub use fed::DrawQueue;
pub use mapped::MappedFile;
pub use program::{Activation, Dims, Node, Program, RopeTable, Slot, SlotId, WeightId, WeightSpec};
pub use reference::ReferenceBackend;
pub use sampler::{SampleError, Sampler, check_row};
pub use weights::{DType, TensorView, WeightSource};
