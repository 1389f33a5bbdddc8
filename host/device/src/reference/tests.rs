//! The contract of an executor on a two-layer program: batching, chunking and sharing change no bit.
//! That the formulas are right is shown against transformers, in `model/tests`.

use super::*;
use crate::executor::BlockId;
use crate::program::{Activation, Dims, RopeTable, Slot, WeightSpec};
use crate::sampler::SampleError;
use crate::weights::{DType, TensorView};
use proptest::prelude::*;
use std::collections::HashMap;
use tidegate_types::SamplingParams;

const LIMITS: Limits = Limits { num_blocks: 8, block_tokens: 16, max_batch_tokens: 64, max_seqs: 4 };
const VOCAB: usize = 11;

#[derive(Default)]
struct Weights(HashMap<String, (Vec<usize>, Vec<u8>)>);

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (shape, data) = self.0.get(name)?;
        Some(TensorView { dtype: DType::F32, shape, data })
    }
}

/// Builds a program and smooth, uneven weights for it at the same time.
struct Builder {
    program: Program,
    weights: Weights,
}

impl Builder {
    fn weight(&mut self, name: &str, shape: &[usize]) -> WeightId {
        let num = shape.iter().product::<usize>();
        let salt = self.program.weights.len() as f32;
        let data = (0..num).flat_map(|i| ((i as f32 * 1.37 + salt * 2.9).sin() * 0.6).to_le_bytes()).collect();
        self.weights.0.insert(name.to_owned(), (shape.to_vec(), data));
        self.program.weights.push(WeightSpec { name: name.to_owned(), shape: shape.to_vec() });
        WeightId(self.program.weights.len() - 1)
    }

    fn slot(&mut self, name: &'static str, width: usize) -> SlotId {
        self.program.slots.push(Slot { name, width });
        SlotId(self.program.slots.len() - 1)
    }

    /// Every kind of node, two layers, the second with a window of 5.
    fn build() -> Self {
        let dims = Dims {
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 4,
            hidden: 8,
            vocab: VOCAB,
            max_positions: 100,
        };
        let rope = RopeTable { inv_freq: vec![1.0, 0.1], attention_scale: 1.0 };
        let program = Program { dims, dtype: DType::F32, rope, weights: vec![], slots: vec![], nodes: vec![] };
        let mut b = Self { program, weights: Weights::default() };
        let (residual, normed, qkv) = (b.slot("residual", 8), b.slot("normed", 8), b.slot("qkv", 32));
        let (mixed, delta) = (b.slot("mixed", 16), b.slot("delta", 8));
        let (gate_up, gated) = (b.slot("gate_up", 24), b.slot("gated", 12));
        let table = b.weight("table", &[VOCAB, 8]);
        let mut nodes = vec![Node::Embed { table, out: residual }];
        let eps = 1e-6;
        for layer in 0..2 {
            let mut w = |name: &str, shape: &[usize]| b.weight(&format!("{layer}.{name}"), shape);
            let norm = |weight, delta| Node::AddRmsNorm { residual, delta, weight, eps, out: normed };
            nodes.push(norm(w("norm", &[8]), (layer > 0).then_some(delta)));
            let parts =
                vec![(w("q", &[16, 8]), Some(w("q_bias", &[16]))), (w("k", &[8, 8]), None), (w("v", &[8, 8]), None)];
            nodes.push(Node::Linear { input: normed, parts, out: qkv });
            nodes.push(Node::HeadNorm { qkv, q_weight: w("qn", &[4]), k_weight: w("kn", &[4]), eps });
            nodes.push(Node::RopeCache { qkv, layer });
            let window = (layer == 1).then_some(5);
            nodes.push(Node::Attend { qkv, layer, scale: 0.5, window, out: mixed });
            nodes.push(Node::Linear { input: mixed, parts: vec![(w("o", &[8, 16]), None)], out: delta });
            nodes.push(norm(w("norm2", &[8]), Some(delta)));
            let parts = vec![(w("gate", &[12, 8]), None), (w("up", &[12, 8]), None)];
            nodes.push(Node::Linear { input: normed, parts, out: gate_up });
            nodes.push(Node::GatedActivation { gate_up, act: Activation::Silu, out: gated });
            nodes.push(Node::Linear { input: gated, parts: vec![(w("down", &[8, 12]), None)], out: delta });
        }
        let norm = b.weight("last_norm", &[8]);
        nodes.push(Node::Logits { residual, delta: Some(delta), norm, eps, head: table });
        b.program.nodes = nodes;
        b
    }

