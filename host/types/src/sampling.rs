//! How the next token is drawn. [`Sampling`] is what the caller said, [`SamplingParams`] what the engine does.

use serde::{Deserialize, Serialize};

/// The caller's wishes; `None` takes the model's `generation_config.json`, then the neutral value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0..=2; 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 <= p <= 1; 0 leaves the likeliest token alone, as the smallest positive value does.
    pub top_p: Option<f32>,
    /// 0 and -1 disable; as it was written, since not every upstream takes both.
    pub top_k: Option<i64>,
    /// 0..=1, relative to the best token's probability.
    pub min_p: Option<f32>,
    /// -2..=2.
    pub presence_penalty: Option<f32>,
    /// -2..=2.
    pub frequency_penalty: Option<f32>,
    /// Above 0; 1 is neutral. Over prompt and output, as in transformers.
    pub repetition_penalty: Option<f32>,
    /// Same seed, same text, whatever the batch.
    pub seed: Option<u64>,
    /// Token id, bias in -100..=100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Number of alternatives to report for each token (0 reports the chosen one only).
    pub logprobs: Option<u8>,
}

/// Resolved parameters of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 disables.
    pub top_p: f32,
    /// 0 disables.
    pub top_k: u32,
    /// 0 disables.
    pub min_p: f32,
    /// 0 disables; over output tokens.
    pub presence_penalty: f32,
    /// 0 disables; over output tokens.
    pub frequency_penalty: f32,
    /// 1 disables; over prompt and output tokens.
    pub repetition_penalty: f32,
    /// Seed of the counter-based generator; with the position it fixes each draw.
    pub seed: u64,
    /// Added to logits before anything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report log-probabilities, with this many alternatives. They are of the raw distribution: before bias,
    /// penalties and temperature.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the penalties need the tokens that the sequence holds so far.
    pub fn needs_history(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }
}
