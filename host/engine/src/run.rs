//! The engine's thread: takes commands, steps while there is work, sleeps while there is none.
//!
//! It owns the scheduler and the executor. A lost device is replaced by the factory and its jobs are continued; after
//! too many losses in a row the engine is `Failed` and every job is told.

use crate::config::ModelFacts;
use crate::error::EngineError;
use crate::handle::ExecutorFactory;
use crate::inbox::Command;
use crate::prefix::PrefixHasher;
use crate::scheduler::{Rules, Scheduler};
use crate::shared::Shared;
use crate::stats::Phase;
use crate::step::{Lost, StepReport, step};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tidegate_device::{DeviceError, Executor, Limits};
use tidegate_types::{Fault, Reject};

/// How long an idle loop sleeps between looks at nothing.
const IDLE: Duration = Duration::from_secs(1);
/// Losses without a step in between after which the engine gives up.
const MAX_LOSSES: u32 = 4;

/// A scheduler with a fresh random key.
pub(crate) fn new_scheduler(rules: Rules, facts: &ModelFacts) -> Result<Scheduler, EngineError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| EngineError::Random(error.to_string()))?;
    Ok(Scheduler::new(rules, PrefixHasher::new(key, facts)))
}

/// The loop of a thread.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    limits: Limits,
    scheduler: Scheduler,
    factory: ExecutorFactory,
    executor: Box<dyn Executor>,
    losses: u32,
}

impl Engine {
    /// Loads the model, tells `ready` how that went, and runs until it is stopped.
    pub(crate) fn start(
        shared: Arc<Shared>,
        limits: Limits,
        scheduler: Scheduler,
        mut factory: ExecutorFactory,
        ready: SyncSender<Result<(), EngineError>>,
    ) {
        // Ends the phase and the jobs even if this thread panics.
        let _end = EndGuard(shared.clone());
        let loaded = factory(limits.clone());
        let (executor, said) = match loaded {
            Ok(executor) => (Some(executor), Ok(())),
            Err(error) => (None, Err(error.into())),
        };
        shared.publish_idle(scheduler.snapshot());
        if executor.is_some() {
            shared.enter(Phase::Serving);
        }
        // The starter waits for this; if it is gone, nobody will submit either.
        let _ = ready.send(said);
        if let Some(executor) = executor {
            Self { shared, limits, scheduler, factory, executor, losses: 0 }.run();
        }
    }

    fn run(mut self) {
        loop {
            let commands =
                if self.scheduler.has_work() { self.shared.inbox.take() } else { self.shared.inbox.wait(IDLE) };
            if !self.obey(commands) {
                return;
            }
            if !self.scheduler.has_work() {
                continue;
            }
            match step(&mut self.scheduler, &mut *self.executor) {
                Ok(report) => self.deliver(report),
                Err(lost) => self.replace_device(&lost),
            }
        }
    }

    /// Returns false when the loop shall end.
    fn obey(&mut self, commands: VecDeque<Command>) -> bool {
        let any = !commands.is_empty();
        for command in commands {
            match command {
                Command::Submit(work) if self.shared.phase() == Phase::Failed => drop(work),
                Command::Submit(work) => self.scheduler.submit(work),
                Command::Cancel(id) => drop(self.scheduler.cancel(id)),
                Command::Stop => return false,
            }
        }
        if any && !self.scheduler.has_work() {
            self.rest();
        }
        true
    }

    fn deliver(&mut self, report: StepReport) {
        self.losses = 0;
        self.shared.deliver(report);
        if !self.scheduler.has_work() {
            self.rest();
        }
    }

    /// The last job ended: all blocks must be back.
    fn rest(&mut self) {
        if let Err(error) = self.scheduler.check() {
            tracing::error!(%error, "the cache's books do not balance; the cache is emptied");
            self.scheduler.reset_cache();
        }
        self.shared.publish_idle(self.scheduler.snapshot());
    }

    fn replace_device(&mut self, lost: &Lost) {
        let cause = &lost.cause;
        self.losses += 1;
        tracing::error!(%cause, jobs = ?lost.blamed, losses = self.losses, "the device is lost");
        self.shared.restarts.fetch_add(1, Ordering::Relaxed);
        let events = self.scheduler.recover(&lost.blamed);
        self.shared.deliver(StepReport { admitted: Vec::new(), events, snapshot: self.scheduler.snapshot() });
        // Frees the lost device's memory before the next one asks for it.
        self.executor = Box::new(Absent);
        self.shared.enter(Phase::Loading);
        if self.losses > MAX_LOSSES {
            return self.give_up(cause);
        }
        match (self.factory)(self.limits.clone()) {
            Ok(executor) => {
                self.executor = executor;
                self.shared.enter(Phase::Serving);
            }
            // The next step meets `Absent` and comes back here.
            Err(error) => tracing::error!(%error, "the device could not be loaded again"),
        }
    }

    fn give_up(&mut self, cause: &DeviceError) {
        self.shared.enter(Phase::Failed);
        for id in self.scheduler.jobs() {
            self.scheduler.cancel(id);
        }
        let message = "the engine failed and could not be restarted";
        self.shared.fail_all(&Reject::unavailable(Fault::Engine, message, 30).because(cause).code("engine_failed"));
        self.rest();
    }
}

/// Stands in for a device that is gone.
struct Absent;

impl Executor for Absent {
    fn forward(&mut self, _batch: &tidegate_device::Batch<'_>) -> Result<(), DeviceError> {
        Err(DeviceError::Lost("no device is loaded".into()))
    }

    fn sample(&mut self, _rows: &[tidegate_device::SampleRow<'_>]) -> Result<(), DeviceError> {
        Err(DeviceError::Lost("no device is loaded".into()))
    }

    fn collect(&mut self) -> Result<Vec<tidegate_types::SampledToken>, DeviceError> {
        Err(DeviceError::Lost("no device is loaded".into()))
    }

    fn logits(&self, _segment: usize) -> Option<&[f32]> {
        None
    }
}

/// However the loop ends, nobody waits for it.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Stopped);
        self.0.fail_all(&Reject::unavailable(Fault::Engine, "the engine stopped before the answer ended", 5));
    }
}
