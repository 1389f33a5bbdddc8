//! Schemas as authors' tools write them.

use super::{Value, says};
use serde_json::json;

#[track_caller]
fn check(schema: &Value, fits: &Value, does_not: &[(&str, Value, &str)]) {
    assert_eq!(says(schema, fits), Ok(()));
    for (place, value, expected) in does_not {
        let mut config = fits.clone();
        match config.pointer_mut(place) {
            Some(there) => *there = value.clone(),
            None => {
                let (outer, key) = place.rsplit_once('/').unwrap();
                config.pointer_mut(outer).unwrap()[key] = value.clone();
            }
        }
        assert_eq!(says(schema, &config), Err((*expected).to_owned()), "{place} = {value}");
    }
}

/// schemars 1: draft 2020-12; an enum with words on its variants, an internally tagged one, a flattened struct, a tuple.
#[test]
fn schemars() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Config",
        "type": "object",
        "properties": {
            "action": {"description": "What to do.", "$ref": "#/$defs/Action", "default": "block"},
            "rules": {"type": "array", "items": {"$ref": "#/$defs/Rule"}},
            "limits": {"anyOf": [{"$ref": "#/$defs/Limits"}, {"type": "null"}]},
            "range": {"type": "array", "prefixItems": [{"type": "number", "format": "double"}, {"type": "number", "format": "double"}],
                "minItems": 2, "maxItems": 2},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["rules"],
        "$ref": "#/$defs/Common",
        "$defs": {
            "Action": {"oneOf": [
                {"description": "Refuses.", "type": "string", "const": "block"},
                {"type": "string", "enum": ["redact", "flag"]},
            ]},
            "Limits": {"type": "object", "required": ["per_minute"], "additionalProperties": false,
                "properties": {"per_minute": {"type": "integer", "format": "uint32", "minimum": 0, "maximum": 4294967295_u32}}},
            "Rule": {"oneOf": [
                {"type": "object", "properties": {"kind": {"type": "string", "const": "word"}, "word": {"type": "string"}},
                    "required": ["kind", "word"]},
                {"type": "object", "properties": {"kind": {"type": "string", "const": "count"}}, "required": ["kind"],
                    "$ref": "#/$defs/Counted"},
            ]},
            "Counted": {"type": "object", "properties": {"most": {"type": "integer", "format": "uint8", "minimum": 0}},
                "required": ["most"]},
            "Common": {"type": "object", "properties": {"verbose": {"type": "boolean", "default": false}}},
        },
    });
    let config = json!({
        "action": "flag", "verbose": true, "range": [0.5, 1], "limits": {"per_minute": 3}, "labels": {"any": "text"},
        "rules": [{"kind": "word", "word": "a"}, {"kind": "count", "most": 3}],
    });
    check(
        &schema,
        &config,
        &[
            ("/action", json!("blok"), ".action: it fits none of the choices; of the first: it should be \"block\""),
            ("/verbos", json!(true), ".verbos: there is no such key; did you mean `verbose`?"),
            (
                "/limits/per_minut",
                json!(1),
                ".limits.per_minut: it fits none of the choices; of the first: there is no such key; did you mean `per_minute`?",
            ),
            (
                "/rules/1",
                json!({"kind": "count", "most": 3, "mots": 3}),
                ".rules[1].mots: there is no such key; did you mean `most`?",
            ),
            (
                "/rules/1",
                json!({"kind": "count", "most": -3}),
                ".rules[1].most: it fits none of the choices; of number 2: -3 is out of bounds; it should be at least 0",
            ),
            ("/range", json!([1]), ".range: 1 items; at least 2"),
        ],
    );
}

/// schemars 0.8: draft 7, with what is beside a `$ref` outside of an `allOf` around it.
#[test]
fn schemars_before_1() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config",
        "type": "object",
        "required": ["pair"],
        "properties": {
            "mode": {"description": "How.", "default": "fast", "allOf": [{"$ref": "#/definitions/Mode"}]},
            "pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer", "format": "uint", "minimum": 0.0}],
                "maxItems": 2, "minItems": 2},
            "letter": {"type": ["string", "null"], "maxLength": 1, "minLength": 1},
        },
        "additionalProperties": false,
        "definitions": {"Mode": {"type": "string", "enum": ["fast", "good"]}},
    });
    check(
        &schema,
        &json!({"mode": "good", "pair": ["a", 3], "letter": null}),
        &[
            ("/mode", json!("bad"), ".mode: \"bad\" is not one of \"fast\", \"good\""),
            ("/pair", json!(["a", -1]), ".pair[1]: -1 is out of bounds; it should be at least 0.0"),
            ("/leter", json!("a"), ".leter: there is no such key; did you mean `letter`?"),
        ],
    );
}