    fn load(self) -> Result<Box<dyn Executor>, DeviceError> {
        ReferenceBackend.load(Arc::new(self.program), &self.weights, LIMITS)
    }
}

fn executor() -> Box<dyn Executor> {
    Builder::build().load().unwrap()
}

fn blocks(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId).collect()
}

fn segment<'a>(tokens: &'a [u32], start: usize, blocks: &'a [BlockId]) -> Segment<'a> {
    Segment { tokens, start, blocks, want_result: true, fed: None }
}

fn forward(executor: &mut dyn Executor, segments: Vec<Segment<'_>>) {
    executor.forward(&Batch { segments }).unwrap();
}

/// Logits after `tokens`, computed at once in a fresh cache.
fn whole(tokens: &[u32]) -> Vec<f32> {
    let mut executor = executor();
    forward(&mut *executor, vec![segment(tokens, 0, &blocks(&[0, 1, 2, 3]))]);
    executor.logits(0).unwrap().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_chunking_and_any_blocks_give_the_same_bits(
        tokens in prop::collection::vec(0..VOCAB as u32, 2..50),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        order in Just(vec![0u32, 1, 2, 3, 4, 5, 6, 7]).prop_shuffle(),
    ) {
        let mut ends: Vec<usize> = cuts.iter().map(|c| c.index(tokens.len() - 1) + 1).collect();
        ends.push(tokens.len());
        ends.sort_unstable();
        ends.dedup();
        let table = blocks(&order[..4]);
        let mut executor = executor();
        let mut start = 0;
        for end in ends {
            forward(&mut *executor, vec![segment(&tokens[start..end], start, &table)]);
            start = end;
        }
        prop_assert_eq!(executor.logits(0).unwrap(), &whole(&tokens)[..]);
    }
}

#[test]
fn sequences_of_one_batch_do_not_touch_each_other() {
    let prompts: [Vec<u32>; 3] = [vec![1, 2, 3], (0..20).map(|i| i % 11).collect(), vec![9]];
    let tables = [blocks(&[5]), blocks(&[2, 7]), blocks(&[0])];
    let mut executor = executor();
    let segments = prompts.iter().zip(&tables).map(|(p, t)| segment(p, 0, t)).collect();
    forward(&mut *executor, segments);
    for (i, prompt) in prompts.iter().enumerate() {
        assert_eq!(executor.logits(i).unwrap(), whole(prompt), "sequence {i}");
    }
}

#[test]
fn a_shared_full_block_serves_two_sequences() {
    let prefix: Vec<u32> = (0..16).map(|i| (i * 5) % 11).collect();
    let mut executor = executor();
    forward(&mut *executor, vec![segment(&prefix, 0, &blocks(&[3]))]);
    let (left, right) = (blocks(&[3, 1]), blocks(&[3, 2]));
    forward(&mut *executor, vec![segment(&[4, 5], 16, &left), segment(&[6], 16, &right)]);
    assert_eq!(executor.logits(0).unwrap(), whole(&[&prefix[..], &[4, 5]].concat()));
    assert_eq!(executor.logits(1).unwrap(), whole(&[&prefix[..], &[6]].concat()));
}

#[test]
fn what_lies_in_a_block_beyond_the_sequence_is_not_read() {
    let mut executor = executor();
    forward(&mut *executor, vec![segment(&[7; 16], 0, &blocks(&[0]))]);
    forward(&mut *executor, vec![segment(&[1, 2], 0, &blocks(&[0]))]);
    assert_eq!(executor.logits(0).unwrap(), whole(&[1, 2]));
}

/// The program cut down to its windowed layer, where position 0 is out of sight from position 5 on.
#[test]
fn a_window_sees_itself_and_the_tokens_before_it_up_to_its_size() {
    let logits = |tokens: &[u32]| {
        let mut b = Builder::build();
        let first_layer = 1..11;
        b.program.nodes.drain(first_layer);
        let mut executor = b.load().unwrap();
        forward(&mut *executor, vec![segment(tokens, 0, &blocks(&[0]))]);
        executor.logits(0).unwrap().to_vec()
    };
    assert_ne!(logits(&[1, 2, 3, 4, 5]), logits(&[9, 2, 3, 4, 5]));
    assert_eq!(logits(&[1, 2, 3, 4, 5, 6]), logits(&[9, 2, 3, 4, 5, 6]));
}

