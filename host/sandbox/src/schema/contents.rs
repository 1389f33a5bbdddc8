//! What is inside objects and arrays: each key and each item against the schemas that apply to it.

use super::canonical::{canonical, shown};
use super::check::{Check, Checked};
use super::node::{ArrayRules, NodeIdx, ObjectRules};
use serde_json::{Map, Value};
use std::collections::HashSet;

impl Check<'_> {
    pub(super) fn object(&mut self, at: NodeIdx, object: &Map<String, Value>) -> Checked {
        let schema = self.schema;
        let rules = &schema.nodes[at].object;
        self.note(at, object);
        self.count(rules.count, object.len(), "keys")?;
        // What is there before what is missing: of several schemas, its `"kind"` may tell which was meant.
        for (name, value) in object {
            self.spend(1)?;
            self.member(rules, name, value)?;
        }
        self.required(&rules.required, object)?;
        for (name, others) in &rules.dependent_required {
            self.spend(1)?;
            if object.contains_key(name) {
                self.required(others, object)?;
            }
        }
        Ok(())
    }

    fn member(&mut self, rules: &ObjectRules, name: &str, value: &Value) -> Checked {
        self.under(format_args!(".{name}"), |check| {
            if let Some(names) = rules.names {
                check.node(names, &Value::from(name)).map_err(|failure| failure.said_of("the key itself"))?;
            }
            let property = rules.property(name);
            property.map_or(Ok(()), |part| check.node(part, value))?;
            let mut is_named = property.is_some();
            for (pattern, part) in rules.patterns() {
                if check.matches(pattern, name)? {
                    is_named = true;
                    check.node(part, value)?;
                }
            }
            match rules.additional.filter(|_| !is_named) {
                Some(rest) if check.schema.nodes[rest].is_false => check.no_such_key(rules.property_names(), name),
                Some(rest) => check.node(rest, value),
                None => Ok(()),
            }
        })
    }

    fn required(&mut self, names: &[String], object: &Map<String, Value>) -> Checked {
        self.spend(names.len() as u64)?;
        match names.iter().find(|name| !object.contains_key(*name)) {
            Some(name) => self.under(format_args!(".{name}"), |check| check.fail("it is required and missing")),
            None => Ok(()),
        }
    }

    pub(super) fn array(&mut self, rules: &ArrayRules, items: &[Value]) -> Checked {
        self.count(rules.count, items.len(), "items")?;
        if rules.are_unique {
            self.unique(items)?;
        }
        for (index, item) in items.iter().enumerate() {
            let Some(part) = rules.prefix.get(index).copied().or(rules.items) else { break };
            self.under(format_args!("[{index}]"), |check| check.node(part, item))?;
        }
        Ok(())
    }

    fn unique(&mut self, items: &[Value]) -> Checked {
        let mut known = HashSet::with_capacity(items.len());
        for item in items {
            let text = canonical(item);
            self.spend(1 + text.len() as u64 / 16)?;
            if !known.insert(text) {
                return self.fail(format!("{} is there twice", shown(item)));
            }
        }
        Ok(())
    }
}
