//! Log-probabilities of the raw distribution: what the model said, before bias, penalties and temperature.

use super::Scale;
use super::filter::{hold_best, total_mass};
use tidegate_types::SampledToken;

/// The drawn token with what was asked about it; `logprobs` is the number of alternatives.
pub(super) fn report(logits: &[f32], id: u32, logprobs: Option<u8>) -> SampledToken {
    let Some(num_top) = logprobs else {
        return SampledToken { id, logprob: None, top: Vec::new() };
    };
    let scale = Scale { max: super::largest(logits), temperature: 1.0 };
    let lse = f64::from(scale.max) + total_mass(logits, scale).ln();
    let logprob = |x: f32| (f64::from(x) - lse) as f32;
    let mut top = Vec::with_capacity(usize::from(num_top) + 1);
    hold_best(&mut top, logits, usize::from(num_top));
    SampledToken {
        id,
        logprob: Some(logprob(logits[id as usize])),
        top: top.iter().map(|c| (c.id, logprob(c.logit))).collect(),
    }
}
