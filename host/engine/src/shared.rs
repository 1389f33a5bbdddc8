//! What the handle and the loop share: the desk of live jobs, figures, the phase, and the inbox.
//!
//! Invariant: a job is on the desk from its submission until its last event or its cancellation, and counts as
//! queued until it is first admitted. All limits on queues are kept here, under one lock that nobody holds for
//! longer than a step's events take to send. Who fills a queue is refused; others find their share ([`Places`]).

use crate::config::{EngineConfig, ModelFacts};
use crate::inbox::{Command, Inbox};
use crate::observe::Gauges;
use crate::scheduler::Event;
use crate::sequence::Work;
use crate::stats::{Counters, EndedJobs, EngineStats, Health, Phase, Snapshot};
use crate::step::StepReport;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_device::Limits;
use tidegate_fair::{Owner, Places};
use tidegate_types::{Fault, JobEvent, JobId, Reject};
use tokio::sync::{mpsc, watch};

/// A live job, as the handle's side knows it.
#[derive(Debug)]
struct Outlet {
    events: mpsc::Sender<JobEvent>,
    /// What it takes of the queue; `None` once admitted.
    queued: Option<Queued>,
}

#[derive(Debug)]
struct Queued {
    owner: Owner,
    num_tokens: usize,
}

#[derive(Debug)]
struct Desk {
    outlets: HashMap<JobId, Outlet>,
    queued_jobs: Places,
    queued_tokens: Places,
    busy_since: Instant,
    ended: EndedJobs,
}

#[derive(Debug)]
struct Progress {
    snapshot: Snapshot,
    /// Counters of loops that were lost, worker processes that is.
    before: Counters,
    tokens_per_second: f64,
    last_step: Instant,
}

/// Shared by handles, streams and the loop.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) facts: ModelFacts,
    /// Prompt and answer together, in tokens.
    pub(crate) context: usize,
    pub(crate) inbox: Inbox,
    pub(crate) next_id: AtomicU64,
    pub(crate) restarts: AtomicU64,
    phase: watch::Sender<Phase>,
    live: watch::Sender<usize>,
    desk: Mutex<Desk>,
    progress: Mutex<Progress>,
    gauges: Gauges,
}

impl Shared {
    pub(crate) fn new(config: EngineConfig, facts: ModelFacts, limits: &Limits) -> Self {
        let context = facts.context(limits);
        let now = Instant::now();
        let gauges = Gauges::new(&facts.name);
        let (queued_jobs, queued_tokens) = (Places::new(config.max_queued_jobs), Places::new(config.max_queued_tokens));
        let (outlets, ended) = (HashMap::new(), EndedJobs::default());
        let desk = Desk { outlets, queued_jobs, queued_tokens, busy_since: now, ended };
        let (snapshot, before) = (Snapshot::default(), Counters::default());
        Self {
            config,
            facts,
            context,
            inbox: Inbox::default(),
            next_id: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            phase: watch::Sender::new(Phase::Loading),
            live: watch::Sender::new(0),
            desk: Mutex::new(desk),
            progress: Mutex::new(Progress { snapshot, before, tokens_per_second: 0.0, last_step: now }),
            gauges,
        }
    }

    /// Puts a validated job on the desk and into the inbox, or says why not.
    pub(crate) fn accept(&self, work: Work) -> Result<mpsc::Receiver<JobEvent>, Reject> {
        let (id, queued) = (work.job.id, Queued { owner: work.owner(), num_tokens: work.num_tokens() });
        // All that can come: Started, each token or the vector, the end.
        let most_output = (work.job.max_tokens as usize).min(self.context.saturating_sub(work.job.prompt.len()));
        let (sender, receiver) = mpsc::channel(most_output.max(1) + 2);
        let mut desk = self.desk();
        self.refuse_if_closed()?;
        self.refuse_if_full(&desk, &queued)?;
        if desk.outlets.is_empty() {
            desk.busy_since = Instant::now();
        }
        if desk.outlets.contains_key(&id) {
            return Err(Reject::internal(Fault::Engine, format!("{id} was submitted twice")));
        }
        desk.queued_jobs.take(&queued.owner, 1);
        desk.queued_tokens.take(&queued.owner, queued.num_tokens);
        desk.outlets.insert(id, Outlet { events: sender, queued: Some(queued) });
        self.live.send_replace(desk.outlets.len());
        // Under the lock, so that a cancellation cannot overtake it.
        self.inbox.push(Command::Submit(work));
        Ok(receiver)
    }

