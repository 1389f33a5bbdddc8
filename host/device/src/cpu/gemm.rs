//! Matrix products over packed weights: a register tile of 16-row groups by tokens, and the loops around it.
//!
//! `out[t][n] = bias[n] + sum over k of x[t][k] * w[n][k]`, f32 throughout (bf16 weights are widened, exactly),
//! and each output is one chain of fused multiply-adds from k = 0 upwards. Tiles, blocks and threads only change
//! which chains run side by side, so the bits do not depend on them. (With `Simd::DOT_BF16` the links of the chain
//! are pairs, and activations are rounded to bf16; the rest holds.)
//!
//! Shapes of work: one token reads each weight once, at memory speed, strip after strip as one stream. A few tokens
//! share what was read. Many tokens go in blocks of [`BLOCK_TILES`] tiles against [`BLOCK_BYTES`] of a strip at a
//! time, which keeps both in the caches; accumulators rest in `out` between blocks, which costs no precision.
//!
//! Activations are repacked as panels, `[k][tokens of a tile]`, so that a tile reads them through one pointer.

mod panel;
mod tile;

pub(super) use panel::{Form, PackPanel, Tiles, panel_len, round_bf16};
pub(super) use tile::{accumulate, pick_tile};

use super::memory::Rows;
use super::pack::{Bf16, F16, F32, Format, Layout, STRIP};
use super::simd::{LANES, Op, ROW_BYTES, STEP_PAIRS, Simd, TILE_ROWS, TileProduct};
use crate::weights::DType;
use std::marker::PhantomData;
use tile::{Tile, TileJob};

/// Bytes of one strip that a block spans, so that it stays in the first-level cache with a panel beside it.
const BLOCK_BYTES: usize = 16 << 10;
/// Blocks that one strip goes through before the next strip, so that its accumulators are found again quickly.
const RUN_BLOCKS: usize = 4;
/// Token tiles of a block, so that their panels for a run of blocks stay in the second-level cache.
const BLOCK_TILES: usize = 12;
/// The same on tiles, where a block does more work for each sum that is carried on.
const TILED_BLOCK_BYTES: usize = 32 << 10;
/// How far ahead of the loads the weights are prefetched where each is read once.
const PREFETCH_BYTES: usize = 4096;
/// Strips in the smallest share of a thread.
const SHARE_STRIPS: usize = 2;

/// A packed matrix in memory that outlives the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    /// Its shape.
    pub(super) layout: Layout,
    start: *const u8,
}

// SAFETY: the bytes are never written after load.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// # Safety
    /// `layout.bytes()` bytes at `start`, written by `Layout::pack_row`, live and unchanged as long as the
    /// matrix is used.
    pub(super) unsafe fn new(layout: Layout, start: *const u8) -> Self {
        Self { layout, start }
    }

    /// Row `row` as f32.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        debug_assert!(row < self.layout.rows, "row {row} of {}", self.layout.rows);
        let (bytes, rows) = (self.layout.strip_bytes(), STRIP * LANES);
        // SAFETY: by `new`, and `row` is one of its rows.
        let strip = unsafe { std::slice::from_raw_parts(self.start.add(row / rows * bytes), bytes) };
        self.layout.unpack_row(strip, row % rows, out);
    }
}

/// A product for `rows` of `input`; checked by [`Linear::new`], run by [`Linear::unit`].
pub(super) struct Linear<'a> {
    matrix: Matrix,
    bias: Option<&'a [f32]>,
    panel: *const f32,
    out: Rows,
    tiles: Tiles,
    share_strips: usize,
}

// SAFETY: units write disjoint columns and rows of `out`, and only read the rest.
unsafe impl Sync for Linear<'_> {}

