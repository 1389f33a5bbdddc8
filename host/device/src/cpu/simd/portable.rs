//! Plain Rust that any processor runs; the compiler makes of it what its baseline allows (SSE2 on x86-64).

use super::{DOT, EXACT, LANES, Op, ROW_BYTES, Simd, TILES, TileProduct};
use half::f16;

/// Needs nothing of the processor. From [`DOT`] on it emulates what other processors have, for tests on those that lack it.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Portable<const LEVEL: u8>;

/// Lane by lane.
#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = a;
    for (x, y) in out.iter_mut().zip(b) {
        *x = f(*x, y);
    }
    out
}

impl<const LEVEL: u8> Simd for Portable<LEVEL> {
    const NAME: &'static str = "portable";
    const DOT_BF16: bool = LEVEL >= DOT;
    const TILES: bool = LEVEL >= TILES;
    const TILE: usize = 4;
    type Exact = Portable<EXACT>;
    type V = [f32; LANES];

    fn exact(self) -> Self::Exact {
        Portable
    }
    #[inline(always)]
    fn tile_groups(_tokens: usize) -> usize {
        1
    }
    #[inline(never)]
    fn run<O: Op>(self, op: O) -> O::Out {
        op.call(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Not `mul_add`: without the instruction that is a slow library call.
        zip(zip(a, b, |x, y| x * y), c, |x, y| x + y)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding and taking away 1.5 * 2^23 leaves the nearest integer for all |x| < 2^22.
        const MAGIC: f32 = 12_582_912.0;
        zip(a, a, |x, _| (x + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        zip(n, n, |x, _| f32::from_bits(((x as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn zero_unless_above(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        let mut out = v;
        for i in 0..LANES {
            out[i] = if x[i] > limit[i] { v[i] } else { 0.0 };
        }
        out
    }
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        v
    }
    #[inline(always)]
    fn vector_of(self, a: [f32; LANES]) -> Self::V {
        a
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for 64 readable bytes; no alignment is asked.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for 64 writable bytes; no alignment is asked.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16_even(self, p: *const u8) -> Self::V {
        // SAFETY: the caller vouches for 64 readable bytes.
        let words = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        words.map(|w| f32::from_bits(w << 16))
    }
    #[inline(always)]
    unsafe fn load_bf16_odd(self, p: *const u8) -> Self::V {
        // SAFETY: the caller vouches for 64 readable bytes.
        let words = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        words.map(|w| f32::from_bits(w & 0xffff_0000))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        // SAFETY: the caller vouches for 32 readable bytes.
        let words = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        words.map(|w| f16::from_bits(w).to_f32())
    }
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
    #[inline(always)]
    fn dot_bf16(self, acc: Self::V, w: Self::V, x: Self::V) -> Self::V {
        debug_assert!(Self::DOT_BF16, "only where it is asked for");
        let even = |v: Self::V| v.map(|x| f32::from_bits(x.to_bits() << 16));
        let odd = |v: Self::V| v.map(|x| f32::from_bits(x.to_bits() & 0xffff_0000));
        self.fma(odd(w), odd(x), self.fma(even(w), even(x), acc))
    }
    fn shape_tiles(self, _halves: [usize; 2], _pairs: usize) {}
    /// To the bit what AMX computes, but for numbers too small to be normal: those it takes for zero.
    unsafe fn multiply_tiles(self, product: &TileProduct, steps: usize, pairs: usize) {
        debug_assert!(Self::TILES, "only where it is asked for");
        let word = |p: *const u8, at: usize| {
            // SAFETY: the caller vouches for the words below.
            let bits = unsafe { p.add(at).cast::<u32>().read_unaligned() };
            [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
        };
        for (half, step) in [0, 1].into_iter().flat_map(|half| (0..steps).map(move |step| (half, step))) {
            let tokens = product.halves[half];
            for (token, row) in (0..tokens).flat_map(|token| (0..2 * LANES).map(move |row| (token, row))) {
                let mut sums = [0.0f32; 2];
                for pair in 0..pairs {
                    let x = word(product.x[half], (step * tokens + token) * ROW_BYTES + pair * 4);
                    let w = word(product.w, (step * super::STEP_PAIRS + pair) * 2 * ROW_BYTES + row * 4);
                    sums = [x[0].mul_add(w[0], sums[0]), x[1].mul_add(w[1], sums[1])];
                }
                let token = half * product.halves[0] + token;
                let (begin, begin_step) = match step {
                    0 => (product.begin, product.begin_step),
                    _ => (product.out.cast_const(), product.out_step),
                };
                // SAFETY: as the caller vouches.
                unsafe {
                    let begin = *begin.byte_add(token * begin_step).add(row);
                    *product.out.byte_add(token * product.out_step).add(row) = begin + (sums[0] + sums[1]);
                }
            }
        }
    }
}
