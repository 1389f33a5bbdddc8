//! A JSON Schema validator for plugin configs: the keywords that configs need, each with a message that names the
//! key. A schema with another keyword is refused, so that no check is promised and not made.
//!
//! One difference from JSON Schema: an object with `properties` refuses other keys unless `additionalProperties`
//! allows them. A misspelt key in a config is a mistake, not an extension.

use serde_json::{Map, Value};

/// Nesting of a schema and of what it is held against.
const MAX_DEPTH: usize = 32;

const ANNOTATIONS: [&str; 8] =
    ["$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"];
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Where a schema or a config is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// `.words[2]`; empty for the whole.
    pub(crate) path: String,
    pub(crate) message: String,
}

type Outcome = Result<(), Violation>;

fn wrong(path: &str, message: impl Into<String>) -> Violation {
    Violation { path: path.into(), message: message.into() }
}

/// Whether this host understands the schema of a config: all of it, and it describes an object.
pub(crate) fn check_schema(schema: &Value) -> Outcome {
    if schema.get("type") != Some(&Value::from("object")) {
        return Err(wrong("", "a config is an object: `\"type\": \"object\"`"));
    }
    check_part(schema, "", MAX_DEPTH)
}

fn check_part(schema: &Value, path: &str, depth: usize) -> Outcome {
    let object = match schema {
        Value::Object(object) if depth > 0 => object,
        Value::Object(_) => return Err(wrong(path, format!("it is nested more than {MAX_DEPTH} deep"))),
        Value::Bool(_) => return Ok(()),
        _ => return Err(wrong(path, "a schema is an object or a boolean")),
    };
    object
        .iter()
        .try_for_each(|(keyword, value)| check_keyword(keyword, value, &format!("{path}.{keyword}"), depth - 1))
}

fn check_keyword(keyword: &str, value: &Value, path: &str, depth: usize) -> Outcome {
    let must = |ok: bool, what: &str| if ok { Ok(()) } else { Err(wrong(path, format!("it is not {what}"))) };
    match keyword {
        "type" => must(type_names(value).is_some(), "a type or an array of types"),
        "properties" => match value {
            Value::Object(parts) => {
                parts.iter().try_for_each(|(name, part)| check_part(part, &format!("{path}.{name}"), depth))
            }
            _ => must(false, "an object"),
        },
        "items" | "additionalProperties" => check_part(value, path, depth),
        "anyOf" => match value.as_array().filter(|parts| !parts.is_empty()) {
            Some(parts) => {
                parts.iter().enumerate().try_for_each(|(i, part)| check_part(part, &format!("{path}[{i}]"), depth))
            }
            None => must(false, "an array of schemas"),
        },
        "required" => must(value.as_array().is_some_and(|a| a.iter().all(Value::is_string)), "an array of names"),
        "enum" => must(value.is_array(), "an array"),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => must(value.is_number(), "a number"),
        "minLength" | "maxLength" | "minItems" | "maxItems" => must(value.is_u64(), "a count"),
        "uniqueItems" => must(value.is_boolean(), "true or false"),
        "const" => Ok(()),
        _ if ANNOTATIONS.contains(&keyword) => Ok(()),
        _ => Err(wrong(path, "this host does not check this keyword; see the contract's README for those it does")),
    }
}

fn type_names(value: &Value) -> Option<Vec<&str>> {
    let names: Vec<&str> = match value {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    (!names.is_empty() && names.iter().all(|name| TYPES.contains(name))).then_some(names)
}

/// Holds a value against a schema that [`check_schema`] accepted.
pub(crate) fn validate(schema: &Value, value: &Value) -> Outcome {
    validate_part(schema, value, "", MAX_DEPTH)
}

fn validate_part(schema: &Value, value: &Value, path: &str, depth: usize) -> Outcome {
    let schema = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(schema) if depth > 0 => schema,
        Value::Object(_) => return Err(wrong(path, format!("it is nested more than {MAX_DEPTH} deep"))),
        _ => return Err(wrong(path, "nothing is allowed here")),
    };
    check_type(schema, value, path)?;
    check_choice(schema, value, path)?;
    match value {
        Value::Object(object) => check_object(schema, object, path, depth - 1)?,
        Value::Array(items) => check_array(schema, items, path, depth - 1)?,
        Value::String(text) => check_count(schema, "minLength", "maxLength", text.chars().count(), "characters", path)?,
        Value::Number(_) => check_number(schema, value, path)?,
        Value::Null | Value::Bool(_) => {}
    }
    check_any(schema, value, path, depth - 1)
}

