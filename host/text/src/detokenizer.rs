//! Token ids to text, one token at a time.
//!
//! Invariants: the pieces joined are the decoding of all tokens at once, no character is ever split, and at
//! most three bytes wait for the rest of their character.
//!
//! Read next: `output.rs`, which the text goes to.

use crate::model::TextModel;
use crate::pieces::HeadRule;
use std::borrow::Cow;
use std::sync::Arc;

/// Which special tokens are part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// None.
    Hide,
    /// Those that the model's tool-call and reasoning format is written in; for an [`OutputParser`](crate::OutputParser).
    ShowMarkup,
    /// Those that its reasoning is written in; for a parser of answers to which no tools were offered.
    ShowReasoning,
    /// All.
    Show,
}

/// Where the tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// They are a text of their own: a leading space that only the tokenizer put there is dropped.
    Start,
    /// They go on a text: a leading space is part of it.
    Continuation,
}

/// Turns tokens into text as they come.
pub struct Detokenizer {
    model: Arc<TextModel>,
    specials: Specials,
    head: HeadRule,
    tail: Utf8Tail,
}

impl Detokenizer {
    /// Ready for the first token.
    pub fn new(model: Arc<TextModel>, specials: Specials, place: Place) -> Self {
        let head = match place {
            Place::Start => model.pieces().head(),
            Place::Continuation => HeadRule::Keep,
        };
        Self { model, specials, head, tail: Utf8Tail::default() }
    }

    /// The whole characters that this token completes; empty where there is none.
    pub fn push(&mut self, token: u32) -> String {
        let mut out = String::new();
        if self.model.is_hidden(token, self.specials) {
            return out;
        }
        if self.head == HeadRule::Keep {
            self.tail.push(self.model.pieces().bytes(token), &mut out);
        } else {
            let bytes = self.written(token).into_owned();
            self.head = self.head_behind(token, bytes.len());
            self.tail.push(&bytes, &mut out);
        }
        out
    }

    /// What the token writes if it comes next, which is its bytes but for a leading space that is dropped; none where it is
    /// hidden.
    pub fn written(&self, token: u32) -> Cow<'_, [u8]> {
        if self.model.is_hidden(token, self.specials) {
            return Cow::Borrowed(&[]);
        }
        let bytes = self.model.pieces().bytes(token);
        match self.head {
            HeadRule::Keep => Cow::Borrowed(bytes),
            HeadRule::Strip { byte, count } => {
                let dropped = bytes.iter().take(count).take_while(|b| **b == byte).count();
                Cow::Borrowed(&bytes[dropped..])
            }
            HeadRule::Unspace { marker } => {
                let text = self.model.token_text(token);
                Cow::Owned(text.map(|text| self.model.pieces().bytes_without(&text, marker)).unwrap_or_default())
            }
        }
    }

    /// Bytes that wait for the rest of their character.
    pub fn waiting_bytes(&self) -> usize {
        self.tail.bytes.len()
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.tail.finish(&mut out);
        out
    }

    /// The rule for the beginning behind a token that has written so many bytes: it is over at the first byte that it does
    /// not concern.
    fn head_behind(&self, token: u32, written: usize) -> HeadRule {
        match self.head {
            HeadRule::Strip { byte, count } if written == 0 => match count - self.model.pieces().bytes(token).len() {
                0 => HeadRule::Keep,
                left => HeadRule::Strip { byte, count: left },
            },
            HeadRule::Unspace { marker } if self.model.token_text(token).is_none() => HeadRule::Unspace { marker },
            HeadRule::Keep | HeadRule::Strip { .. } | HeadRule::Unspace { .. } => HeadRule::Keep,
        }
    }
}

/// The bytes of a character that is not complete yet; at most three.
#[derive(Default)]
struct Utf8Tail {
    bytes: Vec<u8>,
}

impl Utf8Tail {
    /// Appends to `out` what is decided: whole characters, and U+FFFD for what can no longer become one.
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.bytes.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            out.push_str(text);
            return;
        }
        self.bytes.extend_from_slice(bytes);
        let mut decided = 0;
        for chunk in self.bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            decided += chunk.valid().len();
            let invalid = chunk.invalid();
            let open = decided + invalid.len() == self.bytes.len() && is_open_prefix(invalid);
            if invalid.is_empty() || open {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            decided += invalid.len();
        }
        self.bytes.drain(..decided);
    }

    fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.bytes));
        self.bytes.clear();
    }
}

/// Whether more bytes could make this a character.
fn is_open_prefix(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn incremental(chunks: &[Vec<u8>]) -> String {
        let mut tail = Utf8Tail::default();
        let mut out = String::new();
        for chunk in chunks {
            tail.push(chunk, &mut out);
            assert!(tail.bytes.len() <= 3, "{:?} waits", tail.bytes);
        }
        tail.finish(&mut out);
        out
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut tail = Utf8Tail::default();
        let mut out = String::new();
        for byte in &"€".as_bytes()[..2] {
            tail.push(&[*byte], &mut out);
            assert_eq!(out, "");
        }
        tail.push(&"€".as_bytes()[2..], &mut out);
        assert_eq!(out, "€");
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_chunks_are_their_lossy_decoding(
            chunks in prop::collection::vec(prop::collection::vec(prop_oneof![
                any::<u8>(), Just(0xF0), Just(0x9F), Just(0x98), Just(0x80), Just(0xE2), Just(0x82), Just(b'a')
            ], 0..5), 0..12)
        ) {
            let all = chunks.concat();
            prop_assert_eq!(incremental(&chunks), String::from_utf8_lossy(&all));
        }
    }
}
