//! What all pools share: the instances and bytes that may live at once, and who gives way when they are used up. The
//! instance that was idle longest goes first, whatever its plugin and tenant; one that works is never taken.

use crate::config::SandboxConfig;
use crate::pool::Pool;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a plugin's instances spend their time with, and so which slots they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Computing.
    Compute,
    /// Waiting for what others answer.
    Wait,
}

/// The instances of one kind of work.
struct Slots {
    free: Arc<Semaphore>,
    /// Calls that wait for a slot.
    wanted: AtomicUsize,
    max: usize,
}

impl Slots {
    fn new(max: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(max as usize)), wanted: AtomicUsize::new(0), max: max as usize }
    }
}

/// The sandbox-wide bounds.
pub(crate) struct Registry {
    compute: Slots,
    wait: Slots,
    bytes: AtomicUsize,
    max_bytes: usize,
    max_age: Duration,
    max_idle: Duration,
    recycle_after: u32,
    pools: Mutex<Vec<Weak<Pool>>>,
}

impl Registry {
    pub(crate) fn new(config: &SandboxConfig) -> Self {
        Self {
            compute: Slots::new(config.total_instances),
            wait: Slots::new(config.total_waiting_instances),
            bytes: AtomicUsize::new(0),
            max_bytes: config.total_memory_bytes,
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

    fn slots(&self, work: Work) -> &Slots {
        match work {
            Work::Compute => &self.compute,
            Work::Wait => &self.wait,
        }
    }

    /// The right to one more instance; takes it from the instance that was idle longest, or waits until `until`.
    pub(crate) async fn slot(&self, work: Work, until: Instant) -> Option<OwnedSemaphorePermit> {
        let slots = self.slots(work);
        loop {
            if let Ok(slot) = slots.free.clone().try_acquire_owned() {
                return Some(slot);
            }
            if !self.evict_one(|pool| pool.work() == work) {
                break;
            }
        }
        // While someone waits, pools give instances up rather than keep them idle.
        let _waiting = Waiting::new(&slots.wanted);
        let slot = slots.free.clone().acquire_owned();
        tokio::time::timeout_at(until.into(), slot).await.ok().and_then(Result::ok)
    }

    /// Whether an instance that has no work may wait for some.
    pub(crate) fn may_idle(&self, work: Work, calls: u32, born: Instant, now: Instant) -> bool {
        calls < self.recycle_after
            && now.saturating_duration_since(born) < self.max_age
            && self.slots(work).wanted.load(Ordering::Relaxed) == 0
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
            if !self.evict_one(|_| true) {
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
        [&self.compute, &self.wait].into_iter().map(|slots| slots.max - slots.free.available_permits()).sum()
    }

    /// The limit on bytes, for messages.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The limit on instances, for messages.
    pub(crate) fn max_instances(&self, work: Work) -> usize {
        self.slots(work).max
    }

    /// Drops what is idle or old for too long, and forgets pools that are gone.
    pub(crate) fn sweep(&self, now: Instant) {
        for pool in self.live_pools() {
            pool.drop_stale(now, self.max_idle, self.max_age);
        }
    }

    fn evict_one(&self, of: impl Fn(&Pool) -> bool) -> bool {
        loop {
            let pools = self.live_pools().into_iter().filter(|pool| of(pool));
            let idle = pools.filter_map(|pool| Some((pool.idle_since()?, pool)));
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
