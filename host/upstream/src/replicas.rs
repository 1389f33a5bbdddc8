//! The servers of one model. A request goes to the one of two, taken by chance, that has less to do; a server that keeps
//! failing is left alone for a while (`breaker.rs`). What failed before anything of an answer may be sent again
//! (`retry.rs`), there or elsewhere, within the budget of the model (`budget.rs`).

use crate::answer::{Answer, Asking, Sending};
use crate::attempt::Attempt;
use crate::breaker::{Breaker, BreakerConfig, Claim};
use crate::budget::RetryBudget;
use crate::chance;
use crate::config::{UpstreamConfig, UpstreamError};
use crate::figures::ServerFigures;
use crate::retry::{Asked, Attempts, RetryConfig, Run};
use crate::upstream::Upstream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_types::{Chat, EmbedRequest, Fault, Reject};

/// Servers of one model.
pub const MAX_SERVERS: usize = 64;

/// One model at one or several servers that answer alike. Clones are the same one.
#[derive(Clone)]
pub struct Replicas(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) model: String,
    pub(crate) retry: RetryConfig,
    pub(crate) servers: Vec<Server>,
    budget: Mutex<RetryBudget>,
    begun: Instant,
}

pub(crate) struct Server {
    pub(crate) upstream: Upstream,
    pub(crate) counts: Counts,
    breaker: Mutex<Breaker>,
    /// Whether the breaker has failures to remember; without, a request costs one load.
    troubled: AtomicBool,
    pub(crate) figures: ServerFigures,
}

/// What each request writes, on a line of the cache for itself: what is beside it is only read.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    pub(crate) outstanding: AtomicUsize,
    /// Signs of life so far: events and ends of answers, and failures that it told of.
    pub(crate) heard: AtomicU64,
}

/// Servers by their index: those that a request has been to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried(u64);

impl Tried {
    pub(crate) fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }
}

impl Replicas {
    /// `model`, as callers name it, at `servers`, of which there is one at least and [`MAX_SERVERS`] at most.
    pub fn new(
        model: &str,
        servers: Vec<UpstreamConfig>,
        retry: RetryConfig,
        breaker: &BreakerConfig,
    ) -> Result<Self, UpstreamError> {
        if servers.is_empty() || servers.len() > MAX_SERVERS {
            return Err(UpstreamError::Servers { found: servers.len() });
        }
        let server = |mut config: UpstreamConfig| {
            config.connector.first_byte_timeout = retry.start_timeout;
            config.connector.idle_timeout = retry.idle_timeout;
            config.whole_timeout = retry.whole_timeout;
            let upstream = Upstream::new(config)?;
            let figures = ServerFigures::new(model, upstream.origin());
            let breaker = Mutex::new(Breaker::new(breaker.clone()));
            Ok(Server { upstream, counts: Counts::default(), breaker, troubled: AtomicBool::new(false), figures })
        };
        let servers = servers.into_iter().map(server).collect::<Result<_, UpstreamError>>()?;
        let budget = Mutex::new(RetryBudget::new(retry.budget_percent, retry.budget_min));
        let model = model.to_owned();
        Ok(Self(Arc::new(Shared { model, retry, servers, budget, begun: Instant::now() })))
    }

    /// Asks for an answer, until a server has begun one. What fails between that and the first event is asked again
    /// while the answer is read. `attempts` counts how often it was sent.
    pub async fn generate(&self, chat: Arc<Chat>, sending: Sending, attempts: &Attempts) -> Result<Answer, Reject> {
        let asked = if chat.stream { Asked::Stream } else { Asked::Whole };
        let mut run = Run::new(self, asked, attempts.clone());
        if sending.hops > 1 {
            // Each gateway of a chain that sent everything again would multiply with the others: the first one does.
            run.never_retry();
        }
        Asking { run, chat, sending }.begin().await
    }

