//! What callers' keys stand for: which request came with a key first, and what it was answered. No IO, no task, and the
//! time is given.
//!
//! Invariants: a key has one request that makes its answer; answers have a bound in bytes and an age, past which the key
//! still refuses to make another; keys have a bound in number and an age of a day; who has the most makes room.

mod shares;
mod table;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{State, Table};
use tidegate_streams::Log;
use tidegate_types::{Reject, TenantId};
use tokio::sync::watch;

/// Names what a key stands for: a hash of whose it is, where it was sent to, and of itself.
pub(crate) type Id = [u8; 32];

/// How long a key is remembered.
pub(crate) const KEY_AGE: Duration = Duration::from_secs(24 * 3600);

/// Bounds of what is kept for callers' idempotency keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyLimits {
    /// Keys that are remembered; the oldest of the tenant with the most make room.
    pub keys: usize,
    /// Bytes of answers that are kept to be given again, at most a quarter of what streams may hold; those of the tenant
    /// with the most make room, and their keys are
    /// refused then.
    pub bytes: usize,
}

impl Default for IdempotencyLimits {
    fn default() -> Self {
        Self { keys: 100_000, bytes: 64 << 20 }
    }
}

impl IdempotencyLimits {
    /// The part of what streams may hold that answers may: those that were streamed are in it, and do not go early as others that
    /// have ended do.
    const OF_STREAMS: usize = 4;

    /// Bounds that leave room for other streams.
    pub(crate) fn beside(self, streams: &tidegate_streams::Limits) -> Self {
        Self { bytes: self.bytes.min(streams.total_bytes / Self::OF_STREAMS), ..self }
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

impl Answers {
    pub(crate) fn new(limits: IdempotencyLimits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Claims a key for a request that `fingerprint` tells from others. `whose` it is says who makes room for it; `None` is
    /// nobody, whose keys go first.
    pub(crate) fn claim(self: &Arc<Self>, id: Id, fingerprint: Id, whose: Option<&TenantId>, now: Instant) -> Claim {
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
        let (answer, waiting) = watch::channel(None);
        let serial = table.begin(id, fingerprint, whose, now, waiting);
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

    /// Whether there is an answer, be it not at its end.
    pub(crate) fn is_told(&self) -> bool {
        self.answer.borrow().is_some()
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
        table.keep(self.id, self.serial, self.answer.subscribe(), bytes, until);
        table.shrink(self.answers.limits.bytes);
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

#[cfg(test)]
mod tests;
