//! Holds a value against a schema. Every step is paid for from a budget that grows with the value, and the depth has a
//! bound: a plugin's author wrote the schema, and the host must come back.

use super::integer::Integer;
use super::known::Seen;
use super::node::{NodeIdx, ROOT, Schema};
use super::{Violation, wrong};
use serde_json::Value;
use std::fmt::{Arguments, Write};

/// Schemas inside each other, of the value's parts and of `$ref`, `allOf` and their like together.
const MAX_DEPTH: usize = 128;
/// A schema is held against a part, or what costs about as much.
const MAX_STEPS: u64 = 100_000;
/// As many more for each part of the value.
const STEPS_EACH: u64 = 200;
/// Bytes of text that count as one part.
pub(super) const PART_BYTES: usize = 16;

/// Why a value does not hold.
pub(super) struct Failure {
    pub(super) violation: Violation,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is none of the allowed values.
    NoChoice,
    /// It is of another type.
    OtherType,
    Other,
    /// Nothing more is checked, whatever the other schemas say.
    End,
}

impl Failure {
    pub(super) fn said_of(mut self, what: &str) -> Self {
        if self.kind != Kind::End {
            self.violation.message = format!("{what}: {}", self.violation.message);
        }
        self
    }
}

pub(super) type Checked = Result<(), Failure>;

pub(super) struct Check<'s> {
    pub(super) schema: &'s Schema,
    /// Of the part that is being looked at.
    pub(super) path: String,
    /// Which schemas spoke of which object. Of those that did not hold, none.
    pub(super) seen: Vec<Seen>,
    /// Numbers that a schema wants to be integers. Of those that did not hold, none.
    pub(super) integers: Vec<Integer>,
    /// How many `if` this is within.
    pub(super) num_tests: usize,
    steps_left: u64,
    depth: usize,
}

/// Gives the numbers that are to be integers.
pub(super) fn check(schema: &Schema, value: &Value) -> Result<Vec<Integer>, Violation> {
    let num_parts = num_parts(value).ok_or_else(|| wrong("", format!("it is nested more than {MAX_DEPTH} deep")))?;
    let steps_left = num_parts.saturating_mul(STEPS_EACH).saturating_add(MAX_STEPS);
    let (path, seen, integers) = (String::new(), Vec::new(), Vec::new());
    let mut check = Check { schema, path, seen, integers, num_tests: 0, steps_left, depth: 0 };
    let checked = check.node(ROOT, value).and_then(|()| check.unknown_keys(value));
    checked.map_err(|failure| failure.violation)?;
    Ok(check.integers)
}

/// Values inside a value, long texts as several; `None` where it is too deep to be walked by functions that call
/// themselves.
pub(super) fn num_parts(value: &Value) -> Option<u64> {
    let (mut count, mut rest) = (0, vec![(value, 0)]);
    while let Some((value, depth)) = rest.pop() {
        count += 1;
        if depth == MAX_DEPTH {
            return None;
        }
        match value {
            Value::String(text) => count += text.len() / PART_BYTES,
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => {
                count += members.keys().map(|name| name.len() / PART_BYTES).sum::<usize>();
                rest.extend(members.values().map(|member| (member, depth + 1)));
            }
            _ => {}
        }
    }
    Some(count as u64)
}

impl<'s> Check<'s> {
    pub(super) fn node(&mut self, at: NodeIdx, value: &Value) -> Checked {
        self.spend(1)?;
        if self.depth == MAX_DEPTH {
            return Err(self.end(format!("it is nested more than {MAX_DEPTH} deep, with what the schema's `$ref` add")));
        }
        self.depth += 1;
        let checked = self.rules(at, value);
        self.depth -= 1;
        checked
    }

    fn rules(&mut self, at: NodeIdx, value: &Value) -> Checked {
        let schema = self.schema;
        let node = &schema.nodes[at];
        if node.is_false {
            return self.fail("nothing is allowed here");
        }
        self.types(node, value)?;
        self.choices(node, value)?;
        self.note_integer(node, value);
        let first = self.seen.len();
        match value {
            Value::Object(object) => self.object(at, object)?,
            Value::Array(items) => self.array(&node.array, items)?,
            Value::String(text) => self.text(node, text)?,
            Value::Number(number) => self.number(node, number)?,
            Value::Null | Value::Bool(_) => {}
        }
        self.in_place(&node.in_place, value)?;
        match value {
            Value::Object(object) => self.unevaluated(at, first, object),
            _ => Ok(()),
        }
    }

    pub(super) fn spend(&mut self, steps: u64) -> Checked {
        match self.steps_left.checked_sub(steps) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => {
                Err(self.end("it cannot be checked in time: the plugin's schema leads through it in too many ways"))
            }
        }
    }

    pub(super) fn fail(&self, message: impl Into<String>) -> Checked {
        Err(self.failure(Kind::Other, message))
    }

    pub(super) fn failure(&self, kind: Kind, message: impl Into<String>) -> Failure {
        Failure { violation: wrong(&self.path, message), kind }
    }

    pub(super) fn end(&self, message: impl Into<String>) -> Failure {
        self.failure(Kind::End, message)
    }

    /// One step into the value, for as long as the work takes.
    pub(super) fn under(&mut self, step: Arguments<'_>, work: impl FnOnce(&mut Self) -> Checked) -> Checked {
        let outer = self.path.len();
        // To a string it cannot fail.
        let _ = self.path.write_fmt(step);
        let checked = work(self);
        self.path.truncate(outer);
        checked
    }
}
