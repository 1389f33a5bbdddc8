//! The handle over a real worker process that dies, hangs or loses its device.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use std::path::PathBuf;
use std::time::Duration;
use tidegate_engine::{
    EngineConfig, EngineError, EngineHandle, Health, Isolation, JobStream, Phase, WorkerCommand, toy,
};
use tidegate_types::{Class, FinishReason, Job, JobEvent, Pooling, RejectKind, SamplingParams, TenantId};

const VOCAB: usize = 50;
const CONTEXT: usize = 256;
/// A worker that is told so dies when it sees this token.
const POISON: u32 = 49;

fn config() -> EngineConfig {
    EngineConfig {
        isolation: Isolation::Process,
        kv_cache_mib: Some(1),
        max_batch_tokens: 64,
        max_seqs: 8,
        ..EngineConfig::default()
    }
}

/// The example beside the test's own program; `cargo test` builds both.
fn toy_worker(args: &[&str]) -> WorkerCommand {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let program = folder.join(format!("toy_worker{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is missing: run `cargo test -p tidegate-engine`", program.display());
    WorkerCommand { program, args: args.iter().map(Into::into).collect() }
}

fn start(config: EngineConfig, args: &[&str]) -> EngineHandle {
    EngineHandle::start_process(config, toy::facts(VOCAB, CONTEXT), toy_worker(args)).unwrap()
}

/// A fault that happens once, however many workers there are.
struct Once(tempfile::TempDir);

impl Once {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn start(&self, config: EngineConfig, fault: &str) -> EngineHandle {
        start(config, &[fault, &format!("once={}", self.file().display())])
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("happened")
    }
}

fn job(engine: &EngineHandle, prompt: &[u32], max_tokens: u32) -> Job {
    Job {
        id: engine.next_job_id(),
        prompt: prompt.to_vec(),
        sampling: SamplingParams::greedy(),
        max_tokens,
        stop_token_ids: vec![0],
        grammar: None,
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}

fn jobs(engine: &EngineHandle, num: u32) -> Vec<Job> {
    let all = (1..).map(|n| job(engine, &vec![n % 48 + 1; 10 + n as usize % 20], 40));
    all.filter(|job| !toy::answer(VOCAB, CONTEXT, job).0.contains(&POISON)).take(num as usize).collect()
}

async fn read(mut stream: JobStream) -> (Vec<u32>, Vec<JobEvent>) {
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    while let Some(event) = stream.next().await {
        match event {
            JobEvent::Token(token) => tokens.push(token.id),
            other => others.push(other),
        }
    }
    (tokens, others)
}

/// Every job's whole answer comes out, once, with one `Started` and the usage of the whole job.
async fn all_end_right(engine: &EngineHandle, jobs: &[Job]) {
    let streams: Vec<_> = jobs.iter().map(|job| engine.submit(job.clone()).unwrap()).collect();
    for (job, stream) in jobs.iter().zip(streams) {
        let (tokens, others) = read(stream).await;
        let (expected, expected_reason) = toy::answer(VOCAB, CONTEXT, job);
        assert_eq!(tokens, expected, "{}: {others:?}", job.id);
        let [JobEvent::Started { .. }, JobEvent::Finished { reason, usage }] = &others[..] else {
            panic!("{}: {others:?}", job.id)
        };
        assert_eq!(*reason, expected_reason);
        assert_eq!((usage.input_tokens, usage.output_tokens), (job.prompt.len() as u64, expected.len() as u64));
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..4000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_worker_serves_as_a_thread_does() {
    let engine = start(config(), &[]);
    let jobs = jobs(&engine, 30);
    all_end_right(&engine, &jobs).await;
    let stats = engine.stats();
    assert_eq!((stats.live_jobs, stats.queued_jobs, stats.restarts), (0, 0, 0));
    assert_eq!(stats.snapshot.counters.finished, 30);
    assert_eq!(engine.health(), Health::Ready);
}

#[tokio::test]
async fn a_worker_that_dies_mid_answer_is_replaced_and_no_reader_can_tell() {
    for fault in ["die=1", "die=2", "die=7", "die=19", "lose=7"] {
        let once = Once::new();
        let engine = once.start(config(), fault);
        let jobs = jobs(&engine, 12);
        all_end_right(&engine, &jobs).await;
        assert!(once.file().exists(), "{fault} never happened");
        assert_eq!(engine.stats().restarts, 1);
        until("it is ready", || engine.health().is_ready()).await;
    }
}

#[tokio::test]
async fn a_worker_that_dies_within_a_mean_is_replaced_and_the_vectors_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for fault in ["die=1", "die=2", "die=5", "lose=3"] {
        let once = folder.path().join(fault);
        let worker = toy_worker(&["vectors=mean", fault, &format!("once={}", once.display())]);
        let facts = toy::vector_facts(VOCAB, CONTEXT, Pooling::Mean);
        let engine = EngineHandle::start_process(config(), facts, worker).unwrap();
        let prompts: Vec<Vec<u32>> = (1..9).map(|n| (0..n * 20).map(|i| (i * n) % 48 + 1).collect()).collect();
        let job = |prompt: &Vec<u32>| Job { stop_token_ids: vec![], ..job(&engine, prompt, 0) };
        let streams: Vec<_> = prompts.iter().map(|prompt| engine.submit(job(prompt)).unwrap()).collect();
        for (prompt, stream) in prompts.iter().zip(streams) {
            let (_, others) = read(stream).await;
            let [JobEvent::Started { .. }, JobEvent::Vector(vector), JobEvent::Finished { reason, usage }] =
                &others[..]
            else {
                panic!("{fault}: {others:?}")
            };
            assert_eq!(*vector, toy::vector(Pooling::Mean, prompt), "{fault}");
            assert_eq!((*reason, usage.input_tokens), (FinishReason::Stop, prompt.len() as u64));
        }
        assert!(once.exists(), "{fault} never happened");
        assert_eq!(engine.stats().restarts, 1);
    }
}

#[tokio::test]
async fn a_worker_that_hangs_is_killed_and_replaced() {
    let once = Once::new();
    let engine = once.start(EngineConfig { wedged_after_s: 1, ..config() }, "hang=5");
    let jobs = jobs(&engine, 4);
    all_end_right(&engine, &jobs).await;
    assert_eq!(engine.stats().restarts, 1);
}

#[tokio::test]
async fn a_job_that_kills_its_worker_each_time_ends_alone() {
    let engine = start(config(), &[&format!("poison={POISON}")]);
    let sick = engine.submit(job(&engine, &[1, 2, POISON, 3], 5)).unwrap();
    let healthy = jobs(&engine, 7);
    all_end_right(&engine, &healthy).await;
    let (tokens, others) = read(sick).await;
    let [JobEvent::Failed(reject)] = &others[..] else { panic!("{others:?}") };
    assert_eq!((tokens.len(), reject.kind), (0, RejectKind::Unavailable));
    assert_eq!(reject.code.as_deref(), Some("engine_failed"));
    assert_eq!((engine.stats().restarts, engine.stats().ended.failed), (3, 1));
}

#[tokio::test]
async fn jobs_that_kill_their_workers_one_after_the_other_do_not_end_the_engine() {
    let engine = start(config(), &[&format!("poison={POISON}")]);
    // The second begins like the first, and is computed after it.
    let prompt = [vec![1; 20], vec![POISON]].concat();
    let sick: Vec<_> = (0..2).map(|_| engine.submit(job(&engine, &prompt, 5)).unwrap()).collect();
    for stream in sick {
        let (_, others) = read(stream).await;
        let [JobEvent::Failed(reject)] = &others[..] else { panic!("{others:?}") };
        assert!(reject.message.contains("while it worked on this request"), "{}", reject.message);
    }
    assert_eq!(engine.stats().restarts, 6);
    all_end_right(&engine, &jobs(&engine, 3)).await;
}

#[tokio::test]
async fn with_a_worker_that_always_dies_every_job_is_told() {
    let engine = start(EngineConfig { max_restarts: 0, ..config() }, &["die=1"]);
    for job in jobs(&engine, 5) {
        // After the third death in a row the engine is `Failed` until a worker computes again.
        let reject = match engine.submit(job) {
            Ok(stream) => match read(stream).await.1.pop() {
                Some(JobEvent::Failed(reject)) => reject,
                other => panic!("{other:?}"),
            },
            Err(reject) => reject,
        };
        assert_eq!(reject.kind, RejectKind::Unavailable);
    }
    assert_eq!(engine.stats().live_jobs, 0);
}

#[tokio::test]
async fn a_dropped_stream_is_cancelled_in_the_worker() {
    let engine = start(config(), &["pace=20"]);
    let stream = engine.submit(Job { stop_token_ids: vec![], ..job(&engine, &[1; 100], 150) }).unwrap();
    until("the worker runs it", || engine.stats().snapshot.running == 1).await;
    drop(stream);
    // By the worker's own count: what ends by itself frees its blocks, too.
    until("the worker lets it go", || engine.stats().snapshot.counters.cancelled == 1).await;
    let stats = engine.stats();
    let snapshot = &stats.snapshot;
    assert_eq!((snapshot.kv_blocks_used, snapshot.running, snapshot.waiting), (0, 0, 0));
    assert_eq!((snapshot.counters.finished, stats.live_jobs), (0, 0));
}

#[tokio::test]
async fn a_second_job_finds_the_first_ones_blocks_in_the_worker() {
    let engine = start(config(), &[]);
    let first = Job { stop_token_ids: vec![], ..job(&engine, &[5; 70], 2) };
    let second = Job { id: engine.next_job_id(), ..first.clone() };
    read(engine.submit(first).unwrap()).await;
    let (_, others) = read(engine.submit(second).unwrap()).await;
    assert_eq!(others[0], JobEvent::Started { cached_tokens: 64 });
    let JobEvent::Finished { reason: FinishReason::Length, usage } = &others[1] else { panic!("{others:?}") };
    assert_eq!(usage.cached_tokens, 64);
}

#[tokio::test]
async fn a_worker_of_another_model_is_refused_at_the_start() {
    let started = EngineHandle::start_process(config(), toy::facts(VOCAB, CONTEXT), toy_worker(&["vocab=60"]));
    let Err(EngineError::Died(cause)) = started else { panic!("{started:?}") };
    assert!(cause.contains("vocab: 60") && cause.contains("the parent expects"), "{cause}");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_of_the_start() {
    let worker = WorkerCommand { program: "/no/such/program".into(), args: vec![] };
    assert!(EngineHandle::start_process(config(), toy::facts(VOCAB, CONTEXT), worker).is_err());
}

#[tokio::test]
async fn shutdown_ends_the_worker() {
    let engine = start(config(), &[]);
    let stream = engine.submit(job(&engine, &[1], 5)).unwrap();
    assert_eq!(engine.shutdown(Duration::from_secs(60)).await, 0);
    assert_eq!(engine.phase(), Phase::Stopped);
    assert!(!read(stream).await.0.is_empty());
}
