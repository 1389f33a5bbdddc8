//! Weight matrices in the order in which the kernels read them; packed once at load, never copied again.
//!
//! Sixteen rows form a group, columns go in pairs. A pair of columns of one group:
//!
//! | format | bytes of a pair | order |
//! |---|---|---|
//! | bf16 | 64 | 16 words of 32 bits, one for each row: even column low, odd column high |
//! | f16 | 64 | 16 rows of the even column, 16 rows of the odd |
//! | f32 | 128 | the same |
//!
//! Two groups form a strip: a pair of the one, the same pair of the other, the next pair. A token reads a strip as
//! one stream with two chains of sums, which is what a core reads fastest (see `docs/benchmarks.md`). Tiles of the
//! cache are strips of a single group.
//!
//! A vector register holds sixteen rows at one column, a product needs no sum across lanes, and each output is
//! one chain of multiply-adds in the order of the columns, whatever the tile: that is what makes a batch of 1 and
//! of N equal to the bit. Rows past the last and an odd last column are zeros. Values are never rounded: parts of
//! different types are widened to f32 together.

use super::simd::{LANES, Simd};
use crate::weights::DType;
use half::{bf16, f16};

/// Groups of a strip of weights.
pub(super) const STRIP: usize = 2;
/// Weight matrices are padded to a multiple of this many rows: whole strips.
pub(super) const ROW_MULTIPLE: usize = STRIP * LANES;

/// How a pair of columns becomes two vectors.
pub(super) trait Format: Copy + Send + Sync + 'static {
    /// Bytes from one pair to the next.
    const PAIR_BYTES: usize;
    /// Whether `dot_bf16` may be used on it.
    const IS_BF16: bool;
    /// The even column.
    ///
    /// # Safety
    /// `PAIR_BYTES` bytes at `p` are readable.
    unsafe fn even<S: Simd>(s: S, p: *const u8) -> S::V;
    /// The odd column.
    ///
    /// # Safety
    /// `PAIR_BYTES` bytes at `p` are readable.
    unsafe fn odd<S: Simd>(s: S, p: *const u8) -> S::V;
}

/// Words of two bf16.
#[derive(Clone, Copy)]
pub(super) struct Bf16;
/// Columns of f16.
#[derive(Clone, Copy)]
pub(super) struct F16;
/// Columns of f32.
#[derive(Clone, Copy)]
pub(super) struct F32;

impl Format for Bf16 {
    const PAIR_BYTES: usize = 64;
    const IS_BF16: bool = true;
    #[inline(always)]
    unsafe fn even<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load_bf16_even(p) }
    }
    #[inline(always)]
    unsafe fn odd<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load_bf16_odd(p) }
    }
}

impl Format for F16 {
    const PAIR_BYTES: usize = 64;
    const IS_BF16: bool = false;
    #[inline(always)]
    unsafe fn even<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load_f16(p) }
    }
    #[inline(always)]
    unsafe fn odd<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load_f16(p.add(32)) }
    }
}

impl Format for F32 {
    const PAIR_BYTES: usize = 128;
    const IS_BF16: bool = false;
    #[inline(always)]
    unsafe fn even<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn odd<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: as the caller vouches.
        unsafe { s.load(p.add(64).cast()) }
    }
}

/// Bytes of a pair of columns of 16 rows.
pub(super) fn pair_bytes(dtype: DType) -> usize {
    match dtype {
        DType::BF16 => Bf16::PAIR_BYTES,
        DType::F16 => F16::PAIR_BYTES,
        DType::F32 => F32::PAIR_BYTES,
    }
}

/// Shape of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// What it is packed as.
    pub(super) dtype: DType,
    /// Rows (outputs).
    pub(super) rows: usize,
    /// Columns (inputs).
    pub(super) cols: usize,
    /// Groups whose pairs alternate.
    pub(super) strip: usize,
}

