//! Drawing tokens: rows are packed and uploaded, drawn by one launch, and read back when they are collected.
//!
//! Rows whose lists (biases, histories, masks) do not fit the buffers together are drawn in several launches. A row
//! that cannot be drawn gets a harmless draw in its place, so that each row's token lies where the next step looks for
//! it, and its error when it is collected.

use crate::driver::{Carver, Context, Event, Kernels, Pinned, Slice, Stream};
use crate::error::CudaError;
use crate::ops::Sample;
use crate::ops::sample::{Bias, MAX_TOP, PackedRows, RowInfo, SampleBuffers, Sampled, Top, outcome};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_device::{DeviceError, Drawn, Limits, Program, SampleError, SampleRow, check_row};
use tidegate_types::SamplingParams;

/// Elements of each list.
#[derive(Clone, Copy, Debug, Default)]
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
        if program.pooling().is_some() {
            // It draws nothing.
            return Self::default();
        }
        let (rows, dims) = (limits.max_seqs, &program.dims);
        Self {
            rows,
            vocab: dims.vocab,
            bias: dims.vocab.saturating_add(rows.saturating_mul(64)),
            // At least one sequence of any length.
            history: rows.saturating_mul(dims.max_positions + 1).min(MAX_HISTORY.max(2 * dims.max_positions)),
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
    /// What it held before the draw that reads it; the launch itself overwrites it.
    before: Slice<i32>,
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
            before: carver.take(sizes.rows)?,
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
            before: self.before,
        }
    }
}

/// The host's side: two turns, since the next draw may be queued before the last was collected.
pub(super) struct Sampling {
    op: Sample,
    sizes: SampleSizes,
    packed: PackedRows,
    turns: [Turn; 2],
    next: usize,
    /// Not collected, oldest first.
    waiting: VecDeque<Waiting>,
    num_drawn: usize,
}

/// Memory that the device copies from and to, and the mark after its last copy.
struct Turn {
    staging: Pinned,
    answers: Pinned,
    alternatives: Pinned,
    done: Event,
}

/// A draw that was queued.
struct Waiting {
    turn: usize,
    rows: Vec<Asked>,
}

