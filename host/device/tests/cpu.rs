//! The CPU backend against `reference`, and against itself: what must not change a bit does not.
//!
//! Every instruction set that the processor has is tested; the others are named in a line on standard error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

#[path = "support/model.rs"]
mod model;

use model::{Random, Shape, Weights, build};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_device::{
    Activation, Backend, Batch, BlockId, CacheElem, CpuBackend, CpuOptions, DType, DeviceError, Dims, Executor, Isa,
    Limits, Program, ReferenceBackend, Segment,
};

const ISAS: [Isa; 5] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

/// The largest allowed `|logit - reference|`, as a share of the root mean square of the reference's row.
/// What is rounded decides: nothing but f32 sums; keys and values to bf16; activations to bf16.
fn tolerance(isa: Isa, dtype: DType, cache: DType) -> f32 {
    match (isa, dtype, cache) {
        (Isa::Avx512Bf16 | Isa::Amx, DType::BF16, _) => 8e-2,
        (_, _, DType::BF16) => 3e-2,
        _ => 1e-5,
    }
}

const LIMITS: Limits = Limits { num_blocks: 64, block_tokens: 16, max_batch_tokens: 256, max_seqs: 48 };

fn options(threads: usize, isa: Isa, cache: CacheElem) -> CpuOptions {
    CpuOptions { threads, isa, cache }
}

/// The instruction sets of this processor; says which are missing.
fn isas() -> Vec<Isa> {
    let (have, lack): (Vec<Isa>, Vec<Isa>) =
        ISAS.into_iter().partition(|&isa| CpuBackend::new(options(1, isa, CacheElem::LikeModel)).is_ok());
    if !lack.is_empty() {
        tidegate_skipped::skipped!("this processor lacks {lack:?}; only {have:?} are tested");
    }
    have
}

fn small() -> Shape {
    let dims =
        Dims { num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 16, hidden: 40, vocab: 50, max_positions: 1000 };
    Shape {
        dims,
        ffn: 72,
        dtype: DType::F32,
        qkv_bias: false,
        out_bias: false,
        head_norm: false,
        tied: true,
        window: None,
        act: Activation::Silu,
        rope_scale: 1.0,
    }
}

/// One sequence with its tokens and blocks.
struct Sequence {
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
}

/// Sequences of these lengths with random tokens, on blocks in random order.
fn sequences(lens: &[usize], vocab: usize, seed: u64) -> Vec<Sequence> {
    let mut random = Random(seed);
    let mut free: Vec<u32> = (0..LIMITS.num_blocks as u32).collect();
    lens.iter()
        .map(|&len| Sequence {
            tokens: (0..len).map(|_| random.below(vocab) as u32).collect(),
            blocks: (0..len.div_ceil(16)).map(|_| BlockId(free.swap_remove(random.below(free.len())))).collect(),
        })
        .collect()
}

fn segment(sequence: &Sequence, range: std::ops::Range<usize>) -> Segment<'_> {
    Segment {
        tokens: &sequence.tokens[range.clone()],
        start: range.start,
        blocks: &sequence.blocks,
        want_result: true,
        fed: None,
    }
}

fn forward(executor: &mut dyn Executor, segments: Vec<Segment<'_>>) -> Vec<Vec<f32>> {
    let count = segments.len();
    executor.forward(&Batch { segments }).unwrap();
    (0..count).map(|i| executor.logits(i).unwrap().to_vec()).collect()
}

fn load(options: CpuOptions, model: &(Program, Weights)) -> Box<dyn Executor> {
    CpuBackend::new(options).unwrap().load(Arc::new(model.0.clone()), &model.1, LIMITS).unwrap()
}

/// Whole prompts, then some single tokens, on the reference.
fn truth(model: &(Program, Weights), sequences: &[Sequence]) -> Vec<Vec<f32>> {
    let mut executor = ReferenceBackend.load(Arc::new(model.0.clone()), &model.1, LIMITS).unwrap();
    forward(&mut *executor, sequences.iter().map(|s| segment(s, 0..s.tokens.len())).collect())
}

fn assert_near(found: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f32, what: &str) {
    let mut worst = 0f32;
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
        for (i, (a, b)) in found.iter().zip(expected).enumerate() {
            worst = worst.max((a - b).abs() / rms);
            assert!((a - b).abs() <= tolerance * rms, "{what}: logit {i} is {a}, reference {b}, rms {rms}");
        }
    }
    println!("{what}: largest difference {worst:e} of the rms, allowed {tolerance:e}");
}

/// Every type and instruction set against the reference.
fn check_shape(name: &str, shape: Shape) {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let model = build(&Shape { dtype, ..shape.clone() }, 7);
        let sequences = sequences(&[37, 1, 16, 150], shape.dims.vocab, 3);
        let expected = truth(&model, &sequences);
        for isa in isas() {
            for (cache, elem) in [(CacheElem::F32, DType::F32), (CacheElem::Bf16, DType::BF16)] {
                let mut executor = load(options(2, isa, cache), &model);
                let whole = sequences.iter().map(|s| segment(s, 0..s.tokens.len())).collect();
                let found = forward(&mut *executor, whole);
                let what = format!("{name} {dtype:?} {isa:?} cache {elem:?}");
                assert_near(&found, &expected, tolerance(isa, dtype, elem), &what);
            }
        }
    }
}

