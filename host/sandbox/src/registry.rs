//! What all pools share: the instances and bytes that may live at once, and who gives way when they are used up. The
//! instance that was idle longest goes first, whatever its plugin and tenant; one that works is never taken. Where nothing
//! is idle, a tenant below its share may have some past the limit.
//!
//! Idle instances are taken only where somebody has a place by it: a tenant that has more than its share, and whose calls
//! wait for a service that hangs, takes nobody's warm ones for nothing.

use crate::config::SandboxConfig;
use crate::pool::Pool;
use crate::slots::{Slot, Slots};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidegate_fair::{Owner, Places};

/// What a plugin's instances spend their time with, and so which slots they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Computing.
    Compute,
    /// Waiting for what others answer.
    Wait,
}

/// The sandbox-wide bounds.
pub(crate) struct Registry {
    compute: Arc<Slots>,
    wait: Arc<Slots>,
    bytes: Mutex<Places>,
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
            bytes: Mutex::new(Places::new(config.total_memory_bytes)),
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

    fn slots(&self, work: Work) -> &Arc<Slots> {
        match work {
            Work::Compute => &self.compute,
            Work::Wait => &self.wait,
        }
    }

    /// The right to one more instance; takes it from the instance that was idle longest, or waits until `until`.
    pub(crate) async fn slot(&self, work: Work, owner: &Owner, until: Instant) -> Option<Slot> {
        let slots = self.slots(work);
        let mut missing = match slots.take_free(owner) {
            Ok(slot) => return Some(slot),
            Err(missing) => missing,
        };
        // Who may have one past the limit takes that of one that is idle first.
        while self.evict_for(work, missing.max(1)) {
            match slots.take_fair(owner) {
                Ok(slot) => return Some(slot),
                Err(more) => missing = more,
            }
        }
        match slots.take_or_queue(owner) {
            Ok(slot) => Some(slot),
            Err(waiting) => {
                // What became idle since is found by this, and what does from now on by whoever leaves it.
                self.relieve(work);
                tokio::time::timeout_at(until.into(), waiting).await.ok().and_then(Result::ok)
            }
        }
    }

    /// Whether an instance of `owner` that has no work may wait for some.
    pub(crate) fn may_idle(&self, work: Work, owner: &Owner, calls: u32, born: Instant, now: Instant) -> bool {
        calls < self.recycle_after
            && now.saturating_duration_since(born) < self.max_age
            && self.slots(work).may_keep(owner)
    }

    /// Takes places from idle instances for those that wait, as far as that helps one. To be called whenever there may be
    /// more idle ones, or fewer places are held.
    pub(crate) fn relieve(&self, work: Work) {
        let slots = self.slots(work);
        while slots.is_crowded()
            && let Some(missing) = slots.missing_for_waiters()
        {
            if !self.evict_for(work, missing) {
                return;
            }
        }
    }

    /// Books bytes of linear memory; makes room by dropping idle instances.
    pub(crate) fn reserve_bytes(&self, owner: &Owner, bytes: usize) -> bool {
        loop {
            if self.book(owner, bytes, |held| held.held().saturating_add(bytes) <= self.max_bytes) {
                return true;
            }
            if !self.evict_one(|_| true) {
                return self.book(owner, bytes, |held| held.has_room(owner, bytes));
            }
        }
    }

    fn book(&self, owner: &Owner, bytes: usize, may: impl FnOnce(&Places) -> bool) -> bool {
        let mut held = self.bytes.lock();
        let may = may(&held);
        // Who holds nothing counts for no share.
        if may && bytes > 0 {
            held.take(owner, bytes);
        }
        may
    }

    /// Gives booked bytes back.
    pub(crate) fn release_bytes(&self, owner: &Owner, bytes: usize) {
        self.bytes.lock().give_back(owner, bytes);
    }

    /// Linear memory of all instances.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.lock().held()
    }

    /// Live instances.
    pub(crate) fn live_instances(&self) -> usize {
        self.compute.held() + self.wait.held()
    }

    /// The limit on bytes, for messages.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The limit on instances, for messages.
    pub(crate) fn max_instances(&self, work: Work) -> usize {
        self.slots(work).max()
    }

    /// Drops what is idle or old for too long, and forgets pools that are gone.
    pub(crate) fn sweep(&self, now: Instant) {
        for pool in self.live_pools() {
            pool.drop_stale(now, self.max_idle, self.max_age);
        }
        // Places of a plugin that is gone came free without a call.
        [Work::Compute, Work::Wait].into_iter().for_each(|work| self.relieve(work));
    }

    /// Drops the instance that was idle longest, where so many are idle.
    fn evict_for(&self, work: Work, missing: usize) -> bool {
        let of_work = |pool: &Pool| pool.work() == work;
        let num_idle =
            || self.live_pools().iter().filter(|pool| of_work(pool)).map(|pool| pool.num_idle()).sum::<usize>();
        (missing <= 1 || num_idle() >= missing) && self.evict_one(of_work)
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