    /// The vectors that a caller asks for, and how many tokens its texts had, where the server says so.
    pub async fn vectors(
        &self,
        asked: &EmbedRequest,
        sending: &Sending,
        attempts: &Attempts,
    ) -> Result<(Vec<Vec<f32>>, Option<u64>), Reject> {
        let mut run = self.run_about_texts(sending, attempts);
        loop {
            let attempt = run.next().await?;
            let upstream = sending.to(attempt.upstream()).into_owned();
            let vectors = upstream.vectors(asked, sending, attempts);
            match run.bounded(&attempt, None, vectors).await {
                Ok(vectors) => return Ok(attempt.answered(vectors)),
                Err(failed) => run.failed(attempt, failed),
            }
        }
    }

    /// The labels of each text with their scores, highest first, and how many tokens the texts had, where the server says so.
    pub async fn classify(
        &self,
        asked: &EmbedRequest,
        sending: &Sending,
        attempts: &Attempts,
    ) -> Result<(Vec<Vec<(String, f32)>>, Option<u64>), Reject> {
        let mut run = self.run_about_texts(sending, attempts);
        loop {
            let attempt = run.next().await?;
            let upstream = sending.to(attempt.upstream()).into_owned();
            let labels = upstream.labels(asked, sending, attempts);
            match run.bounded(&attempt, None, labels).await {
                Ok(labels) => return Ok(attempt.answered(labels)),
                Err(failed) => run.failed(attempt, failed),
            }
        }
    }

    fn run_about_texts(&self, sending: &Sending, attempts: &Attempts) -> Run {
        let mut run = Run::new(self, Asked::Texts, attempts.clone());
        if sending.hops > 1 {
            // As in `generate`.
            run.never_retry();
        }
        run
    }

    /// Whether some server is not left alone.
    pub fn is_available(&self) -> bool {
        self.admits(Instant::now(), |_| true)
    }

    /// Requests that are at the servers now.
    pub fn outstanding(&self) -> usize {
        self.0.servers.iter().map(|server| server.counts.outstanding.load(Ordering::Relaxed)).sum()
    }

    /// Whether a server that the request has not been to would take it.
    pub(crate) fn has_other(&self, tried: Tried) -> bool {
        self.admits(Instant::now(), |index| !tried.has(index))
    }

    /// Begins an attempt at a server that the request has not been to and that is not left alone.
    pub(crate) fn choose(&self, tried: Tried, asked: Asked) -> Option<Attempt> {
        let (servers, now) = (&self.0.servers, Instant::now());
        if let [only] = &servers[..] {
            if tried.has(0) {
                return None;
            }
            return Some(Attempt::new(self, 0, only.claim(now)?, asked));
        }
        loop {
            let may = |index: &usize| !tried.has(*index) && servers[*index].admits(now);
            let open: Vec<usize> = (0..servers.len()).filter(may).collect();
            let first = chance::below(open.len().max(1));
            let second = first + 1 + chance::below(open.len().saturating_sub(1).max(1));
            let (one, other) = (*open.get(first)?, open[second % open.len()]);
            let busy = |index: usize| servers[index].counts.outstanding.load(Ordering::Relaxed);
            let index = if busy(other) < busy(one) { other } else { one };
            // Another request may have become the probe meanwhile.
            if let Some(claim) = servers[index].claim(now) {
                return Some(Attempt::new(self, index, claim, asked));
            }
        }
    }

    fn admits(&self, now: Instant, may: impl Fn(usize) -> bool) -> bool {
        (0..).zip(&self.0.servers).any(|(index, server)| may(index) && server.admits(now))
    }

    /// What is said where all servers are left alone.
    pub(crate) fn left_alone(&self) -> Reject {
        let now = Instant::now();
        let waits = self.0.servers.iter().filter_map(|server| server.breaker().opens_at());
        let wait = waits.min().map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let message = "the model's server kept failing and is left alone for a moment; try again later";
        let seconds = u32::try_from(wait.as_secs_f64().ceil() as u64).unwrap_or(u32::MAX).max(1);
        Reject::unavailable(Fault::Upstream, message, seconds)
            .code("upstream_unavailable")
            .because(format!("upstream `{}`: each breaker is open", self.0.model))
    }

