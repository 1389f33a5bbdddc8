//! What stands behind a keyword that holds no schema; `None` where it is of the wrong form.

use super::canonical::{canonical, shown};
use super::node::{Choices, Type};
use super::number::Bound;
use serde_json::{Number, Value};
use std::collections::HashSet;

/// Bytes of the choices that a message lists.
const MAX_LISTED: usize = 400;
/// Bytes of a name of a key: it is looked up for each object.
pub(super) const MAX_NAME: usize = 1024;

/// A name, or an array of names.
pub(super) fn types(value: &Value) -> Option<Vec<Type>> {
    match value {
        Value::String(name) => Some(vec![Type::named(name)?]),
        Value::Array(names) if !names.is_empty() => names.iter().map(|name| Type::named(name.as_str()?)).collect(),
        _ => None,
    }
}

pub(super) fn names(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(name).collect()
}

fn name(value: &Value) -> Option<String> {
    value.as_str().filter(|name| name.len() <= MAX_NAME).map(str::to_owned)
}

pub(super) fn names_by_name(value: &Value) -> Option<Vec<(String, Vec<String>)>> {
    let pair = |(name, others): (&String, &Value)| Some((name.clone(), names(others)?));
    value.as_object()?.iter().map(|member| pair(member).filter(|(name, _)| name.len() <= MAX_NAME)).collect()
}

pub(super) fn count(value: &Value) -> Option<u64> {
    // Some tools write counts as floats.
    let float = || value.as_f64().filter(|count| count.fract() == 0.0 && (0.0..=1e15).contains(count));
    value.as_u64().or_else(|| Some(float()? as u64))
}

pub(super) fn bound(bound: Bound, value: &Value) -> Option<Number> {
    let is_right = bound != Bound::MultipleOf || value.as_f64().is_some_and(|number| number > 0.0);
    value.as_number().filter(|_| is_right).cloned()
}

pub(super) fn bound_words(bound: Bound) -> &'static str {
    if bound == Bound::MultipleOf { "a number above 0" } else { "a number" }
}

pub(super) fn constant(value: &Value) -> Choices {
    Choices { texts: HashSet::from([canonical(value)]), shown: shown(value) }
}

pub(super) fn choices(value: &Value) -> Option<Choices> {
    let values = value.as_array()?;
    let mut listed = String::new();
    for (index, value) in values.iter().enumerate() {
        if listed.len() > MAX_LISTED {
            listed.push_str(&format!(" and {} more", values.len() - index));
            break;
        }
        listed.push_str(if index == 0 { "" } else { ", " });
        listed.push_str(&shown(value));
    }
    Some(Choices { texts: values.iter().map(canonical).collect(), shown: listed })
}
