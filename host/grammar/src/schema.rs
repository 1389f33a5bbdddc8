//! What of JSON Schema can be held, checked before llguidance sees it.
//!
//! llguidance passes over keywords that it does not know, and holds some only in part. Here every keyword is known and held,
//! or known to say nothing about an answer, or refused by its name. Bounds keep what it costs to compile, most of all the
//! depth to which llguidance follows references by recursion. Read next: `values.rs`.

use crate::error::GrammarError;
use crate::values::{
    check_bound, check_count, check_draft, check_multiple, check_names, check_required, check_text, check_written,
    refuse,
};
use crate::ways::check_ways;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Longest schema, as JSON without white space.
const MAX_SCHEMA_BYTES: usize = 128 << 10;
/// Values in each other.
const MAX_DEPTH: usize = 48;
/// The same through all references, each followed once.
const MAX_PATH: usize = 1024;
/// Keywords with a bound of numbers.
const BOUNDS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Keywords with a count.
const COUNTS: &[&str] = &["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
/// Keywords with a schema.
const ONE: &[&str] = &["items", "additionalProperties"];
/// Keywords with a list of schemas.
const LISTS: &[&str] = &["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords with schemas by name.
const MAPS: &[&str] = &["$defs", "definitions"];
/// Keywords that say nothing about an answer.
const ANNOTATIONS: &[&str] = &[
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
];
/// Refuses a schema of which something could not be held, or that is too much.
pub fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(refuse(format!("the schema has {bytes} bytes; {MAX_SCHEMA_BYTES} are allowed")));
    }
    let path = depth_of(schema, "the schema")?;
    let mut check = Check { root: schema, seen: HashSet::new(), path, pattern: None, multiple: None };
    check.schema(schema, "#", true)?;
    check_ways(schema)
}

/// Where a reference leads, as llguidance looks it up: by names as they stand.
pub(crate) fn target<'a>(root: &'a Value, place: &str) -> Option<&'a Value> {
    names_of(place)?.try_fold(root, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    })
}

/// The same, to be changed.
pub(crate) fn target_mut<'a>(root: &'a mut Value, place: &str) -> Option<&'a mut Value> {
    names_of(place)?.try_fold(root, |value, name| match value {
        Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
        value => value.get_mut(name),
    })
}

fn names_of(place: &str) -> Option<impl Iterator<Item = &str>> {
    let path = place.strip_prefix('#')?;
    let path = path.strip_prefix('/').or(path.is_empty().then_some(""))?;
    Some(path.split('/').filter(move |_| !path.is_empty()))
}

struct Check<'a> {
    root: &'a Value,
    /// References that were followed.
    seen: HashSet<String>,
    /// How deep llguidance goes at most.
    path: usize,
    /// The one pattern of names.
    pattern: Option<&'a str>,
    /// The one `multipleOf`.
    multiple: Option<&'a Value>,
}

