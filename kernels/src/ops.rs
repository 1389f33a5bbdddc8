//! One launcher for each kernel: its shape contract, checked once, and the launch.
//!
//! What is fixed for a model is checked by `new`, what varies by step by `launch`; a message names both sides. What
//! the device reads as indices (tokens, positions, slots, tables) was checked by `device::check` before it was
//! uploaded. Shapes, formulas and geometry stand in the `.cu` of the same name.

pub mod add_rms_norm;
pub mod attend;
pub mod attend_plan;
pub mod embed;
pub mod gated_activation;
pub mod rope_cache;
pub mod sample;

pub use add_rms_norm::AddRmsNorm;
pub use attend::Attend;
pub use attend_plan::{AttendPlan, Piece, PlanLimits};
pub use embed::Embed;
pub use gated_activation::GatedActivation;
pub use rope_cache::RopeCache;
pub use sample::Sample;

use crate::driver::Slice;
use crate::error::CudaError;
use tidegate_device::DeviceError;

/// Positions of a cache block; the kernels are built for it.
pub const BLOCK_TOKENS: usize = 16;

/// Why a launcher refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// A shape that the kernel is not made for, or buffers that do not fit each other.
    #[error("{op}: {what}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Both sides.
        what: String,
    },
    /// The driver's.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl From<OpError> for DeviceError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Shape { .. } => Self::Unsupported { backend: "cuda", what: error.to_string() },
            OpError::Cuda(error) => error.into(),
        }
    }
}

/// Refuses with `what` unless `ok`.
fn require(op: &'static str, ok: bool, what: impl FnOnce() -> String) -> Result<(), OpError> {
    if ok { Ok(()) } else { Err(OpError::Shape { op, what: what() }) }
}

/// Refuses a buffer that holds fewer than `len` elements.
fn require_len<T>(op: &'static str, name: &str, slice: &Slice<T>, len: usize) -> Result<(), OpError> {
    require(op, slice.len() >= len, || format!("{name} has {} elements where {len} are needed", slice.len()))
}

/// A size as kernels take it.
fn int(op: &'static str, name: &str, n: usize) -> Result<i32, OpError> {
    i32::try_from(n).map_err(|_| OpError::Shape { op, what: format!("{name} is {n}, above 2^31") })
}

/// Blocks of a grid.
fn blocks(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
