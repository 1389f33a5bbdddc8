//! The one sampler of all host backends: a row of logits in, a token out.
//!
//! The order is fixed: raw log-probabilities are taken first, then bias, penalties, mask, temperature, top-k,
//! top-p, min-p, and a draw by Gumbel-max: the token with the largest `score + noise` wins, where the noise of a
//! token depends on (seed, position, token id) and on nothing else. So a seed gives the same text whatever the
//! batch, the chunking or the machine's load, and speculation can ask which token would have been drawn.
//! Invariant: bad numbers from a model or a caller end in a [`SampleError`], never in a panic or a silent token.
//! Read next: `adjust` for penalties, `filter` for top-k and friends, `philox` for the noise.

mod adjust;
mod filter;
mod gumbel;
mod logprobs;
pub mod philox;

use crate::executor::SampleRow;
use adjust::{History, check_finite};
use filter::Candidate;
use gumbel::{Noise, Race};
use tidegate_types::{SampledToken, SamplingParams};

/// Why a row got no token. It concerns that row alone.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The model, or a penalty without measure, gave NaN or an infinity.
    #[error("the logit of token {token} is {value}, not a finite number")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// The mask forbids the whole vocabulary.
    #[error("the mask allows none of the {vocab} tokens")]
    NothingAllowed {
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The mask is not one bit for each token.
    #[error("the mask has {found} words; a vocabulary of {vocab} tokens needs {expected}")]
    MaskLength {
        /// Words of 32 bits given.
        found: usize,
        /// Words needed.
        expected: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A token id of the bias, the prompt or the output is not in the vocabulary.
    #[error("token {token} in the {place} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Where it was.
        place: &'static str,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A parameter is out of its range.
    #[error("{name} is {value}; it must be {allowed}")]
    Param {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// Its range, in words.
        allowed: &'static str,
    },
}

/// The buffers that draws reuse, so that a step allocates nothing (but for reported alternatives).
/// One for each thread that samples.
#[derive(Debug)]
pub struct Sampler {
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
    history: History,
}

impl Sampler {
    /// Buffers for rows of `vocab` logits.
    pub fn new(vocab: usize) -> Self {
        Self {
            adjusted: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(vocab),
            history: History::new(vocab),
        }
    }

    /// Draws the token of one row. Same logits and same row, same token: the sampler keeps no state.
    pub fn draw(&mut self, logits: &[f32], row: &SampleRow<'_>) -> Result<SampledToken, SampleError> {
        check_params(row.params)?;
        check_finite(logits)?;
        let shaped = if adjust::is_neutral(row) {
            logits
        } else {
            self.history.fit(logits.len());
            adjust::apply(&mut self.adjusted, logits, row, &mut self.history)?;
            &self.adjusted
        };
        let best = argmax(shaped).ok_or(SampleError::NothingAllowed { vocab: logits.len() })?;
        let id = if row.params.temperature == 0.0 {
            best
        } else {
            let scale = Scale { max: shaped[best as usize], temperature: row.params.temperature };
            let race = Race::new(Noise::new(row.params.seed, row.position as u64), scale);
            draw(race, &mut self.candidates, shaped, row.params).unwrap_or(best)
        };
        Ok(logprobs::report(logits, id, row.params.logprobs))
    }
}

/// Runs the Gumbel race over what the filters leave.
fn draw(mut race: Race, candidates: &mut Vec<Candidate>, shaped: &[f32], params: &SamplingParams) -> Option<u32> {
    if filter::is_neutral(params) {
        race.enter_all(shaped);
    } else {
        filter::keep(candidates, shaped, race.scale(), params);
        candidates.iter().for_each(|c| race.enter(c.id, c.logit));
    }
    race.winner()
}

/// From logits to scores: `(logit - max) / temperature`, at most 0. Taking the largest logit off first keeps a tiny
/// temperature from overflowing upwards.
#[derive(Clone, Copy, Debug)]
struct Scale {
    max: f32,
    temperature: f32,
}

impl Scale {
    fn score(self, logit: f32) -> f32 {
        (logit - self.max) / self.temperature
    }

    /// Probability relative to the best token.
    fn mass(self, logit: f32) -> f64 {
        f64::from(self.score(logit).exp())
    }
}

/// The largest logit's id, the lowest on ties; `None` if all are forbidden or there are none.
fn argmax(logits: &[f32]) -> Option<u32> {
    let max = largest(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&x| x == max).map(|i| i as u32)
}

/// The maximum of numbers that are not NaN. Sixteen running maxima, since one would be a chain of dependent steps.
fn largest(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (blocks, rest) = logits.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, &x)| *lane = larger(*lane, x));
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// What can be said about a row before its logits are there: parameters in range, ids inside the vocabulary, a mask of
/// the right length. For backends that draw elsewhere; [`Sampler::draw`] checks the same.
pub fn check_row(row: &SampleRow<'_>, vocab: usize) -> Result<(), SampleError> {
    check_params(row.params)?;
    adjust::check_ids(row, vocab)
}

fn check_params(p: &SamplingParams) -> Result<(), SampleError> {
    let check = |ok: bool, name, value, allowed| {
        if ok { Ok(()) } else { Err(SampleError::Param { name, value, allowed }) }
    };
    let t = p.temperature;
    check(t.is_finite() && t >= 0.0, "temperature", t, "a finite number of at least 0")?;
    check(p.top_p > 0.0 && p.top_p <= 1.0, "top_p", p.top_p, "above 0 and at most 1")?;
    check((0.0..=1.0).contains(&p.min_p), "min_p", p.min_p, "between 0 and 1")?;
    let r = p.repetition_penalty;
    check(r.is_finite() && r > 0.0, "repetition_penalty", r, "a finite number above 0")?;
    check(p.presence_penalty.is_finite(), "presence_penalty", p.presence_penalty, "a finite number")?;
    check(p.frequency_penalty.is_finite(), "frequency_penalty", p.frequency_penalty, "a finite number")?;
    p.logit_bias.iter().try_for_each(|&(_, bias)| check(bias.is_finite(), "logit_bias", bias, "a finite number"))
}

#[cfg(test)]
mod tests;