    fn refuse_if_closed(&self) -> Result<(), Reject> {
        let phase = self.phase();
        if matches!(phase, Phase::Serving | Phase::Loading) {
            return Ok(());
        }
        let message = format!("the engine of model `{}` {}", self.facts.name, phase.in_words());
        Err(Reject::unavailable(Fault::Engine, message, 5))
    }

    fn refuse_if_full(&self, desk: &Desk, job: &Queued) -> Result<(), Reject> {
        if desk.queued_jobs.has_room(&job.owner, 1) && desk.queued_tokens.has_room(&job.owner, job.num_tokens) {
            return Ok(());
        }
        let (max_jobs, max_tokens) = (self.config.max_queued_jobs, self.config.max_queued_tokens);
        let (jobs, tokens) = (desk.queued_jobs.held(), desk.queued_tokens.held());
        let message = format!(
            "the queue of model `{}` is full: {jobs} requests with {tokens} tokens wait; the limits are {max_jobs} and {max_tokens}",
            self.facts.name
        );
        let rate = self.progress().tokens_per_second.max(1.0);
        let seconds = (tokens as f64 / rate).clamp(1.0, 60.0);
        Err(Reject::unavailable(Fault::Engine, message, seconds as u32).code("engine_queue_full"))
    }

    /// The reader left: forgets the job here and in the loop.
    pub(crate) fn cancel(&self, id: JobId) {
        let mut desk = self.desk();
        if desk.close(id).is_some() {
            desk.ended.cancelled += 1;
            self.gauges.set_ended(&desk.ended);
            self.live.send_replace(desk.outlets.len());
            self.inbox.cancel(id);
        }
    }

    /// Hands a step's events to their readers. A reader that sees an event sees its figures too.
    pub(crate) fn send_events(&self, report: StepReport) {
        let busy_since = self.desk().busy_since;
        self.progress().advance(report.snapshot, busy_since);
        self.gauges.masked(report.masking);
        let mut desk = self.desk();
        for id in report.admitted {
            desk.leave_queue(id);
        }
        for (id, event) in report.events {
            desk.send(id, event);
        }
        self.live.send_replace(desk.outlets.len());
        drop(desk);
        self.gauges.set(&self.stats());
    }

    /// Hands out events that no step made.
    pub(crate) fn send_last_events(&self, events: Vec<Event>) {
        let mut desk = self.desk();
        for (id, event) in events {
            desk.send(id, event);
        }
        self.gauges.set_ended(&desk.ended);
        self.live.send_replace(desk.outlets.len());
    }

    /// The loop is gone and another will count from 0.
    pub(crate) fn forget_loop(&self) {
        let mut progress = self.progress();
        let counters = std::mem::take(&mut progress.snapshot).counters;
        progress.before += counters;
    }

    /// Ends every live job with this.
    pub(crate) fn fail_all(&self, reject: &Reject) {
        let mut desk = self.desk();
        let ids: Vec<_> = desk.outlets.keys().copied().collect();
        for id in ids {
            desk.send(id, JobEvent::Failed(reject.clone()));
        }
        self.gauges.set_ended(&desk.ended);
        self.live.send_replace(0);
    }

