//! Weights on the device: matrices as bf16, norms as f32, the parts of a fused product one after the other.
//!
//! Whatever the checkpoint's type, matrices are rounded to bf16 once, here.

use super::memory::Memory;
use crate::driver::{Carver, Context, Pinned, Slice, Stream};
use half::{bf16, f16};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tidegate_device::check::find_weight;
use tidegate_device::{DType, DeviceError, Node, Program, TensorView, WeightId, WeightSource};

/// Bytes of host memory that weights go through.
const STAGING_BYTES: usize = 16 << 20;

/// Where each weight lies.
#[derive(Debug, Default)]
pub(super) struct WeightMemory {
    /// Norms, by weight.
    vectors: HashMap<usize, Slice<f32>>,
    /// Embedding and head, by weight.
    tables: HashMap<usize, Slice<bf16>>,
    /// Fused matrix and bias, by the first part's weight.
    fused: HashMap<usize, (Slice<bf16>, Option<Slice<bf16>>)>,
}

impl WeightMemory {
    pub(super) fn carve(carver: &mut Carver, program: &Program) -> Result<Option<Self>, DeviceError> {
        let mut memory = Self::default();
        for node in &program.nodes {
            if memory.carve_node(carver, program, node)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(memory))
    }

    fn carve_node(&mut self, carver: &mut Carver, program: &Program, node: &Node) -> Result<Option<()>, DeviceError> {
        Ok(match node {
            Node::Embed { table, .. } => self.table(carver, program, *table),
            Node::AddRmsNorm { weight: norm, .. } | Node::Vectors { norm, .. } => self.vector(carver, program, *norm),
            Node::HeadNorm { q_weight, k_weight, .. } => {
                self.vector(carver, program, *q_weight).and_then(|()| self.vector(carver, program, *k_weight))
            }
            Node::Logits { norm, head, .. } => {
                self.vector(carver, program, *norm).and_then(|()| self.table(carver, program, *head))
            }
            Node::Linear { parts, .. } => return self.fuse(carver, program, parts),
            Node::RopeCache { .. } | Node::Attend { .. } | Node::GatedActivation { .. } => Some(()),
        })
    }

    fn table(&mut self, carver: &mut Carver, program: &Program, id: WeightId) -> Option<()> {
        if let Entry::Vacant(entry) = self.tables.entry(id.0) {
            entry.insert(carver.take(elems(program, id))?);
        }
        Some(())
    }

    fn vector(&mut self, carver: &mut Carver, program: &Program, id: WeightId) -> Option<()> {
        if let Entry::Vacant(entry) = self.vectors.entry(id.0) {
            entry.insert(carver.take(elems(program, id))?);
        }
        Some(())
    }

    fn fuse(
        &mut self,
        carver: &mut Carver,
        program: &Program,
        parts: &[(WeightId, Option<WeightId>)],
    ) -> Result<Option<()>, DeviceError> {
        let Some((first, _)) = parts.first() else {
            return Err(DeviceError::BadProgram("a linear node without parts".to_owned()));
        };
        if self.fused.contains_key(&first.0) {
            let what = format!("weight `{}` in two products", program.weights[first.0].name);
            return Err(DeviceError::Unsupported { backend: "cuda", what });
        }
        let outs: usize = parts.iter().map(|(weight, _)| program.weights[weight.0].shape[0]).sum();
        let total: usize = parts.iter().map(|(weight, _)| elems(program, *weight)).sum();
        let mut take = || {
            let matrix = carver.take(total)?;
            let biased = parts.iter().any(|(_, bias)| bias.is_some());
            Some((matrix, if biased { Some(carver.take(outs)?) } else { None }))
        };
        Ok(take().map(|taken| {
            self.fused.insert(first.0, taken);
        }))
    }

    pub(super) fn vector_of(&self, id: WeightId) -> Result<Slice<f32>, DeviceError> {
        self.vectors.get(&id.0).copied().ok_or_else(|| unplaced(id))
    }

    pub(super) fn table_of(&self, id: WeightId) -> Result<Slice<bf16>, DeviceError> {
        self.tables.get(&id.0).copied().ok_or_else(|| unplaced(id))
    }

