//! Schemas of the same value: those that `$ref` and `allOf` add, and those of which some must hold or must not.

use super::check::{Check, Checked, Failure, Kind};
use super::known;
use super::node::{InPlace, NodeIdx};
use super::wrong;
use serde_json::Value;
use std::cmp::Reverse;

impl Check<'_> {
    pub(super) fn in_place(&mut self, parts: &InPlace, value: &Value) -> Checked {
        for part in parts.reference.iter().chain(&parts.all_of) {
            self.node(*part, value)?;
        }
        self.any_of(&parts.any_of, value)?;
        self.one_of(&parts.one_of, value)?;
        if let Some(not) = parts.not
            && self.attempt(not, value)?.is_ok()
        {
            return self.fail("it is what the schema excludes (`not`)");
        }
        if let Some(condition) = parts.condition {
            self.num_tests += 1;
            let tested = self.attempt(condition, value);
            self.num_tests -= 1;
            let branch = if tested?.is_ok() { parts.then } else { parts.otherwise };
            branch.map_or(Ok(()), |branch| self.node(branch, value))?;
        }
        for (name, part) in &parts.dependent {
            self.spend(1)?;
            if value.get(name).is_some() {
                self.node(*part, value)?;
            }
        }
        Ok(())
    }

    /// All are tried, for each that holds may know more keys.
    fn any_of(&mut self, parts: &[NodeIdx], value: &Value) -> Checked {
        let first = self.seen.len();
        let (mut tried, mut is_free) = (Vec::with_capacity(parts.len()), false);
        for part in parts {
            let before = self.seen.len();
            tried.push(self.attempt(*part, value)?);
            is_free |= tried.last().is_some_and(Result::is_ok) && known::is_free(&self.seen[before..]);
        }
        if is_free {
            known::open(&mut self.seen[first..]);
        }
        match parts.is_empty() || tried.iter().any(Result::is_ok) {
            true => Ok(()),
            false => Err(self.none_of(tried, value)),
        }
    }

    fn one_of(&mut self, parts: &[NodeIdx], value: &Value) -> Checked {
        let tried: Vec<Checked> = parts.iter().map(|part| self.attempt(*part, value)).collect::<Result<_, _>>()?;
        let mut held = tried.iter().enumerate().filter(|(_, tried)| tried.is_ok()).map(|(index, _)| index + 1);
        match (held.next(), held.next()) {
            (Some(first), Some(second)) => {
                self.fail(format!("it fits more than one of the choices, such as numbers {first} and {second}"))
            }
            (None, _) if !tried.is_empty() => Err(self.none_of(tried, value)),
            _ => Ok(()),
        }
    }

    /// Whether a schema holds; what it said of the value's keys and numbers is forgotten where it does not.
    fn attempt(&mut self, part: NodeIdx, value: &Value) -> Result<Checked, Failure> {
        let (first, integers) = (self.seen.len(), self.integers.len());
        match self.node(part, value) {
            Err(failure) if failure.kind == Kind::End => Err(failure),
            Err(failure) => {
                self.seen.truncate(first);
                self.integers.truncate(integers);
                Ok(Err(failure))
            }
            Ok(()) => Ok(Ok(())),
        }
    }

    /// Speaks of the one that was meant: not ruled out by a value like `"kind": "file"` or by being no object or array, and
    /// of those the one that failed deepest inside, and so fitted most.
    fn none_of(&self, tried: Vec<Checked>, value: &Value) -> Failure {
        let is_meant = |failure: &Failure| match failure.kind {
            Kind::NoChoice => false,
            Kind::OtherType => failure.violation.path != self.path || !(value.is_object() || value.is_array()),
            Kind::Other | Kind::End => true,
        };
        let depth = |failure: &Failure| failure.violation.path.matches(['.', '[']).count();
        let failures: Vec<Failure> = tried.into_iter().filter_map(Result::err).collect();
        let meant = failures.iter().enumerate().filter(|(_, failure)| is_meant(failure));
        let meant = meant.min_by_key(|(_, failure)| Reverse(depth(failure))).map_or(0, |(index, _)| index);
        let Some(failure) = failures.get(meant) else {
            return self.failure(Kind::Other, "it fits none of the choices");
        };
        let which = if meant == 0 { "the first".to_owned() } else { format!("number {}", meant + 1) };
        let message = format!("it fits none of the choices; of {which}: {}", failure.violation.message);
        Failure { violation: wrong(&failure.violation.path, message), kind: failure.kind }
    }
}
