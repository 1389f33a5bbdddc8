//! AVX2 with FMA and F16C: two registers of eight for each vector of sixteen.

use super::{LANES, Op, Simd};
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx2(());

impl Avx2 {
    /// `None` where the processor lacks any of them.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        (has && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }
}

/// # Safety
/// The processor has the named features, which an [`Avx2`] proves.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter<O: Op>(s: Avx2, op: O) -> O::Out {
    op.call(s)
}

/// Applies intrinsics to both registers.
macro_rules! both {
    ($f:ident, $($v:ident),+) => {
        // SAFETY: `self` proves the features; these intrinsics only compute on registers.
        unsafe { [$f($($v[0]),+), $f($($v[1]),+)] }
    };
}

impl Simd for Avx2 {
    const NAME: &'static str = "avx2";
    const TILE: usize = 6;
    type Exact = Self;
    type V = [__m256; 2];

    fn exact(self) -> Self {
        self
    }
    #[inline(always)]
    fn tile_groups(tokens: usize) -> usize {
        // Sixteen registers: accumulators are 2 * groups * tokens of them.
        if tokens <= 2 { 2 } else { 1 }
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        // rustc 1.95 drops `inline(never)` where there is `target_feature`: hide what is called instead.
        let enter: unsafe fn(Self, O) -> O::Out = std::hint::black_box(enter::<O>);
        // SAFETY: `self` proves the features.
        unsafe { enter(self, op) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: `self` proves the features.
        let v = unsafe { _mm256_set1_ps(x) };
        [v, v]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` proves the features.
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        let [lo, hi] = both!(_mm256_cvtps_epi32, n);
        // SAFETY: `self` proves the features.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(lo, bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(hi, bias))),
            ]
        }
    }
    #[inline(always)]
    fn zero_unless_above(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        // SAFETY: `self` proves the features.
        unsafe {
            [
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x[0], limit[0]), v[0]),
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x[1], limit[1]), v[1]),
            ]
        }
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
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: `self` proves the features, the caller vouches for 64 writable bytes.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_even(self, p: *const u8) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 64 readable bytes.
        unsafe {
            let lo = _mm256_loadu_si256(p.cast());
            let hi = _mm256_loadu_si256(p.add(32).cast());
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(lo)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(hi))]
        }
    }
    #[allow(clippy::pointers_in_nomem_asm_block, reason = "the block reads nothing: it hides an address")]
    #[inline(always)]
    unsafe fn load_bf16_odd(self, p: *const u8) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 64 readable bytes.
        unsafe {
            // The words were loaded before, for the even columns. Loading them again is free (the tile is bound by
            // its multiply-adds), keeping them takes registers that it has not: so hide that it is the same address.
            let mut p = p;
            std::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags));
            let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_and_ps(_mm256_loadu_ps(p.cast()), high), _mm256_and_ps(_mm256_loadu_ps(p.add(32).cast()), high)]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        // SAFETY: `self` proves the features, the caller vouches for 32 readable bytes.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))] }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