fn check_type(schema: &Map<String, Value>, value: &Value, path: &str) -> Outcome {
    let Some(names) = schema.get("type").and_then(type_names) else { return Ok(()) };
    if names.iter().any(|name| is_of_type(value, name)) {
        return Ok(());
    }
    Err(wrong(path, format!("it is {}; it should be {}", kind_of(value), names.join(" or "))))
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        _ => kind_of(value) == name,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check_choice(schema: &Map<String, Value>, value: &Value, path: &str) -> Outcome {
    if let Some(only) = schema.get("const").filter(|only| *only != value) {
        return Err(wrong(path, format!("it should be {only}")));
    }
    match schema.get("enum").and_then(Value::as_array) {
        Some(choices) if !choices.contains(value) => {
            let shown: Vec<String> = choices.iter().map(Value::to_string).collect();
            Err(wrong(path, format!("{value} is not one of {}", shown.join(", "))))
        }
        _ => Ok(()),
    }
}

fn check_object(schema: &Map<String, Value>, object: &Map<String, Value>, path: &str, depth: usize) -> Outcome {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for name in required {
        if !object.contains_key(name) {
            return Err(wrong(&format!("{path}.{name}"), "it is required and missing"));
        }
    }
    let rest = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(properties.is_none()));
    for (name, value) in object {
        let inner = format!("{path}.{name}");
        match properties.unwrap_or(&none).get(name) {
            Some(part) => validate_part(part, value, &inner, depth)?,
            None if rest == Value::Bool(false) => return Err(unknown_key(properties, name, &inner)),
            None => validate_part(&rest, value, &inner, depth)?,
        }
    }
    Ok(())
}

fn unknown_key(properties: Option<&Map<String, Value>>, name: &str, path: &str) -> Violation {
    let names: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
    let nearest = names.iter().map(|known| (distance(name, known), known)).min();
    wrong(
        path,
        match nearest {
            Some((far, known)) if far <= known.len().div_ceil(2) => {
                format!("there is no such key; did you mean `{known}`?")
            }
            Some(_) => format!("there is no such key; there are {}", names.join(", ")),
            None => "there is no such key; this plugin takes no config".into(),
        },
    )
}

/// Edits between two names (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn check_array(schema: &Map<String, Value>, items: &[Value], path: &str, depth: usize) -> Outcome {
    check_count(schema, "minItems", "maxItems", items.len(), "items", path)?;
    if schema.get("uniqueItems") == Some(&Value::Bool(true))
        && let Some(twice) = items.iter().enumerate().find_map(|(i, item)| items[..i].contains(item).then_some(item))
    {
        return Err(wrong(path, format!("{twice} is there twice")));
    }
    match schema.get("items") {
        Some(part) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| validate_part(part, item, &format!("{path}[{index}]"), depth)),
        None => Ok(()),
    }
}

fn check_count(schema: &Map<String, Value>, min: &str, max: &str, count: usize, what: &str, path: &str) -> Outcome {
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    match (bound(min), bound(max)) {
        (Some(least), _) if (count as u64) < least => Err(wrong(path, format!("{count} {what}; at least {least}"))),
        (_, Some(most)) if count as u64 > most => Err(wrong(path, format!("{count} {what}; at most {most}"))),
        _ => Ok(()),
    }
}

fn check_number(schema: &Map<String, Value>, value: &Value, path: &str) -> Outcome {
    let Some(number) = value.as_f64() else { return Ok(()) };
    type Holds = fn(f64, f64) -> bool;
    let bounds: [(&str, &str, Holds); 4] = [
        ("minimum", "at least", |n, bound| n >= bound),
        ("maximum", "at most", |n, bound| n <= bound),
        ("exclusiveMinimum", "more than", |n, bound| n > bound),
        ("exclusiveMaximum", "less than", |n, bound| n < bound),
    ];
    for (keyword, words, holds) in bounds {
        if let Some(bound) = schema.get(keyword).filter(|b| b.as_f64().is_some_and(|bound| !holds(number, bound))) {
            return Err(wrong(path, format!("{value} is out of bounds; it should be {words} {bound}")));
        }
    }
    Ok(())
}

fn check_any(schema: &Map<String, Value>, value: &Value, path: &str, depth: usize) -> Outcome {
    let Some(parts) = schema.get("anyOf").and_then(Value::as_array) else { return Ok(()) };
    let mut first = None;
    for part in parts {
        match validate_part(part, value, path, depth) {
            Ok(()) => return Ok(()),
            Err(violation) => first = first.or(Some(violation)),
        }
    }
    first.map_or(Ok(()), |violation| {
        Err(wrong(&violation.path, format!("it fits none of the choices; of the first: {}", violation.message)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        check_schema(&schema()).unwrap();
        validate(&schema(), &config).map_err(|v| format!("{}: {}", v.path, v.message))
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
            (
                json!({"action": "block", "nested": {"deep": 1}}),
                ".nested.deep: it is number; it should be boolean or null",
            ),
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
            (json!({"type": "string", "pattern": "a+"}), ".properties.x.pattern"),
            (json!({"type": "text"}), ".properties.x.type"),
            (json!({"$ref": "#/a"}), ".properties.x.$ref"),
            (json!({"items": {"format": "date"}}), ".properties.x.items.format"),
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
}
