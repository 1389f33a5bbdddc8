//! A job inside the scheduler: its tokens, how many of them are computed, and the blocks that hold them.
//!
//! Invariant: `computed <= tokens.len()`; keys and values of `tokens[..computed]` lie in `blocks`; a sequence writes
//! only at `computed` and after, which is always in blocks that no other sequence holds. A preempted sequence
//! keeps its tokens and loses its blocks.
//!
//! Steps that are planned and not applied are in [`Flight`]: what they compute counts as computed where the next step is
//! planned, and what they draw as one more token that nobody knows yet. Read next: [`crate::scheduler`].

use crate::config::BLOCK_TOKENS;
use crate::pooled::Pooled;
use crate::prefix::{BlockHash, PrefixHasher};
use serde::{Deserialize, Serialize};
use tidegate_device::{BlockId, Segment};
use tidegate_fair::{Owner, Ticket};
use tidegate_types::{FinishReason, Job, JobEvent, JobId, SampledToken, SamplingParams, Usage};

/// A job, and what was generated for it before: by a device or a worker that was lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The job as submitted; its `max_tokens` bounds `emitted` and what follows together.
    pub job: Job,
    /// Tokens that were drawn and handed out already.
    pub emitted: Vec<u32>,
    /// A device or worker was lost over it: it is tried alone first.
    pub suspect: bool,
}

impl Work {
    /// A job from its beginning.
    pub fn new(job: Job) -> Self {
        Self { job, emitted: Vec::new(), suspect: false }
    }

    /// Tokens that must be computed before the next one can be drawn.
    pub fn num_tokens(&self) -> usize {
        self.job.prompt.len() + self.emitted.len()
    }

    /// Whether an answer with all that was emitted is complete. That to a job for a vector is not before it has ended.
    pub(crate) fn is_full(&self, context: usize) -> bool {
        let wants_tokens = self.job.max_tokens > 0;
        wants_tokens && (self.emitted.len() >= self.job.max_tokens as usize || self.num_tokens() >= context)
    }

    /// Whose share it uses.
    pub fn owner(&self) -> Owner {
        Owner { tenant: self.job.tenant.clone(), class: self.job.class, weight: self.job.weight }
    }
}

/// How often a job was put back because the device or worker was lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restarts {
    in_a_row: u32,
    total: u32,
    output_at_last: usize,
}

impl Restarts {
    /// A job may be put back `8 * max` times in all, and `max` times without a new token in between: one that
    /// kills its device each time ends soon, one that shares a batch with it has made progress.
    pub fn allow(&mut self, num_output: usize, max: u32) -> bool {
        self.in_a_row = if num_output > self.output_at_last { 1 } else { self.in_a_row + 1 };
        self.output_at_last = num_output;
        self.total += 1;
        self.in_a_row <= max && self.total <= max.saturating_mul(8)
    }
}

/// Whether a sequence takes part in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In the queue; holds no blocks.
    Waiting,
    /// Holds blocks for all its tokens.
    Running,
}

/// What planned steps will have done to a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flight {
    /// Steps that compute some of it.
    pub(crate) steps: usize,
    /// Tokens that they compute.
    pub(crate) computes: usize,
    /// Tokens that they draw.
    pub(crate) draws: usize,
}

/// A job inside the scheduler.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub(crate) id: JobId,
    pub(crate) owner: Owner,
    pub(crate) ticket: Ticket,
    pub(crate) state: State,
    pub(crate) tokens: Vec<u32>,
    pub(crate) computed: usize,
    pub(crate) flight: Flight,
    pub(crate) blocks: Vec<BlockId>,
    /// Names of the full blocks of `tokens`, as far as they were needed.
    pub(crate) hashes: Vec<BlockHash>,
    /// Blocks that were offered to the prefix cache.
    pub(crate) published: usize,
    /// Prompt tokens that the first admission found in the cache.
    pub(crate) cached_tokens: Option<usize>,
    /// Of a job for a vector.
    pub(crate) pooled: Pooled,
    started: bool,
    pub(crate) num_preemptions: u32,
    pub(crate) restarts: Restarts,
    sampling: SamplingParams,
    stop_token_ids: Vec<u32>,
    held: bool,
    prompt_len: usize,
    max_tokens: usize,
}