impl<'a> Check<'a> {
    fn schema(&mut self, schema: &'a Value, at: &str, is_root: bool) -> Result<(), GrammarError> {
        let members = match schema {
            Value::Bool(_) if !is_root => return Ok(()),
            Value::Object(members) => members,
            _ => return Err(refuse(format!("`{at}` must be a schema, which is an object"))),
        };
        for (key, value) in members {
            self.keyword(members, (key, value), at, is_root)?;
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        members: &Map<String, Value>,
        (key, value): (&'a String, &'a Value),
        at: &str,
        is_root: bool,
    ) -> Result<(), GrammarError> {
        let inner = || format!("{at}/{key}");
        match key.as_str() {
            "$schema" if is_root => check_draft(value),
            "$id" if is_root => Ok(()),
            "$ref" => self.reference(value, at),
            "enum" | "const" => check_written(value, at),
            "required" => check_required(value, at),
            "multipleOf" => self.multiple(value, at),
            "pattern" | "format" => check_text(key, value, at),
            "items" if value.is_array() => self.list(value, &inner()),
            "prefixItems" if members.get("items").is_some_and(Value::is_array) => {
                let message =
                    format!("`prefixItems` at `{at}` stands beside `items` that are a list; write one of them");
                Err(refuse(message))
            }
            key if key == "type" || ANNOTATIONS.contains(&key) => Ok(()),
            key if BOUNDS.contains(&key) => check_bound(key, value, at),
            key if COUNTS.contains(&key) => check_count(members, key, value, at),
            key if ONE.contains(&key) => self.schema(value, &inner(), false),
            key if LISTS.contains(&key) => self.list(value, &inner()),
            "patternProperties" => self.patterns(value, at).and_then(|()| self.map(value, &inner())),
            "properties" => check_names(value, at).and_then(|()| self.map(value, &inner())),
            key if MAPS.contains(&key) => self.map(value, &inner()),
            // It goes with `items` that are a list, and means nothing without.
            "additionalItems" if members.get("items").is_some_and(Value::is_array) => {
                self.schema(value, &inner(), false)
            }
            key => Err(refuse(format!("the keyword `{key}` at `{at}` cannot be held; leave it out"))),
        }
    }

    /// llguidance proves of each two patterns that no name has both, wherever schemas are joined: of many that takes minutes.
    fn patterns(&mut self, value: &'a Value, at: &str) -> Result<(), GrammarError> {
        let patterns = value.as_object().into_iter().flatten().map(|(pattern, _)| pattern.as_str());
        for pattern in patterns {
            if *self.pattern.get_or_insert(pattern) != pattern {
                let message =
                    format!("`patternProperties` at `{at}` has a second pattern; one in a schema can be held");
                return Err(refuse(message));
            }
        }
        Ok(())
    }

    /// Where two are joined, llguidance reckons what both divide in numbers that are too small for it.
    fn multiple(&mut self, value: &'a Value, at: &str) -> Result<(), GrammarError> {
        check_multiple(value, at)?;
        if *self.multiple.get_or_insert(value) == value {
            return Ok(());
        }
        Err(refuse(format!("`multipleOf` at `{at}` is a second one; one in a schema can be held")))
    }

    fn list(&mut self, value: &'a Value, at: &str) -> Result<(), GrammarError> {
        let Value::Array(schemas) = value else { return Err(refuse(format!("`{at}` must be a list of schemas"))) };
        schemas.iter().enumerate().try_for_each(|(i, schema)| self.schema(schema, &format!("{at}/{i}"), false))
    }

    fn map(&mut self, value: &'a Value, at: &str) -> Result<(), GrammarError> {
        let Value::Object(schemas) = value else { return Err(refuse(format!("`{at}` must be an object of schemas"))) };
        schemas.iter().try_for_each(|(name, schema)| self.schema(schema, &format!("{at}/{name}"), false))
    }

    /// Follows a reference once, wherever it leads.
    fn reference(&mut self, value: &'a Value, at: &str) -> Result<(), GrammarError> {
        let Value::String(place) = value else { return Err(refuse(format!("`$ref` at `{at}` must be a string"))) };
        if !self.seen.insert(place.clone()) {
            return Ok(());
        }
        let root = self.root;
        let Some(target) = target(root, place) else {
            return Err(refuse(format!("`$ref` at `{at}` names `{place}`, which is not in this schema")));
        };
        self.path += depth_of(target, place)?;
        if self.path > MAX_PATH {
            return Err(refuse(format!("through its references it nests deeper than {MAX_PATH}")));
        }
        self.schema(target, place, std::ptr::eq(target, root))
    }
}

/// How deep values lie in each other.
fn depth_of(value: &Value, what: &str) -> Result<usize, GrammarError> {
    fn depth(value: &Value, left: usize) -> Option<usize> {
        let left = left.checked_sub(1)?;
        let deepest = |most: usize, value: &Value| Some(most.max(depth(value, left)?));
        let inner = match value {
            Value::Array(items) => items.iter().try_fold(0, deepest)?,
            Value::Object(members) => members.values().try_fold(0, deepest)?,
            _ => 0,
        };
        Some(inner + 1)
    }
    depth(value, MAX_DEPTH).ok_or_else(|| refuse(format!("{what} nests deeper than {MAX_DEPTH}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: Value) -> String {
        check_schema(&schema).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_held_is_refused_by_name_wherever_it_stands() {
        let places = [
            ("uniqueItems", json!({"type": "array", "uniqueItems": true}), "`#`"),
            ("not", json!({"properties": {"a": {"not": {}}}}), "`#/properties/a`"),
            ("if", json!({"anyOf": [{"if": {}}]}), "`#/anyOf/0`"),
            ("nullable", json!({"items": {"nullable": true}}), "`#/items`"),
            ("x-guidance", json!({"x-guidance": {"lenient": true}}), "`#`"),
            ("$id", json!({"additionalProperties": {"$id": "x"}}), "`#/additionalProperties`"),
            ("contains", json!({"$defs": {"d": {"contains": {}}}}), "`#/$defs/d`"),
            ("propertyNames", json!({"$ref": "#/default/d", "default": {"d": {"propertyNames": {}}}}), "`#/default/d`"),
            ("additionalItems", json!({"items": {}, "additionalItems": false}), "`#`"),
        ];
        for (keyword, schema, place) in places {
            let said = refused(schema);
            assert!(said.contains(&format!("`{keyword}`")) && said.contains(place), "{said}");
        }
        assert!(refused(json!({"minProperties": 2, "required": ["a", "a"]})).contains("minProperties"));
        assert!(refused(json!({"patternProperties": {"^a": {}, "^b": {}}})).contains("second pattern"));
        for c in ["\u{1}", "\u{7f}"] {
            assert!(refused(json!({"enum": [c]})).contains("control character"));
            assert!(refused(json!({"const": {"b": ["a", c]}})).contains("control character"));
        }
        for schema in
            [json!({"enum": [[9_007_199_254_740_993_u64]]}), json!({"maximum": u64::MAX}), json!({"const": i64::MIN})]
        {
            assert!(refused(schema).contains("beyond 2^53"));
        }
        assert!(refused(json!({"multipleOf": 2, "items": {"multipleOf": 3}})).contains("second one"));
        assert!(refused(json!({"prefixItems": [{}], "items": [{}]})).contains("beside `items`"));
        assert!(refused(json!({"$schema": "https://example.com/own"})).contains("$schema"));
        assert!(refused(json!({"$ref": "https://example.com/other"})).contains("not in this schema"));
        assert!(refused(json!([1])).contains("must be a schema"));
    }

    #[test]
    fn names_of_properties_are_no_keywords() {
        let schema = json!({"type": "object", "properties": {"not": {"type": "string"}, "$id": {"const": "if"}},
            "required": ["not"], "minProperties": 1, "additionalProperties": false,
            "$schema": "http://json-schema.org/draft-07/schema#", "$id": "here"});
        assert_eq!(check_schema(&schema), Ok(()));
        assert_eq!(
            check_schema(&json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}}}})),
            Ok(())
        );
    }

    #[test]
    fn size_nesting_references_and_counts_are_bounded() {
        let deep = |levels| (0..levels).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(check_schema(&deep(46)), Ok(()));
        assert!(refused(deep(48)).contains("nests deeper"));
        let chain: Map<String, Value> =
            (0..600).map(|n| (format!("d{n}"), json!({"items": {"$ref": format!("#/$defs/d{}", n + 1)}}))).collect();
        assert!(refused(json!({"$ref": "#/$defs/d0", "$defs": chain})).contains("through its references"));
        assert!(refused(json!({"description": "x".repeat(MAX_SCHEMA_BYTES)})).contains("bytes"));
        assert!(refused(json!({"minItems": 1_000_000_000})).contains("minItems"));
        let names: Map<String, Value> = (0..401).map(|n| (format!("n{n}"), json!({}))).collect();
        assert!(refused(json!({"properties": names})).contains("401 names"));
        let required: Vec<String> = (0..401).map(|n| n.to_string()).collect();
        assert!(refused(json!({"required": required})).contains("401 names"));
    }
}
