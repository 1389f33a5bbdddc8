//! A model that makes vectors, through the whole engine: whatever the batch, the cut, the cache or the pool, the same bits,
//! and those that transformers computes.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use serde_json::Value;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use tidegate_device::{
    Backend, Batch, CacheElem, CpuBackend, CpuOptions, DeviceError, Drawn, Executor, Limits, ReferenceBackend,
    SampleRow,
};
use tidegate_engine::{Ahead, EngineConfig, EngineHandle, JobStream, ModelFacts};
use tidegate_model::Model;
use tidegate_types::{Class, FinishReason, Job, JobEvent, Pooling, SamplingParams, TenantId, Usage};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
}

/// The checkpoint by the last token, or by the mean.
fn model(pooling: Pooling) -> Model {
    let folder = fixtures().join("embedding");
    if pooling == Pooling::LastToken {
        return Model::open(&folder).unwrap();
    }
    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "modules.json"] {
        std::fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    std::fs::create_dir(copy.path().join("1_Pooling")).unwrap();
    std::fs::write(copy.path().join("1_Pooling/config.json"), r#"{"pooling_mode": "mean"}"#).unwrap();
    Model::open(copy.path()).unwrap()
}

/// The whole prompt in one step, nobody else, nothing cached.
fn plain() -> EngineConfig {
    EngineConfig {
        kv_cache_mib: Some(4),
        max_batch_tokens: 512,
        max_seqs: 8,
        prefix_cache: false,
        ..EngineConfig::default()
    }
}

fn backends() -> [Arc<dyn Backend>; 2] {
    let options = CpuOptions { threads: 2, cache: CacheElem::F32, ..CpuOptions::default() };
    [Arc::new(ReferenceBackend), Arc::new(CpuBackend::new(options).unwrap())]
}

fn start(backend: &Arc<dyn Backend>, pooling: Pooling, config: EngineConfig) -> EngineHandle {
    let (model, facts) = opened(backend, pooling);
    let backend = backend.clone();
    let factory = move |limits: Limits| backend.load(model.program.clone(), &*model.weights, limits);
    EngineHandle::start(config, facts, Box::new(factory)).unwrap()
}

fn opened(backend: &Arc<dyn Backend>, pooling: Pooling) -> (Model, ModelFacts) {
    let model = model(pooling);
    let facts = ModelFacts::of("embedding", model.fingerprint.0, &model.program, &**backend);
    assert_eq!(facts.pooling, Some(pooling));
    (model, facts)
}

/// An executor that says when it is to compute its third step, and waits until it may.
struct Held {
    inner: Box<dyn Executor>,
    num_forwards: u64,
    reached: SyncSender<()>,
    may: Arc<Mutex<Receiver<()>>>,
}

impl Executor for Held {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.num_forwards += 1;
        if self.num_forwards == 3 {
            // An error means that the test is over.
            let _ = self.reached.send(());
            let _ = self.may.lock().unwrap().recv();
        }
        self.inner.forward(batch)
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        self.inner.sample(rows)
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.inner.collect()
    }

    fn logits(&self, segment: usize) -> Option<&[f32]> {
        self.inner.logits(segment)
    }

    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        self.inner.vector(segment, row)
    }
}

/// An engine of 32 blocks that is [`Held`]: what it says, and how it is let go on.
fn start_held(
    backend: &Arc<dyn Backend>,
    pooling: Pooling,
    config: EngineConfig,
) -> (EngineHandle, Receiver<()>, SyncSender<()>) {
    let (model, mut facts) = opened(backend, pooling);
    facts.kv_bytes_per_token = (config.cache_mib() << 20) / 32 / tidegate_engine::BLOCK_TOKENS;
    let ((reached, told), (go, may)) = (sync_channel(1), sync_channel(1));
    let (backend, may) = (backend.clone(), Arc::new(Mutex::new(may)));
    let factory = move |limits: Limits| {
        let inner = backend.load(model.program.clone(), &*model.weights, limits)?;
        Ok(Box::new(Held { inner, num_forwards: 0, reached: reached.clone(), may: may.clone() }) as Box<dyn Executor>)
    };
    (EngineHandle::start(config, facts, Box::new(factory)).unwrap(), told, go)
}

