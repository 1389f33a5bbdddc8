//! The register tile: groups of 16 weight rows by tokens, and the one inner loop of all products.
//!
//! On AVX2 six tokens by one group fill the sixteen registers (twelve sums, two of weights, one activation) and the
//! multiply-adds are what bounds it. Whoever changes `accumulate` looks at the assembly: a sum that is spilled in the
//! inner loop costs more than any other change gains.

use crate::cpu::pack::Format;
use crate::cpu::simd::{LANES, Op, Simd};
use std::marker::PhantomData;

/// Runs the tile that is compiled for `tokens`: `T`, and `G` for its groups, are constants in the body, an [`Op`].
///
/// Each tile is a function of its own (`Simd::run` is not inlined), or the compiler would spend minutes on one
/// function that holds them all.
macro_rules! pick_tile {
    (linear $s:ident: $S:ident, $tokens:expr, |$G:ident, $T:ident| $op:expr) => {
        if <$S as Simd>::TILE > 6 {
            pick_tile!(@arms $s: $S, $tokens, $G, $T, $op;
                (2, 1) (2, 2) (2, 3) (2, 4) (2, 5) (2, 6) (2, 7) (2, 8) (2, 9) (2, 10) (2, 11) (2, 12))
        } else {
            pick_tile!(query $s: $S, $tokens, |$G, $T| $op)
        }
    };
    (query $s:ident: $S:ident, $tokens:expr, |$G:ident, $T:ident| $op:expr) => {
        if <$S as Simd>::TILE > 6 {
            pick_tile!(@arms $s: $S, $tokens, $G, $T, $op; (2, 1) (2, 2) (2, 3) (2, 4) (2, 5) (2, 6))
        } else if <$S as Simd>::TILE > 4 {
            pick_tile!(@arms $s: $S, $tokens, $G, $T, $op; (2, 1) (2, 2) (1, 3) (1, 4) (1, 5) (1, 6))
        } else {
            pick_tile!(@arms $s: $S, $tokens, $G, $T, $op; (1, 1) (1, 2) (1, 3) (1, 4))
        }
    };
    (@arms $s:ident: $S:ident, $at:expr, $G:ident, $T:ident, $op:expr; $(($g:literal, $t:literal))+) => {
        match $at {
            $($t => {
                debug_assert_eq!($g, <$S as Simd>::tile_groups($t));
                const $G: usize = $g;
                const $T: usize = $t;
                $s.run($op)
            })+
            tokens => debug_assert!(false, "no tile of {tokens} tokens"),
        }
    };
}
pub(in crate::cpu) use pick_tile;

/// One register tile: addresses into weights, panel and output.
pub(super) struct TileJob {
    pub(super) w: *const u8,
    /// Bytes from a pair of columns to the next.
    pub(super) pair_step: usize,
    pub(super) x: *const f32,
    pub(super) pairs: usize,
    /// Bytes from a weight to what is prefetched with it.
    pub(super) ahead: usize,
    /// Starts the chains (from the bias) instead of carrying them on from `out`.
    pub(super) first: bool,
    pub(super) bias: Option<*const f32>,
    pub(super) out: *mut f32,
    pub(super) stride: usize,
}

/// `G` groups (of one strip) by `T` tokens of weights in format `F`. Making one vouches that `w` has `pairs` pairs,
/// `x` a panel of `pairs` pairs of columns for `T` tokens, `out` `T` rows of `16 G` columns that nobody else
/// touches meanwhile, and `bias` `16 G` elements.
pub(super) struct Tile<'a, F: Format, const G: usize, const T: usize>(
    pub(super) &'a TileJob,
    pub(super) PhantomData<F>,
);

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
                w[g] = job.w.add(g * F::PAIR_BYTES);
                for t in 0..T {
                    if !job.first {
                        acc[g][t] = s.load(job.out.add(t * job.stride + g * LANES));
                    } else if let Some(bias) = job.bias {
                        acc[g][t] = s.load(bias.add(g * LANES));
                    }
                }
            }
            if S::DOT_BF16 && F::IS_BF16 {
                accumulate_dot::<S, G, T>(s, &mut acc, w, job.x.cast(), job.pairs, job.pair_step, job.ahead);
            } else {
                accumulate::<S, F, G, T, 0>(s, &mut acc, w, job.x, job.pairs, job.pair_step, job.ahead);
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
/// `step` is the bytes from a pair to the next. Each weight also prefetches what lies `ahead` bytes behind it.
/// `ROW` says where `x[t][k]` is: 0 for a panel (`x[k * T + t]`), else rows of `ROW` floats (`x[t * ROW + k]`).
///
/// # Safety
/// Each `w` has `pairs` pairs, and `x` the elements named above.
#[inline(always)]
pub(in crate::cpu) unsafe fn accumulate<S: Simd, F: Format, const G: usize, const T: usize, const ROW: usize>(
    s: S,
    acc: &mut [[S::V; T]; G],
    mut w: [*const u8; G],
    mut x: *const f32,
    pairs: usize,
    step: usize,
    ahead: usize,
) {
    let at = |k: usize, t: usize| if ROW == 0 { k * T + t } else { t * ROW + k };
    for _ in 0..pairs {
        // SAFETY: the caller vouches for `pairs` pairs at `w` and `x`; a prefetch may go anywhere.
        unsafe {
            if T <= 2 {
                // Group by group: the few activations stay in registers, each column is used at once.
                for g in 0..G {
                    s.prefetch(w[g].wrapping_add(ahead));
                    let even = F::even(s, w[g]);
                    for t in 0..T {
                        acc[g][t] = s.fma(even, s.splat(*x.add(at(0, t))), acc[g][t]);
                    }
                    let odd = F::odd(s, w[g]);
                    for t in 0..T {
                        acc[g][t] = s.fma(odd, s.splat(*x.add(at(1, t))), acc[g][t]);
                    }
                    w[g] = w[g].add(step);
                }
            } else {
                // Column by column: each activation is loaded once for all groups.
                let mut column = [s.splat(0.0); G];
                for g in 0..G {
                    s.prefetch(w[g].wrapping_add(ahead));
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
                    w[g] = w[g].add(step);
                }
                for t in 0..T {
                    let x = s.splat(*x.add(at(1, t)));
                    for g in 0..G {
                        acc[g][t] = s.fma(column[g], x, acc[g][t]);
                    }
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
    step: usize,
    ahead: usize,
) {
    for _ in 0..pairs {
        // Token by token, or the compiler keeps all activations for the next group and spills sums.
        // SAFETY: as the caller vouches.
        unsafe {
            let mut column = [s.splat(0.0); G];
            for g in 0..G {
                s.prefetch(w[g].wrapping_add(ahead));
                column[g] = s.load(w[g].cast());
                w[g] = w[g].add(step);
            }
            for t in 0..T {
                let x = s.splat(f32::from_bits(*x.add(t)));
                for g in 0..G {
                    acc[g][t] = s.dot_bf16(acc[g][t], column[g], x);
                }
            }
            x = x.add(T);
        }
    }
}
