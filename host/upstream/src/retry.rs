//! When a request is sent again, and when not.
//!
//! Only what failed before anything of its answer had come; and of that, only what shows that no answer was made:
//!
//! | failure | sent again |
//! |---|---|
//! | no connection | yes: the server has not seen it. At a server that the request has not been to, it is no repetition at all |
//! | 408, 429, 503, 529 | yes: the server says that it gives no answer |
//! | 502, 504, the connection broke | where a stream was asked for: of an answer nothing had come, and none goes on behind it |
//! | silence for too long | as before, and only at another server: this one may be slow, and twice the work will not help it |
//! | 401, 404 and 405 of a chat, redirects | only at another server: they are about how this one is set up |
//! | other statuses, nonsense, a document that is cut | no: there was an answer, or there will not be one |
//!
//! And never without room in the budget, past the deadline, or when the caller is gone: dropping the future ends it all.

use crate::attempt::Attempt;
use crate::chance;
use crate::failure::{Failed, Trouble};
use crate::figures;
use crate::replicas::{Replicas, Tried};
use crate::upstream::FAILURE_TIMEOUT;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tidegate_types::{Fault, Reject};
use tokio::time::{Instant, sleep, timeout_at};

/// How often, how fast and for how long requests of one model are sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// How often one request is.
    pub retries: u32,
    /// How many of all requests of the last ten seconds are.
    pub budget_percent: u32,
    /// ... and how many besides, however few requests there were.
    pub budget_min: u32,
    /// The pause before the first retry; twice as long before each further one. A random part, up to half, is left out.
    pub backoff: Duration,
    /// The longest pause, and the longest `Retry-After` that is waited for.
    pub max_backoff: Duration,
    /// How long a server may take to begin its answer.
    pub start_timeout: Duration,
    /// How long it may take for an answer in one piece, of which nothing comes before all of it is made.
    pub whole_timeout: Duration,
    /// How long it may be silent once its answer has begun.
    pub idle_timeout: Duration,
    /// How long all attempts and pauses together may take until an answer has begun; for answers in one piece at least as long as
    /// one of those may take.
    pub deadline: Duration,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            retries: 2,
            budget_percent: 10,
            budget_min: 10,
            backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            start_timeout: Duration::from_secs(120),
            // A little less than OpenAI's clients wait, which ask again by themselves unless they are told not to.
            whole_timeout: Duration::from_secs(590),
            // As for the start: a server that tells a call once it is whole says nothing while its model writes that.
            idle_timeout: Duration::from_secs(120),
            deadline: Duration::from_secs(300),
        }
    }
}

impl RetryConfig {
    /// How long a server may take until something of an answer comes.
    pub(crate) fn longest_start(&self, asked: Asked) -> Duration {
        match asked {
            Asked::Whole => self.whole_timeout,
            Asked::Stream | Asked::Texts => self.start_timeout,
        }
    }

    /// How long all attempts may take.
    fn longest(&self, asked: Asked) -> Duration {
        self.deadline.max(self.longest_start(asked))
    }

    /// The pause before the retry that follows `retries` others, less what `chance` (from 0 to 1) takes of it.
    fn pause(&self, retries: u32, chance: f64) -> Duration {
        let doubled = self.backoff.saturating_mul(2_u32.saturating_pow(retries));
        doubled.min(self.max_backoff).mul_f64(1.0 - chance / 2.0)
    }

    /// The same where the server said when to come back; `None` where that is too long. Nobody comes before that.
    fn pause_after(&self, retries: u32, retry_after_s: Option<u32>, chance: f64) -> Option<Duration> {
        let pause = self.pause(retries, chance);
        match retry_after_s.map(|seconds| Duration::from_secs(seconds.into())) {
            Some(asked) if asked > self.max_backoff => None,
            Some(asked) => Some(asked + pause),
            None => Some(pause),
        }
    }
}

/// How often a request was sent to upstreams, and what the last of them had of it. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    count: Arc<AtomicU32>,
    is_with_server: Arc<AtomicBool>,
}

impl Attempts {
    /// So far; 0 for a request that no upstream has seen.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Those of another question of the same request: counted together, and billed apart.
    #[must_use]
    pub fn of_another(&self) -> Self {
        Self { count: Arc::clone(&self.count), is_with_server: Arc::default() }
    }

