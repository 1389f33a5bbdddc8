//! The names of computed blocks: a keyed hash chain over the tokens from the start of the sequence.
//!
//! `root = H(key, model, layout, tenant)`, `h_i = H(key, h_(i-1), tokens_i)`, with keyed BLAKE3 of 256 bits. Equal
//! hashes mean equal prefixes of the same tenant on the same weights, so a hit needs no comparison of tokens; the
//! key is random in each process, so no caller can compute or collide a name (CVE-2025-25183). The tenant is in
//! the root, so no tenant can learn by timing what another has asked (CVE-2025-46570).

use crate::config::ModelFacts;
use tidegate_types::TenantId;

/// Name of a full block: of its tokens and all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 32]);

impl From<[u8; 32]> for BlockHash {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Makes the roots and links of chains.
#[derive(Clone, Debug)]
pub struct PrefixHasher {
    key: [u8; 32],
    model: String,
    layout: String,
}

/// First byte of what is hashed, so that a root can never equal a link.
const ROOT: u8 = 0;
const LINK: u8 = 1;

impl PrefixHasher {
    /// A hasher for one model under a secret key.
    pub fn new(key: [u8; 32], facts: &ModelFacts) -> Self {
        Self { key, model: facts.fingerprint.clone(), layout: facts.kv_layout.clone() }
    }

    /// What the first block of a tenant's sequence is chained to.
    pub fn root(&self, tenant: &TenantId) -> BlockHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[ROOT]);
        for field in [self.model.as_str(), self.layout.as_str(), tenant.as_str()] {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field.as_bytes());
        }
        BlockHash(*hasher.finalize().as_bytes())
    }

    /// The name of a block with `tokens` after the block named `parent`.
    pub fn link(&self, parent: BlockHash, tokens: &[u32]) -> BlockHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[LINK]);
        hasher.update(&parent.0);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        BlockHash(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(fingerprint: &str, kv_layout: &str) -> ModelFacts {
        ModelFacts {
            name: "m".into(),
            vocab: 10,
            max_positions: 10,
            fingerprint: fingerprint.into(),
            kv_layout: kv_layout.into(),
            kv_bytes_per_token: 1,
            pooling: None,
        }
    }

    #[test]
    fn roots_differ_by_key_model_layout_and_tenant() {
        let (a, b) = (TenantId::new("a"), TenantId::new("b"));
        let base = PrefixHasher::new([1; 32], &facts("w", "f32"));
        let others = [
            PrefixHasher::new([2; 32], &facts("w", "f32")).root(&a),
            PrefixHasher::new([1; 32], &facts("v", "f32")).root(&a),
            PrefixHasher::new([1; 32], &facts("w", "bf16")).root(&a),
            PrefixHasher::new([1; 32], &facts("wf", "32")).root(&a),
            base.root(&b),
        ];
        assert!(others.iter().all(|other| *other != base.root(&a)));
    }

    #[test]
    fn a_link_depends_on_its_tokens_and_all_before_them() {
        let hasher = PrefixHasher::new([1; 32], &facts("w", "f32"));
        let root = hasher.root(&TenantId::new("a"));
        let (x, y) = (hasher.link(root, &[1, 2]), hasher.link(root, &[2, 1]));
        assert_ne!(x, y);
        assert_ne!(hasher.link(x, &[3]), hasher.link(y, &[3]));
        assert_eq!(hasher.link(x, &[3]), hasher.link(hasher.link(root, &[1, 2]), &[3]));
    }
}
