//! Causal attention over the paged cache, with an online softmax in an order that only positions decide.
//!
//! A query at position `p` goes through spans of [`SPAN`] positions, aligned to multiples of it: scores of the
//! span, their maximum, exponentials, then the weighted values are added to what earlier spans gave, rescaled if
//! the maximum grew. Spans, blocks and lanes are fixed by absolute positions; positions that a query must not see
//! get weight 0 and change no bit. So the result does not depend on the chunk, the batch, or who sits in the same
//! tile, and cached and uncached prompts agree.
//!
//! One unit is a run of tokens of one sequence and one key head with all its query heads: their rows share every
//! key and value that is loaded. Nothing is read that was not written: where a span ends in the middle of a block
//! the values behind are left out, not multiplied by 0, since a block may hold another sequence's NaN.

use super::cache::Cache;
use super::gemm::{Tiles, accumulate, pick_tile};
use super::memory::Rows;
use super::pack::{self, Format};
use super::simd::{LANES, Op, Simd};
use crate::executor::{BlockId, Segment};
use crate::program::Dims;
use crate::weights::DType;
use std::marker::PhantomData;

/// Positions of one softmax step; a multiple of a block.
const SPAN: usize = 128;
/// Query rows of a unit: enough to use loaded keys well, few enough to rest in the caches.
const UNIT_ROWS: usize = 48;
/// Most tokens of a register tile in any instruction set.
const MOST_TOKENS: usize = 6;

/// A run of tokens of one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Index into the batch's segments.
    pub(super) segment: usize,
    /// The batch's row of the first token.
    pub(super) row: usize,
    /// Its position.
    pub(super) position: usize,
    /// How many.
    pub(super) tokens: usize,
}

/// Query heads of a key head.
fn heads_per_group(dims: &Dims) -> usize {
    dims.num_heads / dims.num_kv_heads
}

/// Most tokens of a [`Run`].
pub(super) fn run_tokens(dims: &Dims) -> usize {
    (UNIT_ROWS / heads_per_group(dims)).max(1)
}

/// Floats that one worker needs.
pub(super) fn scratch_len(dims: &Dims) -> usize {
    let rows = run_tokens(dims) * heads_per_group(dims);
    let head = dims.head_dim + dims.head_dim.next_multiple_of(LANES);
    // Panels and sums; maximum and total of each row; scores and factors of a tile.
    (rows * head + 2 * rows + MOST_TOKENS * (SPAN + 1)).next_multiple_of(LANES)
}

/// One `Attend` node over a batch.
pub(super) struct Attend<'a> {
    /// Sizes.
    pub(super) dims: &'a Dims,
    /// Rotated queries.
    pub(super) qkv: Rows,
    /// The mixed values.
    pub(super) out: Rows,
    /// Keys and values, this batch's included.
    pub(super) cache: &'a Cache,
    /// Whose.
    pub(super) layer: usize,
    /// Factor on the scores.
    pub(super) scale: f32,
    /// Positions that a token sees, its own included.
    pub(super) window: Option<usize>,
    /// The batch's.
    pub(super) segments: &'a [Segment<'a>],
    /// All rows of the batch, cut into runs.
    pub(super) runs: &'a [Run],
    /// `workers` times `scratch_len` floats.
    pub(super) scratch: *mut f32,
}

// SAFETY: units write disjoint rows and columns of `out`, and each worker has scratch of its own.
unsafe impl Sync for Attend<'_> {}

impl Attend<'_> {
    /// Units of work, independent of each other.
    pub(super) fn units(&self) -> usize {
        self.runs.len() * self.dims.num_kv_heads
    }

    /// Does unit `unit` on worker `worker`.
    pub(super) fn unit<S: Simd>(&self, s: S, worker: usize, unit: usize) {
        debug_assert!(S::QUERY_TILE <= MOST_TOKENS);
        let kv_head = unit % self.dims.num_kv_heads;
        // The last runs of a prompt see the most: they go first.
        let run = self.runs[self.runs.len() - 1 - unit / self.dims.num_kv_heads];
        let rows = run.tokens * heads_per_group(self.dims);
        debug_assert!(rows <= run_tokens(self.dims) * heads_per_group(self.dims));
        let head_dim = self.dims.head_dim;
        // SAFETY: `scratch` has `scratch_len` floats for this worker, who does one unit at a time.
        let unit = unsafe {
            let panels = self.scratch.add(worker * scratch_len(self.dims));
            let sums = panels.add(rows * head_dim);
            let most = sums.add(rows * head_dim.next_multiple_of(LANES));
            let scores = most.add(2 * rows);
            let factors = scores.add(MOST_TOKENS * SPAN);
            let blocks = self.segments[run.segment].blocks;
            Unit { attend: self, run, kv_head, blocks, panels, sums, most, total: most.add(rows), scores, factors }
        };
        s.run(unit);
    }
}

