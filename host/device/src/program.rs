//! A model as data: what `model::arch` builds and every backend runs.
//!
//! Activations live in named slots of `[rows, width]`, one row for each token of a batch. Nodes are fused where
//! every fast backend fuses; a backend may fuse further, never reorder what a node defines.

use crate::weights::DType;
use tidegate_types::Pooling;

/// Sizes that the scheduler, the cache and the backend agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Dims {
    /// Decoder layers; each has its own keys and values in the cache.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the logits.
    pub vocab: usize,
    /// Longest sequence that the positions are defined for, in tokens.
    pub max_positions: usize,
}

/// Index into [`Program::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub usize);

/// Index into [`Program::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub usize);

/// A weight by its name in the checkpoint, with the shape it must have.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// Name in the safetensors files.
    pub name: String,
    /// `[out, in]` for matrices, `[n]` for vectors.
    pub shape: Vec<usize>,
}

/// An activation buffer of `[rows, width]` f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// For messages and for comparing backends node by node.
    pub name: &'static str,
    /// Elements per row.
    pub width: usize,
}

/// Element-wise function of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x)
    Silu,
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    GeluTanh,
}

/// Rotation of queries and keys (RoPE): the angle of pair `i` at position `p` is `p * inv_freq[i]`; pairs are
/// (i, i + head_dim/2) as in transformers. `inv_freq` already holds any scaling (Llama 3, linear, YaRN).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// `head_dim / 2` entries.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin (YaRN); 1 otherwise.
    pub attention_scale: f32,
}

/// One fused operation. Slots named `out` are written whole, others are read unless said.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `out[r] = table[token[r]]`
    Embed {
        /// `[vocab, hidden]`
        table: WeightId,
        /// The residual stream.
        out: SlotId,
    },
    /// `residual += delta` if there is a delta; `out = residual / sqrt(mean(residual^2) + eps) * weight`.
    AddRmsNorm {
        /// Read and written.
        residual: SlotId,
        /// Added first.
        delta: Option<SlotId>,
        /// `[width]`
        weight: WeightId,
        /// Inside the root.
        eps: f32,
        /// Normed rows.
        out: SlotId,
    },
    /// `out = concat_i(input * W_i^T + b_i)`; one pass over the input for fused QKV and gate-up.
    Linear {
        /// `[rows, in]`
        input: SlotId,
        /// `[out_i, in]` with its bias `[out_i]`, in order of the output's columns.
        parts: Vec<(WeightId, Option<WeightId>)>,
        /// `[rows, sum out_i]`
        out: SlotId,
    },
    /// RMS norm of each query and key head on its own (Qwen3), in place in `qkv`.
    HeadNorm {
        /// `[rows, (num_heads + 2 num_kv_heads) * head_dim]`: queries, keys, values.
        qkv: SlotId,
        /// `[head_dim]`
        q_weight: WeightId,
        /// `[head_dim]`
        k_weight: WeightId,
        /// Inside the root.
        eps: f32,
    },
    /// Rotates queries in place; rotates keys and writes keys and values into the layer's cache blocks.
    RopeCache {
        /// As in `HeadNorm`.
        qkv: SlotId,
        /// Which layer's cache.
        layer: usize,
    },
    /// Causal attention that reads keys and values only from the cache, in one fixed order of reduction, so that
    /// cached and uncached prompts, and any chunking, give the same bits.
    Attend {
        /// Rotated queries.
        qkv: SlotId,
        /// Which layer's cache.
        layer: usize,
        /// Factor on the scores; 1/sqrt(head_dim) for most.
        scale: f32,
        /// A token sees itself and `window - 1` tokens before it (Mistral); `None` sees all.
        window: Option<usize>,
        /// `[rows, num_heads * head_dim]`
        out: SlotId,
    },
    /// `out = act(gate) * up`
    GatedActivation {
        /// `[rows, 2 * width]`: gate, then up.
        gate_up: SlotId,
        /// The function.
        act: Activation,
        /// `[rows, width]`
        out: SlotId,
    },
    /// Final norm and head, only for rows whose logits are wanted: `residual + delta`, normed, times `head^T`.
    Logits {
        /// The residual stream.
        residual: SlotId,
        /// The last layer's output, not yet added.
        delta: Option<SlotId>,
        /// `[hidden]`
        norm: WeightId,
        /// Inside the root.
        eps: f32,
        /// `[vocab, hidden]`; the embedding table where the two are tied.
        head: WeightId,
    },
    /// Final norm without a head, for the rows that a vector is made of: `residual + delta`, normed.
    Vectors {
        /// The residual stream.
        residual: SlotId,
        /// The last layer's output, not yet added.
        delta: Option<SlotId>,
        /// `[hidden]`
        norm: WeightId,
        /// Inside the root.
        eps: f32,
        /// Which rows are kept: the wanted ones, or each.
        pooling: Pooling,
    },
}

/// A model: sizes, weights by name, buffers, and the nodes in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Sizes.
    pub dims: Dims,
    /// Element type that the model was published in (`dtype` or `torch_dtype` of its config). A backend may keep
    /// the cache in it; weights are taken in whatever type their tensors have.
    pub dtype: DType,
    /// Rotation table, shared by all layers.
    pub rope: RopeTable,
    /// Weights that the nodes name.
    pub weights: Vec<WeightSpec>,
    /// Buffers that the nodes name.
    pub slots: Vec<Slot>,
    /// In order of execution; the last is [`Node::Logits`], or [`Node::Vectors`] where no tokens are generated.
    pub nodes: Vec<Node>,
}

impl Program {
    /// What vectors are made of, where it makes those instead of tokens.
    pub fn pooling(&self) -> Option<Pooling> {
        match self.nodes.last() {
            Some(Node::Vectors { pooling, .. }) => Some(*pooling),
            _ => None,
        }
    }

    /// Bytes of keys and values of one token over all layers, with `elem_bytes` for an element. A backend may pad them:
    /// [`Backend::kv_bytes_per_token`](crate::Backend::kv_bytes_per_token).
    pub fn kv_bytes_per_token(&self, elem_bytes: usize) -> usize {
        2 * self.dims.num_layers * self.dims.num_kv_heads * self.dims.head_dim * elem_bytes
    }
}
