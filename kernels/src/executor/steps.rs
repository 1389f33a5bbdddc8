//! A program as steps on the device: each node with its launcher and its buffers, made once.

use super::memory::{Buffer, Memory, heads_of};
use crate::blas::Matrix;
use crate::driver::{Kernels, Slice};
use crate::ops::add_rms_norm::NormBuffers;
use crate::ops::attend::LayerAttention;
use crate::ops::rope_cache::HeadNorm;
use crate::ops::{AddRmsNorm, Attend, Embed, GatedActivation, RopeCache};
use half::bf16;
use std::sync::Arc;
use tidegate_device::{DeviceError, Node, Program, SlotId, WeightId};

/// One step; the fields are what the launcher takes.
#[derive(Debug)]
pub(super) enum Step {
    Embed { op: Embed, table: Slice<bf16>, out: Slice<f32> },
    Norm { op: AddRmsNorm, buffers: NormBuffers, eps: f32 },
    Linear { matrix: Matrix, input: Slice<bf16>, out: Slice<bf16> },
    Rope { op: RopeCache, qkv: Slice<bf16>, norm: Option<HeadNorm>, layer: usize },
    Attend { op: Attend, qkv: Slice<bf16>, out: Slice<bf16>, layer: usize, attention: LayerAttention },
    Gate { op: GatedActivation, gate_up: Slice<bf16>, out: Slice<bf16> },
    Logits { op: AddRmsNorm, buffers: NormBuffers, eps: f32, head: Matrix },
    Vectors { op: AddRmsNorm, buffers: NormBuffers, eps: f32 },
}

/// The steps in order.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) steps: Vec<Step>,
}

impl Model {
    pub(super) fn new(kernels: &Arc<Kernels>, program: &Program, memory: &Memory) -> Result<Self, DeviceError> {
        let mut builder = Builder { kernels, program, memory, head_norm: None, steps: Vec::new() };
        program.nodes.iter().try_for_each(|node| builder.add(node))?;
        Ok(Self { steps: builder.steps })
    }

    /// The matrices of all products, each with whether it makes logits.
    pub(super) fn matrices(&self) -> Vec<(Matrix, bool)> {
        let matrix = |step: &Step| match step {
            Step::Linear { matrix, .. } => Some((*matrix, false)),
            Step::Logits { head, .. } => Some((*head, true)),
            _ => None,
        };
        self.steps.iter().filter_map(matrix).collect()
    }
}

struct Builder<'a> {
    kernels: &'a Arc<Kernels>,
    program: &'a Program,
    memory: &'a Memory,
    /// A head norm waits for the rotation that it is fused with.
    head_norm: Option<(SlotId, HeadNorm)>,
    steps: Vec<Step>,
}

