//! The handle over a real thread: what a submitter sees.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_device::{Batch, DeviceError, Drawn, Executor, Limits, SampleRow};
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_engine::{EngineConfig, EngineError, EngineHandle, ExecutorFactory, Health, JobStream, Phase};
use tidegate_types::{Class, FinishReason, Job, JobEvent, Reject, RejectKind, SamplingParams, TenantId, Usage};

const VOCAB: usize = 50;
const CONTEXT: usize = 256;
/// No toy prompt holds these but where a test wants it.
const POISON: u32 = 49;

fn config() -> EngineConfig {
    EngineConfig { kv_cache_mib: Some(1), max_batch_tokens: 64, max_seqs: 8, ..EngineConfig::default() }
}

fn factory(faults: Faults) -> ExecutorFactory {
    Box::new(move |limits| Ok(Box::new(ToyExecutor::new(VOCAB, limits, faults.clone()))))
}

fn start(config: EngineConfig, faults: Faults) -> EngineHandle {
    EngineHandle::start(config, toy::facts(VOCAB, CONTEXT), factory(faults)).unwrap()
}

/// A job that ends by `max_tokens` only.
fn job(engine: &EngineHandle, prompt: &[u32], max_tokens: u32) -> Job {
    Job {
        id: engine.next_job_id(),
        prompt: prompt.to_vec(),
        sampling: SamplingParams::greedy(),
        max_tokens,
        stop_token_ids: Vec::new(),
        grammar: None,
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}

async fn read(mut stream: JobStream) -> (Vec<u32>, JobEvent) {
    let mut tokens = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            JobEvent::Token(token) => tokens.push(token.id),
            JobEvent::Started { .. } => {}
            last => {
                assert_eq!(stream.next().await, None);
                return (tokens, last);
            }
        }
    }
    panic!("the stream ended without a last event");
}

async fn failure(stream: JobStream) -> Reject {
    match read(stream).await {
        (_, JobEvent::Failed(reject)) => reject,
        other => panic!("{other:?}"),
    }
}

/// A toy that computes a step only when the test lets it.
struct Gated {
    toy: ToyExecutor,
    permits: Arc<Mutex<Receiver<()>>>,
}

impl Executor for Gated {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        // An error means that the test is over.
        let _ = self.permits.lock().unwrap().recv();
        self.toy.forward(batch)
    }
    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        self.toy.sample(rows)
    }
    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.toy.collect()
    }
    fn logits(&self, segment: usize) -> Option<&[f32]> {
        self.toy.logits(segment)
    }
}

fn start_gated(config: EngineConfig) -> (EngineHandle, SyncSender<()>) {
    let (permit, permits) = sync_channel(1000);
    let permits = Arc::new(Mutex::new(permits));
    let factory = move |limits: Limits| {
        let toy = ToyExecutor::new(VOCAB, limits, Faults::default());
        Ok(Box::new(Gated { toy, permits: permits.clone() }) as Box<dyn Executor>)
    };
    (EngineHandle::start(config, toy::facts(VOCAB, CONTEXT), Box::new(factory)).unwrap(), permit)
}

/// Waits for something that the engine's thread is about to do.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_job_streams_its_tokens_and_ends_with_its_usage() {
    let engine = start(config(), Faults::default());
    let job = job(&engine, &[1, 2, 3], 20);
    let (expected, _) = toy::answer(VOCAB, CONTEXT, &job);
    let (tokens, last) = read(engine.submit(job).unwrap()).await;
    assert_eq!(tokens, expected);
    let usage = Usage { input_tokens: 3, cached_tokens: 0, output_tokens: 20, ..Default::default() };
    assert_eq!(last, JobEvent::Finished { reason: FinishReason::Length, usage });
}

#[tokio::test]
async fn two_hundred_streams_all_end_right() {
    let engine = start(config(), Faults::default());
    let jobs: Vec<_> = (0..200).map(|n| job(&engine, &[n % 49 + 1, n / 49 + 1, 7], n % 30 + 1)).collect();
    let streams: Vec<_> = jobs.iter().map(|job| engine.submit(job.clone()).unwrap()).collect();
    for (job, stream) in jobs.iter().zip(streams) {
        assert_eq!(read(stream).await.0, toy::answer(VOCAB, CONTEXT, job).0);
    }
    until("all blocks are free", || engine.stats().snapshot.kv_blocks_used == 0).await;
    let stats = engine.stats();
    assert_eq!((stats.live_jobs, stats.queued_jobs, stats.queued_tokens), (0, 0, 0));
    assert_eq!(stats.snapshot.counters.finished, 200);
}

