//! A way round for a while: where a cheaper way had to be left once, so many of the next ones do not begin with it, so that what cannot go it
//! pays for that once in so many. One is of a [`crate::pool::Pool`]: what one owner's texts do decides nothing for others.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many go round after one that had to.
const ROUND: u32 = 1_000;

/// How many are left that go round.
#[derive(Default)]
pub(crate) struct Detour(AtomicU32);

impl Detour {
    /// The next ones go round.
    pub(crate) fn begin(&self) {
        self.0.store(ROUND, Ordering::Relaxed);
    }

    /// Whether one that comes now goes round; counts it. Of some at once one may not be counted.
    pub(crate) fn is_taken(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn end_after(&self, left: u32) {
        self.0.store(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_go_round_after_one_that_had_to() {
        let detour = Detour::default();
        assert!(!detour.is_taken());
        detour.begin();
        assert_eq!((0..2 * ROUND).filter(|_| detour.is_taken()).count(), ROUND as usize);
        assert!(!detour.is_taken());
    }
}
