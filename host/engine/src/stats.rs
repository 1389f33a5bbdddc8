//! Figures about the engine: plain data that crosses from a worker process as it is.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Steps done.
    pub steps: u64,
    /// Tokens computed, recomputed ones included.
    pub computed_tokens: u64,
    /// Prompt tokens of admitted jobs.
    pub prompt_tokens: u64,
    /// Tokens handed out.
    pub generation_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of those, found.
    pub prefix_hits: u64,
    /// Jobs put back to make room.
    pub preemptions: u64,
    /// Queued jobs that ended well. What readers were told of all jobs is in [`EndedJobs`].
    pub finished: u64,
    /// Queued jobs that ended with an error in a step.
    pub failed: u64,
    /// Queued jobs that the loop let go.
    pub cancelled: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.computed_tokens += other.computed_tokens;
        self.prompt_tokens += other.prompt_tokens;
        self.generation_tokens += other.generation_tokens;
        self.prefix_queries += other.prefix_queries;
        self.prefix_hits += other.prefix_hits;
        self.preemptions += other.preemptions;
        self.finished += other.finished;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
    }
}

/// The scheduler's figures after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences in the queue, preempted ones included.
    pub waiting: usize,
    /// Jobs that wait for their grammars, while there is no other work.
    pub compiling: usize,
    /// Cache blocks held by running sequences.
    pub kv_blocks_used: usize,
    /// Cache blocks in all.
    pub kv_blocks_total: usize,
    /// What only grows.
    pub counters: Counters,
}

/// Jobs that have ended, wherever they were then, as their readers were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedJobs {
    /// Jobs that ended well.
    pub finished: u64,
    /// Jobs that ended with an error.
    pub failed: u64,
    /// Jobs whose reader left.
    pub cancelled: u64,
}

/// The engine's figures as its handle sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// The scheduler's figures after the last step.
    pub snapshot: Snapshot,
    /// Jobs that were accepted and have not ended.
    pub live_jobs: usize,
    /// Those that have ended.
    pub ended: EndedJobs,
    /// Of those, not admitted yet.
    pub queued_jobs: usize,
    /// Their prompt tokens.
    pub queued_tokens: usize,
    /// Tokens computed in a second while there is work, as a moving average.
    pub tokens_per_second: f64,
    /// Times the device or the worker process was replaced.
    pub restarts: u64,
    /// Time since a step was done while work was pending; `None` when there is no work.
    pub last_step_age: Option<Duration>,
}

impl EngineStats {
    /// Used part of the cache, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        self.snapshot.kv_blocks_used as f64 / self.snapshot.kv_blocks_total.max(1) as f64
    }
}

/// Where the engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The model is being loaded, for the first time or again.
    Loading,
    /// Takes jobs.
    Serving,
    /// Takes no more jobs; those it has go on.
    Draining,
    /// The device or worker failed too often; takes no jobs.
    Failed,
    /// The loop has ended.
    Stopped,
}

impl Phase {
    /// What the engine does, after its name.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Loading => "is loading",
            Self::Serving => "is serving",
            Self::Draining => "is shutting down",
            Self::Failed => "has failed and is not serving",
            Self::Stopped => "has stopped",
        }
    }
}

/// Whether tokens are moving, which is the only health that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Takes jobs, and steps are done while work is pending.
    Ready,
    /// Not now; says why.
    NotReady(String),
}

impl Health {
    /// Whether jobs will be worked on.
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}
