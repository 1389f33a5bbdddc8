//! Top-k, top-p and min-p without sorting the vocabulary.
//!
//! Each keeps a prefix of the tokens ordered by (score descending, id ascending), so ties are cut at the higher
//! id and top-k keeps exactly k. Meanings and order are those of transformers: top-k; then top-p, the shortest
//! prefix whose share of what top-k left reaches p; then min-p, relative to the best token. (vLLM runs min-p
//! first, so that its top-p share is of what min-p left.)

use std::cmp::Ordering;
use tidegate_types::SamplingParams;

/// A token in the race; `score` is `(logit - max) / temperature`, at most 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) score: f32,
    pub(super) id: u32,
}

/// Logit to score. The largest logit is taken off first, so that a tiny temperature cannot overflow upwards;
/// adding zero turns -0 into 0, which `total_cmp` would tell apart.
pub(super) fn score(logit: f32, max: f32, temperature: f32) -> f32 {
    (logit - max) / temperature + 0.0
}

pub(super) fn is_neutral(params: &SamplingParams) -> bool {
    params.top_k == 0 && params.top_p >= 1.0 && params.min_p == 0.0
}

/// Fills `candidates` with the tokens that may be drawn, in no particular order.
pub(super) fn keep(
    candidates: &mut Vec<Candidate>,
    logits: &[f32],
    score: impl Fn(f32) -> f32,
    params: &SamplingParams,
) {
    candidates.clear();
    let allowed = (0u32..).zip(logits).filter(|(_, x)| **x > f32::NEG_INFINITY);
    candidates.extend(allowed.map(|(id, &x)| Candidate { score: score(x), id }));
    keep_top_k(candidates, params.top_k as usize);
    keep_top_p(candidates, params.top_p);
    keep_min_p(candidates, params.min_p);
}

pub(super) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.total_cmp(&a.score).then(a.id.cmp(&b.id))
}

fn keep_top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by(k - 1, by_rank);
    candidates.truncate(k);
    // The selection leaves an order of its own; top-p sums in this order, and the sum decides.
    candidates.sort_unstable_by_key(|c| c.id);
}

/// Sorts only as much of the head as p needs: 64 tokens, then four times as many, and so on.
fn keep_top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let wanted = f64::from(p) * candidates.iter().map(mass).sum::<f64>();
    let (mut sum, mut start, mut step) = (0.0, 0, 64);
    while start < candidates.len() {
        let end = (start + step).min(candidates.len());
        if end < candidates.len() {
            candidates[start..].select_nth_unstable_by(end - start, by_rank);
        }
        candidates[start..end].sort_unstable_by(by_rank);
        for i in start..end {
            sum += mass(&candidates[i]);
            if sum >= wanted {
                return candidates.truncate(i + 1);
            }
        }
        (start, step) = (end, step * 4);
    }
}

fn keep_min_p(candidates: &mut Vec<Candidate>, min_p: f32) {
    if min_p > 0.0 {
        let least = min_p.ln();
        candidates.retain(|c| c.score >= least);
    }
}

/// Probability relative to the best token.
fn mass(c: &Candidate) -> f64 {
    f64::from(c.score.exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut candidates = Vec::new();
        keep(&mut candidates, logits, |x| score(x, max, params.temperature), params);
        let mut ids: Vec<u32> = candidates.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Full sort and plain sums: the definition.
    fn ranked(logits: &[f32]) -> Vec<(u32, f64)> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut all: Vec<(u32, f64)> =
            (0u32..).zip(logits).map(|(id, &x)| (id, f64::from(score(x, max, 1.0).exp()))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        // Whole numbers make ties common.
        prop_oneof![
            prop::collection::vec((-8i32..8).prop_map(|x| x as f32), 1..400),
            prop::collection::vec(-20.0f32..20.0, 1..400),
        ]
    }

    proptest! {
        #[test]
        fn top_k_keeps_exactly_the_k_best(logits in logits(), k in 1u32..450) {
            let got = kept(&logits, &SamplingParams { top_k: k, ..Default::default() });
            let mut best: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
            best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut want: Vec<u32> = best.iter().take(k as usize).map(|x| x.1).collect();
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }

        #[test]
        fn top_p_keeps_the_shortest_prefix_that_reaches_p(logits in logits(), p in 0.01f32..1.0) {
            let got = kept(&logits, &SamplingParams { top_p: p, ..Default::default() });
            let ranked = ranked(&logits);
            let total: f64 = ranked.iter().map(|x| x.1).sum();
            let mass: f64 = ranked.iter().take(got.len()).map(|x| x.1).sum();
            let shorter: f64 = ranked.iter().take(got.len() - 1).map(|x| x.1).sum();
            let mut want: Vec<u32> = ranked.iter().take(got.len()).map(|x| x.0).collect();
            want.sort_unstable();
            prop_assert_eq!(&got, &want);
            let slack = 1e-9 * total;
            prop_assert!(mass >= f64::from(p) * total - slack, "{mass} of {total}");
            prop_assert!(shorter < f64::from(p) * total + slack, "{shorter} of {total}");
        }

        #[test]
        fn min_p_keeps_what_is_near_enough_to_the_best(logits in logits(), min_p in 0.001f32..1.0) {
            let got = kept(&logits, &SamplingParams { min_p, ..Default::default() });
            for (id, mass) in ranked(&logits) {
                if mass > f64::from(min_p) * 1.0001 {
                    prop_assert!(got.contains(&id));
                } else if mass < f64::from(min_p) * 0.9999 {
                    prop_assert!(!got.contains(&id));
                }
            }
        }
    }

    #[test]
    fn top_p_counts_only_what_top_k_left() {
        // Shares 0.4, 0.3, 0.2, 0.1; of the best two 0.57 and 0.43.
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
        let params = SamplingParams { top_k: 2, top_p: 0.5, ..Default::default() };
        assert_eq!(kept(&logits, &params), [0]);
        assert_eq!(kept(&logits, &SamplingParams { top_p: 0.5, ..Default::default() }), [0, 1]);
    }

    #[test]
    fn the_best_token_always_stays() {
        let params = SamplingParams { top_k: 1, top_p: 1e-6, min_p: 1.0, ..Default::default() };
        assert_eq!(kept(&[1.0, 3.0, 3.0, 2.0], &params), [1]);
    }
}
