//! The engine as everyone above sees it: one handle, cheap to clone, whether the loop is a thread or a process.

use crate::config::{EngineConfig, ModelFacts};
use crate::error::EngineError;
use crate::guides::Guides;
use crate::inbox::Command;
use crate::isolation::{Supervisor, WorkerCommand};
use crate::run::new_scheduler;
use crate::scheduler::Rules;
use crate::sequence::Work;
use crate::shared::Shared;
use crate::stats::{EngineStats, Health, Phase};
use crate::stream::JobStream;
use crate::thread::ThreadEngine;
use crate::validate::{check_for_vector, check_prompt, too_long, validate};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use tidegate_device::{DeviceError, Executor, Limits};
use tidegate_grammar::Grammars;
use tidegate_types::{Job, JobId, Reject};

/// Builds an executor; called once at start, and again after the device was lost.
pub type ExecutorFactory = Box<dyn FnMut(Limits) -> Result<Box<dyn Executor>, DeviceError> + Send>;

/// A running engine. When the last clone is dropped the loop ends, and jobs that are still live fail.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    _keeper: Arc<Keeper>,
}

/// Ends the loop when nobody holds a handle any more.
#[derive(Debug)]
struct Keeper(Arc<Shared>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.inbox.push(Command::Stop);
    }
}

impl EngineHandle {
    /// Loads the model on a thread of its own and returns when it serves. Blocks for as long as loading takes. Install
    /// the metrics recorder before.
    pub fn start(config: EngineConfig, facts: ModelFacts, factory: ExecutorFactory) -> Result<Self, EngineError> {
        Self::start_holding(config, facts, None, factory)
    }

    /// As [`Self::start`], for a model whose answers can be held to `grammars`.
    pub fn start_holding(
        config: EngineConfig,
        facts: ModelFacts,
        grammars: Option<Arc<Grammars>>,
        factory: ExecutorFactory,
    ) -> Result<Self, EngineError> {
        let limits = config.limits(&facts)?;
        let scheduler = new_scheduler(Rules::new(&config, &facts, &limits), &facts)?;
        let guides = Guides::new(grammars, facts.vocab);
        let shared = Arc::new(Shared::new(config, facts, &limits));
        let engine = ThreadEngine::new(shared.clone(), limits, scheduler, guides, factory);
        Self::spawn(shared, |ready| engine.start(ready))
    }

    /// The same over a worker process that is replaced when it dies or says nothing for too long. Returns when the
    /// first one has loaded its model.
    pub fn start_process(config: EngineConfig, facts: ModelFacts, worker: WorkerCommand) -> Result<Self, EngineError> {
        let limits = config.limits(&facts)?;
        let shared = Arc::new(Shared::new(config, facts, &limits));
        let of_loop = shared.clone();
        Self::spawn(shared, |ready| Supervisor::new(of_loop, worker, ready).run())
    }

    /// Runs the engine's thread and waits until it says that it serves.
    fn spawn(
        shared: Arc<Shared>,
        body: impl FnOnce(SyncSender<Result<(), EngineError>>) + Send + 'static,
    ) -> Result<Self, EngineError> {
        let (ready, said) = sync_channel(1);
        std::thread::Builder::new()
            .name("tidegate-engine".into())
            .spawn(move || body(ready))
            .map_err(|cause| EngineError::Spawn { what: "the engine's thread".into(), cause })?;
        said.recv().map_err(|_| EngineError::Died("its thread panicked".into()))??;
        Ok(Self { _keeper: Arc::new(Keeper(shared.clone())), shared })
    }

    /// A job id that this engine has not had.
    pub fn next_job_id(&self) -> JobId {
        JobId(self.shared.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues a job. Refuses what cannot run (400) and what there is no room for (503 with a time to come back).
    pub fn submit(&self, job: Job) -> Result<JobStream, Reject> {
        self.resume(job, Vec::new())
    }

    /// Queues a job of which `emitted` was generated elsewhere, under the same seed: the stream goes on after it.
    /// `max_tokens` and the usage count `emitted` too.
    pub fn resume(&self, job: Job, emitted: Vec<u32>) -> Result<JobStream, Reject> {
        let work = Work { emitted, ..Work::new(job) };
        validate(&work, &self.shared.facts, self.shared.context)?;
        let id = work.job.id;
        let events = self.shared.accept(work)?;
        Ok(JobStream::new(id, events, self.shared.clone()))
    }

    /// Refuses a prompt that [`Self::submit`] would refuse for its length, before that.
    pub fn check_prompt(&self, num_tokens: usize, wants_tokens: bool) -> Result<(), Reject> {
        check_prompt(num_tokens, &self.shared.facts, self.shared.context, wants_tokens)
    }

    /// Refuses a prompt for a vector that [`Self::submit`] would refuse, before others of its request are computed.
    pub fn check_for_vector(&self, prompt: &[u32]) -> Result<(), Reject> {
        check_for_vector(prompt, &self.shared.facts, self.shared.context)
    }

    /// What is said of a prompt that is not submitted, since it has at least so many tokens: more than a job may have.
    pub fn refuse_longer(&self, at_least: usize) -> Reject {
        let facts = &self.shared.facts;
        too_long(&format!("at least {at_least}"), facts, self.shared.context, facts.pooling.is_none())
    }

    /// What the engine knows of its model.
    pub fn facts(&self) -> &ModelFacts {
        &self.shared.facts
    }

    /// Tokens of prompt and answer together that a job may have.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Figures of this moment.
    pub fn stats(&self) -> EngineStats {
        self.shared.stats()
    }

    /// Whether tokens are moving.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Where the engine is in its life.
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Takes no more jobs and waits until those it has are done, or the deadline; returns how many are not.
    pub async fn drain(&self, deadline: Duration) -> usize {
        self.shared.enter(Phase::Draining);
        self.shared.wait_idle(deadline).await
    }

    /// Drains until the deadline, fails what is left, and waits until the loop has ended. A device that hangs in a
    /// step cannot be waited for: after another five seconds it is left to the end of the process.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        let unfinished = self.drain(deadline).await;
        self.shared.inbox.push(Command::Stop);
        let patience = Duration::from_secs(5);
        if tokio::time::timeout(patience, self.shared.wait_stopped()).await.is_err() {
            tracing::error!(model = %self.shared.facts.name, "the engine's loop does not end; leaving it behind");
        }
        unfinished
    }
}
