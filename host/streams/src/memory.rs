//! What logs hold in memory, and whose it is: one bound for all of them, which one tenant cannot fill for the others.
//!
//! Where all together hold too much, each tenant has its share: the bound, divided by the tenants that have logs. Whoever
//! holds more than that makes room, and begins no further log; whoever holds less finds room. What runs may grow past the
//! bound, but where all hold twice as much, the logs of whoever has more than its share grow no further, and what is large by
//! itself is not taken.
//!
//! Counts are read while others change them: a bound is exact to what is appended at the same moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all logs hold together.
pub(crate) struct Memory {
    limit_bytes: usize,
    bytes: AtomicUsize,
    tenants: AtomicUsize,
}

/// What the logs of one tenant hold. Each of them has it, and it goes with the last.
pub(crate) struct Holding {
    memory: Arc<Memory>,
    bytes: AtomicUsize,
    /// Those that can be found.
    num_logs: AtomicUsize,
}

impl Memory {
    pub(crate) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, bytes: AtomicUsize::new(0), tenants: AtomicUsize::new(0) })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.limit_bytes
    }

    /// Bytes of one tenant.
    pub(crate) fn share(&self) -> usize {
        self.limit_bytes / self.tenants.load(Ordering::Relaxed).max(1)
    }
}

impl Holding {
    pub(crate) fn new(memory: &Arc<Memory>) -> Arc<Self> {
        memory.tenants.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { memory: Arc::clone(memory), bytes: AtomicUsize::new(0), num_logs: AtomicUsize::new(0) })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn num_logs(&self) -> usize {
        self.num_logs.load(Ordering::Relaxed)
    }

    /// One more can be found.
    pub(crate) fn enter(&self) {
        self.num_logs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.num_logs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether it is as much as the tenant's share, or more.
    pub(crate) fn is_share(&self) -> bool {
        self.bytes() >= self.memory.share()
    }

    /// Whether all logs hold as much as they may.
    pub(crate) fn is_full(&self) -> bool {
        self.memory.is_full()
    }

    /// Whether so many bytes more are within what running logs may hold, all of them or the tenant's.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.memory.bytes().saturating_add(bytes) <= self.memory.limit_bytes.saturating_mul(2)
            || self.bytes().saturating_add(bytes) < self.memory.share()
    }

    /// Whether a log of the tenant may hold more only in place of what it holds.
    pub(crate) fn must_not_grow(&self) -> bool {
        self.memory.bytes() > self.memory.limit_bytes.saturating_mul(2) && self.is_share()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.memory.tenants.fetch_sub(1, Ordering::Relaxed);
    }
}
