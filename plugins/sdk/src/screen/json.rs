//! JSON text that arrives in pieces: where strings are, and what belongs to an escape sequence.

use crate::scan::{Place, Scanner, Step};
use serde::{Deserialize, Serialize};

/// A scanner in JSON text: an escape sequence belongs to no match, and what follows it begins anew.
pub(super) struct InJson<'a, S>(pub(super) &'a S);

impl<S: Scanner> Scanner for InJson<'_, S> {
    fn step(&self, at: Place<'_>) -> Step {
        if at.open.is_none() && at.rest.starts_with('\\') {
            return escape(at);
        }
        match self.0.step(at) {
            Step::Pass(len) => Step::Pass(at.rest.bytes().take(len).position(|b| b == b'\\').unwrap_or(len)),
            step => step,
        }
    }
}

/// `\n` is two bytes of JSON and one break in the text; `\u0041` is six.
fn escape(at: Place<'_>) -> Step {
    let len = match at.rest.as_bytes().get(1) {
        Some(b'u') => 6,
        Some(_) => 2,
        None => return if at.is_last { Step::Skip(1) } else { Step::More },
    };
    match at.rest.len() {
        have if have < len && !at.is_last => Step::More,
        have => Step::Skip(len.min(have)),
    }
}

/// A place in JSON text. A number outside of strings may only be replaced by a string, quotes included, or what is
/// left is no JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JsonPlace {
    in_string: bool,
}

impl JsonPlace {
    /// Moves over text that ends between two escape sequences.
    pub(super) fn pass(&mut self, text: &str) {
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => self.in_string = !self.in_string,
                '\\' => drop(chars.next()),
                _ => {}
            }
        }
    }

    /// A replacement that leaves JSON here.
    pub(super) fn replacement(self, text: String) -> String {
        if self.in_string { text } else { format!("\"{text}\"") }
    }
}
