//! The nearest of many entries, found a piece at a time: no piece is long, whatever the collection is.

use super::{Entry, Id, payload_bytes};
use crate::capability::CapabilityError;
use crate::capability::vectors::{MAX_FOUND_BYTES, VectorHit};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Numbers that are looked at without a pause.
const PIECE: usize = 128 << 10;
/// As how many of them an entry counts at least, and a pair of its payload, for each pair of the filter that it is compared with.
const LEAST: usize = 64;
/// Sums that run side by side in a product, which a processor adds at once.
const LANES: usize = 16;

/// A search that is under way.
pub(super) struct Nearest {
    /// Of length 1.
    asked: Vec<f32>,
    /// Pairs that an entry must have, each once.
    filter: Vec<(String, String)>,
    top_k: usize,
    /// The nearest so far, in no order, and some that are not.
    best: Vec<Found>,
    /// What is farther is none of them.
    least: f32,
    /// The last that was looked at.
    last: Option<Id>,
}

struct Found {
    score: f32,
    id: Id,
    payload: super::Payload,
}

impl Nearest {
    pub(super) fn new(vector: &[f32], top_k: usize, mut filter: Vec<(String, String)>) -> Self {
        filter.sort_unstable();
        filter.dedup();
        Self { asked: unit(vector), filter, top_k, best: Vec::new(), least: -1.0, last: None }
    }

    /// Looks at the next entries by id; says whether there are more.
    pub(super) fn look(&mut self, entries: &BTreeMap<Id, Entry>) -> bool {
        let after = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut left = PIECE;
        let pair = LEAST * self.filter.len().max(1);
        for (id, entry) in entries.range::<Id, _>((after, Bound::Unbounded)) {
            self.weigh(id, entry);
            left = left.saturating_sub(entry.unit.len().max(LEAST) + entry.payload.len() * pair);
            if left == 0 {
                self.last = Some(id.clone());
                return true;
            }
        }
        false
    }

    fn weigh(&mut self, id: &Id, entry: &Entry) {
        if entry.unit.len() != self.asked.len() || !self.may_be(entry) {
            return;
        }
        let score = dot(&self.asked, &entry.unit).clamp(-1.0, 1.0);
        if score < self.least {
            return;
        }
        self.best.push(Found { score, id: id.clone(), payload: entry.payload.clone() });
        // Sorting as many again as are kept costs each of them a little.
        if self.best.len() >= 2 * self.top_k.max(LEAST) {
            self.keep_nearest();
            self.least = self.best.last().map_or(f32::INFINITY, |farthest| farthest.score);
        }
    }

    fn keep_nearest(&mut self) {
        self.best.sort_unstable_by(nearer);
        self.best.truncate(self.top_k);
    }

    fn may_be(&self, entry: &Entry) -> bool {
        self.filter.len() <= entry.payload.len() && self.filter.iter().all(|pair| entry.payload.contains(pair))
    }

    /// The nearest first; refused where they are too much, before they are copied.
    pub(super) fn hits(mut self) -> Result<Vec<VectorHit>, CapabilityError> {
        self.keep_nearest();
        let bytes = |found: &Found| found.id.len() + payload_bytes(&found.payload);
        if self.best.iter().map(bytes).sum::<usize>() > MAX_FOUND_BYTES {
            let message = format!("more than {MAX_FOUND_BYTES} bytes at once; ask for fewer entries");
            return Err(CapabilityError::Invalid(message));
        }
        let hit = |Found { score, id, payload }| VectorHit { id: id.to_string(), score, payload: payload.to_vec() };
        Ok(self.best.into_iter().map(hit).collect())
    }
}

/// The nearer one first; of equal ones the first by id.
fn nearer(one: &Found, other: &Found) -> Ordering {
    other.score.total_cmp(&one.score).then_with(|| one.id.cmp(&other.id))
}

/// The vector of length 1 in the same direction.
pub(super) fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    vector.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

/// Of vectors of one length, always added in the same order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn entries(count: usize, dimensions: usize) -> BTreeMap<Id, Entry> {
        let vector = |n: usize| (0..dimensions).map(|d| ((n * 31 + d * 17) % 23) as f32 - 11.5).collect::<Vec<_>>();
        let entry = |n: usize| Entry { unit: unit(&vector(n)), payload: Arc::from([]) };
        (0..count).map(|n| (Arc::from(format!("{n:06}")), entry(n))).collect()
    }

    #[test]
    fn pieces_find_what_one_sorted_list_of_all_has_first() {
        let entries = entries(5_000, 37);
        let asked: Vec<f32> = (0..37).map(|d| (d % 5) as f32 - 1.0).collect();
        let mut all: Vec<(f32, Id)> = entries.iter().map(|(id, e)| (dot(&unit(&asked), &e.unit), id.clone())).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        for top_k in [0, 1, 7, 1_000, 6_000] {
            let (mut nearest, mut pieces) = (Nearest::new(&asked, top_k, Vec::new()), 1);
            while nearest.look(&entries) {
                pieces += 1;
            }
            assert!(pieces > 2, "{pieces} pieces");
            let found: Vec<String> = nearest.hits().unwrap().into_iter().map(|hit| hit.id).collect();
            let wanted: Vec<String> = all.iter().take(top_k).map(|(_, id)| id.to_string()).collect();
            assert_eq!(found, wanted, "top {top_k}");
        }
    }

    #[test]
    fn a_piece_ends_whatever_the_entries_are() {
        for (count, dimensions) in [(10_000, 1), (100, 4_096)] {
            let mut nearest = Nearest::new(&vec![1.0; dimensions], 1, Vec::new());
            assert!(nearest.look(&entries(count, dimensions)), "{count} of {dimensions}");
        }
    }

    #[test]
    fn a_piece_ends_sooner_the_more_an_entry_is_compared_with() {
        let pairs: Vec<_> = (0..64).map(|n| (n.to_string(), String::new())).collect();
        let mut entries = entries(20, 1);
        entries.values_mut().for_each(|entry| entry.payload = pairs.clone().into());
        let ends_early = |filter: &[(String, String)]| Nearest::new(&[1.0], 1, filter.to_vec()).look(&entries);
        assert_eq!((ends_early(&[]), ends_early(&pairs)), (false, true));
    }
}
