//! Schemas and configs that fit by construction, in each way in which an object can be described.

use super::says;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// No plan's keys or values begin so.
const UNKNOWN: &str = "zz-unknown";

#[derive(Clone, Debug)]
enum Plan {
    Leaf { schema: Value, value: Value },
    List(Vec<Plan>),
    Object { form: u8, members: BTreeMap<String, Plan> },
}

fn plans() -> impl Strategy<Value = Plan> {
    plan_of_object(leaves().prop_recursive(3, 24, 4, |inner| {
        prop_oneof![prop::collection::vec(inner.clone(), 0..3).prop_map(Plan::List), plan_of_object(inner)]
    }))
}

fn plan_of_object(inner: impl Strategy<Value = Plan>) -> impl Strategy<Value = Plan> {
    let members = prop::collection::btree_map("[a-d]{1,2}", inner, 1..4);
    (0..10_u8, members).prop_map(|(form, members)| Plan::Object { form, members })
}

fn leaves() -> impl Strategy<Value = Plan> {
    let leaf = |schema, value| Plan::Leaf { schema, value };
    prop_oneof![
        any::<i32>().prop_map(move |n| leaf(json!({"type": "integer", "minimum": n, "maximum": n}), json!(n))),
        "[a-y]{1,5}".prop_map(move |text| leaf(json!({"type": "string", "pattern": "^[a-y]{1,5}$"}), json!(text))),
        "[a-y]{1,5}".prop_map(move |text| leaf(json!({"anyOf": [{"type": "null"}, {"const": text}]}), json!(text))),
        any::<bool>()
            .prop_map(move |is| leaf(json!({"oneOf": [{"const": !is}, {"type": "boolean", "enum": [is]}]}), json!(is))),
    ]
}

impl Plan {
    fn value(&self) -> Value {
        match self {
            Self::Leaf { value, .. } => value.clone(),
            Self::List(items) => items.iter().map(Self::value).collect(),
            Self::Object { members, .. } => {
                members.iter().map(|(name, plan)| (name.clone(), plan.value())).collect::<Map<_, _>>().into()
            }
        }
    }

    fn schema(&self, definitions: &mut Map<String, Value>) -> Value {
        match self {
            Self::Leaf { schema, .. } => schema.clone(),
            Self::List(items) => {
                let items: Vec<Value> = items.iter().map(|item| item.schema(definitions)).collect();
                if items.is_empty() { json!({"maxItems": 0}) } else { json!({"prefixItems": items, "items": false}) }
            }
            Self::Object { form, members } => {
                let parts = members.iter().map(|(name, plan)| (name.clone(), plan.schema(definitions)));
                let parts: Vec<(String, Value)> = parts.collect();
                described(*form, parts, definitions)
            }
        }
    }
}

/// An object of these properties, in one of ten ways.
fn described(form: u8, parts: Vec<(String, Value)>, definitions: &mut Map<String, Value>) -> Value {
    let object = |parts: &[(String, Value)]| {
        let names: Vec<&String> = parts.iter().map(|(name, _)| name).collect();
        json!({"type": "object", "required": names, "properties": parts.iter().cloned().collect::<Map<_, _>>()})
    };
    let (left, right) = parts.split_at(parts.len() / 2);
    let (whole, left, right) = (object(&parts), object(left), object(right));
    let other = json!({"properties": {UNKNOWN: {}, "zz": {}}, "required": ["zz"]});
    match form {
        0 => whole,
        1 => {
            let name = format!("a/b~{}", definitions.len());
            definitions.insert(name.clone(), whole);
            json!({"$ref": format!("#/$defs/{}", name.replace('~', "~0").replace('/', "~1"))})
        }
        2 => json!({"allOf": [left, right]}),
        3 => json!({"properties": left["properties"], "anyOf": [other, right]}),
        4 => json!({"oneOf": [other, whole]}),
        5 => json!({"if": other, "then": false, "else": whole}),
        6 => json!({"not": other, "allOf": [{"allOf": [whole]}]}),
        7 => json!({"if": {"required": left["required"]}, "then": {"allOf": [left, right]}}),
        8 => json!({"allOf": [left, right], "unevaluatedProperties": false}),
        _ => {
            let exact = parts.iter().map(|(name, part)| (format!("^{name}$"), part.clone()));
            json!({"patternProperties": exact.collect::<Map<_, _>>()})
        }
    }
}

/// JSON pointers to all objects inside.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.push(at.to_owned());
            members.iter().for_each(|(name, member)| objects(member, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| objects(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn what_fits_passes_and_one_more_key_anywhere_does_not(plan in plans(), chosen in any::<prop::sample::Index>()) {
        let mut definitions = Map::new();
        let part = plan.schema(&mut definitions);
        let schema = json!({"type": "object", "allOf": [part], "$defs": definitions});
        let mut config = plan.value();
        prop_assert_eq!(says(&schema, &config), Ok(()), "{}", schema);
        let mut places = Vec::new();
        objects(&config, "", &mut places);
        let place = chosen.get(&places);
        config.pointer_mut(place).unwrap()[UNKNOWN] = json!(1);
        let told = says(&schema, &config).unwrap_err();
        let is_told = told.contains(&format!(".{UNKNOWN}: ")) && told.contains("there is no such key");
        prop_assert!(is_told, "{} in {}: {}", place, schema, told);
    }
}