#[tokio::test]
async fn an_answer_ends_at_the_context_whatever_max_tokens_says() {
    let engine = start(config(), Faults::default());
    let (tokens, last) = read(engine.submit(job(&engine, &[1; 200], 10_000)).unwrap()).await;
    assert_eq!(tokens.len(), CONTEXT - 200);
    assert!(matches!(last, JobEvent::Finished { reason: FinishReason::Length, .. }));
}

#[tokio::test]
async fn a_job_that_cannot_run_is_refused_by_name_and_limit() {
    let engine = start(config(), Faults::default());
    let good = || job(&engine, &[1], 1);
    let cases = [
        (Job { prompt: vec![], ..good() }, "messages", "the prompt has no tokens"),
        (Job { prompt: vec![50], ..good() }, "prompt", "token 50 is not of model `toy`, which has 50"),
        (Job { max_tokens: 0, ..good() }, "max_tokens", "max_tokens is 0; it must be at least 1"),
        (
            Job { prompt: vec![1; 256], ..good() },
            "messages",
            "prompt has 256 tokens; model `toy` allows 256, and the answer needs one of them",
        ),
        (
            Job { sampling: SamplingParams { top_p: 0.0, ..SamplingParams::greedy() }, ..good() },
            "top_p",
            "top_p must be above 0 and at most 1",
        ),
        (
            Job { sampling: SamplingParams { temperature: f32::NAN, ..SamplingParams::greedy() }, ..good() },
            "temperature",
            "temperature must be at least 0",
        ),
    ];
    for (job, param, message) in cases {
        let reject = engine.submit(job).unwrap_err();
        assert_eq!((reject.kind, reject.param.as_deref()), (RejectKind::Invalid, Some(param)));
        assert_eq!(reject.message, message);
    }
    let reject = engine.submit(Job { prompt: vec![1; 256], ..good() }).unwrap_err();
    assert_eq!(reject.code.as_deref(), Some("context_length_exceeded"));
    assert_eq!(engine.stats().live_jobs, 0);
}

#[tokio::test]
async fn a_full_queue_answers_503_with_a_time_to_come_back() {
    let (engine, permit) = start_gated(EngineConfig { max_seqs: 1, max_queued_jobs: 2, ..config() });
    let running = engine.submit(job(&engine, &[1], 2)).unwrap();
    permit.send(()).unwrap();
    until("the first job is admitted", || engine.stats().queued_jobs == 0).await;
    let queued: Vec<_> = (0..2).map(|_| engine.submit(job(&engine, &[1], 2)).unwrap()).collect();
    let reject = engine.submit(job(&engine, &[1], 2)).unwrap_err();
    assert_eq!((reject.kind, reject.code.as_deref()), (RejectKind::Unavailable, Some("engine_queue_full")));
    assert!(reject.retry_after_s.unwrap() >= 1);
    assert!(reject.message.contains("2 requests with 2 tokens wait; the limits are 2 and"), "{}", reject.message);
    drop(permit);
    for stream in queued.into_iter().chain([running]) {
        assert_eq!(read(stream).await.0.len(), 2);
    }
    assert!(engine.submit(job(&engine, &[1], 2)).is_ok());
}

#[tokio::test]
async fn a_tenant_that_fills_the_queue_shuts_out_itself_alone() {
    let (engine, _permit) = start_gated(EngineConfig { max_queued_jobs: 8, ..config() });
    let submit =
        |tenant: &str, class| engine.submit(Job { tenant: TenantId::new(tenant), class, ..job(&engine, &[1], 2) });
    let filled: Vec<_> = (0..100).map_while(|_| submit("a", Class::Batch).ok()).collect();
    assert_eq!(filled.len(), 8);
    let others = [submit("b", Class::Interactive), submit("b", Class::Batch), submit("a", Class::Interactive)];
    assert!(others.iter().all(Result::is_ok), "{others:?}");
    assert_eq!(submit("a", Class::Batch).unwrap_err().code.as_deref(), Some("engine_queue_full"));
}

