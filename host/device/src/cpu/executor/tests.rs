//! The rounding of AVX-512 BF16 and AMX, emulated, so that its tolerance is known and its paths run everywhere.

use super::*;
use crate::cpu::simd::portable::Portable;
use crate::cpu::simd::{DOT, Simd, TILES};
use crate::executor::{Backend, BlockId};
use crate::program::{Activation, Dims};
use crate::reference::ReferenceBackend;
use model::{Shape, build};

#[allow(dead_code, reason = "shared with the integration tests")]
#[path = "../../../tests/support/model.rs"]
mod model;

const LIMITS: Limits = Limits { num_blocks: 8, block_tokens: 16, max_batch_tokens: 64, max_seqs: 2 };

/// Logits behind sixty tokens, computed in chunks that end at `cuts`.
fn logits(executor: &mut dyn Executor, cuts: &[usize]) -> Vec<f32> {
    let tokens: Vec<u32> = (0..60).map(|i| i * 7 % 50).collect();
    let blocks: Vec<BlockId> = (0..4).map(BlockId).collect();
    let mut start = 0;
    for &cut in cuts {
        let segments =
            vec![Segment { tokens: &tokens[start..cut], start, blocks: &blocks, want_result: true, fed: None }];
        executor.forward(&Batch { segments }).unwrap();
        start = cut;
    }
    executor.logits(0).unwrap().to_vec()
}

#[test]
fn activations_rounded_to_bf16_stay_within_the_tolerance_and_keep_their_bits_in_chunks() {
    let dims =
        Dims { num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 16, hidden: 40, vocab: 50, max_positions: 100 };
    let shape = Shape {
        dims,
        ffn: 900,
        dtype: DType::BF16,
        qkv_bias: true,
        out_bias: false,
        head_norm: false,
        tied: true,
        window: None,
        act: Activation::Silu,
        rope_scale: 1.0,
    };
    let (program, weights) = build(&shape, 5);
    let program = Arc::new(program);
    let mut reference = ReferenceBackend.load(Arc::clone(&program), &weights, LIMITS).unwrap();
    let expected = logits(&mut *reference, &[60]);
    let check = |found: &dyn Fn(&[usize]) -> Vec<f32>| {
        let whole = found(&[60]);
        let rms = (expected.iter().map(|x| x * x).sum::<f32>() / 50.0).sqrt();
        let worst = whole.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / rms;
        assert!(worst > 1e-5 && worst < 8e-2, "{worst} of the rms");
        assert_eq!(found(&[1, 40, 59, 60]), whole);
    };
    check(&|cuts| logits(&mut on(Portable::<DOT>, &program, &weights), cuts));
    check(&|cuts| logits(&mut on(Portable::<TILES>, &program, &weights), cuts));
}

fn on<S: Simd>(s: S, program: &Arc<Program>, weights: &dyn WeightSource) -> CpuExecutor<S> {
    CpuExecutor::new(s, 1, DType::F32, Arc::clone(program), weights, LIMITS).unwrap()
}
