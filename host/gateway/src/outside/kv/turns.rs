//! Who asks the store when. Invariants:
//! - who reads waits for nobody who writes;
//! - of each namespace one call writes at a time, in the order in which they came: those would wait for each other in the
//!   database anyway, each with a connection, and so nobody's writes take more than one turn from others;
//! - a store that did not answer is left alone for a while, but for one call that finds out whether it does again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::Namespace;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// How many calls are at the store at once, and what is known of it.
pub(super) struct Turns {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    writers: Mutex<HashMap<Namespace, Arc<Writer>>>,
    /// By those who read, and by errors: a write may wait for somebody who writes there too.
    away: Away,
    pause: Duration,
}

/// What a call is to do.
#[derive(Clone)]
pub(super) enum Access {
    Read,
    Write(Arc<Writer>),
}

/// Those who write in one namespace.
#[derive(Default)]
pub(super) struct Writer {
    lock: Arc<tokio::sync::Mutex<()>>,
    away: Away,
}

/// The right to ask the store.
pub(super) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
    _writes: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// For so many calls that read, and as many that write; the store is left alone for `pause`.
    pub(super) fn new(at_once: usize, pause: Duration) -> Self {
        let places = || Arc::new(Semaphore::new(at_once));
        Self { reads: places(), writes: places(), writers: Mutex::default(), away: Away::default(), pause }
    }

    /// To write in a namespace.
    pub(super) fn to_write(&self, name: &Namespace) -> Access {
        let mut writers = lock(&self.writers);
        if let Some(writer) = writers.get(name) {
            return Access::Write(Arc::clone(writer));
        }
        let now = Instant::now();
        writers.retain(|_, writer| writer.is_in_use() || writer.away.is_for_now(self.pause, now));
        let writer = Arc::clone(writers.entry(name.clone()).or_default());
        Access::Write(writer)
    }

    /// Whether the store is to be asked at all.
    pub(super) fn admits(&self, access: &Access) -> bool {
        let now = Instant::now();
        let may_write = match access {
            Access::Read => true,
            Access::Write(writer) => writer.away.admits(self.pause, now),
        };
        may_write && self.away.admits(self.pause, now)
    }

    /// Waits for a turn.
    pub(super) async fn take(&self, access: &Access) -> Turn {
        let (writes, places) = match access {
            Access::Read => (None, &self.reads),
            Access::Write(writer) => (Some(Arc::clone(&writer.lock).lock_owned().await), &self.writes),
        };
        // Nobody closes it.
        Turn { _place: Arc::clone(places).acquire_owned().await.ok(), _writes: writes }
    }

    /// The store has answered.
    pub(super) fn answered(&self, access: &Access) {
        self.away.note(None);
        if let Access::Write(writer) = access {
            writer.away.note(None);
        }
    }

    /// The store has said that it cannot answer.
    pub(super) fn failed(&self) {
        self.away.note(Some(Instant::now()));
    }

    /// A call was too late. One that writes may have waited for others who write there.
    pub(super) fn timed_out(&self, access: &Access) {
        match access {
            Access::Read => self.failed(),
            Access::Write(writer) => writer.away.note(Some(Instant::now())),
        }
    }
}

impl Writer {
    fn is_in_use(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || Arc::strong_count(&self.lock) > 1
    }
}

/// Since when somebody does not answer, as far as is known.
#[derive(Default)]
struct Away(Mutex<Option<Instant>>);

impl Away {
    fn note(&self, since: Option<Instant>) {
        *lock(&self.0) = since;
    }

    fn is_for_now(&self, pause: Duration, now: Instant) -> bool {
        lock(&self.0).is_some_and(|since| now.saturating_duration_since(since) < pause)
    }

    /// After the pause one may ask, and until that is answered the others have another pause.
    fn admits(&self, pause: Duration, now: Instant) -> bool {
        let mut since = lock(&self.0);
        match *since {
            Some(at) if now.saturating_duration_since(at) < pause => return false,
            Some(_) => *since = Some(now),
            None => {}
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::TenantId;

    #[test]
    fn who_does_not_answer_is_asked_by_one_after_each_pause_until_they_do() {
        let (away, pause, begun) = (Away::default(), Duration::from_secs(1), Instant::now());
        let admits = |ms: u64| away.admits(pause, begun + Duration::from_millis(ms));
        assert!(admits(0) && admits(0));
        away.note(Some(begun));
        let asked: Vec<u64> = (0..35).map(|tenth| tenth * 100).filter(|ms| admits(*ms)).collect();
        assert_eq!(asked, [1000, 2000, 3000]);
        away.note(None);
        assert!(admits(3500) && admits(3500));
    }

    #[tokio::test]
    async fn a_namespace_is_forgotten_when_nobody_writes_there() {
        let turns = Turns::new(1, Duration::from_secs(3600));
        let name = |n: usize| Namespace { plugin: "p".into(), tenant: TenantId::new(format!("t{n}")) };
        for n in 0..9 {
            let access = turns.to_write(&name(n));
            let turn = turns.take(&access).await;
            drop(access);
            assert!(lock(&turns.writers).contains_key(&name(n)));
            drop(turn);
        }
        let held = turns.take(&turns.to_write(&name(9))).await;
        turns.timed_out(&turns.to_write(&name(10)));
        turns.to_write(&name(11));
        let mut left: Vec<usize> = (0..12).filter(|n| lock(&turns.writers).contains_key(&name(*n))).collect();
        left.sort_unstable();
        assert_eq!(left, [9, 10, 11]);
        drop(held);
    }
}