struct Unit<'a> {
    attend: &'a Attend<'a>,
    run: Run,
    kv_head: usize,
    blocks: &'a [BlockId],
    /// Scaled queries, tile after tile, `[head_dim][rows of the tile]`.
    panels: *mut f32,
    /// Weighted values so far, `[rows][head_dim padded]`.
    sums: *mut f32,
    /// Largest score so far, for each row.
    most: *mut f32,
    /// Sum of exponentials so far, for each row.
    total: *mut f32,
    /// Scores, then weights, of one tile: `[rows of the tile][SPAN]`.
    scores: *mut f32,
    /// What the sums of each row of the tile are rescaled by.
    factors: *mut f32,
}

/// One tile of rows against the blocks of one span.
struct Step {
    /// First row.
    row: usize,
    /// Rows.
    rows: usize,
    /// First position, a multiple of 16.
    low: usize,
    /// Position after the last that any of the rows sees.
    high: usize,
}

impl Step {
    fn num_blocks(&self) -> usize {
        (self.high - self.low).div_ceil(LANES)
    }
}

impl Op for Unit<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        // SAFETY: the scratch is this worker's; the batch's blocks exist and are written up to the rows' positions.
        unsafe {
            match self.attend.cache.keys.dtype {
                DType::BF16 => self.all::<S, pack::Bf16>(s),
                // `Cache::new` takes nothing else.
                DType::F32 | DType::F16 => self.all::<S, pack::F32>(s),
            }
        }
    }
}