    /// Whether a server has the question, or had it and did not refuse it. It may bill that, whether or not somebody waits for
    /// its answer or can read it.
    pub fn may_be_billed(&self) -> bool {
        self.is_with_server.load(Ordering::Relaxed)
    }

    /// To be told whether the next server has the question, or wants nothing of it; what others had of it stays with them.
    pub(crate) fn noting(&self) -> impl Fn(bool) + Sync {
        let had = self.may_be_billed();
        move |has| self.is_with_server.store(had || has, Ordering::Relaxed)
    }
}

/// What a request is for, which decides what silence and a broken connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A stream: it shows by what has not come that it was not made.
    Stream,
    /// An answer in one piece, which is made before its head comes, however long that takes.
    Whole,
    /// Vectors or labels: in one piece too, but another one does no harm.
    Texts,
}

/// One request on its way to an answer, over however many attempts.
pub(crate) struct Run {
    replicas: Replicas,
    asked: Asked,
    max_retries: u32,
    retries: u32,
    tried: Tried,
    /// Servers that said or showed that they are not for this request: it does not come back to them.
    barred: Tried,
    /// How long all attempts may take together, and when that is over.
    limit: Duration,
    deadline: Instant,
    /// Of this run; `attempts` counts all of the request's.
    sent: u32,
    attempts: Attempts,
    last: Option<Failed>,
    /// Whether a server has failed otherwise than by a refusal, so that it may answer later.
    may_pass: bool,
    /// When the first of the servers that were asked takes a request again, as far as they said so.
    soonest_s: Option<u32>,
}

impl Run {
    pub(crate) fn new(replicas: &Replicas, asked: Asked, attempts: Attempts) -> Self {
        let retry = &replicas.0.retry;
        let limit = retry.longest(asked);
        Self {
            asked,
            max_retries: retry.retries,
            retries: 0,
            tried: Tried::default(),
            barred: Tried::default(),
            limit,
            deadline: Instant::now() + limit,
            sent: 0,
            attempts,
            last: None,
            may_pass: false,
            soonest_s: None,
            replicas: replicas.clone(),
        }
    }

    /// What is counted, and what servers have.
    pub(crate) fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Leaves retries to somebody else. A server that was not reached is still no reason to give up.
    pub(crate) fn never_retry(&mut self) {
        self.max_retries = 0;
    }

    /// The next attempt, after a pause where there was one before; the failure of that where there is to be no other.
    pub(crate) async fn next(&mut self) -> Result<Attempt, Reject> {
        let failed = self.last.take();
        let attempt = match &failed {
            None => self.replicas.choose(Tried::default(), self.asked),
            Some(last) => self.again(last).await,
        };
        let Some(attempt) = attempt else { return Err(self.give_up(failed)) };
        // One that no server was asked for earns no retries.
        if failed.is_none() {
            self.replicas.count_request();
        }
        self.tried.add(attempt.index());
        self.sent += 1;
        self.attempts.count.fetch_add(1, Ordering::Relaxed);
        Ok(attempt)
    }

    /// Notes how an attempt failed, for [`Self::next`] to decide about.
    pub(crate) fn failed(&mut self, attempt: Attempt, failed: Failed) {
        // Its message is for the caller: it may have the upstream's words, and so the caller's.
        let (kind, cause) = (failed.reject.kind, failed.reject.cause.as_deref());
        tracing::debug!(upstream = attempt.upstream().origin(), trouble = ?failed.trouble, ?kind, cause, "failed");
        if failed.trouble.is_for_elsewhere() {
            self.barred.add(attempt.index());
        }
        attempt.fail(failed.trouble);
        self.may_pass |= failed.trouble != Trouble::Refused;
        self.soonest_s = self.soonest_s.into_iter().chain(failed.reject.retry_after_s).min();
        self.last = Some(failed);
    }

    /// Work of an attempt, within the time that all of them have together. Where it ends by itself before that, since no
    /// bound of its own is further than `longest`, it needs no timer.
    pub(crate) async fn bounded<T>(
        &self,
        attempt: &Attempt,
        longest: Option<Duration>,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let work = pin!(work);
        if longest.is_some_and(|longest| self.deadline.saturating_duration_since(Instant::now()) > longest) {
            return work.await;
        }
        let late = |_| Err(attempt.upstream().failures.late(self.limit));
        timeout_at(self.deadline, work).await.unwrap_or_else(late)
    }