#[test]
fn odd_widths_agree_with_the_reference() {
    let mut shape = small();
    shape.dims.hidden = 37;
    shape.ffn = 51;
    shape.dims.vocab = 33;
    check_shape("odd widths", shape);
}

#[test]
fn head_widths_agree_with_the_reference() {
    for (head_dim, num_heads, num_kv_heads) in [(6, 4, 4), (64, 7, 1), (80, 3, 3), (96, 4, 2), (128, 8, 1)] {
        let mut shape = small();
        shape.dims = Dims { head_dim, num_heads, num_kv_heads, num_layers: 1, ..shape.dims };
        check_shape(&format!("head_dim {head_dim}, {num_heads} over {num_kv_heads}"), shape);
    }
}

#[test]
fn biases_head_norms_an_untied_head_and_gelu_agree_with_the_reference() {
    let shape = Shape { qkv_bias: true, head_norm: true, tied: false, act: Activation::GeluTanh, ..small() };
    check_shape("biases, head norms, untied, gelu", shape);
}

#[test]
fn biases_of_every_product_agree_with_the_reference() {
    check_shape("biases of every product", Shape { qkv_bias: true, out_bias: true, ..small() });
}

#[test]
fn a_factor_on_cosines_and_sines_agrees_with_the_reference() {
    check_shape("a factor on cosines and sines", Shape { rope_scale: 1.3, ..small() });
}

#[test]
fn windows_agree_with_the_reference() {
    for window in [1, 5, 16, 129, 1000] {
        check_shape(&format!("window {window}"), Shape { window: Some(window), ..small() });
    }
}

#[test]
fn rows_longer_than_a_block_of_columns_agree_with_the_reference() {
    let mut shape = small();
    shape.ffn = 1301;
    shape.dims = Dims { hidden: 530, num_layers: 1, ..shape.dims };
    check_shape("long rows", shape);
}

/// A model whose products span several blocks of columns and whose prompts span several softmax spans.
fn wide() -> (Program, Weights) {
    let mut shape = Shape { qkv_bias: true, dtype: DType::BF16, window: Some(140), ..small() };
    shape.ffn = 1101;
    shape.dims = Dims { num_heads: 6, num_kv_heads: 2, head_dim: 32, hidden: 96, ..shape.dims };
    build(&shape, 11)
}

/// Logits of each sequence computed alone, at once, on one thread.
fn alone(isa: Isa, cache: CacheElem, model: &(Program, Weights), sequences: &[Sequence]) -> Vec<Vec<f32>> {
    let one = |s: &Sequence| {
        let mut executor = load(options(1, isa, cache), model);
        forward(&mut *executor, vec![segment(s, 0..s.tokens.len())]).remove(0)
    };
    sequences.iter().map(one).collect()
}

#[test]
fn a_batch_of_any_size_gives_the_bits_of_a_batch_of_one() {
    let model = wide();
    for isa in isas() {
        let singles = sequences(&[1; 40], model.0.dims.vocab, 5);
        let expected = alone(isa, CacheElem::LikeModel, &model, &singles);
        for threads in [1, 3] {
            let mut executor = load(options(threads, isa, CacheElem::LikeModel), &model);
            for num in 1..=singles.len() {
                let found = forward(&mut *executor, singles[..num].iter().map(|s| segment(s, 0..1)).collect());
                assert!(found == expected[..num], "{isa:?}, {threads} threads, batch of {num}");
            }
        }
    }
}

/// Runs the sequences in a schedule that the seed decides: random chunks of random sequences in each batch.
fn scheduled(executor: &mut dyn Executor, sequences: &[Sequence], seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    let mut done = vec![0; sequences.len()];
    let mut last = vec![Vec::new(); sequences.len()];
    while sequences.iter().zip(&done).any(|(s, d)| *d < s.tokens.len()) {
        let mut chosen = Vec::new();
        let mut segments = Vec::new();
        for (i, s) in sequences.iter().enumerate() {
            let left = s.tokens.len() - done[i];
            if left > 0 && random.below(3) > 0 {
                let most = if random.below(2) == 0 { 1 } else { left };
                let take = 1 + random.below(most.min(60));
                segments.push(segment(s, done[i]..done[i] + take));
                chosen.push((i, take));
            }
        }
        for ((i, take), logits) in chosen.into_iter().zip(forward(executor, segments)) {
            done[i] += take;
            last[i] = logits;
        }
    }
    last
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn no_schedule_chunking_or_number_of_threads_changes_a_bit(
        lens in prop::collection::vec(1usize..170, 1..5),
        seed in any::<u64>(),
        threads in 1usize..4,
        cache in prop::sample::select(vec![CacheElem::F32, CacheElem::Bf16]),
    ) {
        let model = wide();
        let sequences = sequences(&lens, model.0.dims.vocab, seed);
        for isa in isas() {
            let expected = alone(isa, cache, &model, &sequences);
            let mut executor = load(options(threads, isa, cache), &model);
            prop_assert!(scheduled(&mut *executor, &sequences, seed) == expected, "{:?}", isa);
        }
    }
}

