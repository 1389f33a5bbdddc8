//! How much all calls of a plugin may log together: so many bytes at once, and as many again each second. A call has its own
//! budget (`log.rs`), which says nothing of a thousand streams that ask at once.

use parking_lot::Mutex;
use std::time::Instant;

/// Of one plugin in a second; one call may always log what its own budget allows.
const BYTES_PER_S: usize = 1 << 20;

/// What a plugin may still log.
pub(crate) struct LogRate {
    bytes_per_s: usize,
    bucket: Mutex<Bucket>,
}

struct Bucket {
    left: usize,
    filled: Instant,
    dropped_lines: u64,
}

impl LogRate {
    /// A full one, of a plugin whose calls may log so much each.
    pub(crate) fn new(call_bytes: usize, now: Instant) -> Self {
        let bytes_per_s = call_bytes.max(BYTES_PER_S);
        let bucket = Mutex::new(Bucket { left: bytes_per_s, filled: now, dropped_lines: 0 });
        Self { bytes_per_s, bucket }
    }

    pub(crate) fn bytes_per_s(&self) -> usize {
        self.bytes_per_s
    }

    /// Takes what a line needs that stands for so many. `None` where it is not there, and they are left out; else how many
    /// lines were left out before it, of which nobody was told.
    pub(crate) fn take(&self, bytes: usize, lines: u64, now: Instant) -> Option<u64> {
        let mut bucket = self.bucket.lock();
        bucket.fill(self.bytes_per_s, now);
        match bucket.left.checked_sub(bytes) {
            Some(left) => {
                bucket.left = left;
                Some(std::mem::take(&mut bucket.dropped_lines))
            }
            None => {
                bucket.dropped_lines += lines;
                None
            }
        }
    }
}

impl Bucket {
    fn fill(&mut self, bytes_per_s: usize, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        let more = (seconds * bytes_per_s as f64) as usize;
        // Less than a byte waits for the next line.
        if more > 0 {
            self.left = self.left.saturating_add(more).min(bytes_per_s);
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_plugin_logs_a_second_at_once_and_as_much_each_second_and_what_is_left_out_is_told_once() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let rate = LogRate::new(16 << 10, start);
        assert_eq!(rate.take(BYTES_PER_S, 1, at(0)), Some(0));
        assert_eq!(rate.take(100, 1, at(0)), None);
        assert_eq!(rate.take(100, 7, at(0)), None);
        assert_eq!(rate.take(BYTES_PER_S / 2, 1, at(500)), Some(8));
        assert_eq!(rate.take(100, 1, at(500)), None);
        assert_eq!(rate.take(100, 1, at(1500)), Some(1));
        assert_eq!(rate.take(BYTES_PER_S + 1, 1, at(60_000)), None, "nothing is saved up");
    }

    #[test]
    fn one_call_may_log_what_its_budget_allows() {
        let now = Instant::now();
        assert_eq!(LogRate::new(8 << 20, now).take(8 << 20, 1, now), Some(0));
    }
}
