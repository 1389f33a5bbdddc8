//! A loaded model: one step after the other over the rows of a batch.
//!
//! Everything is allocated at load; a forward only writes. Each step is cut into units that the pool hands out;
//! steps too small to share run on the caller's thread. Read next: `gemm`, then `attention`.

use super::attention::{self, Attend};
use super::cache::{Cache, Place};
use super::gemm::{Form, Linear, PackPanel, panel_len};
use super::load::{Model, Norm, Step};
use super::memory::{Memory, Rows};
use super::norm::{self, GatedRow, HeadNormRow, NormRow, Rotate};
use super::pool::{Panicked, Pool};
use super::simd::Simd;
use crate::check::{check_batch, check_program, check_rows};
use crate::executor::{Batch, DeviceError, Drawn, Executor, Limits, SampleRow, Segment};
use crate::fed::{DrawQueue, with_tokens};
use crate::program::Program;
use crate::sampler::Sampler;
use crate::weights::{DType, WeightSource};
use std::ops::Range;
use std::sync::Arc;
use tidegate_types::Pooling;

/// Rows of a unit of the steps that work row by row.
const UNIT_ROWS: usize = 8;

/// One token of a batch.
#[derive(Clone, Copy, Debug)]
struct Row {
    token: u32,
    position: usize,
    segment: usize,
}

/// The buffers of a step; all have room for the largest batch.
struct Buffers {
    /// The program's slots.
    slots: Vec<Rows>,
    /// `[cos, sin]` of each row.
    rotations: Rows,
    /// Normed rows that are kept.
    normed: Rows,
    /// Their logits.
    logits: Rows,
    /// Panels of the current product.
    panel: Rows,
    /// Scratch of attention, one row for each worker.
    scratch: Rows,
    _memory: Memory,
}

impl Buffers {
    fn new(program: &Program, limits: &Limits, workers: usize) -> Result<Self, DeviceError> {
        let (tokens, seqs, dims) = (limits.max_batch_tokens, limits.max_seqs, &program.dims);
        let (kept, logits) = match program.pooling() {
            None => (seqs, seqs),
            Some(Pooling::LastToken) => (seqs, 0),
            Some(Pooling::Mean) => (tokens, 0),
        };
        let widest = program.slots.iter().map(|s| s.width).max().unwrap_or(0).max(dims.hidden);
        let mut shapes: Vec<(usize, usize)> = program.slots.iter().map(|s| (tokens, s.width)).collect();
        shapes.extend([
            (tokens, dims.head_dim),
            (kept, dims.hidden),
            (logits, dims.vocab),
            (1, panel_len(tokens.max(seqs), widest)),
            (workers, attention::scratch_len(dims)),
        ]);
        let what = "activations";
        let overflow = || DeviceError::OutOfMemory { what, bytes: usize::MAX };
        let mut offsets = Vec::with_capacity(shapes.len());
        let mut total = 0usize;
        for (count, width) in &shapes {
            offsets.push(total);
            let bytes = count.checked_mul(Rows::stride_of(*width)).and_then(|n| n.checked_mul(4));
            total = bytes.and_then(|b| total.checked_add(b)).ok_or_else(overflow)?;
        }
        let memory = Memory::zeroed(total, what)?;
        let place = |((count, width), offset)| Rows::new(&memory, offset, count, width).ok_or_else(overflow);
        let mut slots = shapes.into_iter().zip(offsets).map(place).collect::<Result<Vec<_>, _>>()?;
        let rest = slots.split_off(program.slots.len());
        let [rotations, normed, logits, panel, scratch] = rest[..] else { return Err(overflow()) };
        Ok(Self { slots, rotations, normed, logits, panel, scratch, _memory: memory })
    }
}

/// The executor for one instruction set.
pub(super) struct CpuExecutor<S: Simd> {
    s: S,
    program: Arc<Program>,
    limits: Limits,
    model: Model,
    cache: Cache,
    buffers: Buffers,
    pool: Pool,
    rows: Vec<Row>,
    runs: Vec<attention::Run>,
    /// Of each segment of the last forward: its rows among those that are kept.
    kept: Vec<Range<usize>>,
    /// Of each row that is kept: its row of the batch.
    wanted: Vec<usize>,
    sampler: Sampler,
    drawn: DrawQueue,
}

