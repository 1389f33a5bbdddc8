//! The document against the route table, and against OpenAPI's own rules.

use super::*;
use std::collections::{BTreeSet, HashSet};

fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().iter().map(move |(method, one)| (path.clone(), method.clone(), one))
        })
        .collect()
}

#[test]
fn every_route_is_described_once_and_nothing_else_is() {
    let document = document().unwrap();
    let mut described = BTreeSet::new();
    for (path, method, _) in operations(&document) {
        let route = route_of(&path, &method).unwrap_or_else(|| panic!("there is no {method} {path}"));
        assert!(described.insert((route.path, route.method.as_str())), "{method} {path} is described twice");
    }
    let table: BTreeSet<_> = crate::routes().map(|(method, path, _)| (path, method.as_str())).collect();
    assert_eq!(described, table);
}

/// Every object within a value, with where it is.
fn each<'a>(value: &'a Value, at: &str, see: &mut impl FnMut(&str, &'a Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            see(at, members);
            members.iter().for_each(|(name, member)| each(member, &format!("{at}/{name}"), see));
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(i, item)| each(item, &format!("{at}/{i}"), see)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let document = document().unwrap();
    let mut used = HashSet::new();
    each(&document, "", &mut |at, members| {
        let Some(reference) = members.get("$ref") else { return };
        let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{at}: nothing is at {pointer}");
        assert_eq!(members.len(), 1, "{at}: members beside a $ref are passed over by many readers");
        used.insert(pointer.to_owned());
    });
    for kind in ["schemas", "parameters", "headers", "responses"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            assert!(used.contains(&format!("/components/{kind}/{name}")), "{kind}/{name} is used nowhere");
        }
    }
}

#[test]
fn operations_have_names_of_their_own_and_the_parameters_of_their_paths() {
    let document = document().unwrap();
    let mut names = HashSet::new();
    for (path, method, operation) in operations(&document) {
        let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no operationId"));
        assert!(names.insert(name), "{name} is there twice");
        assert!(operation["summary"].is_string() && operation["tags"].is_array(), "{name}");
        let resolved = |one: &Value| match one["$ref"].as_str() {
            Some(reference) => document.pointer(&reference[1..]).unwrap().clone(),
            None => one.clone(),
        };
        let parameters: Vec<Value> = operation["parameters"].as_array().unwrap().iter().map(resolved).collect();
        let seen: HashSet<_> = parameters.iter().map(|one| (one["in"].as_str(), one["name"].as_str())).collect();
        assert_eq!(seen.len(), parameters.len(), "{name} has a parameter twice");
        let in_path: BTreeSet<_> =
            parameters.iter().filter(|one| one["in"] == "path").map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(in_path, words(&path).collect(), "{name}");
        let good =
            operation["responses"].as_object().unwrap().keys().filter(|status| *status < &"400".to_owned()).count();
        assert_eq!(good, 1, "{name} succeeds in one way");
        each(&operation["responses"], name, &mut |at, members| {
            if at.matches('/').count() == 1 && !members.contains_key("$ref") {
                assert!(members.contains_key("description"), "{at}");
            }
        });
    }
}
