//! Answers that are held to a grammar, through the whole engine: whatever the batch, the cut, the pool, the overlap and the
//! losses, a job gets the tokens that its grammar and its seed say; and jobs beside it get theirs.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

use std::path::PathBuf;
use std::sync::Arc;
use tidegate_device::{Backend, CpuBackend, CpuOptions, Executor, Limits, ReferenceBackend};
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_engine::{Ahead, EndedJobs, EngineConfig, EngineHandle, JobStream, ModelFacts, WorkerCommand};
use tidegate_grammar::{Answer, Grammars, Guide, Layout, Token};
use tidegate_model::Model;
use tidegate_types::{Class, FinishReason, Job, JobEvent, Reject, SamplingParams, TenantId};

/// The end, the printable characters of ASCII, and rows without a token.
const VOCAB: usize = 100;
const CONTEXT: usize = 256;
const END: u32 = 0;

fn grammars() -> Grammars {
    Grammars::new(|| {
        let characters = (b' '..=b'~').map(|byte| Token::Text(vec![byte]));
        Ok([Token::Mark("end".into())].into_iter().chain(characters).collect())
    })
}

fn source() -> Arc<str> {
    let schema = serde_json::json!({"type": "object", "required": ["name", "tags", "n"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "maxLength": 12}, "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
        "n": {"type": "integer", "minimum": 0, "maximum": 99999}}});
    Layout { answer: Some(Answer::Json(schema)), ..Layout::default() }.source().into()
}

fn config() -> EngineConfig {
    EngineConfig {
        kv_cache_mib: Some(4),
        max_batch_tokens: 128,
        max_seqs: 16,
        prefix_cache: false,
        ..EngineConfig::default()
    }
}

fn start_with_blocks(config: EngineConfig, faults: Faults, num_blocks: usize) -> EngineHandle {
    let mut facts = toy::facts(VOCAB, CONTEXT);
    facts.kv_bytes_per_token = (config.cache_mib() << 20) / num_blocks / tidegate_engine::BLOCK_TOKENS;
    let mut faults = Some(faults);
    // The device that comes after a lost one has no faults.
    let factory = move |limits: Limits| {
        Ok(Box::new(ToyExecutor::new(VOCAB, limits, faults.take().unwrap_or_default())) as Box<dyn Executor>)
    };
    EngineHandle::start_holding(config, facts, Some(Arc::new(grammars())), Box::new(factory)).unwrap()
}

fn start(config: EngineConfig) -> EngineHandle {
    start_with_blocks(config, Faults::default(), 256)
}

/// Every third one is free.
fn job(engine: &EngineHandle, number: u64) -> Job {
    Job {
        id: engine.next_job_id(),
        prompt: (0..10 + number as u32 * 7).map(|n| (n * 7 + number as u32) % VOCAB as u32).collect(),
        sampling: SamplingParams { seed: number, ..SamplingParams::greedy() },
        max_tokens: if number.is_multiple_of(4) { 30 } else { 150 },
        stop_token_ids: vec![END],
        grammar: (number % 3 != 2).then(source),
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}

fn guide(source: &str) -> Guide {
    grammars().compile(&TenantId::new("t"), source).unwrap().guide()
}

/// What any engine must answer on the toy model.
fn expected(job: &Job) -> (Vec<u32>, FinishReason) {
    let Some(source) = &job.grammar else { return toy::answer(VOCAB, CONTEXT, job) };
    let (mut guide, mut tokens) = (guide(source), job.prompt.clone());
    loop {
        let mask = guide.mask(&tokens[job.prompt.len()..], &[END], VOCAB).unwrap();
        let next = toy::next_allowed(VOCAB, job.sampling.seed, &tokens, &mask).unwrap();
        if next == END {
            return (tokens.split_off(job.prompt.len()), FinishReason::Stop);
        }
        tokens.push(next);
        if tokens.len() - job.prompt.len() >= job.max_tokens as usize || tokens.len() >= CONTEXT {
            return (tokens.split_off(job.prompt.len()), FinishReason::Length);
        }
    }
}

async fn read(mut stream: JobStream) -> Result<(Vec<u32>, FinishReason), Reject> {
    let mut tokens = Vec::new();
    loop {
        match stream.next().await.unwrap() {
            JobEvent::Started { .. } => {}
            JobEvent::Token(token) => tokens.push(token.id),
            JobEvent::Finished { reason, .. } => return Ok((tokens, reason)),
            JobEvent::Failed(reject) => return Err(reject),
            other => panic!("{other:?}"),
        }
    }
}

async fn check(engine: &EngineHandle, count: u64) {
    let jobs: Vec<Job> = (0..count).map(|number| job(engine, number)).collect();
    let streams: Vec<JobStream> = jobs.iter().map(|job| engine.submit(job.clone()).unwrap()).collect();
    for (job, stream) in jobs.iter().zip(streams) {
        let (tokens, reason) = read(stream).await.unwrap();
        assert_eq!((&tokens, reason), (&expected(job).0, expected(job).1), "{}", job.id);
        if let (Some(_), FinishReason::Stop) = (&job.grammar, reason) {
            let said: String = tokens.iter().map(|token| char::from(*token as u8 + b' ' - 1)).collect();
            assert!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["tags"].is_array(), "{said}");
        }
    }
}