#[tokio::test]
async fn the_queue_is_bounded_in_tokens_too() {
    let (engine, _permit) = start_gated(EngineConfig { max_queued_tokens: 100, ..config() });
    let _first = engine.submit(job(&engine, &[1; 80], 2)).unwrap();
    let reject = engine.submit(job(&engine, &[1; 30], 2)).unwrap_err();
    assert_eq!(reject.kind, RejectKind::Unavailable);
    assert!(engine.submit(job(&engine, &[1; 20], 2)).is_ok());
}

#[tokio::test]
async fn dropping_a_stream_frees_its_blocks_within_one_step() {
    let (engine, permit) = start_gated(config());
    let stream = engine.submit(job(&engine, &[1; 40], 100)).unwrap();
    let other = engine.submit(job(&engine, &[2; 20], 100)).unwrap();
    let steps = || engine.stats().snapshot.counters.steps;
    while engine.stats().snapshot.running < 2 {
        let before = steps();
        permit.send(()).unwrap();
        until("a step is done", || steps() > before).await;
    }
    let before = steps();
    drop(stream);
    // The step that is under way, and the one after it.
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    until("two more steps are done", || steps() == before + 2).await;
    assert_eq!(engine.stats().snapshot.kv_blocks_used, 2);
    drop((other, permit));
    until("all blocks are free", || engine.stats().snapshot.kv_blocks_used == 0).await;
}

#[tokio::test]
async fn a_job_cancelled_before_the_loop_saw_it_leaves_no_trace() {
    let (engine, permit) = start_gated(config());
    let first = engine.submit(job(&engine, &[1], 3)).unwrap();
    until("the first job is taken", || engine.stats().live_jobs == 1).await;
    for _ in 0..10_000 {
        drop(engine.submit(job(&engine, &[2], 3)).unwrap());
    }
    assert_eq!(engine.stats().live_jobs, 1);
    drop(permit);
    assert_eq!(read(first).await.0.len(), 3);
    until("nothing is left", || engine.stats().snapshot.running + engine.stats().snapshot.waiting == 0).await;
}

#[tokio::test]
async fn a_reader_that_never_reads_holds_up_nobody() {
    let engine = start(config(), Faults::default());
    let unread = engine.submit(job(&engine, &[1], 200)).unwrap();
    let (tokens, _) = read(engine.submit(job(&engine, &[2], 200)).unwrap()).await;
    assert_eq!(tokens.len(), 200);
    until("both are done", || engine.stats().live_jobs == 0).await;
    assert_eq!(read(unread).await.0.len(), 200, "what was not read is still there");
}

#[tokio::test]
async fn a_job_that_fails_in_a_batch_fails_alone() {
    for faults in [
        Faults { poison_forward: Some(POISON), ..Faults::default() },
        Faults { poison_sample: Some(POISON), ..Faults::default() },
        Faults { poison_panic: Some(POISON), ..Faults::default() },
    ] {
        let engine = start(config(), faults);
        // The answers hold no poison, so only the one prompt does.
        let healthy: Vec<_> = (1..40).map(|n| job(&engine, &[n, n, n], 5)).filter(without_poison).take(5).collect();
        let streams: Vec<_> = healthy.iter().map(|job| engine.submit(job.clone()).unwrap()).collect();
        let sick = engine.submit(job(&engine, &[1, POISON, 3], 5)).unwrap();
        let reject = failure(sick).await;
        assert!(matches!(reject.kind, RejectKind::Internal | RejectKind::Unavailable), "{reject}");
        for (job, stream) in healthy.iter().zip(streams) {
            assert_eq!(read(stream).await.0, toy::answer(VOCAB, CONTEXT, job).0);
        }
        assert_eq!(engine.health(), Health::Ready);
        until("all blocks are free", || engine.stats().snapshot.kv_blocks_used == 0).await;
    }
}

