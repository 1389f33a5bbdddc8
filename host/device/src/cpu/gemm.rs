//! Matrix products over packed weights: a register tile of 16-row groups by tokens, and the loops around it.
//!
//! `out[t][n] = bias[n] + sum over k of x[t][k] * w[n][k]`, f32 throughout (bf16 weights are widened, exactly),
//! and each output is one chain of fused multiply-adds from k = 0 upwards. Tiles, blocks and threads only change
//! which chains run side by side, so the bits do not depend on them. (With `Simd::DOT_BF16` the links of the chain
//! are pairs, and activations are rounded to bf16; the rest holds.)
//!
//! Shapes of work: one token reads each weight once, at memory speed, four groups in flight. A few tokens share
//! what was read. Many tokens go in blocks of [`BLOCK_TILES`] tiles against [`BLOCK_BYTES`] of a group at a time,
//! which keeps both in the caches; accumulators rest in `out` between blocks, which costs no precision.
//!
//! Activations are repacked as panels, `[k][tokens of a tile]`, so that a tile reads them through one pointer.

use super::memory::Rows;
use super::pack::{Format, Layout};
use super::simd::{LANES, Op, Simd};
use crate::weights::DType;
use std::marker::PhantomData;

/// Runs the tile that is compiled for `groups` by `tokens`: `G` and `T` are constants in the body, an [`Op`].
///
/// Each tile is a function of its own (`Simd::run` is not inlined), or the compiler would spend minutes on one
/// function that holds them all.
macro_rules! pick_tile {
    (linear $s:ident: $S:ident, $groups:expr, $tokens:expr, |$G:ident, $T:ident| $op:expr) => {
        if <$S as Simd>::TILES[0] > 6 {
            pick_tile!(@arms $s, ($groups, $tokens), $G, $T, $op;
                (4, 1) (1, 1) (2, 2) (1, 2) (2, 3) (1, 3) (2, 4) (1, 4) (2, 6) (1, 6) (2, 8) (1, 8) (2, 12) (1, 12))
        } else {
            pick_tile!(query $s: $S, $groups, $tokens, |$G, $T| $op)
        }
    };
    (query $s:ident: $S:ident, $groups:expr, $tokens:expr, |$G:ident, $T:ident| $op:expr) => {
        if <$S as Simd>::QUERY_TILES[0] > 4 {
            pick_tile!(@arms $s, ($groups, $tokens), $G, $T, $op;
                (4, 1) (1, 1) (2, 2) (1, 2) (1, 3) (1, 4) (1, 5) (1, 6))
        } else {
            pick_tile!(@arms $s, ($groups, $tokens), $G, $T, $op; (1, 1) (1, 2) (1, 3) (1, 4))
        }
    };
    (@arms $s:ident, $at:expr, $G:ident, $T:ident, $op:expr; $(($g:literal, $t:literal))+) => {
        match $at {
            $(($g, $t) => {
                const $G: usize = $g;
                const $T: usize = $t;
                $s.run($op)
            })+
            (groups, tokens) => debug_assert!(false, "no tile of {groups} groups by {tokens} tokens"),
        }
    };
}
pub(super) use pick_tile;

/// Bytes of one group that a block spans, so that it stays in the first-level cache with a panel beside it.
const BLOCK_BYTES: usize = 16 << 10;
/// Token tiles of a block, so that their panels stay in the second-level cache.
const BLOCK_TILES: usize = 16;
/// How far ahead of the loads the weights are prefetched.
const PREFETCH_BYTES: usize = 1024;
/// Groups in the smallest share of a thread.
const SHARE_GROUPS: usize = 4;

/// The split of tokens into register tiles: as many of the largest as there are, then one or two for the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// How many.
    pub(super) count: usize,
    most: usize,
    full: usize,
    /// Sizes of the tiles behind the full ones; 0 for none.
    rest: [usize; 2],
}

