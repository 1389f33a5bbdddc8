//! Residual add and RMS norm: `cuda/add_rms_norm.cu`.

use super::{OpError, blocks, int, require, require_len};
use crate::driver::{Args, Kernel, Kernels, Launch, Loaded, Ptr, Slice, Stream};
use half::bf16;
use std::sync::Arc;

const OP: &str = "add_rms_norm";
/// 512 threads with 4 pieces of 8 values each.
const MAX_WIDTH: usize = 16384;

/// The argument, as in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AddRmsNormArgs {
    residual: Ptr<f32>,
    delta: Ptr<bf16>,
    weight: Ptr<f32>,
    out: Ptr<bf16>,
    rows: Ptr<i32>,
    width: i32,
    eps: f32,
}

// SAFETY: the fields of `AddRmsNormArgs` in cuda/add_rms_norm.cu.
unsafe impl Args for AddRmsNormArgs {}

const ADD_RMS_NORM: Kernel<AddRmsNormArgs> = Kernel::new("add_rms_norm", 512);

/// The buffers of one norm.
#[derive(Clone, Copy, Debug)]
pub struct NormBuffers {
    /// `[rows, width]`, read and written (only read with `gather`).
    pub residual: Slice<f32>,
    /// `[rows, width]`, added first.
    pub delta: Option<Slice<bf16>>,
    /// `[width]`
    pub weight: Slice<f32>,
    /// `[rows, width]`, or `[count, width]` with `gather`.
    pub out: Slice<bf16>,
}

/// The launcher.
#[derive(Debug)]
pub struct AddRmsNorm {
    kernel: Loaded<AddRmsNormArgs>,
    width: usize,
}

impl AddRmsNorm {
    /// For rows of `width` values: a multiple of 8, at most 16384.
    pub fn new(kernels: &Arc<Kernels>, width: usize) -> Result<Self, OpError> {
        let fits = width.is_multiple_of(8) && (1..=MAX_WIDTH).contains(&width);
        require(OP, fits, || format!("width is {width}, not a multiple of 8 up to {MAX_WIDTH}"))?;
        Ok(Self { kernel: kernels.find(ADD_RMS_NORM)?, width })
    }

    /// Norms the first `rows` rows.
    pub fn launch(&self, stream: &Stream, rows: usize, buffers: &NormBuffers, eps: f32) -> Result<(), OpError> {
        require_len(OP, "residual", &buffers.residual, rows * self.width)?;
        if let Some(delta) = &buffers.delta {
            require_len(OP, "delta", delta, rows * self.width)?;
        }
        self.queue(stream, rows, buffers, Ptr::NULL, eps)
    }

    /// Norms row `gather[i]` into row `i` of the output, for `count` rows; the residual stays as it is.
    pub fn launch_gather(
        &self,
        stream: &Stream,
        (gather, count): (Slice<i32>, usize),
        buffers: &NormBuffers,
        eps: f32,
    ) -> Result<(), OpError> {
        require_len(OP, "gather", &gather, count)?;
        self.queue(stream, count, buffers, gather.ptr(), eps)
    }

    fn queue(
        &self,
        stream: &Stream,
        grid: usize,
        buffers: &NormBuffers,
        rows: Ptr<i32>,
        eps: f32,
    ) -> Result<(), OpError> {
        require_len(OP, "weight", &buffers.weight, self.width)?;
        require_len(OP, "out", &buffers.out, grid * self.width)?;
        let args = AddRmsNormArgs {
            residual: buffers.residual.ptr(),
            delta: buffers.delta.map_or(Ptr::NULL, |d| d.ptr()),
            weight: buffers.weight.ptr(),
            out: buffers.out.ptr(),
            rows,
            width: int(OP, "width", self.width)?,
            eps,
        };
        // SAFETY: the buffers hold the rows; gathered rows are rows of the batch.
        Ok(unsafe { self.kernel.launch(stream, Launch { grid: (blocks(grid), 1), shared_bytes: 0 }, &args) }?)
    }
}
