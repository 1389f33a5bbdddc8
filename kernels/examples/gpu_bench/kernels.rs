//! Each kernel by itself, in the shapes of one layer of a model: its time, and what it moves and computes, from which
//! the table makes its floor.

use crate::checkpoint::Sizes;
use crate::rates::least;
use crate::{Failure, images, open, row};
use half::bf16;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tidegate_device::{Activation, SampleRow};
use tidegate_kernels::blas::{Algorithms, Bench, Blas, Matrix, Product, WORKSPACE_BYTES};
use tidegate_kernels::driver::{Arena, Carver, Context, Kernels, Pinned, Slice, Stream};
use tidegate_kernels::ops::add_rms_norm::NormBuffers;
use tidegate_kernels::ops::attend::{AttendBuffers, LayerAttention, Phase, SegmentInfo, WorkList};
use tidegate_kernels::ops::rope_cache::{Heads, LayerCache, Places};
use tidegate_kernels::ops::sample::{Bias, MAX_TOP, PackedRows, RowInfo, SampleBuffers, Sampled, Top};
use tidegate_kernels::ops::{
    AddRmsNorm, Attend, AttendPlan, Embed, GatedActivation, OpError, Piece, PlanLimits, RopeCache, Sample,
};
use tidegate_types::SamplingParams;

const BLOCK: usize = 16;
const MAX_PARTIALS: usize = 2048;

/// Rows of some sequences that decode, or of one prompt.
#[derive(Clone, Copy)]
struct Shape {
    seqs: usize,
    /// Of each sequence.
    rows: usize,
    start: usize,
}

impl Shape {
    fn total(&self) -> usize {
        self.seqs * self.rows
    }

    fn blocks_each(&self) -> usize {
        (self.start + self.rows).div_ceil(BLOCK)
    }

    fn name(&self) -> String {
        match self.rows {
            1 => format!("decode, {} sequences, context {}", self.seqs, self.start + 1),
            rows => format!("prefill, {rows} tokens"),
        }
    }
}

/// Everything that a layer's kernels touch; zeros, but for the lists.
struct Memory {
    table: Slice<bf16>,
    residual: Slice<f32>,
    norm: Slice<f32>,
    qkv: Slice<bf16>,
    wide: Slice<bf16>,
    narrow: Slice<bf16>,
    weights: Slice<bf16>,
    logits: Slice<f32>,
    adjusted: Slice<f32>,
    counts: Slice<u32>,
    cache: Slice<bf16>,
    rotations: Slice<[f32; 2]>,
    ints: [Slice<i32>; 4],
    segments: Slice<SegmentInfo>,
    tables: Slice<i32>,
    work: [Slice<[i32; 4]>; 3],
    work_counts: Slice<i32>,
    partials: Slice<f32>,
    partial_sums: Slice<[f32; 2]>,
    rows: Slice<RowInfo>,
    bias: Slice<Bias>,
    masks: Slice<u32>,
    out: Slice<Sampled>,
    tops: Slice<Top>,
    workspace: Slice<u8>,
}

impl Memory {
    fn carve(carver: &mut Carver, s: &Sizes, heads: Heads, shape: Shape) -> Option<Self> {
        let (rows, seqs) = (shape.total(), shape.seqs);
        let blocks = seqs * shape.blocks_each();
        let partial_rows = MAX_PARTIALS * heads.keys * 16;
        let largest = (2 * s.ffn).max(heads.qkv_width()).max(s.hidden);
        let items = MAX_PARTIALS + 4 * seqs + rows * heads.queries / heads.keys / 64 + 1;
        Some(Self {
            table: carver.take(s.vocab * s.hidden)?,
            residual: carver.take(rows * s.hidden)?,
            norm: carver.take(largest)?,
            qkv: carver.take(rows * heads.qkv_width())?,
            wide: carver.take(rows * largest)?,
            narrow: carver.take(rows * s.ffn.max(s.hidden).max(heads.queries * heads.dim))?,
            weights: carver.take(largest * s.hidden.max(s.ffn))?,
            logits: carver.take(seqs * s.vocab)?,
            adjusted: carver.take(seqs * s.vocab)?,
            counts: carver.take(seqs * s.vocab)?,
            cache: carver.take(blocks * heads.layer_elems())?,
            rotations: carver.take((shape.start + shape.rows) * heads.dim / 2)?,
            ints: [carver.take(rows)?, carver.take(rows)?, carver.take(rows)?, carver.take(rows)?],
            segments: carver.take(seqs)?,
            tables: carver.take(blocks)?,
            work: [carver.take(items)?, carver.take(items)?, carver.take(items)?],
            work_counts: carver.take(3)?,
            partials: carver.take(partial_rows * heads.dim)?,
            partial_sums: carver.take(partial_rows)?,
            rows: carver.take(seqs)?,
            bias: carver.take(1)?,
            masks: carver.take(1)?,
            out: carver.take(seqs)?,
            tops: carver.take(seqs * MAX_TOP)?,
            workspace: carver.take(WORKSPACE_BYTES)?,
        })
    }
}

