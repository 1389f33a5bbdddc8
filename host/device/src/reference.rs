//! The naive backend: every node as its formula says, in order, one row after the other.
//!
//! It is the truth that fast backends are compared with, so it must be obvious before anything else. Values are
//! f32 between nodes; sums within a node run in f64, in index order, so that its own rounding stays far below
//! that of whatever is compared with it. Read next: `reference/ops.rs`, the formulas.

mod cache;
pub mod ops;

use crate::check::{check_batch, check_program, check_rows, find_weight};
use crate::executor::{Backend, Batch, DeviceError, Drawn, Executor, Limits, SampleRow, Segment};
use crate::fed::{DrawQueue, with_tokens};
use crate::program::{Node, Program, SlotId, WeightId};
use crate::sampler::Sampler;
use crate::weights::WeightSource;
use cache::Cache;
use std::sync::Arc;
use tidegate_types::Pooling;

/// The backend `reference`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "naive f32 interpreter, one thread".to_owned()
    }

    fn kv_elem_bytes(&self, _program: &Program) -> usize {
        size_of::<f32>()
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, DeviceError> {
        Ok(Box::new(ReferenceExecutor::new(program, weights, limits)?))
    }
}

struct ReferenceExecutor {
    program: Arc<Program>,
    limits: Limits,
    weights: Vec<Vec<f32>>,
    /// One buffer for each slot of the program, `max_batch_tokens` rows each.
    slots: Vec<Vec<f32>>,
    cache: Cache,
    /// One row for each segment of the last forward; empty where none was wanted.
    logits: Vec<Vec<f32>>,
    /// The rows that were kept of each segment of the last forward, by a program that makes vectors.
    vectors: Vec<Vec<Vec<f32>>>,
    sampler: Sampler,
    drawn: DrawQueue,
}

impl ReferenceExecutor {
    fn new(program: Arc<Program>, source: &dyn WeightSource, limits: Limits) -> Result<Self, DeviceError> {
        check_program(&program)?;
        if limits.block_tokens == 0 {
            return Err(DeviceError::Unsupported { backend: "reference", what: "blocks of 0 tokens".to_owned() });
        }
        let load = |id| Ok(ops::to_f32(find_weight(&program, WeightId(id), source)?));
        let weights = (0..program.weights.len()).map(load).collect::<Result<_, DeviceError>>()?;
        let buffer = |width| ops::zeros("activations", limits.max_batch_tokens.checked_mul(width));
        let slots = program.slots.iter().map(|slot| buffer(slot.width)).collect::<Result<_, _>>()?;
        Ok(Self {
            weights,
            slots,
            cache: Cache::new(&program.dims, &limits)?,
            logits: Vec::with_capacity(limits.max_seqs),
            vectors: Vec::with_capacity(limits.max_seqs),
            sampler: Sampler::new(program.dims.vocab),
            drawn: DrawQueue::default(),
            program,
            limits,
        })
    }

