//! What all pools share: the instances and bytes that may live at once, and who gives way when they are used up. The
//! instance that was idle longest goes first, whatever its plugin and tenant; one that works is never taken.

use crate::config::SandboxConfig;
use crate::pool::Pool;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The sandbox-wide bounds.
pub(crate) struct Registry {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    max_bytes: usize,
    max_instances: usize,
    max_age: Duration,
    max_idle: Duration,
    recycle_after: u32,
    pools: Mutex<Vec<Weak<Pool>>>,
}

impl Registry {
    pub(crate) fn new(config: &SandboxConfig) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(config.total_instances as usize)),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            max_bytes: config.total_memory_bytes,
            max_instances: config.total_instances as usize,
            max_age: config.max_age,
            max_idle: config.max_idle,
            recycle_after: config.recycle_after_calls,
            pools: Mutex::default(),
        }
    }

    /// Makes a new pool's idle instances known.
    pub(crate) fn enroll(&self, pool: &Arc<Pool>) {
        self.pools.lock().push(Arc::downgrade(pool));
    }

    /// The right to one more instance; takes it from the instance that was idle longest, or waits until `until`.
    pub(crate) async fn slot(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(slot) = self.slots.clone().try_acquire_owned() {
                return Some(slot);
            }
            if !self.evict_one() {
                break;
            }
        }
        // While someone waits, pools give instances up rather than keep them idle.
        let _waiting = Waiting::new(&self.waiting);
        let slot = self.slots.clone().acquire_owned();
        tokio::time::timeout_at(until.into(), slot).await.ok().and_then(Result::ok)
    }

    /// Whether an instance that has no work may wait for some.
    pub(crate) fn may_idle(&self, calls: u32, born: Instant, now: Instant) -> bool {
        calls < self.recycle_after
            && now.saturating_duration_since(born) < self.max_age
            && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Books bytes of linear memory; makes room by dropping idle instances.
    pub(crate) fn reserve_bytes(&self, bytes: usize) -> bool {
        loop {
            let booked = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= self.max_bytes)
            });
            if booked.is_ok() {
                return true;
            }
            if !self.evict_one() {
                return false;
            }
        }
    }

    /// Gives booked bytes back.
    pub(crate) fn release_bytes(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Linear memory of all instances.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Live instances.
    pub(crate) fn live_instances(&self) -> usize {
        self.max_instances - self.slots.available_permits()
    }

    /// The limit on bytes, for messages.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The limit on instances, for messages.
    pub(crate) fn max_instances(&self) -> usize {
        self.max_instances
    }

    /// Drops what is idle or old for too long, and forgets pools that are gone.
    pub(crate) fn sweep(&self, now: Instant) {
        for pool in self.live_pools() {
            pool.drop_stale(now, self.max_idle, self.max_age);
        }
    }

    fn evict_one(&self) -> bool {
        loop {
            let idle = self.live_pools().into_iter().filter_map(|pool| Some((pool.idle_since()?, pool)));
            match idle.min_by_key(|(since, _)| *since) {
                Some((_, pool)) if pool.drop_oldest() => return true,
                // Another call took that instance meanwhile: look again.
                Some(_) => {}
                None => return false,
            }
        }
    }

    fn live_pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