impl Unit<'_> {
    fn heads(&self) -> usize {
        heads_per_group(self.attend.dims)
    }
    /// The position of row `row`: rows are tokens by heads.
    fn position(&self, row: usize) -> usize {
        self.run.position + row / self.heads()
    }
    /// The first position that one at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        self.attend.window.map_or(0, |w| (position + 1).saturating_sub(w))
    }
    /// Bytes from the tiles of a block of `step` to those of the block `by` further on.
    fn ahead(&self, step: &Step, block: usize, by: usize) -> usize {
        let tile = |block: usize| {
            let last = self.blocks.len() - 1;
            let id = self.blocks[(step.low / LANES + block).min(last)];
            self.attend.cache.key_tile(id, self.attend.layer, self.kv_head) as usize
        };
        tile(block + by).wrapping_sub(tile(block))
    }
    /// Groups of 16 elements of a head.
    fn groups(&self) -> usize {
        self.attend.dims.head_dim.div_ceil(LANES)
    }
    fn padded_dim(&self) -> usize {
        self.groups() * LANES
    }

    /// # Safety
    /// As for every method below: the scratch is exclusive and long enough, the cache is written.
    #[inline(always)]
    unsafe fn all<S: Simd, F: Format>(&self, s: S) {
        let rows = self.run.tokens * self.heads();
        let tiles = Tiles::new(rows, S::QUERY_TILE);
        let last = self.position(rows - 1);
        // SAFETY: as the caller vouches.
        unsafe {
            self.start(&tiles, rows);
            for span in self.first_seen(self.run.position) / SPAN..=last / SPAN {
                for tile in 0..tiles.count {
                    let (row, rows) = (tiles.start(tile), tiles.len(tile));
                    let low = self.first_seen(self.position(row)).max(span * SPAN) / LANES * LANES;
                    let high = (self.position(row + rows - 1) + 1).min((span + 1) * SPAN);
                    if low < high {
                        self.step::<S, F>(s, &Step { row, rows, low, high });
                    }
                }
            }
            self.finish(rows);
        }
    }

    /// Packs the queries and clears the sums.
    #[inline(always)]
    unsafe fn start(&self, tiles: &Tiles, rows: usize) {
        let head_dim = self.attend.dims.head_dim;
        for tile in 0..tiles.count {
            let (start, len) = (tiles.start(tile), tiles.len(tile));
            for t in 0..len {
                let (token, head) = ((start + t) / self.heads(), (start + t) % self.heads());
                // SAFETY: the row is one of the batch's; the panel lies within the scratch.
                unsafe {
                    let qkv = self.attend.qkv.row(self.run.row + token);
                    let query = &qkv[(self.kv_head * self.heads() + head) * head_dim..][..head_dim];
                    let panel = self.panels.add(start * head_dim + t);
                    for (k, x) in query.iter().enumerate() {
                        panel.add(k * len).write(x * self.attend.scale);
                    }
                }
            }
        }
        // SAFETY: within the scratch.
        unsafe {
            std::slice::from_raw_parts_mut(self.sums, rows * self.padded_dim()).fill(0.0);
            std::slice::from_raw_parts_mut(self.most, rows).fill(f32::NEG_INFINITY);
            std::slice::from_raw_parts_mut(self.total, rows).fill(0.0);
        }
    }

    #[inline(always)]
    unsafe fn step<S: Simd, F: Format>(&self, s: S, step: &Step) {
        // SAFETY: as the caller vouches.
        unsafe {
            let take = S::tile_groups(step.rows);
            for block in (0..step.num_blocks()).step_by(take) {
                pick_tile!(query s: S, step.rows, |G, T| Score::<F, G, T>(self, step, block, PhantomData));
            }
            for t in 0..step.rows {
                self.soften(s, step, t);
            }
            for group in (0..self.groups()).step_by(take) {
                pick_tile!(query s: S, step.rows, |G, T| Mix::<F, G, T>(self, step, group, PhantomData));
            }
        }
    }

    /// Turns the scores of the tile's row `t` into weights, and notes what the sums are rescaled by.
    #[inline(always)]
    unsafe fn soften<S: Simd>(&self, s: S, step: &Step, t: usize) {
        let position = self.position(step.row + t);
        let seen = self.first_seen(position).max(step.low)..(position + 1).min(step.high);
        let len = step.num_blocks() * LANES;
        // SAFETY: within the scratch.
        let (scores, most, total, factor) = unsafe {
            let scores = std::slice::from_raw_parts_mut(self.scores.add(t * SPAN), len);
            let row = step.row + t;
            (scores, &mut *self.most.add(row), &mut *self.total.add(row), &mut *self.factors.add(t))
        };
        *factor = 1.0;
        if seen.is_empty() {
            return scores.fill(0.0);
        }
        scores[..seen.start - step.low].fill(f32::NEG_INFINITY);
        scores[seen.end - step.low..].fill(f32::NEG_INFINITY);
        let mut largest = s.splat(f32::NEG_INFINITY);
        for part in scores.chunks_exact(LANES) {
            largest = s.max(s.load_slice(part), largest);
        }
        let new = s.largest(largest).max(*most);
        let mut sum = s.splat(0.0);
        for part in scores.chunks_exact_mut(LANES) {
            let weight = s.exp(s.sub(s.load_slice(part), s.splat(new)));
            sum = s.add(sum, weight);
            s.store_slice(part, weight);
        }
        *factor = s.to_array(s.exp(s.splat(*most - new)))[0];
        *total = *total * *factor + s.sum(sum);
        *most = new;
    }

    /// Divides by the totals into the output.
    #[inline(always)]
    unsafe fn finish(&self, rows: usize) {
        let head_dim = self.attend.dims.head_dim;
        for row in 0..rows {
            let (token, head) = (row / self.heads(), self.kv_head * self.heads() + row % self.heads());
            // SAFETY: within the scratch and the batch's rows; these columns are this unit's alone.
            unsafe {
                let sums = std::slice::from_raw_parts(self.sums.add(row * self.padded_dim()), head_dim);
                let factor = 1.0 / *self.total.add(row);
                let out = self.attend.out.ptr(self.run.row + token).add(head * head_dim);
                for (d, x) in std::slice::from_raw_parts_mut(out, head_dim).iter_mut().zip(sums) {
                    *d = x * factor;
                }
            }
        }
    }
}

