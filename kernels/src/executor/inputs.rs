//! What a batch is to the device: lists of numbers, staged in pinned memory and uploaded before the steps.
//!
//! There are two staging areas that take turns, so that the host can write the next batch while the device has yet to
//! copy the last one; an area is written again only after its copies are done.

use super::memory::{Memory, heads_of, max_partials, max_wanted};
use crate::driver::{Carver, Context, Event, Pinned, Slice, Stream};
use crate::error::CudaError;
use crate::ops::attend::{Phase, SegmentInfo, WorkList};
use crate::ops::attend_plan::PREFILL_ROWS;
use crate::ops::{AttendPlan, BLOCK_TOKENS, Piece, PlanLimits};
use std::sync::Arc;
use tidegate_device::{Batch, DeviceError, Limits, Node, Program};
use tidegate_types::Pooling;

/// Elements of each list.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputSizes {
    rows: usize,
    wanted: usize,
    seqs: usize,
    tables: usize,
    split: usize,
    combine: usize,
    prefill: usize,
}

impl InputSizes {
    pub(super) fn of(program: &Program, limits: &Limits) -> Self {
        let heads = heads_of(program);
        let longest = program.dims.max_positions.min(limits.num_blocks.saturating_mul(BLOCK_TOKENS));
        let partials = max_partials(limits, program);
        let group = heads.queries / heads.keys.max(1);
        // A segment is split into at most four tiles of rows.
        Self {
            rows: limits.max_batch_tokens,
            wanted: max_wanted(limits, program),
            seqs: limits.max_seqs,
            tables: limits.max_seqs.saturating_mul(longest.div_ceil(BLOCK_TOKENS)),
            split: limits.max_seqs.saturating_mul(4).saturating_add(partials),
            combine: limits.max_seqs.saturating_mul(4),
            prefill: (limits.max_batch_tokens.saturating_mul(group) / PREFILL_ROWS).saturating_add(limits.max_seqs),
        }
    }

    fn staging_bytes(&self) -> usize {
        4 * (3 * self.rows
            + self.wanted
            + 4 * self.seqs
            + self.tables
            + 4 * (self.split + self.combine + self.prefill)
            + 3)
    }
}

/// The lists on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputMemory {
    pub(super) tokens: Slice<i32>,
    pub(super) positions: Slice<i32>,
    pub(super) slots: Slice<i32>,
    /// Rows whose logits or vectors are wanted.
    pub(super) wanted: Slice<i32>,
    pub(super) segments: Slice<SegmentInfo>,
    pub(super) tables: Slice<i32>,
    work: [Slice<[i32; 4]>; 3],
    counts: Slice<i32>,
}

impl InputMemory {
    pub(super) fn carve(carver: &mut Carver, sizes: &InputSizes) -> Option<Self> {
        Some(Self {
            tokens: carver.take(sizes.rows)?,
            positions: carver.take(sizes.rows)?,
            slots: carver.take(sizes.rows)?,
            wanted: carver.take(sizes.wanted)?,
            segments: carver.take(sizes.seqs)?,
            tables: carver.take(sizes.tables)?,
            work: [carver.take(sizes.split)?, carver.take(sizes.combine)?, carver.take(sizes.prefill)?],
            counts: carver.take(3)?,
        })
    }

    /// The work list of a phase. Its length is read from the device; a grid of 0 launches nothing.
    pub(super) fn work(&self, phase: Phase, extent: &Extent) -> WorkList {
        let index = match phase {
            Phase::Split => 0,
            Phase::Combine => 1,
            Phase::Prefill => 2,
        };
        WorkList { items: self.work[index], count: self.counts.from(index), grid: extent.grids[index] }
    }
}

/// How much of everything a step launches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) rows: usize,
    /// Rows of the logits or vectors.
    pub(super) wanted: usize,
    /// Blocks of threads of the three phases of attention.
    pub(super) grids: [usize; 3],
}

/// A staging area with the mark after its last copy.
struct Staging {
    pinned: Pinned,
    copied: Event,
}

/// The current batch.
pub(super) struct Inputs {
    staging: [Staging; 2],
    turn: usize,
    limits: PlanLimits,
    pooling: Option<Pooling>,
    plan: AttendPlan,
    num_rows: usize,
    num_wanted: usize,
    bucket: Option<usize>,
    lists: Lists,
}

/// The lists on the host; kept for their capacity.
#[derive(Default)]
struct Lists {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    slots: Vec<i32>,
    wanted: Vec<i32>,
    segments: Vec<i32>,
    tables: Vec<i32>,
}

