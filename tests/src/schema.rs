//! JSON schemas as far as the document of the API uses them, read strictly: a keyword that is not known here fails, so
//! that nothing is described that is not checked; and an object has no members but those that its schemas name, though to
//! readers of the document it may have more one day.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The names of an object's members that a schema speaks of.
type Named = BTreeSet<String>;

/// Schemas that name each other within `document`.
pub struct Schemas<'a> {
    pub document: &'a Value,
}

impl Schemas<'_> {
    /// Says what of `value` is not as `schema` has it.
    pub fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let named = self.eval(schema, value)?;
        match value.as_object().and_then(|members| members.keys().find(|name| !named.contains(*name))) {
            Some(unknown) => Err(format!("`{unknown}` is not described: {value}")),
            None => Ok(()),
        }
    }

    fn eval(&self, schema: &Value, value: &Value) -> Result<Named, String> {
        let keywords = schema.as_object().ok_or_else(|| format!("no schema: {schema}"))?;
        let mut named = Named::new();
        for (keyword, given) in keywords {
            named.extend(self.keyword(keyword, given, keywords, value).map_err(|why| match why.len() {
                0..2000 => format!("{keyword}: {why}"),
                _ => why,
            })?);
        }
        Ok(named)
    }

    fn keyword(&self, keyword: &str, given: &Value, all: &Map<String, Value>, value: &Value) -> Result<Named, String> {
        let holds = |holds: bool| if holds { Ok(Named::new()) } else { Err(format!("not {given}: {value}")) };
        match keyword {
            "description" | "default" => holds(true),
            "$ref" => self.eval(self.resolve(given)?, value),
            "allOf" => list(given)?.iter().try_fold(Named::new(), |mut named, one| {
                named.extend(self.eval(one, value)?);
                Ok(named)
            }),
            "anyOf" => self.some(given, value, false),
            "oneOf" => self.some(given, value, true),
            "type" => holds(kinds(given).iter().any(|kind| is(value, kind))),
            "enum" => holds(list(given)?.contains(value)),
            "const" => holds(given == value),
            "minimum" => holds(value.as_f64().is_none_or(|value| Some(value) >= given.as_f64())),
            "maximum" => holds(value.as_f64().is_none_or(|value| Some(value) <= given.as_f64())),
            "exclusiveMinimum" => holds(value.as_f64().is_none_or(|value| Some(value) > given.as_f64())),
            "minLength" => holds(value.as_str().is_none_or(|text| text.chars().count() as u64 >= number(given))),
            "maxLength" => holds(value.as_str().is_none_or(|text| text.chars().count() as u64 <= number(given))),
            "minItems" => holds(value.as_array().is_none_or(|items| items.len() as u64 >= number(given))),
            "maxItems" => holds(value.as_array().is_none_or(|items| items.len() as u64 <= number(given))),
            "maxProperties" => holds(value.as_object().is_none_or(|members| members.len() as u64 <= number(given))),
            "items" => {
                value.as_array().into_iter().flatten().try_for_each(|item| self.check(given, item))?;
                holds(true)
            }
            "required" => {
                let missing =
                    |name: &&Value| value.as_object().is_some_and(|it| !it.contains_key(name.as_str().unwrap()));
                match list(given)?.iter().find(missing) {
                    Some(name) => Err(format!("{name} is missing: {value}")),
                    None => Ok(Named::new()),
                }
            }
            "properties" => self.members(value, |name| given.get(name)),
            "additionalProperties" => {
                let rest = |name: &str| all.get("properties").and_then(|known| known.get(name)).is_none();
                self.members(value, |name| rest(name).then_some(given))
            }
            other => Err(format!("the keyword `{other}` is not checked")),
        }
    }

    /// Checks the members that have a schema; `true` and `false` are schemas here.
    fn members<'s>(&self, value: &Value, schema: impl Fn(&str) -> Option<&'s Value>) -> Result<Named, String> {
        let mut named = Named::new();
        for (name, member) in value.as_object().into_iter().flatten() {
            let Some(schema) = schema(name) else { continue };
            match schema {
                Value::Bool(true) => {}
                Value::Bool(false) => return Err(format!("`{name}` is not allowed")),
                schema => self.check(schema, member).map_err(|why| format!("{name}: {why}"))?,
            }
            named.insert(name.clone());
        }
        Ok(named)
    }

    /// One of several at least, or at most too.
    fn some(&self, schemas: &Value, value: &Value, one: bool) -> Result<Named, String> {
        let tried: Vec<_> = list(schemas)?.iter().map(|schema| self.eval(schema, value)).collect();
        match tried.iter().flatten().count() {
            0 => Err(tried.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; ")),
            1 => Ok(tried.into_iter().flatten().flatten().collect()),
            _ if one => Err(format!("several fit: {value}")),
            _ => Ok(tried.into_iter().flatten().flatten().collect()),
        }
    }

    /// What a `$ref` of the document names.
    pub fn resolve(&self, reference: &Value) -> Result<&Value, String> {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#')).ok_or("no reference")?;
        self.document.pointer(pointer).ok_or_else(|| format!("nothing is at {pointer}"))
    }
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("no list: {value}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn kinds(given: &Value) -> Vec<&str> {
    match given {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, value: Value) -> Result<(), String> {
        let document = json!({"a": {"type": "object", "properties": {"x": {"const": 1}}}});
        Schemas { document: &document }.check(&schema, &value)
    }

    #[test]
    fn objects_have_what_is_described_and_nothing_else() {
        let schema = json!({"allOf": [{"$ref": "#/a"}], "required": ["y"], "properties": {"y": {"type": "integer"}}});
        assert_eq!(check(schema.clone(), json!({"x": 1, "y": 2})), Ok(()));
        for (value, why) in [
            (json!({"x": 1}), "\"y\" is missing"),
            (json!({"x": 2, "y": 2}), "x: const"),
            (json!({"x": 1, "y": 2.5}), "y: type"),
            (json!({"x": 1, "y": 2, "z": 3}), "`z` is not described"),
        ] {
            assert!(check(schema.clone(), value.clone()).unwrap_err().contains(why), "{value}");
        }
        assert!(check(json!({"items": {"$ref": "#/a"}}), json!([{"x": 1}, {"q": 1}])).is_err());
        assert!(check(json!({"additionalProperties": {"type": "string"}}), json!({"a": 1})).is_err());
        assert!(check(json!({"additionalProperties": false, "properties": {"a": {}}}), json!({"a": 1})).is_ok());
    }

    #[test]
    fn of_several_schemas_one_fits_and_what_is_not_known_fails() {
        let either = json!([{"type": "string"}, {"const": "a"}, {"type": "null"}]);
        assert!(check(json!({"anyOf": either}), json!("a")).is_ok());
        assert!(check(json!({"oneOf": either}), json!("a")).is_err());
        assert!(check(json!({"oneOf": either}), json!(null)).is_ok());
        assert!(check(json!({"oneOf": either}), json!(1)).is_err());
        assert!(check(json!({"pattern": "x"}), json!("x")).unwrap_err().contains("`pattern` is not checked"));
    }
}