#[test]
fn held_answers_come_to_their_end_and_to_their_length() {
    let engine = start(config());
    let reasons: Vec<_> = (0..40)
        .map(|number| job(&engine, number))
        .filter(|job| job.grammar.is_some())
        .map(|job| expected(&job).1)
        .collect();
    assert!(reasons.contains(&FinishReason::Stop) && reasons.contains(&FinishReason::Length), "{reasons:?}");
}

#[tokio::test]
async fn held_answers_are_the_same_whatever_runs_beside_them_and_however_prompts_are_cut() {
    for ahead in [Ahead::Never, Ahead::Always] {
        for (max_batch_tokens, max_seqs) in [(128, 16), (17, 3), (8, 1), (33, 8)] {
            for prefix_cache in [false, true] {
                check(&start(EngineConfig { ahead, max_batch_tokens, max_seqs, prefix_cache, ..config() }), 12).await;
            }
        }
    }
}

#[tokio::test]
async fn held_answers_survive_preemption() {
    for ahead in [Ahead::Never, Ahead::Always] {
        let engine = start_with_blocks(EngineConfig { ahead, ..config() }, Faults::default(), 20);
        check(&engine, 12).await;
        assert!(engine.stats().snapshot.counters.preemptions > 0, "nothing was preempted");
    }
}

#[tokio::test]
async fn held_answers_survive_a_lost_device() {
    for lost_at in [1, 5, 30] {
        let engine = start_with_blocks(config(), Faults { lost_at: Some(lost_at), ..Faults::default() }, 256);
        check(&engine, 6).await;
        assert_eq!(engine.stats().restarts, 1);
    }
}

#[tokio::test]
async fn held_answers_go_on_after_what_was_said_elsewhere() {
    let engine = start(config());
    let job = job(&engine, 1);
    let (tokens, reason) = expected(&job);
    let stream = engine.resume(job, tokens[..9].to_vec()).unwrap();
    assert_eq!(read(stream).await.unwrap(), (tokens[9..].to_vec(), reason));
}

/// The example next to this test's own program.
fn worker(args: &[&str]) -> WorkerCommand {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    WorkerCommand { program: folder.join("toy_worker"), args: args.iter().map(Into::into).collect() }
}

#[tokio::test]
async fn held_answers_go_on_in_a_new_worker_process() {
    let folder = tempfile::tempdir().unwrap();
    let once = format!("once={}", folder.path().join("happened").display());
    let engine =
        EngineHandle::start_process(config(), toy::facts(VOCAB, CONTEXT), worker(&["vocab=100", "die=20", &once]))
            .unwrap();
    check(&engine, 6).await;
    assert_eq!(engine.stats().restarts, 1);
}

#[tokio::test]
async fn a_job_that_cannot_be_held_fails_alone() {
    let engine = start(config());
    let bad = engine.submit(Job { grammar: Some("start: nothing".into()), ..job(&engine, 0) }).unwrap();
    // Of which the first token is none that JSON begins with.
    let stuck = engine.resume(job(&engine, 1), vec![b'x' as u32 - b' ' as u32 + 1]).unwrap();
    check(&engine, 6).await;
    for stream in [bad, stuck] {
        assert_eq!(read(stream).await.unwrap_err().code.as_deref(), Some("schema_failed"));
    }
    assert_eq!(engine.stats().ended.failed, 2);
    let no_end = Job { stop_token_ids: Vec::new(), ..job(&engine, 0) };
    assert_eq!(engine.submit(no_end).unwrap_err().param.as_deref(), Some("response_format"));
    assert_eq!(engine.stats().snapshot.kv_blocks_used, 0);
}

