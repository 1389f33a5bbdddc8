//! Each keyword by values that hold and values that do not.

use super::{refused, says};
use serde_json::{Value, json};

fn config(part: &Value) -> Value {
    json!({"type": "object", "properties": {"x": part}, "$defs": {"id": {"type": "integer"}}})
}

/// Values of the key `x` that fit, and others with what is said of them.
#[track_caller]
fn check(part: Value, fits: &[Value], does_not: &[(Value, &str)]) {
    let schema = config(&part);
    for value in fits {
        assert_eq!(says(&schema, &json!({"x": value})), Ok(()), "{part}: {value}");
    }
    for (value, expected) in does_not {
        assert_eq!(says(&schema, &json!({"x": value})), Err((*expected).to_owned()), "{part}: {value}");
    }
}

#[test]
fn references_lead_to_a_schema_of_the_same_document() {
    check(json!({"$ref": "#/$defs/id"}), &[json!(1)], &[(json!("a"), ".x: it is string; it should be integer")]);
    check(
        json!({"$ref": "#/$defs/id", "minimum": 3}),
        &[json!(3)],
        &[
            (json!(2), ".x: 2 is out of bounds; it should be at least 3"),
            (json!(3.5), ".x: it is number; it should be integer"),
        ],
    );
    let inner = json!({"anyOf": [{"type": "null"}, {"items": {"$ref": "#/properties/x/definitions/a~1b~0c%20%C3%A4"}}],
        "definitions": {"a/b~c ä": {"$ref": "#/properties/x/anyOf/0"}}});
    check(
        inner,
        &[json!(null), json!([null])],
        &[(json!([1]), ".x[0]: it fits none of the choices; of number 2: it is number; it should be null")],
    );
}

#[test]
fn a_reference_may_be_to_the_whole_and_to_what_has_a_name() {
    let tree = json!({"type": "object", "properties": {"next": {"$ref": "#"}, "id": {"type": "integer"}}});
    assert_eq!(says(&tree, &json!({"next": {"next": {"id": 1}}})), Ok(()));
    assert_eq!(
        says(&tree, &json!({"next": {"next": {"id": "a"}}})),
        Err(".next.next.id: it is string; it should be integer".into())
    );
    check(
        json!({"$id": "List", "items": {"anyOf": [{"$anchor": "leaf", "const": 1}, {"$ref": "List"}, {"$ref": "#leaf"}]}}),
        &[json!([1, [[1]]])],
        &[],
    );
    // What begins with `#` starts from the schema that has an `$id`, not from the document.
    check(
        json!({"$id": "https://example.org/x", "$ref": "#/$defs/id", "$defs": {"id": {"type": "string"}}}),
        &[json!("a")],
        &[(json!(1), ".x: it is number; it should be string")],
    );
}

#[test]
fn references_that_lead_nowhere_are_refused() {
    for (target, why) in [
        (json!("https://example.org/schema.json"), "`https://example.org/schema.json` is not in this schema"),
        (json!("other.json#/$defs/a"), "no other is fetched"),
        (json!("#/$defs/nobody"), "nothing is at `#/$defs/nobody`"),
        (json!("#nobody"), "nothing is at `#nobody`"),
        (json!("#/properties"), "what is at `#/properties` is no schema"),
        (json!("#/$defs/a%2"), "`#/$defs/a%2` is not well escaped"),
        (json!(3), "it is not a string"),
        (json!("#/properties/x"), "it leads back to itself"),
    ] {
        let told = refused(&config(&json!({"$ref": target})));
        assert!(told.starts_with(".properties.x.$ref: ") && told.contains(why), "{told}");
    }
    let twice = refused(&config(&json!({"items": {"$id": "a"}, "not": {"$id": "a"}})));
    assert_eq!(twice, ".properties.x.not.$id: there is another schema of this name");
}

#[test]
fn schemas_of_the_same_value_hold_together() {
    check(
        json!({"allOf": [{"$ref": "#/$defs/id"}, {"maximum": 5}]}),
        &[json!(5)],
        &[(json!(6), ".x: 6 is out of bounds; it should be at most 5")],
    );
    check(
        json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}, {"const": "a"}]}),
        &[json!(1), json!(2.5), json!("a")],
        &[
            (json!(3), ".x: it fits more than one of the choices, such as numbers 1 and 2"),
            (json!("b"), ".x: it fits none of the choices; of the first: it is string; it should be integer"),
        ],
    );
    check(
        json!({"not": {"type": "string"}}),
        &[json!(1)],
        &[(json!("a"), ".x: it is what the schema excludes (`not`)")],
    );
    check(json!({"not": {"not": {"type": "string"}}}), &[json!("a")], &[]);
}

