//! One fetch at a time, of an issuer's keys or of what it says of itself. It goes on when whoever asked has gone, since
//! others wait for it. How it ended is remembered: nobody who waited begins another, and for `pause` nobody else does, so
//! that an issuer that is away holds each caller up for one fetch at most, and made-up names cost it nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How a fetch ended; why it failed is for the log.
type Outcome = Result<(), String>;

/// Whose turn it is to fetch something.
#[derive(Default)]
pub(crate) struct Turn(Arc<Mutex<Option<Ended>>>);

/// The last fetch.
struct Ended {
    at: Instant,
    outcome: Outcome,
}

impl Turn {
    /// Whether no fetch runs, and none ended within `pause`.
    pub(crate) fn is_free(&self, pause: Duration) -> bool {
        self.0.try_lock().is_ok_and(|last| last.as_ref().is_none_or(|last| last.at.elapsed() >= pause))
    }

    /// Runs `fetch`, which must end by itself, or takes how the last one ended: that which ran when this was called, or one
    /// of the last `pause`.
    pub(crate) async fn take<F>(&self, pause: Duration, fetch: F) -> Outcome
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let called = Instant::now();
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some(last) = last.as_ref().filter(|last| last.at >= called || last.at.elapsed() < pause) {
            return last.outcome.clone();
        }
        let running = tokio::spawn(async move {
            let outcome = fetch.await;
            *last = Some(Ended { at: Instant::now(), outcome: outcome.clone() });
            outcome
        });
        running.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;
    use tokio::task::JoinSet;

    /// A fetch that counts itself, and fails when it is told to.
    #[derive(Clone, Default)]
    struct Away {
        fetches: Arc<AtomicUsize>,
        end: Arc<Notify>,
    }

    impl Away {
        async fn fetch(self) -> Outcome {
            self.fetches.fetch_add(1, Ordering::SeqCst);
            self.end.notified().await;
            Err("away".into())
        }

        /// Waits for the beginning of a fetch.
        async fn begun(&self) {
            while self.fetches.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn all_who_wait_share_one_fetch_and_a_failure_is_remembered() {
        let (turn, away) = (Arc::new(Turn::default()), Away::default());
        let mut waiting = JoinSet::new();
        for _ in 0..100 {
            let (turn, fetch) = (Arc::clone(&turn), away.clone().fetch());
            waiting.spawn(async move { turn.take(Duration::ZERO, fetch).await });
        }
        away.begun().await;
        away.end.notify_one();
        assert!(waiting.join_all().await.iter().all(Result::is_err));
        let pause = Duration::from_secs(60);
        assert!(!turn.is_free(pause) && turn.is_free(Duration::ZERO));
        assert_eq!(turn.take(pause, away.clone().fetch()).await, Err("away".into()));
        assert_eq!(away.fetches.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_fetch_goes_on_when_whoever_asked_has_gone() {
        let (turn, away) = (Arc::new(Turn::default()), Away::default());
        let asking = tokio::spawn({
            let (turn, fetch) = (Arc::clone(&turn), away.clone().fetch());
            async move { turn.take(Duration::ZERO, fetch).await }
        });
        away.begun().await;
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        let other = turn.take(Duration::ZERO, away.clone().fetch());
        away.end.notify_one();
        assert_eq!(other.await, Err("away".into()));
        assert_eq!(away.fetches.load(Ordering::SeqCst), 1, "the other began anew");
    }
}
