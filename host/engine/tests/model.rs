//! A real model on the naive and on the fast backend, through the whole engine: whatever the batch, the cut, the cache or the pool,
//! the same tokens.
//!
//! The toy model proves the scheduling; this proves that attention over the paged cache keeps it: the same job alone
//! and computed whole is what every other way of computing it is compared with.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use std::path::PathBuf;
use std::sync::Arc;
use tidegate_device::{Backend, CpuBackend, CpuOptions, Limits, ReferenceBackend};
use tidegate_engine::{Ahead, EngineConfig, EngineHandle, JobStream, ModelFacts};
use tidegate_model::Model;
use tidegate_types::{Class, FinishReason, Job, JobEvent, SamplingParams, TenantId, Usage};

/// Two layers, two files of weights, grouped heads.
const MODEL: &str = "llama";

fn model() -> Model {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    Model::open(&models.join(MODEL)).unwrap()
}

/// The whole prompt in one step, nobody else, nothing cached.
fn plain() -> EngineConfig {
    EngineConfig {
        kv_cache_mib: Some(4),
        max_batch_tokens: 256,
        max_seqs: 8,
        prefix_cache: false,
        ..EngineConfig::default()
    }
}

/// Equality holds within a backend; between them it holds within tolerances, which is tested elsewhere.
fn backends() -> [Arc<dyn Backend>; 2] {
    [Arc::new(ReferenceBackend), Arc::new(CpuBackend::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap())]
}

fn start(backend: &Arc<dyn Backend>, config: EngineConfig) -> EngineHandle {
    start_with_blocks(backend, config, usize::MAX)
}

/// An engine whose pool is smaller than a whole MiB would give.
fn start_with_blocks(backend: &Arc<dyn Backend>, config: EngineConfig, num_blocks: usize) -> EngineHandle {
    let model = model();
    let mut facts = ModelFacts::of(MODEL, model.fingerprint.0, &model.program, &**backend);
    if num_blocks < usize::MAX {
        facts.kv_bytes_per_token = (config.cache_mib() << 20) / num_blocks / tidegate_engine::BLOCK_TOKENS;
    }
    let backend = backend.clone();
    let factory = move |limits: Limits| backend.load(model.program.clone(), &*model.weights, limits);
    EngineHandle::start(config, facts, Box::new(factory)).unwrap()
}

