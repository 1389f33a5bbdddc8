//! Sixteen floats at a time, on whatever the processor offers.
//!
//! Kernels are written once over [`Simd`] and compiled once for each instruction set: [`Simd::run`] enters a
//! function that has the instruction set enabled, and everything `#[inline(always)]` below it is compiled there.
//! A value of a `Simd` type is the proof that the processor has the instructions, since only detection makes one.
//!
//! A vector is always 16 lanes (two registers on AVX2), so that layouts do not depend on the instruction set, and
//! AVX2 and AVX-512F give the same bits. Read next: `gemm`.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

/// Lanes of a vector, rows of a packed weight group, and positions of a cache block.
pub(super) const LANES: usize = 16;

/// A level of an instruction set: everything in f32; bf16 weights are widened, bit for bit the same everywhere.
pub(super) const EXACT: u8 = 0;
/// Linear layers over bf16 weights round their activations to bf16, as every framework does that computes in bf16, and
/// multiply them with two-term products.
pub(super) const DOT: u8 = 1;
/// The same on tiles.
pub(super) const TILES: u8 = 2;

/// Rows of a tile register.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of one of its rows.
pub(super) const ROW_BYTES: usize = 64;
/// Pairs of columns in one step of tiles: their weights fill a register.
pub(super) const STEP_PAIRS: usize = 16;

/// `out = begin + x * w` for a tile of tokens and the two groups of a strip of bf16 weights.
pub(super) struct TileProduct {
    /// Pairs of both groups in turns, 128 bytes for each.
    pub(super) w: *const u8,
    /// Of each half of the tokens: their rows of 64 bytes of a step, then those of the next.
    pub(super) x: [*const u8; 2],
    /// Tokens of each half, at most 16; the second may have none.
    pub(super) halves: [usize; 2],
    /// What the sums begin with: the first token's first.
    pub(super) begin: *const f32,
    /// Bytes to the next token's; 0 where all begin alike.
    pub(super) begin_step: usize,
    /// The first token's first output.
    pub(super) out: *mut f32,
    /// Bytes from a token's outputs to the next one's.
    pub(super) out_step: usize,
}

/// A piece of work that is compiled for each instruction set. `call` is `#[inline(always)]`, as is all it calls.
pub(super) trait Op {
    /// What it returns.
    type Out;
    /// Does it with the instructions of `s`.
    fn call<S: Simd>(self, s: S) -> Self::Out;
}