    /// Publishes figures without counting it as progress, unless jobs wait for their grammars: no step can be done then.
    pub(crate) fn publish_idle(&self, snapshot: Snapshot) {
        let mut progress = self.progress();
        progress.snapshot = snapshot;
        if snapshot.compiling > 0 {
            progress.last_step = Instant::now();
        }
        drop(progress);
        self.gauges.set(&self.stats());
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let desk = self.desk();
        let progress = self.progress();
        let mut snapshot = progress.snapshot;
        snapshot.counters += progress.before;
        let last = progress.last_step.max(desk.busy_since);
        EngineStats {
            snapshot,
            live_jobs: desk.outlets.len(),
            ended: desk.ended,
            queued_jobs: desk.queued_jobs.held(),
            queued_tokens: desk.queued_tokens.held(),
            tokens_per_second: progress.tokens_per_second,
            restarts: self.restarts.load(Ordering::Relaxed),
            last_step_age: (!desk.outlets.is_empty()).then(|| last.elapsed()),
        }
    }

    pub(crate) fn health(&self) -> Health {
        let name = &self.facts.name;
        let stalled = self.stats().last_step_age.filter(|age| *age > self.config.stall_after());
        match (*self.phase.borrow(), stalled) {
            (Phase::Serving, None) => Health::Ready,
            (Phase::Serving, Some(age)) => Health::NotReady(format!(
                "the engine of model `{name}` has done no step for {:.0} s",
                age.as_secs_f64()
            )),
            (phase, _) => Health::NotReady(format!("the engine of model `{name}` {}", phase.in_words())),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Moves to another phase; draining and stopped are not left again.
    pub(crate) fn enter(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let allowed = match *phase {
                Phase::Stopped => false,
                Phase::Draining => next == Phase::Stopped,
                _ => *phase != next,
            };
            if allowed {
                *phase = next;
            }
            allowed
        });
    }

    /// Waits until no job is live, or the deadline; returns how many still are.
    pub(crate) async fn wait_idle(&self, deadline: Duration) -> usize {
        let mut live = self.live.subscribe();
        let idle = tokio::time::timeout(deadline, live.wait_for(|live| *live == 0)).await;
        if idle.is_ok() { 0 } else { *self.live.borrow() }
    }

    pub(crate) async fn wait_stopped(&self) {
        let mut phase = self.phase.subscribe();
        // Fails only when the sender is gone, and `self` holds it.
        let _ = phase.wait_for(|phase| *phase == Phase::Stopped).await;
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    fn send(&mut self, id: JobId, event: JobEvent) {
        let Some(outlet) = self.outlets.get(&id) else { return };
        let (finished, failed) = (matches!(event, JobEvent::Finished { .. }), matches!(event, JobEvent::Failed(_)));
        if let Err(mpsc::error::TrySendError::Full(event)) = outlet.events.try_send(event) {
            // The channel holds all events a job can have; dropping it makes the stream end with `Failed`.
            tracing::error!(%id, ?event, "a job has more events than it can have");
            self.close(id);
            self.ended.failed += 1;
        } else if finished || failed {
            self.close(id);
            self.ended.finished += u64::from(finished);
            self.ended.failed += u64::from(failed);
        }
    }

    fn close(&mut self, id: JobId) -> Option<Outlet> {
        self.leave_queue(id);
        self.outlets.remove(&id)
    }

    fn leave_queue(&mut self, id: JobId) {
        if let Some(left) = self.outlets.get_mut(&id).and_then(|outlet| outlet.queued.take()) {
            self.queued_jobs.give_back(&left.owner, 1);
            self.queued_tokens.give_back(&left.owner, left.num_tokens);
        }
    }
}

impl Progress {
    /// Smooths over about ten steps.
    const SMOOTHING: f64 = 0.1;

    fn advance(&mut self, snapshot: Snapshot, busy_since: Instant) {
        let computed = snapshot.counters.computed_tokens.saturating_sub(self.snapshot.counters.computed_tokens);
        let rate = computed as f64 / self.last_step.max(busy_since).elapsed().as_secs_f64().max(1e-6);
        if self.tokens_per_second == 0.0 {
            self.tokens_per_second = rate;
        }
        self.tokens_per_second += Self::SMOOTHING * (rate - self.tokens_per_second);
        (self.snapshot, self.last_step) = (snapshot, Instant::now());
    }
}
