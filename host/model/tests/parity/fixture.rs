//! A fixture with its expectations, and one sequence running on a backend.

use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tidegate_device::{Backend, Batch, BlockId, Executor, Limits, SampleRow, Segment, WeightSource};
use tidegate_model::Model;
use tidegate_types::SamplingParams;

/// A tiny model and what transformers computes with it.
pub struct Fixture {
    pub model: Model,
    pub logits: Vec<Logits>,
    pub greedy: Vec<Greedy>,
}

pub struct Logits {
    pub tokens: Vec<u32>,
    pub positions: Vec<usize>,
    /// One row for each position.
    pub expected: Vec<Vec<f32>>,
}

pub struct Greedy {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
}

impl Fixture {
    pub fn load(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        let model = Model::open(&root.join(name)).unwrap();
        let file = |suffix: &str| root.join("expected").join(format!("{name}{suffix}"));
        let facts: Value = serde_json::from_slice(&std::fs::read(file(".json")).unwrap()).unwrap();
        let tensors = std::fs::read(file("-logits.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&tensors).unwrap();
        let logits = list(&facts["logits"]).enumerate().map(|(i, prompt)| Logits {
            tokens: numbers(&prompt["tokens"]),
            positions: numbers(&prompt["positions"]),
            expected: rows(&tensors.tensor(&format!("prompt{i}")).unwrap()),
        });
        let greedy = list(&facts["greedy"])
            .map(|run| Greedy { prompt: numbers(&run["prompt"]), tokens: numbers(&run["tokens"]) });
        Self { logits: logits.collect(), greedy: greedy.collect(), model }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap().iter()
}

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    list(value).map(|x| T::try_from(x.as_u64().unwrap()).ok().unwrap()).collect()
}

fn rows(tensor: &safetensors::tensor::TensorView<'_>) -> Vec<Vec<f32>> {
    let values: Vec<f32> = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
}

/// One sequence on an executor of its own, its blocks out of order.
pub struct Run {
    executor: Box<dyn Executor>,
    blocks: Vec<BlockId>,
    len: usize,
}

impl Run {
    pub fn new(fixture: &Fixture, backend: &dyn Backend) -> Self {
        let num_blocks = 32;
        let limits = Limits { num_blocks, block_tokens: 16, max_batch_tokens: 128, max_seqs: 1 };
        let weights: &dyn WeightSource = &*fixture.model.weights;
        let executor = backend.load(Arc::clone(&fixture.model.program), weights, limits).unwrap();
        Self { executor, blocks: (0..num_blocks as u32).rev().map(BlockId).collect(), len: 0 }
    }

    /// Appends tokens; gives the logits behind the last of them.
    pub fn feed(&mut self, tokens: &[u32]) -> Vec<f32> {
        let segment = Segment { tokens, start: self.len, blocks: &self.blocks, want_result: true, fed: None };
        self.executor.forward(&Batch { segments: vec![segment] }).unwrap();
        self.len += tokens.len();
        self.executor.logits(0).unwrap().to_vec()
    }

    /// Draws the next token; the sequence does not hold it yet.
    pub fn sample_greedily(&mut self) -> u32 {
        let params = SamplingParams::greedy();
        let row = SampleRow { segment: 0, params: &params, position: self.len, prompt: &[], output: &[], mask: None };
        self.executor.sample(&[row]).unwrap();
        self.executor.collect().unwrap()[0].as_ref().unwrap().id
    }
}