/// An instruction set. Every method is `#[inline(always)]` and only fast below [`Simd::run`].
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// For messages.
    const NAME: &'static str;
    /// Most tokens of a register tile of a linear layer.
    const TILE: usize;
    /// Most queries of one in attention.
    const QUERY_TILE: usize = Self::TILE;
    /// Whether `dot_bf16` exists: the linear layers then round activations to bf16.
    const DOT_BF16: bool = false;
    /// Whether linear layers over bf16 weights run on the tiles of AMX, see `gemm::blocks`.
    const TILES: bool = false;
    /// Without `dot_bf16`: what everything but linear layers over bf16 weights runs on.
    type Exact: Simd;
    /// Sixteen f32.
    type V: Copy;

    /// The proof for [`Self::Exact`], which needs no more.
    fn exact(self) -> Self::Exact;

    /// Groups of 16 weight rows in the register tile of `tokens` tokens: 1, or the 2 of a strip. Where there are
    /// several tiles, all have the same. In attention, with queries for tokens: blocks of keys, or groups of 16 elements of a head.
    fn tile_groups(tokens: usize) -> usize;

    /// Runs `op` where the instruction set is enabled.
    fn run<O: Op>(self, op: O) -> O::Out;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Lane-wise sum.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise difference.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise product.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise quotient.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise maximum.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise minimum.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused except in the portable set.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// To the nearest integer, as f32.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for lanes that are integers in -126..=127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// `v` where `x > limit`, else 0.
    fn zero_unless_above(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// The lanes in order.
    fn to_array(self, v: Self::V) -> [f32; LANES];
    /// The lanes in order.
    fn vector_of(self, a: [f32; LANES]) -> Self::V;

    /// Sixteen f32.
    ///
    /// # Safety
    /// 64 bytes at `p` are readable.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Sixteen f32.
    ///
    /// # Safety
    /// 64 bytes at `p` are writable.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// The low halves of sixteen 32-bit words as bf16.
    ///
    /// # Safety
    /// 64 bytes at `p` are readable.
    unsafe fn load_bf16_even(self, p: *const u8) -> Self::V;
    /// The high halves of sixteen 32-bit words as bf16.
    ///
    /// # Safety
    /// 64 bytes at `p` are readable.
    unsafe fn load_bf16_odd(self, p: *const u8) -> Self::V;
    /// Sixteen f16.
    ///
    /// # Safety
    /// 32 bytes at `p` are readable.
    unsafe fn load_f16(self, p: *const u8) -> Self::V;
    /// Asks for the line at `p`; any address is allowed.
    fn prefetch(self, p: *const u8);

    /// `acc + even(w) * even(x) + odd(w) * odd(x)` where the lanes of `w` and `x` are pairs of bf16 (even low, odd
    /// high), where [`Self::DOT_BF16`].
    #[inline(always)]
    fn dot_bf16(self, acc: Self::V, w: Self::V, x: Self::V) -> Self::V {
        let _ = (w, x);
        debug_assert!(Self::DOT_BF16, "only where the instruction exists");
        acc
    }

    /// Shapes the tile registers for products of `pairs` pairs a step, where [`Self::TILES`]. The processor waits for all
    /// tiles in work: a quarter of a prefill's time when it was done for each product.
    #[inline(always)]
    fn shape_tiles(self, halves: [usize; 2], pairs: usize) {
        let _ = (halves, pairs);
        debug_assert!(Self::TILES, "only where there are tiles");
    }

    /// Computes a product of `steps` steps of `pairs` pairs each, where [`Self::TILES`].
    ///
    /// # Safety
    /// The registers were last shaped, on this thread, for the product's halves and `pairs`; its memory is what its
    /// fields say, and nobody else touches `out`.
    #[inline(always)]
    unsafe fn multiply_tiles(self, product: &TileProduct, steps: usize, pairs: usize) {
        let _ = (product, steps, pairs);
        debug_assert!(Self::TILES, "only where there are tiles");
    }

    /// Lets the tile registers go, where [`Self::TILES`]: a switch to another thread then need not save them.
    #[inline(always)]
    fn release_tiles(self) {
        debug_assert!(Self::TILES, "only where there are tiles");
    }

    /// The sum of the lanes, always in the same order.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut a = self.to_array(v);
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] += a[i + half];
            }
            half /= 2;
        }
        a[0]
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let a = self.to_array(v);
        let mut most = a[0];
        for x in a {
            most = if x > most { x } else { most };
        }
        most
    }

    /// The first 16 elements of `slice`, zeros where it is shorter.
    #[inline(always)]
    fn load_slice(self, slice: &[f32]) -> Self::V {
        if slice.len() >= LANES {
            // SAFETY: the slice has 16 elements.
            return unsafe { self.load(slice.as_ptr()) };
        }
        let mut a = [0.0; LANES];
        a[..slice.len()].copy_from_slice(slice);
        self.vector_of(a)
    }

    /// Writes as many lanes as `slice` takes.
    #[inline(always)]
    fn store_slice(self, slice: &mut [f32], v: Self::V) {
        if slice.len() >= LANES {
            // SAFETY: the slice has 16 elements.
            return unsafe { self.store(slice.as_mut_ptr(), v) };
        }
        let n = slice.len();
        slice.copy_from_slice(&self.to_array(v)[..n]);
    }

    /// `e^x` within 2 units in the last place for -87 < x < 88; 0 below, `e^88` above. Cephes' `expf`.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        const LOWEST: f32 = -87.0;
        let clamped = self.min(self.max(x, self.splat(LOWEST)), self.splat(88.0));
        let n = self.round(self.mul(clamped, self.splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, so that n times the first is exact.
        let r = self.fma(n, self.splat(-0.693_359_4), clamped);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_58e-2, 1.666_666_5e-1, 0.5] {
            p = self.fma(p, r, self.splat(c));
        }
        let y = self.add(self.fma(p, self.mul(r, r), r), self.splat(1.0));
        self.zero_unless_above(x, self.splat(LOWEST), self.mul(y, self.pow2(n)))
    }
}
