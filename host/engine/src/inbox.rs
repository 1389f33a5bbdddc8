//! The only way into the engine's loop: a line of commands.
//!
//! It is bounded without ever blocking: a `Submit` waits here only while its job counts against the limits of the
//! queue, and cancelling it takes it out again; a `Cancel` waits here only for a job that the loop knows.

use crate::sequence::Work;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_types::JobId;

/// What the loop can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Queue a job.
    Submit(Work),
    /// Forget a job.
    Cancel(JobId),
    /// End the loop; what still runs fails.
    Stop,
}

#[derive(Debug, Default)]
struct Line {
    commands: VecDeque<Command>,
    poked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    line: Mutex<Line>,
    arrived: Condvar,
}

impl Inbox {
    pub(crate) fn push(&self, command: Command) {
        self.lock().commands.push_back(command);
        self.arrived.notify_one();
    }

    /// Takes a submission back if the loop has not seen it, or tells the loop to forget it.
    pub(crate) fn cancel(&self, id: JobId) {
        let commands = &mut self.lock().commands;
        let unseen = commands.iter().position(|command| matches!(command, Command::Submit(work) if work.job.id == id));
        match unseen {
            Some(position) => drop(commands.remove(position)),
            None => commands.push_back(Command::Cancel(id)),
        }
        self.arrived.notify_one();
    }

    /// All commands that are there.
    pub(crate) fn take(&self) -> VecDeque<Command> {
        self.lock().take()
    }

    /// All commands, once there is one, somebody poked, or `patience` has passed.
    pub(crate) fn wait(&self, patience: Duration) -> VecDeque<Command> {
        let idle = |line: &mut Line| line.commands.is_empty() && !line.poked;
        let waited = self.arrived.wait_timeout_while(self.lock(), patience, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }

    /// Ends a wait without a command.
    pub(crate) fn poke(&self) {
        self.lock().poked = true;
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn take(&mut self) -> VecDeque<Command> {
        self.poked = false;
        std::mem::take(&mut self.commands)
    }
}
