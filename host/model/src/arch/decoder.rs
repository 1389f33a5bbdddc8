//! The pieces of pre-norm decoders in transformers' naming (`model.layers.N.self_attn.q_proj`, ...).
//!
//! [`decoder`] adds the embedding before the blocks and the head behind them. The output of attention and of the
//! MLP waits in one slot (`delta`) until the next norm adds it to the residual stream, which is how fast backends
//! fuse the two.

use crate::config::Config;
use tidegate_device::{DType, Dims, Node, Program, Slot, SlotId, WeightId, WeightSpec};

/// Whether a projection has a bias.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    Present,
    Absent,
}

impl Bias {
    pub(super) fn when(present: bool) -> Self {
        if present { Self::Present } else { Self::Absent }
    }
}

/// Composes a program: embedding, `block` for each layer, final norm and head; no head where it makes vectors.
pub(super) fn decoder(config: &Config, block: impl Fn(&mut Block<'_>, usize)) -> Program {
    let mut program = Program {
        dims: dims(config),
        dtype: config.dtype.unwrap_or(DType::F32),
        rope: config.rope.table(config.head_dim),
        weights: Vec::new(),
        slots: Vec::new(),
        nodes: Vec::new(),
    };
    let slots = Slots::new(&mut program, config);
    let table = weight(&mut program, "model.embed_tokens.weight", &[config.vocab, config.hidden]);
    program.nodes.push(Node::Embed { table, out: slots.residual });
    let mut pending = None;
    for layer in 0..config.num_layers {
        let mut b = Block { config, program: &mut program, slots, layer, pending };
        block(&mut b, layer);
        pending = b.pending;
    }
    let norm = weight(&mut program, "model.norm.weight", &[config.hidden]);
    let (residual, delta, eps) = (slots.residual, pending, config.rms_norm_eps);
    let last = match (config.pooling, config.tie_word_embeddings) {
        (Some(pooling), _) => Node::Vectors { residual, delta, norm, eps, pooling },
        (None, true) => Node::Logits { residual, delta, norm, eps, head: table },
        (None, false) => {
            let head = weight(&mut program, "lm_head.weight", &[config.vocab, config.hidden]);
            Node::Logits { residual, delta, norm, eps, head }
        }
    };
    program.nodes.push(last);
    program
}

fn dims(config: &Config) -> Dims {
    Dims {
        num_layers: config.num_layers,
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        hidden: config.hidden,
        vocab: config.vocab,
        max_positions: config.max_positions,
    }
}

fn weight(program: &mut Program, name: &str, shape: &[usize]) -> WeightId {
    program.weights.push(WeightSpec { name: name.to_owned(), shape: shape.to_vec() });
    WeightId(program.weights.len() - 1)
}

/// Activations that all layers share.
#[derive(Clone, Copy)]
struct Slots {
    residual: SlotId,
    normed: SlotId,
    qkv: SlotId,
    attended: SlotId,
    gate_up: SlotId,
    gated: SlotId,
    delta: SlotId,
}

impl Slots {
    fn new(program: &mut Program, config: &Config) -> Self {
        let mut slot = |name, width| {
            program.slots.push(Slot { name, width });
            SlotId(program.slots.len() - 1)
        };
        Self {
            residual: slot("residual", config.hidden),
            normed: slot("normed", config.hidden),
            qkv: slot("qkv", (config.num_heads + 2 * config.num_kv_heads) * config.head_dim),
            attended: slot("attended", config.num_heads * config.head_dim),
            gate_up: slot("gate_up", 2 * config.intermediate),
            gated: slot("gated", config.intermediate),
            delta: slot("delta", config.hidden),
        }
    }
}

/// A decoder block under composition.
pub(super) struct Block<'a> {
    config: &'a Config,
    program: &'a mut Program,
    slots: Slots,
    layer: usize,
    /// The output that the next norm adds to the residual stream.
    pending: Option<SlotId>,
}

impl Block<'_> {
    /// Adds what is pending to the residual stream and norms it.
    pub(super) fn norm(&mut self, name: &str) {
        let weight = self.weight(&format!("{name}.weight"), &[self.config.hidden]);
        let Slots { residual, normed, .. } = self.slots;
        let (delta, eps) = (self.pending.take(), self.config.rms_norm_eps);
        self.program.nodes.push(Node::AddRmsNorm { residual, delta, weight, eps, out: normed });
    }

    /// Queries, keys and values of the normed stream.
    pub(super) fn qkv(&mut self, bias: Bias) {
        let (heads, kv_heads) = (self.config.num_heads, self.config.num_kv_heads);
        let parts = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)].map(|(name, heads)| {
            self.projection(&format!("self_attn.{name}"), heads * self.config.head_dim, self.config.hidden, bias)
        });
        self.linear(self.slots.normed, parts.to_vec(), self.slots.qkv);
    }

    /// Norms each query and key head on its own.
    pub(super) fn head_norm(&mut self, q_name: &str, k_name: &str) {
        let [q_weight, k_weight] =
            [q_name, k_name].map(|name| self.weight(&format!("self_attn.{name}.weight"), &[self.config.head_dim]));
        let (qkv, eps) = (self.slots.qkv, self.config.rms_norm_eps);
        self.program.nodes.push(Node::HeadNorm { qkv, q_weight, k_weight, eps });
    }

    /// Rotation, cache and attention.
    pub(super) fn attend(&mut self, window: Option<usize>) {
        let (layer, Slots { qkv, attended, .. }) = (self.layer, self.slots);
        let scale = (self.config.head_dim as f32).sqrt().recip();
        self.program.nodes.push(Node::RopeCache { qkv, layer });
        self.program.nodes.push(Node::Attend { qkv, layer, scale, window, out: attended });
    }

    /// Heads back to the width of the residual stream.
    pub(super) fn attention_output(&mut self, bias: Bias) {
        let width = self.config.num_heads * self.config.head_dim;
        let part = self.projection("self_attn.o_proj", self.config.hidden, width, bias);
        self.linear(self.slots.attended, vec![part], self.slots.delta);
        self.pending = Some(self.slots.delta);
    }

    /// `down(act(gate(x)) * up(x))` of the normed stream.
    pub(super) fn gated_mlp(&mut self, bias: Bias) {
        let (hidden, intermediate) = (self.config.hidden, self.config.intermediate);
        let parts =
            ["gate_proj", "up_proj"].map(|name| self.projection(&format!("mlp.{name}"), intermediate, hidden, bias));
        let Slots { normed, gate_up, gated, delta, .. } = self.slots;
        self.linear(normed, parts.to_vec(), gate_up);
        self.program.nodes.push(Node::GatedActivation { gate_up, act: self.config.activation, out: gated });
        let down = self.projection("mlp.down_proj", hidden, intermediate, bias);
        self.linear(gated, vec![down], delta);
        self.pending = Some(delta);
    }

    fn projection(&mut self, name: &str, out: usize, input: usize, bias: Bias) -> (WeightId, Option<WeightId>) {
        let matrix = self.weight(&format!("{name}.weight"), &[out, input]);
        let bias = (bias == Bias::Present).then(|| self.weight(&format!("{name}.bias"), &[out]));
        (matrix, bias)
    }

    fn linear(&mut self, input: SlotId, parts: Vec<(WeightId, Option<WeightId>)>, out: SlotId) {
        self.program.nodes.push(Node::Linear { input, parts, out });
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> WeightId {
        let name = format!("model.layers.{}.{name}", self.layer);
        weight(self.program, &name, shape)
    }
}
