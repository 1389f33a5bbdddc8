//! The function `strftime_now`, in UTC: templates print today's date into the system prompt.

use minijinja::{Error, ErrorKind};
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point in time, taken apart.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    /// Since 1970-01-01, a Thursday.
    days: i64,
    seconds: i64,
}

/// Python's `strftime` for the fields that templates use; another one is an error that names it.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let civil = civil(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut field = chars.next().unwrap_or('%');
        let is_padded = field != '-';
        if !is_padded {
            field = chars.next().unwrap_or('-');
        }
        let text = civil.field(field).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the field %{field}"))
        })?;
        out.push_str(if is_padded { &text } else { unpadded(&text) });
    }
    Ok(out)
}

/// A number without what fills it up; of zeros alone one is left.
fn unpadded(text: &str) -> &str {
    match text.trim_start_matches(['0', ' ']) {
        "" => &text[text.len().saturating_sub(1)..],
        number => number,
    }
}

/// Days to a date by Howard Hinnant's `civil_from_days`: years begin in March, so that leap days come last.
fn civil(unix_seconds: i64) -> Civil {
    let days = unix_seconds.div_euclid(86_400);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    Civil {
        year: year_of_era + era * 400 + i64::from(month <= 2),
        month,
        day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        days,
        seconds: unix_seconds.rem_euclid(86_400),
    }
}

impl Civil {
    fn field(&self, field: char) -> Option<String> {
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let weekday = DAYS[self.days.rem_euclid(7) as usize];
        let month = MONTHS[(self.month - 1) as usize];
        Some(match field {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year()),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    fn day_of_year(&self) -> i64 {
        let is_leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(self.month - 1) as usize];
        before + self.day + i64::from(is_leap && self.month > 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_python() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_399, "%d %b %Y, %a %-d %p %I", "28 Feb 2000, Mon 28 PM 11"),
            (951_782_400, "%d %B %y %j", "29 February 00 060"),
            (1_735_689_599, "%F %T %j", "2024-12-31 23:59:59 366"),
            (4_107_542_400, "%F %A", "2100-03-01 Monday"),
            (1_704_412_800, "%-d/%-m 100%%", "5/1 100%"),
            (1_704_412_800, "%-H:%-M:%-S %-I %-e|%e", "0:0:0 12 5| 5"),
        ];
        for (seconds, format, expected) in cases {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime(now, format).expect(format), expected, "{seconds} {format}");
        }
    }

    #[test]
    fn an_unknown_field_is_named() {
        let error = strftime(UNIX_EPOCH, "%Q").expect_err("no such field");
        assert!(error.to_string().contains("%Q"), "{error}");
    }
}
