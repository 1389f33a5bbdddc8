//! What crosses into the engine and comes back. Plain data, so that the engine may be a thread or a process.

use crate::caller::{Caller, Class, TenantId};
use crate::delta::{FinishReason, Usage};
use crate::ids::JobId;
use crate::reject::Reject;
use crate::sampling::SamplingParams;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One sequence to generate, or to make a vector of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The handle's own number for it.
    pub id: JobId,
    /// The prompt, as token ids of the engine's model.
    pub prompt: Vec<u32>,
    /// How to draw.
    pub sampling: SamplingParams,
    /// At most this many new tokens, at least 1; 0 for a model that makes vectors.
    pub max_tokens: u32,
    /// Tokens that end the sequence and are not part of it (the model's end tokens).
    pub stop_token_ids: Vec<u32>,
    /// What the answer is held to, as source: whoever has the tokens compiles it. `None` where it is free.
    pub grammar: Option<Arc<str>>,
    /// Whose share and cache.
    pub tenant: TenantId,
    /// Priority class.
    pub class: Class,
    /// Fair-share weight, at least 1.
    pub weight: u32,
}

impl Job {
    /// A job of `caller`: in its tenant's share and cache, of its class and weight. It asks for a vector; one that generates
    /// says how, and how much.
    pub fn of(caller: &Caller, id: JobId, prompt: Vec<u32>) -> Self {
        Self {
            id,
            prompt,
            sampling: SamplingParams::default(),
            max_tokens: 0,
            stop_token_ids: Vec::new(),
            grammar: None,
            tenant: caller.tenant.clone(),
            class: caller.class,
            weight: caller.weight,
        }
    }
}

/// A token that was drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// Token id.
    pub id: u32,
    /// Log-probability of it, when asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, best first, when asked for.
    pub top: Vec<(u32, f32)>,
}

/// What the engine says about a job. After `Finished` or `Failed` nothing follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobEvent {
    /// The prompt is computed; the first token or the vector follows.
    Started {
        /// Prompt tokens that came from the prefix cache.
        cached_tokens: u32,
    },
    /// The next token.
    Token(SampledToken),
    /// The vector of the prompt, from a model that makes those. It is as the model made it, of any length.
    Vector(Vec<f32>),
    /// The end: `Stop` by an end token or behind a vector, `Length` by `max_tokens` or the model's context.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
    },
    /// The job cannot go on; other jobs do.
    Failed(Reject),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_share_of_whose_it_is() {
        let tenant = TenantId::new("acme");
        let caller = Caller { tenant: tenant.clone(), class: Class::Batch, weight: 7, ..Caller::local() };
        let job = Job::of(&caller, JobId(3), vec![5]);
        assert_eq!((job.id, &*job.prompt), (JobId(3), &[5][..]));
        assert_eq!((job.tenant, job.class, job.weight), (tenant, Class::Batch, 7));
    }
}
