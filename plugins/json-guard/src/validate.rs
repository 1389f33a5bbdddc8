//! A value against a schema: what is wrong, each with its place as a JSON pointer.
//!
//! Invariant: nothing is told that the model has made up, neither keys nor values, but kinds and counts: other guards may have
//! to take it out, and they do not see a refusal.

use crate::json::{Json, told};
use crate::number::Number;
use crate::schema::{Bound, Node, NodeIdx, Schema, Type, escaped};
use crate::unique::first_repeated;
use std::cmp::Ordering;

/// A step of a place by a key that the schema does not declare.
const ANY_KEY: &str = "*";

/// As many are told.
pub const MAX_PROBLEMS: usize = 8;

/// Subschemas that one answer may be compared with, and steps of looking for items that come twice. `anyOf` in a schema that
/// refers to itself can ask for more than anyone waits for; such an answer counts as invalid.
const MAX_STEPS: u32 = 200_000;

/// What is wrong with a value; nothing where it is valid.
pub fn problems(schema: &Schema, value: &Json) -> Vec<String> {
    let mut check = Check { schema, steps: 0, told: Vec::new() };
    let mut path = String::new();
    check.node(0, value, &mut path);
    if check.steps > MAX_STEPS {
        check.told = vec![format!("the answer takes more than {MAX_STEPS} comparisons")];
    }
    check.told
}

struct Check<'a> {
    schema: &'a Schema,
    steps: u32,
    told: Vec<String>,
}

impl Check<'_> {
    fn tell(&mut self, path: &str, what: impl FnOnce() -> String) {
        if self.told.len() < MAX_PROBLEMS {
            let place = if path.is_empty() { "the answer".into() } else { told(path) };
            let problem = format!("{place} {}", what());
            if !self.told.contains(&problem) {
                self.told.push(problem);
            }
        }
    }

    /// Whether a value holds a subschema, quietly.
    fn holds(&mut self, node: NodeIdx, value: &Json) -> bool {
        let told = std::mem::take(&mut self.told);
        self.node(node, value, &mut String::new());
        let holds = self.told.is_empty();
        self.told = told;
        holds
    }

    fn node(&mut self, at: NodeIdx, value: &Json, path: &mut String) {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return self.tell(path, || "is too much to check".into());
        }
        let node = &self.schema.nodes[at];
        if node.never {
            return self.tell(path, || "must not be there".into());
        }
        if !node.types.is_empty() && !node.types.iter().any(|kind| is_a(value, *kind)) {
            let names: Vec<&str> = node.types.iter().map(|kind| kind.as_str()).collect();
            return self.tell(path, || format!("is {}; it must be {}", value.kind(), names.join(" or ")));
        }
        let is_in = |values: &[Json]| values.iter().any(|allowed| allowed.is_same(value));
        let only = node.only.as_ref().map(std::slice::from_ref);
        if [node.one_of_values.as_deref(), only].into_iter().flatten().any(|values| !is_in(values)) {
            self.tell(path, || "is none of the values that are allowed".into());
        }
        self.bounds(node, value, path);
        self.combined(node, value, path);
        match value {
            Json::Object(members) => self.object(node, members, path),
            Json::List(items) => self.list(node, items, path),
            _ => {}
        }
    }

    fn object(&mut self, node: &Node, members: &[(String, Json)], path: &mut String) {
        let has = |name: &str| members.iter().any(|(key, _)| key == name);
        for missing in node.required.iter().filter(|name| !has(name)) {
            self.tell(path, || format!("has no `{}`", told(missing)));
        }
        for (key, value) in members {
            let declared = node.properties.iter().find(|(name, _)| name == key).map(|(_, node)| *node);
            let Some(next) = declared.or(node.additional) else { continue };
            if declared.is_none() && self.schema.nodes[next].never {
                self.tell(path, || "has a key that is not allowed".into());
                continue;
            }
            let step = if declared.is_some() { &escaped(key) } else { ANY_KEY };
            self.step(next, value, path, step);
        }
    }

    fn list(&mut self, node: &Node, items: &[Json], path: &mut String) {
        if let Some(next) = node.items {
            for (idx, item) in items.iter().enumerate() {
                self.step(next, item, path, &idx.to_string());
            }
        }
        if node.unique_items {
            self.unique(items, path);
        }
    }

    fn unique(&mut self, items: &[Json], path: &str) {
        let twice = first_repeated(items, &mut self.steps, MAX_STEPS);
        if self.steps > MAX_STEPS {
            return self.tell(path, || "is too much to check".into());
        }
        if let Some(idx) = twice {
            self.tell(path, || format!("has the item {idx} twice"));
        }
    }

    fn step(&mut self, node: NodeIdx, value: &Json, path: &mut String, key: &str) {
        let len = path.len();
        path.push('/');
        path.push_str(key);
        self.node(node, value, path);
        path.truncate(len);
    }

    fn combined(&mut self, node: &Node, value: &Json, path: &mut String) {
        for all in node.all_of.iter().copied().chain(node.reference) {
            self.node(all, value, path);
        }
        if !node.any_of.is_empty() && !node.any_of.iter().any(|any| self.holds(*any, value)) {
            self.tell(path, || format!("is none of the {} forms of `anyOf`", node.any_of.len()));
        }
        if !node.one_of.is_empty() {
            let matching = node.one_of.iter().filter(|one| self.holds(**one, value)).count();
            if matching != 1 {
                self.tell(path, || format!("is {matching} of the forms of `oneOf`; it must be one"));
            }
        }
        if node.not.is_some_and(|not| self.holds(not, value)) {
            self.tell(path, || "is what `not` forbids".into());
        }
    }

    fn bounds(&mut self, node: &Node, value: &Json, path: &str) {
        for (bound, limit) in &node.bounds {
            let Some((have, what)) = measured(*bound, value) else { continue };
            let order = have.compare(*limit);
            let (holds, word) = match bound {
                Bound::Minimum | Bound::MinLength | Bound::MinItems | Bound::MinProperties => {
                    (order != Ordering::Less, "at least")
                }
                Bound::Maximum | Bound::MaxLength | Bound::MaxItems | Bound::MaxProperties => {
                    (order != Ordering::Greater, "at most")
                }
                Bound::ExclusiveMinimum => (order == Ordering::Greater, "more than"),
                Bound::ExclusiveMaximum => (order == Ordering::Less, "less than"),
            };
            if !holds {
                self.tell(path, || match what {
                    Some(what) => format!("has a {what} of {have}; it must be {word} {limit}"),
                    None => format!("must be {word} {limit}"),
                });
            }
        }
    }
}

