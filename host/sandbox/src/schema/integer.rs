//! Numbers that a schema wants to be integers and that are written as floats. `5.0` is an integer to JSON Schema and to nobody
//! who reads a config into types, and an operator's file, or what wrote it, may say it so.

use super::canonical::whole;
use super::check::Check;
use super::node::{Node, Type};
use serde_json::Value;
use std::collections::HashSet;

/// A number, by its address: the value stays where it is while it is checked.
pub(super) type Integer = *const Value;

impl Check<'_> {
    /// Notes a float that is of the type `integer` and not of `number`, where a float is what is wanted.
    pub(super) fn note_integer(&mut self, node: &Node, value: &Value) {
        if value.is_f64() && node.types.contains(&Type::Integer) && !node.types.contains(&Type::Number) {
            self.integers.push(std::ptr::from_ref(value));
        }
    }
}

/// Writes them as integers, as far as there are integers so large.
pub(super) fn write(value: &mut Value, integers: &[Integer]) {
    let integers: HashSet<Integer> = integers.iter().copied().collect();
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        let is_one = integers.contains(&std::ptr::from_ref(&*value));
        match value {
            Value::Number(number) if is_one => {
                if let Some(integer) = whole(number) {
                    *number = integer;
                }
            }
            Value::Array(items) => rest.extend(items),
            Value::Object(members) => rest.extend(members.values_mut()),
            _ => {}
        }
    }
}