#[tokio::test]
async fn an_engine_that_knows_no_tokens_says_so() {
    let factory =
        |limits: Limits| Ok(Box::new(ToyExecutor::new(VOCAB, limits, Faults::default())) as Box<dyn Executor>);
    let engine = EngineHandle::start(config(), toy::facts(VOCAB, CONTEXT), Box::new(factory)).unwrap();
    let held = engine.submit(job(&engine, 0)).unwrap();
    assert_eq!(read(held).await.unwrap_err().code.as_deref(), Some("schema_failed"));
}

#[tokio::test]
async fn who_leaves_while_a_grammar_is_compiled_leaves_nothing_behind() {
    let engine = start(config());
    for number in 0..20 {
        drop(
            engine
                .submit(Job {
                    grammar: Some(format!("start: /[a-z]{{1,{}}}/", 500 + number).into()),
                    ..job(&engine, 0)
                })
                .unwrap(),
        );
    }
    check(&engine, 3).await;
    assert_eq!((engine.stats().live_jobs, engine.stats().snapshot.kv_blocks_used), (0, 0));
    assert_eq!(engine.stats().ended, EndedJobs { finished: 3, failed: 0, cancelled: 20 });
}

#[tokio::test]
async fn a_grammar_that_takes_long_is_no_stall_and_kills_no_worker() {
    let config = EngineConfig { stall_after_s: 1, wedged_after_s: 1, ..config() };
    let facts = toy::facts(VOCAB, CONTEXT);
    let worker = worker(&["vocab=100", "slow=3000"]);
    let engine = EngineHandle::start_process(config, facts, worker).unwrap();
    let (job, begun) = (job(&engine, 1), std::time::Instant::now());
    let stream = engine.submit(job.clone()).unwrap();
    while begun.elapsed() < std::time::Duration::from_millis(2500) {
        assert!(engine.health().is_ready(), "{:?} after {:?}", engine.health(), begun.elapsed());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(read(stream).await.unwrap(), expected(&job));
    assert_eq!(engine.stats().restarts, 0);
}

/// On a real model with the real sampler: the same job alone and computed whole is what the others are compared with.
#[tokio::test]
async fn a_real_model_gives_the_same_held_answers_however_they_are_computed() {
    let fast: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap());
    for backend in [Arc::new(ReferenceBackend) as Arc<dyn Backend>, fast] {
        let mut alone = Vec::new();
        let engine = start_model(&backend, EngineConfig { max_batch_tokens: 256, ..config() });
        for number in 0..6 {
            alone.push(read(engine.submit(model_job(&engine, number)).unwrap()).await.unwrap());
        }
        assert!(alone.iter().any(|(tokens, _)| tokens.len() > 10), "{alone:?}");
        for (max_batch_tokens, ahead) in [(256, Ahead::Never), (16, Ahead::Never), (256, Ahead::Always)] {
            let engine = start_model(&backend, EngineConfig { max_batch_tokens, max_seqs: 8, ahead, ..config() });
            let jobs = (0..6).map(|number| engine.submit(model_job(&engine, number)).unwrap());
            for (stream, alone) in jobs.collect::<Vec<_>>().into_iter().zip(&alone) {
                assert_eq!(read(stream).await.unwrap(), *alone, "{}", backend.describe());
            }
        }
    }
}

fn start_model(backend: &Arc<dyn Backend>, config: EngineConfig) -> EngineHandle {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let model = Model::open(&models.join("llama")).unwrap();
    let facts = ModelFacts::of("llama", model.fingerprint.0, &model.program, &**backend);
    let backend = Arc::clone(backend);
    let factory = move |limits: Limits| backend.load(model.program.clone(), &*model.weights, limits);
    EngineHandle::start_holding(config, facts, Some(Arc::new(grammars())), Box::new(factory)).unwrap()
}

fn model_job(engine: &EngineHandle, number: u64) -> Job {
    let sampling = match number % 2 {
        0 => SamplingParams::greedy(),
        _ => {
            SamplingParams { temperature: 0.9, top_p: 0.95, frequency_penalty: 0.3, seed: number, ..Default::default() }
        }
    };
    Job { sampling, max_tokens: 40, ..job(engine, number) }
}
