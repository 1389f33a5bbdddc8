//! Drawing tokens: rows are packed and uploaded, drawn by one launch, and read back.
//!
//! Rows whose lists (biases, histories, masks) do not fit the buffers together are drawn in several launches. A row
//! that cannot be drawn is named, and nothing of the call is kept; the logits stay.

use crate::driver::{Carver, Context, Event, Kernels, Pinned, Slice, Stream};
use crate::error::CudaError;
use crate::ops::Sample;
use crate::ops::sample::{Bias, MAX_TOP, PackedRows, RowInfo, SampleBuffers, Sampled, Top, outcome};
use std::sync::Arc;
use tidegate_device::{DeviceError, Limits, Program, SampleRow, check_row};
use tidegate_types::SampledToken;

/// Elements of each list.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleSizes {
    rows: usize,
    vocab: usize,
    bias: usize,
    history: usize,
    masks: usize,
}

impl SampleSizes {
    pub(super) fn of(program: &Program, limits: &Limits) -> Self {
        const MAX_HISTORY: usize = 1 << 20;
        let (rows, dims) = (limits.max_seqs, &program.dims);
        Self {
            rows,
            vocab: dims.vocab,
            bias: dims.vocab.saturating_add(rows.saturating_mul(64)),
            // At least one sequence of any length.
            history: rows.saturating_mul(dims.max_positions).min(MAX_HISTORY.max(2 * dims.max_positions)),
            masks: rows.saturating_mul(dims.vocab.div_ceil(32)),
        }
    }

    fn staging_bytes(&self) -> usize {
        self.rows * size_of::<RowInfo>() + self.bias * size_of::<Bias>() + 4 * (self.history + self.masks)
    }
}

/// The lists and scratch on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleMemory {
    pub(super) logits: Slice<f32>,
    pub(super) counts: Slice<u32>,
    pub(super) drawn: Slice<i32>,
    adjusted: Slice<f32>,
    rows: Slice<RowInfo>,
    bias: Slice<Bias>,
    history: Slice<i32>,
    masks: Slice<u32>,
    out: Slice<Sampled>,
    tops: Slice<Top>,
}

impl SampleMemory {
    pub(super) fn carve(carver: &mut Carver, sizes: &SampleSizes) -> Option<Self> {
        let all = sizes.rows.checked_mul(sizes.vocab)?;
        Some(Self {
            logits: carver.take(all)?,
            counts: carver.take(all)?,
            drawn: carver.take(sizes.rows)?,
            adjusted: carver.take(all)?,
            rows: carver.take(sizes.rows)?,
            bias: carver.take(sizes.bias)?,
            history: carver.take(sizes.history)?,
            masks: carver.take(sizes.masks)?,
            out: carver.take(sizes.rows)?,
            tops: carver.take(sizes.rows.checked_mul(MAX_TOP)?)?,
        })
    }

    /// With answers from row `first` on.
    fn buffers(&self, first: usize) -> SampleBuffers {
        SampleBuffers {
            logits: self.logits,
            adjusted: self.adjusted,
            counts: self.counts,
            rows: self.rows,
            bias: self.bias,
            history: self.history,
            masks: self.masks,
            out: self.out.from(first),
            tops: self.tops.from(first * MAX_TOP),
            drawn: self.drawn.from(first),
        }
    }
}

/// The host's side.
pub(super) struct Sampling {
    op: Sample,
    sizes: SampleSizes,
    packed: PackedRows,
    staging: Pinned,
    answers: Pinned,
    alternatives: Pinned,
    done: Event,
    tokens: Vec<SampledToken>,
}

impl Sampling {
    pub(super) fn new(
        context: &Arc<Context>,
        kernels: &Arc<Kernels>,
        program: &Program,
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let sizes = SampleSizes::of(program, limits);
        let pinned = |bytes| Pinned::new(context, bytes).map_err(|e| e.while_allocating("staging of samples", bytes));
        Ok(Self {
            op: Sample::new(kernels, program.dims.vocab)?,
            sizes,
            packed: PackedRows::default(),
            staging: pinned(sizes.staging_bytes())?,
            answers: pinned(sizes.rows * size_of::<Sampled>())?,
            alternatives: pinned(sizes.rows * MAX_TOP * size_of::<Top>())?,
            done: Event::new(context)?,
            tokens: Vec::with_capacity(limits.max_seqs),
        })
    }

    /// The tokens of the last run.
    pub(super) fn take(&mut self) -> Vec<SampledToken> {
        std::mem::take(&mut self.tokens)
    }

