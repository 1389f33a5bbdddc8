//! The biases that no checkpoint of the fixtures has (`attention_bias` on attention's output, `mlp_bias`), by hand: all
//! matrices of a model of one layer are the identity, so that what each bias adds can be followed on paper.

use super::{llama, qwen3};
use crate::config::Config;
use crate::json::Object;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tidegate_device::{
    Backend, Batch, BlockId, CacheElem, CpuBackend, CpuOptions, DType, Isa, Limits, Program, ReferenceBackend, Segment,
    TensorView, WeightSource,
};

const LIMITS: Limits = Limits { num_blocks: 1, block_tokens: 16, max_batch_tokens: 1, max_seqs: 1 };
const HIDDEN: usize = 4;
/// Of the only token.
const EMBEDDED: [f32; HIDDEN] = [0.5, -1.0, 2.0, 0.25];

struct Weights(HashMap<String, (Vec<usize>, Vec<u8>)>);

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (shape, data) = self.0.get(name)?;
        Some(TensorView { dtype: DType::F32, shape, data })
    }
}

/// What a bias adds to the four numbers that its product gives.
fn bias(name: &str) -> Option<[f32; HIDDEN]> {
    Some(match name {
        "model.layers.0.self_attn.q_proj.bias" | "model.layers.0.self_attn.k_proj.bias" => [3.0, -2.0, 1.0, 5.0],
        "model.layers.0.self_attn.v_proj.bias" => [0.5, 0.25, -1.5, 2.0],
        "model.layers.0.self_attn.o_proj.bias" => [-0.75, 1.0, 0.5, -3.0],
        "model.layers.0.mlp.gate_proj.bias" => [1.0, -1.0, 0.5, 2.0],
        "model.layers.0.mlp.up_proj.bias" => [2.0, 0.5, -1.0, 1.0],
        "model.layers.0.mlp.down_proj.bias" => [0.1, 0.2, -0.4, 0.8],
        _ => return None,
    })
}

/// Norms that change nothing but the length, matrices that change nothing, the embedding, and the biases.
fn weights(program: &Program) -> Weights {
    let numbers = |name: &str, shape: &[usize]| match (shape, bias(name)) {
        (_, Some(bias)) => bias.to_vec(),
        ([_], None) => vec![1.0; HIDDEN],
        _ if name == "model.embed_tokens.weight" => EMBEDDED.to_vec(),
        _ => (0..HIDDEN * HIDDEN).map(|i| if i % (HIDDEN + 1) == 0 { 1.0 } else { 0.0 }).collect(),
    };
    let tensor = |spec: &tidegate_device::WeightSpec| {
        let data = numbers(&spec.name, &spec.shape).iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        (spec.name.clone(), (spec.shape.clone(), data))
    };
    Weights(program.weights.iter().map(tensor).collect())
}

fn config(more: &Value) -> Config {
    let mut config = json!({
        "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 1,
        "vocab_size": 1, "max_position_embeddings": 16, "tie_word_embeddings": true,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Config::read(&Object::parse(Path::new("config.json"), config.to_string().as_bytes()).unwrap()).unwrap()
}

fn normed(x: [f64; HIDDEN]) -> [f64; HIDDEN] {
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / HIDDEN as f64 + 1e-6).sqrt();
    x.map(|x| x / rms)
}

/// The logit of the only token after itself: of one position attention gives its value, whatever queries and keys are.
fn by_hand(attention: bool, mlp: bool) -> f64 {
    let biased = |present: bool, name: &str, x: [f64; HIDDEN]| {
        let bias = bias(&format!("model.layers.0.{name}.bias")).filter(|_| present).unwrap_or_default();
        std::array::from_fn(|i| x[i] + f64::from(bias[i]))
    };
    let add = |a: [f64; HIDDEN], b: [f64; HIDDEN]| std::array::from_fn(|i| a[i] + b[i]);
    let x = EMBEDDED.map(f64::from);
    let value = biased(attention, "self_attn.v_proj", normed(x));
    let x = add(x, biased(attention, "self_attn.o_proj", value));
    let (gate, up) = (biased(mlp, "mlp.gate_proj", normed(x)), biased(mlp, "mlp.up_proj", normed(x)));
    let gated = std::array::from_fn(|i| gate[i] / (1.0 + (-gate[i]).exp()) * up[i]);
    let x = normed(add(x, biased(mlp, "mlp.down_proj", gated)));
    x.iter().zip(EMBEDDED).map(|(x, e)| x * f64::from(e)).sum()
}

fn logit(backend: &dyn Backend, program: Program) -> f64 {
    let weights = weights(&program);
    let mut executor = backend.load(Arc::new(program), &weights, LIMITS).unwrap();
    let blocks = [BlockId(0)];
    let segment = Segment { tokens: &[0], start: 0, blocks: &blocks, want_result: true, fed: None };
    executor.forward(&Batch { segments: vec![segment] }).unwrap();
    f64::from(executor.logits(0).unwrap()[0])
}

#[test]
fn each_bias_that_a_config_names_is_added_where_it_belongs() {
    let cpu = CpuBackend::new(CpuOptions { threads: 1, isa: Isa::Portable, cache: CacheElem::F32 }).unwrap();
    for (attention, mlp) in [(false, false), (true, false), (false, true), (true, true)] {
        let llama = llama::build(&config(&json!({"attention_bias": attention, "mlp_bias": mlp}))).unwrap();
        let qwen3 = qwen3::build(&config(&json!({"attention_bias": attention}))).unwrap();
        for backend in [&ReferenceBackend as &dyn Backend, &cpu] {
            for (name, program, mlp) in [("llama", &llama, mlp), ("qwen3", &qwen3, false)] {
                let (found, expected) = (logit(backend, program.clone()), by_hand(attention, mlp));
                let what = format!("{name} on {}, attention_bias {attention}, mlp_bias {mlp}", backend.name());
                assert!((found - expected).abs() < 1e-4, "{what}: {found}, by hand {expected}");
            }
        }
    }
}