impl Sequence {
    pub(crate) fn new(work: Work, ticket: Ticket) -> Self {
        let owner = work.owner();
        let job = work.job;
        let prompt_len = job.prompt.len();
        let mut tokens = job.prompt;
        tokens.extend(work.emitted);
        Self {
            id: job.id,
            owner,
            ticket,
            state: State::Waiting,
            tokens,
            computed: 0,
            flight: Flight::default(),
            blocks: Vec::new(),
            hashes: Vec::new(),
            published: 0,
            cached_tokens: None,
            pooled: Pooled::default(),
            started: false,
            num_preemptions: 0,
            restarts: Restarts::default(),
            sampling: job.sampling,
            stop_token_ids: job.stop_token_ids,
            held: job.grammar.is_some(),
            prompt_len,
            max_tokens: job.max_tokens as usize,
        }
    }

    /// Where the next step begins: behind what is computed and what will be.
    pub(crate) fn planned(&self) -> usize {
        self.computed + self.flight.computes
    }

    /// Tokens that are left to plan; the last of them gives the next token, or the vector. None once the last token that
    /// its answer may have is being drawn, or the vector made; nor while any token is drawn of an answer that is held to a
    /// grammar: which may follow is not known before.
    pub(crate) fn remaining(&self, context: usize) -> usize {
        let (len, draws) = (self.tokens.len() + self.flight.draws, self.flight.draws);
        let waits = draws > 0 && (self.held || self.is_full(self.output().len() + draws, len, context));
        if waits { 0 } else { len - self.planned() }
    }

    /// Tokens that no applied step has computed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Blocks that all its planned and remaining tokens need.
    pub(crate) fn blocks_needed(&self, context: usize) -> usize {
        (self.planned() + self.remaining(context)).div_ceil(BLOCK_TOKENS)
    }

    fn is_full(&self, num_output: usize, len: usize, context: usize) -> bool {
        num_output >= self.max_tokens || len >= context
    }

    /// Blocks that it may take from the cache: its last token is always computed, for its logits.
    pub(crate) fn max_cached_blocks(&self) -> usize {
        (self.tokens.len() - 1) / BLOCK_TOKENS
    }

    pub(crate) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    pub(crate) fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    pub(crate) fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    pub(crate) fn stop_token_ids(&self) -> &[u32] {
        &self.stop_token_ids
    }

    /// Whether its answer is held to a grammar.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Names all full blocks of its tokens.
    pub(crate) fn extend_hashes(&mut self, hasher: &PrefixHasher) {
        for block in self.tokens.chunks_exact(BLOCK_TOKENS).skip(self.hashes.len()) {
            let parent = self.hashes.last().copied().unwrap_or_else(|| hasher.root(&self.owner.tenant));
            self.hashes.push(hasher.link(parent, block));
        }
    }

    /// `num_tokens` from `start` on as a piece of a batch. One that is not known yet is `fed`: by its row of the last
    /// draw.
    pub(crate) fn segment(&self, start: usize, num_tokens: usize, fed: Option<usize>) -> Segment<'_> {
        let end = start + num_tokens;
        let known = end.min(self.tokens.len());
        Segment {
            tokens: &self.tokens[start.min(known)..known],
            fed: fed.filter(|_| end > known),
            start,
            blocks: &self.blocks[..end.div_ceil(BLOCK_TOKENS)],
            want_result: end >= self.tokens.len(),
        }
    }

    /// The first event, once.
    pub(crate) fn start(&mut self) -> Option<JobEvent> {
        let cached_tokens = self.cached_tokens.unwrap_or(0) as u32;
        (!std::mem::replace(&mut self.started, true)).then_some(JobEvent::Started { cached_tokens })
    }

    /// Takes a drawn token; says whether the sequence ends with it, and whether it belongs to the answer.
    pub(crate) fn accept(&mut self, token: &SampledToken, context: usize) -> Accepted {
        if self.stop_token_ids.contains(&token.id) {
            return Accepted::Stopped;
        }
        self.tokens.push(token.id);
        let full = self.is_full(self.output().len(), self.tokens.len(), context);
        if full { Accepted::Last } else { Accepted::More }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            input_tokens: self.prompt_len as u64,
            cached_tokens: self.cached_tokens.unwrap_or(0) as u64,
            output_tokens: self.output().len() as u64,
            // The engine reads no text.
            reasoning_tokens: None,
        }
    }
}

/// What a drawn token means for its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It belongs to the answer, which goes on.
    More,
    /// It belongs to the answer, which is full.
    Last,
    /// It ends the answer and is not part of it.
    Stopped,
}

impl Accepted {
    pub(crate) fn is_part(self) -> bool {
        self != Self::Stopped
    }

    pub(crate) fn finish(self) -> Option<FinishReason> {
        match self {
            Self::More => None,
            Self::Last => Some(FinishReason::Length),
            Self::Stopped => Some(FinishReason::Stop),
        }
    }
}