    pub(super) fn fused_of(&self, first: WeightId) -> Result<(Slice<bf16>, Option<Slice<bf16>>), DeviceError> {
        self.fused.get(&first.0).copied().ok_or_else(|| unplaced(first))
    }
}

fn elems(program: &Program, id: WeightId) -> usize {
    program.weights[id.0].shape.iter().product()
}

fn unplaced(id: WeightId) -> DeviceError {
    DeviceError::BadProgram(format!("weight {} has no place", id.0))
}

/// Uploads all weights and the rotations.
pub(super) fn upload(
    context: &Arc<Context>,
    stream: &Stream,
    program: &Program,
    source: &dyn WeightSource,
    memory: &Memory,
) -> Result<(), DeviceError> {
    let staging = Pinned::new(context, STAGING_BYTES);
    let staging = staging.map_err(|error| error.while_allocating("staging of weights", STAGING_BYTES))?;
    let mut uploader = Uploader { stream, staging };
    let weights = &memory.weights;
    for (id, slice) in &weights.vectors {
        let view = find_weight(program, WeightId(*id), source)?;
        uploader.send(*slice, view.data, view.dtype.size(), |bytes| widen(view.dtype, bytes).to_le_bytes())?;
    }
    for (id, slice) in &weights.tables {
        uploader.matrix(*slice, find_weight(program, WeightId(*id), source)?)?;
    }
    for node in &program.nodes {
        let Node::Linear { parts, .. } = node else { continue };
        let (mut matrix, mut bias) = weights.fused_of(parts[0].0)?;
        for (weight, part_bias) in parts {
            let view = find_weight(program, *weight, source)?;
            uploader.matrix(matrix, view)?;
            matrix = matrix.from(elems(program, *weight));
            let Some(to) = bias else { continue };
            match part_bias {
                Some(id) => uploader.matrix(to, find_weight(program, *id, source)?)?,
                None => stream.zero(to)?,
            }
            bias = Some(to.from(view.shape[0]));
        }
    }
    let rotations = rotations(program);
    uploader.send(memory.rotations(), &rotations, 8, |bytes| {
        let mut pair = [0; 8];
        pair.copy_from_slice(bytes);
        pair
    })
}

struct Uploader<'a> {
    stream: &'a Stream,
    staging: Pinned,
}

impl Uploader<'_> {
    fn matrix(&mut self, to: Slice<bf16>, view: TensorView<'_>) -> Result<(), DeviceError> {
        let narrow = |bytes: &[u8]| match view.dtype {
            DType::BF16 => [bytes[0], bytes[1]],
            dtype => bf16::from_f32(widen(dtype, bytes)).to_le_bytes(),
        };
        self.send(to, view.data, view.dtype.size(), narrow)
    }

    /// Elements of `size` bytes, each converted to `N` bytes, by way of the staging memory.
    fn send<T, const N: usize>(
        &mut self,
        to: Slice<T>,
        data: &[u8],
        size: usize,
        convert: impl Fn(&[u8]) -> [u8; N],
    ) -> Result<(), DeviceError> {
        let (per_turn, mut to) = (STAGING_BYTES / N, to.cast::<[u8; N]>());
        for piece in data.chunks(per_turn * size) {
            let count = piece.len() / size;
            let (staged, _) = self.staging.bytes_mut().as_chunks_mut::<N>();
            staged.iter_mut().zip(piece.chunks_exact(size)).for_each(|(to, from)| *to = convert(from));
            self.stream.upload(to, &self.staging, 0, count * N)?;
            // The staging memory is filled again, and at the end given back.
            self.stream.synchronize()?;
            to = to.from(count);
        }
        Ok(())
    }
}

/// One element as f32, exactly.
fn widen(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
    }
}

/// (cos, sin) of every position and pair, as `device::reference` has them: the angle is rounded to f32 first.
fn rotations(program: &Program) -> Vec<u8> {
    let rope = &program.rope;
    let scale = f64::from(rope.attention_scale);
    let mut bytes = Vec::with_capacity(program.dims.max_positions * rope.inv_freq.len() * 8);
    for position in 0..program.dims.max_positions {
        for frequency in &rope.inv_freq {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            bytes.extend(((cos * scale) as f32).to_le_bytes());
            bytes.extend(((sin * scale) as f32).to_le_bytes());
        }
    }
    bytes
}
