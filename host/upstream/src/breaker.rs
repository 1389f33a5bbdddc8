//! Takes a server that keeps failing out for a while. Pure: the time and the chance are given to it.
//!
//! States: closed (requests go there), open (none, until a moment), half-open (one request is let through: the probe; it
//! decides). What was on its way when the state changed decides nothing.

use std::time::{Duration, Instant};

/// When a server is taken out, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// So many failures in a row open it; 0 for never.
    pub failures: u32,
    /// How long it stays open at first; twice as long after each probe that fails, up to eight times.
    pub pause: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, pause: Duration::from_secs(5) }
    }
}

/// How often the pause is doubled.
const MAX_DOUBLINGS: u32 = 3;
/// Up to this part of the pause is added to it, so that gateways do not come back together.
const JITTER: f64 = 0.25;

/// Counts the failures of one server.
#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    state: State,
    /// Failures in a row, while it is closed.
    failures: u32,
    /// Probes that failed in a row.
    probes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Instant,
    },
    /// A request tries it; one that takes longer than a pause keeps nobody else from trying.
    HalfOpen {
        since: Instant,
    },
}

/// What a request is to the breaker that let it through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// One of many.
    Ordinary,
    /// The one that decides.
    Probe,
}

impl Breaker {
    pub(crate) fn new(config: BreakerConfig) -> Self {
        Self { config, state: State::Closed, failures: 0, probes: 0 }
    }

    /// Whether a request would be let through.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } => now >= until,
            State::HalfOpen { since } => now >= since + self.config.pause,
        }
    }

    /// Lets a request through.
    pub(crate) fn claim(&mut self, now: Instant) -> Option<Claim> {
        if !self.admits(now) {
            return None;
        }
        if self.state == State::Closed {
            return Some(Claim::Ordinary);
        }
        self.state = State::HalfOpen { since: now };
        Some(Claim::Probe)
    }

    /// The request was answered.
    pub(crate) fn succeed(&mut self, claim: Claim) {
        if self.state == State::Closed || claim == Claim::Probe {
            (self.state, self.failures, self.probes) = (State::Closed, 0, 0);
        }
    }

    /// The request failed; `chance` is from 0 to 1. True when this opened it.
    pub(crate) fn fail(&mut self, claim: Claim, now: Instant, chance: f64) -> bool {
        if self.config.failures == 0 {
            return false;
        }
        match (self.state, claim) {
            (State::Closed, _) => {
                self.failures += 1;
                if self.failures < self.config.failures {
                    return false;
                }
            }
            (State::HalfOpen { .. }, Claim::Probe) => self.probes += 1,
            _ => return false,
        }
        let pause = self.config.pause * 2_u32.pow(self.probes.min(MAX_DOUBLINGS));
        self.state = State::Open { until: now + pause.mul_f64(1.0 + JITTER * chance) };
        true
    }

    /// The request says nothing about the server. A probe leaves its place to another.
    pub(crate) fn release(&mut self, claim: Claim, now: Instant) {
        if claim == Claim::Probe && matches!(self.state, State::HalfOpen { .. }) {
            self.state = State::Open { until: now };
        }
    }

    /// When it lets a request through again: none while it does.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            State::HalfOpen { since } => Some(since + self.config.pause),
            State::Closed => None,
        }
    }

    /// Whether it has failures to remember. Without, a request at an ordinary claim changes nothing here.
    pub(crate) fn is_troubled(&self) -> bool {
        self.state != State::Closed || self.failures > 0
    }

    /// As a figure: 0 closed, 1 open, 2 half-open.
    pub(crate) fn figure(&self) -> f64 {
        match self.state {
            State::Closed => 0.0,
            State::Open { .. } => 1.0,
            State::HalfOpen { .. } => 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(BreakerConfig { failures: 2, pause: Duration::from_secs(4) });
        assert!(!breaker.fail(Claim::Ordinary, now, 0.0));
        assert!(breaker.fail(Claim::Ordinary, now, 0.0));
        breaker
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_good_probe_closes_it() {
        let now = Instant::now();
        let mut breaker = open(now);
        assert!(!breaker.admits(now + s(3)));
        assert_eq!(breaker.claim(now + s(4)), Some(Claim::Probe));
        assert_eq!(breaker.claim(now + s(7)), None, "one probe at a time");
        assert_eq!(breaker.claim(now + s(8)), Some(Claim::Probe), "but a slow one is not waited for");
        assert_eq!(breaker.claim(now + s(9)), None);
        breaker.succeed(Claim::Probe);
        assert_eq!(breaker.claim(now + s(9)), Some(Claim::Ordinary));
        breaker.fail(Claim::Ordinary, now, 0.0);
        breaker.succeed(Claim::Ordinary);
        assert!(!breaker.fail(Claim::Ordinary, now, 0.0), "an answer between two failures");
    }

    #[test]
    fn each_probe_that_fails_doubles_the_pause_to_a_bound() {
        let mut now = Instant::now();
        let mut breaker = open(now);
        for pause in [4, 8, 16, 32, 32] {
            assert!(!breaker.admits(now + s(pause) - Duration::from_millis(1)), "{pause}");
            now += s(pause);
            assert_eq!(breaker.claim(now), Some(Claim::Probe), "{pause}");
            assert!(breaker.fail(Claim::Probe, now, 0.0));
        }
        let mut breaker = open(now);
        breaker.claim(now + s(4));
        breaker.fail(Claim::Probe, now + s(4), 1.0);
        assert!(!breaker.admits(now + s(13)) && breaker.admits(now + s(14)), "8 s and a quarter of them");
    }

    #[test]
    fn what_was_on_its_way_decides_nothing() {
        let now = Instant::now();
        let mut breaker = open(now);
        breaker.succeed(Claim::Ordinary);
        assert!(!breaker.fail(Claim::Ordinary, now + s(3), 0.0) && breaker.admits(now + s(4)));
        breaker.claim(now + s(4));
        breaker.succeed(Claim::Ordinary);
        assert!(!breaker.fail(Claim::Ordinary, now + s(4), 0.0) && !breaker.admits(now + s(7)));
    }

    #[test]
    fn a_probe_whose_client_left_makes_room_for_another() {
        let now = Instant::now();
        let mut breaker = open(now);
        let probe = breaker.claim(now + s(4)).unwrap();
        breaker.release(probe, now + s(5));
        assert_eq!(breaker.claim(now + s(5)), Some(Claim::Probe));
    }

    #[test]
    fn without_a_number_it_never_opens() {
        let mut breaker = Breaker::new(BreakerConfig { failures: 0, ..BreakerConfig::default() });
        let now = Instant::now();
        assert!((0..100).all(|_| !breaker.fail(Claim::Ordinary, now, 0.5) && breaker.admits(now)));
    }
}
