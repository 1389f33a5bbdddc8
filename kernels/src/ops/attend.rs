//! Paged attention: `cuda/attention.cuh`, `cuda/attend_split.cu`, `cuda/attend_prefill.cu`.

use super::rope_cache::{Heads, LayerCache};
use super::{OpError, blocks, int, require, require_len};
use crate::driver::{Args, Kernel, Kernels, Launch, Loaded, Ptr, Slice, Stream};
use half::bf16;
use std::sync::Arc;

const OP: &str = "attend";
const HEAD_DIMS: [usize; 6] = [16, 32, 64, 96, 128, 256];

/// A segment as kernels read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Row of its first token in the batch.
    pub first_row: i32,
    /// Tokens.
    pub num_tokens: i32,
    /// Position of the first token.
    pub start: i32,
    /// Index of its first block in the tables.
    pub table: i32,
}

/// The argument, as in the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttendArgs {
    out: Ptr<bf16>,
    qkv: Ptr<bf16>,
    cache: Ptr<bf16>,
    segments: Ptr<SegmentInfo>,
    tables: Ptr<i32>,
    work: Ptr<[i32; 4]>,
    num_work: Ptr<i32>,
    partials: Ptr<f32>,
    partial_sums: Ptr<[f32; 2]>,
    block_stride: i64,
    num_heads: i32,
    num_kv_heads: i32,
    window: i32,
    scale: f32,
}

// SAFETY: the fields of `AttendArgs` in cuda/attention.cuh.
unsafe impl Args for AttendArgs {}

/// What a batch's attention reads beside the activations: the plan, on the device.
#[derive(Clone, Copy, Debug)]
pub struct AttendBuffers {
    /// One for each segment.
    pub segments: Slice<SegmentInfo>,
    /// Block ids of all segments.
    pub tables: Slice<i32>,
    /// Partial results: `[max_partials][keys][16][dim]`.
    pub partials: Slice<f32>,
    /// Their maxima and sums: `[max_partials][keys][16]`.
    pub partial_sums: Slice<[f32; 2]>,
}

/// A work list on the device.
#[derive(Clone, Copy, Debug)]
pub struct WorkList {
    /// The items.
    pub items: Slice<[i32; 4]>,
    /// How many there are; read by the kernel.
    pub count: Slice<i32>,
    /// Blocks of threads to launch; they take items in turn.
    pub grid: usize,
}

/// What a layer says.
#[derive(Clone, Copy, Debug)]
pub struct LayerAttention {
    /// Factor on the scores, above 0.
    pub scale: f32,
    /// A token sees itself and `window - 1` tokens before it.
    pub window: Option<usize>,
}

/// Which of the three kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Spans of few rows.
    Split,
    /// Their partial results, merged.
    Combine,
    /// Many rows.
    Prefill,
}

/// The launchers of one head width.
#[derive(Debug)]
pub struct Attend {
    split: Loaded<AttendArgs>,
    combine: Loaded<AttendArgs>,
    prefill: Loaded<AttendArgs>,
    heads: Heads,
}

/// Shared memory of `attend_split`: 16 queries and a ring of 8 slabs.
fn split_bytes(dim: usize) -> u32 {
    blocks((16 + 8 * 16) * dim * 2)
}

/// Shared memory of `attend_prefill`: `Layout::BYTES`.
fn prefill_bytes(dim: usize) -> u32 {
    let (stages, queries) = if dim <= 128 { (2, 0) } else { (1, 64) };
    blocks((2 * stages * 64 + queries) * dim * 2 + 64 * dim * 4)
}

impl Attend {
    /// For heads of 16, 32, 64, 96, 128 or 256.
    pub fn new(kernels: &Arc<Kernels>, heads: Heads) -> Result<Self, OpError> {
        let Heads { queries, keys, dim } = heads;
        require(OP, keys > 0 && queries.is_multiple_of(keys), || format!("{queries} heads over {keys} key heads"))?;
        let (split, combine, prefill) = match dim {
            16 => ("attend_split_16", "attend_combine_16", "attend_prefill_16"),
            32 => ("attend_split_32", "attend_combine_32", "attend_prefill_32"),
            64 => ("attend_split_64", "attend_combine_64", "attend_prefill_64"),
            96 => ("attend_split_96", "attend_combine_96", "attend_prefill_96"),
            128 => ("attend_split_128", "attend_combine_128", "attend_prefill_128"),
            256 => ("attend_split_256", "attend_combine_256", "attend_prefill_256"),
            _ => return Err(OpError::Shape { op: OP, what: format!("head_dim is {dim}, not one of {HEAD_DIMS:?}") }),
        };
        let attend = Self {
            split: kernels.find(Kernel::new(split, 32))?,
            combine: kernels.find(Kernel::new(combine, 128))?,
            prefill: kernels.find(Kernel::new(prefill, 128))?,
            heads,
        };
        attend.split.allow_shared(split_bytes(dim))?;
        attend.prefill.allow_shared(prefill_bytes(dim))?;
        Ok(attend)
    }

    /// The heads that it is for.
    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Query heads to a key head.
    pub fn group(&self) -> usize {
        self.heads.queries / self.heads.keys
    }

    /// Runs one phase over its work list.
    pub fn launch(
        &self,
        stream: &Stream,
        (phase, work): (Phase, &WorkList),
        (qkv, out): (Slice<bf16>, Slice<bf16>),
        (cache, buffers): (&LayerCache, &AttendBuffers),
        layer: &LayerAttention,
    ) -> Result<(), OpError> {
        require(OP, layer.scale > 0.0, || format!("scale is {}, not above 0", layer.scale))?;
        require(OP, layer.window != Some(0), || "the window has 0 tokens".to_owned())?;
        require_len(OP, "cache", &cache.cache, self.heads.layer_elems())?;
        require_len(OP, "count", &work.count, 1)?;
        let args = AttendArgs {
            out: out.ptr(),
            qkv: qkv.ptr(),
            cache: cache.cache.ptr(),
            segments: buffers.segments.ptr(),
            tables: buffers.tables.ptr(),
            work: work.items.ptr(),
            num_work: work.count.ptr(),
            partials: buffers.partials.ptr(),
            partial_sums: buffers.partial_sums.ptr(),
            block_stride: i64::from(int(OP, "block_stride", cache.block_stride)?),
            num_heads: int(OP, "num_heads", self.heads.queries)?,
            num_kv_heads: int(OP, "num_kv_heads", self.heads.keys)?,
            window: layer.window.map_or(Ok(i32::MAX), |window| int(OP, "window", window))?,
            scale: layer.scale,
        };
        let (kernel, shared_bytes) = match phase {
            Phase::Split => (&self.split, split_bytes(self.heads.dim)),
            Phase::Combine => (&self.combine, 0),
            Phase::Prefill => (&self.prefill, prefill_bytes(self.heads.dim)),
        };
        // SAFETY: the work list was planned for these segments, whose tables name blocks of this cache.
        Ok(unsafe { kernel.launch(stream, Launch { grid: (blocks(work.grid), 1), shared_bytes }, &args) }?)
    }
}