    /// For how long an answer may take to begin, or to be refused.
    pub(crate) fn longest_start(&self) -> Duration {
        self.replicas.0.retry.longest_start(self.asked) + FAILURE_TIMEOUT
    }

    fn give_up(&self, failed: Option<Failed>) -> Reject {
        let Some(failed) = failed else { return self.replicas.left_alone() };
        match failed.trouble {
            // Whenever it comes again, it is refused again, unless it comes to a server that only could not answer now. Clients
            // come by themselves where it is not theirs to mend.
            Trouble::Refused => {
                let reject = failed.after(self.sent);
                let is_final = match reject.fault {
                    Fault::Client => false,
                    Fault::Operator => !self.may_pass,
                    // The answer was made, and each that comes behind it would be.
                    _ => true,
                };
                Reject { is_final, ..reject }
            }
            // Whoever runs the server may bill the answer that came too late, and would bill each that comes behind it.
            _ if self.asked == Asked::Whole && failed.is_late() => Reject { is_final: true, ..failed.after(self.sent) },
            _ => Reject { retry_after_s: self.soonest_s, ..failed.after(self.sent) },
        }
    }

    /// Another attempt, once there may be one: at a server that the request has not been to, or else, behind a pause, at any
    /// that is not barred.
    async fn again(&mut self, failed: &Failed) -> Option<Attempt> {
        if failed.trouble == Trouble::Unreachable
            && Instant::now() < self.deadline
            && let Some(attempt) = self.replicas.choose(self.tried, self.asked)
        {
            return Some(attempt);
        }
        loop {
            let elsewhere = self.replicas.has_other(self.tried);
            let pause = self.permit(failed, elsewhere)?;
            sleep(pause).await;
            // What was to go elsewhere at once is not for a server that has failed at it. Where others were faster and
            // no other server is open any more, it is for a pause to decide, while there are retries.
            let not = if elsewhere { self.tried } else { self.barred };
            if let Some(attempt) = self.replicas.choose(not, self.asked) {
                return Some(attempt);
            }
        }
    }

    /// Counts another retry and gives the pause before it, where the request is to be sent again.
    fn permit(&mut self, failed: &Failed, elsewhere: bool) -> Option<Duration> {
        let repeatable = self.asked != Asked::Whole;
        let may = match failed.trouble {
            Trouble::Unreachable | Trouble::Busy | Trouble::Overloaded => true,
            Trouble::Gateway | Trouble::Broken => repeatable,
            Trouble::Silent => repeatable && elsewhere,
            Trouble::Misconfigured => elsewhere,
            Trouble::Late | Trouble::Failed | Trouble::Refused => false,
        };
        if !may || self.retries >= self.max_retries || !(elsewhere || self.replicas.has_other(self.barred)) {
            return None;
        }
        let retry = &self.replicas.0.retry;
        let pause = match elsewhere {
            true => Duration::ZERO,
            false => retry.pause_after(self.retries, failed.reject.retry_after_s, chance::fraction())?,
        };
        if Instant::now() + pause >= self.deadline {
            return None;
        }
        if !self.replicas.count_retry() {
            figures::budget_exhausted(&self.replicas.0.model);
            return None;
        }
        figures::retried(&self.replicas.0.model);
        self.retries += 1;
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_spread() {
        let retry = RetryConfig::default();
        let ms = |retries, chance| retry.pause(retries, chance).as_millis();
        assert_eq!([ms(0, 0.0), ms(1, 0.0), ms(2, 0.0), ms(9, 0.0)], [100, 200, 400, 2000]);
        assert_eq!([ms(0, 1.0), ms(1, 0.5), ms(u32::MAX, 1.0)], [50, 150, 1000]);
    }

    #[test]
    fn nobody_comes_before_they_were_asked_to_and_nobody_waits_too_long() {
        let retry = RetryConfig::default();
        assert_eq!(retry.pause_after(0, Some(1), 0.0), Some(Duration::from_millis(1100)));
        assert_eq!(retry.pause_after(0, Some(2), 1.0), Some(Duration::from_millis(2050)));
        assert_eq!(retry.pause_after(0, Some(3), 0.0), None);
        assert_eq!(retry.pause_after(0, None, 0.0), Some(Duration::from_millis(100)));
    }
}
