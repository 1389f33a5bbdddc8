//! One text for each JSON value, the same for all that JSON Schema calls equal: `1` and `1.0`, objects whatever the order
//! of their keys. `const`, `enum` and `uniqueItems` compare by it.

use serde_json::{Number, Value};
use std::fmt::Write;

/// Integers are from -2^63 to below 2^64; what is larger is read as a float always.
const INTEGERS: std::ops::Range<f64> = -9_223_372_036_854_775_808.0..18_446_744_073_709_551_616.0;
/// Of a value in a message.
const MAX_SHOWN: usize = 200;

pub(super) fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

/// For a message.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => out.push_str(&whole(number).as_ref().unwrap_or(number).to_string()),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_value(item, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (name, member) in members {
                // `{:?}` escapes: no name can look like two.
                let _ = write!(out, "{name:?}:");
                write_value(member, out);
                out.push(',');
            }
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

/// A float that is a whole number, as the integer that it is.
pub(super) fn whole(number: &Number) -> Option<Number> {
    let is_whole = |float: &f64| number.is_f64() && float.fract() == 0.0 && INTEGERS.contains(float);
    let float = number.as_f64().filter(is_whole)?;
    Some(if float < 0.0 { (float as i64).into() } else { (float as u64).into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_equal_has_one_form_and_what_is_not_has_two() {
        let same = |a: Value, b: Value| canonical(&a) == canonical(&b);
        assert!(same(json!({"a": 1, "b": [2.0]}), json!({"b": [2], "a": 1.0})));
        assert!(same(json!(-0.0), json!(0)));
        assert!(!same(json!(1), json!(1.5)) && !same(json!("1"), json!(1)) && !same(json!(null), json!("null")));
        assert!(!same(json!([["a"], "b"]), json!([["a", "b"]])));
        assert!(!same(json!({"a\":1,\"b": 1}), json!({"a": 1, "b": 1})));
        assert!(!same(json!(1e300), json!(1e301)));
        assert!(same(json!(1e18), json!(1_000_000_000_000_000_000_u64)) && same(json!(1e19), json!(10_u64.pow(19))));
        assert!(same(json!(-1e18), json!(-10_i64.pow(18))) && same(json!(-(2_f64.powi(63))), json!(i64::MIN)));
        assert!(
            !same(json!(2_f64.powi(64)), json!(u64::MAX)) && !same(json!(2_f64.powi(53)), json!((1_u64 << 53) + 1))
        );
    }

    #[test]
    fn a_long_value_is_shown_in_part() {
        assert_eq!(shown(&json!("abc")), "\"abc\"");
        assert_eq!(shown(&json!("ä".repeat(1000))).chars().count(), MAX_SHOWN + 3);
    }
}
