//! Pauses after failures: who failed is left alone for a while, twice as long after each further failure, and at the end of
//! a pause one attempt shows whether it works again. A model that fails is paused for all conversations, one conversation
//! whose text cannot be written (a guard withholds it, its tenant has no money) for itself.
//!
//! [`Pauses`] is pure: time is passed in. What is known is bounded, and lost with the process.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};
use tidegate_types::{Fault, Reject, RejectKind};

/// After a first failure.
const FIRST: Duration = Duration::from_secs(1);
/// However often it failed, and whatever an upstream says.
const LONGEST: Duration = Duration::from_secs(600);
/// Names that are known at once.
const MOST: usize = 4096;

/// Who failed lately.
#[derive(Debug, Default)]
pub(super) struct Pauses(HashMap<String, Pause>);

#[derive(Debug)]
struct Pause {
    failures: u32,
    until: Instant,
    /// Somebody shows whether it works again.
    trying: bool,
}

impl Pauses {
    /// Whether it may be tried now. Behind a pause one may, until that one says how it went.
    pub(super) fn admits(&mut self, name: &str, now: Instant) -> bool {
        let Some(pause) = self.0.get_mut(name) else { return true };
        let admitted = now >= pause.until && !pause.trying;
        pause.trying |= admitted;
        admitted
    }

    /// It worked.
    pub(super) fn fine(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// It failed, and is to be let alone for `at_least`; gives for how long it is.
    pub(super) fn failed(&mut self, name: &str, at_least: Duration, now: Instant) -> Duration {
        if !self.0.contains_key(name) {
            self.make_room(now);
        }
        let pause = self.0.entry(name.to_owned()).or_insert(Pause { failures: 0, until: now, trying: false });
        if now < pause.until {
            // It was begun before the pause, and fails for what that is for.
            pause.until = pause.until.max(now + at_least.min(LONGEST));
            return pause.until - now;
        }
        let doubled = FIRST * 2_u32.saturating_pow(pause.failures.min(16));
        let time = jittered(doubled.max(at_least)).min(LONGEST);
        *pause = Pause { failures: pause.failures + 1, until: pause.until.max(now + time), trying: false };
        time
    }

    /// Whoever tried it cannot say.
    pub(super) fn unknown(&mut self, name: &str) {
        if let Some(pause) = self.0.get_mut(name) {
            pause.trying = false;
        }
    }

    /// Forgets those whose pause is over, or else the one that is over first.
    fn make_room(&mut self, now: Instant) {
        if self.0.len() < MOST {
            return;
        }
        self.0.retain(|_, pause| pause.until > now || pause.trying);
        if self.0.len() >= MOST {
            let first = self.0.iter().min_by_key(|(_, pause)| pause.until).map(|(name, _)| name.clone());
            if let Some(name) = first {
                self.0.remove(&name);
            }
        }
    }
}

/// Up to half as long again at random, so that what failed together does not come back together.
fn jittered(time: Duration) -> Duration {
    // The standard library's hasher is keyed anew each time, from numbers that each thread drew once.
    let share = (RandomState::new().hash_one(0_u8) >> 32) as f64 / f64::from(u32::MAX);
    time + (time / 2).mul_f64(share)
}

/// Whose failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The model's, whatever it is asked.
    Model,
    /// What one conversation says, or who pays for it.
    Conversation,
}

impl Whose {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Conversation => "conversation",
        }
    }

    pub(super) fn of(reject: &Reject) -> Self {
        let is_theirs = matches!(reject.code.as_deref(), Some("insufficient_quota" | "store_unavailable" | EMPTY));
        match reject.kind {
            RejectKind::Internal
            | RejectKind::BadUpstream
            | RejectKind::Unavailable
            | RejectKind::UpstreamTimeout
            | RejectKind::RateLimited
                if !is_theirs && reject.fault != Fault::Plugin =>
            {
                Self::Model
            }
            _ => Self::Conversation,
        }
    }
}

/// The code of an answer without a text.
const EMPTY: &str = "empty_text";

/// A model wrote nothing.
pub(super) fn empty(model: &str, what: &str) -> Reject {
    Reject::internal(Fault::Upstream, format!("`{model}` wrote an empty {what}")).code(EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    #[test]
    fn pauses_double_up_to_a_bound_and_success_ends_them() {
        let (mut pauses, mut now) = (Pauses::default(), Instant::now());
        for n in 0..20 {
            assert!(pauses.admits("m", now), "{n}");
            let time = pauses.failed("m", NONE, now);
            let least = (FIRST * 2_u32.pow(n.min(16))).min(LONGEST);
            assert!(time >= least && time <= (least * 3 / 2).min(LONGEST), "{n}: {time:?}");
            assert!(!pauses.admits("m", now + time - Duration::from_millis(1)), "{n}");
            now += time;
        }
        assert!(pauses.admits("another", now));
        pauses.fine("m");
        assert!(pauses.admits("m", now) && pauses.admits("m", now));
        assert!(pauses.failed("m", NONE, now) < FIRST * 2);
    }

    #[test]
    fn behind_a_pause_one_tries_and_the_others_wait_for_it() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        let later = now + pauses.failed("m", NONE, now);
        assert!(pauses.admits("m", later) && !pauses.admits("m", later));
        pauses.unknown("m");
        assert!(pauses.admits("m", later));
        pauses.failed("m", NONE, later);
        assert!(!pauses.admits("m", later + FIRST));
    }

    #[test]
    fn what_was_begun_together_and_fails_together_is_one_failure() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        let first = pauses.failed("m", NONE, now);
        for _ in 0..16 {
            assert!(pauses.failed("m", NONE, now) <= first);
        }
        assert!(pauses.admits("m", now + first));
    }

    #[test]
    fn an_upstream_that_says_when_is_listened_to_within_reason() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        assert!(pauses.failed("m", Duration::from_secs(30), now) >= Duration::from_secs(30));
        assert_eq!(pauses.failed("m", Duration::from_secs(86_400), now), LONGEST);
    }

    #[test]
    fn what_is_known_is_bounded_and_the_longest_pauses_stay() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        pauses.failed("long", LONGEST, now);
        for n in 0..2 * MOST {
            pauses.failed(&format!("c{n}"), NONE, now);
        }
        assert!(pauses.0.len() <= MOST && !pauses.admits("long", now));
    }

    #[test]
    fn failures_of_a_model_and_of_a_conversation_are_told_apart() {
        let of = |kind, fault, code: &str| Whose::of(&Reject::new(kind, fault, "").code(code));
        for (kind, fault, code) in [
            (RejectKind::BadUpstream, Fault::Upstream, "upstream_failed"),
            (RejectKind::RateLimited, Fault::Client, "rate_limit_exceeded"),
            (RejectKind::Unavailable, Fault::Engine, "overloaded"),
        ] {
            assert_eq!(of(kind, fault, code), Whose::Model, "{code}");
        }
        for (kind, fault, code) in [
            (RejectKind::RateLimited, Fault::Client, "insufficient_quota"),
            (RejectKind::ContentFilter, Fault::Client, "content_filter"),
            (RejectKind::Unavailable, Fault::Plugin, "plugin_failed"),
            (RejectKind::Unavailable, Fault::Operator, "store_unavailable"),
        ] {
            assert_eq!(of(kind, fault, code), Whose::Conversation, "{code}");
        }
        assert_eq!(Whose::of(&empty("m", "title")), Whose::Conversation);
    }
}