/// By the losses alone the engine could not be told from one whose device is broken.
#[tokio::test]
async fn jobs_that_fail_one_after_the_other_do_not_end_the_engine() {
    // The second begins like the first and is computed after it, or both and a third are lost in one step first.
    for (num, prompt) in [(2, [vec![1; 20], vec![POISON]].concat()), (3, vec![1, POISON, 3])] {
        let engine = start(config(), Faults { poison_panic: Some(POISON), ..Faults::default() });
        let sick: Vec<_> = (0..num).map(|_| engine.submit(job(&engine, &prompt, 5)).unwrap()).collect();
        for stream in sick {
            let reject = failure(stream).await;
            assert!(reject.message.contains("while it worked on this request"), "{}", reject.message);
        }
        let well = job(&engine, &[1, 2, 3], 5);
        assert_eq!(read(engine.submit(well.clone()).unwrap()).await.0, toy::answer(VOCAB, CONTEXT, &well).0);
        assert_eq!(engine.health(), Health::Ready);
    }
}

fn without_poison(job: &Job) -> bool {
    !toy::answer(VOCAB, CONTEXT, job).0.contains(&POISON)
}

#[tokio::test]
async fn a_lost_device_is_replaced_and_its_jobs_go_on() {
    let loads = Arc::new(AtomicU64::new(0));
    let counted = loads.clone();
    let factory = move |limits| {
        let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
        let faults = Faults { lost_at: first.then_some(5), ..Faults::default() };
        Ok(Box::new(ToyExecutor::new(VOCAB, limits, faults)) as Box<dyn Executor>)
    };
    let engine = EngineHandle::start(config(), toy::facts(VOCAB, CONTEXT), Box::new(factory)).unwrap();
    let jobs: Vec<_> = (1..6).map(|n| job(&engine, &[n; 20], 30)).collect();
    let streams: Vec<_> = jobs.iter().map(|job| engine.submit(job.clone()).unwrap()).collect();
    for (job, stream) in jobs.iter().zip(streams) {
        assert_eq!(read(stream).await.0, toy::answer(VOCAB, CONTEXT, job).0);
    }
    assert_eq!((loads.load(Ordering::Relaxed), engine.stats().restarts), (2, 1));
}

#[tokio::test]
async fn jobs_of_a_step_that_was_lost_have_left_the_queue() {
    let (permit, permits) = sync_channel(1000);
    let (permits, mut first) = (Arc::new(Mutex::new(permits)), true);
    let factory = move |limits: Limits| {
        let faults = Faults { lost_at: std::mem::take(&mut first).then_some(1), ..Faults::default() };
        let toy = ToyExecutor::new(VOCAB, limits, faults);
        Ok(Box::new(Gated { toy, permits: permits.clone() }) as Box<dyn Executor>)
    };
    let engine = EngineHandle::start(config(), toy::facts(VOCAB, CONTEXT), Box::new(factory)).unwrap();
    let mut stream = engine.submit(job(&engine, &[1], 200)).unwrap();
    // For the step that is lost, the one that tries the next device out, and the job's.
    (0..3).for_each(|_| permit.send(()).unwrap());
    assert_eq!(stream.next().await, Some(JobEvent::Started { cached_tokens: 0 }));
    let stats = engine.stats();
    assert_eq!((stats.restarts, stats.live_jobs, stats.queued_jobs, stats.queued_tokens), (1, 1, 0, 0));
}

#[tokio::test]
async fn a_device_that_cannot_be_replaced_fails_every_job_and_refuses_more() {
    let engine = start(config(), Faults { lost_at: Some(1), ..Faults::default() });
    // The engine may give up while jobs are still being submitted; those are refused for the same reason.
    let (streams, refused): (Vec<_>, Vec<_>) =
        (1..20).map(|n| engine.submit(job(&engine, &[n], 5))).partition(Result::is_ok);
    assert!(!streams.is_empty());
    let num_taken = streams.len() as u64;
    for stream in streams {
        assert_eq!(failure(stream.unwrap()).await.kind, RejectKind::Unavailable);
    }
    let ended = engine.stats().ended;
    assert_eq!((ended.failed, ended.cancelled), (num_taken, 0));
    assert!(refused.into_iter().all(|refused| refused.unwrap_err().kind == RejectKind::Unavailable));
    until("the engine has given up", || engine.phase() == Phase::Failed).await;
    assert_eq!(engine.submit(job(&engine, &[1], 5)).unwrap_err().kind, RejectKind::Unavailable);
    let why = Health::NotReady("the engine of model `toy` has failed and is not serving".into());
    assert_eq!(engine.health(), why);
}

