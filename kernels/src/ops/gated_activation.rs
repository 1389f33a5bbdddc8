//! The gate of an MLP: `cuda/gated_activation.cu`.

use super::{OpError, blocks, int, require, require_len};
use crate::driver::{Args, Kernel, Kernels, Launch, Loaded, Ptr, Slice, Stream};
use half::bf16;
use std::sync::Arc;
use tidegate_device::Activation;

const OP: &str = "gated_activation";
/// Values of a block of threads in one turn: 256 threads, 8 each.
const BLOCK_VALUES: usize = 2048;
/// More blocks than this take turns.
const MAX_BLOCKS: usize = 65536;

/// The argument, as in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedActivationArgs {
    gate_up: Ptr<bf16>,
    out: Ptr<bf16>,
    rows: i32,
    width: i32,
}

// SAFETY: the fields of `GatedActivationArgs` in cuda/gated_activation.cu.
unsafe impl Args for GatedActivationArgs {}

/// The launcher.
#[derive(Debug)]
pub struct GatedActivation {
    kernel: Loaded<GatedActivationArgs>,
    width: usize,
}

impl GatedActivation {
    /// For outputs of `width` values, a multiple of 8.
    pub fn new(kernels: &Arc<Kernels>, act: Activation, width: usize) -> Result<Self, OpError> {
        require(OP, width.is_multiple_of(8), || format!("width is {width}, not a multiple of 8"))?;
        let name = match act {
            Activation::Silu => "silu_mul",
            Activation::GeluTanh => "gelu_mul",
        };
        Ok(Self { kernel: kernels.find(Kernel::new(name, 256))?, width })
    }

    /// `out[r] = act(gate_up[r][..width]) * gate_up[r][width..]` for `rows` rows.
    pub fn launch(&self, stream: &Stream, rows: usize, gate_up: Slice<bf16>, out: Slice<bf16>) -> Result<(), OpError> {
        require_len(OP, "gate_up", &gate_up, rows * 2 * self.width)?;
        require_len(OP, "out", &out, rows * self.width)?;
        let args = GatedActivationArgs {
            gate_up: gate_up.ptr(),
            out: out.ptr(),
            rows: int(OP, "rows", rows)?,
            width: int(OP, "width", self.width)?,
        };
        let grid = (rows * self.width).div_ceil(BLOCK_VALUES).min(MAX_BLOCKS);
        // SAFETY: the buffers hold the rows.
        Ok(unsafe { self.kernel.launch(stream, Launch { grid: (blocks(grid), 1), shared_bytes: 0 }, &args) }?)
    }
}
