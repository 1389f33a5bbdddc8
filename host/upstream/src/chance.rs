//! Chance, where nothing depends on it but how requests spread.

use std::hash::{BuildHasher, RandomState};

/// Any number. The standard library's hasher is keyed anew each time, without a call of the kernel.
pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// From 0 up to 1.
pub(crate) fn fraction() -> f64 {
    (number() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Below `bound`, which is not 0.
pub(crate) fn below(bound: usize) -> usize {
    (number() % bound as u64) as usize
}
