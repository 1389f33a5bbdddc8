//! Token ids to rows of the residual stream: `cuda/embed.cu`.

use super::{OpError, blocks, int, require, require_len};
use crate::driver::{Args, Kernel, Kernels, Launch, Loaded, Ptr, Slice, Stream};
use half::bf16;
use std::sync::Arc;

const OP: &str = "embed";

/// The argument, as in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedArgs {
    out: Ptr<f32>,
    table: Ptr<bf16>,
    tokens: Ptr<i32>,
    drawn: Ptr<i32>,
    hidden: i32,
}

// SAFETY: the fields of `EmbedArgs` in cuda/embed.cu.
unsafe impl Args for EmbedArgs {}

const EMBED: Kernel<EmbedArgs> = Kernel::new("embed", 256);

/// The launcher.
#[derive(Debug)]
pub struct Embed {
    kernel: Loaded<EmbedArgs>,
    hidden: usize,
}

impl Embed {
    /// For rows of `hidden` values, a multiple of 8.
    pub fn new(kernels: &Arc<Kernels>, hidden: usize) -> Result<Self, OpError> {
        require(OP, hidden.is_multiple_of(8), || format!("hidden is {hidden}, not a multiple of 8"))?;
        Ok(Self { kernel: kernels.find(EMBED)?, hidden })
    }

    /// `out[r] = table[tokens[r]]` for `rows` rows; a negative token `t` stands for `drawn[!t]`.
    pub fn launch(
        &self,
        stream: &Stream,
        rows: usize,
        table: Slice<bf16>,
        (tokens, drawn): (Slice<i32>, Slice<i32>),
        out: Slice<f32>,
    ) -> Result<(), OpError> {
        require_len(OP, "tokens", &tokens, rows)?;
        require_len(OP, "out", &out, rows * self.hidden)?;
        let args = EmbedArgs {
            out: out.ptr(),
            table: table.ptr(),
            tokens: tokens.ptr(),
            drawn: drawn.ptr(),
            hidden: int(OP, "hidden", self.hidden)?,
        };
        // SAFETY: the buffers hold the rows; tokens were checked against the vocabulary.
        Ok(unsafe { self.kernel.launch(stream, Launch { grid: (blocks(rows), 1), shared_bytes: 0 }, &args) }?)
    }
}
