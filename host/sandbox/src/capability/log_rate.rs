//! How much all calls of a plugin may log together in a second. A call has its own budget (`log.rs`), which says nothing of a
//! thousand streams that ask at once.
//!
//! Past the limit a tenant may still log its share: the limit, divided among all that log in this second or did in the one
//! before, and one line in any case. So nobody's requests can keep the lines of others out of the log.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tidegate_types::TenantId;

/// Of one plugin in a second; one call may always log what its own budget allows.
const BYTES_PER_S: usize = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

/// What a plugin may still log.
pub(crate) struct LogRate {
    bytes_per_s: usize,
    second: Mutex<Second>,
}

/// One second: it begins with the first line after the one before.
struct Second {
    began: Instant,
    bytes: usize,
    tenants: HashMap<TenantId, Logged>,
    /// How many tenants logged in the second before: the first of this one count on no more than a share among as many.
    num_before: usize,
}

/// What one tenant has logged in this second.
#[derive(Default)]
struct Logged {
    bytes: usize,
    left_out: u64,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ruling {
    pub(crate) is_within: bool,
    /// How many lines of whom were left out in the second that is over, which nobody was told yet.
    pub(crate) left_out: Vec<(TenantId, u64)>,
}

impl LogRate {
    /// A full one, of a plugin whose calls may log so much each.
    pub(crate) fn new(call_bytes: usize, now: Instant) -> Self {
        let second = Second { began: now, bytes: 0, tenants: HashMap::new(), num_before: 0 };
        Self { bytes_per_s: call_bytes.max(BYTES_PER_S), second: Mutex::new(second) }
    }

    pub(crate) fn bytes_per_s(&self) -> usize {
        self.bytes_per_s
    }

    /// Takes what a line of `tenant` needs, which stands for so many; where that is not there, they are left out.
    pub(crate) fn take(&self, tenant: &TenantId, bytes: usize, lines: u64, now: Instant) -> Ruling {
        let mut second = self.second.lock();
        let left_out = second.turn(now);
        Ruling { is_within: second.take(self.bytes_per_s, tenant, bytes, lines), left_out }
    }
}

impl Second {
    /// Begins the next one where this is over, and tells what was left out.
    fn turn(&mut self, now: Instant) -> Vec<(TenantId, u64)> {
        let passed = now.saturating_duration_since(self.began);
        if passed < SECOND {
            return Vec::new();
        }
        let num_before = if passed < 2 * SECOND { self.tenants.len() } else { 0 };
        (self.began, self.bytes, self.num_before) = (now, 0, num_before);
        let told = self.tenants.drain().filter(|(_, logged)| logged.left_out > 0);
        let mut told: Vec<_> = told.map(|(tenant, logged)| (tenant, logged.left_out)).collect();
        told.sort();
        told
    }

    fn take(&mut self, limit: usize, tenant: &TenantId, bytes: usize, lines: u64) -> bool {
        // Looked up by reference first: nearly every line is of a tenant that has logged in this second.
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(tenant.clone(), Logged::default());
        }
        let share = limit / self.tenants.len().max(self.num_before);
        let Some(logged) = self.tenants.get_mut(tenant) else { return false };
        let is_within = self.bytes.saturating_add(bytes) <= limit
            || logged.bytes == 0
            || logged.bytes.saturating_add(bytes) <= share;
        if is_within {
            logged.bytes += bytes;
            self.bytes = self.bytes.saturating_add(bytes);
        } else {
            logged.left_out += lines;
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: &str) -> TenantId {
        TenantId::new(tenant)
    }

    fn ruling(is_within: bool, left_out: &[(&str, u64)]) -> Ruling {
        Ruling { is_within, left_out: left_out.iter().map(|(tenant, lines)| (of(tenant), *lines)).collect() }
    }

    #[test]
    fn a_plugin_logs_so_much_each_second_and_what_is_left_out_is_told_once() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (rate, a) = (LogRate::new(16 << 10, start), of("a"));
        assert_eq!(rate.take(&a, BYTES_PER_S, 1, at(0)), ruling(true, &[]));
        assert_eq!(rate.take(&a, 100, 1, at(0)), ruling(false, &[]));
        assert_eq!(rate.take(&a, 100, 7, at(999)), ruling(false, &[]));
        assert_eq!(rate.take(&a, BYTES_PER_S / 2, 1, at(1000)), ruling(true, &[("a", 8)]));
        assert_eq!(rate.take(&a, BYTES_PER_S / 2, 1, at(1000)), ruling(true, &[]));
        assert_eq!(rate.take(&a, 1, 1, at(1000)), ruling(false, &[]));
        assert_eq!(rate.take(&a, BYTES_PER_S, 1, at(60_000)), ruling(true, &[("a", 1)]));
        assert_eq!(rate.take(&a, 1, 1, at(60_000)), ruling(false, &[]), "nothing is saved up");
    }

    #[test]
    fn one_call_may_log_what_its_budget_allows() {
        let now = Instant::now();
        assert!(LogRate::new(8 << 20, now).take(&of("a"), 8 << 20, 1, now).is_within);
    }

    #[test]
    fn who_uses_it_up_leaves_each_of_the_others_its_share() {
        let now = Instant::now();
        let rate = LogRate::new(16 << 10, now);
        let logs = |tenant: &str| {
            let most = 2 * BYTES_PER_S / 1024;
            (0..most).take_while(|_| rate.take(&of(tenant), 1024, 1, now).is_within).count() * 1024
        };
        assert_eq!(logs("greedy"), BYTES_PER_S);
        assert_eq!(logs("a"), BYTES_PER_S / 2);
        assert_eq!(logs("b"), BYTES_PER_S / 3 / 1024 * 1024);
        assert_eq!(logs("c"), BYTES_PER_S / 4, "however many have come before");
        let later = now + SECOND;
        let told = ruling(true, &[("a", 1), ("b", 1), ("c", 1), ("greedy", 1)]);
        assert_eq!(rate.take(&of("a"), BYTES_PER_S, 1, later), told);
        assert!(rate.take(&of("b"), BYTES_PER_S / 4, 1, later).is_within);
        assert!(!rate.take(&of("b"), 1, 1, later).is_within, "all four of the second before are counted");
    }

    #[test]
    fn a_tenant_logs_one_line_however_small_its_share_is() {
        let now = Instant::now();
        let rate = LogRate::new(16 << 10, now);
        assert!(rate.take(&of("greedy"), BYTES_PER_S, 1, now).is_within);
        for n in 0..1000 {
            assert!(rate.take(&of(&format!("tenant {n}")), 16 << 10, 1, now).is_within, "{n}");
        }
        assert!(!rate.take(&of("tenant 0"), 1, 1, now).is_within);
    }
}