#[test]
fn a_choice_is_told_of_by_its_tag() {
    let part = json!({"oneOf": [
        {"type": "object", "properties": {"kind": {"const": "file"}, "path": {"type": "string"}}, "required": ["kind", "path"]},
        {"type": "object", "properties": {"kind": {"const": "http"}, "port": {"type": "integer"}}, "required": ["kind", "port"]},
    ]});
    check(
        part,
        &[json!({"kind": "http", "port": 1})],
        &[
            (
                json!({"kind": "http", "port": "a"}),
                ".x.port: it fits none of the choices; of number 2: it is string; it should be integer",
            ),
            (json!({"kind": "ftp"}), ".x.kind: it fits none of the choices; of the first: it should be \"file\""),
            (
                json!({"kind": "http", "prot": 1}),
                ".x.port: it fits none of the choices; of number 2: it is required and missing",
            ),
            (json!({"kind": "http", "port": 1, "path": ""}), ".x.path: there is no such key; there are kind, port"),
        ],
    );
}

#[test]
fn a_choice_is_told_of_by_its_type() {
    let part = json!({"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "object", "properties": {"to": {"type": "string"}}}]});
    check(
        part,
        &[json!(null), json!({"to": "a"})],
        &[
            (json!({"to": 1}), ".x.to: it fits none of the choices; of number 3: it is number; it should be string"),
            (json!({"to": {}}), ".x.to: it fits none of the choices; of number 3: it is object; it should be string"),
            (json!([]), ".x: it fits none of the choices; of the first: it is array; it should be null"),
            (json!(1), ".x: it fits none of the choices; of the first: it is number; it should be null"),
        ],
    );
}

#[test]
fn a_choice_is_told_of_by_how_far_it_fits() {
    check(
        json!({"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1}]}),
        &[json!(null)],
        &[(json!([]), ".x: it fits none of the choices; of number 2: 0 items; at least 1")],
    );
    check(
        json!({"anyOf": [{"required": ["to"]}, {"properties": {"at": {"properties": {"x": {"minimum": 1}}}}}]}),
        &[json!({"at": {"x": 1}})],
        &[(
            json!({"at": {"x": 0}}),
            ".x.at.x: it fits none of the choices; of number 2: 0 is out of bounds; it should be at least 1",
        )],
    );
}

#[test]
fn a_condition_chooses_what_else_must_hold() {
    let part = json!({"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"minLength": 2}});
    check(
        part,
        &[json!(3), json!("ab"), json!(null)],
        &[(json!(1), ".x: 1 is out of bounds; it should be at least 3"), (json!("a"), ".x: 1 characters; at least 2")],
    );
    check(json!({"if": false, "then": false}), &[json!(1)], &[]);
    check(json!({"then": false, "else": false}), &[json!(1)], &[]);
}

#[test]
fn texts_match_their_patterns() {
    check(
        json!({"type": "string", "pattern": "^[a-z]\\d*$"}),
        &[json!("a"), json!("b12")],
        &[(json!("B"), ".x: it does not match the pattern `^[a-z]\\d*$`")],
    );
    check(json!({"pattern": "^a"}), &[json!(3)], &[]);
    check(json!({"type": "string", "format": "email", "contentEncoding": "base64"}), &[json!("nobody")], &[]);
}

#[test]
fn numbers_are_held_to_multiples_and_equal_whatever_their_form() {
    check(
        json!({"multipleOf": 0.01}),
        &[json!(19.99), json!(3)],
        &[(json!(0.005), ".x: 0.005 is out of bounds; it should be a multiple of 0.01")],
    );
    check(json!({"enum": [1, "a"]}), &[json!(1.0)], &[(json!(2), ".x: 2 is not one of 1, \"a\"")]);
    check(
        json!({"const": {"a": 1, "b": 2}}),
        &[json!({"b": 2.0, "a": 1})],
        &[(json!({}), ".x: it should be {\"a\":1,\"b\":2}")],
    );
    check(json!({"uniqueItems": true}), &[json!([1, "1"])], &[(json!([1, 1.0]), ".x: 1.0 is there twice")]);
}

#[test]
fn objects_are_held_to_their_keys() {
    check(
        json!({"minProperties": 1, "maxProperties": 2}),
        &[json!({"a": 1}), json!(3)],
        &[(json!({}), ".x: 0 keys; at least 1"), (json!({"a": 1, "b": 1, "c": 1}), ".x: 3 keys; at most 2")],
    );
    check(
        json!({"propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "integer"}}),
        &[json!({"ab": 1})],
        &[
            (json!({"abc": 1}), ".x.abc: the key itself: 3 characters; at most 2"),
            (json!({"ab": "a"}), ".x.ab: it is string; it should be integer"),
        ],
    );
    check(
        json!({"dependentRequired": {"user": ["password", "host"]}, "dependentSchemas": {"host": {"required": ["port"]}}}),
        &[json!({}), json!({"password": 1}), json!({"host": 1, "port": 1})],
        &[
            (json!({"user": 1, "password": 1}), ".x.host: it is required and missing"),
            (json!({"host": 1}), ".x.port: it is required and missing"),
        ],
    );
    check(
        json!({"patternProperties": {"^x-": {"type": "integer"}, "y$": {"minimum": 3}}, "properties": {"name": {"type": "string"}}}),
        &[json!({"name": "a", "x-a": 1, "x-y": 3})],
        &[
            (json!({"x-a": "a"}), ".x.x-a: it is string; it should be integer"),
            (json!({"x-y": 1}), ".x.x-y: 1 is out of bounds; it should be at least 3"),
            (json!({"nme": "a"}), ".x.nme: there is no such key; did you mean `name`?"),
        ],
    );
    check(
        json!({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": {"type": "string"}}),
        &[json!({"x-a": 1, "a": "a"})],
        &[(json!({"a": 1}), ".x.a: it is number; it should be string")],
    );
}

#[test]
fn items_are_held_to_their_place() {
    let new = json!({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}});
    let old = json!({"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": {"type": "null"}});
    for part in [new, old] {
        check(
            part,
            &[json!([]), json!([1, "a", null, null])],
            &[
                (json!(["a"]), ".x[0]: it is string; it should be integer"),
                (json!([1, "a", 1]), ".x[2]: it is number; it should be null"),
            ],
        );
    }
    check(json!({"items": {"type": "null"}, "additionalItems": false}), &[json!([null])], &[]);
    check(
        json!({"prefixItems": [true], "items": false}),
        &[json!([1])],
        &[(json!([1, 2]), ".x[1]: nothing is allowed here")],
    );
}

#[test]
fn what_is_no_schema_is_refused() {
    for (part, path) in [
        (json!({"allOf": []}), "allOf"),
        (json!({"oneOf": {}}), "oneOf"),
        (json!({"not": 3}), "not"),
        (json!({"if": []}), "if"),
        (json!({"multipleOf": 0}), "multipleOf"),
        (json!({"pattern": 3}), "pattern"),
        (json!({"patternProperties": {"(": true}}), "patternProperties.("),
        (json!({"propertyNames": null}), "propertyNames"),
        (json!({"minProperties": 1.5}), "minProperties"),
        (json!({"dependentRequired": {"a": "b"}}), "dependentRequired"),
        (json!({"dependentSchemas": {"a": []}}), "dependentSchemas.a"),
        (json!({"prefixItems": [3]}), "prefixItems[0]"),
        (json!({"prefixItems": [true], "items": [true]}), "prefixItems"),
        (json!({"unevaluatedProperties": 0}), "unevaluatedProperties"),
        (json!({"unevaluatedItems": false}), "unevaluatedItems"),
        (json!({"$dynamicRef": "#a"}), "$dynamicRef"),
        (json!({"nullable": true}), "nullable"),
        (json!({"$defs": {"a": {"text": 1}}}), "$defs.a.text"),
        (json!({"exclusiveMinimum": true}), "exclusiveMinimum"),
    ] {
        let told = refused(&config(&part));
        assert!(told.starts_with(&format!(".properties.x.{path}: ")), "{part}: {told}");
    }
}

/// Authors read the table, the host its own code: what the one lists, the other knows.
#[test]
fn the_contracts_readme_lists_keywords_that_are_known() {
    let readme = include_str!("../../../../../wit/README.md");
    let table = readme.lines().skip_while(|line| !line.starts_with("| of | keywords |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(2));
    let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let keywords: Vec<&str> = words.filter(|word| *word != "x-").collect();
    assert!(keywords.len() > 50, "{keywords:?}");
    for keyword in keywords {
        let part = json!({keyword: null});
        let told = super::check_schema(&config(&part)).map_err(|wrong| wrong.message);
        assert!(!told.is_err_and(|told| told.contains("does not check this keyword")), "{keyword}");
    }
}

#[test]
fn annotations_are_let_be() {
    check(
        json!({"title": "X", "readOnly": true, "writeOnly": true, "deprecated": true, "examples": [{"$ref": "nowhere"}],
            "default": {"allOf": 3}, "discriminator": {"propertyName": "kind"}, "contentMediaType": "application/json",
            "contentSchema": {}, "x-order": 3}),
        &[json!(1)],
        &[],
    );
}

#[test]
fn a_config_is_an_object_however_that_is_said() {
    let object = json!({"type": "object"});
    for root in [
        json!({"$ref": "#/$defs/a", "$defs": {"a": object}}),
        json!({"allOf": [true, {"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [object, {"type": ["object"]}]}}}),
        json!({"oneOf": [object, object]}),
    ] {
        assert!(super::check_schema(&root).is_ok(), "{root}");
    }
    for root in [
        json!({}),
        json!({"type": ["object", "null"]}),
        json!({"anyOf": [object, {"type": "string"}]}),
        json!({"not": object}),
        json!({"allOf": [true]}),
        json!({"$defs": {"a": object}}),
    ] {
        assert!(refused(&root).contains("a config is an object"), "{root}");
    }
}
