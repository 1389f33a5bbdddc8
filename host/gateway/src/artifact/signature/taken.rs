//! Which of an artifact's signatures are taken where there are more than there is room for. Whoever may put signatures beside an
//! artifact may put there as many as they like: so one by each key that somebody knows comes first, and of the others those that
//! came first. Nobody's takes a known key's place, and none takes that of one which is there already.

use super::{Digest, PublicKey, Signature, fill, passed_over};
use std::collections::BTreeMap;

/// Signatures of one artifact, of each form as many as are read.
pub struct Taken<'a> {
    artifact: &'a Digest,
    /// In the order of what they are worth.
    known: &'a [PublicKey],
    /// One by each of these: anybody can write a bundle in other words, and it is its signer's all the same.
    by_known: BTreeMap<usize, Signature>,
    others: Vec<Signature>,
    num_left_out: usize,
}

impl<'a> Taken<'a> {
    /// None yet.
    pub fn new(artifact: &'a Digest, known: &'a [PublicKey]) -> Self {
        Self { artifact, known, by_known: BTreeMap::new(), others: Vec::new(), num_left_out: 0 }
    }

    /// Takes one, if there is room.
    pub fn add(&mut self, one: Signature) {
        match self.known.iter().position(|key| one.is_of(key, self.artifact)) {
            Some(key) if !self.by_known.contains_key(&key) => _ = self.by_known.insert(key, one),
            _ => self.num_left_out += fill(&mut self.others, [one]),
        }
    }

    /// Whether a known key's may come yet.
    pub fn misses_a_key(&self) -> bool {
        self.by_known.len() < self.known.len()
    }

    /// All of them.
    pub fn all(self) -> Vec<Signature> {
        let mut all = Vec::new();
        let num_left_out = self.num_left_out + fill(&mut all, self.by_known.into_values().chain(self.others));
        if num_left_out > 0 {
            passed_over(num_left_out);
        }
        all
    }
}
