//! Where everything lies in the arena; carved twice, once only to count.

use super::inputs::{InputMemory, InputSizes};
use super::sampling::{SampleMemory, SampleSizes};
use super::weights::WeightMemory;
use crate::blas::WORKSPACE_BYTES;
use crate::driver::{Carver, Slice};
use crate::ops::attend::AttendBuffers;
use crate::ops::rope_cache::{Heads, LayerCache, Places};
use half::bf16;
use tidegate_device::{DeviceError, Limits, Node, Program, SlotId};
use tidegate_types::Pooling;

/// Partial results of attention that there is room for, at most; above it the prefill kernel takes over.
const MAX_PARTIALS: usize = 2048;

/// An activation buffer: the residual stream keeps f32, all that feeds products is bf16.
#[derive(Clone, Copy, Debug)]
pub(super) enum Buffer {
    F32(Slice<f32>),
    Bf16(Slice<bf16>),
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) weights: WeightMemory,
    pub(super) slots: Vec<Buffer>,
    /// Normed rows that are wanted, as many as [`max_wanted`].
    pub(super) normed: Slice<bf16>,
    pub(super) inputs: InputMemory,
    pub(super) sampling: SampleMemory,
    pub(super) workspace: Slice<u8>,
    rotations: Slice<[f32; 2]>,
    cache: Slice<bf16>,
    partials: Slice<f32>,
    partial_sums: Slice<[f32; 2]>,
    heads: Heads,
    num_layers: usize,
}

impl Memory {
    /// `None`: it does not fit.
    pub(super) fn carve(carver: &mut Carver, program: &Program, limits: &Limits) -> Result<Option<Self>, DeviceError> {
        let residual = residual_slots(program)?;
        let weights = WeightMemory::carve(carver, program)?;
        Ok(weights.and_then(|weights| Self::carve_rest(carver, program, limits, weights, &residual)))
    }

    fn carve_rest(
        carver: &mut Carver,
        program: &Program,
        limits: &Limits,
        weights: WeightMemory,
        residual: &[bool],
    ) -> Option<Self> {
        let dims = &program.dims;
        let heads = heads_of(program);
        let rows = limits.max_batch_tokens;
        let mut slots = Vec::with_capacity(program.slots.len());
        for (slot, &is_residual) in program.slots.iter().zip(residual) {
            let len = rows.checked_mul(slot.width)?;
            slots.push(if is_residual { Buffer::F32(carver.take(len)?) } else { Buffer::Bf16(carver.take(len)?) });
        }
        let block = heads.layer_elems().checked_mul(dims.num_layers)?;
        let partial_rows = max_partials(limits, program).checked_mul(heads.keys * 16)?;
        Some(Self {
            weights,
            slots,
            normed: carver.take(max_wanted(limits, program).checked_mul(dims.hidden)?)?,
            inputs: InputMemory::carve(carver, &InputSizes::of(program, limits))?,
            sampling: SampleMemory::carve(carver, &SampleSizes::of(program, limits))?,
            workspace: carver.take(WORKSPACE_BYTES)?,
            rotations: carver.take(dims.max_positions.checked_mul(dims.head_dim / 2)?)?,
            cache: carver.take(limits.num_blocks.checked_mul(block)?)?,
            partials: carver.take(partial_rows.checked_mul(heads.dim)?)?,
            partial_sums: carver.take(partial_rows)?,
            heads,
            num_layers: dims.num_layers,
        })
    }

    /// The cache of one layer.
    pub(super) fn layer(&self, layer: usize) -> LayerCache {
        let elems = self.heads.layer_elems();
        LayerCache { cache: self.cache.from(layer * elems), block_stride: self.num_layers * elems }
    }

    pub(super) fn places(&self) -> Places {
        Places { rotations: self.rotations, positions: self.inputs.positions, slots: self.inputs.slots }
    }

    pub(super) fn attend(&self) -> AttendBuffers {
        AttendBuffers {
            segments: self.inputs.segments,
            tables: self.inputs.tables,
            partials: self.partials,
            partial_sums: self.partial_sums,
        }
    }

    /// The two largest buffers of activations, the smaller one first.
    pub(super) fn widest(&self) -> [Slice<bf16>; 2] {
        let activations = self.slots.iter().filter_map(|slot| match slot {
            Buffer::Bf16(slice) => Some(*slice),
            Buffer::F32(_) => None,
        });
        let smallest = [self.normed.from(self.normed.len()); 2];
        activations.fold(smallest, |[second, first], slice| match slice.len() {
            len if len > first.len() => [first, slice],
            len if len > second.len() => [slice, first],
            _ => [second, first],
        })
    }

    pub(super) fn heads(&self) -> &Heads {
        &self.heads
    }

    pub(super) fn rotations(&self) -> Slice<[f32; 2]> {
        self.rotations
    }
}

pub(super) fn heads_of(program: &Program) -> Heads {
    let dims = &program.dims;
    Heads { queries: dims.num_heads, keys: dims.num_kv_heads, dim: dims.head_dim }
}

/// Rows of one batch that the host may read, or that logits are made of: all of them where vectors are a mean, since it is
/// the engine that adds them up, in an order that no cut of the prompt changes; else one for each sequence.
pub(super) fn max_wanted(limits: &Limits, program: &Program) -> usize {
    match program.pooling() {
        Some(Pooling::Mean) => limits.max_batch_tokens.max(limits.max_seqs),
        Some(Pooling::LastToken) | None => limits.max_seqs,
    }
}

/// As many as the longest sequences could use, up to the bound.
pub(super) fn max_partials(limits: &Limits, program: &Program) -> usize {
    let longest = program.dims.max_positions.min(limits.num_blocks.saturating_mul(limits.block_tokens));
    let spans = longest.div_ceil(crate::ops::attend_plan::SPAN);
    limits.max_seqs.saturating_mul(4).saturating_mul(spans).min(MAX_PARTIALS)
}

/// Which slots hold the residual stream; they are used as nothing else.
fn residual_slots(program: &Program) -> Result<Vec<bool>, DeviceError> {
    let mut residual = vec![false; program.slots.len()];
    let mut other = vec![false; program.slots.len()];
    let mut mark = |id: SlotId, is_residual: bool| {
        if is_residual { residual[id.0] = true } else { other[id.0] = true }
    };
    for node in &program.nodes {
        match node {
            Node::Embed { out, .. } => mark(*out, true),
            Node::AddRmsNorm { residual, delta, out, .. } => {
                mark(*residual, true);
                delta.iter().for_each(|d| mark(*d, false));
                mark(*out, false);
            }
            Node::Linear { input, out, .. } => [input, out].into_iter().for_each(|s| mark(*s, false)),
            Node::HeadNorm { qkv, .. } | Node::RopeCache { qkv, .. } => mark(*qkv, false),
            Node::Attend { qkv, out, .. } => [qkv, out].into_iter().for_each(|s| mark(*s, false)),
            Node::GatedActivation { gate_up, out, .. } => [gate_up, out].into_iter().for_each(|s| mark(*s, false)),
            Node::Logits { residual, delta, .. } | Node::Vectors { residual, delta, .. } => {
                mark(*residual, true);
                delta.iter().for_each(|d| mark(*d, false));
            }
        }
    }
    match residual.iter().zip(&other).position(|(a, b)| *a && *b) {
        None => Ok(residual),
        Some(slot) => {
            let what = format!("slot `{}` as both residual stream and activation", program.slots[slot].name);
            Err(DeviceError::Unsupported { backend: "cuda", what })
        }
    }
}
