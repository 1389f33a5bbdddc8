//! What the keywords of a schema are given: what can be told of it without what is inside.

use crate::error::GrammarError;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Names of one object, any of which may come next: llguidance gives up at about three times as many.
const MAX_NAMES: usize = 400;
/// `minLength`, `maxLength` and their like. Larger ones would not be reached in an answer.
const MAX_COUNT: u64 = 65_536;
/// Drafts whose schemas mean the same as far as they are taken here.
const DRAFTS: &[&str] = &[
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

pub(crate) fn check_text(key: &str, value: &Value, at: &str) -> Result<(), GrammarError> {
    if value.is_string() {
        return Ok(());
    }
    Err(refuse(format!("`{key}` at `{at}` must be a string")))
}

pub(crate) fn check_names(value: &Value, at: &str) -> Result<(), GrammarError> {
    match value.as_object().map_or(0, Map::len) {
        0..=MAX_NAMES => Ok(()),
        names => Err(refuse(format!("`properties` at `{at}` has {names} names; {MAX_NAMES} are allowed"))),
    }
}

pub(crate) fn check_required(value: &Value, at: &str) -> Result<(), GrammarError> {
    match value.as_array().filter(|names| names.iter().all(Value::is_string)).map(Vec::len) {
        Some(0..=MAX_NAMES) => Ok(()),
        Some(names) => Err(refuse(format!("`required` at `{at}` has {names} names; {MAX_NAMES} are allowed"))),
        None => Err(refuse(format!("`required` at `{at}` must be a list of names"))),
    }
}

/// `minimum` and its like. Those that exclude were switches once, and are held as such.
pub(crate) fn check_bound(key: &str, value: &Value, at: &str) -> Result<(), GrammarError> {
    if value.is_number() || (value.is_boolean() && key.starts_with("exclusive")) {
        return check_number(value, at);
    }
    Err(refuse(format!("`{key}` at `{at}` must be a number")))
}

/// llguidance reckons with floating point: of larger numbers the last digits would be others.
pub(crate) fn check_number(value: &Value, at: &str) -> Result<(), GrammarError> {
    const LARGEST: u64 = 1 << 53;
    let is_too_large = match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.unsigned_abs() > LARGEST,
            (None, near) => near.is_none_or(|near| near.abs() > LARGEST as f64),
        },
        _ => false,
    };
    if is_too_large {
        return Err(refuse(format!("the number {value} at `{at}` is beyond 2^53 and cannot be held")));
    }
    Ok(())
}

/// llguidance has a state for each remainder and looks through them for one from which none is left, without a bound: of
/// 300,007 it makes 150 MB in ten seconds, and of nine digits all memory. From powers of ten it finds one at once.
pub(crate) fn check_multiple(value: &Value, at: &str) -> Result<(), GrammarError> {
    const MOST: f64 = 10_000.0;
    const MOST_OF_TEN: f64 = 100_000_000.0;
    const DIGITS: u32 = 8;
    let Some(mut of) = value.as_f64().filter(|of| *of > 0.0) else {
        return Err(refuse(format!("`multipleOf` at `{at}` must be a number above 0")));
    };
    let mut digits = 0;
    while of.fract() != 0.0 && digits <= DIGITS {
        (of, digits) = (of * 10.0, digits + 1);
    }
    let is_of_ten = of <= MOST_OF_TEN && MOST_OF_TEN % of == 0.0 && of.log10().fract() == 0.0;
    if digits <= DIGITS && (of <= MOST || is_of_ten) {
        return Ok(());
    }
    Err(refuse(format!(
        "`multipleOf` at `{at}` is {value}; what is held has at most {DIGITS} digits behind the point, and is at most {MOST} without it, or a power of ten up to {MOST_OF_TEN}"
    )))
}

pub(crate) fn check_draft(value: &Value) -> Result<(), GrammarError> {
    let known = |draft: &str| DRAFTS.contains(&draft.trim_end_matches('#'));
    if value.as_str().is_some_and(known) {
        return Ok(());
    }
    Err(refuse(format!("`$schema` must be one of {}", DRAFTS.join(", "))))
}

pub(crate) fn check_count(
    members: &Map<String, Value>,
    key: &str,
    value: &Value,
    at: &str,
) -> Result<(), GrammarError> {
    let Some(count) = value.as_u64().filter(|count| *count <= MAX_COUNT) else {
        return Err(refuse(format!("`{key}` at `{at}` must be a whole number of at most {MAX_COUNT}")));
    };
    let required = members
        .get("required")
        .and_then(Value::as_array)
        .map_or(0, |names| names.iter().filter_map(Value::as_str).collect::<HashSet<_>>().len() as u64);
    // Nothing keeps a model from writing a name twice, which counts once.
    if key == "minProperties" && count > required {
        let message =
            format!("`minProperties` at `{at}` is above the number of names in `required`, which cannot be held");
        return Err(refuse(message));
    }
    Ok(())
}

/// Control characters have no spelling that a grammar takes, but for the short ones.
pub(crate) fn check_written(value: &Value, at: &str) -> Result<(), GrammarError> {
    let short = |c: char| matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}');
    let strange = |text: &str| text.chars().any(|c| c.is_ascii_control() && !short(c));
    match value {
        Value::String(text) if strange(text) => {
            Err(refuse(format!("a value at `{at}` has a control character, which cannot be held")))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_written(item, at)),
        Value::Object(members) => members.values().try_for_each(|item| check_written(item, at)),
        other => check_number(other, at),
    }
}

pub(crate) fn refuse(message: String) -> GrammarError {
    GrammarError::Schema(message)
}

#[cfg(test)]
mod tests {
    use crate::check_schema;
    use serde_json::{Value, json};

    #[test]
    fn what_a_keyword_cannot_be_given_is_refused_by_the_keyword() {
        let long = format!("x{}", "é".repeat(200));
        for (keyword, value) in [
            ("pattern", json!([long])),
            ("format", json!({"a": long})),
            ("minimum", json!(long)),
            ("exclusiveMaximum", json!([long])),
            ("multipleOf", json!(long)),
            ("multipleOf", json!(0)),
            ("multipleOf", json!(-2)),
            ("required", json!(long)),
            ("required", json!(["a", [long]])),
        ] {
            let mut schema = serde_json::Map::new();
            schema.insert(keyword.to_owned(), value);
            let said = check_schema(&Value::Object(schema)).unwrap_err().to_string();
            assert!(said.contains(&format!("`{keyword}` at `#` must be")) && !said.contains('é'), "{said}");
        }
    }

    #[test]
    fn numbers_that_are_reckoned_rightly_and_in_time_are_taken() {
        let check = |schema: Value| check_schema(&schema);
        for of in [json!(1), json!(0.01), json!(0.05), json!(2.5), json!(9973), json!(1_000_000), json!(0.000_000_01)] {
            assert_eq!(check(json!({"multipleOf": of})), Ok(()), "{of}");
        }
        for of in
            [json!(10_001), json!(299_999_999), json!(1e9), json!(0.000_000_003), json!(1.000_01), json!(0.1 + 0.2)]
        {
            assert!(check(json!({"multipleOf": of})).unwrap_err().to_string().contains("at most 10000"), "{of}");
        }
        assert!(check(json!({"minimum": -1e20})).unwrap_err().to_string().contains("beyond 2^53"));
        assert!(check(json!({"maximum": f64::MAX})).unwrap_err().to_string().contains("beyond 2^53"));
        assert_eq!(check(json!({"minimum": -1e9, "exclusiveMinimum": true})), Ok(()));
    }
}