#[test]
fn a_cached_prefix_gives_the_bits_of_an_uncached_one_at_every_cut() {
    let model = wide();
    let sequence = &sequences(&[165], model.0.dims.vocab, 9)[0];
    for isa in isas() {
        let expected = alone(isa, CacheElem::LikeModel, &model, std::slice::from_ref(sequence));
        let mut executor = load(options(2, isa, CacheElem::LikeModel), &model);
        forward(&mut *executor, vec![segment(sequence, 0..165)]);
        // Every step recomputes the end of the prompt over what the first forward left in the cache.
        for cut in 0..165 {
            let found = forward(&mut *executor, vec![segment(sequence, cut..165)]);
            assert!(found == expected, "{isa:?}, cut at {cut}");
        }
    }
}

#[test]
fn another_sequences_nan_in_a_reused_block_is_not_read() {
    let mut model = wide();
    let (dtype, shape, data) = model.1.0.get_mut("table").unwrap();
    assert_eq!(*dtype, DType::BF16);
    data[..2 * shape[1]].fill(0xff);
    for isa in isas() {
        for cache in [CacheElem::F32, CacheElem::Bf16] {
            let clean = Sequence { tokens: (1..40).collect(), blocks: (0..3).map(BlockId).collect() };
            let poison = Sequence { tokens: vec![0; 48], blocks: (0..3).map(BlockId).collect() };
            let expected = alone(isa, cache, &model, std::slice::from_ref(&clean));
            assert!(expected[0].iter().skip(1).all(|x| x.is_finite()), "the clean sequence is clean");
            let mut executor = load(options(1, isa, cache), &model);
            assert!(forward(&mut *executor, vec![segment(&poison, 0..48)])[0].iter().all(|x| x.is_nan()));
            let found = scheduled(&mut *executor, std::slice::from_ref(&clean), 1);
            assert!(found[0][1..] == expected[0][1..], "{isa:?} {cache:?}");
        }
    }
}

#[test]
fn avx2_and_avx512_compute_the_same_bits() {
    let isas = isas();
    if !isas.contains(&Isa::Avx2) || !isas.contains(&Isa::Avx512) {
        tidegate_skipped::skipped!("needs AVX2 and AVX-512F");
        return;
    }
    let model = wide();
    let sequences = sequences(&[1, 30, 165], model.0.dims.vocab, 2);
    let of = |isa| alone(isa, CacheElem::LikeModel, &model, &sequences);
    assert!(of(Isa::Avx2) == of(Isa::Avx512));
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let refused = |error: DeviceError, word: &str| {
        let text = error.to_string();
        assert!(text.contains(word), "{text} does not say {word}");
    };
    refused(CpuBackend::new(options(0, Isa::Auto, CacheElem::LikeModel)).unwrap_err(), "0 threads");
    let (program, weights) = build(&small(), 1);
    let program = Arc::new(program);
    let backend = CpuBackend::new(CpuOptions::default()).unwrap();
    let load = |program: &Arc<Program>, weights: &Weights, limits: Limits| {
        backend.load(Arc::clone(program), weights, limits).err().expect("it is refused")
    };
    refused(load(&program, &weights, Limits { block_tokens: 32, ..LIMITS }), "32 tokens");
    refused(load(&program, &Weights::default(), LIMITS), "table");
    refused(load(&program, &weights, Limits { num_blocks: usize::MAX / 2, ..LIMITS }), "the cache");
    let mut short = Weights::default();
    short.0.extend(weights.0.iter().map(|(k, v)| (k.clone(), v.clone())));
    short.0.get_mut("0.q").unwrap().2.pop();
    refused(load(&program, &short, LIMITS), "0.q");
    let mut aliased = (*program).clone();
    aliased.nodes.iter_mut().for_each(|node| {
        if let tidegate_device::Node::AddRmsNorm { residual, out, .. } = node {
            *out = *residual;
        }
    });
    refused(load(&Arc::new(aliased), &weights, LIMITS), "named twice");
}

#[test]
fn the_backend_says_what_it_found() {
    let backend = CpuBackend::new(options(2, Isa::Portable, CacheElem::LikeModel)).unwrap();
    assert_eq!((backend.name(), backend.describe().as_str()), ("cpu", "portable, 2 threads"));
    let (mut program, _) = build(&small(), 1);
    assert_eq!(backend.kv_elem_bytes(&program), 4);
    program.dtype = DType::BF16;
    assert_eq!(backend.kv_elem_bytes(&program), 2);
    // Two layers of two heads of 16 elements, then of 20, which are padded to 32 where values are.
    assert_eq!(backend.kv_bytes_per_token(&program), 2 * 2 * (16 + 16) * 2);
    program.dims.head_dim = 20;
    assert_eq!(backend.kv_bytes_per_token(&program), 2 * 2 * (20 + 32) * 2);
}
