//! How much it is to join what a schema says of one value in several places.
//!
//! llguidance joins alternatives with alternatives, each with a copy of what it is joined with, and counts how many it has
//! made but not how long they are: of a schema of 100 KB they can take all memory. Here the copies are reckoned before.

use crate::error::GrammarError;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Of the schemas that one place is joined to, as JSON: in memory they are some ten times as long.
const MAX_JOINED_BYTES: u64 = 4 << 20;
/// The same of all places together.
const MAX_ALL_JOINED_BYTES: u64 = 16 << 20;
/// Alternatives of a `oneOf` times their bytes: each two of them are compared, name by name.
const MAX_COMPARED: u64 = 16 << 20;

/// What a schema comes to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Alternatives that a value has.
    ways: u64,
    /// Of all of them, as JSON.
    bytes: u64,
    /// Whether each two of them are compared.
    is_compared: bool,
}

/// Refuses a schema that would be copied too often.
pub(crate) fn check_ways(root: &Value) -> Result<(), GrammarError> {
    let mut ways = Ways { root, known: HashMap::new(), joined: 0 };
    ways.of(root, "#").map(drop)
}

struct Ways<'a> {
    root: &'a Value,
    /// By reference; nothing yet of one that leads to itself.
    known: HashMap<&'a str, Sum>,
    joined: u64,
}

impl<'a> Ways<'a> {
    fn of(&mut self, schema: &'a Value, at: &str) -> Result<Sum, GrammarError> {
        let Value::Object(members) = schema else { return Ok(Sum { ways: 1, bytes: 5, is_compared: false }) };
        let mut sum = self.own(members, at)?;
        for (key, value) in members {
            let inner = || format!("{at}/{key}");
            let others = match key.as_str() {
                "enum" => vec![written(value, value.as_array().map_or(1, Vec::len))],
                "const" => vec![written(value, 1)],
                "$ref" => vec![self.reference(value)?],
                "anyOf" => vec![self.alternatives(value, &inner())?],
                "oneOf" => vec![compared(self.alternatives(value, &inner())?, at)?],
                "allOf" => self.each(value, &inner())?,
                _ => continue,
            };
            for other in others {
                sum = self.join(sum, other, at)?;
            }
        }
        Ok(Sum { ways: sum.ways.max(1), ..sum })
    }

    /// What the keywords say that are not joined to others: one way, and those of the values inside of it.
    fn own(&mut self, members: &'a Map<String, Value>, at: &str) -> Result<Sum, GrammarError> {
        let mut own = Sum::default();
        for (key, value) in members {
            let inner = format!("{at}/{key}");
            let parts = match key.as_str() {
                "items" | "additionalProperties" | "additionalItems" if !value.is_array() => {
                    vec![self.of(value, &inner)?]
                }
                "items" | "prefixItems" => self.each(value, &inner)?,
                "properties" | "patternProperties" => {
                    let schemas = value.as_object().into_iter().flatten();
                    schemas
                        .map(|(name, schema)| self.of(schema, &format!("{inner}/{name}")))
                        .collect::<Result<_, _>>()?
                }
                "type" => vec![written(value, value.as_array().map_or(1, Vec::len))],
                "format" | "pattern" | "required" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
                | "multipleOf" | "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
                | "maxProperties" => {
                    vec![written(value, 1)]
                }
                _ => continue,
            };
            own.ways = own.ways.max(1);
            for part in parts {
                own.ways = own.ways.saturating_add(part.ways.saturating_sub(1));
                own.bytes = own.bytes.saturating_add(part.bytes).saturating_add(key.len() as u64);
                own.is_compared |= part.is_compared;
            }
        }
        Ok(own)
    }

