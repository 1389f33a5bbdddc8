//! The loop in a thread of this process. A lost device is loaded again and its jobs go on; where none can be loaded that
//! computes, the engine is `Failed` and every job is told.

use crate::compute::try_out;
use crate::error::EngineError;
use crate::guides::Guides;
use crate::handle::ExecutorFactory;
use crate::inbox::{Command, Inbox};
use crate::run::{Ended, Front, run};
use crate::scheduler::Scheduler;
use crate::shared::Shared;
use crate::stats::{Phase, Snapshot};
use crate::step::{Lost, StepReport};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tidegate_device::{DeviceError, Executor, Limits};
use tidegate_types::{Fault, JobId, Reject};

impl Front for Shared {
    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn announce(&self, _jobs: Vec<JobId>) {
        // A thread that survives knows its plans; see `Lost::blamed`.
    }

    fn deliver(&self, report: StepReport) {
        self.send_events(report);
    }

    fn rest(&self, snapshot: Snapshot) {
        self.publish_idle(snapshot);
    }
}

/// The engine of a thread.
pub(crate) struct ThreadEngine {
    shared: Arc<Shared>,
    limits: Limits,
    scheduler: Scheduler,
    guides: Guides,
    factory: ExecutorFactory,
}

impl ThreadEngine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        limits: Limits,
        scheduler: Scheduler,
        guides: Guides,
        factory: ExecutorFactory,
    ) -> Self {
        Self { shared, limits, scheduler, guides, factory }
    }

    /// Loads the model, tells `ready` how that went, and runs until it is stopped or gives up.
    pub(crate) fn start(mut self, ready: SyncSender<Result<(), EngineError>>) {
        // Ends the phase and the jobs even if this thread panics.
        let _end = EndGuard(self.shared.clone());
        match (self.factory)(self.limits.clone()) {
            Ok(executor) => {
                self.shared.publish_idle(self.scheduler.snapshot());
                self.shared.enter(Phase::Serving);
                // The starter waits for this; if it is gone, the handle is gone, and `Stop` is on its way.
                let _ = ready.send(Ok(()));
                self.run(executor);
            }
            Err(error) => drop(ready.send(Err(error.into()))),
        }
    }

    fn run(mut self, mut executor: Box<dyn Executor>) {
        loop {
            let (ahead, held) = (self.shared.config.ahead, &mut self.guides);
            let Ended::Lost(lost) = run(&*self.shared, ahead, &mut self.scheduler, held, &mut *executor) else {
                return;
            };
            // Frees the lost device's memory before the next one asks for it.
            drop(executor);
            match self.replace_device(&lost) {
                Some(next) => executor = next,
                None => return self.refuse_until_stopped(),
            }
        }
    }

    fn replace_device(&mut self, lost: &Lost) -> Option<Box<dyn Executor>> {
        tracing::error!(cause = %lost.cause, jobs = ?lost.blamed, "the device is lost");
        self.shared.enter(Phase::Loading);
        let events = self.scheduler.recover(&lost.blamed);
        // The lost steps had no report; whoever was in them has left the queue.
        let (admitted, snapshot) = (lost.blamed.clone(), self.scheduler.snapshot());
        self.shared.send_events(StepReport { admitted, events, snapshot, ..StepReport::default() });
        for losses in 1..=self.shared.config.losses_to_give_up() {
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            match self.load_again() {
                Ok(executor) => {
                    self.shared.enter(Phase::Serving);
                    return Some(executor);
                }
                Err(error) => wait_after(&error, losses),
            }
        }
        self.give_up(&lost.cause);
        None
    }

    /// A device that computes: one that is lost from now on is lost over a job, of which there may be several in a row.
    fn load_again(&mut self) -> Result<Box<dyn Executor>, DeviceError> {
        let mut executor = (self.factory)(self.limits.clone())?;
        try_out(&mut *executor)?;
        Ok(executor)
    }

    fn give_up(&mut self, cause: &DeviceError) {
        self.shared.enter(Phase::Failed);
        for id in self.scheduler.jobs() {
            self.scheduler.cancel(id);
        }
        let message = "the engine failed and could not be restarted";
        self.shared.fail_all(&Reject::unavailable(Fault::Engine, message, 30).because(cause).code("engine_failed"));
        self.shared.publish_idle(self.scheduler.snapshot());
    }

    /// The phase refuses new jobs and all others have ended: nothing is left but to be stopped.
    fn refuse_until_stopped(self) {
        loop {
            let commands = self.shared.inbox.wait(Duration::from_secs(3600));
            if commands.contains(&Command::Stop) {
                return;
            }
        }
    }
}

fn wait_after(error: &DeviceError, losses: u32) {
    tracing::error!(%error, losses, "the device could not be loaded again");
    std::thread::sleep(Duration::from_millis(100 << losses.min(6)));
}

/// However the loop ends, nobody waits for it.
pub(crate) struct EndGuard(pub(crate) Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Stopped);
        self.0.fail_all(&Reject::unavailable(Fault::Engine, "the engine stopped before the answer ended", 5));
    }
}
