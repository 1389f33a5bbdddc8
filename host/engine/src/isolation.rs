//! The parent's side of `isolation = "process"`: a thread that keeps one worker process alive and knows what each job
//! has got so far.
//!
//! A worker that dies, loses its device or says nothing for too long is killed and replaced. Its jobs are continued
//! from the prompt and what was emitted: since draws depend on seed and position only, the answer is the one that
//! would have been. Jobs that the worker was computing when it died are tried one by one in the next one, and fail after
//! `max_restarts` deaths without a new token. Invariant: a token is counted as emitted exactly when it was sent to
//! the reader. Read next: `link.rs` (one process), `ledger.rs` (the jobs).

mod ledger;
mod link;

use crate::error::EngineError;
use crate::frame::Beginning;
use crate::inbox::Command;
use crate::shared::Shared;
use crate::stats::Phase;
use crate::thread::EndGuard;
use ledger::Ledger;
use link::Link;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use tidegate_types::{Fault, JobId, Reject};

/// How to start a worker: a program that runs [`crate::worker::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program; usually this one.
    pub program: PathBuf,
    /// Its arguments: the hidden subcommand and the model.
    pub args: Vec<OsString>,
}

/// How often a silent worker is looked at.
const TICK: Duration = Duration::from_millis(250);
/// Longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Why a worker is no more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The engine was told to stop.
    Stopped,
    /// It died or was killed; with the jobs that it was computing, where that is known.
    Died { cause: String, blamed: Option<Vec<JobId>> },
}

/// Keeps a worker alive.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    command: WorkerCommand,
    ledger: Arc<Ledger>,
    /// Taken by the first worker's success or failure.
    ready: Option<SyncSender<Result<(), EngineError>>>,
    /// Since a worker served last.
    deaths: u32,
}

impl Supervisor {
    pub(crate) fn new(shared: Arc<Shared>, command: WorkerCommand, ready: SyncSender<Result<(), EngineError>>) -> Self {
        Self { shared, command, ledger: Arc::default(), ready: Some(ready), deaths: 0 }
    }

    /// Runs workers, one after the other, until it is told to stop.
    pub(crate) fn run(mut self) {
        let _end = EndGuard(self.shared.clone());
        loop {
            let end = self.run_worker();
            let End::Died { cause, blamed } = end else { return };
            if let Some(ready) = self.ready.take() {
                // The first worker never was ready: the engine does not start.
                return drop(ready.send(Err(EngineError::Died(cause))));
            }
            self.after_death(&cause, blamed);
            if !self.pause() {
                return;
            }
        }
    }

    fn run_worker(&mut self) -> End {
        let beginning = if self.ready.is_some() { Beginning::First } else { Beginning::Again };
        let link = Link::spawn(&self.command, beginning, self.shared.clone(), self.ledger.clone());
        match link {
            Ok(link) => {
                let end = self.serve(&link);
                link.finish(end)
            }
            Err(error) => End::Died { cause: error.to_string(), blamed: None },
        }
    }

    /// Passes commands on until the worker is gone, silent for too long, or to be stopped.
    fn serve(&mut self, link: &Link) -> End {
        let mut serving = false;
        loop {
            for command in self.shared.inbox.wait(TICK) {
                let stop = command == Command::Stop;
                if let Some(command) = self.ledger.note(command, serving) {
                    link.send(command);
                }
                if stop {
                    return End::Stopped;
                }
            }
            if let Some(cause) = link.gone() {
                return End::Died { cause, blamed: None };
            }
            if !serving && link.is_ready() {
                serving = true;
                self.begin(link);
            }
            if let Some(cause) = self.silence(link, serving) {
                return End::Died { cause, blamed: None };
            }
        }
    }

    /// The worker has loaded its model, and computes if it is not the first: what it dies of now is a job.
    fn begin(&mut self, link: &Link) {
        self.deaths = 0;
        self.shared.enter(Phase::Serving);
        if let Some(ready) = self.ready.take() {
            // If the starter is gone, the handle is gone, and `Stop` is on its way.
            let _ = ready.send(Ok(()));
        }
        self.ledger.unsent().into_iter().for_each(|work| link.send(Command::Submit(work)));
    }

    fn silence(&self, link: &Link, serving: bool) -> Option<String> {
        let config = &self.shared.config;
        let limit = Duration::from_secs(if serving { config.wedged_after_s } else { config.load_timeout_s }.max(1));
        let silent = link.last_heard().elapsed();
        (silent > limit).then(|| format!("the worker said nothing for {} s", silent.as_secs()))
    }

    /// Counts the death and sorts the jobs: done after all, to be tried again, or failed.
    fn after_death(&mut self, cause: &str, blamed: Option<Vec<JobId>>) {
        self.deaths += 1;
        self.shared.restarts.fetch_add(1, Ordering::Relaxed);
        self.shared.forget_loop();
        tracing::error!(cause, deaths = self.deaths, jobs = ?blamed, "the engine's worker is gone");
        let events = self.ledger.after_death(blamed, self.shared.context, self.shared.config.max_restarts);
        self.shared.send_last_events(events);
        if self.deaths < self.shared.config.losses_to_give_up() {
            return self.shared.enter(Phase::Loading);
        }
        self.give_up(cause);
    }

    /// Tells all jobs and refuses new ones; another worker is tried all the same.
    fn give_up(&self, cause: &str) {
        self.shared.enter(Phase::Failed);
        self.ledger.clear();
        let message = "the engine failed and could not be restarted";
        self.shared.fail_all(&Reject::unavailable(Fault::Engine, message, 30).because(cause).code("engine_failed"));
        // Whatever was accepted before the phase changed has just been told; only `Stop` still counts.
        if self.shared.inbox.take().contains(&Command::Stop) {
            self.shared.inbox.push(Command::Stop);
        }
    }

    /// Waits before the next try, longer each time; returns false when told to stop.
    fn pause(&self) -> bool {
        let pause = Duration::from_millis(25).saturating_mul(1 << self.deaths.min(10)).min(MAX_PAUSE);
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            for command in self.shared.inbox.wait(left) {
                if command == Command::Stop {
                    return false;
                }
                // Nothing is to be sent while no worker is there.
                let _ = self.ledger.note(command, false);
            }
        }
        true
    }
}
