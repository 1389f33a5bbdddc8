//! How many requests of one model may be sent again. Pure: the time is given to it.
//!
//! Of the requests of the last ten seconds a share may be repeated, and a few more however few requests there were. A
//! server that fails everything then sees little more than it would without retries, whatever each request is allowed.

use std::time::Duration;

/// Seconds that are looked back on, one slot each.
const WINDOW: usize = 10;

/// Requests and retries of the last ten seconds.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    percent: u32,
    min: u32,
    slots: [Slot; WINDOW],
    /// The second that is being counted.
    second: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    requests: u64,
    retries: u64,
}

impl RetryBudget {
    /// Allows `percent` of the requests, and `min` besides.
    pub(crate) fn new(percent: u32, min: u32) -> Self {
        Self { percent, min, slots: [Slot::default(); WINDOW], second: 0 }
    }

    /// Counts a request, at `now` since some moment that stays the same.
    pub(crate) fn request(&mut self, now: Duration) {
        self.slot(now).requests += 1;
    }

    /// Counts a retry, if there is room for it.
    pub(crate) fn retry(&mut self, now: Duration) -> bool {
        self.slot(now);
        let sum = |of: fn(&Slot) -> u64| self.slots.iter().map(of).sum::<u64>();
        let allowed = u64::from(self.min) * 100 + u64::from(self.percent) * sum(|slot| slot.requests);
        let room = (sum(|slot| slot.retries) + 1) * 100 <= allowed;
        if room {
            self.slot(now).retries += 1;
        }
        room
    }

    /// The slot of `now`; those that are too old are empty then.
    fn slot(&mut self, now: Duration) -> &mut Slot {
        let now = now.as_secs().max(self.second);
        for second in (self.second + 1..=now).take(WINDOW) {
            self.slots[second as usize % WINDOW] = Slot::default();
        }
        self.second = now;
        &mut self.slots[now as usize % WINDOW]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries(budget: &mut RetryBudget, asked: usize, now: Duration) -> usize {
        (0..asked).filter(|_| budget.retry(now)).count()
    }

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn retries_are_a_share_of_the_requests_and_a_few() {
        let mut budget = RetryBudget::new(20, 3);
        assert_eq!(retries(&mut budget, 100, s(0.0)), 3);
        (0..100).for_each(|_| budget.request(s(0.5)));
        assert_eq!(retries(&mut budget, 100, s(1.0)), 20);
        assert_eq!(retries(&mut RetryBudget::new(100, 0), 5, s(0.0)), 0);
    }

    #[test]
    fn what_is_older_than_the_window_counts_no_more() {
        let mut budget = RetryBudget::new(50, 0);
        (0..10).for_each(|_| budget.request(s(0.0)));
        assert_eq!(retries(&mut budget, 3, s(9.9)), 3);
        assert_eq!(retries(&mut budget, 9, s(10.0)), 0, "the requests are forgotten, the retries not");
        (0..20).for_each(|_| budget.request(s(10.0)));
        assert_eq!(retries(&mut budget, 99, s(18.9)), 7);
        assert_eq!(retries(&mut budget, 99, s(19.0)), 3, "the first three are forgotten");
        assert_eq!(retries(&mut budget, 99, s(1e6)), 0);
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_opens_nothing() {
        let mut budget = RetryBudget::new(0, 2);
        assert_eq!(retries(&mut budget, 9, s(5.0)), 2);
        assert_eq!(retries(&mut budget, 9, s(1.0)), 0);
    }
}
