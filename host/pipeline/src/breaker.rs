//! Takes a plugin that keeps failing out of the path for a while: its stage then fails at once, as `on_error` says,
//! and nobody waits for another deadline. Each tenant has its own count, so that nobody's requests can take a plugin
//! away from others, and a request counts once, however many windows and choices it has, so that no one of them takes it away from the
//! next.
//!
//! States of one tenant: closed (calls go on), open (until a moment), half-open (one call is let through; it decides, or
//! says nothing of the plugin, or is cut off, and the next one decides). What else the trial's request asks meanwhile, as about its
//! other prompts, goes beside it: else the request would fail for its own trial. Invariant: what is open is changed by its trial
//! alone, of which there is one at a time; calls that were let through before it opened, or beside its trial, say nothing of that.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_types::{RequestId, TenantId};

/// When a plugin is taken out, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// So many requests of one tenant in which it fails open it; 0 for never.
    pub failures: usize,
    /// ... within this time.
    pub within: Duration,
    /// How long it stays open.
    pub pause: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, within: Duration::from_secs(10), pause: Duration::from_secs(10) }
    }
}

/// A call under way, of one tenant. Dropped without [`Attempt::end`] it was cut off, and says nothing of the plugin.
#[must_use]
pub(crate) struct Attempt<'b> {
    breaker: &'b Breaker,
    tenant: &'b TenantId,
    request: &'b RequestId,
    admission: Admission,
    has_ended: bool,
}

/// Counts the failures of one plugin.
#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    /// Whether some tenant has failures: without, a call costs one load.
    troubled: AtomicBool,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    of: HashMap<TenantId, Lane>,
    /// When those were last forgotten that have come to nothing.
    tidied: Option<Instant>,
}

#[derive(Debug, Default)]
struct Lane {
    failures: VecDeque<Failure>,
    open: Option<Open>,
}

/// Of a request, the last.
#[derive(Debug)]
struct Failure {
    request: RequestId,
    at: Instant,
}

#[derive(Debug)]
struct Open {
    until: Instant,
    /// Whose call decides, while that is under way.
    trial: Option<RequestId>,
}

/// Lanes are looked through no more often for tenants that have not called again.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It is made.
    Usual,
    /// It is made, and those of other requests wait for what it says.
    Trial,
    /// It is not made.
    Refused,
}

/// What a call turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The plugin did its work, or had a reason not to that is the caller's.
    Fine,
    /// The size of the request, or other work, kept the plugin from it: nobody knows whether it would have.
    Unknown,
    /// The plugin, or what it depends on, is out of order.
    Failed,
}

