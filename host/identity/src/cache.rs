//! The tokens that were verified. By the SHA-256 of the whole token: a key made of a part of it would let in whoever sends
//! that part. Bounded by two halves, of which the older is forgotten when the younger is full.

use crate::claims::Verified;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What the whole of a token is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(token: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(bytes)
    }
}

/// A token that was verified, with the keys that its issuer had then.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) verified: Verified,
    /// Position of its issuer.
    pub(crate) issuer: usize,
    /// Which of the issuer's sets of keys confirmed it.
    pub(crate) keys: u64,
}

pub(crate) struct Cache {
    halves: Mutex<[HashMap<Fingerprint, Known>; 2]>,
    /// Tokens of one half.
    half: usize,
}

impl Cache {
    /// Holds at most `tokens`.
    pub(crate) fn new(tokens: usize) -> Self {
        Self { halves: Mutex::default(), half: (tokens / 2).max(1) }
    }

    pub(crate) fn get(&self, token: &Fingerprint) -> Option<Known> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = halves[0].get(token) {
            return Some(known.clone());
        }
        let known = halves[1].remove(token)?;
        self.insert(&mut halves, *token, known.clone());
        Some(known)
    }

    pub(crate) fn put(&self, token: Fingerprint, known: Known) {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        self.insert(&mut halves, token, known);
    }

    fn insert(&self, halves: &mut [HashMap<Fingerprint, Known>; 2], token: Fingerprint, known: Known) {
        if halves[0].len() >= self.half {
            halves.swap(0, 1);
            halves[0].clear();
        }
        halves[0].insert(token, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_asked_for() {
        let cache = Cache::new(8);
        let known = Known { verified: Verified::of("t", "u"), issuer: 0, keys: 0 };
        let token = |i: usize| Fingerprint::of(&format!("a.b.{i}"));
        for i in 0..100 {
            cache.put(token(i), known.clone());
            assert!(cache.get(&token(0)).is_some(), "{i}");
        }
        let held: usize = cache.halves.lock().unwrap().iter().map(HashMap::len).sum();
        assert!(held <= 8, "{held}");
        assert!(cache.get(&token(50)).is_none());
    }
}
