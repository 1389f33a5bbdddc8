//! Random models of many shapes against the reference, node for node the same program.

use crate::model::{Random, Shape, Weights, build};
use crate::{backend, backend_with};
use std::sync::Arc;
use tidegate_device::{
    Activation, Backend, Batch, BlockId, DType, Dims, Executor, Limits, Program, ReferenceBackend, SampleError,
    SampleRow, Segment,
};
use tidegate_kernels::blas::Algorithms;
use tidegate_types::SamplingParams;

pub const LIMITS: Limits = Limits { num_blocks: 64, block_tokens: 16, max_batch_tokens: 400, max_seqs: 24 };

/// The largest allowed `|logit - reference|`, as a share of the root mean square of the reference's row: activations,
/// keys, values and attention's weights are rounded to bf16, two layers deep.
const TOLERANCE: f32 = 8e-2;

pub fn small() -> Shape {
    let dims =
        Dims { num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 32, hidden: 48, vocab: 50, max_positions: 1000 };
    Shape {
        dims,
        ffn: 72,
        dtype: DType::BF16,
        qkv_bias: false,
        out_bias: false,
        head_norm: false,
        tied: true,
        window: None,
        act: Activation::Silu,
        rope_scale: 1.0,
    }
}

pub struct Sequence {
    pub tokens: Vec<u32>,
    blocks: Vec<BlockId>,
}

pub fn sequences(lens: &[usize], vocab: usize) -> Vec<Sequence> {
    let mut random = Random(3);
    let mut free: Vec<u32> = (0..LIMITS.num_blocks as u32).collect();
    let mut take = |count: usize| (0..count).map(|_| BlockId(free.swap_remove(count % free.len()))).collect();
    let sequence = |&len: &usize| Sequence {
        tokens: (0..len).map(|_| random.below(vocab) as u32).collect(),
        blocks: take(len.div_ceil(16)),
    };
    lens.iter().map(sequence).collect()
}

pub fn segment(sequence: &Sequence, range: std::ops::Range<usize>) -> Segment<'_> {
    Segment {
        tokens: &sequence.tokens[range.clone()],
        start: range.start,
        blocks: &sequence.blocks,
        want_result: true,
        fed: None,
    }
}

pub fn forward(executor: &mut dyn Executor, segments: Vec<Segment<'_>>) -> Vec<Vec<f32>> {
    let count = segments.len();
    executor.forward(&Batch { segments }).unwrap();
    (0..count).map(|i| executor.logits(i).unwrap().to_vec()).collect()
}

fn load(backend: &dyn Backend, model: &(Program, Weights)) -> Box<dyn Executor> {
    backend.load(Arc::new(model.0.clone()), &model.1, LIMITS).unwrap()
}

fn check_shape(name: &str, shape: &Shape) {
    let Some(cuda) = backend() else { return };
    let model = build(shape, 7);
    let sequences = sequences(&[37, 1, 16, 300], shape.dims.vocab);
    let whole = || sequences.iter().map(|s| segment(s, 0..s.tokens.len())).collect();
    // The last ones again, each beside the others: a prompt of one token reads its past from the cache.
    let last = || sequences[1..].iter().map(|s| segment(s, s.tokens.len() - 1..s.tokens.len())).collect();
    let mut executor = load(&*cuda, &model);
    let found = [forward(&mut *executor, whole()), forward(&mut *executor, last())].concat();
    let mut executor = load(&ReferenceBackend, &model);
    let expected = [forward(&mut *executor, whole()), forward(&mut *executor, last())].concat();
    let mut worst = 0f32;
    for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
        for (token, (a, b)) in found.iter().zip(expected).enumerate() {
            worst = worst.max((a - b).abs() / rms);
            assert!((a - b).abs() <= TOLERANCE * rms, "{name}: row {row}, logit {token} is {a}, reference {b}");
        }
    }
    println!("{name}: largest difference {worst:e} of the rms, allowed {TOLERANCE:e}");
}

#[test]
fn plain_models_of_every_type_agree_with_the_reference() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        check_shape(&format!("{dtype:?}"), &Shape { dtype, ..small() });
    }
}

#[test]
fn biases_head_norms_an_untied_head_and_gelu_agree_with_the_reference() {
    let shape = Shape { qkv_bias: true, head_norm: true, tied: false, act: Activation::GeluTanh, ..small() };
    check_shape("biases, head norms, untied, gelu", &shape);
}

