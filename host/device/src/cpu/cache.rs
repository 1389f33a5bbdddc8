//! Keys and values in blocks of 16 positions: `[block][layer][kv_head][K tile, V tile]`.
//!
//! A K tile is a packed matrix of 16 rows (positions) by `head_dim` columns, a V tile one of `head_dim` rows by 16
//! columns (positions), both in the order of `pack`: so scores and weighted sums are the same register tile as a
//! linear layer, sixteen positions or sixteen elements of a head at a time. A block is one run of bytes.
//!
//! Elements are bf16 for models published in bf16 (half the memory and half the traffic of a long context; each
//! key and value is rounded once, to nearest even, as frameworks do that keep such models' caches in bf16), else
//! f32.

use super::gemm::round_bf16;
use super::memory::Memory;
use super::pack::Layout;
use super::simd::LANES;
use crate::executor::{BlockId, DeviceError, Limits};
use crate::program::Dims;
use crate::weights::DType;

/// The blocks of an executor.
pub(super) struct Cache {
    memory: Memory,
    /// One K tile.
    pub(super) keys: Layout,
    /// One V tile.
    pub(super) values: Layout,
    num_layers: usize,
    num_kv_heads: usize,
    num_blocks: usize,
}

impl Cache {
    /// Allocates all blocks, zeroed; the system provides the pages when they are first written.
    pub(super) fn new(dims: &Dims, limits: &Limits, dtype: DType) -> Result<Self, DeviceError> {
        debug_assert!(matches!(dtype, DType::BF16 | DType::F32), "a cache of {dtype:?}");
        let [keys, values] = tiles(dims, dtype);
        let what = "the cache";
        let bytes = block_bytes(dims, dtype).and_then(|bytes| bytes.checked_mul(limits.num_blocks));
        let memory = Memory::zeroed(bytes.ok_or(DeviceError::OutOfMemory { what, bytes: usize::MAX })?, what)?;
        let (num_layers, num_kv_heads, num_blocks) = (dims.num_layers, dims.num_kv_heads, limits.num_blocks);
        Ok(Self { memory, keys, values, num_layers, num_kv_heads, num_blocks })
    }

    fn key_bytes(&self) -> usize {
        self.keys.strip_bytes()
    }

    fn value_bytes(&self) -> usize {
        self.values.strip_bytes() * self.values.strips()
    }

    /// The K tile of a block; the V tile follows it.
    #[inline(always)]
    pub(super) fn key_tile(&self, block: BlockId, layer: usize, kv_head: usize) -> *mut u8 {
        debug_assert!((block.0 as usize) < self.num_blocks && layer < self.num_layers && kv_head < self.num_kv_heads);
        let tile = (block.0 as usize * self.num_layers + layer) * self.num_kv_heads + kv_head;
        self.memory.ptr().wrapping_add(tile * (self.key_bytes() + self.value_bytes()))
    }

    /// The V tile of a block.
    #[inline(always)]
    pub(super) fn value_tile(&self, block: BlockId, layer: usize, kv_head: usize) -> *mut u8 {
        self.key_tile(block, layer, kv_head).wrapping_add(self.key_bytes())
    }

    /// Writes one position's key and value of one head.
    ///
    /// # Safety
    /// `block` exists, and nobody reads or writes this position of this head meanwhile.
    pub(super) unsafe fn write(&self, place: Place, key: &[f32], value: &[f32]) {
        debug_assert!(key.len() == self.keys.cols && value.len() == self.values.rows && place.offset < LANES);
        let tile = self.key_tile(place.block, place.layer, place.kv_head);
        for (col, x) in key.iter().enumerate() {
            // SAFETY: within the K tile; positions take bytes of their own.
            unsafe { self.put(tile.add(self.keys.byte_of(place.offset, col)), *x) };
        }
        let tile = self.value_tile(place.block, place.layer, place.kv_head);
        for (row, x) in value.iter().enumerate() {
            let at = row / LANES * self.values.strip_bytes() + self.values.byte_of(row % LANES, place.offset);
            // SAFETY: within the V tile; positions take bytes of their own.
            unsafe { self.put(tile.add(at), *x) };
        }
    }

    /// # Safety
    /// One element at `p` is writable.
    #[inline(always)]
    unsafe fn put(&self, p: *mut u8, x: f32) {
        // SAFETY: the caller vouches; elements are aligned to their size, since tiles are to 64 bytes.
        unsafe {
            match self.keys.dtype {
                DType::BF16 => p.cast::<u16>().write(round_bf16(x) as u16),
                _ => p.cast::<f32>().write(x),
            }
        }
    }
}

/// A K tile and a V tile.
fn tiles(dims: &Dims, dtype: DType) -> [Layout; 2] {
    let keys = Layout { dtype, rows: LANES, cols: dims.head_dim, strip: 1 };
    let values = Layout { dtype, rows: dims.head_dim, cols: LANES, strip: 1 };
    [keys, values]
}

/// Of a block over all layers; `None` where that overflows.
fn block_bytes(dims: &Dims, dtype: DType) -> Option<usize> {
    let [keys, values] = tiles(dims, dtype);
    let tile = keys.bytes()?.checked_add(values.bytes()?)?;
    tile.checked_mul(dims.num_layers)?.checked_mul(dims.num_kv_heads)
}

/// A sixteenth of a block: V tiles are padded to sixteen elements of a head, K tiles to two.
pub(super) fn bytes_per_token(dims: &Dims, dtype: DType) -> usize {
    block_bytes(dims, dtype).map_or(usize::MAX, |bytes| bytes.div_ceil(LANES))
}

/// Where one position's key and value lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The block.
    pub(super) block: BlockId,
    /// The layer.
    pub(super) layer: usize,
    /// The head.
    pub(super) kv_head: usize,
    /// Position within the block.
    pub(super) offset: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a cache takes more memory than its operator gave it.
    #[test]
    fn a_token_takes_its_part_of_what_is_allocated_whatever_the_head_width() {
        let limits = Limits { num_blocks: 3, block_tokens: LANES, max_batch_tokens: 8, max_seqs: 2 };
        for (head_dim, padded) in [(16, 16 + 16), (64, 64 + 64), (20, 20 + 32), (4, 4 + 16), (5, 6 + 16)] {
            for dtype in [DType::BF16, DType::F32] {
                let dims = Dims {
                    num_layers: 2,
                    num_heads: 4,
                    num_kv_heads: 3,
                    head_dim,
                    hidden: 8,
                    vocab: 9,
                    max_positions: 9,
                };
                let per_token = bytes_per_token(&dims, dtype);
                assert_eq!(per_token, 2 * 3 * padded * dtype.size(), "{head_dim}");
                let cache = Cache::new(&dims, &limits, dtype).unwrap();
                assert_eq!(cache.memory.len(), limits.num_blocks * limits.block_tokens * per_token);
            }
        }
    }
}
