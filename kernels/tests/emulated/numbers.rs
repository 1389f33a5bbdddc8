//! Random inputs, and what counts as equal.

use half::bf16;

/// How far a kernel may be from the reference: `|a - b| <= atol + rtol * |b|`. All round their outputs to bf16,
/// which alone is 2^-9 of the value.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub atol: f32,
    pub rtol: f32,
}

/// One rounding to bf16 of an f32 that is itself right to a few units.
pub const ROUNDED: Tolerance = Tolerance { atol: 1e-6, rtol: 1.0 / 240.0 };
/// Attention also rounds its weights to bf16 before they meet the values.
pub const ATTENTION: Tolerance = Tolerance { atol: 4e-3, rtol: 1.0 / 120.0 };

/// A small generator (xorshift64*); the same numbers everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn word(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.word() as usize % n
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        self.word() as f32 / 2_147_483_648.0 - 1.0
    }

    pub fn f32s(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }

    pub fn bf16s(&mut self, len: usize, scale: f32) -> Vec<bf16> {
        (0..len).map(|_| bf16::from_f32(self.unit() * scale)).collect()
    }

    pub fn shuffled(&mut self, len: usize) -> Vec<i32> {
        let mut all: Vec<i32> = (0..len as i32).collect();
        (1..len).rev().for_each(|i| all.swap(i, self.below(i + 1)));
        all
    }
}

pub fn widen(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

/// Fails with the worst element.
pub fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: Tolerance) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let excess = |(a, b): (&f32, &f32)| (a - b).abs() - tolerance.atol - tolerance.rtol * b.abs();
    for (i, pair) in got.iter().zip(want).enumerate() {
        // A NaN is never close.
        assert!(excess(pair) <= 0.0, "{what}: element {i} of {} is {}, expected {}", got.len(), pair.0, pair.1);
    }
}
