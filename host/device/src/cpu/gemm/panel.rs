//! Activations as register tiles read them: cut into tiles of tokens, each a panel of `[column][token]`.
//!
//! A tile then reads all its tokens through one pointer, where rows far apart would take one each.

use crate::cpu::memory::Rows;
use crate::cpu::simd::{LANES, Op, ROW_BYTES, STEP_PAIRS, Simd, TILE_ROWS};
use crate::weights::DType;

/// The split of tokens into register tiles of nearly equal size: a small tile leaves multiply-adds idle.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Tiles {
    /// How many.
    pub(in crate::cpu) count: usize,
    size: usize,
    longer: usize,
}

impl Tiles {
    /// `tokens >= 1`, at most `most` in a tile.
    pub(in crate::cpu) fn new(tokens: usize, most: usize) -> Self {
        debug_assert!(tokens > 0, "a product of no rows");
        let count = tokens.div_ceil(most);
        Self { count, size: tokens / count, longer: tokens % count }
    }
    /// First token of tile `i`.
    #[inline(always)]
    pub(in crate::cpu) fn start(&self, i: usize) -> usize {
        i * self.size + i.min(self.longer)
    }
    /// Tokens of tile `i`.
    #[inline(always)]
    pub(in crate::cpu) fn len(&self, i: usize) -> usize {
        self.size + usize::from(i < self.longer)
    }
}

/// Floats of the panels of `rows` tokens of `width` columns, in any form.
pub(in crate::cpu) fn panel_len(rows: usize, width: usize) -> usize {
    rows * width.next_multiple_of(2).max(steps_of(width) * ROW_BYTES / 4)
}

/// Steps of `width` columns on tiles.
pub(super) fn steps_of(width: usize) -> usize {
    width.div_ceil(2 * STEP_PAIRS)
}

/// Most tokens of a tile of a product with `dtype` weights.
pub(super) fn most_tokens<S: Simd>(dtype: DType) -> usize {
    if S::TILES && dtype == DType::BF16 { 2 * TILE_ROWS } else { S::TILE }
}

/// How activations are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) enum Form {
    /// f32, column by column.
    Columns,
    /// Pairs of bf16 for `accumulate_dot`.
    Pairs,
    /// Rows of bf16 for `Simd::multiply_tiles`: those of the first sixteen tokens, step by step, then those of the others.
    Rows,
}

/// Writes the panels of all tiles of `rows` rows of `input`, tile after tile: one unit for each tile.
pub(in crate::cpu) struct PackPanel {
    /// The activations.
    pub(in crate::cpu) input: Rows,
    /// Where the panels go: `panel_len(rows, width)` floats.
    pub(in crate::cpu) panel: *mut f32,
    /// The tiles of the product.
    pub(in crate::cpu) tiles: Tiles,
    /// How.
    pub(in crate::cpu) form: Form,
}

// SAFETY: units write the panels of different tiles.
unsafe impl Sync for PackPanel {}

impl PackPanel {
    /// For `rows` rows of `input`, in the form that products with `dtype` weights want.
    pub(in crate::cpu) fn new<S: Simd>(input: Rows, rows: usize, dtype: DType, panel: *mut f32) -> Self {
        debug_assert!(rows <= input.count);
        let form = match dtype {
            DType::BF16 if S::TILES => Form::Rows,
            DType::BF16 if S::DOT_BF16 => Form::Pairs,
            _ => Form::Columns,
        };
        Self { input, panel, tiles: Tiles::new(rows, most_tokens::<S>(dtype)), form }
    }

    /// Packs tile `tile`.
    pub(in crate::cpu) fn unit<S: Simd>(&self, s: S, tile: usize) {
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
        let steps = steps_of(width);
        for t in 0..tokens {
            // SAFETY: the row exists, and an odd width has padding behind it (rows are padded to 16). Only this
            // unit writes this tile's panel.
            let row = unsafe { std::slice::from_raw_parts(p.input.ptr(start + t), width) };
            // SAFETY: within the tile's panel, of which words of pairs take half.
            unsafe {
                match p.form {
                    Form::Columns => write(row, p.panel.add(start * width + t), tokens),
                    Form::Pairs => write_pairs(row, p.panel.add(start * width).cast::<u32>().add(t), tokens),
                    Form::Rows => {
                        let half = p.panel.cast::<[u32; LANES]>().add((start + t / TILE_ROWS * TILE_ROWS) * steps);
                        write_rows(row, half.add(t % TILE_ROWS), (tokens - t / TILE_ROWS * TILE_ROWS).min(TILE_ROWS));
                    }
                }
            }
        }
    }
}

/// Every `step`th float from `panel` on.
///
/// # Safety
/// All of them are writable.
#[inline(always)]
unsafe fn write(row: &[f32], panel: *mut f32, step: usize) {
    for (k, x) in row.iter().enumerate() {
        // SAFETY: as the caller vouches.
        unsafe { panel.add(k * step).write(*x) };
    }
}

/// The same with pairs of bf16, rounded sixteen pairs at a time.
///
/// # Safety
/// All of them are writable.
#[inline(always)]
unsafe fn write_pairs(row: &[f32], panel: *mut u32, step: usize) {
    let word = |x: &[f32; 2]| round_bf16(x[0]) | round_bf16(x[1]) << 16;
    let (parts, rest) = row.as_chunks::<2>().0.as_chunks::<LANES>();
    for (part, pairs) in parts.iter().enumerate() {
        let mut words = [0; LANES];
        words.iter_mut().zip(pairs).for_each(|(w, x)| *w = word(x));
        for (i, w) in words.iter().enumerate() {
            // SAFETY: as the caller vouches.
            unsafe { panel.add((part * LANES + i) * step).write(*w) };
        }
    }
    for (i, x) in rest.iter().enumerate() {
        // SAFETY: as the caller vouches.
        unsafe { panel.add((parts.len() * LANES + i) * step).write(word(x)) };
    }
}

/// Rows of 32 bf16, each `step` rows behind the last, the end filled with zeros.
///
/// # Safety
/// All of them are writable.
#[inline(always)]
unsafe fn write_rows(row: &[f32], rows: *mut [u32; LANES], step: usize) {
    for (i, part) in row.chunks(2 * LANES).enumerate() {
        let mut words = [0; LANES];
        words.iter_mut().zip(part.as_chunks::<2>().0).for_each(|(w, x)| *w = round_bf16(x[0]) | round_bf16(x[1]) << 16);
        // SAFETY: as the caller vouches.
        unsafe { rows.add(i * step).write_unaligned(words) };
    }
}

/// To bf16, nearest even; NaN stays NaN.
#[inline(always)]
pub(in crate::cpu) fn round_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() { bits >> 16 | 0x40 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}
