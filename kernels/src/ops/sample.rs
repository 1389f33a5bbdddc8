//! Sampling: `cuda/sample.cu`, with the rows packed for it.

use super::{OpError, blocks, int, require_len};
use crate::driver::{Args, Kernel, Kernels, Launch, Loaded, Ptr, Slice, Stream};
use std::sync::Arc;
use tidegate_device::{Drawn, SampleError, SampleRow};
use tidegate_types::SampledToken;

const OP: &str = "sample";

/// Alternatives that a row may ask for: what the type of `SamplingParams::logprobs` holds.
pub const MAX_TOP: usize = 255;

/// A row as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowInfo {
    logits_row: i32,
    temperature: f32,
    top_p: f32,
    min_score: f32,
    top_k: u32,
    presence: f32,
    frequency: f32,
    repetition: f32,
    seed: [u32; 2],
    position: [u32; 2],
    bias: [i32; 2],
    prompt: [i32; 2],
    output: [i32; 2],
    mask: i32,
    num_top: i32,
}

impl RowInfo {
    /// As it is uploaded.
    pub fn words(&self) -> [i32; size_of::<Self>() / 4] {
        // SAFETY: four-byte fields only, without padding, and every pattern is a number.
        unsafe { std::mem::transmute(*self) }
    }
}

/// What the kernel answers for a row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampled {
    id: i32,
    logprob: f32,
    status: i32,
    value: f32,
}

impl Sampled {
    /// From the words that were read back.
    pub fn from_words([id, logprob, status, value]: [u32; 4]) -> Self {
        Self { id: id as i32, logprob: f32::from_bits(logprob), status: status as i32, value: f32::from_bits(value) }
    }
}

impl Top {
    /// From the words that were read back.
    pub fn from_words([id, logprob]: [u32; 2]) -> Self {
        Self { id: id as i32, logprob: f32::from_bits(logprob) }
    }
}

/// An added bias, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    id: i32,
    bias: f32,
}

/// An alternative, as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Top {
    id: i32,
    logprob: f32,
}

/// The argument, as in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampleArgs {
    logits: Ptr<f32>,
    adjusted: Ptr<f32>,
    counts: Ptr<u32>,
    rows: Ptr<RowInfo>,
    bias: Ptr<Bias>,
    history: Ptr<i32>,
    masks: Ptr<u32>,
    out: Ptr<Sampled>,
    tops: Ptr<Top>,
    drawn: Ptr<i32>,
    before: Ptr<i32>,
    vocab: i32,
    max_top: i32,
}

// SAFETY: the fields of `SampleArgs` in cuda/sample.cu.
unsafe impl Args for SampleArgs {}

const SAMPLE: Kernel<SampleArgs> = Kernel::new("sample", 1024);

/// The rows of a step and the lists they point into, as they are uploaded.
#[derive(Clone, Debug, Default)]
pub struct PackedRows {
    /// One for each row.
    pub rows: Vec<RowInfo>,
    /// Biases of all rows.
    pub bias: Vec<Bias>,
    /// Tokens of all rows with penalties: prompt, then output.
    pub history: Vec<i32>,
    /// Words of all masks.
    pub masks: Vec<u32>,
}

