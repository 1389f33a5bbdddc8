//! Head norm, rotation, keys and values into the cache: `cuda/rope_cache.cu`.

use super::{BLOCK_TOKENS, OpError, blocks, int, require, require_len};
use crate::driver::{Args, Kernel, Kernels, Launch, Loaded, Ptr, Slice, Stream};
use half::bf16;
use std::sync::Arc;

const OP: &str = "rope_cache";
const MAX_HEAD_DIM: usize = 256;
/// A warp for each head.
const HEADS_PER_BLOCK: usize = 4;

/// The argument, as in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeCacheArgs {
    qkv: Ptr<bf16>,
    q_weight: Ptr<f32>,
    k_weight: Ptr<f32>,
    rotations: Ptr<[f32; 2]>,
    positions: Ptr<i32>,
    slots: Ptr<i32>,
    cache: Ptr<bf16>,
    block_stride: i64,
    num_heads: i32,
    num_kv_heads: i32,
    head_dim: i32,
    eps: f32,
}

// SAFETY: the fields of `RopeCacheArgs` in cuda/rope_cache.cu.
unsafe impl Args for RopeCacheArgs {}

const ROPE_CACHE: Kernel<RopeCacheArgs> = Kernel::new("rope_cache", 128);

/// Heads of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key heads, and as many value heads.
    pub keys: usize,
    /// Width of each.
    pub dim: usize,
}

impl Heads {
    /// Width of a row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.queries + 2 * self.keys) * self.dim
    }

    /// Elements of one layer of a cache block.
    pub fn layer_elems(&self) -> usize {
        2 * self.keys * BLOCK_TOKENS * self.dim
    }
}

/// The cache of one layer: `[block][layer][k|v][kv_head][16][dim]`, from this layer of block 0 on.
#[derive(Clone, Copy, Debug)]
pub struct LayerCache {
    /// From this layer of the first block to the cache's end.
    pub cache: Slice<bf16>,
    /// Elements from a block to the next.
    pub block_stride: usize,
}

/// Norm of each query and key head.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm {
    /// `[dim]`
    pub q_weight: Slice<f32>,
    /// `[dim]`
    pub k_weight: Slice<f32>,
    /// Inside the root.
    pub eps: f32,
}

/// Where the rows of a batch stand.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// `[positions, dim / 2]` of (cos, sin).
    pub rotations: Slice<[f32; 2]>,
    /// `[rows]`
    pub positions: Slice<i32>,
    /// `[rows]`: block times 16 plus offset; a negative one leaves the row alone.
    pub slots: Slice<i32>,
}

/// The launcher.
#[derive(Debug)]
pub struct RopeCache {
    kernel: Loaded<RopeCacheArgs>,
    heads: Heads,
}

impl RopeCache {
    /// For heads of a multiple of 4, at most 256.
    pub fn new(kernels: &Arc<Kernels>, heads: Heads) -> Result<Self, OpError> {
        let fits = heads.dim.is_multiple_of(4) && (4..=MAX_HEAD_DIM).contains(&heads.dim);
        require(OP, fits, || format!("head_dim is {}, not a multiple of 4 up to {MAX_HEAD_DIM}", heads.dim))?;
        Ok(Self { kernel: kernels.find(ROPE_CACHE)?, heads })
    }

    /// Takes the first `rows` rows of `qkv`; writes queries there and the rest to the cache.
    pub fn launch(
        &self,
        stream: &Stream,
        rows: usize,
        qkv: Slice<bf16>,
        norm: Option<&HeadNorm>,
        (places, cache): (&Places, &LayerCache),
    ) -> Result<(), OpError> {
        let heads = &self.heads;
        require_len(OP, "qkv", &qkv, rows * heads.qkv_width())?;
        require_len(OP, "positions", &places.positions, rows)?;
        require_len(OP, "slots", &places.slots, rows)?;
        require_len(OP, "cache", &cache.cache, heads.layer_elems())?;
        if let Some(norm) = norm {
            require_len(OP, "q_weight", &norm.q_weight, heads.dim)?;
            require_len(OP, "k_weight", &norm.k_weight, heads.dim)?;
        }
        let args = RopeCacheArgs {
            qkv: qkv.ptr(),
            q_weight: norm.map_or(Ptr::NULL, |n| n.q_weight.ptr()),
            k_weight: norm.map_or(Ptr::NULL, |n| n.k_weight.ptr()),
            rotations: places.rotations.ptr(),
            positions: places.positions.ptr(),
            slots: places.slots.ptr(),
            cache: cache.cache.ptr(),
            block_stride: i64::from(int(OP, "block_stride", cache.block_stride)?),
            num_heads: int(OP, "num_heads", heads.queries)?,
            num_kv_heads: int(OP, "num_kv_heads", heads.keys)?,
            head_dim: int(OP, "head_dim", heads.dim)?,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        let y = (heads.queries + 2 * heads.keys).div_ceil(HEADS_PER_BLOCK);
        // SAFETY: the buffers hold the rows; positions and slots were made from checked blocks.
        Ok(unsafe { self.kernel.launch(stream, Launch { grid: (blocks(rows), blocks(y)), shared_bytes: 0 }, &args) }?)
    }
}