    fn run(&mut self, node: &Node, batch: &Batch<'_>, rows: &[Row<'_>]) {
        match node {
            Node::Embed { table, out } => self.embed(*table, *out, rows),
            Node::AddRmsNorm { residual, delta, weight, eps, out } => {
                let norm = (*weight, *eps);
                (0..rows.len()).for_each(|r| self.add_rms_norm(*residual, *delta, norm, *out, r));
            }
            Node::Linear { input, parts, out } => (0..rows.len()).for_each(|r| self.linear(*input, parts, *out, r)),
            Node::HeadNorm { qkv, q_weight, k_weight, eps } => {
                (0..rows.len()).for_each(|r| self.head_norm(*qkv, *q_weight, *k_weight, *eps, r));
            }
            Node::RopeCache { qkv, layer } => {
                rows.iter().enumerate().for_each(|(r, row)| self.rope_cache(*qkv, *layer, r, row));
            }
            Node::Attend { qkv, layer, scale, window, out } => {
                let attend = ops::Attention { scale: *scale, window: *window, layer: *layer };
                rows.iter().enumerate().for_each(|(r, row)| self.attend(*qkv, &attend, *out, r, row));
            }
            Node::GatedActivation { gate_up, act, out } => {
                for r in 0..rows.len() {
                    let result = ops::gated(self.row(*gate_up, r), *act);
                    self.put(*out, r, &result);
                }
            }
            Node::Logits { residual, delta, norm, eps, head } => {
                self.keep_logits(batch, *residual, *delta, (*norm, *eps), *head);
            }
            Node::Vectors { residual, delta, norm, eps, pooling } => {
                self.keep_vectors(batch, *residual, *delta, (*norm, *eps), *pooling);
            }
        }
    }

    fn width(&self, slot: SlotId) -> usize {
        self.program.slots[slot.0].width
    }

    fn row(&self, slot: SlotId, r: usize) -> &[f32] {
        let width = self.width(slot);
        &self.slots[slot.0][r * width..(r + 1) * width]
    }

    fn row_mut(&mut self, slot: SlotId, r: usize) -> &mut [f32] {
        let width = self.width(slot);
        &mut self.slots[slot.0][r * width..(r + 1) * width]
    }

    fn put(&mut self, slot: SlotId, r: usize, values: &[f32]) {
        self.row_mut(slot, r).copy_from_slice(values);
    }

    fn embed(&mut self, table: WeightId, out: SlotId, rows: &[Row<'_>]) {
        let width = self.width(out);
        for (r, row) in rows.iter().enumerate() {
            let start = row.token as usize * width;
            let target = &mut self.slots[out.0][r * width..(r + 1) * width];
            target.copy_from_slice(&self.weights[table.0][start..start + width]);
        }
    }

    /// The residual row with its delta added.
    fn added(&self, residual: SlotId, delta: Option<SlotId>, r: usize) -> Vec<f32> {
        let mut sum = self.row(residual, r).to_vec();
        if let Some(delta) = delta {
            sum.iter_mut().zip(self.row(delta, r)).for_each(|(x, d)| *x += d);
        }
        sum
    }

    fn add_rms_norm(
        &mut self,
        residual: SlotId,
        delta: Option<SlotId>,
        (weight, eps): (WeightId, f32),
        out: SlotId,
        r: usize,
    ) {
        let sum = self.added(residual, delta, r);
        self.put(residual, r, &sum);
        let normed = ops::rms_norm(&sum, &self.weights[weight.0], eps);
        self.put(out, r, &normed);
    }

    fn linear(&mut self, input: SlotId, parts: &[(WeightId, Option<WeightId>)], out: SlotId, r: usize) {
        let x = self.row(input, r);
        let column = |(weight, bias): &(WeightId, Option<WeightId>)| {
            let bias = bias.map(|b| self.weights[b.0].as_slice());
            ops::linear(x, &self.weights[weight.0], bias)
        };
        let result: Vec<f32> = parts.iter().flat_map(column).collect();
        self.put(out, r, &result);
    }

    fn head_norm(&mut self, qkv: SlotId, q_weight: WeightId, k_weight: WeightId, eps: f32, r: usize) {
        let dims = &self.program.dims;
        let (num_heads, num_kv_heads, head_dim) = (dims.num_heads, dims.num_kv_heads, dims.head_dim);
        for head in 0..num_heads + num_kv_heads {
            let weight = if head < num_heads { q_weight } else { k_weight };
            let range = head * head_dim..(head + 1) * head_dim;
            let normed = ops::rms_norm(&self.row(qkv, r)[range.clone()], &self.weights[weight.0], eps);
            self.row_mut(qkv, r)[range].copy_from_slice(&normed);
        }
    }

    fn rope_cache(&mut self, qkv: SlotId, layer: usize, r: usize, row: &Row<'_>) {
        let program = Arc::clone(&self.program);
        let (num_heads, num_kv_heads) = (program.dims.num_heads, program.dims.num_kv_heads);
        let heads: Vec<Vec<f32>> = self.row(qkv, r).chunks(program.dims.head_dim).map(<[f32]>::to_vec).collect();
        let rotate = |head: &Vec<f32>| ops::rotate(head, &program.rope, row.position);
        let queries: Vec<f32> = heads[..num_heads].iter().flat_map(rotate).collect();
        self.row_mut(qkv, r)[..queries.len()].copy_from_slice(&queries);
        for kv_head in 0..num_kv_heads {
            let key = rotate(&heads[num_heads + kv_head]);
            let at = row.place(&self.limits, layer, kv_head);
            self.cache.key_mut(&at).copy_from_slice(&key);
            self.cache.value_mut(&at).copy_from_slice(&heads[num_heads + num_kv_heads + kv_head]);
        }
    }

    fn attend(&mut self, qkv: SlotId, attention: &ops::Attention, out: SlotId, r: usize, row: &Row<'_>) {
        let dims = &self.program.dims;
        let group = dims.num_heads / dims.num_kv_heads;
        let first = attention.window.map_or(0, |w| (row.position + 1).saturating_sub(w));
        let mut result = Vec::with_capacity(dims.num_heads * dims.head_dim);
        for (head, query) in self.row(qkv, r).chunks(dims.head_dim).take(dims.num_heads).enumerate() {
            let place = |position| Row { position, ..*row }.place(&self.limits, attention.layer, head / group);
            let past: Vec<_> = (first..=row.position).map(place).collect();
            let keys = past.iter().map(|at| self.cache.key(at));
            let shares = ops::softmax(keys.map(|key| ops::dot(query, key) * f64::from(attention.scale)));
            let values = past.iter().map(|at| self.cache.value(at));
            result.extend(ops::weighted_sum(&shares, values, dims.head_dim));
        }
        self.put(out, r, &result);
    }

    fn keep_logits(
        &mut self,
        batch: &Batch<'_>,
        residual: SlotId,
        delta: Option<SlotId>,
        (norm, eps): (WeightId, f32),
        head: WeightId,
    ) {
        let mut end = 0;
        for segment in &batch.segments {
            end += segment.tokens.len();
            let mut logits = Vec::new();
            if segment.want_result {
                let sum = self.added(residual, delta, end - 1);
                let normed = ops::rms_norm(&sum, &self.weights[norm.0], eps);
                logits = ops::linear(&normed, &self.weights[head.0], None);
            }
            self.logits.push(logits);
        }
    }

    fn keep_vectors(
        &mut self,
        batch: &Batch<'_>,
        residual: SlotId,
        delta: Option<SlotId>,
        (norm, eps): (WeightId, f32),
        pooling: Pooling,
    ) {
        let mut first = 0;
        for segment in &batch.segments {
            let vector = |r| ops::rms_norm(&self.added(residual, delta, first + r), &self.weights[norm.0], eps);
            let kept = segment.kept_rows(Some(pooling)).map(vector).collect();
            self.vectors.push(kept);
            first += segment.tokens.len();
        }
    }
}