impl PackedRows {
    /// Packs anew; `place` says where the logits of a row's segment are, and which row of the draw before gave the
    /// segment its last token, where the host does not know it. Rows were checked by
    /// `tidegate_device::sampler::check_row`.
    pub fn pack(&mut self, rows: &[SampleRow<'_>], place: impl Fn(usize) -> (usize, Option<usize>)) {
        self.rows.clear();
        self.bias.clear();
        self.history.clear();
        self.masks.clear();
        for row in rows {
            let info = self.row(row, place(row.segment));
            self.rows.push(info);
        }
    }

    fn row(&mut self, row: &SampleRow<'_>, (logits_row, fed): (usize, Option<usize>)) -> RowInfo {
        let p = row.params;
        let penalised = p.needs_history();
        let output = row.output.iter().map(|&t| t as i32).chain(fed.map(|row| !(row as i32)));
        // Only the repetition penalty looks at the prompt.
        let prompt = if p.repetition_penalty == 1.0 { &[] } else { row.prompt };
        RowInfo {
            logits_row: logits_row as i32,
            temperature: p.temperature,
            top_p: p.top_p,
            min_score: if p.min_p > 0.0 { p.min_p.ln() } else { f32::NEG_INFINITY },
            top_k: p.top_k,
            presence: p.presence_penalty,
            frequency: p.frequency_penalty,
            repetition: p.repetition_penalty,
            seed: halves(p.seed),
            position: halves(row.position as u64),
            bias: append(&mut self.bias, p.logit_bias.iter().map(|&(id, bias)| Bias { id: id as i32, bias })),
            prompt: append(&mut self.history, prompt.iter().filter(|_| penalised).map(|&t| t as i32)),
            output: append(&mut self.history, output.filter(|_| penalised)),
            mask: row.mask.map_or(-1, |mask| append(&mut self.masks, mask.iter().copied())[1]),
            num_top: p.logprobs.map_or(-1, i32::from),
        }
    }
}

/// Appends; gives how many and where they begin.
fn append<T>(to: &mut Vec<T>, items: impl Iterator<Item = T>) -> [i32; 2] {
    let first = to.len();
    to.extend(items);
    [(to.len() - first) as i32, first as i32]
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// The buffers of a step.
#[derive(Clone, Copy, Debug)]
pub struct SampleBuffers {
    /// `[.., vocab]`
    pub logits: Slice<f32>,
    /// `[rows, vocab]`: scratch.
    pub adjusted: Slice<f32>,
    /// `[rows, vocab]`: zero before the first launch, and again after each.
    pub counts: Slice<u32>,
    /// The packed rows.
    pub rows: Slice<RowInfo>,
    /// See [`PackedRows`].
    pub bias: Slice<Bias>,
    /// See [`PackedRows`].
    pub history: Slice<i32>,
    /// See [`PackedRows`].
    pub masks: Slice<u32>,
    /// `[rows]`
    pub out: Slice<Sampled>,
    /// `[rows, MAX_TOP]`
    pub tops: Slice<Top>,
    /// `[rows]`: what the next step's `embed` may read.
    pub drawn: Slice<i32>,
    /// What `drawn` held before; read only where a history ends in a token that the host does not know.
    pub before: Slice<i32>,
}

/// The launcher.
#[derive(Debug)]
pub struct Sample {
    kernel: Loaded<SampleArgs>,
    vocab: usize,
}

impl Sample {
    /// For rows of `vocab` logits.
    pub fn new(kernels: &Arc<Kernels>, vocab: usize) -> Result<Self, OpError> {
        int(OP, "vocab", vocab)?;
        Ok(Self { kernel: kernels.find(SAMPLE)?, vocab })
    }

    /// Draws a token for each of `rows` rows.
    pub fn launch(&self, stream: &Stream, rows: usize, buffers: &SampleBuffers) -> Result<(), OpError> {
        require_len(OP, "rows", &buffers.rows, rows)?;
        require_len(OP, "adjusted", &buffers.adjusted, rows * self.vocab)?;
        require_len(OP, "counts", &buffers.counts, rows * self.vocab)?;
        require_len(OP, "out", &buffers.out, rows)?;
        require_len(OP, "tops", &buffers.tops, rows * MAX_TOP)?;
        require_len(OP, "drawn", &buffers.drawn, rows)?;
        let args = SampleArgs {
            logits: buffers.logits.ptr(),
            adjusted: buffers.adjusted.ptr(),
            counts: buffers.counts.ptr(),
            rows: buffers.rows.ptr(),
            bias: buffers.bias.ptr(),
            history: buffers.history.ptr(),
            masks: buffers.masks.ptr(),
            out: buffers.out.ptr(),
            tops: buffers.tops.ptr(),
            drawn: buffers.drawn.ptr(),
            before: buffers.before.ptr(),
            vocab: int(OP, "vocab", self.vocab)?,
            max_top: MAX_TOP as i32,
        };
        // SAFETY: the buffers hold the rows; ids in the packed lists were checked against the vocabulary.
        Ok(unsafe { self.kernel.launch(stream, Launch { grid: (blocks(rows), 1), shared_bytes: 0 }, &args) }?)
    }
}

/// A row's answer as the engine takes it. `logprobs` is how many alternatives it asked for, `tops` are its own.
pub fn outcome(sampled: &Sampled, tops: &[Top], logprobs: Option<u8>, vocab: usize) -> Drawn {
    match sampled.status {
        0 => {}
        3 => return Err(SampleError::NothingAllowed { vocab }),
        _ => return Err(SampleError::NotFinite { token: sampled.id as usize, value: sampled.value }),
    }
    let num_top = logprobs.map_or(0, usize::from).min(vocab);
    Ok(SampledToken {
        id: sampled.id as u32,
        logprob: logprobs.map(|_| sampled.logprob),
        top: tops.iter().take(num_top).map(|top| (top.id as u32, top.logprob)).collect(),
    })
}
