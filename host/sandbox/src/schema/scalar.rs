//! What is checked of a value as a whole: its type, which of some values it is, its length, its bounds.

use super::canonical::{canonical, shown};
use super::check::{Check, Checked, Failure, Kind, PART_BYTES, num_parts};
use super::node::{Choices, Count, Node, PatternIdx, Type};
use serde_json::{Number, Value};

impl Check<'_> {
    pub(super) fn types(&self, node: &Node, value: &Value) -> Checked {
        if node.types.is_empty() || node.types.iter().any(|kind| is_of_type(value, *kind)) {
            return Ok(());
        }
        let names: Vec<&str> = node.types.iter().map(|kind| kind.as_str()).collect();
        let message = format!("it is {}; it should be {}", kind_of(value).as_str(), names.join(" or "));
        Err(self.failure(Kind::OtherType, message))
    }

    pub(super) fn choices(&mut self, node: &Node, value: &Value) -> Checked {
        if let Some(constant) = &node.constant
            && !self.is_among(constant, value)?
        {
            return Err(self.failure(Kind::NoChoice, format!("it should be {}", constant.shown)));
        }
        match &node.choices {
            Some(choices) if !self.is_among(choices, value)? => {
                let message = format!("{} is not one of {}", shown(value), choices.shown);
                Err(self.failure(Kind::NoChoice, message))
            }
            _ => Ok(()),
        }
    }

    fn is_among(&mut self, choices: &Choices, value: &Value) -> Result<bool, Failure> {
        self.spend(num_parts(value).unwrap_or(1))?;
        Ok(choices.texts.contains(&canonical(value)))
    }

    pub(super) fn text(&mut self, node: &Node, text: &str) -> Checked {
        if node.characters.least.or(node.characters.most).is_some() {
            self.spend((text.len() / PART_BYTES) as u64)?;
            self.count(node.characters, text.chars().count(), "characters")?;
        }
        match node.pattern {
            Some(pattern) if !self.matches(pattern, text)? => {
                self.fail(format!("it does not match the pattern `{:.100}`", self.schema.patterns[pattern].source))
            }
            _ => Ok(()),
        }
    }

    /// A step for each byte: a pattern takes many for some, and a text's bytes have given the budget more than one each.
    pub(super) fn matches(&mut self, pattern: PatternIdx, text: &str) -> Result<bool, Failure> {
        self.spend(text.len() as u64 + 1)?;
        Ok(self.schema.patterns[pattern].regex.is_match(text))
    }

    pub(super) fn number(&self, node: &Node, number: &Number) -> Checked {
        match node.bounds.iter().find(|(bound, limit)| !bound.holds(number, limit)) {
            Some((bound, limit)) => {
                self.fail(format!("{number} is out of bounds; it should be {} {limit}", bound.words()))
            }
            None => Ok(()),
        }
    }

    pub(super) fn count(&self, count: Count, found: usize, what: &str) -> Checked {
        let found = found as u64;
        match (count.least, count.most) {
            (Some(least), _) if found < least => self.fail(format!("{found} {what}; at least {least}")),
            (_, Some(most)) if found > most => self.fail(format!("{found} {what}; at most {most}")),
            _ => Ok(()),
        }
    }
}

fn is_of_type(value: &Value, kind: Type) -> bool {
    match kind {
        Type::Integer => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        kind => kind_of(value) == kind,
    }
}

/// Of numbers, always `number`.
fn kind_of(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Boolean,
        Value::Number(_) => Type::Number,
        Value::String(_) => Type::String,
        Value::Array(_) => Type::Array,
        Value::Object(_) => Type::Object,
    }
}