impl Inputs {
    pub(super) fn new(context: &Arc<Context>, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let bytes = InputSizes::of(program, limits).staging_bytes();
        let staging = || -> Result<Staging, DeviceError> {
            let pinned = Pinned::new(context, bytes).map_err(|e| e.while_allocating("staging of batches", bytes))?;
            Ok(Staging { pinned, copied: Event::new(context)? })
        };
        // A layer without a window sees everything.
        let windows = program.nodes.iter().filter_map(|node| match node {
            Node::Attend { window, .. } => Some(*window),
            _ => None,
        });
        let window = windows.reduce(|a, b| Some(a?.max(b?))).flatten();
        let heads = heads_of(program);
        Ok(Self {
            staging: [staging()?, staging()?],
            turn: 0,
            limits: PlanLimits {
                group: heads.queries / heads.keys.max(1),
                max_partials: max_partials(limits, program),
                window,
            },
            pooling: program.pooling(),
            plan: AttendPlan::default(),
            num_rows: 0,
            num_wanted: 0,
            bucket: None,
            lists: Lists::default(),
        })
    }

    /// How much of everything this batch launches.
    pub(super) fn extent(&self, keys: usize) -> Extent {
        let AttendPlan { split, combine, prefill, .. } = &self.plan;
        let grids = [split, combine, prefill].map(|items| items.len() * keys);
        Extent { rows: self.num_rows, wanted: self.num_wanted, grids }
    }

    /// The number of rows that this batch was padded to, if it is one that a graph can compute.
    pub(super) fn bucket(&self) -> Option<usize> {
        self.bucket
    }

    /// Lays the batch out and queues its upload. `bucket` says to how many rows one that only decodes is padded.
    pub(super) fn upload(
        &mut self,
        stream: &Stream,
        memory: &Memory,
        batch: &Batch<'_>,
        bucket: impl Fn(usize) -> Option<usize>,
    ) -> Result<(), CudaError> {
        self.lists.fill(batch, self.pooling);
        let pieces = batch.segments.iter().map(|s| Piece { num_tokens: s.num_tokens(), start: s.start });
        self.plan.make(pieces, &self.limits);
        let decodes = batch.segments.iter().all(|s| s.num_tokens() == 1 && s.want_result);
        let fits = decodes && self.plan.prefill.is_empty();
        self.bucket = if fits { bucket(self.lists.tokens.len()) } else { None };
        if let Some(rows) = self.bucket {
            self.lists.pad(rows);
        }
        self.num_rows = self.lists.tokens.len();
        self.num_wanted = self.lists.wanted.len();
        self.turn ^= 1;
        let Staging { pinned, copied } = &mut self.staging[self.turn];
        copied.wait()?;
        let to = &memory.inputs;
        let (lists, plan) = (&self.lists, &self.plan);
        let counts = [plan.split.len() as i32, plan.combine.len() as i32, plan.prefill.len() as i32];
        let mut at = 0;
        let mut send = |to: Slice<i32>, list: &[i32]| {
            let bytes = size_of_val(list);
            let (room, _) = pinned.bytes_mut()[at..at + bytes].as_chunks_mut::<4>();
            room.iter_mut().zip(list).for_each(|(to, from)| *to = from.to_le_bytes());
            if bytes > 0 {
                stream.upload(to, pinned, at, bytes)?;
            }
            at += bytes;
            Ok::<(), CudaError>(())
        };
        send(to.tokens, &lists.tokens)?;
        send(to.positions, &lists.positions)?;
        send(to.slots, &lists.slots)?;
        send(to.wanted, &lists.wanted)?;
        send(to.segments.cast(), &lists.segments)?;
        send(to.tables, &lists.tables)?;
        send(to.counts, &counts)?;
        for (to, list) in to.work.iter().zip([&plan.split, &plan.combine, &plan.prefill]) {
            send(to.cast(), list.as_flattened())?;
        }
        copied.record(stream)
    }
}

impl Lists {
    /// Rows that compute something and leave nothing behind: no slot in the cache, no item of attention.
    fn pad(&mut self, rows: usize) {
        self.tokens.resize(rows, 0);
        self.positions.resize(rows, 0);
        self.slots.resize(rows, -1);
        self.wanted.resize(rows, 0);
    }

    fn fill(&mut self, batch: &Batch<'_>, pooling: Option<Pooling>) {
        let Self { tokens, positions, slots, wanted, segments, tables } = self;
        [&mut *tokens, &mut *positions, slots, wanted, segments, &mut *tables].into_iter().for_each(Vec::clear);
        for segment in &batch.segments {
            let (first, end) = (tokens.len(), segment.start + segment.num_tokens());
            segments.extend([first, segment.num_tokens(), segment.start, tables.len()].map(|n| n as i32));
            tokens.extend(segment.tokens.iter().map(|&t| t as i32));
            // As `embed` reads it: from where the sampler left it.
            tokens.extend(segment.fed.map(|row| !(row as i32)));
            positions.extend((segment.start..end).map(|p| p as i32));
            let slot = |p: usize| segment.blocks[p / BLOCK_TOKENS].0 as usize * BLOCK_TOKENS + p % BLOCK_TOKENS;
            slots.extend((segment.start..end).map(|p| slot(p) as i32));
            tables.extend(segment.blocks[..end.div_ceil(BLOCK_TOKENS)].iter().map(|b| b.0 as i32));
            wanted.extend(segment.kept_rows(pooling).map(|row| (first + row) as i32));
        }
    }
}
