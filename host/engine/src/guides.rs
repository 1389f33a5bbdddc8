//! Jobs that are held to a grammar: compiled beside the loop before they are queued, followed where their tokens are drawn.
//!
//! A guide reads the tokens of its sequence, which outlive a step that failed, a preemption and a lost device; so it is
//! never told of any of these. What goes wrong with one guide ends its job alone. Read next: `tidegate-grammar`.

use crate::compiling::Line;
use crate::scheduler::{Event, Item, Scheduler};
use crate::sequence::{Sequence, Work};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_grammar::{Compiled, GrammarError, Grammars, Guide};
use tidegate_types::{Fault, JobEvent, JobId, Reject, RejectKind};

/// Where a job is in its grammar.
#[derive(Debug)]
enum Place {
    /// It was not drawn for yet.
    Beginning(Compiled),
    Within(Box<Guide>),
    Failed(Reject),
}

/// The grammars of one engine's jobs.
#[derive(Debug)]
pub struct Guides {
    /// `None` for an engine that knows no tokens.
    grammars: Option<Arc<Grammars>>,
    vocab: usize,
    places: HashMap<JobId, Place>,
    line: Line,
    spent: Duration,
}

impl Guides {
    /// For a model with so many rows of logits.
    pub fn new(grammars: Option<Arc<Grammars>>, vocab: usize) -> Self {
        Self { grammars, vocab, places: HashMap::new(), line: Line::default(), spent: Duration::ZERO }
    }

    /// Queues a job, at once or when its grammar is compiled.
    pub fn submit(&mut self, work: Work, scheduler: &mut Scheduler) {
        match (&work.job.grammar, self.kept(&work)) {
            (None, _) => scheduler.submit(work),
            (Some(_), Some(compiled)) => self.queue(work, compiled, scheduler),
            (Some(_), None) => self.line.push(work),
        }
    }

    /// Queues what is compiled by now and begins with whose turn it is; the ends of jobs whose grammars cannot be had.
    pub fn advance(&mut self, scheduler: &mut Scheduler) -> Vec<Event> {
        let mut ended = Vec::new();
        for (work, compiled) in self.line.ended() {
            match compiled {
                Ok(compiled) => self.queue(work, compiled, scheduler),
                Err(error) => ended.push((work.job.id, failure(&error))),
            }
        }
        ended.extend(self.line.late());
        while let Some(work) = self.line.next() {
            let id = work.job.id;
            match self.kept(&work) {
                Some(compiled) => self.queue(work, compiled, scheduler),
                None => ended.extend(self.begin(work).err().map(|reject| (id, reject))),
            }
        }
        ended.into_iter().map(|(id, reject)| (id, JobEvent::Failed(reject))).collect()
    }

    /// Jobs that wait for their grammars.
    pub fn num_waiting(&self) -> usize {
        self.line.num_waiting()
    }

    /// Forgets a job that has ended.
    pub fn forget(&mut self, id: JobId) {
        self.places.remove(&id);
        self.line.forget(id);
    }

    /// Forgets jobs that the scheduler does not know.
    pub(crate) fn keep_known(&mut self, scheduler: &Scheduler) {
        self.places.retain(|id, _| scheduler.sequence(*id).is_some());
    }

    /// For each item that draws: the tokens that it may draw. One that fails may draw anything, and what it draws is
    /// dropped for its [`failure`](Self::failure).
    pub(crate) fn masks(&mut self, scheduler: &Scheduler, items: &[Item]) -> HashMap<JobId, Vec<u32>> {
        if self.places.is_empty() && !items.iter().any(|item| is_held(scheduler, item)) {
            return HashMap::new();
        }
        let start = Instant::now();
        let held = items.iter().filter(|item| item.samples && is_held(scheduler, item));
        let masks = held.filter_map(|item| Some((item.id, self.mask(scheduler.sequence(item.id)?)?))).collect();
        self.spent += start.elapsed();
        masks
    }

    /// Why a job cannot go on.
    pub(crate) fn failure(&self, id: JobId) -> Option<&Reject> {
        match self.places.get(&id) {
            Some(Place::Failed(reject)) => Some(reject),
            _ => None,
        }
    }

    /// Time that masks took since this was asked last.
    pub(crate) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    fn mask(&mut self, sequence: &Sequence) -> Option<Vec<u32>> {
        let missing = || Place::Failed(failure(&GrammarError::Stuck("it was not compiled".to_owned())));
        let place = self.places.entry(sequence.id).or_insert_with(missing);
        let mask = unharmed(|| {
            if let Place::Beginning(compiled) = place {
                *place = Place::Within(Box::new(compiled.guide()));
            }
            let Place::Within(guide) = place else { return Ok(None) };
            guide.mask(sequence.output(), sequence.stop_token_ids(), self.vocab).map(Some)
        });
        mask.unwrap_or_else(|error| {
            // A guide that panicked is not asked again: nobody knows what is left of it.
            *place = Place::Failed(failure(&error));
            None
        })
    }

    fn kept(&self, work: &Work) -> Option<Compiled> {
        self.grammars.as_ref()?.kept(&work.job.tenant, work.job.grammar.as_ref()?)
    }

    fn queue(&mut self, work: Work, compiled: Compiled, scheduler: &mut Scheduler) {
        self.places.insert(work.job.id, Place::Beginning(compiled));
        scheduler.submit(work);
    }

    fn begin(&mut self, work: Work) -> Result<(), Reject> {
        let (Some(grammars), Some(source)) = (self.grammars.clone(), work.job.grammar.clone()) else {
            return Err(failure(&GrammarError::Vocabulary("the engine was not told it".to_owned())));
        };
        let tenant = work.job.tenant.clone();
        self.line.begin(work, Box::new(move || grammars.compile(&tenant, &source)))
    }
}

fn is_held(scheduler: &Scheduler, item: &Item) -> bool {
    scheduler.sequence(item.id).is_some_and(Sequence::is_held)
}

/// A panic over one grammar concerns that one alone.
fn unharmed<T>(call: impl FnOnce() -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    let panicked = |_| Err(GrammarError::Stuck("following it panicked".to_owned()));
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

/// The end of a job whose grammar failed. Its schema was checked before it came here.
fn failure(error: &GrammarError) -> Reject {
    let message = "the answer could not be held to its schema any further";
    Reject::new(RejectKind::Internal, Fault::Engine, message).code("schema_failed").because(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_over_one_grammar_is_that_grammars_failure() {
        let said = unharmed(|| -> Result<(), _> { panic!("in the middle of a mask") });
        assert_eq!(said, Err(GrammarError::Stuck("following it panicked".to_owned())));
        assert_eq!(unharmed(|| Ok(7)), Ok(7));
    }
}