impl Tiles {
    /// `sizes` are those that exist, largest first; two of them make up whatever is left.
    pub(super) fn new(tokens: usize, sizes: &[usize]) -> Self {
        let most = sizes[0];
        let left = tokens % most;
        let fitting = |left: usize| sizes.iter().copied().find(|&size| size <= left).unwrap_or(0);
        let first = fitting(left);
        let rest = [first, fitting(left - first)];
        debug_assert_eq!(rest[0] + rest[1], left, "two tiles of {sizes:?} make up {left}");
        let count = tokens / most + rest.iter().filter(|&&size| size > 0).count();
        Self { count, most, full: tokens / most, rest }
    }
    /// First token of tile `i`.
    #[inline(always)]
    pub(super) fn start(&self, i: usize) -> usize {
        if i <= self.full { i * self.most } else { self.full * self.most + self.rest[0] }
    }
    /// Tokens of tile `i`.
    #[inline(always)]
    pub(super) fn len(&self, i: usize) -> usize {
        if i < self.full { self.most } else { self.rest[i - self.full] }
    }
}

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
        debug_assert!(row < self.layout.rows);
        let bytes = self.layout.group_bytes();
        // SAFETY: by `new`, and `row` is one of its rows.
        let group = unsafe { std::slice::from_raw_parts(self.start.add(row / LANES * bytes), bytes) };
        self.layout.unpack_row(group, row % LANES, out);
    }
}

/// A product for `rows` of `input`; checked by [`Linear::new`], run by [`Linear::unit`].
pub(super) struct Linear<'a> {
    matrix: Matrix,
    bias: Option<&'a [f32]>,
    panel: *const f32,
    out: Rows,
    tiles: Tiles,
    share_groups: usize,
}

// SAFETY: units write disjoint columns and rows of `out`, and only read the rest.
unsafe impl Sync for Linear<'_> {}

/// Floats of the panels of `rows` tokens of `width` columns.
pub(super) fn panel_len(rows: usize, width: usize) -> usize {
    rows * width.next_multiple_of(2)
}

impl<'a> Linear<'a> {
    /// Splits the product among `workers`. `panel` is what [`PackPanel`] has made of the `rows` of the input;
    /// `bias` is padded to whole groups.
    pub(super) fn new<S: Simd>(
        matrix: Matrix,
        bias: Option<&'a [f32]>,
        panel: *const f32,
        rows: usize,
        out: Rows,
        workers: usize,
    ) -> Self {
        debug_assert!(rows >= 1 && rows <= out.count && out.width == matrix.layout.rows);
        debug_assert!(bias.is_none_or(|b| b.len() == out.stride));
        let tiles = Tiles::new(rows, S::TILES);
        let groups = matrix.layout.groups();
        let blocks = tiles.count.div_ceil(BLOCK_TILES);
        let shares = if workers == 1 { 1 } else { (workers * 8).div_ceil(blocks) };
        let share_groups = groups.div_ceil(shares).next_multiple_of(SHARE_GROUPS);
        Self { matrix, bias, panel, out, tiles, share_groups }
    }

    fn shares(&self) -> usize {
        self.matrix.layout.groups().div_ceil(self.share_groups)
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
            DType::BF16 => self.blocks::<S, super::pack::Bf16>(s),
            DType::F16 => self.blocks::<S::Exact, super::pack::F16>(s.exact()),
            DType::F32 => self.blocks::<S::Exact, super::pack::F32>(s.exact()),
        }
    }
}