fn job(engine: &EngineHandle, prompt: Vec<u32>) -> Job {
    Job {
        id: engine.next_job_id(),
        prompt,
        sampling: SamplingParams::greedy(),
        max_tokens: 0,
        stop_token_ids: Vec::new(),
        grammar: None,
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}

async fn read(mut stream: JobStream) -> (Vec<f32>, Usage) {
    let mut vector = None;
    let mut started = false;
    loop {
        match stream.next().await.unwrap() {
            JobEvent::Started { .. } => started = true,
            JobEvent::Vector(made) => assert!(started && vector.replace(made).is_none()),
            JobEvent::Finished { reason, usage } => {
                assert_eq!((reason, usage.output_tokens), (FinishReason::Stop, 0));
                return (vector.unwrap(), usage);
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn together(engine: &EngineHandle, prompts: &[Vec<u32>]) -> Vec<(Vec<f32>, Usage)> {
    let streams: Vec<_> = prompts.iter().map(|prompt| engine.submit(job(engine, prompt.clone())).unwrap()).collect();
    let mut all = Vec::new();
    for stream in streams {
        all.push(read(stream).await);
    }
    all
}

/// The texts' tokens, with their vectors of length 1 by each pooling.
fn expected() -> Vec<(Vec<u32>, [Vec<f32>; 2])> {
    let file: Value =
        serde_json::from_slice(&std::fs::read(fixtures().join("expected/embedding.json")).unwrap()).unwrap();
    let numbers = |value: &Value| serde_json::from_value::<Vec<f32>>(value.clone()).unwrap();
    let texts = file["texts"].as_array().unwrap().iter();
    let one = |text: &Value| {
        let tokens = serde_json::from_value(text["tokens"].clone()).unwrap();
        (tokens, [numbers(&text["lasttoken"]), numbers(&text["mean"])])
    };
    texts.map(one).collect()
}

const POOLINGS: [Pooling; 2] = [Pooling::LastToken, Pooling::Mean];

#[tokio::test]
async fn vectors_are_those_of_transformers() {
    let expected = expected();
    let prompts: Vec<Vec<u32>> = expected.iter().map(|(tokens, _)| tokens.clone()).collect();
    for backend in &backends() {
        for (i, pooling) in POOLINGS.into_iter().enumerate() {
            let engine = start(backend, pooling, EngineConfig { max_batch_tokens: 64, ..plain() });
            for ((vector, usage), (tokens, vectors)) in together(&engine, &prompts).await.iter().zip(&expected) {
                assert_eq!(usage.input_tokens, tokens.len() as u64);
                let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                for (a, b) in vector.iter().zip(&vectors[i]) {
                    assert!((a / length - b).abs() < 1e-4, "{pooling:?} on {}: {a} for {b}", backend.describe());
                }
            }
        }
    }
}

/// Prompts that share their first 40 tokens, one of them a single token, one as long as the model allows.
fn prompts() -> Vec<Vec<u32>> {
    let lens = [5, 41, 1, 64, 17, 200, 512];
    let token = |number: usize, n: usize| if n < 40 { n * 7 % 384 } else { (n * 13 + number * 31) % 384 };
    lens.iter().enumerate().map(|(number, len)| (0..*len).map(|n| token(number, n) as u32).collect()).collect()
}

#[tokio::test]
async fn no_batch_cut_cache_or_preemption_changes_a_bit() {
    let prompts = prompts();
    for backend in &backends() {
        for pooling in POOLINGS {
            let engine = start(backend, pooling, plain());
            let mut expected = Vec::new();
            for prompt in &prompts {
                expected.extend(together(&engine, std::slice::from_ref(prompt)).await);
            }
            let what = format!("{pooling:?} on {}", backend.describe());
            assert_eq!(together(&engine, &prompts).await, expected, "together, {what}");
            let vectors = |all: Vec<(Vec<f32>, Usage)>| all.into_iter().map(|(vector, _)| vector).collect::<Vec<_>>();
            let expected = vectors(expected);
            for max_batch_tokens in [8, 33] {
                let config = EngineConfig { max_batch_tokens, ahead: Ahead::Always, ..plain() };
                let pieces = start(backend, pooling, config);
                assert_eq!(vectors(together(&pieces, &prompts).await), expected, "by {max_batch_tokens}, {what}");
            }
            let cached = start(backend, pooling, EngineConfig { prefix_cache: true, ..plain() });
            for turn in ["cold", "warm"] {
                let all = together(&cached, &prompts).await;
                let hits: u64 = all.iter().map(|(_, usage)| usage.cached_tokens).sum();
                assert_eq!(hits > 0, pooling == Pooling::LastToken, "{turn}: a mean needs all rows");
                assert_eq!(vectors(all), expected, "{turn} cache, {what}");
            }
        }
    }
}

/// A batch job that is half done makes room, and is computed again from the beginning.
#[tokio::test]
async fn a_preempted_job_gives_the_vector_of_an_undisturbed_one() {
    let backend = &backends()[0];
    let long: Vec<u32> = (0..400).map(|n| n * 11 % 384).collect();
    for pooling in POOLINGS {
        let (expected, _) = together(&start(backend, pooling, plain()), std::slice::from_ref(&long)).await.remove(0);
        let config = EngineConfig { max_batch_tokens: 16, ..plain() };
        let (engine, at_its_third_step, go_on) = start_held(backend, pooling, config);
        let batch = Job { class: Class::Batch, ..job(&engine, long.clone()) };
        let stream = engine.submit(batch).unwrap();
        at_its_third_step.recv().unwrap();
        let urgent = Job { class: Class::Interactive, ..job(&engine, long.clone()) };
        let urgent = engine.submit(urgent).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(read(urgent).await.0, expected);
        assert_eq!(read(stream).await.0, expected);
        assert_eq!(engine.stats().snapshot.counters.preemptions, 1, "{pooling:?}");
    }
}

#[tokio::test]
async fn what_makes_no_tokens_is_asked_for_none_and_no_more_than_it_can_read() {
    let engine = start(&backends()[0], Pooling::LastToken, plain());
    let refused = |job: Job| engine.submit(job).err().unwrap();
    let tokens = refused(Job { max_tokens: 1, ..job(&engine, vec![1]) });
    assert_eq!(
        (tokens.message.as_str(), tokens.code.as_deref()),
        ("model `embedding` makes vectors and no tokens", Some("unsupported_model"))
    );
    let long = refused(job(&engine, vec![1; 513]));
    assert_eq!(long.message, "prompt has 513 tokens; model `embedding` allows 512");
    assert_eq!(long.code.as_deref(), Some("context_length_exceeded"));
}
