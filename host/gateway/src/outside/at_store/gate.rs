//! Who asks the store when. Invariants:
//! - who reads waits for nobody who writes;
//! - however many calls one tenant has waiting, another's is next when one has ended;
//! - of each namespace one call writes at a time, in the order in which they came: those would wait for each other in the
//!   database anyway, each with a connection, and so no plugin's writes of one project take more than one turn from others;
//! - a store that did not answer is left alone for a while, but for one call that finds out whether it does again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::Namespace;
use tidegate_turns::{Owner, Turn, Turns};
use tidegate_types::Class;
use tokio::sync::OwnedMutexGuard;

/// How many calls are at the store at once, and what is known of it.
pub(in crate::outside) struct Gate {
    reads: Turns,
    writes: Turns,
    writers: Mutex<HashMap<Namespace, Arc<Writer>>>,
    /// Those who write and were too late for their callers, each with its turn.
    num_late: AtomicUsize,
    /// By those who read, and by errors: a write may wait for somebody who writes there too.
    away: Away,
    pause: Duration,
}

/// What a call is to do.
#[derive(Clone)]
pub(in crate::outside) struct Access {
    share: Owner,
    /// Where it writes.
    writer: Option<Arc<Writer>>,
}

/// Those who write in one namespace.
#[derive(Default)]
pub(in crate::outside) struct Writer {
    lock: Arc<tokio::sync::Mutex<()>>,
    away: Away,
}

/// The right to ask the store.
pub(in crate::outside) struct Pass {
    _turn: Turn,
    _writes: Option<OwnedMutexGuard<()>>,
}

impl Gate {
    /// For so many calls that read, and as many that write; the store is left alone for `pause`.
    pub(in crate::outside) fn new(at_once: usize, pause: Duration) -> Self {
        let turns = || Turns::new(at_once);
        let (writers, away) = (Mutex::default(), Away::default());
        Self { reads: turns(), writes: turns(), writers, num_late: AtomicUsize::new(0), away, pause }
    }

    /// To read in a namespace.
    pub(in crate::outside) fn to_read(name: &Namespace) -> Access {
        Access { share: share(name), writer: None }
    }

    /// To write there.
    pub(in crate::outside) fn to_write(&self, name: &Namespace) -> Access {
        Access { share: share(name), writer: Some(self.writer(name)) }
    }

    fn writer(&self, name: &Namespace) -> Arc<Writer> {
        let mut writers = lock(&self.writers);
        if let Some(writer) = writers.get(name) {
            return Arc::clone(writer);
        }
        let now = Instant::now();
        writers.retain(|_, writer| writer.is_in_use() || writer.away.is_for_now(self.pause, now));
        Arc::clone(writers.entry(name.clone()).or_default())
    }

    /// Whether the store is to be asked at all.
    pub(in crate::outside) fn admits(&self, access: &Access) -> bool {
        let now = Instant::now();
        let places = || access.writer.iter().map(|writer| &writer.away).chain([&self.away]);
        // Whoever is refused by one has not tried the other.
        places().all(|away| !away.is_for_now(self.pause, now)) && places().all(|away| away.admits(self.pause, now))
    }

    /// Waits for a turn.
    pub(in crate::outside) async fn enter(&self, access: &Access) -> Pass {
        let (writes, turns) = match &access.writer {
            None => (None, &self.reads),
            Some(writer) => (Some(Arc::clone(&writer.lock).lock_owned().await), &self.writes),
        };
        Pass { _turn: turns.take(&access.share, 1).await, _writes: writes }
    }

    /// The store has answered.
    pub(in crate::outside) fn answered(&self, access: &Access) {
        self.away.note(None);
        if let Some(writer) = &access.writer {
            writer.away.note(None);
        }
    }

    /// The store has answered that somebody else holds what a call waited for.
    pub(in crate::outside) fn held_up(&self, access: &Access) {
        self.away.note(None);
        self.timed_out(access);
    }

    /// The store has said that it cannot answer.
    pub(in crate::outside) fn failed(&self) {
        self.away.note(Some(Instant::now()));
    }

    /// A call's turn has not come. While a write is late, who writes may go on waiting for the turn that it has, each call of
    /// theirs: the next one of this namespace does not. Otherwise there are many calls, which says nothing of the store.
    pub(in crate::outside) fn found_busy(&self, access: &Access) {
        if access.writer.is_some() && self.num_late.load(Ordering::SeqCst) > 0 {
            self.timed_out(access);
        }
    }

    /// The same as [`Self::timed_out`], of a call that keeps its turn for as long as what this gives.
    pub(in crate::outside) fn late(self: &Arc<Self>, access: &Access) -> Option<Late> {
        self.timed_out(access);
        access.writer.as_ref().map(|_| {
            self.num_late.fetch_add(1, Ordering::SeqCst);
            Late(Arc::clone(self))
        })
    }

    /// The store has had a call for too long. One that writes may have waited for others who write there.
    pub(in crate::outside) fn timed_out(&self, access: &Access) {
        match &access.writer {
            None => self.failed(),
            Some(writer) => writer.away.note(Some(Instant::now())),
        }
    }
}

/// A write that was too late for its caller has not ended.
pub(in crate::outside) struct Late(Arc<Gate>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.num_late.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Shares are even, as those of the instances that ask.
fn share(name: &Namespace) -> Owner {
    Owner { tenant: name.share.clone(), class: Class::default(), weight: 1 }
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
        let gate = Gate::new(1, Duration::from_secs(3600));
        let name = |n: usize| Namespace::of_tenant("p", TenantId::new(format!("t{n}")));
        for n in 0..9 {
            let access = gate.to_write(&name(n));
            let pass = gate.enter(&access).await;
            drop(access);
            assert!(lock(&gate.writers).contains_key(&name(n)));
            drop(pass);
        }
        let held = gate.enter(&gate.to_write(&name(9))).await;
        gate.timed_out(&gate.to_write(&name(10)));
        gate.to_write(&name(11));
        let mut left: Vec<usize> = (0..12).filter(|n| lock(&gate.writers).contains_key(&name(*n))).collect();
        left.sort_unstable();
        assert_eq!(left, [9, 10, 11]);
        drop(held);
    }

    #[test]
    fn who_is_refused_for_the_store_has_not_tried_for_its_namespace() {
        let gate = Gate::new(1, Duration::from_secs(10));
        let access = gate.to_write(&Namespace::of_tenant("p", TenantId::new("t")));
        access.writer.as_ref().unwrap().away.note(Some(Instant::now() - Duration::from_secs(20)));
        gate.failed();
        assert!(!gate.admits(&access), "the store is left alone");
        gate.answered(&gate.to_write(&Namespace::of_tenant("p", TenantId::new("other"))));
        assert!(gate.admits(&access) && !gate.admits(&access), "one finds out");
    }

    #[test]
    fn a_write_that_is_held_up_says_that_the_store_answers() {
        let gate = Gate::new(1, Duration::from_secs(3600));
        let [access, other] =
            ["t", "other"].map(|tenant| gate.to_write(&Namespace::of_tenant("p", TenantId::new(tenant))));
        gate.failed();
        gate.held_up(&access);
        assert!(gate.admits(&other) && !gate.admits(&access));
    }
}