impl Builder<'_> {
    fn add(&mut self, node: &Node) -> Result<(), DeviceError> {
        if let (Some((slot, _)), false) = (&self.head_norm, matches!(node, Node::RopeCache { .. })) {
            let what = format!("a head norm of slot `{}` without its rotation", self.program.slots[slot.0].name);
            return Err(DeviceError::Unsupported { backend: "cuda", what });
        }
        let step = match node {
            Node::HeadNorm { qkv, q_weight, k_weight, eps } => {
                let (q_weight, k_weight) = (self.vector(*q_weight)?, self.vector(*k_weight)?);
                self.head_norm = Some((*qkv, HeadNorm { q_weight, k_weight, eps: *eps }));
                return Ok(());
            }
            Node::RopeCache { qkv, layer } => self.rope(*qkv, *layer)?,
            Node::Embed { table, out } => Step::Embed {
                op: Embed::new(self.kernels, self.program.dims.hidden)?,
                table: self.memory.weights.table_of(*table)?,
                out: self.residual(*out)?,
            },
            Node::AddRmsNorm { residual, delta, weight, eps, out } => Step::Norm {
                op: AddRmsNorm::new(self.kernels, self.program.slots[out.0].width)?,
                buffers: NormBuffers {
                    residual: self.residual(*residual)?,
                    delta: delta.map(|d| self.activation(d)).transpose()?,
                    weight: self.vector(*weight)?,
                    out: self.activation(*out)?,
                },
                eps: *eps,
            },
            Node::Linear { input, parts, out } => Step::Linear {
                matrix: self.fused(*input, parts, *out)?,
                input: self.activation(*input)?,
                out: self.activation(*out)?,
            },
            Node::Attend { qkv, layer, scale, window, out } => Step::Attend {
                op: Attend::new(self.kernels, heads_of(self.program))?,
                qkv: self.activation(*qkv)?,
                out: self.activation(*out)?,
                layer: *layer,
                attention: LayerAttention { scale: *scale, window: *window },
            },
            Node::GatedActivation { gate_up, act, out } => Step::Gate {
                op: GatedActivation::new(self.kernels, *act, self.program.slots[out.0].width)?,
                gate_up: self.activation(*gate_up)?,
                out: self.activation(*out)?,
            },
            Node::Logits { residual, delta, norm, eps, head } => Step::Logits {
                op: AddRmsNorm::new(self.kernels, self.program.dims.hidden)?,
                buffers: self.last_norm(*residual, *delta, *norm)?,
                eps: *eps,
                head: self.head(*head)?,
            },
            // What is pooled is which rows are wanted.
            Node::Vectors { residual, delta, norm, eps, .. } => Step::Vectors {
                op: AddRmsNorm::new(self.kernels, self.program.dims.hidden)?,
                buffers: self.last_norm(*residual, *delta, *norm)?,
                eps: *eps,
            },
        };
        self.steps.push(step);
        Ok(())
    }

    /// What the last node norms, and where to.
    fn last_norm(&self, residual: SlotId, delta: Option<SlotId>, norm: WeightId) -> Result<NormBuffers, DeviceError> {
        Ok(NormBuffers {
            residual: self.residual(residual)?,
            delta: delta.map(|d| self.activation(d)).transpose()?,
            weight: self.vector(norm)?,
            out: self.memory.normed,
        })
    }

    fn rope(&mut self, qkv: SlotId, layer: usize) -> Result<Step, DeviceError> {
        let norm = match self.head_norm.take() {
            Some((slot, norm)) if slot == qkv => Some(norm),
            None => None,
            Some((slot, _)) => {
                let names = [slot, qkv].map(|id| self.program.slots[id.0].name);
                let what = format!("a head norm of slot `{}` before a rotation of slot `{}`", names[0], names[1]);
                return Err(DeviceError::Unsupported { backend: "cuda", what });
            }
        };
        let op = RopeCache::new(self.kernels, heads_of(self.program))?;
        Ok(Step::Rope { op, qkv: self.activation(qkv)?, norm, layer })
    }

    fn fused(&self, input: SlotId, parts: &[(WeightId, Option<WeightId>)], out: SlotId) -> Result<Matrix, DeviceError> {
        let (weight, bias) = self.memory.weights.fused_of(parts[0].0)?;
        let slots = &self.program.slots;
        Ok(Matrix {
            weight: weight.into(),
            bias: bias.map(Into::into),
            outs: slots[out.0].width,
            ins: slots[input.0].width,
        })
    }

    fn head(&self, head: WeightId) -> Result<Matrix, DeviceError> {
        let dims = &self.program.dims;
        Ok(Matrix {
            weight: self.memory.weights.table_of(head)?.into(),
            bias: None,
            outs: dims.vocab,
            ins: dims.hidden,
        })
    }

    fn vector(&self, id: WeightId) -> Result<Slice<f32>, DeviceError> {
        self.memory.weights.vector_of(id)
    }

    fn residual(&self, id: SlotId) -> Result<Slice<f32>, DeviceError> {
        match self.memory.slots[id.0] {
            Buffer::F32(slice) => Ok(slice),
            Buffer::Bf16(_) => Err(DeviceError::BadProgram(format!("slot {} is not a residual stream", id.0))),
        }
    }

    fn activation(&self, id: SlotId) -> Result<Slice<bf16>, DeviceError> {
        match self.memory.slots[id.0] {
            Buffer::Bf16(slice) => Ok(slice),
            Buffer::F32(_) => Err(DeviceError::BadProgram(format!("slot {} is a residual stream", id.0))),
        }
    }
}
