//! Strings and numbers, spelling by spelling: what a keyword rules out cannot be said.

use super::layout;
use super::support::{self, ENDS, VOCAB, grammars, tenant};
use serde_json::{Value, json};
use tidegate_grammar::check_schema;

/// What is said whole, of these texts.
pub fn said_of<'t>(schema: Value, texts: &[&'t str]) -> Vec<&'t str> {
    assert_eq!(check_schema(&schema), Ok(()), "{schema}");
    let compiled = grammars().compile(&tenant(), &layout(schema).source()).unwrap();
    let is_said = |text: &str| {
        let (mut guide, tokens) = (compiled.guide(), support::tokens(text).unwrap());
        (0..=tokens.len()).all(|n| {
            let mask = guide.mask(&tokens[..n], &ENDS, VOCAB);
            mask.is_ok_and(|mask| support::is_set(&mask, tokens.get(n).copied().unwrap_or(ENDS[0])))
        })
    };
    texts.iter().copied().filter(|text| is_said(text)).collect()
}

#[test]
fn what_a_pattern_rules_out_is_in_no_spelling_of_a_string() {
    for (pattern, allowed) in [
        (r#"^[^"]*$"#, &[r#""a""#, r#""a\\b""#, r#""\n""#, r#""/""#][..]),
        (r#"^[^\\]*$"#, &[r#""a""#, r#""a\"b""#, r#""\n""#, r#""/""#]),
        (r#"^[^"\n]*$"#, &[r#""a""#, r#""a\\b""#, r#""/""#]),
        (r#"^[^\\/:*?"<>|]+$"#, &[r#""a""#, r#""\n""#]),
        (r#"^([^"]|x)+$"#, &[r#""a""#, r#""a\\b""#, r#""\n""#, r#""/""#]),
        (r"^\S*$", &[r#""a""#, r#""a\"b""#, r#""a\\b""#, r#""/""#]),
        (r"^.*$", &[r#""a""#, r#""a\"b""#, r#""a\\b""#, r#""/""#]),
        (r"^(?<stop>a)$", &[r#""a""#]),
    ] {
        let texts = [r#""a""#, r#""a\"b""#, r#""a\\b""#, r#""\n""#, r#""/""#];
        assert_eq!(said_of(json!({"type": "string", "pattern": pattern}), &texts), allowed, "{pattern}");
    }
    let names = json!({"type": "object", "patternProperties": {r#"^[^"]*$"#: {"const": 1}}, "additionalProperties": {"const": 2}});
    let texts = [r#"{"a":1}"#, r#"{"a":2}"#, r#"{"a\"b":1}"#, r#"{"a\"b":2}"#];
    assert_eq!(said_of(names, &texts), [r#"{"a":1}"#, r#"{"a\"b":2}"#]);
}

const NUMBERS: &[&str] = &[
    "-2", "-1.75", "-1.5", "-1.50", "-1.25", "-1", "-1.0", "-0.75", "-0.5", "-0.25", "-0.01", "-0", "-0.0", "0", "0.0",
    "0.00", "0.01", "0.05", "0.25", "0.5", "0.50", "0.75", "1", "1.0", "1.25", "1.5", "1.50", "1.75", "2", "2.0", "3",
    "9.95", "10", "10.0", "99.9", "100",
];

#[test]
fn a_number_is_within_its_bounds() {
    let bounds = [-1.5, -1.0, -0.5, 0.0, 0.05, 0.5, 1.0, 1.5, 2.0, 10.0, 99.9];
    for (i, low) in bounds.iter().enumerate() {
        for high in &bounds[i + 1..] {
            for (lower, upper) in [(true, true), (true, false), (false, true), (false, false)] {
                let least = if lower { "minimum" } else { "exclusiveMinimum" };
                let most = if upper { "maximum" } else { "exclusiveMaximum" };
                let schema = json!({"type": "number", least: low, most: high});
                let fits = |text: &str| {
                    let x: f64 = text.parse().unwrap();
                    (if lower { x >= *low } else { x > *low }) && (if upper { x <= *high } else { x < *high })
                };
                let said = said_of(schema.clone(), NUMBERS);
                assert!(said.iter().all(|text| fits(text)), "{schema} does not allow one of {said:?}");
                let missing = NUMBERS.iter().filter(|text| fits(text) && !said.contains(text) && !text.ends_with('0'));
                assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "{schema}");
            }
        }
    }
    for schema in [
        json!({"exclusiveMinimum": true, "minimum": 0, "maximum": 0.5}),
        json!({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}),
        json!({"exclusiveMinimum": 0, "minimum": -1, "maximum": 0.5}),
    ] {
        assert_eq!(said_of(schema, &["0", "0.0", "-0", "0.25", "0.5", "0.75", "-0.5"]), ["0.25", "0.5"]);
    }
    assert_eq!(
        said_of(json!({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}), &["3", "4", "5", "6"]),
        ["4", "5"]
    );
}

#[test]
fn a_number_is_a_multiple_of_what_it_must_be() {
    let texts = ["0", "0.15", "0.07", "0.00000003", "0.00000004", "7", "9973", "299190", "300000000", "-19946"];
    for (of, allowed) in [
        (json!(100_000_000), &["0", "300000000"][..]),
        (json!(9973), &["0", "9973", "299190", "-19946"]),
        (json!(0.05), &["0", "0.15", "7", "9973", "299190", "300000000", "-19946"]),
        (json!(0.000_000_01), &texts),
    ] {
        assert_eq!(said_of(json!({"type": "number", "multipleOf": of}), &texts), allowed, "{of}");
    }
}

#[test]
fn white_space_is_a_space_or_the_beginning_of_a_line() {
    let schema =
        json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let written = [r#"{"a":1}"#, r#"{ "a" : 1 }"#, "{\n  \"a\": 1\n}", "{\r\n\t\"a\":1}", "{\n\n\"a\":1}"];
    let runs = [r#"{  "a":1}"#, "{\t\"a\":1}", "{\n\n\n\"a\":1}", "{\"a\":1 \n}", "{\n \n\"a\":1}"];
    assert_eq!(said_of(schema.clone(), &written), written);
    assert_eq!(said_of(schema, &runs), [""; 0]);
}

#[test]
fn what_is_wrong_in_a_pattern_is_told() {
    let compile = |pattern: &str| {
        let schema = json!({"type": "string", "pattern": pattern});
        grammars().compile(&tenant(), &layout(schema).source()).map(drop).unwrap_err().to_string()
    };
    for (pattern, wrong) in [("^(?=a)b$", "look-around"), ("((", "unclosed group"), (r"(a)\1", "backreferences")] {
        let error = compile(pattern);
        assert!(error.contains(wrong) && !error.contains('\n'), "{error:?}");
    }
}

#[test]
fn a_date_is_a_day_and_a_time_has_its_seconds() {
    let dates = [r#""2024-02-29""#, r#""2000-02-29""#, r#""2023-02-28""#, r#""0001-01-01""#, r#""9999-12-31""#];
    let none = [r#""2023-02-29""#, r#""1900-02-29""#, r#""0000-01-01""#, r#""2023-04-31""#, r#""2023-1-1""#, r#""a""#];
    let all = [&dates[..], &none].concat();
    let texts = [&all[..], &["1"]].concat();
    assert_eq!(said_of(json!({"type": "string", "format": "date"}), &texts), dates);
    assert_eq!(
        said_of(json!({"format": "date", "maximum": 1}), &texts),
        [&dates[..], &["1"]].concat(),
        "of strings alone"
    );
    let of_2000s = json!({"type": "string", "pattern": "^20", "format": "date"});
    assert_eq!(said_of(of_2000s.clone(), &texts), dates[..3]);
    let named = json!({"type": "array", "items": {"$ref": "#/$defs/day"}, "$defs": {"day": of_2000s}});
    let said = said_of(named, &[r#"["2024-02-29"]"#, r#"["2023-02-29"]"#, r#"["0001-01-01"]"#]);
    assert_eq!(said, [r#"["2024-02-29"]"#]);

    let times = [r#""2024-02-29T23:59:59Z""#, r#""2024-01-01t00:00:00.25+02:00""#];
    let none = [r#""2023-02-29T00:00:00Z""#, r#""2024-01-01T12:00:60Z""#, r#""2024-01-01T12:00:00""#];
    let texts = [&times[..], &none].concat();
    assert_eq!(said_of(json!({"type": "string", "format": "date-time"}), &texts), times);
    let texts = [r#""23:59:59Z""#, r#""12:00:00.5-23:59""#, r#""12:00:60Z""#, r#""24:00:00Z""#];
    assert_eq!(said_of(json!({"type": "string", "format": "time"}), &texts), texts[..2]);
}

#[test]
fn an_object_of_many_dates_compiles() {
    let names: serde_json::Map<_, _> =
        (0..100).map(|n| (format!("n{n}"), json!({"type": "string", "format": "date-time"}))).collect();
    let schema = json!({"type": "object", "properties": names});
    assert_eq!(grammars().compile(&tenant(), &layout(schema).source()).map(drop), Ok(()));
}
