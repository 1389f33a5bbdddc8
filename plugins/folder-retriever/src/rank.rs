//! BM25 over passages (Robertson and Zaragoza, 2009), with the logarithm that is never negative.
//!
//! What a question costs is bounded: so many terms are looked up, and of their postings so many are counted, those of the
//! rarest terms, which tell most.

use crate::record::{FileIndex, Postings};

/// How fast more of the same term counts less.
const K1: f32 = 1.2;
/// How much a long passage counts less.
const B: f32 = 0.75;
/// Terms times files that are looked up, but for the fewest terms that a question has of its own.
const MAX_LOOKUPS: usize = 64_000;
const MIN_TERMS: usize = 8;
/// Postings that are counted, but for those of the rarest term.
const MAX_POSTINGS: usize = 400_000;

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

/// Where a term stands: by file, of those that have it.
struct Term<'a> {
    postings: Vec<(usize, Postings<'a>)>,
    holding: usize,
}

impl<'a> Term<'a> {
    fn new(files: &'a [FileIndex], term: &str) -> Self {
        let all = files.iter().map(|file| file.postings(term)).enumerate();
        let postings: Vec<_> = all.filter(|(_, postings)| postings.num() > 0).collect();
        let holding = postings.iter().map(|(_, postings)| postings.num()).sum();
        Self { postings, holding }
    }
}

/// The best passages for a question's terms, at most `wanted`; equal ones in the order of files.
pub fn best(files: &[FileIndex], terms: &[String], wanted: usize) -> Vec<Found> {
    let most = (MAX_LOOKUPS / files.len().max(1)).max(MIN_TERMS);
    let terms = within(terms.iter().take(most).map(|term| Term::new(files, term)).collect(), MAX_POSTINGS);
    let mut found = collect(files, &scores(files, &terms));
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(wanted);
    found
}

/// The terms, the rarest first, whose postings are within a bound together; the rarest in any case.
fn within(mut terms: Vec<Term<'_>>, max_postings: usize) -> Vec<Term<'_>> {
    terms.retain(|term| term.holding > 0);
    terms.sort_by_key(|term| term.holding);
    let mut postings = 0;
    let fits = |term: &&Term<'_>| {
        postings += term.holding;
        postings <= max_postings
    };
    let num = terms.iter().take_while(fits).count();
    terms.truncate(num.max(1));
    terms
}

/// Of each passage, file by file.
fn scores(files: &[FileIndex], terms: &[Term<'_>]) -> Vec<f32> {
    let mut ranges = Vec::with_capacity(files.len());
    let mut lengths: Vec<f32> = Vec::new();
    for file in files {
        ranges.push(lengths.len()..lengths.len() + file.passages.len());
        lengths.extend(file.passages.iter().map(|passage| passage.num_terms as f32));
    }
    let num_passages = lengths.len() as f32;
    let mean_length = (lengths.iter().sum::<f32>() / num_passages.max(1.0)).max(1.0);
    let mut scores = vec![0.0; lengths.len()];
    for term in terms {
        let holding = term.holding as f32;
        let rarity = (1.0 + (num_passages - holding + 0.5) / (holding + 0.5)).ln();
        for (file_idx, postings) in &term.postings {
            let Some(range) = ranges.get(*file_idx).cloned() else { break };
            let (Some(scores), Some(lengths)) = (scores.get_mut(range.clone()), lengths.get(range)) else { break };
            for posting in *postings {
                let idx = posting.passage as usize;
                let (Some(score), Some(length)) = (scores.get_mut(idx), lengths.get(idx)) else { break };
                let count = posting.count as f32;
                let weight = count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / mean_length));
                *score += rarity * weight;
            }
        }
    }
    scores
}

/// The passages that have a score.
fn collect(files: &[FileIndex], scores: &[f32]) -> Vec<Found> {
    let passages =
        files.iter().enumerate().flat_map(|(file, index)| (0..index.passages.len()).map(move |idx| (file, idx)));
    let all = passages.zip(scores).map(|((file, passage), score)| Found { file, passage, score: *score });
    all.filter(|found| found.score > 0.0).collect()
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
    fn what_a_question_costs_is_bounded_and_rare_terms_go_first() {
        let files = [file("a", "bus bus ferry"), file("b", "bus plane"), file("c", "bus")];
        let terms = |names: &[&str]| names.iter().map(|name| Term::new(&files, name)).collect::<Vec<_>>();
        let holding = |terms: Vec<Term<'_>>| terms.iter().map(|term| term.holding).collect::<Vec<_>>();
        let names = ["bus", "ferry", "train", "plane"];
        assert_eq!(holding(within(terms(&names), 5)), [1, 1, 3]);
        assert_eq!(holding(within(terms(&names), 4)), [1, 1]);
        assert_eq!(holding(within(terms(&["bus", "train"]), 2)), [3], "one is counted however many have it");
        let many: Vec<FileIndex> = (0..9000).map(|n| file(&n.to_string(), "bus ferry")).collect();
        let found = |before: usize| {
            let others = (0..before).map(|n| format!("other{n}"));
            best(&many, &others.chain(["ferry".to_owned()]).collect::<Vec<_>>(), 1).len()
        };
        assert_eq!([found(7), found(8)], [1, 0], "of many files few terms are looked up");
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
