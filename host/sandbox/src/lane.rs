//! Threads by number, and a count that each changes in a place of its own: a number that all calls write would be fetched
//! from another core for each of them.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// More than threads that make calls often. Those that share a place wait for each other, and nothing worse.
const PLACES: usize = 32;

/// A number of this thread.
pub(crate) fn lane() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static LANE: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    LANE.with(|lane| *lane)
}

/// A count, changed on many threads and seldom asked for.
#[derive(Default)]
pub(crate) struct Count([Place; PLACES]);

/// A line of the cache for itself, with the one that is fetched beside it.
#[derive(Default)]
#[repr(align(128))]
struct Place(AtomicUsize);

impl Count {
    pub(crate) fn add(&self, more: usize) {
        self.own().fetch_add(more, Ordering::SeqCst);
    }

    /// Also of what another thread has added: a place may hold less than nothing.
    pub(crate) fn subtract(&self, fewer: usize) {
        self.own().fetch_sub(fewer, Ordering::SeqCst);
    }

    /// Has all that was added before it is asked for, and nothing that was subtracted before.
    pub(crate) fn sum(&self) -> usize {
        let sum = self.0.iter().fold(0usize, |sum, place| sum.wrapping_add(place.0.load(Ordering::SeqCst)));
        // Of what is added and subtracted again while this reads, it may see the latter alone.
        if sum > isize::MAX as usize { 0 } else { sum }
    }

    fn own(&self) -> &AtomicUsize {
        &self.0[lane() as usize % PLACES].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_adds_another_may_subtract() {
        let count = Count::default();
        count.add(3);
        std::thread::scope(|scope| scope.spawn(|| count.subtract(2)).join()).unwrap();
        assert_eq!(count.sum(), 1);
    }
}