impl LinearUnit<'_> {
    /// Token tiles by blocks of columns by groups of rows.
    #[inline(always)]
    fn blocks<S: Simd, F: Format>(&self, s: S) {
        let l = self.linear;
        let shares = l.shares();
        let first_tile = self.unit / shares * BLOCK_TILES;
        let last_tile = (first_tile + BLOCK_TILES).min(l.tiles.count);
        let first_group = self.unit % shares * l.share_groups;
        let last_group = (first_group + l.share_groups).min(l.matrix.layout.groups());
        let pairs = l.matrix.layout.pairs();
        // One tile re-reads nothing, so it has no use for blocks.
        let step = if l.tiles.count == 1 { pairs } else { BLOCK_BYTES / F::PAIR_BYTES };
        let strip = S::tile_groups(l.tiles.len(first_tile));
        let mut pair = 0;
        while pair < pairs {
            let len = step.min(pairs - pair);
            let mut group = first_group;
            while group < last_group {
                let groups = strip.min(last_group - group);
                for tile in first_tile..last_tile {
                    self.strip::<S, F>(s, tile, group, groups, pair, len);
                }
                group += groups;
            }
            pair += len;
        }
    }

    /// `groups` groups from `group` on, for one tile, over `len` pairs from `pair` on.
    #[inline(always)]
    fn strip<S: Simd, F: Format>(&self, s: S, tile: usize, group: usize, groups: usize, pair: usize, len: usize) {
        let l = self.linear;
        let (start, tokens) = (l.tiles.start(tile), l.tiles.len(tile));
        let mut g = group;
        while g < group + groups {
            let wide = S::tile_groups(tokens);
            let take = if group + groups - g >= wide { wide } else { 1 };
            // SAFETY: groups, pairs and tokens lie within the matrix, the panel and `out`, as `new` asserts; this
            // unit alone writes these rows and columns.
            unsafe {
                let job = TileJob {
                    w: l.matrix.start.add(g * l.matrix.layout.group_bytes() + pair * F::PAIR_BYTES),
                    group_bytes: l.matrix.layout.group_bytes(),
                    x: l.panel.add(start * l.matrix.layout.pairs() * 2 + pair * 2 * tokens),
                    pairs: len,
                    first: pair == 0,
                    bias: l.bias.map(|b| b.as_ptr().add(g * LANES)),
                    out: l.out.ptr(start).add(g * LANES),
                    stride: l.out.stride,
                };
                pick_tile!(linear s: S, take, tokens, |G, T| Tile::<F, G, T>(&job, PhantomData));
            }
            g += take;
        }
    }
}

/// One register tile: addresses into weights, panel and output.
struct TileJob {
    w: *const u8,
    group_bytes: usize,
    x: *const f32,
    pairs: usize,
    /// Starts the chains (from the bias) instead of carrying them on from `out`.
    first: bool,
    bias: Option<*const f32>,
    out: *mut f32,
    stride: usize,
}

/// `G` groups by `T` tokens of weights in format `F`. Making one vouches that `w` has `G` groups of `pairs` pairs,
/// `x` a panel of `pairs` pairs of columns for `T` tokens, `out` `T` rows of `16 G` columns that nobody else
/// touches meanwhile, and `bias` `16 G` elements.
struct Tile<'a, F: Format, const G: usize, const T: usize>(&'a TileJob, PhantomData<F>);

impl<F: Format, const G: usize, const T: usize> Op for Tile<'_, F, G, T> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let job = self.0;
        let mut acc = [[s.splat(0.0); T]; G];
        let mut w = [job.w; G];
        // SAFETY: whoever made the tile vouches for all addresses.
        unsafe {
            for g in 0..G {
                w[g] = job.w.add(g * job.group_bytes);
                for t in 0..T {
                    if !job.first {
                        acc[g][t] = s.load(job.out.add(t * job.stride + g * LANES));
                    } else if let Some(bias) = job.bias {
                        acc[g][t] = s.load(bias.add(g * LANES));
                    }
                }
            }
            if S::DOT_BF16 && F::IS_BF16 {
                accumulate_dot::<S, G, T>(s, &mut acc, w, job.x.cast(), job.pairs);
            } else {
                accumulate::<S, F, G, T, 0>(s, &mut acc, w, job.x, job.pairs);
            }
            for g in 0..G {
                for t in 0..T {
                    s.store(job.out.add(t * job.stride + g * LANES), acc[g][t]);
                }
            }
        }
    }
}

/// The inner loop of everything: `acc[g][t] += w[g][k] * x[t][k]` for `2 * pairs` columns in order.
///
/// `ROW` says where `x[t][k]` is: 0 for a panel (`x[k * T + t]`), else rows of `ROW` floats (`x[t * ROW + k]`).
///
/// # Safety
/// Each `w` has `pairs` pairs, and `x` the elements named above.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, F: Format, const G: usize, const T: usize, const ROW: usize>(
    s: S,
    acc: &mut [[S::V; T]; G],
    mut w: [*const u8; G],
    mut x: *const f32,
    pairs: usize,
) {
    let at = |k: usize, t: usize| if ROW == 0 { k * T + t } else { t * ROW + k };
    for _ in 0..pairs {
        // SAFETY: the caller vouches for `pairs` pairs at `w` and `x`; a prefetch may go anywhere.
        unsafe {
            let mut column = [s.splat(0.0); G];
            for g in 0..G {
                s.prefetch(w[g].wrapping_add(PREFETCH_BYTES));
                column[g] = F::even(s, w[g]);
            }
            for t in 0..T {
                let x = s.splat(*x.add(at(0, t)));
                for g in 0..G {
                    acc[g][t] = s.fma(column[g], x, acc[g][t]);
                }
            }
            for g in 0..G {
                column[g] = F::odd(s, w[g]);
                w[g] = w[g].add(F::PAIR_BYTES);
            }
            for t in 0..T {
                let x = s.splat(*x.add(at(1, t)));
                for g in 0..G {
                    acc[g][t] = s.fma(column[g], x, acc[g][t]);
                }
            }
            x = x.add(at(2, 0));
        }
    }
}