#[tokio::test]
async fn a_model_that_does_not_load_is_an_error_of_the_start() {
    let factory = |_| Err(DeviceError::MissingWeight { name: "lm_head".into() });
    let error = EngineHandle::start(config(), toy::facts(VOCAB, CONTEXT), Box::new(factory)).unwrap_err();
    assert_eq!(error.to_string(), "loading the model: the checkpoint has no tensor `lm_head`");
}

#[tokio::test]
async fn a_config_that_cannot_work_is_refused_with_its_numbers() {
    let few = EngineConfig { max_seqs: 100, max_batch_tokens: 10, ..config() };
    let error = EngineHandle::start(few, toy::facts(VOCAB, CONTEXT), factory(Faults::default())).unwrap_err();
    assert!(matches!(&error, EngineError::Config(text) if text.contains("max_seqs is 100, more than")), "{error}");
    let none = EngineConfig { max_queued_jobs: 0, ..config() };
    let error = EngineHandle::start(none, toy::facts(VOCAB, CONTEXT), factory(Faults::default())).unwrap_err();
    assert_eq!(error.to_string(), "engine.max_queued_jobs is 0; it must be at least 1");
}

#[tokio::test]
async fn an_engine_that_makes_no_step_is_not_ready() {
    let (engine, permit) = start_gated(EngineConfig { stall_after_s: 1, ..config() });
    assert_eq!(engine.health(), Health::Ready);
    let stream = engine.submit(job(&engine, &[1], 2)).unwrap();
    until("it is not ready", || !engine.health().is_ready()).await;
    drop(permit);
    read(stream).await;
    assert_eq!(engine.health(), Health::Ready);
}

#[tokio::test]
async fn draining_lets_jobs_end_and_takes_no_more() {
    let (engine, permit) = start_gated(config());
    let stream = engine.submit(job(&engine, &[1], 3)).unwrap();
    assert_eq!(engine.drain(Duration::from_millis(1)).await, 1);
    assert_eq!(engine.submit(job(&engine, &[1], 3)).unwrap_err().kind, RejectKind::Unavailable);
    drop(permit);
    assert_eq!(engine.drain(Duration::from_secs(60)).await, 0);
    assert_eq!(read(stream).await.0.len(), 3);
}

#[tokio::test]
async fn shutdown_fails_what_is_left_and_ends_the_loop() {
    let (engine, permit) = start_gated(config());
    let stream = engine.submit(job(&engine, &[1], 200)).unwrap();
    let feeding = permit.clone();
    std::thread::spawn(move || while feeding.send(()).is_ok() {});
    // Slow enough that the job cannot be done: it is read only after.
    let unfinished = engine.shutdown(Duration::ZERO).await;
    assert_eq!(engine.phase(), Phase::Stopped);
    match (unfinished, read(stream).await.1) {
        (1, JobEvent::Failed(reject)) => assert_eq!(reject.kind, RejectKind::Unavailable),
        (_, JobEvent::Finished { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_continued_elsewhere_gives_the_same_tokens() {
    let engine = start(config(), Faults::default());
    let whole = job(&engine, &[4; 10], 20);
    let (expected, _) = toy::answer(VOCAB, CONTEXT, &whole);
    let (tokens, last) = read(engine.resume(whole, expected[..7].to_vec()).unwrap()).await;
    assert_eq!(tokens, expected[7..]);
    let JobEvent::Finished { usage, .. } = last else { panic!("{last:?}") };
    assert_eq!((usage.input_tokens, usage.output_tokens), (10, 20));
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_loop_and_its_jobs() {
    let (engine, permit) = start_gated(config());
    let stream = engine.submit(job(&engine, &[1], 200)).unwrap();
    drop((engine.clone(), engine));
    // As many as the whole answer takes: the loop ends before, since it was told to before the first.
    // It takes no more of them then.
    let _ = (0..200).try_for_each(|_| permit.send(()));
    let (tokens, last) = read(stream).await;
    assert!(matches!(last, JobEvent::Failed(_)) && tokens.len() < 200, "{} tokens, {last:?}", tokens.len());
}
