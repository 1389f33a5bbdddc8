//! BM25 over passages (Robertson and Zaragoza, 2009), with the logarithm that is never negative.

use crate::record::FileIndex;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// How fast more of the same term counts less.
const K1: f32 = 1.2;
/// How much a long passage counts less.
const B: f32 = 0.75;

/// A passage that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Which file.
    pub file: usize,
    /// Which passage of it.
    pub passage: usize,
    /// Higher is better.
    pub score: f32,
}

/// The best passages for a question's terms, at most `wanted`; equal ones in the order of files.
pub fn best(files: &[FileIndex], terms: &[String], wanted: usize) -> Vec<Found> {
    let lengths = files.iter().flat_map(|file| &file.passages).map(|passage| passage.num_terms as f32);
    let num_passages = lengths.clone().count() as f32;
    let mean_length = (lengths.sum::<f32>() / num_passages.max(1.0)).max(1.0);
    let mut scores: BTreeMap<(usize, usize), f32> = BTreeMap::new();
    for term in terms {
        let postings: Vec<_> = files.iter().map(|file| file.postings(term)).collect();
        let holding = postings.iter().map(|postings| postings.len()).sum::<usize>() as f32;
        let rarity = (1.0 + (num_passages - holding + 0.5) / (holding + 0.5)).ln();
        for (file_idx, (file, postings)) in files.iter().zip(postings).enumerate() {
            for posting in postings {
                let passage_idx = posting.passage as usize;
                let length = file.passages.get(passage_idx).map_or(0.0, |passage| passage.num_terms as f32);
                let count = posting.count as f32;
                let weight = count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / mean_length));
                *scores.entry((file_idx, passage_idx)).or_default() += rarity * weight;
            }
        }
    }
    let mut found: Vec<Found> =
        scores.into_iter().map(|((file, passage), score)| Found { file, passage, score }).collect();
    found.sort_by(|a, b| b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal));
    found.truncate(wanted);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Stamp;

    fn file(path: &str, text: &str) -> FileIndex {
        FileIndex::new(path, Stamp { size_bytes: 0, modified_unix_ms: 0, passage_bytes: 100 }, text)
    }

    fn order(files: &[FileIndex], terms: &[&str]) -> Vec<usize> {
        let terms: Vec<String> = terms.iter().map(|term| term.to_string()).collect();
        best(files, &terms, 10).iter().map(|found| found.file).collect()
    }

    #[test]
    fn rare_terms_count_more_and_long_passages_less() {
        let files = [
            file("a", "the ferry leaves in the morning"),
            file("b", "the bus leaves in the morning"),
            file("c", "the bus and the ferry leave at the same time each day"),
            file("d", "the bus stops"),
        ];
        assert_eq!(order(&files, &["ferry"]), [0, 2]);
        assert_eq!(order(&files, &["bus", "ferry"])[0], 2, "both terms beat one");
        assert_eq!(order(&files, &["bus"]), [3, 1, 2]);
        assert_eq!(order(&files, &["plane"]), [0; 0]);
        assert!(best(&files, &["bus".into()], 2).len() == 2);
    }

    #[test]
    fn scores_are_those_of_the_formula() {
        let files = [file("a", "x x y"), file("b", "y")];
        let found = best(&files, &["x".into()], 1);
        // N = 2, n = 1, tf = 2, length 3, mean 2: ln(1 + 1.5 / 1.5) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 1.5)).
        let expected = 2f32.ln() * 4.4 / (2.0 + 1.2 * 1.375);
        assert!((found[0].score - expected).abs() < 1e-6, "{} {expected}", found[0].score);
        assert_eq!(best(&[], &["x".into()], 1), []);
    }
}
