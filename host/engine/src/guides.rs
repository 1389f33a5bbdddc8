//! Jobs that are held to a grammar: compiled beside the loop before they are queued, followed where their tokens are drawn.
//!
//! A guide reads the tokens of its sequence, which outlive a step that failed, a preemption and a lost device; so it is
//! never told of any of these. What goes wrong with one guide ends its job alone. Read next: `tidegate-grammar`.

use crate::compiling::Line;
use crate::scheduler::{Event, Item, Scheduler};
use crate::sequence::{Sequence, Work};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_grammar::{Compiled, GrammarError, Grammars, Guide};
use tidegate_types::{Fault, JobEvent, JobId, Reject, RejectKind, TenantId};

/// How long the masks of one step may take, behind the first of them.
const BUDGET: Duration = Duration::from_millis(20);

/// Tenants whose turns are remembered; past it they begin anew.
const MAX_TENANTS: usize = 1024;

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
    budget: Duration,
    /// Jobs for which there was no time in their last step, and in how many before it in a row.
    put_off: HashMap<JobId, u32>,
    /// Masks made so far, and where among them each tenant's last one was.
    num_masks: u64,
    last_of: HashMap<TenantId, u64>,
    spent: Duration,
}

impl Guides {
    /// For a model with so many rows of logits.
    pub fn new(grammars: Option<Arc<Grammars>>, vocab: usize) -> Self {
        let (places, line, put_off) = (HashMap::new(), Line::default(), HashMap::new());
        Self {
            grammars,
            vocab,
            places,
            line,
            budget: BUDGET,
            put_off,
            num_masks: 0,
            last_of: HashMap::new(),
            spent: Duration::ZERO,
        }
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
        self.put_off.remove(&id);
        self.line.forget(id);
    }

    /// Forgets jobs that the scheduler does not know.
    pub(crate) fn keep_known(&mut self, scheduler: &Scheduler) {
        self.places.retain(|id, _| scheduler.sequence(*id).is_some());
        self.put_off.retain(|id, _| scheduler.sequence(*id).is_some());
    }

    /// For each item that draws: the tokens that it may draw. One that fails may draw anything, and what it draws is
    /// dropped for its [`failure`](Self::failure); so may one for which there is no time, which is [put off](Self::is_put_off).
    pub(crate) fn masks(&mut self, scheduler: &Scheduler, items: &[Item]) -> HashMap<JobId, Vec<u32>> {
        let held = items.iter().filter(|item| item.samples && is_held(scheduler, item));
        let held: Vec<_> = held.filter_map(|item| scheduler.sequence(item.id)).collect();
        if held.is_empty() {
            return HashMap::new();
        }
        let (start, mut first_done, mut masks) = (Instant::now(), None, HashMap::new());
        for sequence in self.in_turn(held) {
            if first_done.is_some_and(|done: Instant| done.elapsed() >= self.budget) {
                *self.put_off.entry(sequence.id).or_default() += 1;
                continue;
            }
            self.note_turn(&sequence.owner.tenant);
            let mask = self.mask(sequence);
            first_done.get_or_insert_with(Instant::now);
            if mask.is_none() && self.failure(sequence.id).is_none() {
                *self.put_off.entry(sequence.id).or_default() += 1;
                continue;
            }
            self.put_off.remove(&sequence.id);
            masks.extend(mask.map(|mask| (sequence.id, mask)));
        }
        self.spent += start.elapsed();
        masks
    }

    fn note_turn(&mut self, tenant: &TenantId) {
        if self.last_of.len() > MAX_TENANTS {
            self.last_of.clear();
        }
        self.num_masks += 1;
        self.last_of.insert(tenant.clone(), self.num_masks);
    }