/// Prompts that share their first 40 tokens; every second one is drawn with a seed.
fn job(engine: &EngineHandle, number: u32, prompt_len: u32, max_tokens: u32) -> Job {
    let vocab = engine.facts().vocab as u32;
    let prompt = (0..prompt_len).map(|n| if n < 40 { n * 7 % vocab } else { (n * 13 + number * 31) % vocab });
    let sampling = match number % 2 {
        0 => SamplingParams::greedy(),
        _ => SamplingParams { temperature: 0.9, top_p: 0.95, frequency_penalty: 0.3, seed: 11, ..Default::default() },
    };
    Job {
        id: engine.next_job_id(),
        prompt: prompt.collect(),
        sampling,
        max_tokens,
        stop_token_ids: Vec::new(),
        grammar: None,
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}

async fn read(mut stream: JobStream) -> (Vec<u32>, Usage) {
    let mut tokens = Vec::new();
    loop {
        match stream.next().await.unwrap() {
            JobEvent::Started { .. } => {}
            JobEvent::Token(token) => tokens.push(token.id),
            JobEvent::Finished { reason, usage } => {
                assert_eq!(reason, FinishReason::Length);
                return (tokens, usage);
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn run(engine: &EngineHandle, number: u32, prompt_len: u32, max_tokens: u32) -> (Vec<u32>, Usage) {
    read(engine.submit(job(engine, number, prompt_len, max_tokens)).unwrap()).await
}

async fn run_together(engine: &EngineHandle, sizes: &[(u32, u32)], max_tokens: u32) -> Vec<Vec<u32>> {
    let jobs: Vec<_> = sizes.iter().map(|(number, len)| job(engine, *number, *len, max_tokens)).collect();
    let streams: Vec<_> = jobs.into_iter().map(|job| engine.submit(job).unwrap()).collect();
    let mut all = Vec::new();
    for stream in streams {
        all.push(read(stream).await.0);
    }
    all
}

const SIZES: [(u32, u32); 6] = [(0, 5), (1, 41), (2, 48), (3, 64), (4, 17), (5, 70)];

async fn alone(backend: &Arc<dyn Backend>, max_tokens: u32) -> Vec<Vec<u32>> {
    let engine = start(backend, plain());
    let mut all = Vec::new();
    for (number, len) in SIZES {
        all.push(run(&engine, number, len, max_tokens).await.0);
    }
    all
}

#[tokio::test]
async fn a_batch_of_many_gives_what_each_gives_alone() {
    for backend in &backends() {
        let together = run_together(&start(backend, plain()), &SIZES, 20).await;
        assert_eq!(together, alone(backend, 20).await, "{}", backend.describe());
    }
}

#[tokio::test]
async fn a_prompt_in_pieces_gives_what_it_gives_whole() {
    for backend in &backends() {
        let expected = alone(backend, 8).await;
        for max_batch_tokens in [8, 17, 33] {
            let engine = start(backend, EngineConfig { max_batch_tokens, ..plain() });
            let pieces = run_together(&engine, &SIZES, 8).await;
            assert_eq!(pieces, expected, "budget {max_batch_tokens}, {}", backend.describe());
        }
    }
}

#[tokio::test]
async fn a_cached_prompt_gives_what_an_uncached_one_gives_at_every_cut() {
    for backend in &backends() {
        let (expected, _) = run(&start(backend, plain()), 5, 70, 8).await;
        for cut in 1..70 {
            let cached = start(backend, EngineConfig { prefix_cache: true, ..plain() });
            run(&cached, 5, cut, 1).await;
            let (tokens, usage) = run(&cached, 5, 70, 8).await;
            assert_eq!(tokens, expected, "cut at {cut}, {}", backend.describe());
            assert_eq!(usage.cached_tokens, u64::from(cut / 16 * 16), "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn preempted_jobs_give_what_undisturbed_ones_give() {
    for backend in &backends() {
        let expected = alone(backend, 40).await;
        for prefix_cache in [false, true] {
            let engine = start_with_blocks(backend, EngineConfig { prefix_cache, ..plain() }, 14);
            assert_eq!(run_together(&engine, &SIZES, 40).await, expected, "{}", backend.describe());
            assert!(engine.stats().snapshot.counters.preemptions > 0);
        }
    }
}

#[tokio::test]
async fn a_job_continued_after_any_token_gives_the_same_answer() {
    for backend in &backends() {
        let engine = start(backend, plain());
        let (expected, _) = run(&engine, 3, 30, 12).await;
        for emitted in 1..12 {
            let stream = engine.resume(job(&engine, 3, 30, 12), expected[..emitted].to_vec()).unwrap();
            let (tokens, usage) = read(stream).await;
            assert_eq!(tokens, expected[emitted..], "{}", backend.describe());
            assert_eq!((usage.input_tokens, usage.output_tokens), (30, 12));
        }
    }
}

#[tokio::test]
async fn a_step_ahead_changes_no_token() {
    let ahead = || EngineConfig { ahead: Ahead::Always, ..plain() };
    for backend in &backends() {
        let expected = alone(backend, 40).await;
        let what = backend.describe();
        assert_eq!(run_together(&start(backend, ahead()), &SIZES, 40).await, expected, "{what}");
        let pieces = EngineConfig { max_batch_tokens: 17, ..ahead() };
        assert_eq!(run_together(&start(backend, pieces), &SIZES, 40).await, expected, "in pieces, {what}");
        let cached = start(backend, EngineConfig { prefix_cache: true, ..ahead() });
        for turn in ["cold", "warm"] {
            assert_eq!(run_together(&cached, &SIZES, 40).await, expected, "{turn} cache, {what}");
        }
        let engine = start_with_blocks(backend, ahead(), 14);
        assert_eq!(run_together(&engine, &SIZES, 40).await, expected, "preempted, {what}");
        assert!(engine.stats().snapshot.counters.preemptions > 0);
    }
}
