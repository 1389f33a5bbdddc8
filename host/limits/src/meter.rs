//! One rate: the generic cell rate algorithm in its form as a leaking meter (ITU-T I.371, Annex A: "continuous-state
//! leaky bucket", which decides as its other form, the virtual schedule, does). The level rises by what is asked for and
//! falls evenly; what would raise it above one minute's amount is refused. Whole numbers only: one unit of level is what
//! a rate of one a minute loses in a microsecond.
//!
//! A correction changes the past. Had a charge been smaller by some amount, the level would have been lower by it ever
//! since, except that a level cannot be below zero: where it came close, the rest of the difference would have been lost
//! to idleness. So what is given back is the amount, but no more than the lowest level since the charge (`lows.rs`).

use crate::lows::Lows;
use std::time::Duration;

/// Units of level of one request or token.
const UNIT: u64 = 60_000_000;

/// The highest rate: a minute of it fits the level with room to spare.
pub const MAX_PER_MINUTE: u64 = 10_000_000_000;

/// A meter of one rate.
#[derive(Clone, Debug)]
pub struct Meter {
    per_minute: u64,
    level: u64,
    /// Microseconds; the level is of then.
    at: u64,
    changes: u64,
    /// Charges that may be corrected.
    open: u32,
    lows: Lows,
}

/// A charge that may be corrected; to be given to [`Meter::correct`] once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    change: u64,
    amount: u64,
}

/// Why a charge is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There will be room after this time.
    For(Duration),
    /// It is more than a minute's amount.
    Forever,
}

impl Meter {
    /// A meter that nothing was charged to.
    pub fn new(per_minute: u64, now: Duration) -> Self {
        let per_minute = per_minute.clamp(1, MAX_PER_MINUTE);
        Self { per_minute, level: 0, at: micros(now), changes: 0, open: 0, lows: Lows::default() }
    }

    /// From now on at another rate; what was charged stays charged. At a lower one that is no more than a minute's amount, or
    /// who was let use more before would wait for it for hours; a debt takes as long to pay as it did.
    pub fn set_rate(&mut self, per_minute: u64, now: Duration) {
        self.change(now);
        let before = std::mem::replace(&mut self.per_minute, per_minute.clamp(1, MAX_PER_MINUTE));
        let in_step = u128::from(self.level) * u128::from(self.per_minute) / u128::from(before);
        let most = u64::try_from(in_step).unwrap_or(u64::MAX).max(self.per_minute * UNIT);
        self.level = self.level.min(most);
        self.lows.lower_to(self.level);
    }

    /// Whether `amount` can be charged now.
    pub fn check(&mut self, amount: u64, now: Duration) -> Result<(), Refused> {
        self.drain(now);
        if amount > self.per_minute {
            return Err(Refused::Forever);
        }
        // Both are at most a minute's amount, but for debts.
        match self.level.saturating_add(amount * UNIT).checked_sub(self.per_minute * UNIT) {
            None | Some(0) => Ok(()),
            Some(over) => Err(Refused::For(Duration::from_micros(over.div_ceil(self.per_minute)))),
        }
    }

    /// Charges `amount` for good.
    pub fn charge(&mut self, amount: u64, now: Duration) {
        self.change(now);
        self.level = self.level.saturating_add(amount.saturating_mul(UNIT));
    }

    /// Charges `amount` until it is known how much it was.
    pub fn reserve(&mut self, amount: u64, now: Duration) -> Charge {
        self.charge(amount, now);
        self.open += 1;
        Charge { change: self.changes, amount }
    }

    /// A charge may come to `more` than was thought. It stays one charge: of all of it no more is given back than the
    /// level was before this, or lower since, which is too little rather than too much.
    pub fn raise(&mut self, charge: &mut Charge, more: u64, now: Duration) {
        self.charge(more, now);
        charge.amount = charge.amount.saturating_add(more);
    }

    /// It was `used`: what was charged and not used is given back as far as it was not lost to idleness since, what was
    /// used beyond is charged now.
    pub fn correct(&mut self, charge: Charge, used: u64, now: Duration) {
        self.change(now);
        match charge.amount.checked_sub(used) {
            Some(unused) => self.level -= self.lows.lower_since(charge.change, unused.saturating_mul(UNIT)),
            None => self.level = self.level.saturating_add((used - charge.amount).saturating_mul(UNIT)),
        }
        self.open -= 1;
        if self.open == 0 {
            self.lows.clear();
        }
    }

    /// The most that can be charged at once.
    pub fn limit(&self) -> u64 {
        self.per_minute
    }

    /// What is charged and has not leaked away, rounded up.
    pub fn used(&mut self, now: Duration) -> u64 {
        self.drain(now);
        self.level.div_ceil(UNIT)
    }

    /// What can be charged now.
    pub fn remaining(&mut self, now: Duration) -> u64 {
        self.per_minute.saturating_sub(self.used(now))
    }

    /// Until everything has leaked away.
    pub fn reset(&mut self, now: Duration) -> Duration {
        self.drain(now);
        Duration::from_micros(self.level.div_ceil(self.per_minute))
    }

    /// Whether it could be forgotten: a new one would do the same.
    pub fn is_idle(&mut self, now: Duration) -> bool {
        self.drain(now);
        self.level == 0 && self.open == 0
    }

