//! The engine's loop on one screen: plan, queue, plan the next, collect, apply.
//!
//! Where a device computes behind the host's back, the next step is planned and queued while it computes this one, so
//! that it never waits for the host; `ahead` off is the plain loop, and gives the same tokens. Read next:
//! [`crate::compute`], how a plan becomes calls of the executor.

use crate::compute::{Computed, collect, compute, queue};
use crate::guides::Guides;
use crate::scheduler::{Event, Plan, Scheduler};
use crate::stats::Snapshot;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidegate_device::{DeviceError, Executor};
use tidegate_types::{JobEvent, JobId};

/// What a step did, as plain data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Jobs that left the queue for the first time.
    pub admitted: Vec<JobId>,
    /// What became of jobs.
    pub events: Vec<Event>,
    /// Figures after the step.
    pub snapshot: Snapshot,
    /// Time that it took to find out which tokens may be drawn, of answers that are held to a grammar.
    pub masking: Duration,
}

/// The device was lost in a step.
#[derive(Debug)]
pub struct Lost {
    /// What it said.
    pub cause: DeviceError,
    /// The jobs that it was computing.
    pub blamed: Vec<JobId>,
}

/// A plan that is not applied yet.
#[derive(Debug)]
struct Flight {
    plan: Plan,
    /// The executor has it; otherwise it refused, and it is computed once it is its turn.
    queued: bool,
}

/// Does one step after the other.
#[derive(Debug)]
pub struct Stepper {
    ahead: bool,
    flight: Option<Flight>,
}

impl Stepper {
    /// With `ahead`, each step but the first is queued before the one before it is collected.
    pub fn new(ahead: bool) -> Self {
        Self { ahead, flight: None }
    }

    /// Whether there is a step to collect, with or without other work.
    pub fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Does one step. `announce` is told the jobs of steps that may kill the device, before they are queued: those with
    /// jobs that are new, or over which one was lost before. A report ends what was announced before it, so a step that
    /// was queued behind another is announced again when its turn has come.
    pub fn step(
        &mut self,
        scheduler: &mut Scheduler,
        guides: &mut Guides,
        executor: &mut dyn Executor,
        announce: &dyn Fn(Vec<JobId>),
    ) -> Result<StepReport, Lost> {
        let now = match self.flight.take() {
            Some(flight) => flight,
            None => self.begin(scheduler, guides, executor, announce)?,
        };
        self.flight = self.begin_next(scheduler, guides, executor, announce, &now)?;
        let done = finish(scheduler, guides, executor, &now, &mut self.flight);
        let next = self.flight.as_ref().map(|next| &next.plan);
        let done = done.map_err(|cause| Lost { cause, blamed: jobs_of(&[Some(&now.plan), next]) })?;
        let events = scheduler.apply(&done.plan, done.outcomes);
        let ended = events.iter().filter(|(_, event)| matches!(event, JobEvent::Finished { .. } | JobEvent::Failed(_)));
        ended.for_each(|(id, _)| guides.forget(*id));
        let (snapshot, masking) = (scheduler.snapshot(), guides.take_spent());
        Ok(StepReport { admitted: now.plan.admitted, events, snapshot, masking })
    }

    /// Plans while nothing is in flight, and queues that if it is to be overlapped.
    fn begin(
        &self,
        scheduler: &mut Scheduler,
        guides: &mut Guides,
        executor: &mut dyn Executor,
        announce: &dyn Fn(Vec<JobId>),
    ) -> Result<Flight, Lost> {
        let plan = scheduler.plan();
        if !self.ahead {
            return Ok(Flight { plan, queued: false });
        }
        if is_dangerous(scheduler, &plan) {
            announce(jobs_of(&[Some(&plan)]));
        }
        let queued = queue_or_lose(scheduler, guides, executor, &plan, None)?;
        Ok(Flight { plan, queued })
    }

    /// Plans and queues the step after `now`, if that is being computed; announces both.
    fn begin_next(
        &self,
        scheduler: &mut Scheduler,
        guides: &mut Guides,
        executor: &mut dyn Executor,
        announce: &dyn Fn(Vec<JobId>),
        now: &Flight,
    ) -> Result<Option<Flight>, Lost> {
        let next = if now.queued { scheduler.plan_ahead() } else { None };
        let plans = [Some(&now.plan), next.as_ref()];
        if plans.iter().flatten().any(|plan| is_dangerous(scheduler, plan)) {
            announce(jobs_of(&plans));
        }
        let Some(plan) = next else { return Ok(None) };
        let queued = queue_or_lose(scheduler, guides, executor, &plan, Some(&now.plan))?;
        Ok(Some(Flight { plan, queued }))
    }
}

