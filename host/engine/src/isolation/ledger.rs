//! What the parent knows of each job, so that another worker can go on with it.

use crate::inbox::Command;
use crate::scheduler::Event;
use crate::scheduler::lost_too_often;
use crate::sequence::{Restarts, Work};
use crate::step::StepReport;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_types::{FinishReason, JobEvent, JobId, Usage};

#[derive(Debug)]
struct Entry {
    work: Work,
    /// The present worker has it.
    sent: bool,
    /// The present worker has begun with it.
    admitted: bool,
    /// What the first `Started` said.
    cached_tokens: Option<u32>,
    restarts: Restarts,
}

#[derive(Debug, Default)]
struct Books {
    /// By id, which is the order of arrival.
    entries: BTreeMap<JobId, Entry>,
}

/// All live jobs. Commands and reports pass through it.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Books>);

impl Ledger {
    /// Notes a command; returns it if the present worker must hear it.
    pub(super) fn note(&self, command: Command, serving: bool) -> Option<Command> {
        let mut books = self.lock();
        match command {
            Command::Submit(work) => {
                let entry = Entry {
                    work: work.clone(),
                    sent: serving,
                    admitted: false,
                    cached_tokens: None,
                    restarts: Restarts::default(),
                };
                books.entries.insert(work.job.id, entry);
                serving.then_some(Command::Submit(work))
            }
            Command::Cancel(id) => {
                let entry = books.entries.remove(&id)?;
                entry.sent.then_some(Command::Cancel(id))
            }
            Command::Stop => Some(Command::Stop),
        }
    }

    /// Jobs that the present worker has not got, in order of arrival; now it has.
    pub(super) fn unsent(&self) -> Vec<Work> {
        let mut books = self.lock();
        let unsent = books.entries.values_mut().filter(|entry| !entry.sent);
        let send = |entry: &mut Entry| {
            entry.sent = true;
            entry.work.clone()
        };
        unsent.map(send).collect()
    }

    /// Notes a report and makes it what the readers shall see: nothing of jobs that are gone, one `Started`, and
    /// the usage of the whole job.
    pub(super) fn note_report(&self, report: &mut StepReport) {
        let mut books = self.lock();
        for id in &report.admitted {
            if let Some(entry) = books.entries.get_mut(id) {
                entry.admitted = true;
            }
        }
        report.events.retain_mut(|(id, event)| books.note_event(*id, event));
    }

    /// The worker died over the `blamed`, or over all that it had begun with. Returns the jobs that end by it.
    pub(super) fn after_death(&self, blamed: Option<Vec<JobId>>, context: usize, max_restarts: u32) -> Vec<Event> {
        let mut books = self.lock();
        let begun = books.entries.iter().filter(|(_, entry)| entry.admitted).map(|(id, _)| *id);
        let blamed = blamed.unwrap_or_else(|| begun.collect());
        let mut ended = Vec::new();
        books.entries.retain(|id, entry| {
            (entry.sent, entry.admitted) = (false, false);
            let end = entry.end_after_death(blamed.contains(id), context, max_restarts);
            let goes_on = end.is_none();
            ended.extend(end.map(|event| (*id, event)));
            goes_on
        });
        ended
    }

    pub(super) fn clear(&self) {
        self.lock().entries.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Returns whether the reader shall see the event.
    fn note_event(&mut self, id: JobId, event: &mut JobEvent) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        match event {
            JobEvent::Started { cached_tokens } => {
                let first = entry.cached_tokens.is_none();
                entry.cached_tokens.get_or_insert(*cached_tokens);
                return first;
            }
            JobEvent::Token(token) => entry.work.emitted.push(token.id),
            JobEvent::Vector(_) => {}
            JobEvent::Finished { usage, .. } => {
                usage.cached_tokens = u64::from(entry.cached_tokens.unwrap_or(0));
                self.entries.remove(&id);
            }
            JobEvent::Failed(_) => {
                self.entries.remove(&id);
            }
        }
        true
    }
}

impl Entry {
    /// The last event, where the job does not go on.
    fn end_after_death(&mut self, blamed: bool, context: usize, max_restarts: u32) -> Option<JobEvent> {
        let (job, num_output) = (&self.work.job, self.work.emitted.len());
        if self.work.is_full(context) {
            let usage = Usage {
                input_tokens: job.prompt.len() as u64,
                cached_tokens: u64::from(self.cached_tokens.unwrap_or(0)),
                output_tokens: num_output as u64,
                reasoning_tokens: None,
            };
            return Some(JobEvent::Finished { reason: FinishReason::Length, usage });
        }
        self.work.suspect = blamed;
        let goes_on = !blamed || self.restarts.allow(num_output, max_restarts);
        (!goes_on).then(|| JobEvent::Failed(lost_too_often()))
    }
}
