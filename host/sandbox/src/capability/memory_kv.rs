//! Key-value storage in memory: one lock per namespace, a quota per namespace and a cap over all, past which a tenant may
//! still have its share ([`Places`]). What is past its time to live is absent at once, and is removed when room is needed, by
//! whomever.

mod contents;
mod space;

pub use contents::Contents;

use super::{BoxFuture, CapabilityError, KvRefusal, KvStore, Namespace};
use crate::slots::share_of;
use parking_lot::{Mutex, RwLock};
use space::{Entry, MAX_NUMBER_BYTES, Room, Space, cost};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_fair::Places;
use tidegate_types::TenantId;

/// From one look into all namespaces for what is over to the next: a moment for each, while nobody else gets to any.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Storage of this process; lost when it ends.
pub struct MemoryKv {
    spaces: RwLock<HashMap<Namespace, Arc<Mutex<Space>>>>,
    held: Mutex<Places>,
    cap: u64,
    swept: Mutex<Option<Instant>>,
    /// In a test's world: when it began, and what has passed there since.
    passed: Option<(Instant, Arc<AtomicU64>)>,
}

impl MemoryKv {
    /// Storage of `cap` bytes over all namespaces, and of at most twice as much where tenants have less than their share of it.
    pub fn new(cap: u64) -> Self {
        let held = Mutex::new(Places::new(cap as usize));
        Self { spaces: RwLock::default(), held, cap, swept: Mutex::default(), passed: None }
    }

    /// The same, where so much time passes in place of the machine's: for tests of plugins ([`crate::Fixed`]).
    pub fn with_passed(cap: u64, passed_ms: Arc<AtomicU64>) -> Self {
        Self { passed: Some((Instant::now(), passed_ms)), ..Self::new(cap) }
    }

    fn now(&self) -> Instant {
        match &self.passed {
            Some((began, passed_ms)) => *began + Duration::from_millis(passed_ms.load(Ordering::Relaxed)),
            None => Instant::now(),
        }
    }

    /// A namespace that something was put into: who looks for what is not there leaves nothing behind.
    fn known(&self, name: &Namespace) -> Option<Arc<Mutex<Space>>> {
        self.spaces.read().get(name).cloned()
    }

    fn space(&self, name: &Namespace) -> Arc<Mutex<Space>> {
        self.known(name).unwrap_or_else(|| self.spaces.write().entry(name.clone()).or_default().clone())
    }

    /// Runs a change that adds at most `wanted` bytes on a namespace, and books what it did to the total.
    fn change<T>(
        &self,
        name: &Namespace,
        quota: u64,
        wanted: u64,
        now: Instant,
        change: impl FnOnce(&mut Space, &Room<'_>) -> Result<T, CapabilityError>,
    ) -> Result<T, CapabilityError> {
        let owner = share_of(name.share.clone());
        self.with(self.space(name), name, |space| {
            let room = Room { before: space.bytes, quota, owner, held: &self.held, cap: self.cap };
            let held = self.held.lock().held() as u64;
            if held.saturating_add(wanted) > self.cap && self.may_sweep(now) {
                space.sweep(now, "");
                self.sweep_others(now);
                *self.swept.lock() = Some(self.now());
            }
            change(space, &room)
        })
    }

    /// Does something to a namespace and books it. Two that grow at once may pass the cap by one value each; the next one is
    /// refused.
    fn with<T>(&self, space: Arc<Mutex<Space>>, name: &Namespace, change: impl FnOnce(&mut Space) -> T) -> T {
        let mut held = space.lock();
        let before = held.bytes;
        let done = change(&mut held);
        self.book(&name.share, before, held.bytes);
        let is_empty = held.is_empty();
        drop(held);
        drop(space);
        if is_empty {
            self.forget(name);
        }
        done
    }

    /// A namespace without entries counts for nothing, so it does not stay: whoever asks names its owner.
    fn forget(&self, name: &Namespace) {
        let mut spaces = self.spaces.write();
        // Nobody else gets to it while all are held.
        let is_free =
            |space: &mut Arc<_>| Arc::get_mut(space).is_some_and(|space: &mut Mutex<Space>| space.get_mut().is_empty());
        if spaces.get_mut(name).is_some_and(is_free) {
            spaces.remove(name);
        }
    }

    /// A namespace of this tenant's has changed.
    fn book(&self, share: &TenantId, before: u64, after: u64) {
        if before != after {
            self.held.lock().change(&share_of(share.clone()), before as usize, after as usize);
        }
    }

    fn may_sweep(&self, now: Instant) -> bool {
        let mut swept = self.swept.lock();
        let may = swept.is_none_or(|last| now.saturating_duration_since(last) >= SWEEP_EVERY);
        if may {
            *swept = Some(now);
        }
        may
    }

    /// Removes what is over everywhere, and namespaces that are empty. One that is in use is passed over: nobody waits for
    /// two of them.
    fn sweep_others(&self, now: Instant) {
        self.spaces.write().retain(|name, space| {
            let in_use = Arc::strong_count(space) > 1;
            let Some(mut space) = space.try_lock() else { return true };
            let before = space.bytes;
            space.sweep(now, "");
            self.book(&name.share, before, space.bytes);
            in_use || !space.is_empty()
        });
    }
}

/// A time too far off to count is no end at all.
fn expiry(now: Instant, ttl: Option<Duration>) -> Option<Instant> {
    ttl.and_then(|ttl| now.checked_add(ttl))
}

impl KvStore for MemoryKv {
    fn get_many<'a>(
        &'a self,
        space: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>> {
        let Some(known) = self.known(space) else { return ready(Ok(vec![None; keys.len()])) };
        let now = self.now();
        ready(self.with(known, space, |known| {
            let found = || keys.iter().map(|key| known.get(key, now));
            if found().flatten().map(|entry| entry.value.len() as u64).sum::<u64>() > most {
                return Err(KvRefusal::TooMuch(most).into());
            }
            Ok(found().map(|entry| entry.map(|entry| entry.value.clone())).collect())
        }))
    }

    fn set<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let now = self.now();
        let entry = Entry { value, expires: expiry(now, ttl) };
        let wanted = cost(&key, &entry);
        ready(self.change(space, quota, wanted, now, |space, room| space.put(key, entry, room, now)))
    }

    fn increment<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        let now = self.now();
        let wanted = cost(&key, &Entry { value: Vec::new(), expires: expiry(now, ttl) }) + MAX_NUMBER_BYTES;
        ready(self.change(space, quota, wanted, now, |space, room| space.increment(key, delta, ttl, room, now)))
    }

    fn delete<'a>(&'a self, space: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        if let Some(known) = self.known(space) {
            self.with(known, space, |known| known.remove(key));
        }
        ready(Ok(()))
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

#[cfg(test)]
mod tests;