impl<'a> Linear<'a> {
    /// Splits the product among `workers`. `panel` is what [`PackPanel`] has made of the `rows` of the input;
    /// `bias` and the rows of `out` are padded like the matrix.
    pub(super) fn new<S: Simd>(
        matrix: Matrix,
        bias: Option<&'a [f32]>,
        panel: *const f32,
        rows: usize,
        out: Rows,
        workers: usize,
    ) -> Self {
        debug_assert!(rows >= 1 && rows <= out.count && out.stride == matrix.layout.rows);
        debug_assert!(bias.is_none_or(|b| b.len() == out.stride));
        let tiles = Tiles::new(rows, panel::most_tokens::<S>(matrix.layout.dtype));
        debug_assert_eq!(matrix.layout.strip, STRIP);
        let blocks = tiles.count.div_ceil(BLOCK_TILES);
        let shares = if workers == 1 { 1 } else { (workers * 8).div_ceil(blocks) };
        let share_strips = matrix.layout.strips().div_ceil(shares).max(SHARE_STRIPS);
        Self { matrix, bias, panel, out, tiles, share_strips }
    }

    fn shares(&self) -> usize {
        self.matrix.layout.strips().div_ceil(self.share_strips)
    }

    /// Units of work, independent of each other.
    pub(super) fn units(&self) -> usize {
        self.shares() * self.tiles.count.div_ceil(BLOCK_TILES)
    }

    /// Does unit `unit`.
    pub(super) fn unit<S: Simd>(&self, s: S, unit: usize) {
        debug_assert!(unit < self.units());
        s.run(LinearUnit { linear: self, unit });
    }
}

struct LinearUnit<'a> {
    linear: &'a Linear<'a>,
    unit: usize,
}

impl Op for LinearUnit<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        match self.linear.matrix.layout.dtype {
            DType::BF16 => {
                self.blocks::<S, Bf16>(s);
                // A processor without tiles does not know the instruction.
                if S::TILES {
                    s.release_tiles();
                }
            }
            DType::F16 => self.blocks::<S::Exact, F16>(s.exact()),
            DType::F32 => self.blocks::<S::Exact, F32>(s.exact()),
        }
    }
}

impl LinearUnit<'_> {
    /// Token tiles by blocks of columns by strips of rows.
    #[inline(always)]
    fn blocks<S: Simd, F: Format>(&self, s: S) {
        let l = self.linear;
        let shares = l.shares();
        let first_tile = self.unit / shares * BLOCK_TILES;
        let last_tile = (first_tile + BLOCK_TILES).min(l.tiles.count);
        let first_strip = self.unit % shares * l.share_strips;
        let last_strip = (first_strip + l.share_strips).min(l.matrix.layout.strips());
        let (pairs, step) = (l.matrix.layout.pairs(), l.matrix.layout.pair_step());
        // One tile as wide as a strip re-reads nothing, so it has no use for blocks.
        let tiles = S::TILES && F::IS_BF16;
        let once = l.tiles.count == 1 && (tiles || S::tile_groups(l.tiles.len(0)) == STRIP);
        let (most, multiple) = if tiles { (TILED_BLOCK_BYTES, STEP_PAIRS) } else { (BLOCK_BYTES, 1) };
        let len = if once { pairs } else { pairs.div_ceil((pairs * step).div_ceil(most)).next_multiple_of(multiple) };
        let run_len = len * RUN_BLOCKS;
        let mut shaped = None;
        for run in (0..pairs).step_by(run_len) {
            let end = pairs.min(run + run_len);
            for strip in first_strip..last_strip {
                for pair in (run..end).step_by(len) {
                    // While the tiles of a block compute, the next block of weights is on its way.
                    let next = if pair + len < end { len * step } else { (pairs - (pair - run)) * step };
                    let ahead = if l.tiles.count == 1 { PREFETCH_BYTES } else { next };
                    let block = Block { strip, pair, len: len.min(end - pair), ahead };
                    for tile in first_tile..last_tile {
                        if tiles {
                            self.tiled_block(s, tile, &block, &mut shaped)
                        } else {
                            self.block::<S, F>(s, tile, &block)
                        }
                    }
                }
            }
        }
    }

    /// One tile of tokens by one block of weights.
    #[inline(always)]
    fn block<S: Simd, F: Format>(&self, s: S, tile: usize, block: &Block) {
        let l = self.linear;
        let (start, tokens) = (l.tiles.start(tile), l.tiles.len(tile));
        let (layout, pair) = (&l.matrix.layout, block.pair);
        // A pair of activations is two floats, or one word of two bf16.
        let pair_floats = if S::DOT_BF16 && F::IS_BF16 { 1 } else { 2 };
        for group in (0..STRIP).step_by(S::tile_groups(tokens)) {
            let row = (block.strip * STRIP + group) * LANES;
            // SAFETY: strips, pairs and tokens lie within the matrix, the panel and `out`, as `new` asserts; this
            // unit alone writes these rows and columns.
            let job = unsafe {
                let w = l.matrix.start.add(block.strip * layout.strip_bytes() + pair * layout.pair_step());
                TileJob {
                    w: w.add(group * F::PAIR_BYTES),
                    pair_step: layout.pair_step(),
                    x: l.panel.add(start * layout.pairs() * 2 + pair * tokens * pair_floats),
                    pairs: block.len,
                    ahead: block.ahead,
                    first: pair == 0,
                    bias: l.bias.map(|b| b.as_ptr().add(row)),
                    out: l.out.ptr(start).add(row),
                    stride: l.out.stride,
                }
            };
            pick_tile!(linear s: S, tokens, |G, T| Tile::<F, G, T>(&job, PhantomData));
        }
    }
}

