//! Who computes what in the next step: a pure state machine. No IO, no clock, no randomness, no async.
//!
//! [`submit`](Scheduler::submit) and [`cancel`](Scheduler::cancel) at any time; then
//! [`plan`](Scheduler::plan), compute it, [`apply`](Scheduler::apply) the outcome, again and again. There are no
//! phases: a step is a set of (sequence, number of tokens), decodes and pieces of prompts alike.
//!
//! While a step is computed the next may be planned by [`plan_ahead`](Scheduler::plan_ahead), on what the first will
//! have done as far as that is certain. What turns out otherwise (a stop token, a failure) is found out when the first
//! is applied: the second's outcome for that job is then dropped. Blocks that a job leaves behind while a planned step
//! may use them wait behind the pool's fence.
//!
//! Invariant, kept by `tests/simulation.rs`: whatever the budget, the pool, the arrivals and the cancellations, a job
//! gets the same tokens. Read next: `plan.rs`, `preempt.rs`, `apply.rs` below this file.

mod apply;
mod plan;
mod preempt;

pub use apply::Outcome;
pub use plan::{Item, Plan};
pub(crate) use preempt::lost_too_often;

use crate::blocks::{BlockPool, PoolError};
use crate::config::{EngineConfig, ModelFacts};
use crate::prefix::PrefixHasher;
use crate::sequence::{Sequence, State, Work};
use crate::stats::{Counters, Snapshot};
use std::collections::{HashMap, HashSet};
use tidegate_device::Limits;
use tidegate_fair::FairQueue;
use tidegate_types::{JobEvent, JobId, Pooling};

/// What became of a job in a step.
pub type Event = (JobId, JobEvent);

/// The parts of the config that decide about order.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What the executor was built for.
    pub limits: Limits,
    /// Prompt and answer together, in tokens.
    pub context: usize,
    /// Whether computed blocks are findable.
    pub prefix_cache: bool,
    /// See [`EngineConfig::max_preemptions`].
    pub max_preemptions: u32,
    /// See [`EngineConfig::max_restarts`].
    pub max_restarts: u32,
    /// What vectors are made of, for a model that makes those.
    pub pooling: Option<Pooling>,
}

impl Rules {
    /// The rules of a config, for an executor of these limits.
    pub fn new(config: &EngineConfig, facts: &ModelFacts, limits: &Limits) -> Self {
        Self {
            limits: limits.clone(),
            context: facts.context(limits),
            // The cache has keys and values: a mean needs the rows themselves.
            prefix_cache: config.prefix_cache && facts.pooling != Some(Pooling::Mean),
            max_preemptions: config.max_preemptions,
            max_restarts: config.max_restarts,
            pooling: facts.pooling,
        }
    }
}

/// Sequences, their order and their blocks.
#[derive(Debug)]
pub struct Scheduler {
    rules: Rules,
    hasher: PrefixHasher,
    pool: BlockPool,
    sequences: HashMap<JobId, Sequence>,
    queue: FairQueue<JobId>,
    /// In order of admission.
    running: Vec<JobId>,
    /// Jobs that a lost device was computing; each is tried alone, to its last token, before it shares a step again.
    suspects: HashSet<JobId>,
    counters: Counters,
    /// Steps planned, and of them applied, which they are in order.
    num_planned: u64,
    num_applied: u64,
}

impl Scheduler {
    /// A scheduler without work.
    pub fn new(rules: Rules, hasher: PrefixHasher) -> Self {
        let pool = BlockPool::new(rules.limits.num_blocks);
        Self {
            rules,
            hasher,
            pool,
            sequences: HashMap::new(),
            queue: FairQueue::new(),
            running: Vec::new(),
            suspects: HashSet::new(),
            counters: Counters::default(),
            num_planned: 0,
            num_applied: 0,
        }
    }

    /// Queues a job. The handle has validated it: the prompt, and one token if it asks for any, fit the context.
    pub fn submit(&mut self, work: Work) {
        let (id, owner) = (work.job.id, work.owner());
        let room = self.rules.context - usize::from(self.rules.pooling.is_none());
        debug_assert!(work.num_tokens() > 0 && work.num_tokens() <= room, "{id} was not validated");
        let ticket = self.queue.push(&owner, id);
        if work.suspect {
            self.suspects.insert(id);
        }
        let mut sequence = Sequence::new(work, ticket);
        if self.rules.prefix_cache {
            sequence.extend_hashes(&self.hasher);
        }
        self.sequences.insert(id, sequence);
    }

    /// Forgets a job and frees its blocks, at once or behind the step that is being computed. Says whether it was known.
    pub fn cancel(&mut self, id: JobId) -> bool {
        let known = self.sequences.contains_key(&id);
        self.counters.cancelled += u64::from(known);
        self.remove(id);
        known
    }

    /// Whether a step would have something to do.
    pub fn has_work(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// What vectors are made of, where the model makes those instead of tokens.
    pub(crate) fn pooling(&self) -> Option<Pooling> {
        self.rules.pooling
    }

    /// Whether some jobs are still to be tried alone.
    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// All jobs, waiting or running, in no order.
    pub fn jobs(&self) -> Vec<JobId> {
        self.sequences.keys().copied().collect()
    }

    /// A job's sequence.
    pub fn sequence(&self, id: JobId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// Whether a plan that is not applied computes some of this job.
    pub(crate) fn is_in_flight(&self, id: JobId) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.flight.steps > 0)
    }

    /// Figures of this moment.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            running: self.running.len(),
            waiting: self.queue.len(),
            compiling: 0,
            kv_blocks_used: self.pool.num_used(),
            kv_blocks_total: self.pool.num_blocks(),
            counters: self.counters,
        }
    }

    /// Proves that the pool's books agree with the sequences.
    pub fn check(&self) -> Result<(), PoolError> {
        self.pool.check(self.sequences.values().map(|sequence| sequence.blocks.len()).sum())
    }

    /// Forgets all cached content; only while nothing runs or after the device was lost.
    pub fn reset_cache(&mut self) {
        self.pool = BlockPool::new(self.rules.limits.num_blocks);
    }

    /// Ends a sequence in whatever state it is.
    fn remove(&mut self, id: JobId) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        self.suspects.remove(&id);
        match sequence.state {
            State::Waiting => {
                self.queue.remove(&sequence.owner, |waiting| *waiting == id);
            }
            State::Running => {
                self.running.retain(|running| *running != id);
                self.drop_blocks(&mut sequence);
                self.queue.release(&sequence.owner);
            }
        }
    }

    /// Releases a sequence's blocks, last first, so that of a cached chain the end is reused before the start.
    fn drop_blocks(&mut self, sequence: &mut Sequence) {
        let in_use = std::mem::take(&mut sequence.flight).steps > 0;
        for block in sequence.blocks.drain(..).rev() {
            if in_use {
                self.pool.release_behind(self.num_planned, block);
            } else {
                self.pool.release(block);
            }
        }
        (sequence.computed, sequence.published) = (0, 0);
    }
}
