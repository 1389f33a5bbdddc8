//! Schemas that mean harm: each is refused, or checked within its steps, on the stack of a test's thread.

use super::{Value, refused, says};
use serde_json::json;

/// Each of `num` definitions by the next one; the last is a leaf.
fn chain(num: usize, link: impl Fn(Value) -> Value) -> Value {
    let next = |index: usize| json!({"$ref": format!("#/$defs/{}", index + 1)});
    let definitions = (0..num).map(|index| (index.to_string(), link(next(index))));
    let definitions: serde_json::Map<_, _> =
        definitions.chain([(num.to_string(), json!({"type": "integer"}))]).collect();
    json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": definitions})
}

/// An array in an array, and so on.
fn nest(depth: usize) -> Value {
    (1..depth).fold(json!([]), |inner, _| json!([inner]))
}

#[test]
fn a_loop_that_goes_nowhere_is_refused() {
    for schema in [
        json!({"type": "object", "$ref": "#"}),
        json!({"type": "object", "allOf": [{"anyOf": [true, {"$ref": "#"}]}]}),
        json!({"type": "object", "not": {"oneOf": [{"$ref": "#/not"}]}}),
        json!({"type": "object", "if": {"$ref": "#"}}),
        json!({"type": "object", "then": {"else": {"$ref": "#"}}}),
        json!({"type": "object", "dependentSchemas": {"a": {"$ref": "#"}}}),
        json!({"type": "object", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
    ] {
        let told = refused(&schema);
        assert!(told.contains("$ref: it leads back to itself"), "{schema}: {told}");
    }
}

#[test]
fn a_loop_that_goes_into_the_value_ends_with_it() {
    let list = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/list"}},
        "$defs": {"list": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/list"}]}}}});
    assert_eq!(says(&list, &json!({"x": nest(30)})), Ok(()));
    assert!(says(&list, &json!({"x": nest(100)})).unwrap_err().contains("nested more than 128"));
    assert!(says(&json!({"type": "object"}), &json!({"x": nest(1000)})).unwrap_err().contains("nested more than 128"));
    assert_eq!(says(&json!({"type": "object"}), &json!({"x": nest(120)})), Ok(()));
    let names = json!({"type": "object", "propertyNames": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}});
    assert_eq!(says(&names, &json!({"a": 1})), Ok(()));
}

#[test]
fn a_long_way_is_an_error() {
    let told = says(&chain(5000, |next| next), &json!({"x": 1})).unwrap_err();
    assert!(told.starts_with(".x: it is nested more than 128 deep"), "{told}");
    assert_eq!(says(&chain(100, |next| next), &json!({"x": 1})), Ok(()));
}

#[test]
fn a_way_that_doubles_is_given_up() {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let told = says(&chain(32, |next| json!({keyword: [next, next]})), &json!({"x": 1})).unwrap_err();
        assert!(told.contains("in too many ways"), "{keyword}: {told}");
    }
    let told = says(&chain(32, |next| json!({"items": {"anyOf": [next, next]}})), &json!({"x": nest(32)})).unwrap_err();
    assert!(told.contains("in too many ways"), "{told}");
}

/// To give up is no answer that `not`, `if` or another of several could go on from.
#[test]
fn what_was_given_up_neither_holds_nor_fails() {
    let mut schema = chain(32, |next| json!({"allOf": [next, next]}));
    schema["$defs"]["32"] = json!(true);
    let doubling = json!({"$ref": "#/$defs/0"});
    for part in [
        json!({"not": doubling}),
        json!({"not": {"not": doubling}}),
        json!({"if": doubling, "else": true}),
        json!({"anyOf": [doubling, true]}),
        json!({"oneOf": [doubling, false]}),
        json!({"propertyNames": doubling}),
    ] {
        schema["properties"]["x"] = part.clone();
        let told = says(&schema, &json!({"x": {"a": 1}}));
        assert!(told.as_ref().is_err_and(|told| told.contains("in too many ways")), "{part}: {told:?}");
    }
}

#[test]
fn a_schema_is_bounded() {
    let many: Vec<Value> = vec![json!({}); 10_000];
    assert!(refused(&json!({"type": "object", "allOf": many})).contains("more than 10000 schemas"));
    let long = "a".repeat(2000);
    assert!(refused(&json!({"type": "object", "properties": {&long: {"type": 3}}})).contains("more than 1024 bytes"));
    assert!(refused(&json!({"type": "object", "required": [long]})).contains("not an array of names"));
    assert!(refused(&json!({"type": "object", "dependentRequired": {long: []}})).contains("arrays of names"));
    let patterns: serde_json::Map<_, _> = (0..200).map(|index| (format!("^{index}$"), json!(true))).collect();
    assert!(refused(&json!({"type": "object", "patternProperties": patterns})).contains("more than 128 patterns"));
}

#[test]
fn messages_are_short_whatever_the_schema_holds() {
    let long = "long".repeat(10_000);
    for part in [
        json!({"const": long}),
        json!({"enum": [long, long]}),
        json!({"enum": (0..5000).collect::<Vec<_>>()}),
        json!({"type": "object", "properties": (0..5000).map(|i| (format!("key{i}"), json!(true))).collect::<serde_json::Map<_, _>>()}),
    ] {
        let schema = json!({"type": "object", "properties": {"x": part}});
        let told = says(&schema, &json!({"x": {"quite-another": long}})).unwrap_err();
        assert!(told.len() < 2000, "{} bytes: {told:.300}", told.len());
    }
}

/// The bounds are on schemas; what an operator writes may be long.
#[test]
fn a_large_config_is_checked_whole() {
    let schema = json!({"type": "object", "properties": {"words": {"type": "array", "uniqueItems": true,
        "items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[a-z0-9]{1,20}$"}]}}}});
    let mut words: Vec<Value> = (0..20_000).map(|index| json!(format!("word{index}"))).collect();
    assert_eq!(says(&schema, &json!({"words": words})), Ok(()));
    words.push(json!("word0"));
    assert_eq!(says(&schema, &json!({"words": words})), Err(".words: \"word0\" is there twice".into()));
    words[20_000] = json!("Word");
    assert!(says(&schema, &json!({"words": words})).unwrap_err().starts_with(".words[20000]: "));
}