    /// Draws a token for each row.
    pub(super) fn run(
        &mut self,
        stream: &Stream,
        memory: &SampleMemory,
        rows: &[SampleRow<'_>],
        logits_row: impl Fn(usize) -> Option<usize>,
    ) -> Result<(), DeviceError> {
        self.tokens.clear();
        self.check(rows)?;
        let mut first = 0;
        while first < rows.len() {
            let count = self.fitting(&rows[first..]);
            self.packed.pack(&rows[first..first + count], |segment| logits_row(segment).unwrap_or(0) as i32);
            self.upload(stream, memory)?;
            self.op.launch(stream, count, &memory.buffers(first))?;
            // The lists are written again for the next rows.
            self.done.record(stream)?;
            first += count;
            if first < rows.len() {
                self.done.wait()?;
            }
        }
        self.read_back(stream, memory, rows)?;
        self.answer(rows)
    }

    fn check(&self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        if rows.len() > self.sizes.rows {
            return Err(DeviceError::BadBatch(format!("{} rows; the limit is {}", rows.len(), self.sizes.rows)));
        }
        for (i, row) in rows.iter().enumerate() {
            check_row(row, self.sizes.vocab).map_err(|source| DeviceError::Sample { row: i, source })?;
            if lists_of(row).exceed(&self.sizes) {
                return Err(DeviceError::BadBatch(format!("the biases and tokens of row {i} do not fit")));
            }
        }
        Ok(())
    }

    /// How many of the rows fit the lists together; at least one, since each fits alone.
    fn fitting(&self, rows: &[SampleRow<'_>]) -> usize {
        let mut sum = ListSizes::default();
        let fits = |row: &&SampleRow<'_>| {
            sum = sum.plus(&lists_of(row));
            !sum.exceed(&self.sizes)
        };
        rows.iter().take_while(fits).count().max(1)
    }

    fn upload(&mut self, stream: &Stream, memory: &SampleMemory) -> Result<(), CudaError> {
        let mut at = 0;
        let pinned = &mut self.staging;
        let mut send = |to: Slice<u8>, bytes: &[u8]| {
            pinned.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            if !bytes.is_empty() {
                stream.upload(to, pinned, at, bytes.len())?;
            }
            at += bytes.len();
            Ok::<(), CudaError>(())
        };
        send(memory.rows.cast(), bytes_of(&self.packed.rows))?;
        send(memory.bias.cast(), bytes_of(&self.packed.bias))?;
        send(memory.history.cast(), bytes_of(&self.packed.history))?;
        send(memory.masks.cast(), bytes_of(&self.packed.masks))
    }

    fn read_back(&mut self, stream: &Stream, memory: &SampleMemory, rows: &[SampleRow<'_>]) -> Result<(), CudaError> {
        stream.download(&mut self.answers, memory.out, rows.len() * size_of::<Sampled>())?;
        if rows.iter().any(|row| row.params.logprobs.is_some_and(|n| n > 0)) {
            stream.download(&mut self.alternatives, memory.tops, rows.len() * MAX_TOP * size_of::<Top>())?;
        }
        self.done.record(stream)?;
        self.done.wait()
    }

    fn answer(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        let words = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect::<Vec<_>>();
        for (i, row) in rows.iter().enumerate() {
            let answer = &self.answers.bytes()[i * size_of::<Sampled>()..][..size_of::<Sampled>()];
            let num_top = row.params.logprobs.map_or(0, usize::from).min(self.sizes.vocab);
            let start = i * MAX_TOP * size_of::<Top>();
            let tops = words(&self.alternatives.bytes()[start..start + num_top * size_of::<Top>()]);
            let tops: Vec<Top> = tops.as_chunks::<2>().0.iter().map(|pair| Top::from_words(*pair)).collect();
            let sampled = Sampled::from_words(words(answer).try_into().unwrap_or_default());
            match outcome(&sampled, &tops, row.params, self.sizes.vocab) {
                Ok(token) => self.tokens.push(token),
                Err(source) => {
                    self.tokens.clear();
                    return Err(DeviceError::Sample { row: i, source });
                }
            }
        }
        Ok(())
    }
}

/// What a row adds to the lists.
#[derive(Clone, Copy, Debug, Default)]
struct ListSizes {
    bias: usize,
    history: usize,
}

impl ListSizes {
    fn plus(&self, other: &Self) -> Self {
        Self { bias: self.bias + other.bias, history: self.history + other.history }
    }

    fn exceed(&self, sizes: &SampleSizes) -> bool {
        self.bias > sizes.bias || self.history > sizes.history
    }
}

fn lists_of(row: &SampleRow<'_>) -> ListSizes {
    let history = if row.params.needs_history() { row.prompt.len() + row.output.len() } else { 0 };
    ListSizes { bias: row.params.logit_bias.len(), history }
}

fn bytes_of<T: Copy>(items: &[T]) -> &[u8] {
    // SAFETY: called for numbers and for structs of four-byte fields, which have no padding.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}
