//! Decoder models of any shape with random weights: for comparing backends, and for timing them.

use half::{bf16, f16};
use std::collections::HashMap;
use tidegate_device::{
    Activation, DType, Dims, Node, Program, RopeTable, Slot, SlotId, TensorView, WeightId, WeightSource, WeightSpec,
};

/// A decoder's shape.
#[derive(Clone, Debug)]
pub struct Shape {
    pub dims: Dims,
    pub ffn: usize,
    pub dtype: DType,
    pub qkv_bias: bool,
    /// Of attention's output and of the feed-forward's three products (`attention_bias`, `mlp_bias`).
    pub out_bias: bool,
    pub head_norm: bool,
    pub tied: bool,
    pub window: Option<usize>,
    pub act: Activation,
    /// YaRN's factor on cosines and sines.
    pub rope_scale: f32,
}

/// Weights by name.
#[derive(Default)]
pub struct Weights(pub HashMap<String, (DType, Vec<usize>, Vec<u8>)>);

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (dtype, shape, data) = self.0.get(name)?;
        Some(TensorView { dtype: *dtype, shape, data })
    }
}

/// Uniform numbers in -1..1, the same for the same seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }
}

/// Little-endian bytes of `x` as `dtype`.
pub fn encode(dtype: DType, x: f32, out: &mut Vec<u8>) {
    match dtype {
        DType::F32 => out.extend(x.to_le_bytes()),
        DType::F16 => out.extend(f16::from_f32(x).to_le_bytes()),
        DType::BF16 => out.extend(bf16::from_f32(x).to_le_bytes()),
    }
}

struct Builder {
    program: Program,
    weights: Weights,
    random: Random,
    dtype: DType,
}

impl Builder {
    /// Uniform in `mean +- spread`.
    fn weight(&mut self, name: String, shape: &[usize], mean: f32, spread: f32) -> WeightId {
        let count = shape.iter().product::<usize>();
        let mut data = Vec::with_capacity(count * self.dtype.size());
        for _ in 0..count {
            encode(self.dtype, mean + spread * self.random.uniform(), &mut data);
        }
        self.weights.0.insert(name.clone(), (self.dtype, shape.to_vec(), data));
        self.program.weights.push(WeightSpec { name, shape: shape.to_vec() });
        WeightId(self.program.weights.len() - 1)
    }

    fn matrix(&mut self, name: String, rows: usize, cols: usize) -> WeightId {
        // A variance of 1/cols keeps activations at the size they had.
        self.weight(name, &[rows, cols], 0.0, (3.0 / cols as f32).sqrt())
    }

    /// A product's matrix, with a bias for each of its rows or without.
    fn product(&mut self, name: String, (rows, cols): (usize, usize), biased: bool) -> (WeightId, Option<WeightId>) {
        let bias = format!("{name}_bias");
        (self.matrix(name, rows, cols), biased.then(|| self.weight(bias, &[rows], 0.0, 0.5)))
    }

    fn slot(&mut self, name: &'static str, width: usize) -> SlotId {
        self.program.slots.push(Slot { name, width });
        SlotId(self.program.slots.len() - 1)
    }
}

/// The program and weights of `shape`.
pub fn build(shape: &Shape, seed: u64) -> (Program, Weights) {
    let dims = shape.dims.clone();
    let half = dims.head_dim / 2;
    let inv_freq = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
    let rope = RopeTable { inv_freq, attention_scale: shape.rope_scale };
    let program =
        Program { dims: dims.clone(), dtype: shape.dtype, rope, weights: vec![], slots: vec![], nodes: vec![] };
    let mut b = Builder { program, weights: Weights::default(), random: Random(seed), dtype: shape.dtype };
    let hidden = dims.hidden;
    let (q_width, kv_width) = (dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim);
    let (residual, normed, delta) = (b.slot("residual", hidden), b.slot("normed", hidden), b.slot("delta", hidden));
    let (qkv, mixed) = (b.slot("qkv", q_width + 2 * kv_width), b.slot("mixed", q_width));
    let (gate_up, gated) = (b.slot("gate_up", 2 * shape.ffn), b.slot("gated", shape.ffn));
    let table = b.weight("table".into(), &[dims.vocab, hidden], 0.0, 1.0);
    let eps = 1e-6;
    let mut nodes = vec![Node::Embed { table, out: residual }];
    for layer in 0..dims.num_layers {
        let named = |name: &str| format!("{layer}.{name}");
        let norm = |b: &mut Builder, name: &str, delta| {
            let weight = b.weight(named(name), &[hidden], 1.0, 0.2);
            Node::AddRmsNorm { residual, delta, weight, eps, out: normed }
        };
        let node = norm(&mut b, "norm1", (layer > 0).then_some(delta));
        nodes.push(node);
        let parts = [("q", q_width), ("k", kv_width), ("v", kv_width)];
        let parts = parts.map(|(name, rows)| b.product(named(name), (rows, hidden), shape.qkv_bias));
        nodes.push(Node::Linear { input: normed, parts: parts.to_vec(), out: qkv });
        if shape.head_norm {
            let q_weight = b.weight(named("q_norm"), &[dims.head_dim], 1.0, 0.2);
            let k_weight = b.weight(named("k_norm"), &[dims.head_dim], 1.0, 0.2);
            nodes.push(Node::HeadNorm { qkv, q_weight, k_weight, eps });
        }
        nodes.push(Node::RopeCache { qkv, layer });
        let scale = 1.0 / (dims.head_dim as f32).sqrt();
        nodes.push(Node::Attend { qkv, layer, scale, window: shape.window, out: mixed });
        let parts = vec![b.product(named("o"), (hidden, q_width), shape.out_bias)];
        nodes.push(Node::Linear { input: mixed, parts, out: delta });
        let node = norm(&mut b, "norm2", Some(delta));
        nodes.push(node);
        let parts = ["gate", "up"].map(|name| b.product(named(name), (shape.ffn, hidden), shape.out_bias));
        nodes.push(Node::Linear { input: normed, parts: parts.to_vec(), out: gate_up });
        nodes.push(Node::GatedActivation { gate_up, act: shape.act, out: gated });
        let parts = vec![b.product(named("down"), (hidden, shape.ffn), shape.out_bias)];
        nodes.push(Node::Linear { input: gated, parts, out: delta });
    }
    let norm = b.weight("norm".into(), &[hidden], 1.0, 0.2);
    let head = if shape.tied { table } else { b.matrix("head".into(), dims.vocab, hidden) };
    nodes.push(Node::Logits { residual, delta: Some(delta), norm, eps, head });
    b.program.nodes = nodes;
    (b.program, b.weights)
}