impl Layout {
    /// Groups of 16 rows.
    pub(super) fn groups(&self) -> usize {
        self.rows.div_ceil(LANES)
    }
    /// Pairs of columns.
    pub(super) fn pairs(&self) -> usize {
        self.cols.div_ceil(2)
    }
    /// Bytes from a pair of columns to the next.
    pub(super) fn pair_step(&self) -> usize {
        self.strip * pair_bytes(self.dtype)
    }
    /// Bytes from one strip to the next.
    pub(super) fn strip_bytes(&self) -> usize {
        self.pairs() * self.pair_step()
    }
    /// Strips.
    pub(super) fn strips(&self) -> usize {
        self.groups().div_ceil(self.strip)
    }
    /// Bytes of all; `None` where that overflows.
    pub(super) fn bytes(&self) -> Option<usize> {
        self.strips().checked_mul(self.pairs())?.checked_mul(self.pair_step())
    }
    /// Byte of column `col` in a strip's bytes, for row `lane` of the strip.
    pub(super) fn byte_of(&self, lane: usize, col: usize) -> usize {
        let (group, lane) = (lane / LANES, lane % LANES);
        let pair = col / 2 * self.pair_step() + group * pair_bytes(self.dtype);
        match self.dtype {
            DType::BF16 => pair + lane * 4 + col % 2 * 2,
            DType::F16 => pair + col % 2 * 32 + lane * 2,
            DType::F32 => pair + col % 2 * 64 + lane * 4,
        }
    }

    /// Packs one row of `source` (row-major bytes of `cols` elements of type `from`) as row `lane` of the strip
    /// `strip`, which was all zeros.
    pub(super) fn pack_row(&self, strip: &mut [u8], lane: usize, source: &[u8], from: DType) {
        debug_assert!(lane < self.strip * LANES && strip.len() == self.strip_bytes());
        debug_assert_eq!(source.len(), self.cols * from.size());
        debug_assert!(from == self.dtype || self.dtype == DType::F32, "mixed types are widened");
        let (group, lane) = (lane / LANES, lane % LANES);
        let bytes = pair_bytes(self.dtype);
        let pairs = strip.chunks_exact_mut(bytes).skip(group).step_by(self.strip).zip(source.chunks(2 * from.size()));
        match self.dtype {
            DType::BF16 => pairs.for_each(|(pair, x)| pair[lane * 4..][..x.len()].copy_from_slice(x)),
            DType::F16 => pairs.for_each(|(pair, x)| {
                for (half, x) in pair.chunks_exact_mut(32).zip(x.chunks_exact(2)) {
                    half[lane * 2..][..2].copy_from_slice(x);
                }
            }),
            DType::F32 => pairs.for_each(|(pair, x)| {
                for (half, x) in pair.chunks_exact_mut(64).zip(x.chunks_exact(from.size())) {
                    half[lane * 4..][..4].copy_from_slice(&widen(from, x).to_le_bytes());
                }
            }),
        }
    }

    /// Reads back row `lane` of a strip: what an embedding looks up.
    pub(super) fn unpack_row(&self, strip: &[u8], lane: usize, out: &mut [f32]) {
        debug_assert!(lane < self.strip * LANES && strip.len() == self.strip_bytes() && out.len() == self.cols);
        let size = self.dtype.size();
        for (col, x) in out.iter_mut().enumerate() {
            let at = self.byte_of(lane, col);
            *x = widen(self.dtype, &strip[at..at + size]);
        }
    }
}

/// One little-endian element as f32; exact.
pub(super) fn widen(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        _ => {
            debug_assert!(false, "{} bytes for one {dtype:?}", bytes.len());
            f32::NAN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_row_reads_back_as_it_was() {
        for (dtype, from) in [
            (DType::BF16, DType::BF16),
            (DType::F16, DType::F16),
            (DType::F32, DType::F32),
            (DType::F32, DType::BF16),
            (DType::F32, DType::F16),
        ] {
            let layout = Layout { dtype, rows: 32, cols: 7, strip: STRIP };
            let mut strip = vec![0; layout.strip_bytes()];
            let value = |row: usize, col: usize| ((row * 7 + col) % 29) as f32 - 9.5;
            for row in [0, 1, 15, 16, 31] {
                let source: Vec<u8> = (0..7)
                    .flat_map(|col| match from {
                        DType::F32 => value(row, col).to_le_bytes().to_vec(),
                        DType::BF16 => bf16::from_f32(value(row, col)).to_le_bytes().to_vec(),
                        DType::F16 => f16::from_f32(value(row, col)).to_le_bytes().to_vec(),
                    })
                    .collect();
                layout.pack_row(&mut strip, row, &source, from);
            }
            for row in [0, 1, 15, 16, 31] {
                let mut out = [0.0; 7];
                layout.unpack_row(&strip, row, &mut out);
                assert_eq!(out.to_vec(), (0..7).map(|col| value(row, col)).collect::<Vec<_>>(), "{dtype:?} {from:?}");
            }
        }
    }
}
