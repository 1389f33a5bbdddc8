//! Keys and values in blocks: `[block][layer][k|v][kv_head][block_tokens][head_dim]`, f32.

use super::ops::zeros;
use crate::executor::{DeviceError, Limits};
use crate::program::Dims;

/// The place of one position's vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    /// Position within the block.
    pub(super) offset: usize,
}

pub(super) struct Cache {
    data: Vec<f32>,
    num_layers: usize,
    num_kv_heads: usize,
    block_tokens: usize,
    head_dim: usize,
}

impl Cache {
    pub(super) fn new(dims: &Dims, limits: &Limits) -> Result<Self, DeviceError> {
        let sizes = [limits.num_blocks, dims.num_layers, 2, dims.num_kv_heads, limits.block_tokens, dims.head_dim];
        let elems = sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        Ok(Self {
            data: zeros("the cache", elems)?,
            num_layers: dims.num_layers,
            num_kv_heads: dims.num_kv_heads,
            block_tokens: limits.block_tokens,
            head_dim: dims.head_dim,
        })
    }

    /// `part` is 0 for keys, 1 for values.
    fn range(&self, at: &Place, part: usize) -> std::ops::Range<usize> {
        let slab = (at.block * self.num_layers + at.layer) * 2 + part;
        let row = (slab * self.num_kv_heads + at.kv_head) * self.block_tokens + at.offset;
        row * self.head_dim..(row + 1) * self.head_dim
    }

    pub(super) fn key(&self, at: &Place) -> &[f32] {
        &self.data[self.range(at, 0)]
    }

    pub(super) fn value(&self, at: &Place) -> &[f32] {
        &self.data[self.range(at, 1)]
    }

    pub(super) fn key_mut(&mut self, at: &Place) -> &mut [f32] {
        let range = self.range(at, 0);
        &mut self.data[range]
    }

    pub(super) fn value_mut(&mut self, at: &Place) -> &mut [f32] {
        let range = self.range(at, 1);
        &mut self.data[range]
    }
}
