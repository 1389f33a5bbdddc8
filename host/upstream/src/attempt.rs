//! One request at one server, and what its end says of the server.

use crate::breaker::Claim;
use crate::chance;
use crate::failure::Trouble;
use crate::figures::Ending;
use crate::replicas::{Replicas, Server, Tried};
use crate::retry::Asked;
use crate::upstream::Upstream;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Nothing heard of a server for this part of the time that it may take to begin is a failure of its, where its client
/// waits no longer: clients mostly give up sooner than a server that hangs is given up.
const IN_VAIN: u32 = 20;

/// One request at one server. Dropping it without a word means that nobody wanted it any more.
pub(crate) struct Attempt {
    replicas: Replicas,
    index: usize,
    claim: Claim,
    asked: Asked,
    since: Instant,
    /// Of the server's signs of life, those before this.
    heard: u64,
    /// Something of an answer has come.
    began: bool,
    ending: Option<Ending>,
}

/// What an attempt says of its server.
enum Verdict {
    Good,
    Bad,
    Nothing,
}

impl Attempt {
    pub(crate) fn new(replicas: &Replicas, index: usize, claim: Claim, asked: Asked) -> Self {
        let (replicas, since) = (replicas.clone(), Instant::now());
        let mut attempt = Self { replicas, index, claim, asked, since, heard: 0, began: false, ending: None };
        attempt.heard = attempt.server().counts.heard.load(Ordering::Relaxed);
        attempt.server().counts.outstanding.fetch_add(1, Ordering::Relaxed);
        attempt.server().figures.began();
        attempt
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.server().upstream
    }

    /// Something of an answer has come, the first of it or more: a probe that got so far is a good one.
    pub(crate) fn hear(&mut self) {
        // Of an answer in one piece all is there with the first of it.
        if self.began && self.asked == Asked::Whole {
            return;
        }
        self.server().counts.heard.fetch_add(1, Ordering::Relaxed);
        self.began = true;
        if self.claim == Claim::Ordinary {
            return;
        }
        self.server().succeed(self.claim);
        self.claim = Claim::Ordinary;
        tracing::info!(model = %self.replicas.0.model, upstream = self.upstream().origin(), "answers again");
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
        let verdict = self.verdict(ending);
        match ending {
            Ending::Left | Ending::Failed(Trouble::Unreachable | Trouble::Broken | Trouble::Silent | Trouble::Late) => {
            }
            Ending::Answered | Ending::Cut | Ending::Failed(_) => {
                self.server().counts.heard.fetch_add(1, Ordering::Relaxed);
            }
        }
        let now = Instant::now();
        match (verdict, self.claim) {
            (Verdict::Bad, claim) => return self.server().tell(|breaker| breaker.fail(claim, now, chance::fraction())),
            (Verdict::Good, claim) => self.server().succeed(claim),
            (Verdict::Nothing, Claim::Probe) => self.server().tell(|breaker| breaker.release(Claim::Probe, now)),
            (Verdict::Nothing, Claim::Ordinary) => {}
        }
        false
    }

    fn verdict(&self, ending: Ending) -> Verdict {
        match ending {
            Ending::Answered => Verdict::Good,
            Ending::Left if self.began => Verdict::Good,
            Ending::Left | Ending::Failed(Trouble::Silent | Trouble::Late) if !self.is_in_vain() => Verdict::Nothing,
            Ending::Failed(Trouble::Busy | Trouble::Refused) => Verdict::Nothing,
            Ending::Failed(Trouble::Unreachable | Trouble::Overloaded) => Verdict::Bad,
            // Nothing of a stream, nor of anybody else's answer. What comes in one piece may only be long.
            Ending::Failed(Trouble::Silent) if self.asked == Asked::Stream => Verdict::Bad,
            // Perhaps the request's own doing. Nobody's requests shall take the last server away from others.
            Ending::Left | Ending::Cut | Ending::Failed(_) if self.has_other() => Verdict::Bad,
            Ending::Left | Ending::Cut | Ending::Failed(_) => Verdict::Nothing,
        }
    }

    /// Whether it waited for long while the server gave no sign of life to anybody.
    fn is_in_vain(&self) -> bool {
        let patience = self.replicas.0.retry.start_timeout / IN_VAIN;
        self.since.elapsed() >= patience && self.server().counts.heard.load(Ordering::Relaxed) == self.heard
    }

    fn has_other(&self) -> bool {
        let mut tried = Tried::default();
        tried.add(self.index);
        self.replicas.has_other(tried)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let ending = self.ending.unwrap_or(Ending::Left);
        self.server().counts.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.server().figures.ended(ending);
        if self.judge(ending) {
            tracing::warn!(model = %self.replicas.0.model, upstream = self.upstream().origin(),
                outcome = ending.as_str(), "keeps failing and is left alone for a while");
        }
    }
}