/// What of a row is needed for its answer.
struct Asked {
    logprobs: Option<u8>,
    /// It was seen before the draw that it cannot be drawn; something else was drawn in its place.
    refused: Option<SampleError>,
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
        let turn = || -> Result<Turn, DeviceError> {
            Ok(Turn {
                staging: pinned(sizes.staging_bytes())?,
                answers: pinned(sizes.rows * size_of::<Sampled>())?,
                alternatives: pinned(sizes.rows * MAX_TOP * size_of::<Top>())?,
                done: Event::new(context)?,
            })
        };
        Ok(Self {
            op: Sample::new(kernels, program.dims.vocab)?,
            packed: PackedRows::default(),
            turns: [turn()?, turn()?],
            sizes,
            next: 0,
            waiting: VecDeque::new(),
            num_drawn: 0,
        })
    }

    /// Rows of the last draw.
    pub(super) fn num_drawn(&self) -> usize {
        self.num_drawn
    }

    /// Queues a draw for each row; `place` as in [`PackedRows::pack`].
    pub(super) fn queue(
        &mut self,
        stream: &Stream,
        memory: &SampleMemory,
        rows: &[SampleRow<'_>],
        place: impl Fn(usize) -> (usize, Option<usize>),
    ) -> Result<(), DeviceError> {
        let asked = self.check(rows)?;
        let harmless = SamplingParams::greedy();
        let mut rows = rows.to_vec();
        for (row, _) in rows.iter_mut().zip(&asked).filter(|(_, asked)| asked.refused.is_some()) {
            *row = SampleRow { params: &harmless, prompt: &[], output: &[], mask: None, ..*row };
        }
        if rows.iter().any(|row| row.params.needs_history() && place(row.segment).1.is_some()) {
            stream.copy(memory.before, memory.drawn)?;
        }
        let turn = self.next;
        let mut first = 0;
        while first < rows.len() {
            let count = self.fitting(&rows[first..]);
            self.packed.pack(&rows[first..first + count], &place);
            self.turns[turn].upload(stream, memory, &self.packed)?;
            self.op.launch(stream, count, &memory.buffers(first))?;
            first += count;
            if first < rows.len() {
                // The lists are written again for the next rows.
                self.turns[turn].done.record(stream)?;
                self.turns[turn].done.wait()?;
            }
        }
        let most_top = asked.iter().filter_map(|row| row.logprobs).max().unwrap_or(0);
        self.turns[turn].read_back(stream, memory, rows.len(), most_top > 0)?;
        (self.num_drawn, self.next) = (rows.len(), turn ^ 1);
        self.waiting.push_back(Waiting { turn, rows: asked });
        Ok(())
    }

    /// Waits for the oldest draw.
    pub(super) fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        let nothing = || DeviceError::BadBatch("nothing was sampled".to_owned());
        let Waiting { turn, rows } = self.waiting.pop_front().ok_or_else(nothing)?;
        let (turn, vocab) = (&self.turns[turn], self.sizes.vocab);
        turn.done.wait()?;
        let answer = |(i, row): (usize, Asked)| match row.refused {
            Some(error) => Err(error),
            None => turn.answer(i, row.logprobs, vocab),
        };
        Ok(rows.into_iter().enumerate().map(answer).collect())
    }

    fn check(&self, rows: &[SampleRow<'_>]) -> Result<Vec<Asked>, DeviceError> {
        if self.waiting.len() == self.turns.len() {
            return Err(DeviceError::BadBatch("two draws were not collected".to_owned()));
        }
        if rows.len() > self.sizes.rows {
            return Err(DeviceError::BadBatch(format!("{} rows; the limit is {}", rows.len(), self.sizes.rows)));
        }
        if let Some(row) = rows.iter().position(|row| lists_of(row).exceed(&self.sizes)) {
            return Err(DeviceError::BadBatch(format!("the biases and tokens of row {row} do not fit")));
        }
        let asked = |row: &SampleRow<'_>| Asked {
            logprobs: row.params.logprobs,
            refused: check_row(row, self.sizes.vocab).err(),
        };
        Ok(rows.iter().map(asked).collect())
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
}

impl Turn {
    fn upload(&mut self, stream: &Stream, memory: &SampleMemory, packed: &PackedRows) -> Result<(), CudaError> {
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
        send(memory.rows.cast(), bytes_of(&packed.rows))?;
        send(memory.bias.cast(), bytes_of(&packed.bias))?;
        send(memory.history.cast(), bytes_of(&packed.history))?;
        send(memory.masks.cast(), bytes_of(&packed.masks))
    }

    fn read_back(&mut self, stream: &Stream, memory: &SampleMemory, rows: usize, tops: bool) -> Result<(), CudaError> {
        if rows > 0 {
            stream.download(&mut self.answers, memory.out, rows * size_of::<Sampled>())?;
        }
        if tops {
            stream.download(&mut self.alternatives, memory.tops, rows * MAX_TOP * size_of::<Top>())?;
        }
        self.done.record(stream)
    }

    /// The answer for row `i`, once it is there.
    fn answer(&self, i: usize, logprobs: Option<u8>, vocab: usize) -> Drawn {
        let words = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect::<Vec<_>>();
        let answer = words(&self.answers.bytes()[i * size_of::<Sampled>()..][..size_of::<Sampled>()]);
        let num_top = logprobs.map_or(0, usize::from).min(vocab);
        let start = i * MAX_TOP * size_of::<Top>();
        let tops = words(&self.alternatives.bytes()[start..start + num_top * size_of::<Top>()]);
        let tops: Vec<Top> = tops.as_chunks::<2>().0.iter().map(|pair| Top::from_words(*pair)).collect();
        outcome(&Sampled::from_words(answer.try_into().unwrap_or_default()), &tops, logprobs, vocab)
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
    // One more, if the last token is fed.
    let history = if row.params.needs_history() { row.prompt.len() + row.output.len() + 1 } else { 0 };
    ListSizes { bias: row.params.logit_bias.len(), history }
}

fn bytes_of<T: Copy>(items: &[T]) -> &[u8] {
    // SAFETY: called for numbers and for structs of four-byte fields, which have no padding.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}
