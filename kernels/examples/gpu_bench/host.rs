//! What the host does for one step of a large decoding batch: planning, packing, queueing and taking the tokens in,
//! everything but waiting for the device.

use crate::{Failure, open, row};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_device::{Backend, Batch, DeviceError, Drawn, Executor, Limits, SampleRow};
use tidegate_engine::prefix::PrefixHasher;
use tidegate_engine::scheduler::{Rules, Scheduler};
use tidegate_engine::sequence::Work;
use tidegate_engine::step::Stepper;
use tidegate_engine::{EngineConfig, Guides, ModelFacts};
use tidegate_kernels::blas::Algorithms;
use tidegate_model::Model;
use tidegate_types::{Class, Job, JobId, SamplingParams, TenantId};

const PROMPT: usize = 16;

/// An executor that counts the time in which the host only waits.
struct Waiting {
    inner: Box<dyn Executor>,
    waited: Duration,
}

impl Executor for Waiting {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.inner.forward(batch)
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        self.inner.sample(rows)
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        let start = Instant::now();
        let drawn = self.inner.collect();
        self.waited += start.elapsed();
        drawn
    }

    fn runs_behind(&self) -> bool {
        self.inner.runs_behind()
    }

    fn logits(&self, segment: usize) -> Option<&[f32]> {
        self.inner.logits(segment)
    }
}

fn job(number: usize, vocab: usize, max_tokens: usize) -> Job {
    Job {
        id: JobId(number as u64),
        prompt: (0..PROMPT).map(|i| ((number * 7919 + i * 31) % vocab) as u32).collect(),
        sampling: SamplingParams::greedy(),
        max_tokens: max_tokens as u32,
        stop_token_ids: Vec::new(),
        grammar: None,
        tenant: TenantId::new("t"),
        class: Class::Standard,
        weight: 1,
    }
}

/// Prints the median over `steps` steps in which all of `seqs` sequences decode.
pub fn measure(folder: &Path, name: &str, seqs: usize, steps: usize) -> Result<(), Failure> {
    let (model, backend) = (Model::open(folder)?, open(Algorithms::Best)?);
    let facts = ModelFacts::of(name, model.fingerprint.0, &model.program, &backend);
    let warm_up = seqs * PROMPT / 512 + 8;
    let each = (PROMPT + warm_up + 2 * steps).div_ceil(16);
    let limits = Limits { num_blocks: seqs * each, block_tokens: 16, max_batch_tokens: seqs.max(512), max_seqs: seqs };
    let rules = Rules::new(&EngineConfig { prefix_cache: true, ..EngineConfig::default() }, &facts, &limits);
    let mut scheduler = Scheduler::new(rules, PrefixHasher::new([0; 32], &facts));
    let inner = backend.load(model.program.clone(), &*model.weights, limits)?;
    let mut executor = Waiting { inner, waited: Duration::ZERO };
    for number in 0..seqs {
        scheduler.submit(Work::new(job(number, facts.vocab, warm_up + 2 * steps)));
    }
    let (mut stepper, mut guides) = (Stepper::new(executor.runs_behind()), Guides::new(None, facts.vocab));
    let mut times = Vec::new();
    for turn in 0..warm_up + steps {
        executor.waited = Duration::ZERO;
        let start = Instant::now();
        stepper.step(&mut scheduler, &mut guides, &mut executor, &|_| ()).map_err(|lost| lost.cause)?;
        let own = start.elapsed().saturating_sub(executor.waited);
        if turn >= warm_up {
            times.push(own);
        }
    }
    let running = scheduler.snapshot().running;
    if running != seqs {
        return Err(format!("{running} of {seqs} sequences ran together").into());
    }
    row::times("host time of a step", name, seqs, 0, times);
    Ok(())
}
