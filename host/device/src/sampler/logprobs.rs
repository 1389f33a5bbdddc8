//! Log-probabilities of the raw distribution: what the model said, before bias, penalties and temperature.

use super::filter::{Candidate, by_rank};
use tidegate_types::SampledToken;

/// The drawn token with what was asked about it; `logprobs` is the number of alternatives.
pub(super) fn report(logits: &[f32], id: u32, logprobs: Option<u8>) -> SampledToken {
    let Some(num_top) = logprobs else {
        return SampledToken { id, logprob: None, top: Vec::new() };
    };
    let lse = log_sum_exp(logits);
    let logprob = |x: f32| (f64::from(x) - lse) as f32;
    let top = best(logits, usize::from(num_top));
    SampledToken {
        id,
        logprob: Some(logprob(logits[id as usize])),
        top: top.iter().map(|c| (c.id, logprob(c.score))).collect(),
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from((x - max).exp())).sum();
    f64::from(max) + sum.ln()
}

/// The `n` largest logits, best first, the lower id first on ties.
fn best(logits: &[f32], n: usize) -> Vec<Candidate> {
    let mut top: Vec<Candidate> = Vec::with_capacity(n + 1);
    for (id, &x) in (0u32..).zip(logits) {
        // -0 and 0 are equal to a caller, so they must be to the order.
        let new = Candidate { score: x + 0.0, id };
        if top.len() == n && top.last().is_none_or(|worst| by_rank(worst, &new).is_lt()) {
            continue;
        }
        let at = top.partition_point(|c| by_rank(c, &new).is_lt());
        top.insert(at, new);
        top.truncate(n);
    }
    top
}