impl LinearUnit<'_> {
    /// One tile of tokens by one block of bf16 weights, on the processor's tiles.
    #[inline(always)]
    fn tiled_block<S: Simd>(&self, s: S, tile: usize, block: &Block, shaped: &mut Shaped) {
        let l = self.linear;
        let (start, tokens) = (l.tiles.start(tile), l.tiles.len(tile));
        let (layout, row) = (&l.matrix.layout, block.strip * STRIP * LANES);
        let halves = [tokens.min(TILE_ROWS), tokens.saturating_sub(TILE_ROWS)];
        let (step, steps) = (block.pair / STEP_PAIRS, panel::steps_of(layout.cols));
        let (whole, rest) = (block.len / STEP_PAIRS, block.len % STEP_PAIRS);
        let mut shape = |pairs| {
            if shaped.replace((halves, pairs)) != Some((halves, pairs)) {
                s.shape_tiles(halves, pairs);
            }
        };
        // SAFETY: strips, pairs and tokens lie within the matrix, the panel and `out`, as `new` asserts; this unit
        // alone writes these rows and columns; the registers have the shape of what is multiplied.
        unsafe {
            let x = l.panel.cast::<u8>().add(start * steps * ROW_BYTES);
            let out = l.out.ptr(start).add(row);
            let out_step = l.out.stride * size_of::<f32>();
            let (begin, begin_step) = match l.bias {
                _ if block.pair > 0 => (out.cast_const(), out_step),
                Some(bias) => (bias.as_ptr().add(row), 0),
                None => (NOTHING.as_ptr(), 0),
            };
            let mut product = TileProduct {
                w: l.matrix.start.add(block.strip * layout.strip_bytes() + block.pair * layout.pair_step()),
                x: [x.add(step * halves[0] * ROW_BYTES), x.add((halves[0] * steps + step * halves[1]) * ROW_BYTES)],
                halves,
                begin,
                begin_step,
                out,
                out_step,
            };
            if whole > 0 {
                shape(STEP_PAIRS);
                s.multiply_tiles(&product, whole, STEP_PAIRS);
                (product.begin, product.begin_step) = (out.cast_const(), out_step);
            }
            if rest > 0 {
                shape(rest);
                product.w = product.w.add(whole * STEP_PAIRS * layout.pair_step());
                product.x = [0, 1].map(|half| product.x[half].add(whole * halves[half] * ROW_BYTES));
                s.multiply_tiles(&product, 1, rest);
            }
        }
    }
}

/// What the tile registers were last shaped for: tokens of the halves, pairs of a step.
type Shaped = Option<([usize; 2], usize)>;

/// What the sums of a strip begin with where there is no bias.
static NOTHING: [f32; STRIP * LANES] = [0.0; STRIP * LANES];

/// Weights that stay in the cache while the token tiles pass over them.
struct Block {
    strip: usize,
    pair: usize,
    len: usize,
    /// Bytes from a weight to the one that is prefetched meanwhile.
    ahead: usize,
}

#[cfg(test)]
mod tests;