/// The outcomes of `now`: collected, or computed if it was never queued. Where collecting fails, what was queued behind
/// it counts as never queued either.
fn finish(
    scheduler: &Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
    now: &Flight,
    next: &mut Option<Flight>,
) -> Result<Computed, DeviceError> {
    if now.queued {
        match collect(guides, executor, &now.plan) {
            Err(error @ DeviceError::Lost(_)) => return Err(error),
            Err(error) => tracing::warn!(%error, "a step could not be collected; it is computed again"),
            Ok(done) => return Ok(done),
        }
        if let Some(next) = next.as_mut().filter(|next| next.queued) {
            next.queued = false;
            let _ = collect(guides, executor, &next.plan);
        }
    }
    compute(scheduler, guides, executor, &now.plan)
}

/// Says whether the executor took it.
fn queue_or_lose(
    scheduler: &Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
    plan: &Plan,
    before: Option<&Plan>,
) -> Result<bool, Lost> {
    match queue(scheduler, guides, executor, &plan.items, before) {
        Ok(()) => Ok(true),
        Err(cause @ DeviceError::Lost(_)) => Err(Lost { cause, blamed: jobs_of(&[before, Some(plan)]) }),
        Err(error) => {
            tracing::warn!(%error, items = plan.items.len(), "a step was refused; it is computed when it is its turn");
            Ok(false)
        }
    }
}

fn is_dangerous(scheduler: &Scheduler, plan: &Plan) -> bool {
    scheduler.has_suspects() || !plan.admitted.is_empty()
}

/// The jobs of some plans, each once.
fn jobs_of(plans: &[Option<&Plan>]) -> Vec<JobId> {
    let mut ids: Vec<JobId> = plans.iter().flatten().flat_map(|plan| plan.items.iter().map(|item| item.id)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;
    use crate::run::new_scheduler;
    use crate::scheduler::Rules;
    use crate::sequence::Work;
    use crate::toy::{self, Faults, ToyExecutor};
    use std::cell::RefCell;
    use tidegate_types::{Caller, Job, SamplingParams};

    /// Else nobody knows over which job a process died: the others would be blamed for it.
    #[test]
    fn a_new_job_is_announced_in_the_step_that_waits_for_it() {
        for ahead in [false, true] {
            let (facts, config) =
                (toy::facts(50, 256), EngineConfig { kv_cache_mib: Some(4), ..EngineConfig::default() });
            let limits = config.limits(&facts).unwrap();
            let mut scheduler = new_scheduler(Rules::new(&config, &facts, &limits), &facts).unwrap();
            let (mut stepper, mut guides) = (Stepper::new(ahead), Guides::new(None, facts.vocab));
            let mut executor = ToyExecutor::new(50, limits, Faults::default());
            let (mut coming, mut admitted) = (0..2, Vec::new());
            loop {
                // The last is admitted while a step is computed, and has one token: nothing is planned behind it.
                if let Some(id) = coming.next() {
                    let (sampling, max_tokens) = (SamplingParams::greedy(), 2 - id);
                    let job = Job::of(&Caller::local(), JobId(id.into()), vec![id + 1; 20]);
                    scheduler.submit(Work::new(Job { sampling, max_tokens, ..job }));
                }
                if !scheduler.has_work() && !stepper.in_flight() {
                    break;
                }
                let announced = RefCell::new(Vec::new());
                let announce = |jobs: Vec<JobId>| announced.borrow_mut().extend(jobs);
                let report = stepper.step(&mut scheduler, &mut guides, &mut executor, &announce).unwrap();
                let announced = announced.into_inner();
                let is_told = report.admitted.iter().all(|id| announced.contains(id));
                assert!(is_told, "{:?} of {announced:?}, ahead: {ahead}", report.admitted);
                admitted.extend(report.admitted);
            }
            assert_eq!(admitted, [JobId(0), JobId(1)]);
        }
    }
}