struct Rig<'a> {
    context: Arc<Context>,
    stream: Stream,
    kernels: Arc<Kernels>,
    sizes: &'a Sizes,
    heads: Heads,
    shape: Shape,
    memory: Memory,
    model: &'a str,
}

/// Prints a row for each kernel in each of the batches and prompts.
pub fn measure(
    config: &Path,
    model: &str,
    batches: &[usize],
    context: usize,
    prompts: &[usize],
) -> Result<(), Failure> {
    let sizes = Sizes::of(&serde_json::from_slice(&std::fs::read(config)?)?)?;
    open(Algorithms::Best)?;
    let decodes = batches.iter().map(|&seqs| Shape { seqs, rows: 1, start: context - 1 });
    let prefills = prompts.iter().map(|&rows| Shape { seqs: 1, rows, start: 0 });
    decodes.chain(prefills).try_for_each(|shape| measure_shape(&sizes, model, shape))
}

fn measure_shape(sizes: &Sizes, model: &str, shape: Shape) -> Result<(), Failure> {
    let device = Context::open(0)?;
    let heads = Heads { queries: sizes.queries, keys: sizes.keys, dim: sizes.head_dim };
    let mut counting = Carver::measuring();
    Memory::carve(&mut counting, sizes, heads, shape).ok_or("the sizes overflow")?;
    let arena = Arena::new(&device, counting.used())?;
    let memory = Memory::carve(&mut arena.carver(), sizes, heads, shape).ok_or("the sizes overflow")?;
    let stream = Stream::new(&device)?;
    stream.zero(arena.carver().take::<u8>(counting.used()).ok_or("the sizes overflow")?)?;
    let kernels = Kernels::load(&device, &images(&device)?)?;
    let rig = Rig { context: device, stream, kernels, sizes, heads, shape, memory, model };
    rig.small_kernels()?;
    rig.attend()?;
    rig.sample()?;
    rig.products()
}

