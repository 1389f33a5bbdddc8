//! From a program and a source of weights to packed matrices, f32 vectors and steps that name them by index.
//!
//! Matrices that share an input lie behind each other as one (fused QKV, gate and up); a matrix named twice (tied
//! embedding and head) is packed once. Nothing here rounds a weight: parts of different types become f32.

use super::gemm::Matrix;
use super::memory::{Memory, Rows};
use super::pack::{Layout, ROW_MULTIPLE, STRIP, widen};
use super::pool::Pool;
use crate::check::find_weight;
use crate::executor::DeviceError;
use crate::program::{Activation, Node, Program, SlotId, WeightId};
use crate::weights::{DType, TensorView, WeightSource};

/// [`Node`] with its weights resolved: numbers are indices into [`Model`]'s lists.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Embed { table: usize, out: usize },
    AddRmsNorm { residual: usize, delta: Option<usize>, norm: Norm, out: usize },
    Linear { input: usize, matrix: usize, bias: Option<usize>, out: usize },
    HeadNorm { qkv: usize, q: usize, k: usize, eps: f32 },
    RopeCache { qkv: usize, layer: usize },
    Attend { qkv: usize, layer: usize, scale: f32, window: Option<usize>, out: usize },
    GatedActivation { gate_up: usize, act: Activation, out: usize },
    Logits { residual: usize, delta: Option<usize>, norm: Norm, head: usize },
    Vectors { residual: usize, delta: Option<usize>, norm: Norm },
}

/// An RMS norm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    /// Index of its weight among the vectors.
    pub(super) weight: usize,
    /// Inside the root.
    pub(super) eps: f32,
}

/// Steps and weights.
pub(super) struct Model {
    /// In order.
    pub(super) steps: Vec<Step>,
    /// Packed.
    pub(super) matrices: Vec<Matrix>,
    /// Norm weights as they are, biases padded to whole groups.
    pub(super) vectors: Vec<Vec<f32>>,
    /// What `matrices` points into.
    _memory: Memory,
}

impl Model {
    /// Resolves, checks and packs; `program` has passed `check_program`.
    pub(super) fn load(program: &Program, source: &dyn WeightSource, pool: &mut Pool) -> Result<Self, DeviceError> {
        let mut loader = Loader { program, source, plans: Vec::new(), vectors: Vec::new() };
        let steps = program.nodes.iter().map(|node| loader.step(node)).collect::<Result<_, _>>()?;
        let (memory, matrices) = pack(&loader.plans, pool)?;
        Ok(Self { steps, matrices, vectors: loader.vectors, _memory: memory })
    }
}

/// A matrix to be: tensors behind each other.
struct Plan<'a> {
    ids: Vec<WeightId>,
    parts: Vec<TensorView<'a>>,
    layout: Layout,
}

struct Loader<'a> {
    program: &'a Program,
    source: &'a dyn WeightSource,
    plans: Vec<Plan<'a>>,
    vectors: Vec<Vec<f32>>,
}

impl<'a> Loader<'a> {
    fn step(&mut self, node: &Node) -> Result<Step, DeviceError> {
        let slot = |s: Option<SlotId>| s.map(|s| s.0);
        Ok(match node {
            Node::Embed { table, out } => Step::Embed { table: self.matrix(&[*table])?, out: out.0 },
            Node::AddRmsNorm { residual, delta, weight, eps, out } => {
                self.distinct(&[Some(*residual), *delta, Some(*out)])?;
                let norm = Norm { weight: self.vector(*weight)?, eps: *eps };
                Step::AddRmsNorm { residual: residual.0, delta: slot(*delta), norm, out: out.0 }
            }
            Node::Linear { input, parts, out } => {
                self.distinct(&[Some(*input), Some(*out)])?;
                let ids: Vec<WeightId> = parts.iter().map(|p| p.0).collect();
                let (matrix, bias) = (self.matrix(&ids)?, self.bias(parts)?);
                Step::Linear { input: input.0, matrix, bias, out: out.0 }
            }
            Node::HeadNorm { qkv, q_weight, k_weight, eps } => {
                Step::HeadNorm { qkv: qkv.0, q: self.vector(*q_weight)?, k: self.vector(*k_weight)?, eps: *eps }
            }
            Node::RopeCache { qkv, layer } => Step::RopeCache { qkv: qkv.0, layer: *layer },
            Node::Attend { qkv, layer, scale, window, out } => {
                self.distinct(&[Some(*qkv), Some(*out)])?;
                Step::Attend { qkv: qkv.0, layer: *layer, scale: *scale, window: *window, out: out.0 }
            }
            Node::GatedActivation { gate_up, act, out } => {
                self.distinct(&[Some(*gate_up), Some(*out)])?;
                Step::GatedActivation { gate_up: gate_up.0, act: *act, out: out.0 }
            }
            Node::Logits { residual, delta, norm, eps, head } => {
                self.distinct(&[Some(*residual), *delta])?;
                let norm = Norm { weight: self.vector(*norm)?, eps: *eps };
                Step::Logits { residual: residual.0, delta: slot(*delta), norm, head: self.matrix(&[*head])? }
            }
            Node::Vectors { residual, delta, norm, eps, .. } => {
                self.distinct(&[Some(*residual), *delta])?;
                let norm = Norm { weight: self.vector(*norm)?, eps: *eps };
                Step::Vectors { residual: residual.0, delta: slot(*delta), norm }
            }
        })
    }

