//! Days and months in UTC.

pub(super) const DAY_S: u64 = 86_400;

/// The day of a moment, in UTC: `2026-11-21`.
pub fn day_of(unix_s: u64) -> String {
    day(unix_s.saturating_mul(1000))
}

/// `2026-11-21`.
pub(super) fn day(now_ms: u64) -> String {
    let (year, month, day) = civil(now_ms / 1000 / DAY_S);
    format!("{year:04}-{month:02}-{day:02}")
}

/// `2026-11`.
pub(super) fn month(now_ms: u64) -> String {
    let (year, month, _) = civil(now_ms / 1000 / DAY_S);
    format!("{year:04}-{month:02}")
}

pub(super) fn day_end_s(now_ms: u64) -> u64 {
    DAY_S - now_ms / 1000 % DAY_S
}

pub(super) fn month_end_s(now_ms: u64) -> u64 {
    let today = now_ms / 1000 / DAY_S;
    let this = civil(today).1;
    let days = (1..=31).find(|ahead| civil(today + ahead).1 != this).unwrap_or(31);
    (days - 1) * DAY_S + day_end_s(now_ms)
}

/// Year, month and day of the day that is so many days after 1970-01-01
/// (<https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
pub(super) fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budgets;

    /// 2026-11-21 12:00:00 UTC.
    const NOON: u64 = 1_795_262_400_000;

    #[test]
    fn days_and_months_are_those_of_the_calendar() {
        assert_eq!((day(NOON), month(NOON)), ("2026-11-21".into(), "2026-11".into()));
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400_000), "2000-02-29");
        assert_eq!(day_end_s(NOON), DAY_S / 2);
        let (today, first) = Budgets::window_starts_ms(NOON);
        assert_eq!((day(today), day(first), NOON - today), ("2026-11-21".into(), "2026-11-01".into(), DAY_S * 500));
        assert_eq!(month_end_s(NOON), 9 * DAY_S + DAY_S / 2);
    }
}
