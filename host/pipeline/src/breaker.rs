//! Takes a plugin that keeps failing out of the path for a while: its stage then fails at once, as `on_error` says,
//! and nobody waits for another deadline. Each tenant has its own count, so that nobody's requests can take a plugin
//! away from others, and a request counts once, however many windows and choices it has, so that no one of them takes it away from the
//! next.
//!
//! States of one tenant: closed (calls go on), open (until a moment), half-open (one call is let through; it decides, or
//! says nothing of the plugin, or is cut off, and the next one decides). Invariant: what is open is changed by its trial alone, of
//! which there is one at a time; calls that were let through before it opened say nothing of that.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_types::{RequestId, TenantId};

/// When a plugin is taken out, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// So many failures open it; 0 for never.
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
    /// The call that decides is under way.
    on_trial: bool,
}

/// Lanes are looked through no more often for tenants that have not called again.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It is made.
    Usual,
    /// It is made, and the others wait for what it says.
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

    /// Whether a call may be made. After the pause one call goes through, and the others wait for what it says.
    fn admits(&self, tenant: &TenantId, now: Instant) -> Admission {
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
        if now < open.until || open.on_trial {
            return Admission::Refused;
        }
        open.on_trial = true;
        Admission::Trial
    }

    /// Begins a call of a request; `None` where none may be made.
    pub(crate) fn begin<'b>(
        &'b self,
        tenant: &'b TenantId,
        request: &'b RequestId,
        now: Instant,
    ) -> Option<Attempt<'b>> {
        let admission = self.admits(tenant, now);
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
            open.on_trial = false;
        }
    }

    /// Only its trial closes what is open: another call was let through before that, and says nothing of what came since.
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

    /// While it is open only its trial opens it again: another call was let through before that.
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
            lane.open = Some(Open { until: now + self.config.pause, on_trial: false });
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
            Some(open) => !open.on_trial && now.saturating_duration_since(open.until) > within,
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
mod tests {
    use super::Admission::{Refused, Trial, Usual};
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn breaker() -> (Breaker, TenantId, Instant) {
        let config = BreakerConfig { failures: 2, within: Duration::from_secs(10), pause: Duration::from_secs(5) };
        (Breaker::new(config), TenantId::new("a"), Instant::now())
    }

    /// Of a request of its own.
    fn note(breaker: &Breaker, tenant: &TenantId, admission: Admission, outcome: Outcome, now: Instant) -> bool {
        let attempt = Attempt { breaker, tenant, request: own(), admission, has_ended: false };
        attempt.end(outcome, now)
    }

    fn begin<'b>(breaker: &'b Breaker, tenant: &'b TenantId, now: Instant) -> Option<Attempt<'b>> {
        breaker.begin(tenant, own(), now)
    }

    fn own() -> &'static RequestId {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Box::leak(Box::new(RequestId::new(COUNT.fetch_add(1, Ordering::Relaxed).to_string())))
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_opens_after_failures_within_the_time_and_closes_after_a_call_that_is_fine() {
        let (breaker, a, now) = breaker();
        assert!(!note(&breaker, &a, Usual, Outcome::Failed, now));
        assert!(!note(&breaker, &a, Usual, Outcome::Failed, now + s(11)), "the first one is forgotten");
        assert!(note(&breaker, &a, Usual, Outcome::Failed, now + s(12)));
        assert_eq!(breaker.admits(&a, now + s(16)), Refused);
        assert_eq!(breaker.admits(&a, now + s(17)), Trial, "one call after the pause");
        assert_eq!(breaker.admits(&a, now + s(17)), Refused, "and only one");
        note(&breaker, &a, Trial, Outcome::Fine, now + s(18));
        assert_eq!([breaker.admits(&a, now + s(18)), breaker.admits(&a, now + s(18))], [Usual, Usual]);
        assert!(!breaker.is_troubled());
    }

    /// An answer has many windows, a request many answers.
    #[test]
    fn a_request_counts_once_however_often_it_meets_the_failure() {
        let (breaker, a, now) = breaker();
        // Clients name them, and may give all the same name.
        let [one, other] = ["app"; 2].map(RequestId::new);
        let fails = |request, at| breaker.begin(&a, request, at).unwrap().end(Outcome::Failed, at);
        assert!((0..5).all(|n| !fails(&one, now + s(n))));
        assert!(breaker.has_failures(&a));
        assert!(fails(&other, now + s(13)), "the last of the first one's is 9 s ago");
        assert_eq!(breaker.admits(&a, now + s(14)), Refused);
    }

    #[test]
    fn a_failure_of_the_call_after_the_pause_opens_it_again() {
        let (breaker, a, now) = breaker();
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        assert!(!note(&breaker, &a, Usual, Outcome::Failed, now), "it is left out already");
        assert_eq!(breaker.admits(&a, now + s(5)), Trial);
        assert!(note(&breaker, &a, Trial, Outcome::Failed, now + s(6)), "once more");
        assert_eq!(breaker.admits(&a, now + s(10)), Refused);
        assert_eq!(breaker.admits(&a, now + s(11)), Trial);
    }

