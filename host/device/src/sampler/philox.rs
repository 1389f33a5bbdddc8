//! Philox4x32-10: a random function of (key, counter) instead of a generator with state.
//!
//! Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A GPU kernel computes
//! the same words, whatever the order in which it visits tokens.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a counter under a key.
pub fn philox4x32(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut k, mut c) = (key, counter);
    for _ in 0..10 {
        c = round(k, c);
        k = next_key(k);
    }
    c
}

/// As [`philox4x32`] for counters `[c0, c1, third[lane], 0]`, side by side so that the multiplications overlap;
/// one result for each.
pub fn philox4x32_lanes<const N: usize>(key: [u32; 2], first: [u32; 2], third: [u32; N]) -> [[u32; 4]; N] {
    let mut k = key;
    let mut counters = third.map(|third| [first[0], first[1], third, 0]);
    for _ in 0..10 {
        counters = counters.map(|c| round(k, c));
        k = next_key(k);
    }
    counters
}

#[inline(always)]
fn round(k: [u32; 2], c: [u32; 4]) -> [u32; 4] {
    let a = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
    let b = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
    [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32]
}

fn next_key(k: [u32; 2]) -> [u32; 2] {
    [k[0].wrapping_add(KEY_STEPS[0]), k[1].wrapping_add(KEY_STEPS[1])]
}

#[cfg(test)]
mod tests {
    use super::philox4x32;

    /// `kat_vectors` of the authors' Random123 distribution.
    #[test]
    fn known_answers_are_reproduced() {
        let check = |counter, key, want: [u32; 4]| assert_eq!(philox4x32(key, counter), want);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }
}