#[test]
fn only_wanted_logits_are_kept() {
    let mut executor = executor();
    let table = [blocks(&[0]), blocks(&[1])];
    let silent = Segment { want_result: false, ..segment(&[1], 0, &table[0]) };
    forward(&mut *executor, vec![silent, segment(&[2], 0, &table[1])]);
    assert!(executor.logits(0).is_none() && executor.logits(1).is_some() && executor.logits(2).is_none());
    let params = SamplingParams::greedy();
    let row = |segment| SampleRow { segment, params: &params, position: 1, prompt: &[], output: &[], mask: None };
    assert!(matches!(executor.sample(&[row(0)]), Err(DeviceError::BadBatch(_))));
    assert!(matches!(executor.sample(&[row(2)]), Err(DeviceError::BadBatch(_))));
    executor.sample(&[row(1)]).unwrap();
    assert_eq!(executor.collect().unwrap().len(), 1);
}

#[test]
fn a_row_at_fault_says_so_and_the_others_are_drawn() {
    let mut executor = executor();
    let table = [blocks(&[0]), blocks(&[1])];
    forward(&mut *executor, vec![segment(&[1], 0, &table[0]), segment(&[2], 0, &table[1])]);
    let params = SamplingParams::greedy();
    let row = |segment, mask| SampleRow { segment, params: &params, position: 1, prompt: &[], output: &[], mask };
    executor.sample(&[row(0, None), row(1, Some(&[0]))]).unwrap();
    let drawn = executor.collect().unwrap();
    assert!(matches!(drawn[..], [Ok(_), Err(SampleError::NothingAllowed { .. })]), "{drawn:?}");
}

#[test]
fn a_step_that_is_fed_gives_what_it_gives_when_its_token_is_told() {
    let table = blocks(&[2]);
    let params = SamplingParams { repetition_penalty: 1.5, frequency_penalty: 0.7, ..SamplingParams::greedy() };
    let draw = |executor: &mut dyn Executor, segment: Segment<'_>, output: &[u32], position| {
        forward(executor, vec![segment]);
        let row = SampleRow { segment: 0, params: &params, position, prompt: &[1, 2], output, mask: None };
        executor.sample(&[row]).unwrap();
    };
    let mut told = executor();
    draw(&mut *told, segment(&[1, 2], 0, &table), &[], 2);
    let first = told.collect().unwrap().remove(0).unwrap().id;
    draw(&mut *told, segment(&[first], 2, &table), &[first], 3);
    let mut fed = executor();
    draw(&mut *fed, segment(&[1, 2], 0, &table), &[], 2);
    draw(&mut *fed, Segment { fed: Some(0), ..segment(&[], 2, &table) }, &[], 3);
    assert_eq!(fed.logits(0), told.logits(0));
    assert_eq!(fed.collect().unwrap()[0].as_ref().unwrap().id, first, "the oldest is collected first");
    assert_eq!(fed.collect().unwrap(), told.collect().unwrap());
    let of_nothing = Batch { segments: vec![Segment { fed: Some(1), ..segment(&[], 3, &table) }] };
    let error = fed.forward(&of_nothing).unwrap_err().to_string();
    assert_eq!(error, "bad batch: fed from row 1; the last draw had 1");
}

#[test]
fn missing_and_misshapen_weights_are_refused_by_name() {
    let mut b = Builder::build();
    b.weights.0.remove("1.gate");
    assert!(matches!(b.load(), Err(DeviceError::MissingWeight { name }) if name == "1.gate"));
    let mut b = Builder::build();
    b.weights.0.insert("0.q".into(), (vec![8, 16], vec![0; 512]));
    assert!(matches!(b.load(), Err(DeviceError::WeightShape { name, .. }) if name == "0.q"));
}

#[test]
fn a_program_that_contradicts_itself_is_refused() {
    let refused = |change: fn(&mut Program)| {
        let mut b = Builder::build();
        change(&mut b.program);
        matches!(b.load(), Err(DeviceError::BadProgram(_)))
    };
    assert!(refused(|p| p.slots[2].width = 31));
    assert!(refused(|p| p.weights[1].shape = vec![9]));
    assert!(refused(|p| p.dims.num_kv_heads = 3));
    assert!(refused(|p| p.dims.num_kv_heads = 0));
    assert!(refused(|p| p.dims.num_layers = 1));
    assert!(refused(|p| p.rope.inv_freq.truncate(1)));
    assert!(refused(|p| p.nodes.truncate(3)));
    assert!(refused(|p| p.slots.truncate(3)));
    assert!(refused(|p| p.weights.clear()));
    assert!(!refused(|_| ()));
}