impl Executor for ReferenceExecutor {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.logits.clear();
        self.vectors.clear();
        check_batch(batch, &self.program.dims, &self.limits)?;
        let fed = self.drawn.feed(batch)?;
        let resolved = fed.as_ref().map(|tokens| with_tokens(batch, tokens));
        let batch = resolved.as_ref().unwrap_or(batch);
        let rows: Vec<Row<'_>> = batch.segments.iter().flat_map(Row::of).collect();
        let program = Arc::clone(&self.program);
        program.nodes.iter().for_each(|node| self.run(node, batch, &rows));
        Ok(())
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        check_rows(rows, |segment| self.logits(segment).is_some())?;
        let Self { drawn, sampler, logits, .. } = self;
        drawn.draw(rows, |row| sampler.draw(&logits[row.segment], row));
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.drawn.collect()
    }

    fn logits(&self, segment: usize) -> Option<&[f32]> {
        self.logits.get(segment).map(Vec::as_slice).filter(|row| !row.is_empty())
    }

    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        self.vectors.get(segment)?.get(row).map(Vec::as_slice)
    }
}

/// One token of a batch and where it stands.
#[derive(Clone, Copy)]
struct Row<'a> {
    token: u32,
    position: usize,
    segment: &'a Segment<'a>,
}

impl<'a> Row<'a> {
    fn of(segment: &'a Segment<'a>) -> impl Iterator<Item = Row<'a>> {
        let tokens = segment.tokens.iter().enumerate();
        tokens.map(move |(i, &token)| Row { token, position: segment.start + i, segment })
    }

    /// Where this row's position lies in the cache.
    fn place(&self, limits: &Limits, layer: usize, kv_head: usize) -> cache::Place {
        let block = self.segment.blocks[self.position / limits.block_tokens];
        cache::Place { block: block.0 as usize, layer, kv_head, offset: self.position % limits.block_tokens }
    }
}

#[cfg(test)]
mod tests;