impl Breaker {
    /// A closed one.
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, troubled: AtomicBool::new(false), lanes: Mutex::default() }
    }

    /// Whether a tenant's calls have failed of late.
    pub(crate) fn has_failures(&self, tenant: &TenantId) -> bool {
        self.is_troubled() && self.lock().of.contains_key(tenant)
    }

    /// Whether so many failures would open it.
    pub(crate) fn is_enough(&self, num_failures: usize) -> bool {
        self.config.failures > 0 && num_failures >= self.config.failures
    }

    fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Whether a call of a request may be made. After the pause one call goes through, and those of other requests wait for what it
    /// says.
    fn admits(&self, tenant: &TenantId, request: &RequestId, now: Instant) -> Admission {
        if !self.is_troubled() {
            return Admission::Usual;
        }
        let mut lanes = self.lock();
        if lanes.tidied.is_none_or(|tidied| now.saturating_duration_since(tidied) >= TIDY_EVERY) {
            lanes.tidied = Some(now);
            lanes.of.retain(|_, lane| !lane.is_over(now, self.config.within));
            self.troubled.store(!lanes.of.is_empty(), Ordering::Relaxed);
        }
        let Some(open) = lanes.of.get_mut(tenant).and_then(|lane| lane.open.as_mut()) else { return Admission::Usual };
        if let Some(trial) = &open.trial {
            return if trial.is(request) { Admission::Usual } else { Admission::Refused };
        }
        if now < open.until {
            return Admission::Refused;
        }
        open.trial = Some(request.clone());
        Admission::Trial
    }

    /// Begins a call of a request; `None` where none may be made.
    pub(crate) fn begin<'b>(
        &'b self,
        tenant: &'b TenantId,
        request: &'b RequestId,
        now: Instant,
    ) -> Option<Attempt<'b>> {
        let admission = self.admits(tenant, request, now);
        (admission != Admission::Refused).then(|| Attempt {
            breaker: self,
            tenant,
            request,
            admission,
            has_ended: false,
        })
    }

    /// Notes the outcome of a call that was admitted so; true when it opened the breaker.
    fn note(&self, of: &Attempt<'_>, outcome: Outcome, now: Instant) -> bool {
        let Attempt { tenant, admission, request, .. } = *of;
        match outcome {
            Outcome::Unknown => {
                if admission == Admission::Trial {
                    self.try_again(tenant);
                }
                false
            }
            Outcome::Fine if !self.is_troubled() => false,
            Outcome::Fine => {
                self.recover(tenant, admission, now);
                false
            }
            Outcome::Failed => self.fail(tenant, request, admission, now),
        }
    }

    /// The next call is a trial.
    fn try_again(&self, tenant: &TenantId) {
        let mut lanes = self.lock();
        if let Some(open) = lanes.of.get_mut(tenant).and_then(|lane| lane.open.as_mut()) {
            open.trial = None;
        }
    }

    /// Only its trial closes what is open: another call was let through before that, and says nothing of what came since, or beside
    /// it.
    fn recover(&self, tenant: &TenantId, admission: Admission, now: Instant) {
        let mut lanes = self.lock();
        let forget = lanes.of.get_mut(tenant).is_some_and(|lane| match &lane.open {
            Some(_) => admission == Admission::Trial,
            None => lane.forget_before(now, self.config.within),
        });
        if forget {
            lanes.of.remove(tenant);
        }
        self.troubled.store(!lanes.of.is_empty(), Ordering::Relaxed);
    }

    /// While it is open only its trial opens it again: another call was let through before that, or beside it.
    fn fail(&self, tenant: &TenantId, request: &RequestId, admission: Admission, now: Instant) -> bool {
        let mut lanes = self.lock();
        self.troubled.store(true, Ordering::Relaxed);
        let lane = lanes.of.entry(tenant.clone()).or_default();
        let opens = match &lane.open {
            Some(_) => admission == Admission::Trial,
            None => lane.opens_with_failure(request, now, &self.config),
        };
        if opens {
            lane.failures.clear();
            lane.open = Some(Open { until: now + self.config.pause, trial: None });
        }
        opens
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt<'_> {
    /// Notes the outcome; true when it opened the breaker.
    pub(crate) fn end(mut self, outcome: Outcome, now: Instant) -> bool {
        self.has_ended = true;
        self.breaker.note(&self, outcome, now)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // Only a trial is waited for.
        if !self.has_ended && self.admission == Admission::Trial {
            self.breaker.note(self, Outcome::Unknown, Instant::now());
        }
    }
}

impl Lane {
    /// Whether its tenant has not called for so long that it begins anew.
    fn is_over(&mut self, now: Instant, within: Duration) -> bool {
        match &self.open {
            Some(open) => open.trial.is_none() && now.saturating_duration_since(open.until) > within,
            None => self.forget_before(now, within),
        }
    }

    /// Notes a failure; true where there are as many now as open it.
    fn opens_with_failure(&mut self, request: &RequestId, now: Instant, config: &BreakerConfig) -> bool {
        self.forget_before(now, config.within);
        let is_never_opened = config.failures == 0;
        // Where it is never opened, that it failed of late is known by the last time.
        self.failures.retain(|failure| !is_never_opened && !failure.request.is(request));
        self.failures.push_back(Failure { request: request.clone(), at: now });
        !is_never_opened && self.failures.len() >= config.failures
    }

    /// Forgets old failures; true when none is left.
    fn forget_before(&mut self, now: Instant, within: Duration) -> bool {
        while self.failures.front().is_some_and(|failure| now.saturating_duration_since(failure.at) > within) {
            self.failures.pop_front();
        }
        self.failures.is_empty()
    }
}

#[cfg(test)]
mod tests;