    fn each(&mut self, schemas: &'a Value, at: &str) -> Result<Vec<Sum>, GrammarError> {
        schemas
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(i, one)| self.of(one, &format!("{at}/{i}")))
            .collect()
    }

    fn alternatives(&mut self, schemas: &'a Value, at: &str) -> Result<Sum, GrammarError> {
        let add = |sum: Sum, one: Sum| Sum {
            ways: sum.ways.saturating_add(one.ways),
            bytes: sum.bytes.saturating_add(one.bytes),
            is_compared: sum.is_compared || one.is_compared,
        };
        Ok(self.each(schemas, at)?.into_iter().fold(Sum::default(), add))
    }

    fn reference(&mut self, place: &'a Value) -> Result<Sum, GrammarError> {
        let Some(place) = place.as_str() else { return Ok(Sum::default()) };
        if let Some(known) = self.known.get(place) {
            return Ok(*known);
        }
        self.known.insert(place, Sum { ways: 1, ..Sum::default() });
        let Some(target) = crate::schema::target(self.root, place) else { return Ok(Sum::default()) };
        let sum = self.of(target, place)?;
        self.known.insert(place, sum);
        Ok(sum)
    }

    /// Each way of the one with a copy of each of the other.
    fn join(&mut self, one: Sum, other: Sum, at: &str) -> Result<Sum, GrammarError> {
        if one.ways == 0 || other.ways == 0 {
            return Ok(if one.ways == 0 { other } else { one });
        }
        let (of_one, of_other) = (one.bytes.saturating_mul(other.ways), other.bytes.saturating_mul(one.ways));
        let ways = one.ways.saturating_mul(other.ways);
        let sum =
            Sum { ways, bytes: of_one.saturating_add(of_other), is_compared: one.is_compared || other.is_compared };
        self.joined = self.joined.saturating_add(sum.bytes);
        if sum.bytes > MAX_JOINED_BYTES || self.joined > MAX_ALL_JOINED_BYTES {
            return Err(refuse(at, "joins alternatives in more ways than can be held"));
        }
        if sum.is_compared { compared(sum, at) } else { Ok(sum) }
    }
}

fn compared(sum: Sum, at: &str) -> Result<Sum, GrammarError> {
    match sum.ways.saturating_mul(sum.bytes) {
        0..=MAX_COMPARED => Ok(Sum { is_compared: true, ..sum }),
        _ => Err(refuse(at, "has more alternatives in `oneOf` than can be compared; write `anyOf`, or fewer")),
    }
}

fn written(value: &Value, ways: usize) -> Sum {
    Sum { ways: ways as u64, bytes: value.to_string().len() as u64, is_compared: false }
}

fn refuse(at: &str, why: &str) -> GrammarError {
    GrammarError::Schema(format!("`{at}` {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("n{n}")).collect()
    }

    #[test]
    fn what_would_be_copied_too_often_is_refused() {
        let many = |schema: Value, count: usize| vec![schema; count];
        let object = json!({"type": "object"});
        let long = "x".repeat(100_000);
        let deep: Map<String, Value> = (0..40)
            .map(|n| {
                let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
                (format!("d{n}"), json!({"anyOf": [{"items": next, "minItems": 1}, {"items": next, "maxItems": 9}]}))
            })
            .collect();
        for schema in [
            json!({"required": names(300), "allOf": [{"anyOf": many(object.clone(), 200)}, {"anyOf": many(object.clone(), 200)}]}),
            json!({"const": long, "anyOf": many(json!({"type": "string"}), 200)}),
            json!({"pattern": long, "anyOf": many(json!({"type": "string"}), 200)}),
            json!({"properties": {"a": {"items": {"anyOf": many(object.clone(), 900)}}},
                "allOf": [{"properties": {"a": {"items": {"anyOf": many(object.clone(), 900)}}}}]}),
            json!({"$ref": "#/$defs/d0", "items": {"type": "array"}, "$defs": deep}),
            json!({"anyOf": [{"type": "string"}, {"allOf": [{"anyOf": many(json!({"minimum": 1}), 2000)}, {"anyOf": many(json!({"maximum": 1}), 2000)}, {"type": "null"}]}]}),
        ] {
            let said = check_ways(&schema).unwrap_err().to_string();
            assert!(said.contains("more ways"), "{said}");
        }
        let option = |n: usize| json!({"$ref": "#/$defs/d", "properties": {"k": {"const": n}}});
        let compared =
            json!({"oneOf": (0..600).map(option).collect::<Vec<_>>(), "$defs": {"d": {"required": names(400)}}});
        assert!(check_ways(&compared).unwrap_err().to_string().contains("compared"));
    }

    #[test]
    fn what_people_write_is_taken() {
        let union = json!({"oneOf": (0..60).map(|n| json!({"type": "object", "properties": {"kind": {"const": n}},
            "required": ["kind"], "additionalProperties": false})).collect::<Vec<_>>()});
        let tree = json!({"$defs": {"node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            "value": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}, "$ref": "#/$defs/node"});
        let words = json!({"type": "string", "enum": names(5000)});
        let either = json!({"type": "object", "properties": (0..60).map(|n| (format!("p{n}"), json!({"type": ["string", "null"]})))
            .collect::<Map<_, _>>(), "anyOf": [{"required": ["p1"]}, {"required": ["p2"]}]});
        let merged = json!({"allOf": [{"$ref": "#/$defs/node"}, {"properties": {"name": {"type": "string"}}}], "$defs": tree["$defs"]});
        for schema in [union, tree, words, either, merged] {
            assert!(check_ways(&schema).is_ok(), "{schema}");
        }
    }
}
