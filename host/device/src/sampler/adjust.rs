//! What changes logits before the temperature: bias, then penalties, then the mask.
//!
//! Repetition penalty as in transformers (over prompt and output: positive logits divided, negative multiplied);
//! then frequency and presence penalty as OpenAI states them (over the output: `- count * frequency - presence`).
//! The order among the three is vLLM's.

use super::SampleError;
use crate::executor::SampleRow;

/// Scratch of one entry per token, all zero between rows.
#[derive(Debug)]
pub(super) struct History {
    counts: Vec<u32>,
}

impl History {
    pub(super) fn new(vocab: usize) -> Self {
        Self { counts: vec![0; vocab] }
    }

    /// Makes room for a vocabulary; grows only when a sampler meets a larger one than it was built for.
    pub(super) fn fit(&mut self, vocab: usize) {
        if self.counts.len() < vocab {
            self.counts.resize(vocab, 0);
        }
    }
}

/// Ids of the bias and, where penalties read them, of prompt and output; and the mask's length.
pub(super) fn check_ids(row: &SampleRow<'_>, vocab: usize) -> Result<(), SampleError> {
    let outside = row.params.logit_bias.iter().find(|&&(token, _)| token as usize >= vocab);
    if let Some(&(token, _)) = outside {
        return Err(SampleError::UnknownToken { token, place: "logit_bias", vocab });
    }
    if row.params.needs_history() {
        check_tokens(row.prompt, "prompt", vocab)?;
        check_tokens(row.output, "output", vocab)?;
    }
    row.mask.map_or(Ok(()), |mask| check_mask(mask, vocab))
}

/// Whether nothing here would change the logits.
pub(super) fn is_neutral(row: &SampleRow<'_>) -> bool {
    row.mask.is_none() && row.params.logit_bias.is_empty() && !row.params.needs_history()
}

/// Writes the adjusted logits of `row` to `out`; forbidden tokens become minus infinity.
pub(super) fn apply(
    out: &mut Vec<f32>,
    logits: &[f32],
    row: &SampleRow<'_>,
    history: &mut History,
) -> Result<(), SampleError> {
    out.clear();
    out.extend_from_slice(logits);
    add_bias(out, &row.params.logit_bias)?;
    if row.params.needs_history() {
        check_tokens(row.prompt, "prompt", out.len())?;
        check_tokens(row.output, "output", out.len())?;
        penalise_repetition(out, row, history);
        penalise_presence(out, row, history);
    }
    check_finite(out)?;
    row.mask.map_or(Ok(()), |mask| forbid(out, mask))
}

/// The first logit that is NaN or infinite, as an error.
pub(super) fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    // A fold without an early exit compiles to vector code; the search runs only once something is wrong.
    if logits.iter().fold(true, |ok, x| ok & x.is_finite()) {
        return Ok(());
    }
    let token = logits.iter().position(|x| !x.is_finite()).unwrap_or_default();
    Err(SampleError::NotFinite { token, value: logits[token] })
}

fn add_bias(out: &mut [f32], bias: &[(u32, f32)]) -> Result<(), SampleError> {
    let vocab = out.len();
    for &(token, bias) in bias {
        let logit = out.get_mut(token as usize);
        *logit.ok_or(SampleError::UnknownToken { token, place: "logit_bias", vocab })? += bias;
    }
    Ok(())
}

fn check_tokens(tokens: &[u32], place: &'static str, vocab: usize) -> Result<(), SampleError> {
    match tokens.iter().find(|&&t| t as usize >= vocab) {
        Some(&token) => Err(SampleError::UnknownToken { token, place, vocab }),
        None => Ok(()),
    }
}

fn penalise_repetition(out: &mut [f32], row: &SampleRow<'_>, history: &mut History) {
    let penalty = row.params.repetition_penalty;
    if penalty == 1.0 {
        return;
    }
    let seen = || row.prompt.iter().chain(row.output).map(|&t| t as usize);
    for token in seen() {
        if history.counts[token] == 0 {
            history.counts[token] = 1;
            let x = out[token];
            out[token] = if x < 0.0 { x * penalty } else { x / penalty };
        }
    }
    seen().for_each(|token| history.counts[token] = 0);
}

fn penalise_presence(out: &mut [f32], row: &SampleRow<'_>, history: &mut History) {
    let (presence, frequency) = (row.params.presence_penalty, row.params.frequency_penalty);
    if presence == 0.0 && frequency == 0.0 {
        return;
    }
    row.output.iter().for_each(|&t| history.counts[t as usize] += 1);
    for &token in row.output {
        let count = std::mem::take(&mut history.counts[token as usize]);
        if count > 0 {
            out[token as usize] -= count as f32 * frequency + presence;
        }
    }
}

fn check_mask(mask: &[u32], vocab: usize) -> Result<(), SampleError> {
    let (found, expected) = (mask.len(), vocab.div_ceil(32));
    if found == expected { Ok(()) } else { Err(SampleError::MaskLength { found, expected, vocab }) }
}

fn forbid(out: &mut [f32], mask: &[u32]) -> Result<(), SampleError> {
    check_mask(mask, out.len())?;
    for (logits, &word) in out.chunks_mut(32).zip(mask) {
        if word == u32::MAX {
            continue;
        }
        for (bit, x) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    Ok(())
}