impl<S: Simd> CpuExecutor<S> {
    /// Packs the weights and allocates everything.
    pub(super) fn new(
        s: S,
        threads: usize,
        cache_dtype: DType,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        check_program(&program)?;
        if limits.block_tokens != super::simd::LANES {
            let what = format!("blocks of {} tokens; it has blocks of 16", limits.block_tokens);
            return Err(DeviceError::Unsupported { backend: super::NAME, what });
        }
        let mut pool =
            Pool::new(threads).map_err(|e| DeviceError::Lost(format!("cannot start {threads} threads: {e}")))?;
        Ok(Self {
            s,
            model: Model::load(&program, weights, &mut pool)?,
            cache: Cache::new(&program.dims, &limits, cache_dtype)?,
            buffers: Buffers::new(&program, &limits, threads)?,
            pool,
            rows: Vec::with_capacity(limits.max_batch_tokens),
            runs: Vec::with_capacity(limits.max_batch_tokens),
            kept: Vec::with_capacity(limits.max_seqs),
            wanted: Vec::with_capacity(limits.max_batch_tokens),
            sampler: Sampler::new(program.dims.vocab),
            drawn: DrawQueue::default(),
            program,
            limits,
        })
    }

    /// Lays the batch out as rows, runs and rows that are kept.
    fn plan(&mut self, batch: &Batch<'_>) {
        self.rows.clear();
        self.runs.clear();
        self.kept.clear();
        self.wanted.clear();
        let (most, pooling) = (attention::run_tokens(&self.program.dims), self.program.pooling());
        for (segment, s) in batch.segments.iter().enumerate() {
            let first = self.rows.len();
            let row = |(i, &token)| Row { token, position: s.start + i, segment };
            self.rows.extend(s.tokens.iter().enumerate().map(row));
            let run = |i| {
                let tokens = most.min(s.tokens.len() - i);
                attention::Run { segment, row: first + i, position: s.start + i, tokens }
            };
            self.runs.extend((0..s.tokens.len()).step_by(most).map(run));
            let before = self.wanted.len();
            self.wanted.extend(s.kept_rows(pooling).map(|row| first + row));
            self.kept.push(before..self.wanted.len());
        }
        let rope = &self.program.rope;
        for (r, row) in self.rows.iter().enumerate() {
            // SAFETY: `check_batch` keeps the rows within the buffers; nothing runs beside this.
            let out = unsafe { self.buffers.rotations.row_mut(r) };
            norm::rotation(row.position, &rope.inv_freq, rope.attention_scale, out);
        }
    }
}

impl<S: Simd> Executor for CpuExecutor<S> {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.kept.clear();
        check_batch(batch, &self.program.dims, &self.limits)?;
        let fed = self.drawn.feed(batch)?;
        let resolved = fed.as_ref().map(|tokens| with_tokens(batch, tokens));
        let batch = resolved.as_ref().unwrap_or(batch);
        self.plan(batch);
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut pass = Pass {
            s: self.s,
            program: &self.program,
            model: &self.model,
            cache: &self.cache,
            buffers: &self.buffers,
            pool: &mut self.pool,
            segments: &batch.segments,
            rows: &self.rows,
            runs: &self.runs,
            wanted: &self.wanted,
        };
        let outcome = self.model.steps.iter().try_for_each(|step| pass.step(step));
        if outcome.is_err() {
            self.kept.clear();
        }
        outcome.map_err(|_| DeviceError::Lost("a compute thread panicked".to_owned()))
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        check_rows(rows, |segment| self.logits(segment).is_some())?;
        let Self { drawn, sampler, kept, buffers, .. } = self;
        drawn.draw(rows, |row| {
            // SAFETY: a kept row of the last forward, which has ended; `check_rows` saw it.
            sampler.draw(unsafe { buffers.logits.row(kept[row.segment].start) }, row)
        });
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.drawn.collect()
    }

    fn logits(&self, segment: usize) -> Option<&[f32]> {
        let row = self.kept.get(segment)?.clone().next().filter(|_| self.program.pooling().is_none())?;
        // SAFETY: a kept row of the last forward; the borrow of `self` keeps the next one away.
        Some(unsafe { self.buffers.logits.row(row) })
    }

    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        let row = self.kept.get(segment)?.clone().nth(row).filter(|_| self.program.pooling().is_some())?;
        // SAFETY: as in `logits`.
        Some(unsafe { self.buffers.normed.row(row) })
    }
}

