//! What an operator may set, and the facts about a model that the engine needs.

use crate::error::EngineError;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidegate_device::{Backend, Limits, Program, StepLimits};
use tidegate_types::Pooling;

/// Positions in a cache block. Fixed: routers and key-value events of the field assume 16.
pub const BLOCK_TOKENS: usize = 16;

/// Memory for keys and values on the host, in MiB.
const DEFAULT_CACHE_MIB: usize = 512;

/// Where the engine's loop runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// In a thread of this process.
    #[default]
    Thread,
    /// In a child process that is replaced when it dies or wedges.
    Process,
}

/// Whether a step is planned and queued while the one before it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ahead {
    /// Where the device computes behind the host's back: on CUDA. The CPU is busy with the step itself.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: the plain loop, for comparison.
    Never,
}

/// The `[engine]` table of the config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Thread or child process.
    pub isolation: Isolation,
    /// Memory for keys and values, in MiB; by default what the device has free, or 512 where the host's memory is used.
    pub kv_cache_mib: Option<usize>,
    /// Tokens computed in one step: the bound on how long a decode waits for others' prompts.
    pub max_batch_tokens: usize,
    /// Sequences that run at once; at most `max_batch_tokens`.
    pub max_seqs: usize,
    /// Jobs that wait. Past it 503 is answered to those who hold their share of it or more; see [`tidegate_fair::Places`].
    pub max_queued_jobs: usize,
    /// Prompt tokens of all jobs that wait, shared alike.
    pub max_queued_tokens: usize,
    /// Plan and queue the next step while one is computed; the tokens are the same.
    pub ahead: Ahead,
    /// Keep computed blocks for prompts that begin alike.
    pub prefix_cache: bool,
    /// How often a job may be put back to make room, while another could be.
    pub max_preemptions: u32,
    /// How often a job is continued after the device or worker was lost without a new token in between.
    pub max_restarts: u32,
    /// Seconds without a step while work is pending after which the engine is not ready.
    pub stall_after_s: u64,
    /// Seconds without a step while work is pending after which a worker process is killed and replaced.
    pub wedged_after_s: u64,
    /// Seconds that a worker process may take to load its model.
    pub load_timeout_s: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            isolation: Isolation::Thread,
            kv_cache_mib: None,
            max_batch_tokens: 512,
            max_seqs: 256,
            max_queued_jobs: 1024,
            max_queued_tokens: 1 << 20,
            ahead: Ahead::Auto,
            prefix_cache: true,
            max_preemptions: 3,
            max_restarts: 2,
            stall_after_s: 10,
            wedged_after_s: 60,
            load_timeout_s: 600,
        }
    }
}

impl EngineConfig {
    /// Refuses values that cannot work together; the message names key, limit and remedy.
    pub fn check(&self) -> Result<(), EngineError> {
        let positive = [
            ("kv_cache_mib", self.cache_mib()),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_seqs", self.max_seqs),
            ("max_queued_jobs", self.max_queued_jobs),
            ("max_queued_tokens", self.max_queued_tokens),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(EngineError::Config(format!("engine.{key} is 0; it must be at least 1")));
        }
        if self.max_seqs > self.max_batch_tokens {
            return Err(EngineError::Config(format!(
                "engine.max_seqs is {}, more than engine.max_batch_tokens ({}); each running sequence takes one token of a step",
                self.max_seqs, self.max_batch_tokens
            )));
        }
        Ok(())
    }

    /// Memory for keys and values, in MiB.
    pub fn cache_mib(&self) -> usize {
        self.kv_cache_mib.unwrap_or(DEFAULT_CACHE_MIB)
    }

    /// Takes what the backend has room for, where nothing else was said; `sharers` models divide it.
    pub fn fit_cache(&mut self, backend: &dyn Backend, program: &Program, sharers: usize) -> Result<(), EngineError> {
        let steps = StepLimits { max_batch_tokens: self.max_batch_tokens, max_seqs: self.max_seqs };
        if self.kv_cache_mib.is_none() {
            self.kv_cache_mib = backend.cache_room(program, &steps, sharers)?.map(|bytes| bytes >> 20);
        }
        Ok(())
    }

    /// What the executor is built for, and the scheduler keeps to.
    pub fn limits(&self, facts: &ModelFacts) -> Result<Limits, EngineError> {
        self.check()?;
        let block_bytes = BLOCK_TOKENS.saturating_mul(facts.kv_bytes_per_token.max(1));
        let num_blocks = (self.cache_mib().saturating_mul(1 << 20) / block_bytes).min(u32::MAX as usize);
        if num_blocks < 2 {
            return Err(EngineError::Config(format!(
                "engine.kv_cache_mib is {}; model `{}` needs {block_bytes} bytes for each block of {BLOCK_TOKENS} tokens, and two blocks at least",
                self.cache_mib(),
                facts.name
            )));
        }
        Ok(Limits {
            num_blocks,
            block_tokens: BLOCK_TOKENS,
            max_batch_tokens: self.max_batch_tokens,
            max_seqs: self.max_seqs,
        })
    }

    /// Devices or workers in a row that cannot be loaded, or do not compute a token that is nobody's, after which the
    /// engine gives up. What is lost over a job does not count: who sends jobs that do that would end the engine.
    pub(crate) fn losses_to_give_up(&self) -> u32 {
        self.max_restarts.saturating_add(3)
    }

    pub(crate) fn stall_after(&self) -> Duration {
        Duration::from_secs(self.stall_after_s.max(1))
    }
}

/// What the engine must know of a model; plain data, so that the parent of a worker process has it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// The name that callers use; for messages and metrics.
    pub name: String,
    /// Token ids are below this.
    pub vocab: usize,
    /// Longest sequence the positions are defined for.
    pub max_positions: usize,
    /// Names the weights; part of each prefix-cache key.
    pub fingerprint: String,
    /// Names the inner order and element type of a cache block; part of each prefix-cache key.
    pub kv_layout: String,
    /// Bytes that keys and values of one token take in the backend's cache, over all layers.
    pub kv_bytes_per_token: usize,
    /// What its vectors are made of, if it makes those instead of tokens.
    pub pooling: Option<Pooling>,
}

impl ModelFacts {
    /// The facts of a program on a backend; `fingerprint` names its weights.
    pub fn of(name: impl Into<String>, fingerprint: [u8; 32], program: &Program, backend: &dyn Backend) -> Self {
        let elem_bytes = backend.kv_elem_bytes(program);
        Self {
            name: name.into(),
            vocab: program.dims.vocab,
            max_positions: program.dims.max_positions,
            fingerprint: blake3::Hash::from_bytes(fingerprint).to_hex().to_string(),
            kv_layout: format!("{}/{elem_bytes}/{BLOCK_TOKENS}", backend.name()),
            kv_bytes_per_token: backend.kv_bytes_per_token(program),
            pooling: program.pooling(),
        }
    }

    /// Tokens of prompt and answer together: what the model allows and the cache can hold.
    pub fn context(&self, limits: &Limits) -> usize {
        self.max_positions.min(limits.num_blocks * limits.block_tokens)
    }
}
