//! Which keys an object may have, where several schemas speak of it.

use super::{Value, says};
use serde_json::json;

/// Configs by their keys: all have the value 1.
fn config(keys: &[&str]) -> Value {
    keys.iter().map(|key| ((*key).to_owned(), json!(1))).collect::<serde_json::Map<_, _>>().into()
}

/// Keys that are known, and those that are not beside `a`.
#[track_caller]
fn check(rest: Value, known: &[&str], unknown: &[&str]) {
    let mut schema = json!({"type": "object", "$defs": {"named": {"properties": {"mode": {}}}}});
    schema.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    assert_eq!(says(&schema, &config(known)), Ok(()), "{schema}");
    for key in unknown {
        let told = says(&schema, &config(&["a", key])).unwrap_err();
        assert!(told.starts_with(&format!(".{key}: there is no such key; ")), "{schema}: {told}");
    }
}

#[test]
fn a_key_is_known_if_a_schema_of_the_object_names_it() {
    let a = json!({"a": {}});
    check(json!({"properties": a}), &["a"], &["b"]);
    check(json!({"properties": a, "$ref": "#/$defs/named"}), &["a", "mode"], &["b"]);
    check(json!({"allOf": [{"$ref": "#/$defs/named"}, {"properties": a}]}), &["a", "mode"], &["b", "moed"]);
    check(json!({"properties": a, "allOf": [{"allOf": [{"properties": {"c": {}}}]}]}), &["a", "c"], &["b"]);
    check(json!({"properties": a, "patternProperties": {"^x-": {}}}), &["a", "x-1"], &["b"]);
    check(json!({"patternProperties": {"^[ax]": {}}}), &["a", "x"], &["b"]);
    check(json!({"properties": a, "dependentSchemas": {"a": {"properties": {"b": {}}}}}), &["a", "b"], &["c"]);
    check(json!({"properties": a, "propertyNames": {"enum": ["a", "b"]}}), &["a"], &["b"]);
}

#[test]
fn of_several_those_that_fit_name_keys() {
    let tagged = |tag: &str, key: &str| json!({"properties": {"kind": {"const": tag}, key: {}}, "required": ["kind"]});
    for keyword in ["anyOf", "oneOf"] {
        let schema =
            json!({"type": "object", "properties": {"own": {}}, keyword: [tagged("p", "port"), tagged("q", "path")]});
        assert_eq!(says(&schema, &json!({"kind": "p", "port": 1, "own": 1})), Ok(()));
        let told = says(&schema, &json!({"kind": "p", "path": 1}));
        assert_eq!(told, Err(".path: there is no such key; there are kind, own, port".into()));
        let told = says(&schema, &json!({"kind": "p", "prot": 1}));
        assert_eq!(told, Err(".prot: there is no such key; did you mean `port`?".into()));
    }
    // Each of these holds for either key, and for both.
    check(json!({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}), &["a", "b"], &["c"]);
}

#[test]
fn what_is_not_to_hold_names_none() {
    check(json!({"properties": {"a": {}}, "not": {"properties": {"b": {}}, "required": ["c"]}}), &["a"], &["b"]);
    check(json!({"properties": {"a": {}}, "anyOf": [true, {"properties": {"b": false}}]}), &["a"], &["b"]);
}

#[test]
fn a_condition_knows_its_keys_and_forbids_none() {
    let test = json!({"properties": {"b": {"const": 1}}});
    check(json!({"properties": {"a": {}}, "if": test}), &["a", "b"], &["c"]);
    check(json!({"if": test}), &["a", "b", "c"], &[]);
    check(
        json!({"if": {"required": ["a"]}, "then": {"properties": {"a": {}, "b": {}}}, "else": {"properties": {"c": {}}}}),
        &["a", "b"],
        &["c"],
    );
    // A test of a key decides as JSON Schema has it, whatever else its object has.
    let schema = json!({"type": "object", "properties": {"x": {"type": "object"}},
        "if": {"properties": {"x": {"properties": {"on": {"const": true}}}}, "required": ["x"]}, "then": false});
    assert_eq!(says(&schema, &json!({"x": {"on": true, "more": 1}})), Err(": nothing is allowed here".into()));
    assert_eq!(says(&schema, &json!({"x": {"on": false, "more": 1}})), Ok(()));
}