    #[test]
    fn a_call_that_says_nothing_of_the_plugin_leaves_the_trial_to_the_next_one() {
        let (breaker, a, now) = breaker();
        note(&breaker, &a, Usual, Outcome::Failed, now);
        assert!(!note(&breaker, &a, Usual, Outcome::Unknown, now));
        assert!(note(&breaker, &a, Usual, Outcome::Failed, now), "it makes no failure good");
        note(&breaker, &a, Usual, Outcome::Unknown, now + s(1));
        assert_eq!(breaker.admits(&a, now + s(2)), Refused, "one that began before shortens no pause");
        assert_eq!(breaker.admits(&a, now + s(5)), Trial);
        note(&breaker, &a, Trial, Outcome::Unknown, now + s(6));
        assert_eq!([breaker.admits(&a, now + s(6)), breaker.admits(&a, now + s(6))], [Trial, Refused]);
        note(&breaker, &a, Trial, Outcome::Fine, now + s(7));
        assert_eq!(breaker.admits(&a, now + s(7)), Usual);
    }

    #[test]
    fn a_call_after_the_pause_that_is_cut_off_leaves_the_trial_to_the_next_one() {
        let config = BreakerConfig { failures: 1, pause: s(3600), ..BreakerConfig::default() };
        let (breaker, a, now) = (Breaker::new(config), TenantId::new("a"), Instant::now());
        assert!(begin(&breaker, &a, now).unwrap().end(Outcome::Failed, now));
        let over = now + s(3600);
        let trial = begin(&breaker, &a, over).unwrap();
        assert!(begin(&breaker, &a, over).is_none(), "the others wait for what it says");
        drop(trial);
        let next = begin(&breaker, &a, over).expect("it said nothing");
        assert!(begin(&breaker, &a, over).is_none(), "one at a time");
        next.end(Outcome::Fine, over);
        drop(begin(&breaker, &a, over).expect("it is closed"));
        assert!(begin(&breaker, &a, over).is_some());
    }

    #[test]
    fn a_usual_call_that_is_cut_off_shortens_no_pause() {
        let (breaker, a, now) = breaker();
        let cut_off = begin(&breaker, &a, now).unwrap();
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        drop(cut_off);
        assert!(begin(&breaker, &a, now + s(4)).is_none());
    }

    #[test]
    fn a_usual_call_that_ends_well_after_it_opened_closes_nothing() {
        let (breaker, a, now) = breaker();
        let [late, later] = [(); 2].map(|()| begin(&breaker, &a, now).unwrap());
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        late.end(Outcome::Fine, now + s(1));
        assert_eq!(breaker.admits(&a, now + s(4)), Refused);
        assert_eq!(breaker.admits(&a, now + s(5)), Trial);
        later.end(Outcome::Fine, now + s(6));
        assert_eq!(breaker.admits(&a, now + s(6)), Refused, "the trial decides");
        note(&breaker, &a, Trial, Outcome::Fine, now + s(7));
        assert_eq!(breaker.admits(&a, now + s(7)), Usual);
    }

    /// Others may be under way since before it opened.
    #[test]
    fn a_trial_that_takes_long_is_waited_for_and_it_alone_decides() {
        let (breaker, a, now) = breaker();
        let late = begin(&breaker, &a, now).unwrap();
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        assert_eq!([breaker.admits(&a, now + s(5)), breaker.admits(&a, now + s(5))], [Trial, Refused]);
        assert_eq!(breaker.admits(&a, now + s(60)), Refused, "it has not decided");
        assert!(!late.end(Outcome::Failed, now + s(60)), "it was let through before");
        assert_eq!(breaker.admits(&a, now + s(60)), Refused);
        note(&breaker, &a, Trial, Outcome::Fine, now + s(61));
        assert_eq!(breaker.admits(&a, now + s(61)), Usual);
    }

    #[test]
    fn a_usual_call_that_fails_after_it_opened_makes_no_pause_longer() {
        let (breaker, a, now) = breaker();
        let [late, later] = [(); 2].map(|()| begin(&breaker, &a, now).unwrap());
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        assert!(![late.end(Outcome::Failed, now + s(3)), later.end(Outcome::Failed, now + s(5))].contains(&true));
        assert_eq!(breaker.admits(&a, now + s(5)), Trial);
    }

    #[test]
    fn a_tenant_that_does_not_call_again_is_forgotten() {
        let (breaker, a, now) = breaker();
        let [b, c] = ["b", "c"].map(TenantId::new);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &b, Usual, Outcome::Failed, now);
        note(&breaker, &b, Usual, Outcome::Failed, now);
        assert_eq!([breaker.admits(&c, now + s(11)), breaker.admits(&b, now + s(4))], [Usual, Refused]);
        assert!(!breaker.has_failures(&a) && breaker.has_failures(&b));
        assert_eq!(breaker.admits(&c, now + s(16)), Usual);
        assert!(!breaker.is_troubled());
    }

    #[test]
    fn one_tenants_failures_are_its_own() {
        let (breaker, a, now) = breaker();
        note(&breaker, &a, Usual, Outcome::Failed, now);
        note(&breaker, &a, Usual, Outcome::Failed, now);
        assert_eq!(breaker.admits(&a, now), Refused);
        assert_eq!(breaker.admits(&TenantId::new("b"), now), Usual);
    }

    #[test]
    fn without_a_number_it_never_opens_and_knows_of_the_last_failure() {
        let breaker = Breaker::new(BreakerConfig { failures: 0, ..BreakerConfig::default() });
        let (a, now) = (TenantId::new("a"), Instant::now());
        for _ in 0..100 {
            assert!(!note(&breaker, &a, Usual, Outcome::Failed, now));
        }
        assert_eq!(breaker.admits(&a, now), Usual);
        assert!(breaker.has_failures(&a));
        assert_eq!(breaker.lock().of[&a].failures.len(), 1);
        note(&breaker, &a, Usual, Outcome::Fine, now + breaker.config.within + s(1));
        assert!(!breaker.has_failures(&a));
    }
}
