mod generated;
mod hostile;
mod keys;
mod keywords;
mod tools;

use super::*;
use serde_json::json;

/// What is wrong with a config by a schema that is right.
fn says(schema: &Value, config: &Value) -> Result<(), String> {
    check_schema(schema).unwrap_or_else(|wrong| panic!("{schema}: {}: {}", wrong.path, wrong.message));
    validate(schema, config.clone()).map(drop).map_err(|wrong| format!("{}: {}", wrong.path, wrong.message))
}

/// Why a schema is refused.
fn refused(schema: &Value) -> String {
    let wrong = check_schema(schema).unwrap_err();
    format!("{}: {}", wrong.path, wrong.message)
}

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["action"],
        "properties": {
            "action": {"type": "string", "enum": ["block", "redact"], "description": "what to do"},
            "words": {"type": "array", "items": {"type": "string", "minLength": 2}, "maxItems": 2, "uniqueItems": true},
            "limit": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
            "nested": {"type": "object", "properties": {"deep": {"type": ["boolean", "null"]}}},
            "free": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 3}]},
        },
    })
}

fn check(config: Value) -> Result<(), String> {
    says(&schema(), &config)
}

#[test]
fn a_config_that_fits_is_accepted() {
    check(json!({"action": "block"})).unwrap();
    check(json!({
        "action": "redact", "words": ["ab", "cd"], "limit": 9, "nested": {"deep": null},
        "free": {"a": 1, "b": 2.5}, "either": 3,
    }))
    .unwrap();
}

/// What a plugin is given of a config.
#[test]
fn a_float_that_is_an_integer_is_given_as_one_where_the_schema_wants_one() {
    let integer = json!({"type": "integer"});
    let schema = json!({
        "type": "object",
        "$defs": {"count": integer},
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "share": {"type": "number"},
            "any": true,
            "limit": {"type": ["integer", "null"]},
            "either": {"type": ["integer", "number"]},
            "counts": {"type": "array", "items": {"$ref": "#/$defs/count"}},
            "named": {"type": "object", "additionalProperties": integer},
            "tried": {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "number"}]},
        },
    });
    check_schema(&schema).unwrap();
    let given = |config: Value| validate(&schema, config).unwrap().to_string();
    for (config, expected) in [
        (json!({"size": 5.0}), r#"{"size":5}"#),
        (json!({"share": 5.0, "any": 5.0, "either": 5.0}), r#"{"share":5.0,"any":5.0,"either":5.0}"#),
        (json!({"limit": -2.0, "counts": [1.0, 2, 0.0]}), r#"{"limit":-2,"counts":[1,2,0]}"#),
        (
            json!({"limit": null, "named": {"a": 1e18, "b": 1e300}}),
            r#"{"limit":null,"named":{"a":1000000000000000000,"b":1e+300}}"#,
        ),
        (json!({"tried": 5.0}), r#"{"tried":5.0}"#),
        (json!({"tried": 12.0}), r#"{"tried":12}"#),
    ] {
        assert_eq!(given(config.clone()), expected, "{config}");
    }
}

#[test]
fn each_violation_names_its_key() {
    let cases = [
        (json!({}), ".action: it is required and missing"),
        (json!({"action": "blok"}), ".action: \"blok\" is not one of \"block\", \"redact\""),
        (json!({"action": "block", "wrods": []}), ".wrods: there is no such key; did you mean `words`?"),
        (json!({"action": "block", "words": "x"}), ".words: it is string; it should be array"),
        (json!({"action": "block", "words": ["ab", "c"]}), ".words[1]: 1 characters; at least 2"),
        (json!({"action": "block", "words": ["ab", "cd", "ef"]}), ".words: 3 items; at most 2"),
        (json!({"action": "block", "words": ["ab", "ab"]}), ".words: \"ab\" is there twice"),
        (json!({"action": "block", "limit": 0}), ".limit: 0 is out of bounds; it should be at least 1"),
        (json!({"action": "block", "limit": 10}), ".limit: 10 is out of bounds; it should be less than 10"),
        (json!({"action": "block", "limit": 1.5}), ".limit: it is number; it should be integer"),
        (json!({"action": "block", "nested": {"deep": 1}}), ".nested.deep: it is number; it should be boolean or null"),
        (json!({"action": "block", "free": {"a": "x"}}), ".free.a: it is string; it should be number"),
        (
            json!({"action": "block", "either": 4}),
            ".either: it fits none of the choices; of the first: it is number; it should be string",
        ),
        (json!([]), ": it is array; it should be object"),
    ];
    for (config, expected) in cases {
        assert_eq!(check(config.clone()), Err(expected.to_owned()), "{config}");
    }
}

#[test]
fn a_schema_that_would_not_be_checked_is_refused() {
    for (part, path) in [
        (json!({"type": "string", "pattern": "a(?=b)"}), ".properties.x.pattern"),
        (json!({"type": "text"}), ".properties.x.type"),
        (json!({"$ref": "#/a"}), ".properties.x.$ref"),
        (json!({"items": {"contains": {"const": 1}}}), ".properties.x.items.contains"),
        (json!({"anyOf": []}), ".properties.x.anyOf"),
        (json!({"maxItems": -1}), ".properties.x.maxItems"),
        (json!(3), ".properties.x"),
    ] {
        let schema = json!({"type": "object", "properties": {"x": part}});
        assert_eq!(check_schema(&schema).unwrap_err().path, path, "{schema}");
    }
    assert!(check_schema(&json!({"type": "array"})).is_err());
    assert!(check_schema(&json!(true)).is_err());
}

#[test]
fn depth_is_bounded() {
    let mut schema = json!({"type": "array"});
    for _ in 0..40 {
        schema = json!({"type": "array", "items": schema});
    }
    let config = json!({"type": "object", "properties": {"x": schema}});
    assert!(check_schema(&config).unwrap_err().message.contains("nested"));
}
