//! Top-k, top-p and min-p without sorting the vocabulary.
//!
//! Each keeps a prefix of the tokens ordered by (logit descending, id ascending), so ties are cut at the higher
//! id and top-k keeps exactly k. Meanings and order are those of transformers: top-k; then top-p, the shortest
//! prefix whose share of what top-k left reaches p; then min-p, relative to the best token. (vLLM runs min-p
//! first, so that its top-p share is of what min-p left.)

use super::Scale;
use std::cmp::Ordering;
use tidegate_types::SamplingParams;

/// A token in the race.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: u32,
}

/// Up to this k the best tokens are held in order while the logits pass by; above it a selection is cheaper.
const MAX_HELD: usize = 128;
/// Scores below add less than f32 rounding to a sum over any vocabulary.
const NEGLIGIBLE: f32 = -40.0;

pub(super) fn is_neutral(params: &SamplingParams) -> bool {
    params.top_k == 0 && params.top_p >= 1.0 && params.min_p == 0.0
}

/// Fills `candidates` with the tokens that may be drawn, in no particular order.
pub(super) fn keep(candidates: &mut Vec<Candidate>, logits: &[f32], scale: Scale, params: &SamplingParams) {
    let (k, p) = (params.top_k as usize, params.top_p);
    let least_score = if params.min_p > 0.0 { params.min_p.ln() } else { f32::NEG_INFINITY };
    let cuts_by_count = k > 0 && k < logits.len();
    if cuts_by_count {
        keep_top_k(candidates, logits, k);
        if p < 1.0 {
            let total = candidates.iter().map(|c| scale.mass(c.logit)).sum::<f64>();
            keep_top_p(candidates, scale, f64::from(p) * total);
        }
    } else if p < 1.0 {
        let total = total_mass(logits, scale);
        // All that lie below this share a mass of at most 1 - p, so the prefix that reaches p ends before them.
        let least = (1.0 - f64::from(p)) * total / logits.len() as f64;
        let least = least * (1.0 - 1e-6);
        // What min-p cuts may go at once: it is the end of the order, and top-p's share is already fixed.
        collect(candidates, logits, |x| scale.score(x) >= least_score && scale.mass(x) >= least);
        keep_top_p(candidates, scale, f64::from(p) * total);
    } else {
        collect(candidates, logits, |x| scale.score(x) >= least_score);
    }
    candidates.retain(|c| scale.score(c.logit) >= least_score);
}

/// The order of tokens; adding zero makes -0 equal to 0, which `total_cmp` would tell apart.
pub(super) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

fn collect(candidates: &mut Vec<Candidate>, logits: &[f32], wanted: impl Fn(f32) -> bool) {
    candidates.clear();
    let allowed = (0u32..).zip(logits).filter(|&(_, &x)| x > f32::NEG_INFINITY && wanted(x));
    candidates.extend(allowed.map(|(id, &logit)| Candidate { logit, id }));
}

/// The `k` best, in no particular order that a caller may rely on.
fn keep_top_k(candidates: &mut Vec<Candidate>, logits: &[f32], k: usize) {
    if k <= MAX_HELD {
        return hold_best(candidates, logits, k);
    }
    collect(candidates, logits, |_| true);
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, by_rank);
        candidates.truncate(k);
    }
}

/// The `n` best allowed tokens in order, by insertion: after the first few hardly a token gets in.
pub(super) fn hold_best(best: &mut Vec<Candidate>, logits: &[f32], n: usize) {
    best.clear();
    // A token must beat this to get in once there are n: on a tie the lower id, which is there, stays.
    let mut bar = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > bar {
            let new = Candidate { logit, id };
            let at = best.partition_point(|c| by_rank(c, &new).is_lt());
            best.insert(at, new);
            if best.len() > n {
                best.truncate(n);
            }
            if best.len() == n {
                bar = best.last().map_or(f32::INFINITY, |worst| worst.logit);
            }
        }
    }
}

/// Mass of all tokens, relative to the best one.
pub(super) fn total_mass(logits: &[f32], scale: Scale) -> f64 {
    let least = scale.max + NEGLIGIBLE * scale.temperature;
    logits.iter().filter(|&&x| x >= least).map(|&x| scale.mass(x)).sum()
}

/// The shortest prefix whose mass reaches `wanted`, by halving: whichever half the border lies in is split on.
/// Masses are summed in whatever order the selection leaves; in f64 that is far below the f32 of the logits.
fn keep_top_p(candidates: &mut Vec<Candidate>, scale: Scale, wanted: f64) {
    let (mut kept, mut missing, mut end) = (0, wanted, candidates.len());
    while end - kept > 32 {
        let half = (end - kept) / 2;
        let (upper, _, _) = candidates[kept..end].select_nth_unstable_by(half, by_rank);
        let mass: f64 = upper.iter().map(|c| scale.mass(c.logit)).sum();
        if mass >= missing {
            end = kept + half;
        } else {
            kept += half;
            missing -= mass;
        }
    }
    candidates[kept..end].sort_unstable_by(by_rank);
    while kept < end && missing > 0.0 {
        missing -= scale.mass(candidates[kept].logit);
        kept += 1;
    }
    // The best token always stays.
    candidates.truncate(kept.max(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut candidates = Vec::new();
        keep(&mut candidates, logits, Scale { max, temperature: params.temperature }, params);
        let mut ids: Vec<u32> = candidates.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Full sort and plain sums: the definition.
    fn ranked(logits: &[f32]) -> Vec<(u32, f64)> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut all: Vec<(u32, f64)> =
            (0u32..).zip(logits).map(|(id, &x)| (id, Scale { max, temperature: 1.0 }.mass(x))).collect();
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

    /// The three one after the other, on a full sort.
    fn by_definition(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let mut ranked = ranked(logits);
        if params.top_k > 0 {
            ranked.truncate(params.top_k as usize);
        }
        let total: f64 = ranked.iter().map(|x| x.1).sum();
        let mut sum = 0.0;
        let reached = ranked.iter().position(|x| {
            sum += x.1;
            sum >= f64::from(params.top_p) * total
        });
        if let (Some(last), true) = (reached, params.top_p < 1.0) {
            ranked.truncate(last + 1);
        }
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        ranked.retain(|x| logits[x.0 as usize] - max >= params.min_p.ln());
        let mut ids: Vec<u32> = ranked.iter().map(|x| x.0).collect();
        ids.sort_unstable();
        ids
    }

    proptest! {
        #[test]
        fn together_they_cut_in_the_order_of_transformers(
            logits in prop::collection::vec(-12.0f32..12.0, 1..400),
            top_k in prop_oneof![Just(0u32), 1u32..20, 100u32..300],
            top_p in prop_oneof![Just(1.0f32), 0.05f32..0.99],
            min_p in prop_oneof![Just(0.0f32), 0.0001f32..0.5],
        ) {
            let params = SamplingParams { top_k, top_p, min_p, ..Default::default() };
            prop_assert_eq!(kept(&logits, &params), by_definition(&logits, &params));
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
