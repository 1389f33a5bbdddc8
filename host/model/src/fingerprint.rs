//! A name for a model's weights, for keys of caches that outlive a load.
//!
//! BLAKE3 over config.json, every file's header (names, types, shapes, offsets), and from every tensor 1 KiB at
//! its start, middle and end. Reading all bytes of a large model would take seconds; training changes every
//! tensor nearly everywhere, so samples tell checkpoints apart. What it does not see: a change by hand within a
//! tensor, away from its samples. Copies of a folder have the same fingerprint: times and paths do not enter.

use crate::weights::Weights;

/// 256 bits that stand for config and weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

const SAMPLE_BYTES: usize = 1024;

/// The fingerprint of a config's bytes with its weights.
pub(crate) fn of(config: &[u8], weights: &Weights) -> Fingerprint {
    let mut hasher = blake3::Hasher::new_derive_key("tidegate model fingerprint 1");
    add(&mut hasher, config);
    for shard in weights.shards() {
        add(&mut hasher, shard.header());
        shard.contents().for_each(|bytes| add_samples(&mut hasher, bytes));
    }
    Fingerprint(*hasher.finalize().as_bytes())
}

/// Each piece with its length, so that bytes cannot move from one piece to the next unseen.
fn add(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn add_samples(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    if bytes.len() <= 3 * SAMPLE_BYTES {
        return add(hasher, bytes);
    }
    let middle = bytes.len() / 2;
    for start in [0, middle, bytes.len() - SAMPLE_BYTES] {
        add(hasher, &bytes[start..start + SAMPLE_BYTES]);
    }
}