#[test]
fn biases_of_every_product_and_a_factor_on_cosines_and_sines_agree_with_the_reference() {
    let shape = Shape { qkv_bias: true, out_bias: true, rope_scale: 1.3, ..small() };
    check_shape("biases of every product, a factor on cosines and sines", &shape);
}

#[test]
fn heads_of_many_shapes_and_windows_agree_with_the_reference() {
    for (num_heads, num_kv_heads, head_dim, window) in [(5, 1, 64, None), (16, 1, 16, Some(40)), (3, 3, 96, Some(1))] {
        let dims = Dims { num_heads, num_kv_heads, head_dim, num_layers: 1, ..small().dims };
        check_shape(&format!("{num_heads}/{num_kv_heads} of {head_dim}"), &Shape { dims, window, ..small() });
    }
}

#[test]
fn chunks_and_neighbours_change_no_bit_of_the_logits() {
    // With the best algorithm for each number of rows they do: it sums in its own order.
    let Some(cuda) = backend_with(Algorithms::Fixed) else { return };
    let model = build(&Shape { head_norm: true, qkv_bias: true, ..small() }, 9);
    let sequences = sequences(&[290, 70, 33], model.0.dims.vocab);
    let mut alone = load(&*cuda, &model);
    let want: Vec<Vec<f32>> =
        sequences.iter().map(|s| forward(&mut *alone, vec![segment(s, 0..s.tokens.len())]).remove(0)).collect();
    for sizes in [vec![1, 30, 100, 1, 158], vec![200, 90], vec![17; 18]] {
        let mut executor = load(&*cuda, &model);
        let mut at = [0usize; 3];
        let mut last = vec![Vec::new(); 3];
        for size in sizes {
            let mut segments = Vec::new();
            let mut who = Vec::new();
            for (i, sequence) in sequences.iter().enumerate() {
                let end = (at[i] + size / (i + 1)).max(at[i] + 1).min(sequence.tokens.len());
                if at[i] < end {
                    segments.push(segment(sequence, at[i]..end));
                    who.push(i);
                    at[i] = end;
                }
            }
            for (i, logits) in who.into_iter().zip(forward(&mut *executor, segments)) {
                last[i] = logits;
            }
        }
        for i in 0..3 {
            if at[i] == sequences[i].tokens.len() {
                assert!(last[i] == want[i], "sequence {i} differs in its bits");
            }
        }
    }
}

#[test]
fn a_row_that_cannot_be_drawn_says_so_and_the_others_are_drawn() {
    let Some(cuda) = backend() else { return };
    let model = build(&small(), 1);
    let sequences = sequences(&[5, 9], model.0.dims.vocab);
    let mut executor = load(&*cuda, &model);
    let segments = sequences.iter().map(|s| segment(s, 0..s.tokens.len())).collect();
    let logits = forward(&mut *executor, segments);
    let (greedy, nothing) = (SamplingParams::greedy(), vec![0u32; 2]);
    let row = |segment, mask| SampleRow { segment, params: &greedy, position: 9, prompt: &[], output: &[], mask };
    // One that the device finds out, and one that the host refuses before it.
    executor.sample(&[row(1, Some(&nothing[..])), row(0, None), row(1, Some(&nothing[..1]))]).unwrap();
    let drawn = executor.collect().unwrap();
    assert!(matches!(drawn[0], Err(SampleError::NothingAllowed { vocab: 50 })), "{drawn:?}");
    assert!(matches!(drawn[2], Err(SampleError::MaskLength { found: 1, .. })), "{drawn:?}");
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap();
    assert_eq!(drawn[1].as_ref().unwrap().id as usize, best(&logits[0]));
}

#[test]
fn what_the_kernels_are_not_made_for_is_refused_by_name() {
    let Some(cuda) = backend() else { return };
    let refused = |shape: Shape, limits: Limits, want: &str| {
        let (program, weights) = build(&shape, 1);
        assert_eq!(cuda.check(&program).is_err(), limits == LIMITS, "{want}");
        let error = cuda.load(Arc::new(program), &weights, limits).err().unwrap().to_string();
        assert!(error.contains(want), "{error} does not say {want}");
    };
    let dims = small().dims;
    refused(Shape { dims: Dims { head_dim: 80, ..dims.clone() }, ..small() }, LIMITS, "head_dim is 80");
    refused(Shape { dims: Dims { hidden: 44, ..dims }, ..small() }, LIMITS, "hidden is 44, not a multiple of 8");
    refused(small(), Limits { block_tokens: 32, ..LIMITS }, "blocks of 32 tokens");
}
