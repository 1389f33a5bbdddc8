//! What a backend does: load a program once, then forward, sample and collect, step by step.
//!
//! One step of the engine: [`Executor::forward`] computes a batch and keeps the logits, [`Executor::sample`]
//! draws a token for each row that asked, [`Executor::collect`] hands the tokens over. The three are apart so
//! that a device can run them behind the host's back.

use crate::program::Program;
use crate::weights::WeightSource;
use std::sync::Arc;
use tidegate_types::{SampledToken, SamplingParams};

/// Number of a cache block; a block holds [`Limits::block_tokens`] positions of all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// What an executor is built for; the scheduler keeps every batch within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cache blocks to allocate.
    pub num_blocks: usize,
    /// Positions in a block: 16.
    pub block_tokens: usize,
    /// Rows (tokens) of one batch.
    pub max_batch_tokens: usize,
    /// Segments (sequences) of one batch.
    pub max_seqs: usize,
}

/// Consecutive tokens of one sequence in a batch.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// The tokens to compute, at least one.
    pub tokens: &'a [u32],
    /// Position of the first of them; everything before it is already in the cache.
    pub start: usize,
    /// The sequence's blocks in order; covers `start + tokens.len()` positions.
    pub blocks: &'a [BlockId],
    /// Keep the logits of the last token.
    pub want_logits: bool,
}

/// One step's work.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    /// At most one segment for a sequence.
    pub segments: Vec<Segment<'a>>,
}

/// A request for one token.
#[derive(Clone, Debug)]
pub struct SampleRow<'a> {
    /// Index into the batch's segments; that segment has `want_logits`.
    pub segment: usize,
    /// How to draw.
    pub params: &'a SamplingParams,
    /// Position that the new token will take; with the seed it fixes the draw.
    pub position: usize,
    /// The sequence's prompt; read only where the penalties need it.
    pub prompt: &'a [u32],
    /// Tokens drawn so far; likewise.
    pub output: &'a [u32],
    /// Allowed tokens as a bit set of `vocab` bits, or all.
    pub mask: Option<&'a [u32]>,
}

/// Why a device could not do it. The engine maps a failed forward to the requests of that batch.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The checkpoint lacks a weight.
    #[error("the checkpoint has no tensor `{name}`")]
    MissingWeight {
        /// Its name.
        name: String,
    },
    /// The checkpoint's tensor has another shape.
    #[error("tensor `{name}` has shape {found:?}; the model's config asks for {expected:?}")]
    WeightShape {
        /// Its name.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// By the config.
        expected: Vec<usize>,
    },
    /// The program asks for something this backend lacks.
    #[error("backend `{backend}` does not support {what}")]
    Unsupported {
        /// The backend's name.
        backend: &'static str,
        /// What is missing.
        what: String,
    },
    /// The program contradicts itself; a defect of whoever built it.
    #[error("bad program: {0}")]
    BadProgram(String),
    /// A batch breaks the contract; a defect of the caller.
    #[error("bad batch: {0}")]
    BadBatch(String),
    /// One row cannot be sampled, and that row alone is at fault. Nothing was kept of this `sample`: the caller
    /// ends that row's request and calls again with the others; the logits are still there.
    #[error("row {row}: {source}")]
    Sample {
        /// Index into the rows of the call.
        row: usize,
        /// What is wrong with it.
        source: crate::sampler::SampleError,
    },
    /// Memory ran out.
    #[error("out of memory: {what} needs {bytes} bytes")]
    OutOfMemory {
        /// For what.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The device failed; nothing on it can be trusted any more.
    #[error("device lost: {0}")]
    Lost(String),
}

/// A kind of hardware.
pub trait Backend: Send + Sync {
    /// `"cpu"`, `"reference"`, `"cuda"`.
    fn name(&self) -> &'static str;

    /// One line about what was found: instruction sets, threads, device.
    fn describe(&self) -> String;

    /// Bytes of one element of the cache that this backend will use for `program`.
    fn kv_elem_bytes(&self, program: &Program) -> usize;

    /// Loads weights and allocates everything; nothing is allocated in a step after that. `weights` may be
    /// dropped by the caller once this returns.
    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, DeviceError>;
}

/// A loaded model with its cache. Used by one thread.
pub trait Executor: Send {
    /// Computes the batch, writes keys and values, keeps the wanted logits.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError>;

    /// Draws tokens from the logits of the last forward, in the order of `rows`.
    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError>;

    /// The tokens of the last `sample`, in its order.
    fn collect(&mut self) -> Result<Vec<SampledToken>, DeviceError>;

    /// The logits that the last forward kept for `segment`, for tests and tools.
    fn logits(&self, segment: usize) -> Option<&[f32]>;
}
