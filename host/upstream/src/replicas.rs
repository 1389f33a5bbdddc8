//! The servers of one model. A request goes to the one of two, taken by chance, that has less to do; a server that keeps
//! failing is left alone for a while (`breaker.rs`). What failed before anything of an answer may be sent again
//! (`retry.rs`), there or elsewhere, within the budget of the model (`budget.rs`).

use crate::answer::{Answer, Asking, Sending};
use crate::breaker::{Breaker, BreakerConfig, Claim};
use crate::budget::RetryBudget;
use crate::chance;
use crate::config::{UpstreamConfig, UpstreamError};
use crate::failure::Trouble;
use crate::figures::{Ending, ServerFigures};
use crate::retry::{Attempts, RetryConfig, Run};
use crate::upstream::Upstream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_types::{Chat, Fault, Reject};

/// Servers of one model.
pub const MAX_SERVERS: usize = 64;

/// One model at one or several servers that answer alike. Clones are the same one.
#[derive(Clone)]
pub struct Replicas(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) model: String,
    pub(crate) retry: RetryConfig,
    servers: Vec<Server>,
    budget: Mutex<RetryBudget>,
    begun: Instant,
}

struct Server {
    upstream: Upstream,
    outstanding: AtomicUsize,
    breaker: Mutex<Breaker>,
    figures: ServerFigures,
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
            let upstream = Upstream::new(config)?;
            let figures = ServerFigures::new(model, upstream.origin());
            let breaker = Mutex::new(Breaker::new(breaker.clone()));
            Ok(Server { upstream, outstanding: AtomicUsize::new(0), breaker, figures })
        };
        let servers = servers.into_iter().map(server).collect::<Result<_, UpstreamError>>()?;
        let budget = Mutex::new(RetryBudget::new(retry.budget_percent, retry.budget_min));
        let model = model.to_owned();
        Ok(Self(Arc::new(Shared { model, retry, servers, budget, begun: Instant::now() })))
    }

    /// Asks for an answer, until a server has begun one. What fails between that and the first event is asked again
    /// while the answer is read. `attempts` counts how often it was sent.
    pub async fn generate(&self, chat: Box<Chat>, sending: Sending, attempts: &Attempts) -> Result<Answer, Reject> {
        // Only a stream shows by what has not come that it was not made.
        let mut run = Run::new(self, chat.stream, attempts.clone());
        if sending.hops > 1 {
            // Each gateway of a chain that sent everything again would multiply with the others: the first one does.
            run.never_retry();
        }
        Asking { run, chat, sending }.begin().await
    }

    /// One vector for each text.
    pub async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Reject> {
        let mut run = Run::new(self, true, Attempts::default());
        loop {
            let attempt = run.next().await?;
            match run.bounded(&attempt, attempt.upstream().embed(texts)).await {
                Ok(vectors) => return Ok(attempt.answered(vectors)),
                Err(failed) => run.failed(attempt, failed),
            }
        }
    }

    /// The labels of each text with their scores, highest first.
    pub async fn classify(&self, texts: &[String]) -> Result<Vec<Vec<(String, f32)>>, Reject> {
        let mut run = Run::new(self, true, Attempts::default());
        loop {
            let attempt = run.next().await?;
            match run.bounded(&attempt, attempt.upstream().classify(texts)).await {
                Ok(labels) => return Ok(attempt.answered(labels)),
                Err(failed) => run.failed(attempt, failed),
            }
        }
    }

    /// Whether some server is not left alone.
    pub fn is_available(&self) -> bool {
        self.admits(Instant::now(), |_| true)
    }

    /// Requests that are at the servers now.
    pub fn outstanding(&self) -> usize {
        self.0.servers.iter().map(|server| server.outstanding.load(Ordering::Relaxed)).sum()
    }

    /// Whether a server that the request has not been to would take it.
    pub(crate) fn has_other(&self, tried: Tried) -> bool {
        self.admits(Instant::now(), |index| !tried.has(index))
    }

    /// Begins an attempt at a server that the request has not been to, or else at any that is not left alone.
    pub(crate) fn choose(&self, tried: Tried) -> Option<Attempt> {
        let now = Instant::now();
        self.choose_among(now, |index| !tried.has(index)).or_else(|| self.choose_among(now, |_| true))
    }

    fn choose_among(&self, now: Instant, may: impl Fn(usize) -> bool) -> Option<Attempt> {
        let servers = &self.0.servers;
        loop {
            let open: Vec<usize> =
                (0..servers.len()).filter(|index| may(*index) && servers[*index].breaker().admits(now)).collect();
            let first = chance::below(open.len().max(1));
            let second = first + 1 + chance::below(open.len().saturating_sub(1).max(1));
            let (one, other) = (*open.get(first)?, open[second % open.len()]);
            let busy = |index: usize| servers[index].outstanding.load(Ordering::Relaxed);
            let index = if busy(other) < busy(one) { other } else { one };
            // Another request may have become the probe meanwhile.
            let claim = servers[index].breaker().claim(now);
            if let Some(claim) = claim {
                return Some(Attempt::new(self, index, claim));
            }
        }
    }

    fn admits(&self, now: Instant, may: impl Fn(usize) -> bool) -> bool {
        (0..).zip(&self.0.servers).any(|(index, server)| may(index) && server.breaker().admits(now))
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
    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request at one server. Dropping it without a word means that nobody wanted it any more.
pub(crate) struct Attempt {
    replicas: Replicas,
    index: usize,
    claim: Claim,
    /// Something of an answer has come.
    began: bool,
    ending: Option<Ending>,
}

impl Attempt {
    fn new(replicas: &Replicas, index: usize, claim: Claim) -> Self {
        let attempt = Self { replicas: replicas.clone(), index, claim, began: false, ending: None };
        let server = attempt.server();
        server.outstanding.fetch_add(1, Ordering::Relaxed);
        server.figures.began();
        attempt.show_breaker();
        attempt
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.server().upstream
    }

    /// Something of an answer has come: a probe that got so far is a good one.
    pub(crate) fn begin(&mut self) {
        if std::mem::replace(&mut self.began, true) || self.claim == Claim::Ordinary {
            return;
        }
        self.server().breaker().succeed(self.claim);
        self.claim = Claim::Ordinary;
        tracing::info!(model = %self.replicas.0.model, upstream = self.upstream().origin(), "answers again");
        self.show_breaker();
    }

    /// The answer is complete.
    pub(crate) fn answered<T>(mut self, answer: T) -> T {
        self.ending = Some(Ending::Answered);
        answer
    }

    /// It failed.
    pub(crate) fn fail(mut self, trouble: Trouble) {
        self.ending = Some(if self.began { Ending::Cut } else { Ending::Failed(trouble) });
    }

    fn server(&self) -> &Server {
        &self.replicas.0.servers[self.index]
    }

    /// Tells the breaker; true when that opened it.
    fn judge(&self, ending: Ending) -> bool {
        let now = Instant::now();
        let fails = |trouble: Trouble| {
            let mut tried = Tried::default();
            tried.add(self.index);
            let counts = match trouble {
                Trouble::Unreachable | Trouble::Overloaded | Trouble::Silent => true,
                // Perhaps the request's own doing. Nobody's requests shall take the last server away from others.
                Trouble::Gateway | Trouble::Broken | Trouble::Failed => self.replicas.has_other(tried),
                Trouble::Busy | Trouble::Refused => false,
            };
            let mut breaker = self.server().breaker();
            if counts {
                return breaker.fail(self.claim, now, chance::fraction());
            }
            breaker.release(self.claim, now);
            false
        };
        match ending {
            Ending::Answered => self.server().breaker().succeed(self.claim),
            Ending::Left if self.began => self.server().breaker().succeed(self.claim),
            Ending::Left => self.server().breaker().release(self.claim, now),
            Ending::Cut => return fails(Trouble::Broken),
            Ending::Failed(trouble) => return fails(trouble),
        }
        false
    }

    fn show_breaker(&self) {
        let figure = self.server().breaker().figure();
        self.server().figures.breaker(figure);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let ending = self.ending.unwrap_or(Ending::Left);
        self.server().outstanding.fetch_sub(1, Ordering::Relaxed);
        self.server().figures.ended(ending);
        if self.judge(ending) {
            tracing::warn!(model = %self.replicas.0.model, upstream = self.upstream().origin(),
                "keeps failing and is left alone for a while");
        }
        self.show_breaker();
    }
}