#[test]
fn other_keys_are_allowed_where_a_schema_says_so() {
    check(json!({"properties": {"a": {}}, "additionalProperties": true}), &["a", "b"], &[]);
    check(json!({"properties": {"a": {}}, "allOf": [{"additionalProperties": {"const": 1}}]}), &["a", "b"], &[]);
    check(json!({"properties": {"a": {}}, "unevaluatedProperties": {"const": 1}}), &["a", "b"], &[]);
    check(json!({"properties": {"a": {}}, "allOf": [{"unevaluatedProperties": {"const": 1}}]}), &["a", "b"], &[]);
    check(json!({"minProperties": 1, "required": ["a"]}), &["a", "b"], &[]);
    let told = says(
        &json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": {"type": "string"}}),
        &json!({"a": 1, "b": 1}),
    );
    assert_eq!(told, Err(".b: it is number; it should be string".into()));
}

#[test]
fn additional_is_what_the_schema_itself_does_not_name_unevaluated_what_none_inside_does() {
    let inner = json!([{"properties": {"b": {}}}]);
    check(json!({"properties": {"a": {}}, "allOf": inner, "unevaluatedProperties": false}), &["a", "b"], &["c"]);
    check(json!({"properties": {"a": {}}, "allOf": inner, "additionalProperties": false}), &["a"], &["b", "c"]);
    let closed = json!({"properties": {"b": {}}, "unevaluatedProperties": false});
    let schema = json!({"type": "object", "properties": {"a": {}}, "allOf": [closed]});
    assert_eq!(says(&schema, &config(&["b"])), Ok(()));
    assert_eq!(says(&schema, &config(&["b", "a"])), Err(".a: there is no such key; did you mean `b`?".into()));
    let told = says(&json!({"type": "object", "additionalProperties": false}), &config(&["a"]));
    assert_eq!(told, Err(".a: there is no such key; none is taken here".into()));
}

#[test]
fn one_of_several_that_names_no_keys_allows_all() {
    check(json!({"anyOf": [{"properties": {"a": {}}}, {"type": "object"}]}), &["a", "b"], &[]);
    check(
        json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {"type": "object"}]}),
        &["a", "b"],
        &["c"],
    );
    let named = |key: &str| json!({"type": "object", "properties": {key: {"type": "integer"}}});
    let schema = json!({"type": "object", "anyOf": [
        {"properties": {"x": named("size")}},
        {"additionalProperties": named("length")},
    ]});
    assert_eq!(says(&schema, &json!({"y": {"length": 1}, "x": {"size": 1}})), Ok(()));
    assert_eq!(
        says(&schema, &json!({"y": {"lenght": 1}})),
        Err(".y.lenght: there is no such key; did you mean `length`?".into())
    );
}

#[test]
fn one_of_several_that_names_keys_and_allows_others_is_free_too() {
    let named = json!({"properties": {"x": {"type": "object", "properties": {"size": {}}}}});
    for rest in ["additionalProperties", "unevaluatedProperties"] {
        let free = json!({"properties": {"a": {}}, rest: true});
        let schema = json!({"type": "object", "anyOf": [free, named]});
        assert_eq!(says(&schema, &json!({"x": {"more": 1}})), Ok(()), "{rest}");
    }
}

#[test]
fn objects_inside_are_known_by_all_that_speak_of_them() {
    let schema = json!({"type": "object", "allOf": [
        {"properties": {"list": {"items": {"properties": {"left": {}}}}}},
        {"properties": {"list": {"items": {"properties": {"right": {}}}}}},
    ]});
    assert_eq!(says(&schema, &json!({"list": [{"left": 1, "right": 1}, {}]})), Ok(()));
    assert_eq!(
        says(&schema, &json!({"list": [{}, {"rihgt": 1}]})),
        Err(".list[1].rihgt: there is no such key; did you mean `right`?".into())
    );
}

#[test]
fn a_name_that_is_near_none_is_told_which_there_are() {
    let schema = json!({"type": "object", "properties": {"words": {}, "action": {}, "empty": {"type": "object", "properties": {}}}});
    assert_eq!(says(&schema, &json!({"q": 1})), Err(".q: there is no such key; there are action, empty, words".into()));
    assert_eq!(
        says(&schema, &json!({"empty": {"q": 1}})),
        Err(".empty.q: there is no such key; none is taken here".into())
    );
}
