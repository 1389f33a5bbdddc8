//! What a backend does: load a program once, then forward, sample and collect, step by step.
//!
//! One step of the engine: [`Executor::forward`] computes a batch and keeps the logits, [`Executor::sample`]
//! draws a token for each row that asked, [`Executor::collect`] hands the tokens over. The three are apart so
//! that a device can run them behind the host's back: the next step may be queued before the tokens of this one are
//! collected, and begins with them where a segment is [fed](Segment::fed). A program that makes vectors has nothing to
//! draw: what it kept is read by [`Executor::vector`] once the step was collected, and before the next forward.

use crate::program::Program;
use crate::sampler::SampleError;
use crate::weights::WeightSource;
use std::ops::Range;
use std::sync::Arc;
use tidegate_types::{Pooling, SampledToken, SamplingParams};

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

/// The part of [`Limits`] that does not depend on the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows (tokens) of one batch.
    pub max_batch_tokens: usize,
    /// Segments (sequences) of one batch.
    pub max_seqs: usize,
}

/// Consecutive tokens of one sequence in a batch; at least one, with the one that is fed.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// The tokens to compute.
    pub tokens: &'a [u32],
    /// After them comes one that the host does not know yet: what this row of the last `sample` drew.
    pub fed: Option<usize>,
    /// Position of the first of them; everything before it is already in the cache.
    pub start: usize,
    /// The sequence's blocks in order; covers `start + num_tokens()` positions.
    pub blocks: &'a [BlockId],
    /// Keep what the program makes of the last token: its logits, or its vector.
    pub want_result: bool,
}

impl Segment<'_> {
    /// How many tokens it computes.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len() + usize::from(self.fed.is_some())
    }

    /// Which of its rows are kept: the last one where it is wanted, or all that a mean is made of.
    pub fn kept_rows(&self, pooling: Option<Pooling>) -> Range<usize> {
        let end = self.num_tokens();
        match pooling {
            Some(Pooling::Mean) => 0..end,
            Some(Pooling::LastToken) | None => end - usize::from(self.want_result)..end,
        }
    }
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
    /// Index into the batch's segments; that segment has `want_result`.
    pub segment: usize,
    /// How to draw.
    pub params: &'a SamplingParams,
    /// Position that the new token will take; with the seed it fixes the draw.
    pub position: usize,
    /// The sequence's prompt; read only where the penalties need it.
    pub prompt: &'a [u32],
    /// Tokens drawn so far, as far as the host knows them; likewise. The executor adds one that was fed.
    pub output: &'a [u32],
    /// Allowed tokens as a bit set of `vocab` bits, or all.
    pub mask: Option<&'a [u32]>,
}

/// What became of a row: a row that cannot be drawn concerns nobody else. Fed to a later step, it stands for some
/// token of the vocabulary, and whoever fed it drops that step's result.
pub type Drawn = Result<SampledToken, SampleError>;

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
    /// Memory ran out.
    #[error("out of memory: {what} needs {}", needed(*.bytes))]
    OutOfMemory {
        /// For what.
        what: &'static str,
        /// How much; 0 where whoever asked did not say.
        bytes: usize,
    },
    /// The device failed; nothing on it can be trusted any more.
    #[error("device lost: {0}")]
    Lost(String),
}

fn needed(bytes: usize) -> String {
    if bytes == 0 { "more than there is".to_owned() } else { format!("{bytes} bytes") }
}

/// A kind of hardware.
pub trait Backend: Send + Sync {
    /// `"cpu"`, `"reference"`, `"cuda"`.
    fn name(&self) -> &'static str;

    /// One line about what was found: instruction sets, threads, device.
    fn describe(&self) -> String;

    /// Bytes of one element of the cache that this backend will use for `program`.
    fn kv_elem_bytes(&self, program: &Program) -> usize;

    /// Bytes that one token takes in the cache, with what the backend's layout pads.
    fn kv_bytes_per_token(&self, program: &Program) -> usize {
        program.kv_bytes_per_token(self.kv_elem_bytes(program))
    }

    /// Bytes that the cache of a model may take, if `sharers` models divide what is free on the device now; less a
    /// reserve. `None` where memory is the host's, of which a program does not take all that there is.
    fn cache_room(
        &self,
        _program: &Program,
        _limits: &StepLimits,
        _sharers: usize,
    ) -> Result<Option<usize>, DeviceError> {
        Ok(None)
    }

    /// Loads weights and allocates everything; nothing is allocated in a step after that. `weights` may be
    /// dropped by the caller once this returns.
    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, DeviceError>;
}

/// A loaded model with its cache. Used by one thread. What is queued is done in the order of the calls.
pub trait Executor: Send {
    /// Computes the batch, writes keys and values, keeps the wanted logits. An error that is not a lost device means
    /// that nothing was queued.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError>;

    /// Draws tokens from the logits of the last forward, in the order of `rows`, of which there may be none. At most
    /// two calls may be without their `collect`. Errors as for `forward`.
    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError>;

    /// Waits for the oldest `sample` that was not collected, with the forward before it; its rows in their order.
    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError>;

    /// Whether `forward` and `sample` return before the work is done, so that queueing a step while another runs
    /// gains something. It is allowed in any case.
    fn runs_behind(&self) -> bool {
        false
    }

    /// The logits that the last forward kept for `segment`, for tests and tools.
    fn logits(&self, segment: usize) -> Option<&[f32]>;

    /// Of a program that makes vectors: the one of the `row`-th row that the last forward kept of `segment`. It is there
    /// once that step was collected: what goes wrong on the way to the host is an error of `collect`.
    fn vector(&self, _segment: usize, _row: usize) -> Option<&[f32]> {
        None
    }
}