    /// The first of each tenant, the second of each, and so on; of tenants, whose last mask was longest ago goes first,
    /// and of a tenant's, who was put off most often.
    fn in_turn<'a>(&self, mut held: Vec<&'a Sequence>) -> Vec<&'a Sequence> {
        let waited = |sequence: &Sequence| Reverse(self.put_off.get(&sequence.id).copied().unwrap_or(0));
        held.sort_by_key(|sequence| waited(sequence));
        let mut num_of_tenant = HashMap::new();
        let mut in_turn: Vec<_> = held
            .into_iter()
            .map(|sequence| {
                let rank: &mut usize = num_of_tenant.entry(&sequence.owner.tenant).or_default();
                *rank += 1;
                (*rank, sequence)
            })
            .collect();
        in_turn.sort_by_key(|(rank, sequence)| (*rank, self.last_of.get(&sequence.owner.tenant).copied()));
        in_turn.into_iter().map(|(_, sequence)| sequence).collect()
    }

    /// Whether what a job drew is to be dropped, and drawn again in the next step.
    pub(crate) fn is_put_off(&self, id: JobId) -> bool {
        self.put_off.contains_key(&id)
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

    /// `None` where it failed, and where it takes more than one go.
    fn mask(&mut self, sequence: &Sequence) -> Option<Vec<u32>> {
        let missing = || Place::Failed(failure(&GrammarError::Stuck("it was not compiled".to_owned())));
        let place = self.places.entry(sequence.id).or_insert_with(missing);
        let mask = unharmed(|| {
            if let Place::Beginning(compiled) = place {
                *place = Place::Within(Box::new(compiled.guide()));
            }
            let Place::Within(guide) = place else { return Ok(None) };
            guide.mask_in_one_go(sequence.output(), sequence.stop_token_ids(), self.vocab)
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
    use crate::config::EngineConfig;
    use crate::run::new_scheduler;
    use crate::scheduler::Rules;
    use crate::step::Stepper;
    use crate::toy::{self, Faults, ToyExecutor};
    use tidegate_grammar::Token;
    use tidegate_types::{Caller, Job, SamplingParams};

    #[test]
    fn a_panic_over_one_grammar_is_that_grammars_failure() {
        let said = unharmed(|| -> Result<(), _> { panic!("in the middle of a mask") });
        assert_eq!(said, Err(GrammarError::Stuck("following it panicked".to_owned())));
        assert_eq!(unharmed(|| Ok(7)), Ok(7));
    }

    /// Which job got which token, step by step, where three are of one tenant and the last of another.
    fn drawn(budget: Duration, ahead: bool) -> Vec<Vec<(u64, u32)>> {
        let (facts, config) = (toy::facts(50, 256), EngineConfig { kv_cache_mib: Some(4), ..EngineConfig::default() });
        let limits = config.limits(&facts).unwrap();
        let mut scheduler = new_scheduler(Rules::new(&config, &facts, &limits), &facts).unwrap();
        let grammars = Grammars::new(|| Ok((b'A'..=b'Z').map(|byte| Token::Text(vec![byte])).collect()));
        let compiled = grammars.compile(&TenantId::new("t"), "start: /[B-Y]{20}/").unwrap();
        let mut guides = Guides { budget, ..Guides::new(None, facts.vocab) };
        for id in 0..4 {
            let caller = Caller { tenant: TenantId::new(if id < 3 { "large" } else { "small" }), ..Caller::local() };
            let sampling = SamplingParams { seed: id, ..SamplingParams::greedy() };
            let job = Job {
                sampling,
                max_tokens: 12,
                stop_token_ids: vec![49],
                grammar: Some("".into()),
                ..Job::of(&caller, JobId(id), (1..20 + id as u32 * 3).collect())
            };
            guides.queue(Work::new(job), compiled.clone(), &mut scheduler);
        }
        let (mut stepper, mut executor) = (Stepper::new(ahead), ToyExecutor::new(50, limits, Faults::default()));
        let mut steps = Vec::new();
        while scheduler.has_work() || stepper.in_flight() {
            let report = stepper.step(&mut scheduler, &mut guides, &mut executor, &|_| {}).unwrap();
            let tokens = report.events.into_iter().filter_map(|(id, event)| match event {
                JobEvent::Token(token) => Some((id.0, token.id)),
                _ => None,
            });
            steps.push(tokens.collect());
        }
        scheduler.check().unwrap();
        steps
    }

    fn of_job(steps: &[Vec<(u64, u32)>], job: u64) -> Vec<u32> {
        steps.iter().flatten().filter(|(id, _)| *id == job).map(|(_, token)| *token).collect()
    }

    #[test]
    fn rows_without_time_for_a_mask_wait_and_draw_the_same() {
        for ahead in [false, true] {
            let (all, few) = (drawn(Duration::from_secs(60), ahead), drawn(Duration::ZERO, ahead));
            assert!(few.iter().all(|step| step.len() <= 1), "one mask in a step: {few:?}");
            for job in 0..4 {
                assert_eq!(of_job(&all, job).len(), 12);
                assert_eq!(of_job(&few, job), of_job(&all, job));
            }
        }
    }

    #[test]
    fn tenants_take_turns_where_there_is_no_time_for_all_masks() {
        let order: Vec<u64> = drawn(Duration::ZERO, false).concat().into_iter().map(|(id, _)| id).collect();
        let of_small = order[..24].iter().filter(|id| **id == 3).count();
        assert!((11..=12).contains(&of_small), "one of two: {order:?}");
        let longest = order[..24].chunk_by(|a, b| (*a == 3) == (*b == 3)).map(<[u64]>::len).max();
        assert!(longest <= Some(2), "{order:?}");
        assert!([0, 1, 2].iter().all(|id| order[..12].contains(id)), "nor is one of a tenant's left out: {order:?}");
    }
}
