//! AVX-512: one register for a vector of sixteen, 32 of them; with BF16 also the two-term dot product, and on processors
//! with AMX its tiles for linear layers.

use super::{DOT, EXACT, LANES, Op, Simd, TILES, TileProduct, amx};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512F (with AVX2, FMA, F16C), and what the `LEVEL` asks for beside it.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx512<const LEVEL: u8>(());

impl<const LEVEL: u8> Avx512<LEVEL> {
    /// `None` where the processor lacks any of them.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        let base = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("avx512f");
        let dot = LEVEL < DOT || (is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw"));
        let tiles = LEVEL < TILES || amx::is_allowed();
        (base && dot && tiles).then_some(Self(()))
    }
}

/// # Safety
/// The processor has the named features, which an [`Avx512`] proves.
#[target_feature(enable = "avx2,fma,f16c,avx512f")]
unsafe fn enter<const LEVEL: u8, O: Op>(s: Avx512<LEVEL>, op: O) -> O::Out {
    op.call(s)
}

/// # Safety
/// The processor has the named features, which an [`Avx512`] from [`DOT`] on proves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512bf16")]
unsafe fn enter_dot<const LEVEL: u8, O: Op>(s: Avx512<LEVEL>, op: O) -> O::Out {
    op.call(s)
}

impl<const LEVEL: u8> Simd for Avx512<LEVEL> {
    const NAME: &'static str = match LEVEL {
        EXACT => "avx512",
        DOT => "avx512-bf16",
        _ => "amx-bf16",
    };
    const TILE: usize = 12;
    const QUERY_TILE: usize = 6;
    type Exact = Avx512<EXACT>;
    const DOT_BF16: bool = LEVEL >= DOT;
    const TILES: bool = LEVEL >= TILES;
    type V = __m512;

    fn exact(self) -> Self::Exact {
        Avx512(())
    }
    #[inline(always)]
    fn tile_groups(_tokens: usize) -> usize {
        // Of 32 registers at most 24 are accumulators: 2 groups * 12 tokens.
        2
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        // rustc 1.95 drops `inline(never)` where there is `target_feature`: hide what is called instead.
        // SAFETY: `self` proves the features.
        unsafe {
            let enter: unsafe fn(Self, O) -> O::Out = if LEVEL >= DOT { enter_dot } else { enter };
            std::hint::black_box(enter)(self, op)
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves the features. Scale 0 and rounding to nearest even: an integer.
        unsafe { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(a) }
    }
    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn zero_unless_above(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, limit), v) }
    }
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: `out` has 16 elements.
        unsafe { self.store(out.as_mut_ptr(), v) };
        out
    }
    #[inline(always)]
    fn vector_of(self, a: [f32; LANES]) -> Self::V {
        // SAFETY: `a` has 16 elements.
        unsafe { self.load(a.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 64 readable bytes.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: `self` proves the features, the caller vouches for 64 writable bytes.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16_even(self, p: *const u8) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 64 readable bytes.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_odd(self, p: *const u8) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 64 readable bytes.
        unsafe {
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p.cast()), high))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 32 readable bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn dot_bf16(self, acc: Self::V, w: Self::V, x: Self::V) -> Self::V {
        debug_assert!(Self::DOT_BF16, "only where the instruction exists");
        // SAFETY: `self` proves the features from `DOT` on. The casts reinterpret 64 bytes as 32 bf16, for which every
        // bit pattern is valid.
        unsafe {
            let pairs = |v| std::mem::transmute::<__m512, __m512bh>(v);
            _mm512_dpbf16_ps(acc, pairs(w), pairs(x))
        }
    }
    #[inline(always)]
    fn shape_tiles(self, halves: [usize; 2], pairs: usize) {
        debug_assert!(Self::TILES, "only where there are tiles");
        // SAFETY: `self` proves the tiles.
        unsafe { amx::shape(halves, pairs) }
    }
    #[inline(always)]
    unsafe fn multiply_tiles(self, product: &TileProduct, steps: usize, _pairs: usize) {
        debug_assert!(Self::TILES, "only where there are tiles");
        // SAFETY: `self` proves the tiles; the caller vouches for the rest.
        unsafe { product.compute(steps) }
    }
    #[inline(always)]
    fn release_tiles(self) {
        debug_assert!(Self::TILES, "only where there are tiles");
        // SAFETY: `self` proves the tiles.
        unsafe { amx::release() }
    }
}