/// pydantic 2: a discriminated union, a recursive model, an enum as keys, a secret.
#[test]
fn pydantic() {
    let schema = json!({
        "$defs": {
            "Level": {"enum": ["low", "high"], "title": "Level", "type": "string"},
            "Node": {
                "properties": {
                    "name": {"pattern": "^[a-z][a-z0-9_]*$", "title": "Name", "type": "string"},
                    "children": {"default": [], "items": {"$ref": "#/$defs/Node"}, "title": "Children", "type": "array"},
                },
                "required": ["name"], "title": "Node", "type": "object",
            },
            "File": {"properties": {"kind": {"const": "file", "default": "file", "title": "Kind", "type": "string"},
                "path": {"format": "path", "title": "Path", "type": "string"}}, "required": ["path"], "title": "File", "type": "object"},
            "Web": {"properties": {"kind": {"const": "web", "title": "Kind", "type": "string"},
                "url": {"format": "uri", "maxLength": 2083, "minLength": 1, "title": "Url", "type": "string"}},
                "required": ["kind", "url"], "title": "Web", "type": "object"},
        },
        "properties": {
            "source": {"discriminator": {"mapping": {"file": "#/$defs/File", "web": "#/$defs/Web"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/File"}, {"$ref": "#/$defs/Web"}], "title": "Source"},
            "tree": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": null},
            "weights": {"additionalProperties": {"exclusiveMinimum": 0, "multipleOf": 0.5, "type": "number"},
                "propertyNames": {"$ref": "#/$defs/Level"}, "title": "Weights", "type": "object"},
            "ports": {"patternProperties": {"^[a-z]+$": {"type": "integer"}}, "title": "Ports", "type": "object"},
            "token": {"format": "password", "title": "Token", "type": "string", "writeOnly": true},
        },
        "required": ["source"],
        "title": "Config",
        "type": "object",
    });
    let config = json!({
        "source": {"kind": "web", "url": "https://example.org"}, "weights": {"low": 1.5}, "ports": {"http": 80}, "token": "x",
        "tree": {"name": "a", "children": [{"name": "b", "children": []}]},
    });
    check(
        &schema,
        &config,
        &[
            (
                "/source",
                json!({"kind": "file", "path": "/", "url": ""}),
                ".source.url: there is no such key; there are kind, path",
            ),
            (
                "/source",
                json!({"kind": "web"}),
                ".source.url: it fits none of the choices; of number 2: it is required and missing",
            ),
            ("/weights/low", json!(0.75), ".weights.low: 0.75 is out of bounds; it should be a multiple of 0.5"),
            (
                "/weights/medium",
                json!(1),
                ".weights.medium: the key itself: \"medium\" is not one of \"low\", \"high\"",
            ),
            ("/ports/HTTP", json!(80), ".ports.HTTP: there is no such key; none is taken here"),
            (
                "/tree/children/0/name",
                json!("B"),
                ".tree.children[0].name: it fits none of the choices; of the first: it does not match the pattern `^[a-z][a-z0-9_]*$`",
            ),
            ("/tree/children/0/nmae", json!("b"), ".tree.children[0].nmae: there is no such key; did you mean `name`?"),
        ],
    );
}

/// zod-to-json-schema, with a name: the root is a reference, and so is what was there before.
#[test]
fn zod() {
    let schema = json!({
        "$ref": "#/definitions/config",
        "definitions": {"config": {
            "type": "object",
            "properties": {
                "primary": {"type": "object", "properties": {"host": {"type": "string", "minLength": 1},
                    "port": {"type": "integer", "exclusiveMinimum": 0}}, "required": ["host"], "additionalProperties": false},
                "fallback": {"$ref": "#/definitions/config/properties/primary"},
                "rules": {"type": "array", "items": {"anyOf": [
                    {"type": "object", "properties": {"type": {"type": "string", "const": "word"}, "word": {"type": "string"}},
                        "required": ["type", "word"], "additionalProperties": false},
                    {"type": "object", "properties": {"type": {"type": "string", "const": "size"}, "most": {"type": "number"}},
                        "required": ["type", "most"], "additionalProperties": false},
                ]}},
                "both": {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {"type": ["number", "null"]}}}], "unevaluatedProperties": false},
                "tuple": {"type": "array", "minItems": 1, "items": [{"type": "string"}], "additionalItems": {"type": "number"}},
                "any": {},
            },
            "required": ["primary"],
            "additionalProperties": false,
        }},
        "$schema": "http://json-schema.org/draft-07/schema#",
    });
    let config = json!({
        "primary": {"host": "a", "port": 1}, "fallback": {"host": "b"}, "rules": [{"type": "size", "most": 1}],
        "both": {"a": "a", "b": null}, "tuple": ["a", 1, 2], "any": {"thing": [1]},
    });
    check(
        &schema,
        &config,
        &[
            ("/fallback", json!({"prot": 1}), ".fallback.prot: there is no such key; did you mean `port`?"),
            (
                "/rules/0",
                json!({"type": "size", "mots": 1}),
                ".rules[0].mots: it fits none of the choices; of number 2: there is no such key; did you mean `most`?",
            ),
            ("/both/c", json!(1), ".both.c: there is no such key; did you mean `a`?"),
            ("/tuple/2", json!("b"), ".tuple[2]: it is string; it should be number"),
        ],
    );
}

/// TypeBox: schemas by `$id`, an intersection, a record by a pattern that fits all keys.
#[test]
fn typebox() {
    let schema = json!({
        "type": "object",
        "properties": {
            "tree": {"$id": "T0", "type": "object", "properties": {"id": {"type": "string"},
                "nodes": {"type": "array", "items": {"$ref": "T0"}}}, "required": ["id", "nodes"]},
            "both": {"unevaluatedProperties": false, "type": "object", "allOf": [
                {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                {"type": "object", "properties": {"y": {"type": "number"}}, "required": ["y"]}]},
            "record": {"type": "object", "patternProperties": {"^(.*)$": {"type": "boolean"}}},
            "excluded": {"not": {"type": "string"}},
        },
        "required": ["tree"],
    });
    let config = json!({
        "tree": {"id": "a", "nodes": [{"id": "b", "nodes": []}]}, "both": {"x": 1, "y": 2}, "record": {"any": true}, "excluded": 1,
    });
    check(
        &schema,
        &config,
        &[
            ("/tree/nodes/0", json!({"id": "b"}), ".tree.nodes[0].nodes: it is required and missing"),
            ("/both/z", json!(1), ".both.z: there is no such key; did you mean `x`?"),
            ("/record/other", json!(1), ".record.other: it is number; it should be boolean"),
            ("/excluded", json!("a"), ".excluded: it is what the schema excludes (`not`)"),
        ],
    );
}