/// What a bound is about, where it is about this kind of value; a number itself has no name and is not told.
fn measured(bound: Bound, value: &Json) -> Option<(Number, Option<&'static str>)> {
    let measured = match (bound, value) {
        (Bound::Minimum | Bound::Maximum | Bound::ExclusiveMinimum | Bound::ExclusiveMaximum, Json::Number(number)) => {
            (*number, None)
        }
        (Bound::MinLength | Bound::MaxLength, Json::Text(text)) => (text.chars().count().into(), Some("length")),
        (Bound::MinItems | Bound::MaxItems, Json::List(items)) => (items.len().into(), Some("number of items")),
        (Bound::MinProperties | Bound::MaxProperties, Json::Object(members)) => {
            (members.len().into(), Some("number of properties"))
        }
        _ => return None,
    };
    Some(measured)
}

fn is_a(value: &Json, kind: Type) -> bool {
    match (kind, value) {
        (Type::Null, Json::Null)
        | (Type::Boolean, Json::Bool(_))
        | (Type::Number, Json::Number(_))
        | (Type::String, Json::Text(_))
        | (Type::Array, Json::List(_))
        | (Type::Object, Json::Object(_)) => true,
        (Type::Integer, Json::Number(number)) => number.is_whole(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;

    fn of(schema: &str, value: &str) -> Vec<String> {
        problems(&Schema::new(&parse(schema).unwrap(), &[]).unwrap(), &parse(value).unwrap())
    }

    #[test]
    fn problems_name_the_place_and_both_sides() {
        let schema = r#"{"type":"object","required":["name"],"additionalProperties":false,"properties":{
            "name":{"type":"string","minLength":2},"tags":{"type":"array","items":{"enum":["a","b"]},"uniqueItems":true},
            "age":{"type":["integer","null"],"minimum":0}}}"#;
        let check = |value: &str, expected: &[&str]| assert_eq!(of(schema, value), expected, "{value}");
        check(r#"{"name":"Jo","tags":["a","b"],"age":null}"#, &[]);
        check("[]", &["the answer is an array; it must be object"]);
        check(r#"{"nam":"Jo"}"#, &["the answer has no `name`", "the answer has a key that is not allowed"]);
        check(r#"{"name":"é"}"#, &["/name has a length of 1; it must be at least 2"]);
        check(r#"{"name":"Jo","age":1.5}"#, &["/age is a number; it must be integer or null"]);
        check(r#"{"name":"Jo","age":-1}"#, &["/age must be at least 0"]);
        check(r#"{"name":"Jo","tags":["c"]}"#, &["/tags/0 is none of the values that are allowed"]);
        check(r#"{"name":"Jo","tags":["a","a"]}"#, &["/tags has the item 1 twice"]);
    }

    #[test]
    fn nothing_that_the_model_has_made_up_is_told() {
        let check = |schema: &str, value: &str, expected: &[&str]| assert_eq!(of(schema, value), expected, "{value}");
        let mapped =
            r#"{"additionalProperties":{"properties":{"a":{"type":"string"}},"additionalProperties":{"maximum":9}}}"#;
        check(
            mapped,
            r#"{"Jane":{"a":1,"555 1234":5551234}}"#,
            &["/*/a is an integer; it must be string", "/*/* must be at most 9"],
        );
        check(
            r#"{"additionalProperties":false}"#,
            r#"{"Jane":1,"Doe":2}"#,
            &["the answer has a key that is not allowed"],
        );
        check(
            r#"{"properties":{"a/b":{"type":"null"}}}"#,
            r#"{"a/b":"Jane"}"#,
            &["/a~1b is a string; it must be null"],
        );
        check(r#"{"enum":[1]}"#, "\"Jane\"", &["the answer is none of the values that are allowed"]);
    }

    #[test]
    fn a_value_must_be_in_enum_and_be_const() {
        for schema in [r#"{"enum":[1,2],"const":1}"#, r#"{"const":1,"enum":[1,2]}"#] {
            assert_eq!(["1", "2", "3"].map(|value| of(schema, value).is_empty()), [true, false, false], "{schema}");
        }
        for schema in [r#"{"enum":[2],"const":1}"#, r#"{"const":1,"enum":[2]}"#] {
            assert_eq!(["1", "2"].map(|value| of(schema, value).is_empty()), [false, false], "{schema}");
        }
    }

    #[test]
    fn zero_is_zero_with_either_sign() {
        for zero in ["0", "-0", "0.0", "-0.0", "-0e0"] {
            assert_eq!(of(r#"{"minimum":0,"maximum":0}"#, zero), [""; 0], "{zero}");
            assert_eq!(of(r#"{"minimum":-0.0,"maximum":-0.0}"#, zero), [""; 0], "{zero}");
            assert_eq!(of(r#"{"exclusiveMaximum":0}"#, zero).len(), 1, "{zero}");
        }
    }

    #[test]
    fn combinations_hold_as_a_whole() {
        let any = r#"{"anyOf":[{"type":"string"},{"type":"integer","exclusiveMinimum":3}]}"#;
        assert!(of(any, "4").is_empty() && of(any, "\"x\"").is_empty());
        assert_eq!(of(any, "3"), ["the answer is none of the 2 forms of `anyOf`"]);
        let one = r#"{"oneOf":[{"minimum":1},{"maximum":5}]}"#;
        assert_eq!(of(one, "3"), ["the answer is 2 of the forms of `oneOf`; it must be one"]);
        assert!(of(one, "9").is_empty());
        assert_eq!(
            of(r#"{"not":{"const":{"a":1,"b":2}}}"#, r#"{"b":2,"a":1.0}"#),
            ["the answer is what `not` forbids"]
        );
    }

    #[test]
    fn items_of_a_long_list_may_be_unique() {
        let unique = r#"{"type":"array","uniqueItems":true}"#;
        let mut items: Vec<String> = (1..=5_000).map(|n| n.to_string()).collect();
        assert_eq!(of(unique, &format!("[{}]", items.join(","))), [""; 0]);
        items[4_000] = "17.0".into();
        assert_eq!(of(unique, &format!("[{}]", items.join(","))), ["the answer has the item 4000 twice"]);
        // Each has all keys of the others, and differs in the last value.
        let members: String = (0..269).map(|key| format!("\"k{key}\":0,")).collect();
        let objects: Vec<String> = (0..632).map(|n| format!("{{{members}\"z\":{n}}}")).collect();
        assert_eq!(of(unique, &format!("[{}]", objects.join(","))), [""; 0]);
        let more: Vec<String> = objects.iter().cycle().take(1_000).cloned().collect();
        let told = of(unique, &format!("[{}]", more.join(",")));
        assert!(told.len() == 1 && told[0].contains("more than 200000"), "{told:?}");
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let tree = r##"{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}}"##;
        let deep = format!("{}1{}", "{\"a\":".repeat(40), "}".repeat(40));
        let told = of(tree, &deep);
        assert!(told.len() == 1 && told[0].contains("more than 200000"), "{told:?}");
    }
}
