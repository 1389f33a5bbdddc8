//! Times as they are written down: since 1970, by the system's clock. That may be set back, so nothing is measured by it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 where the clock is before it.
pub fn unix_ms() -> u64 {
    millis(since_1970())
}

/// Seconds since 1970; 0 where the clock is before it.
pub fn unix_s() -> u64 {
    since_1970().as_secs()
}

/// Whole milliseconds, as many as there are numbers for.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_units_and_the_longest_is_no_error() {
        let (before, ms, after) = (unix_s(), unix_ms(), unix_s());
        assert!((before..=after).contains(&(ms / 1000)), "{before} {ms} {after}");
        assert_eq!((millis(Duration::from_micros(1_999)), millis(Duration::MAX)), (1, u64::MAX));
    }
}