/// The same with pairs of bf16 activations, `x[pair * T + t]`, and the processor's two-term dot product.
///
/// # Safety
/// Each `w` has `pairs` pairs of bf16, and `x` has `pairs * T` words.
#[inline(always)]
unsafe fn accumulate_dot<S: Simd, const G: usize, const T: usize>(
    s: S,
    acc: &mut [[S::V; T]; G],
    mut w: [*const u8; G],
    mut x: *const u32,
    pairs: usize,
) {
    for _ in 0..pairs {
        // SAFETY: as the caller vouches.
        unsafe {
            for g in 0..G {
                s.prefetch(w[g].wrapping_add(4 * PREFETCH_BYTES));
                for t in 0..T {
                    acc[g][t] = s.dot_bf16(acc[g][t], w[g], *x.add(t));
                }
                w[g] = w[g].add(super::pack::Bf16::PAIR_BYTES);
            }
            x = x.add(T);
        }
    }
}

/// Writes the panels of all tiles of `rows` rows of `input`, tile after tile: one unit for each tile.
pub(super) struct PackPanel {
    /// The activations.
    pub(super) input: Rows,
    /// Where the panels go: `panel_len(rows, width)` floats.
    pub(super) panel: *mut f32,
    /// The tiles of the product.
    pub(super) tiles: Tiles,
    /// Pairs of bf16 for `accumulate_dot` instead of f32.
    pub(super) as_bf16: bool,
}

// SAFETY: units write the panels of different tiles.
unsafe impl Sync for PackPanel {}

impl PackPanel {
    /// For `rows` rows of `input`, in the form that products with `dtype` weights want.
    pub(super) fn new<S: Simd>(input: Rows, rows: usize, dtype: DType, panel: *mut f32) -> Self {
        debug_assert!(rows <= input.count);
        let as_bf16 = S::DOT_BF16 && dtype == DType::BF16;
        Self { input, panel, tiles: Tiles::new(rows, S::TILES), as_bf16 }
    }

    /// Packs tile `tile`.
    pub(super) fn unit<S: Simd>(&self, s: S, tile: usize) {
        s.run(PackTile { pack: self, tile });
    }
}

struct PackTile<'a> {
    pack: &'a PackPanel,
    tile: usize,
}

impl Op for PackTile<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, _s: S) {
        let p = self.pack;
        let (start, tokens) = (p.tiles.start(self.tile), p.tiles.len(self.tile));
        let width = p.input.width.next_multiple_of(2);
        for t in 0..tokens {
            // SAFETY: the row exists, and an odd width has padding behind it (rows are padded to 16). Only this
            // unit writes this tile's panel.
            let (row, panel) = unsafe {
                let row = std::slice::from_raw_parts(p.input.ptr(start + t), width);
                (row, p.panel.add(start * width))
            };
            if p.as_bf16 {
                for (pair, x) in row.as_chunks::<2>().0.iter().enumerate() {
                    let word = round_bf16(x[0]) | round_bf16(x[1]) << 16;
                    // SAFETY: within the tile's panel, of which words of pairs take half.
                    unsafe { panel.cast::<u32>().add(pair * tokens + t).write(word) };
                }
            } else {
                for (k, x) in row.iter().enumerate() {
                    // SAFETY: within the tile's panel.
                    unsafe { panel.add(k * tokens + t).write(*x) };
                }
            }
        }
    }
}

/// To bf16, nearest even; NaN stays NaN.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() { bits >> 16 | 0x40 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}