    fn drain(&mut self, now: Duration) {
        let now = micros(now);
        // A time that was read before another's is no time that passed.
        let passed = now.saturating_sub(self.at);
        self.level = self.level.saturating_sub(passed.saturating_mul(self.per_minute));
        self.at += passed;
    }

    fn change(&mut self, now: Duration) {
        self.drain(now);
        self.changes += 1;
        if self.open > 0 {
            self.lows.note(self.changes, self.level);
        }
    }
}

/// Rounded down: a meter that loses a microsecond refuses a little longer, and catches up with the next.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_minutes_amount_at_once_and_then_evenly() {
        let mut meter = Meter::new(60, at(0));
        for _ in 0..60 {
            meter.check(1, at(0)).unwrap();
            meter.charge(1, at(0));
        }
        assert_eq!(meter.check(1, at(0)), Err(Refused::For(at(1))));
        assert_eq!((meter.remaining(at(0)), meter.reset(at(0))), (0, at(60)));
        assert_eq!(meter.check(1, at(1)), Ok(()));
        assert_eq!(meter.check(30, at(10)), Err(Refused::For(at(20))));
        assert!(!meter.is_idle(at(59)) && meter.is_idle(at(60)));
        assert_eq!(meter.check(61, at(100)), Err(Refused::Forever));
    }

    #[test]
    fn what_was_not_used_is_given_back_at_once() {
        let mut meter = Meter::new(600, at(0));
        let [one, two] = [300, 300].map(|amount| meter.reserve(amount, at(0)));
        assert_eq!(meter.remaining(at(1)), 10);
        meter.correct(two, 100, at(1));
        assert_eq!(meter.remaining(at(1)), 210);
        meter.correct(one, 0, at(2));
        assert_eq!(meter.remaining(at(2)), 520);
        assert!(meter.is_idle(at(10)));
    }

    #[test]
    fn what_leaked_away_meanwhile_is_not_given_back_again() {
        let mut meter = Meter::new(60, at(0));
        let first = meter.reserve(60, at(0));
        // A minute later everything may be asked for again; that the first took nothing gives no second minute.
        let second = meter.reserve(60, at(60));
        meter.correct(first, 0, at(60));
        assert_eq!(meter.remaining(at(60)), 0);
        meter.correct(second, 0, at(61));
        assert_eq!(meter.remaining(at(61)), 60);
    }

    #[test]
    fn what_a_charge_was_raised_by_counts_at_once_and_is_given_back_with_it() {
        let mut meter = Meter::new(600, at(0));
        let mut charge = meter.reserve(300, at(0));
        meter.raise(&mut charge, 100, at(0));
        assert_eq!(meter.remaining(at(0)), 200);
        meter.raise(&mut charge, 300, at(0));
        assert_eq!((meter.remaining(at(0)), meter.reset(at(0))), (0, at(70)), "a debt");
        meter.correct(charge, 450, at(0));
        assert_eq!(meter.remaining(at(0)), 150);
        let mut charge = meter.reserve(0, at(60));
        meter.raise(&mut charge, 500, at(60));
        meter.correct(charge, 0, at(60));
        assert_eq!(meter.remaining(at(60)), 100, "nothing was charged when it was raised");
    }

    #[test]
    fn a_debt_is_paid_before_anything_else() {
        let mut meter = Meter::new(60, at(0));
        let charge = meter.reserve(1, at(0));
        meter.correct(charge, 120, at(0));
        assert_eq!((meter.remaining(at(0)), meter.reset(at(0))), (0, at(120)));
        assert_eq!(meter.check(1, at(0)), Err(Refused::For(at(61))));
    }

    #[test]
    fn another_rate_keeps_what_was_charged() {
        let mut meter = Meter::new(60, at(0));
        meter.charge(60, at(0));
        meter.set_rate(120, at(30));
        assert_eq!((meter.remaining(at(30)), meter.reset(at(30))), (90, at(15)));
    }

    #[test]
    fn at_a_lower_rate_nobody_waits_for_more_than_a_minutes_amount() {
        let mut meter = Meter::new(600, at(0));
        let charge = meter.reserve(600, at(0));
        meter.set_rate(6, at(0));
        assert_eq!((meter.remaining(at(0)), meter.reset(at(0))), (0, at(60)));
        meter.correct(charge, 0, at(30));
        assert_eq!(meter.used(at(30)), 0, "no more is given back than there is");
        // What fits the lower rate stays.
        meter.charge(4, at(30));
        meter.set_rate(5, at(30));
        assert_eq!(meter.remaining(at(30)), 1);
        // Two minutes to pay stay two.
        meter.charge(6, at(30));
        meter.set_rate(1, at(30));
        assert_eq!(meter.reset(at(30)), at(120));
    }

    #[test]
    fn the_highest_rate_and_a_clock_that_jumps_overflow_nothing() {
        let mut meter = Meter::new(u64::MAX, at(5));
        let charge = meter.reserve(u64::MAX, at(4));
        assert!(meter.check(1, at(5)).is_err());
        meter.correct(charge, u64::MAX, Duration::MAX);
        assert_eq!(meter.check(MAX_PER_MINUTE, Duration::MAX), Ok(()));
    }
}
