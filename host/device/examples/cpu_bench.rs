//! Times the CPU backend on a Qwen2.5-0.5B-shaped model with random bf16 weights; prints, asserts nothing.
//!
//! `cargo run --release -p tidegate-device --example cpu_bench -- [threads] [isa] [what,...] [layers]`, where what
//! is `decode1`, `decode4`, ..., `prefill512`, ...; fewer layers than 24 are for a quick look. One line of JSON for
//! each: tokens a second by the wall, and by the CPU time of the calling thread, which is the only thread where
//! `threads` is 1. CPU time is what to compare on a machine that others use too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../tests/support/model.rs"]
mod model;

use model::{Random, Shape, build};
use std::sync::Arc;
use std::time::Instant;
use tidegate_device::{
    Activation, Backend, Batch, BlockId, CacheElem, CpuBackend, CpuOptions, DType, Dims, Executor, Isa, Limits, Segment,
};

/// Tokens in the cache before decoding starts, and tokens decoded.
const CONTEXT: usize = 128;
const STEPS: usize = 32;
const REPEATS: usize = 3;
const VOCAB: usize = 151_936;
const MOST_SEQS: usize = 16;
const MOST_TOKENS: usize = 1024;

fn half_billion(num_layers: usize) -> Shape {
    let dims = Dims {
        num_layers,
        num_heads: 14,
        num_kv_heads: 2,
        head_dim: 64,
        hidden: 896,
        vocab: VOCAB,
        max_positions: 4096,
    };
    Shape {
        dims,
        ffn: 4864,
        dtype: DType::BF16,
        qkv_bias: true,
        out_bias: false,
        head_norm: false,
        tied: true,
        window: None,
        act: Activation::Silu,
        rope_scale: 1.0,
    }
}

/// Seconds that this thread has computed.
fn thread_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|x| x.parse::<f64>().ok());
    nanos.map_or(f64::NAN, |n| n * 1e-9)
}

struct Timed {
    wall: f64,
    cpu: f64,
}

fn time(f: impl FnOnce()) -> Timed {
    let (wall, cpu) = (Instant::now(), thread_seconds());
    f();
    Timed { wall: wall.elapsed().as_secs_f64(), cpu: thread_seconds() - cpu }
}

fn run(executor: &mut dyn Executor, seqs: &[Vec<u32>], start: usize, len: usize) {
    let blocks: Vec<Vec<BlockId>> = (0..seqs.len() as u32)
        .map(|s| (0..(MOST_TOKENS / 16) as u32).map(|b| BlockId(s * (MOST_TOKENS / 16) as u32 + b)).collect())
        .collect();
    let segments = seqs.iter().zip(&blocks).map(|(tokens, blocks)| Segment {
        tokens: &tokens[start..start + len],
        start,
        blocks,
        want_result: true,
        fed: None,
    });
    executor.forward(&Batch { segments: segments.collect() }).unwrap();
}

fn measure(executor: &mut dyn Executor, what: &str) -> (f64, Vec<Timed>) {
    let mut random = Random(1);
    let number = |prefix: &str| what.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
    let mut sequences = |num: usize, len: usize| -> Vec<Vec<u32>> {
        (0..num).map(|_| (0..len).map(|_| random.below(VOCAB) as u32).collect()).collect()
    };
    if let Some(batch) = number("decode") {
        let seqs = sequences(batch.min(MOST_SEQS), CONTEXT + STEPS);
        for i in 0..seqs.len() {
            run(executor, &seqs[i..=i], 0, CONTEXT);
        }
        // The prompts of all but the first lie in the wrong blocks; what is in a block does not change the work.
        let decode = |executor: &mut dyn Executor| (0..STEPS).for_each(|i| run(executor, &seqs, CONTEXT + i, 1));
        let times = (0..REPEATS).map(|_| time(|| decode(executor))).collect();
        return ((STEPS * seqs.len()) as f64, times);
    }
    let len = number("prefill").unwrap().min(MOST_TOKENS);
    let seqs = sequences(1, len);
    run(executor, &seqs, 0, len.min(CONTEXT));
    (len as f64, (0..REPEATS).map(|_| time(|| run(executor, &seqs, 0, len))).collect())
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads = args.first().map_or(1, |n| n.parse().unwrap());
    let isa = match args.get(1).map(String::as_str) {
        Some("portable") => Isa::Portable,
        Some("avx2") => Isa::Avx2,
        Some("avx512") => Isa::Avx512,
        Some("avx512-bf16") => Isa::Avx512Bf16,
        Some("amx") => Isa::Amx,
        _ => Isa::Auto,
    };
    let whats = args.get(2).map_or("decode1,decode4,decode8,decode16,prefill512", String::as_str);
    let layers = args.get(3).map_or(24, |n| n.parse().unwrap());
    let backend = CpuBackend::new(CpuOptions { threads, isa, cache: CacheElem::LikeModel }).unwrap();
    let (program, weights) = build(&half_billion(layers), 1);
    let limits = Limits {
        num_blocks: MOST_SEQS * MOST_TOKENS / 16,
        block_tokens: 16,
        max_batch_tokens: MOST_TOKENS,
        max_seqs: MOST_SEQS,
    };
    let loading = Instant::now();
    let mut executor = backend.load(Arc::new(program), &weights, limits).unwrap();
    drop(weights);
    eprintln!("{}; packed in {:.2} s", backend.describe(), loading.elapsed().as_secs_f64());
    for what in whats.split(',') {
        let (tokens, times) = measure(&mut *executor, what);
        let wall = median(times.iter().map(|t| t.wall).collect());
        let cpu = median(times.iter().map(|t| t.cpu).collect());
        println!(
            "{{\"what\": \"{what}\", \"threads\": {threads}, \"wall\": {:.2}, \"cpu\": {:.2}}}",
            tokens / wall,
            tokens / cpu
        );
    }
}
