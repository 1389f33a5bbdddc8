//! What callers' keys stand for: which request came with a key first, and what it was answered. No IO, no task, and the
//! time is given.
//!
//! Invariants: a key has one request that makes its answer; answers have a bound in bytes and an age, past which the key
//! still refuses to make another; keys have a bound in number and an age of a day.

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_streams::Log;
use tidegate_types::Reject;
use tokio::sync::watch;

/// Names what a key stands for: a hash of whose it is, where it was sent to, and of itself.
pub(crate) type Id = [u8; 32];

/// How long a key is remembered.
pub(crate) const KEY_AGE: Duration = Duration::from_secs(24 * 3600);

/// Bounds of what is kept for callers' idempotency keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyLimits {
    /// Keys that are remembered; the oldest make room.
    pub keys: usize,
    /// Bytes of answers that are kept to be given again; the oldest make room, and their keys are refused then.
    pub bytes: usize,
}

impl Default for IdempotencyLimits {
    fn default() -> Self {
        Self { keys: 100_000, bytes: 64 << 20 }
    }
}

/// An answer, to be given to everybody who asked the same.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: MadeBody,
}

#[derive(Clone)]
pub(crate) enum MadeBody {
    Whole(Bytes),
    /// As it grows.
    Stream(Arc<Log>),
}

/// Where an answer is waited for; without one for ever, its maker has failed.
pub(crate) type Waiting = watch::Receiver<Option<Result<Made, Reject>>>;

/// What a key is worth.
pub(crate) enum Claim {
    /// It is new: whoever claims it makes the answer.
    New(Begun),
    /// The same request came before.
    Same(Waiting),
    /// The same request came before, and its answer is kept no more.
    Gone,
    /// Another request came with it before.
    Other,
    /// Requests that run hold all keys that there may be.
    Full,
}

/// A request with a new key. Dropped without an answer it frees the key.
pub(crate) struct Begun {
    answers: Arc<Answers>,
    id: Id,
    serial: u64,
    answer: watch::Sender<Option<Result<Made, Reject>>>,
    kept: bool,
}

/// All keys.
pub(crate) struct Answers {
    limits: IdempotencyLimits,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Id, Entry>,
    /// In the order of their claims; one that is no longer there is passed over.
    order: VecDeque<(Id, u64)>,
    /// Those whose answer is kept, by the time that it is kept until.
    kept: BTreeMap<(Instant, u64), Id>,
    bytes: usize,
    serial: u64,
}

struct Entry {
    serial: u64,
    fingerprint: Id,
    begun: Instant,
    state: State,
}

enum State {
    Runs(Waiting),
    Kept { waiting: Waiting, bytes: usize, until: Instant },
    Gone,
}

impl Answers {
    pub(crate) fn new(limits: IdempotencyLimits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Claims a key for a request that `fingerprint` tells from others.
    pub(crate) fn claim(self: &Arc<Self>, id: Id, fingerprint: Id, now: Instant) -> Claim {
        let mut table = self.lock();
        table.expire(now);
        if let Some(entry) = table.entries.get(&id) {
            return match &entry.state {
                _ if entry.fingerprint != fingerprint => Claim::Other,
                State::Runs(waiting) | State::Kept { waiting, .. } => Claim::Same(waiting.clone()),
                State::Gone => Claim::Gone,
            };
        }
        if table.entries.len() >= self.limits.keys && !table.drop_oldest() {
            return Claim::Full;
        }
        table.serial += 1;
        let (serial, (answer, waiting)) = (table.serial, watch::channel(None));
        table.entries.insert(id, Entry { serial, fingerprint, begun: now, state: State::Runs(waiting) });
        table.order.push_back((id, serial));
        Claim::New(Begun { answers: Arc::clone(self), id, serial, answer, kept: false })
    }

    /// Drops the answers whose time is over, where nobody else comes to do so.
    pub(crate) fn expire(&self, now: Instant) {
        self.lock().expire(now);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Begun {
    pub(crate) fn waiting(&self) -> Waiting {
        self.answer.subscribe()
    }

    /// Tells everybody who waits; who asks from now on reads the same.
    pub(crate) fn tell(&self, answer: Result<Made, Reject>) {
        self.answer.send_replace(Some(answer));
    }

    /// Frees the key, and then tells those who were told nothing yet.
    pub(crate) fn fail(self, reject: &Reject) {
        self.answers.lock().remove(self.id, self.serial);
        self.answer.send_if_modified(|answer| {
            let untold = answer.is_none();
            answer.get_or_insert_with(|| Err(reject.clone()));
            untold
        });
    }

    /// The answer is complete and has `bytes`; it is given again until then, and the key is remembered.
    pub(crate) fn keep(mut self, bytes: usize, until: Instant) {
        self.kept = true;
        let mut table = self.answers.lock();
        let waiting = self.answer.subscribe();
        let Some(entry) = table.entry(self.id, self.serial) else { return };
        entry.state = State::Kept { waiting, bytes, until };
        table.bytes += bytes;
        table.kept.insert((until, self.serial), self.id);
        while table.bytes > self.answers.limits.bytes
            && let Some((&(_, serial), &id)) = table.kept.first_key_value()
        {
            table.forget_answer(id, serial);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        self.answers.lock().remove(self.id, self.serial);
    }
}

impl Table {
    /// Forgets keys that are a day old, and answers whose time is over.
    fn expire(&mut self, now: Instant) {
        while let Some((id, serial)) = self.order.front().copied() {
            // One that has run for a day is not forgotten while it runs; those behind it wait with it.
            let stays =
                |entry: &Entry| now.duration_since(entry.begun) < KEY_AGE || matches!(entry.state, State::Runs(_));
            if self.entry(id, serial).is_some_and(|entry| stays(entry)) {
                break;
            }
            self.order.pop_front();
            self.remove(id, serial);
        }
        while let Some((&(until, serial), &id)) = self.kept.first_key_value()
            && until <= now
        {
            self.forget_answer(id, serial);
        }
    }

    /// Drops the oldest key that does not run; whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let runs = |(id, serial): &(Id, u64)| {
            self.entries.get(id).is_some_and(|entry| entry.serial == *serial && matches!(entry.state, State::Runs(_)))
        };
        self.order.retain(|(id, serial)| self.entries.get(id).is_some_and(|entry| entry.serial == *serial));
        let Some(at) = self.order.iter().position(|place| !runs(place)) else { return false };
        let Some((id, serial)) = self.order.remove(at) else { return false };
        self.remove(id, serial);
        true
    }

    fn entry(&mut self, id: Id, serial: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id).filter(|entry| entry.serial == serial)
    }

    fn remove(&mut self, id: Id, serial: u64) {
        self.forget_answer(id, serial);
        if self.entry(id, serial).is_some() {
            self.entries.remove(&id);
        }
    }

    /// The key stays.
    fn forget_answer(&mut self, id: Id, serial: u64) {
        let Some(entry) = self.entry(id, serial) else { return };
        if let State::Kept { bytes, until, .. } = std::mem::replace(&mut entry.state, State::Gone) {
            self.bytes -= bytes;
            self.kept.remove(&(until, serial));
        }
    }
}

#[cfg(test)]
mod tests;
