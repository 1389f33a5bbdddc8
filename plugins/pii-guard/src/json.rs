//! Where strings are in JSON text that arrives in pieces: a number outside of them may only be replaced by a
//! string, quotes included, or what is left is no JSON.

use serde::{Deserialize, Serialize};

/// A place in JSON text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JsonPlace {
    in_string: bool,
}

impl JsonPlace {
    /// Moves over text that ends between two escape sequences.
    pub(crate) fn pass(&mut self, text: &str) {
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
    pub(crate) fn replacement(self, text: String) -> String {
        if self.in_string { text } else { format!("\"{text}\"") }
    }
}
