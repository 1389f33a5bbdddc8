//! Formats of dates and times as patterns. llguidance's own let through the 29th of February of any year, the year 0000, and
//! a second 60 at any time of the day.
//!
//! The calendar of RFC 3339, from the year 0001 on, as most parsers have it. Leap seconds are left out: whether there is one
//! depends on a list.

use serde_json::{Map, Value, json};

/// A year that is not 0000.
const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
/// One of each four, but of whole centuries.
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
/// A month and a day that each year has.
const DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
/// With fractions of a second, and its zone.
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Writes the `format` of a schema as a pattern, beside one that it has already.
pub(crate) fn write_format(members: &mut Map<String, Value>) {
    let Some(own) = members.get("format").and_then(Value::as_str).and_then(pattern_of) else { return };
    members.shift_remove("format");
    if !members.contains_key("pattern") {
        members.insert("pattern".to_owned(), own.into());
    } else if let Value::Array(all) = members.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({"pattern": own}));
    }
}

fn pattern_of(format: &str) -> Option<String> {
    let date = format!("(?:{YEAR}-{DAY}|{LEAP_YEAR}-02-29)");
    match format {
        "date" => Some(format!("^{date}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{date}[tT]{TIME}$")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    #[test]
    fn each_year_has_its_days_and_no_others() {
        let date = Regex::new(&pattern_of("date").unwrap()).unwrap();
        for year in 0..10_000_u32 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for (day, expected) in [("02-28", true), ("02-29", is_leap), ("02-30", false), ("12-31", true)] {
                let text = format!("{year:04}-{day}");
                assert_eq!(date.is_match(&text), expected && year > 0, "{text}");
            }
        }
        let days = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, day) in (0..=13_usize).flat_map(|month| (0..=32).map(move |day| (month, day))) {
            let is_one = month > 0 && days.get(month - 1).is_some_and(|last| (1..=*last).contains(&day));
            assert_eq!(date.is_match(&format!("2023-{month:02}-{day:02}")), is_one, "{month} {day}");
        }
    }

    #[test]
    fn a_format_stands_beside_a_pattern() {
        let mut members = Map::new();
        members.insert("format".to_owned(), "date".into());
        members.insert("pattern".to_owned(), "^2".into());
        write_format(&mut members);
        let all = json!([{"pattern": pattern_of("date")}]);
        assert_eq!(Value::Object(members.clone()), json!({"pattern": "^2", "allOf": all}));
        members.insert("format".to_owned(), "uuid".into());
        write_format(&mut members);
        assert_eq!(members["format"], "uuid", "others are llguidance's");
    }
}