impl Rig<'_> {
    fn report(
        &self,
        kernel: &str,
        (bytes, flops): (usize, usize),
        mut queue: impl FnMut(&Stream) -> Result<(), OpError>,
    ) -> Result<(), Failure> {
        let time = least(&self.stream, || Ok(queue(&self.stream)?))?;
        row::print(&json!({
            "figure": "kernel", "kernel": kernel, "model": self.model, "step": self.shape.name(), "by": "tidegate",
            "unit": "us", "value": time.as_secs_f64() * 1e6, "bytes": bytes, "flops": flops,
        }));
        Ok(())
    }

    fn put(&self, to: Slice<i32>, numbers: &[i32]) -> Result<(), Failure> {
        let mut staging = Pinned::new(&self.context, 4 * numbers.len())?;
        let (room, _) = staging.bytes_mut().as_chunks_mut::<4>();
        room.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
        self.stream.upload(to, &staging, 0, 4 * numbers.len())?;
        Ok(self.stream.synchronize()?)
    }

    fn cache(&self) -> LayerCache {
        LayerCache { cache: self.memory.cache, block_stride: self.heads.layer_elems() }
    }

    fn small_kernels(&self) -> Result<(), Failure> {
        let Self { memory: m, sizes: s, kernels, shape, .. } = self;
        let rows = shape.total();
        let embed = Embed::new(kernels, s.hidden)?;
        let [tokens, drawn, positions, slots] = m.ints;
        self.report("embed", (rows * s.hidden * 6, 0), |stream| {
            embed.launch(stream, rows, m.table, (tokens, drawn), m.residual)
        })?;
        let norm = AddRmsNorm::new(kernels, s.hidden)?;
        let buffers = NormBuffers { residual: m.residual, delta: Some(m.narrow), weight: m.norm, out: m.wide };
        self.report("add_rms_norm", (rows * s.hidden * 12, 0), |stream| norm.launch(stream, rows, &buffers, 1e-5))?;
        let each = shape.blocks_each() * BLOCK;
        let place = |row: usize| (row / shape.rows, shape.start + row % shape.rows);
        self.put(positions, &(0..rows).map(|row| place(row).1 as i32).collect::<Vec<_>>())?;
        self.put(slots, &(0..rows).map(|row| (place(row).0 * each + place(row).1) as i32).collect::<Vec<_>>())?;
        let rope = RopeCache::new(kernels, self.heads)?;
        let places = Places { rotations: m.rotations, positions, slots };
        self.report("rope_cache", (rows * self.heads.qkv_width() * 4, 0), |stream| {
            rope.launch(stream, rows, m.qkv, None, (&places, &self.cache()))
        })?;
        let gate = GatedActivation::new(kernels, Activation::Silu, s.ffn)?;
        self.report("gated_activation", (rows * s.ffn * 6, 0), |stream| gate.launch(stream, rows, m.wide, m.narrow))
    }

    fn attend(&self) -> Result<(), Failure> {
        let Self { memory: m, heads, shape, .. } = self;
        let op = Attend::new(&self.kernels, *heads)?;
        let mut plan = AttendPlan::default();
        let pieces = (0..shape.seqs).map(|_| Piece { num_tokens: shape.rows, start: shape.start });
        plan.make(pieces, &PlanLimits { group: op.group(), max_partials: MAX_PARTIALS, window: None });
        let each = shape.blocks_each();
        let segment = |s: usize| [s * shape.rows, shape.rows, shape.start, s * each].map(|n| n as i32);
        self.put(m.segments.cast(), (0..shape.seqs).map(segment).collect::<Vec<_>>().as_flattened())?;
        // Neighbours do not lie side by side.
        let block = |i: usize| (i % each * shape.seqs + i / each) as i32;
        self.put(m.tables, &(0..shape.seqs * each).map(block).collect::<Vec<_>>())?;
        let lists = [&plan.split, &plan.combine, &plan.prefill];
        self.put(m.work_counts, &lists.map(|list| list.len() as i32))?;
        for (to, list) in m.work.iter().zip(lists) {
            if !list.is_empty() {
                self.put(to.cast(), list.as_flattened())?;
            }
        }
        let buffers = AttendBuffers {
            segments: m.segments,
            tables: m.tables,
            partials: m.partials,
            partial_sums: m.partial_sums,
        };
        let layer = LayerAttention { scale: 0.1, window: None };
        let work =
            |i: usize| WorkList { items: m.work[i], count: m.work_counts.from(i), grid: lists[i].len() * heads.keys };
        let rows = shape.total();
        let (kernel, cost) = if shape.rows == 1 {
            let past = rows * (shape.start + 1);
            ("attend_split", (past * 4 * heads.keys * heads.dim, 4 * past * heads.queries * heads.dim))
        } else {
            ("attend_prefill", (rows * heads.qkv_width() * 2, 2 * rows * rows * heads.queries * heads.dim))
        };
        self.report(kernel, cost, |stream| {
            [Phase::Split, Phase::Combine, Phase::Prefill].into_iter().enumerate().try_for_each(|(i, phase)| {
                op.launch(stream, (phase, &work(i)), (m.qkv, m.narrow), (&self.cache(), &buffers), &layer)
            })
        })
    }

    fn sample(&self) -> Result<(), Failure> {
        let Self { memory: m, shape, .. } = self;
        let params = SamplingParams::greedy();
        let row = |segment| SampleRow { segment, params: &params, position: 1, prompt: &[], output: &[], mask: None };
        let mut packed = PackedRows::default();
        packed.pack(&(0..shape.seqs).map(row).collect::<Vec<_>>(), |segment| (segment, None));
        self.put(m.rows.cast(), &packed.rows.iter().flat_map(RowInfo::words).collect::<Vec<_>>())?;
        let buffers = SampleBuffers {
            logits: m.logits,
            adjusted: m.adjusted,
            counts: m.counts,
            rows: m.rows,
            bias: m.bias,
            history: m.ints[0],
            masks: m.masks,
            out: m.out,
            tops: m.tops,
            drawn: m.ints[1],
            before: m.ints[1],
        };
        let op = Sample::new(&self.kernels, self.sizes.vocab)?;
        self.report("sample, greedy", (shape.seqs * self.sizes.vocab * 4, 0), |stream| {
            op.launch(stream, shape.seqs, &buffers)
        })
    }

    /// Each product of a layer, with the algorithm that is the fastest here.
    fn products(&self) -> Result<(), Failure> {
        let Self { memory: m, sizes: s, heads, shape, .. } = self;
        let attention = heads.queries * heads.dim;
        let layer = [
            ("qkv", s.hidden, heads.qkv_width()),
            ("o", attention, s.hidden),
            ("gate_up", s.hidden, 2 * s.ffn),
            ("down", s.ffn, s.hidden),
        ];
        let matrix = |weight: Slice<bf16>, ins, outs| Matrix { weight: weight.into(), bias: None, outs, ins };
        let mut matrices: Vec<(Matrix, bool)> =
            layer.iter().map(|&(_, ins, outs)| (matrix(m.weights, ins, outs), false)).collect();
        matrices.push((matrix(m.table, s.hidden, s.vocab), true));
        let mut blas = Blas::new(m.workspace, shape.total(), Algorithms::Best)?;
        let bench = Bench {
            input: m.narrow,
            out: m.wide,
            logits: m.logits,
            matrices: &matrices,
            device: &self.context.name()?,
            folder: None,
        };
        blas.tune(&self.stream, &bench)?;
        let names = layer.iter().map(|(name, ..)| *name).chain(["head"]);
        for (name, (matrix, is_head)) in names.zip(matrices.iter().copied()) {
            let rows = if is_head { shape.seqs } else { shape.total() };
            let out = if is_head { Product::F32(m.logits) } else { Product::Bf16(m.wide) };
            let (weights, activations) = (matrix.ins * matrix.outs, rows * (matrix.ins + matrix.outs));
            let cost = (2 * (weights + activations), 2 * weights * rows);
            self.report(&format!("product {name}"), cost, |stream| {
                Ok(blas.multiply(stream, &matrix, rows, m.narrow, out)?)
            })?;
        }
        Ok(())
    }
}