    /// Kernels hold shared and exclusive rows of a node's slots at once, so those must differ.
    fn distinct(&self, slots: &[Option<SlotId>]) -> Result<(), DeviceError> {
        let named: Vec<SlotId> = slots.iter().flatten().copied().collect();
        match named.iter().enumerate().find(|(i, s)| named[..*i].contains(s)) {
            None => Ok(()),
            Some((_, s)) => {
                let name = self.program.slots[s.0].name;
                Err(DeviceError::BadProgram(format!("slot `{name}` is named twice by one node")))
            }
        }
    }

    fn view(&self, id: WeightId) -> Result<TensorView<'a>, DeviceError> {
        let view = find_weight(self.program, id, self.source)?;
        let expected = view.shape.iter().product::<usize>() * view.dtype.size();
        if view.data.len() != expected {
            let name = &self.program.weights[id.0].name;
            let what = format!("tensor `{name}` has {} bytes; its shape asks for {expected}", view.data.len());
            return Err(DeviceError::BadProgram(what));
        }
        Ok(view)
    }

    fn matrix(&mut self, ids: &[WeightId]) -> Result<usize, DeviceError> {
        if let Some(i) = self.plans.iter().position(|p| p.ids == ids) {
            return Ok(i);
        }
        let parts = ids.iter().map(|&id| self.view(id)).collect::<Result<Vec<_>, _>>()?;
        let rows = parts.iter().map(|p| p.shape[0]).sum::<usize>().next_multiple_of(ROW_MULTIPLE);
        let cols = parts.first().map_or(0, |p| p.shape[1]);
        let first = parts.first().map_or(DType::F32, |p| p.dtype);
        let dtype = if parts.iter().all(|p| p.dtype == first) { first } else { DType::F32 };
        self.plans.push(Plan { ids: ids.to_vec(), parts, layout: Layout { dtype, rows, cols, strip: STRIP } });
        Ok(self.plans.len() - 1)
    }

    fn vector(&mut self, id: WeightId) -> Result<usize, DeviceError> {
        let view = self.view(id)?;
        self.vectors.push(to_f32(view));
        Ok(self.vectors.len() - 1)
    }

    fn bias(&mut self, parts: &[(WeightId, Option<WeightId>)]) -> Result<Option<usize>, DeviceError> {
        if parts.iter().all(|p| p.1.is_none()) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (weight, bias) in parts {
            match bias {
                Some(bias) => all.extend(to_f32(self.view(*bias)?)),
                None => all.resize(all.len() + self.program.weights[weight.0].shape[0], 0.0),
            }
        }
        all.resize(Rows::stride_of(all.len()), 0.0);
        self.vectors.push(all);
        Ok(Some(self.vectors.len() - 1))
    }
}

fn to_f32(view: TensorView<'_>) -> Vec<f32> {
    view.data.chunks_exact(view.dtype.size()).map(|x| widen(view.dtype, x)).collect()
}

/// Packs all matrices into one map, a strip of rows at a time on all threads.
fn pack(plans: &[Plan<'_>], pool: &mut Pool) -> Result<(Memory, Vec<Matrix>), DeviceError> {
    let what = "the packed weights";
    let mut starts = Vec::with_capacity(plans.len());
    let mut total = 0usize;
    for plan in plans {
        starts.push(total);
        let end = plan.layout.bytes().and_then(|bytes| total.checked_add(bytes));
        total = end.ok_or(DeviceError::OutOfMemory { what, bytes: usize::MAX })?;
    }
    let memory = Memory::zeroed(total, what)?;
    for (plan, start) in plans.iter().zip(&starts) {
        let target = Target { start: memory.ptr().wrapping_add(*start) };
        let job = |_worker: usize, strip: usize| plan.pack_strip(strip, &target);
        pool.run(plan.layout.strips(), &job)
            .map_err(|_| DeviceError::Lost("a thread panicked while it packed weights".to_owned()))?;
    }
    // SAFETY: every strip has been packed; the map is kept beside the matrices and not written again.
    let matrix = |(plan, start): (&Plan<'_>, &usize)| unsafe {
        Matrix::new(plan.layout, memory.ptr().wrapping_add(*start).cast_const())
    };
    let matrices = plans.iter().zip(&starts).map(matrix).collect();
    Ok((memory, matrices))
}

/// Where a matrix is packed to.
struct Target {
    start: *mut u8,
}

// SAFETY: units write different strips.
unsafe impl Sync for Target {}

impl<'a> Plan<'a> {
    fn pack_strip(&self, strip: usize, target: &Target) {
        let bytes = self.layout.strip_bytes();
        // SAFETY: the strip lies within the zeroed map, and this unit alone touches it.
        let out = unsafe { std::slice::from_raw_parts_mut(target.start.add(strip * bytes), bytes) };
        for lane in 0..ROW_MULTIPLE {
            let Some((part, row)) = self.locate(strip * ROW_MULTIPLE + lane) else { return };
            let row_bytes = self.layout.cols * part.dtype.size();
            self.layout.pack_row(out, lane, &part.data[row * row_bytes..][..row_bytes], part.dtype);
        }
    }

    /// The part that holds row `row`, and its number there; `None` for padding.
    fn locate(&self, mut row: usize) -> Option<(&TensorView<'a>, usize)> {
        for part in &self.parts {
            if row < part.shape[0] {
                return Some((part, row));
            }
            row -= part.shape[0];
        }
        None
    }
}