/// Scores of `T` rows against `G` blocks from the third field on; where there are fewer, the last again, into a part
/// of the span that nobody reads. Making one vouches as for `Unit`'s methods.
struct Score<'a, F: Format, const G: usize, const T: usize>(&'a Unit<'a>, &'a Step, usize, PhantomData<F>);

impl<F: Format, const G: usize, const T: usize> Op for Score<'_, F, G, T> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Self(unit, step, block, _) = self;
        let attend = unit.attend;
        let head_dim = attend.dims.head_dim;
        let mut acc = [[s.splat(0.0); T]; G];
        let mut w = [std::ptr::null(); G];
        for g in 0..G {
            let id = unit.blocks[step.low / LANES + (block + g).min(step.num_blocks() - 1)];
            w[g] = attend.cache.key_tile(id, attend.layer, unit.kv_head).cast_const();
        }
        let ahead = unit.ahead(step, block, G);
        debug_assert!((block + G) * LANES <= SPAN, "a span is whole tiles of blocks");
        // SAFETY: K tiles have `head_dim / 2` pairs, the panel as many; scores have room for the span.
        unsafe {
            let x = unit.panels.add(step.row * head_dim);
            accumulate::<S, F, G, T, 0>(s, &mut acc, w, x, head_dim / 2, F::PAIR_BYTES, ahead);
            for g in 0..G {
                for t in 0..T {
                    s.store(unit.scores.add(t * SPAN + (block + g) * LANES), acc[g][t]);
                }
            }
        }
    }
}

/// Adds the weighted values of `G` groups of 16 elements, from the third field on, to the sums of `T` rows; where
/// there are fewer, the last again, for nothing. Making one vouches as for `Unit`'s methods.
struct Mix<'a, F: Format, const G: usize, const T: usize>(&'a Unit<'a>, &'a Step, usize, PhantomData<F>);

impl<F: Format, const G: usize, const T: usize> Op for Mix<'_, F, G, T> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Self(unit, step, group, _) = self;
        let (attend, padded) = (unit.attend, unit.padded_dim());
        let group_bytes = attend.cache.values.strip_bytes();
        let group_of = |g: usize| (group + g).min(unit.groups() - 1);
        let mut acc = [[s.splat(0.0); T]; G];
        // SAFETY: sums, factors and weights lie within the scratch; V tiles have 8 pairs for each group, of which
        // those below `high` are written.
        unsafe {
            for t in 0..T {
                let factor = s.splat(*unit.factors.add(t));
                for g in 0..G {
                    let at = unit.sums.add((step.row + t) * padded + group_of(g) * LANES);
                    acc[g][t] = s.mul(s.load(at), factor);
                }
            }
            for block in 0..step.num_blocks() {
                let id = unit.blocks[step.low / LANES + block];
                let tile = attend.cache.value_tile(id, attend.layer, unit.kv_head);
                let mut w = [tile.cast_const(); G];
                for g in 0..G {
                    w[g] = tile.add(group_of(g) * group_bytes);
                }
                let x = unit.scores.add(block * LANES).cast_const();
                let written = (step.high - step.low - block * LANES).min(LANES);
                let ahead = unit.ahead(step, block, 1);
                accumulate::<S, F, G, T, SPAN>(s, &mut acc, w, x, written / 2, F::PAIR_BYTES, ahead);
                if written % 2 == 1 {
                    let pair = written / 2;
                    for g in 0..G {
                        let even = F::even(s, w[g].add(pair * F::PAIR_BYTES));
                        for t in 0..T {
                            acc[g][t] = s.fma(even, s.splat(*x.add(t * SPAN + 2 * pair)), acc[g][t]);
                        }
                    }
                }
            }
            for g in 0..G {
                for t in 0..T {
                    s.store(unit.sums.add((step.row + t) * padded + group_of(g) * LANES), acc[g][t]);
                }
            }
        }
    }
}