/// One forward.
///
/// SAFETY of the row accesses below: `check_program` has fitted the slots' widths to the nodes, `check_batch` the
/// rows, tokens and blocks to the buffers and to each other; `Loader::distinct` keeps the slots of a node apart;
/// units take different rows or columns.
struct Pass<'a, S: Simd> {
    s: S,
    program: &'a Program,
    model: &'a Model,
    cache: &'a Cache,
    buffers: &'a Buffers,
    pool: &'a mut Pool,
    segments: &'a [Segment<'a>],
    rows: &'a [Row],
    runs: &'a [attention::Run],
    wanted: &'a [usize],
}

impl<S: Simd> Pass<'_, S> {
    fn step(&mut self, step: &Step) -> Result<(), Panicked> {
        let slots = &self.buffers.slots;
        match *step {
            Step::Embed { table, out } => self.embed(table, slots[out]),
            Step::AddRmsNorm { residual, delta, norm, out } => {
                self.add_rms_norm(slots[residual], delta.map(|d| slots[d]), norm, slots[out])
            }
            Step::Linear { input, matrix, bias, out } => {
                self.linear(slots[input], self.rows.len(), matrix, bias, slots[out])
            }
            Step::HeadNorm { qkv, q, k, eps } => self.head_norm(slots[qkv], q, k, eps),
            Step::RopeCache { qkv, layer } => self.rope_cache(slots[qkv], layer),
            Step::Attend { qkv, layer, scale, window, out } => {
                self.attend(slots[qkv], layer, scale, window, slots[out])
            }
            Step::GatedActivation { gate_up, act, out } => {
                let (s, gate_up, out) = (self.s.exact(), slots[gate_up], slots[out]);
                self.each_row(|r| {
                    // SAFETY: see `Pass`.
                    let (gate_up, out) = unsafe { (gate_up.row(r), out.row_mut(r)) };
                    s.run(GatedRow { gate_up, act, out });
                })
            }
            Step::Logits { residual, delta, norm, head } => {
                self.logits(slots[residual], delta.map(|d| slots[d]), norm, head)
            }
            Step::Vectors { residual, delta, norm } => {
                self.norm_kept(slots[residual], delta.map(|d| slots[d]), norm);
                Ok(())
            }
        }
    }

    /// Calls `f` for each row of the batch.
    fn each_row(&mut self, f: impl Fn(usize) + Sync) -> Result<(), Panicked> {
        let count = self.rows.len();
        self.pool.run(count.div_ceil(UNIT_ROWS), &|_, unit| {
            (unit * UNIT_ROWS..count.min((unit + 1) * UNIT_ROWS)).for_each(&f);
        })
    }

    fn embed(&mut self, table: usize, out: Rows) -> Result<(), Panicked> {
        let (table, rows) = (&self.model.matrices[table], self.rows);
        // SAFETY: see `Pass`.
        self.each_row(|r| table.row(rows[r].token as usize, unsafe { out.row_mut(r) }))
    }

    fn add_rms_norm(&mut self, residual: Rows, delta: Option<Rows>, norm: Norm, out: Rows) -> Result<(), Panicked> {
        let (s, weight) = (self.s.exact(), &self.model.vectors[norm.weight][..]);
        self.each_row(|r| {
            // SAFETY: see `Pass`.
            s.run(unsafe { norm_row(residual, delta, weight, norm.eps, r, out.row_mut(r)) });
        })
    }

    fn head_norm(&mut self, qkv: Rows, q: usize, k: usize, eps: f32) -> Result<(), Panicked> {
        let (s, dims, vectors) = (self.s.exact(), &self.program.dims, &self.model.vectors);
        self.each_row(|r| {
            // SAFETY: see `Pass`.
            let qkv = unsafe { qkv.row_mut(r) };
            s.run(HeadNormRow { qkv, q_weight: &vectors[q], k_weight: &vectors[k], eps, dims });
        })
    }

    fn rope_cache(&mut self, qkv: Rows, layer: usize) -> Result<(), Panicked> {
        let (s, dims, cache) = (self.s.exact(), &self.program.dims, self.cache);
        let (rows, segments, rotations) = (self.rows, self.segments, self.buffers.rotations);
        self.each_row(|r| {
            // SAFETY: see `Pass`.
            let (qkv, rotation) = unsafe { (qkv.row_mut(r), rotations.row(r)) };
            let (rotated, values) = qkv.split_at_mut((dims.num_heads + dims.num_kv_heads) * dims.head_dim);
            s.run(Rotate { heads: rotated, rotation });
            let keys = &rotated[dims.num_heads * dims.head_dim..];
            let block = segments[rows[r].segment].blocks[rows[r].position / super::simd::LANES];
            let heads = keys.chunks_exact(dims.head_dim).zip(values.chunks_exact(dims.head_dim));
            for (kv_head, (key, value)) in heads.enumerate() {
                let place = Place { block, layer, kv_head, offset: rows[r].position % super::simd::LANES };
                // SAFETY: see `Pass`; the batch's positions differ.
                unsafe { cache.write(place, key, value) };
            }
        })
    }

    fn attend(
        &mut self,
        qkv: Rows,
        layer: usize,
        scale: f32,
        window: Option<usize>,
        out: Rows,
    ) -> Result<(), Panicked> {
        let attend = Attend {
            dims: &self.program.dims,
            qkv,
            out,
            cache: self.cache,
            layer,
            scale,
            window,
            segments: self.segments,
            runs: self.runs,
            scratch: self.buffers.scratch.ptr(0),
        };
        let s = self.s.exact();
        self.pool.run(attend.units(), &|worker, unit| attend.unit(s, worker, unit))
    }

    /// `out = input * W^T + b` for the first `rows` rows.
    fn linear(
        &mut self,
        input: Rows,
        rows: usize,
        matrix: usize,
        bias: Option<usize>,
        out: Rows,
    ) -> Result<(), Panicked> {
        let (s, matrix) = (self.s, self.model.matrices[matrix]);
        let pack = PackPanel::new::<S>(input, rows, matrix.layout.dtype, self.buffers.panel.ptr(0));
        let panel = if rows == 1 && pack.form == Form::Columns {
            // A panel of one token is the row itself.
            input.ptr(0)
        } else {
            self.pool.run(pack.tiles.count, &|_, tile| pack.unit(s, tile))?;
            pack.panel
        };
        let bias = bias.map(|b| &self.model.vectors[b][..]);
        let linear = Linear::new::<S>(matrix, bias, panel, rows, out, self.pool.workers());
        self.pool.run(linear.units(), &|_, unit| linear.unit(s, unit))
    }

    fn logits(&mut self, residual: Rows, delta: Option<Rows>, norm: Norm, head: usize) -> Result<(), Panicked> {
        if self.wanted.is_empty() {
            return Ok(());
        }
        self.norm_kept(residual, delta, norm);
        self.linear(self.buffers.normed, self.wanted.len(), head, None, self.buffers.logits)
    }

    fn norm_kept(&self, residual: Rows, delta: Option<Rows>, norm: Norm) {
        let weight = &self.model.vectors[norm.weight];
        for (i, &r) in self.wanted.iter().enumerate() {
            // SAFETY: see `Pass`; one thread.
            let row = unsafe { norm_row(residual, delta, weight, norm.eps, r, self.buffers.normed.row_mut(i)) };
            self.s.exact().run(row);
        }
    }
}

/// The norm of row `r`.
///
/// # Safety
/// Row `r` exists in all, the buffers differ, and nobody else touches the row meanwhile.
unsafe fn norm_row<'a>(
    residual: Rows,
    delta: Option<Rows>,
    weight: &'a [f32],
    eps: f32,
    r: usize,
    out: &'a mut [f32],
) -> NormRow<'a> {
    // SAFETY: as the caller vouches.
    unsafe { NormRow { residual: residual.row_mut(r), delta: delta.map(|d| d.row(r)), weight, eps, out } }
}

#[cfg(test)]
mod tests;
