//! A schema as llguidance is given it.

use crate::formats::write_format;
use crate::pattern::pattern;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Keywords that join another schema to this one. llguidance reads those before and behind one apart, so that of
/// `additionalItems` behind one the `items` before it are not seen.
const JOINING: &[&str] = &["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Between two tokens of JSON: a space, or the beginning of a line with what it is indented by. A small model goes on with more
/// for as long as it may, since white space is likely behind white space. Ten levels of four spaces, or twenty of two, are indented.
pub(crate) const WHITE_SPACE: &str = r"\x20|(\x0D?\x0A){1,2}[\x20\x09]{0,40}";

/// The schema with what llguidance is told of how to hold it, as JSON. What was read of `$schema` is done with.
pub(crate) fn prepared(schema: &Value) -> String {
    let mut prepared = schema.clone();
    order_all(&mut prepared);
    let mut prepared = match prepared {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    prepared.shift_remove("$schema");
    // A character is escaped in one way alone, or a name that is taken could come again in another spelling.
    let options = json!({"whitespace_pattern": WHITE_SPACE, "json_allowed_escapes": "nrbtf\\\""});
    prepared.insert("x-guidance".into(), options);
    Value::Object(prepared).to_string()
}

/// The schema, and wherever its references lead.
fn order_all(root: &mut Value) {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    order(root, &mut found);
    while let Some(place) = found.pop() {
        if seen.insert(place.clone())
            && let Some(target) = crate::schema::target_mut(root, &place)
        {
            order(target, &mut found);
        }
    }
}

/// Puts what joins others behind what does not, and writes bounds, formats and patterns so that they are read as they are
/// meant, in a schema and all inside of it.
fn order(schema: &mut Value, references: &mut Vec<String>) {
    let Value::Object(members) = schema else { return };
    write_format(members);
    include(members, ("exclusiveMinimum", "minimum"), f64::max, |bound| bound.next_up().max(bound + LEAST));
    include(members, ("exclusiveMaximum", "maximum"), f64::min, |bound| bound.next_down().min(bound - LEAST));
    let (joining, own): (Vec<_>, Vec<_>) =
        std::mem::take(members).into_iter().partition(|(key, _)| JOINING.contains(&key.as_str()));
    members.extend(own.into_iter().chain(joining));
    for (key, value) in members {
        match (key.as_str(), value) {
            ("$ref", Value::String(place)) => references.push(place.clone()),
            ("pattern", Value::String(given)) => *given = pattern(given),
            ("items" | "anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| order(schema, references));
            }
            ("items" | "additionalProperties" | "additionalItems", schema) => order(schema, references),
            ("patternProperties", Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| order(schema, references));
                *schemas = std::mem::take(schemas).into_iter().map(|(name, schema)| (pattern(&name), schema)).collect();
            }
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| order(schema, references));
            }
            _ => {}
        }
    }
}

/// What is nearest to a whole bound that is not included. Nothing is between them that a model would say.
const LEAST: f64 = 1e-15;

/// Writes a whole bound that is not included as the one next to it, which is. llguidance lets through what is not included
/// where the other bound is not whole and has the same digits before the point, as with `maximum` 0.5 above 0.
fn include(
    members: &mut Map<String, Value>,
    (excluded, included): (&str, &str),
    tighter: fn(f64, f64) -> f64,
    next: fn(f64) -> f64,
) {
    let other = members.get(included).and_then(Value::as_f64);
    let bound = match members.get(excluded) {
        Some(Value::Bool(true)) => other,
        given => given.and_then(Value::as_f64),
    };
    if let Some(bound) = bound.filter(|bound| bound.fract() == 0.0) {
        members.shift_remove(excluded);
        members.insert(included.to_owned(), other.map_or(next(bound), |other| tighter(other, next(bound))).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_joins_comes_last_and_names_keep_their_order() {
        let inner = json!({"anyOf": [{"type": "array"}], "items": [true], "additionalItems": false});
        let schema = json!({"$ref": "#/default/d", "properties": {"enum": inner, "a": {"const": 1, "type": "integer"}},
            "default": {"d": {"enum": [{"const": 1, "type": 2}], "type": "object"}}, "$schema": "x"});
        let text = prepared(&schema);
        let in_order = |parts: &[&str]| {
            let places: Vec<usize> =
                parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{text}"))).collect();
            assert!(places.is_sorted(), "{text}");
        };
        in_order(&["\"properties\"", "\"default\"", "\"$ref\"", "\"x-guidance\""]);
        in_order(&[
            "\"enum\":{\"items\"",
            "\"additionalItems\"",
            "\"anyOf\"",
            "\"a\":{\"type\":\"integer\",\"const\":1}",
        ]);
        in_order(&["\"d\":{\"type\":\"object\",\"enum\":[{\"const\":1,\"type\":2}]}"]);
        assert!(!text.contains("$schema"));
    }
}