    /// Counts a request.
    pub(crate) fn count_request(&self) {
        self.budget().request(self.0.begun.elapsed());
    }

    /// Counts a retry, if the budget has room for it.
    pub(crate) fn count_retry(&self) -> bool {
        self.budget().retry(self.0.begun.elapsed())
    }

    fn budget(&self) -> MutexGuard<'_, RetryBudget> {
        self.0.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    fn admits(&self, now: Instant) -> bool {
        !self.is_troubled() || self.breaker().admits(now)
    }

    /// Lets a request through.
    fn claim(&self, now: Instant) -> Option<Claim> {
        if !self.is_troubled() {
            return Some(Claim::Ordinary);
        }
        self.tell(|breaker| breaker.claim(now))
    }

    /// The request was answered.
    pub(crate) fn succeed(&self, claim: Claim) {
        if claim == Claim::Probe || self.is_troubled() {
            self.tell(|breaker| breaker.succeed(claim));
        }
    }

    fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Tells the breaker of a request, and shows its state where that changed it.
    pub(crate) fn tell<T>(&self, of: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = self.breaker();
        let before = breaker.figure();
        let told = of(&mut breaker);
        let after = breaker.figure();
        // Under the lock: of two changes the later one is shown, and who sees one sees the trouble too.
        self.troubled.store(breaker.is_troubled(), Ordering::Relaxed);
        if after != before {
            self.figures.breaker(after);
        }
        told
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Trouble;

    fn server(failures: u32) -> (Replicas, Instant) {
        let config = UpstreamConfig::new("u", "http://127.0.0.1:1/v1", "m");
        let breaker = BreakerConfig { failures, ..BreakerConfig::default() };
        (Replicas::new("m", vec![config], RetryConfig::default(), &breaker).unwrap(), Instant::now())
    }

    #[test]
    fn a_server_without_failures_is_asked_without_its_lock_and_one_with_some_is_not() {
        let (replicas, now) = server(2);
        let server = &replicas.0.servers[0];
        let fail = || server.tell(|breaker| breaker.fail(Claim::Ordinary, now, 0.0));
        let locked = server.breaker();
        assert_eq!(server.claim(now), Some(Claim::Ordinary));
        assert!(server.admits(now));
        server.succeed(Claim::Ordinary);
        drop(locked);
        // Before the first failure can count, and until the last is forgotten.
        assert!(!fail() && server.is_troubled());
        server.succeed(Claim::Ordinary);
        assert!(!server.is_troubled() && !fail(), "an answer between two failures");
        assert!(fail() && !server.admits(now) && server.claim(now).is_none());
        let later = now + BreakerConfig::default().pause;
        let probe = server.claim(later);
        assert_eq!(probe, Some(Claim::Probe));
        server.succeed(Claim::Ordinary);
        assert!(server.is_troubled(), "what was on its way decides nothing");
        probe.into_iter().for_each(|probe| server.succeed(probe));
        assert!(!server.is_troubled() && server.claim(later) == Some(Claim::Ordinary));
    }

    /// Another request may take a server out between the look for it and the choice of it.
    #[test]
    fn what_is_to_go_elsewhere_goes_to_no_server_that_was_tried() {
        let at = |port: u16| UpstreamConfig::new("u", format!("http://127.0.0.1:{port}/v1"), "m");
        let breaker = BreakerConfig { failures: 1, ..BreakerConfig::default() };
        let replicas = Replicas::new("m", vec![at(1), at(2)], RetryConfig::default(), &breaker).unwrap();
        let mut tried = Tried::default();
        let first = replicas.choose(tried, Asked::Stream).unwrap();
        tried.add(first.index());
        assert!(replicas.has_other(tried));
        let other = replicas.choose(tried, Asked::Stream).unwrap();
        assert_ne!(first.index(), other.index());
        other.fail(Trouble::Unreachable);
        assert!(replicas.choose(tried, Asked::Stream).is_none());
        assert_eq!(replicas.choose(Tried::default(), Asked::Stream).unwrap().index(), first.index());
    }
}
