//! Keeps what callers write from becoming control tokens.
//!
//! A template pastes a caller's texts between its own marks, and the tokenizer then looks for marks in the
//! whole. It cannot tell who wrote them: `<|im_end|>` in a message would end the message. Escaping after
//! rendering is too late, and escaping before it must survive whatever templates do to texts (trim, split,
//! compare, write as JSON).
//!
//! So before rendering, single characters of a caller's texts are swapped for private-use stand-ins, one for
//! one, so that no mark is left that contains a character of the caller's:
//! - a mark inside a text: its first character is swapped;
//! - a mark that the end of a text begins, and that what the template writes next could complete: same;
//! - a mark that the beginning of a text completes: its last character is swapped;
//! - a text that is a part of a mark, so that the template's characters on both sides could complete it: its
//!   first character is swapped.
//!
//! Everything else is left alone, so an ordinary text is not touched at all. The tokenizer then finds exactly
//! the marks that the template wrote, and the stand-ins are swapped back in the text between them
//! (`encoder.rs`). Private-use characters that a caller writes are swapped too, so that none is mistaken.
//!
//! Two things are trusted. The words of JSON Schema are exempt from the last rule: templates compare them
//! (`type == "object"`), and `object` is a part of Qwen's `<|object_ref_start|>`. And a template, which comes
//! with the model, must not cut a caller's text in its inside and write a part of a mark at the cut.

use crate::added::ControlTokens;
use crate::error::TextError;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Stand-ins are the private-use characters of plane 16, from here.
const FIRST_STAND_IN: u32 = 0x10_0000;
/// How many stand-ins there are.
const NUM_STAND_INS: usize = 0xFFFE;
/// Deepest JSON that is taken; what the wire's parser allows, and some for wrapping.
const MAX_DEPTH: usize = 140;

/// Words of JSON Schema that templates look for.
const SCHEMA_WORDS: [&str; 30] = [
    "type",
    "properties",
    "required",
    "description",
    "enum",
    "items",
    "default",
    "title",
    "format",
    "parameters",
    "name",
    "function",
    "arguments",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "const",
    "additionalProperties",
    "nullable",
    "return",
    "object",
    "array",
    "string",
    "number",
    "integer",
    "boolean",
    "null",
    "none",
];

/// Whether a character stands for another.
pub(crate) fn is_stand_in(c: char) -> bool {
    (FIRST_STAND_IN..FIRST_STAND_IN + NUM_STAND_INS as u32).contains(&u32::from(c))
}

/// The stand-ins of one conversation.
pub(crate) struct Veil<'a> {
    controls: &'a ControlTokens,
    /// `originals[n]` is what stand-in `n` stands for.
    originals: Vec<char>,
    /// The other way round.
    stand_ins: HashMap<char, char>,
}

impl<'a> Veil<'a> {
    pub fn new(controls: &'a ControlTokens) -> Self {
        Self { controls, originals: Vec::new(), stand_ins: HashMap::new() }
    }

    /// A caller's text, safe to be pasted anywhere.
    pub fn text(&mut self, text: &str) -> Result<String, TextError> {
        let mut positions = self.positions(text);
        positions.extend(text.char_indices().filter(|(_, c)| is_stand_in(*c)).map(|(at, _)| at));
        positions.sort_unstable();
        self.swap_at(text, &positions)
    }

    /// The text with the characters at these byte positions, in order, swapped for stand-ins.
    pub fn swap_at(&mut self, text: &str, positions: &[usize]) -> Result<String, TextError> {
        let mut out = String::with_capacity(text.len() + 4 * positions.len());
        let mut done = 0;
        for &at in positions {
            if let Some(c) = text[at..].chars().next().filter(|_| at >= done) {
                out.push_str(&text[done..at]);
                out.push(self.stand_in(c)?);
                done = at + c.len_utf8();
            }
        }
        out.push_str(&text[done..]);
        Ok(out)
    }

    /// A caller's JSON with all its texts and keys veiled.
    pub fn json(&mut self, value: &Value, place: &'static str) -> Result<Value, TextError> {
        self.json_at(value, place, 0)
    }

    fn json_at(&mut self, value: &Value, place: &'static str, depth: usize) -> Result<Value, TextError> {
        if depth > MAX_DEPTH {
            return Err(TextError::TooDeep { place, limit: MAX_DEPTH });
        }
        Ok(match value {
            Value::String(text) => Value::String(self.word(text)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.json_at(item, place, depth + 1)).collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let mut out = Map::with_capacity(fields.len());
                for (key, field) in fields {
                    out.insert(self.word(key)?, self.json_at(field, place, depth + 1)?);
                }
                Value::Object(out)
            }
            other => other.clone(),
        })
    }

    /// A text inside JSON, which templates may compare with words of JSON Schema.
    fn word(&mut self, text: &str) -> Result<String, TextError> {
        if SCHEMA_WORDS.contains(&text) { Ok(text.to_owned()) } else { self.text(text) }
    }

    /// What a character of a rendered template stands for.
    pub fn original(&self, c: char) -> char {
        if !is_stand_in(c) {
            return c;
        }
        self.originals.get((u32::from(c) - FIRST_STAND_IN) as usize).copied().unwrap_or(c)
    }

    /// Byte positions of the characters to swap; in no order, and some twice.
    fn positions(&self, text: &str) -> Vec<usize> {
        let mut positions: Vec<usize> = self.controls.beginnings(text).collect();
        positions.extend(self.controls.cut_endings(text).map(|end| last_char_start(&text[..end])));
        if self.controls.has_inside(text) {
            positions.push(0);
        }
        positions
    }

    fn stand_in(&mut self, c: char) -> Result<char, TextError> {
        if let Some(known) = self.stand_ins.get(&c) {
            return Ok(*known);
        }
        let stand_in =
            u32::try_from(self.originals.len()).ok().and_then(|index| char::from_u32(FIRST_STAND_IN + index));
        let stand_in = stand_in.filter(|c| is_stand_in(*c));
        let stand_in = stand_in.ok_or(TextError::PrivateCharacters { limit: NUM_STAND_INS })?;
        self.originals.push(c);
        self.stand_ins.insert(c, stand_in);
        Ok(stand_in)
    }
}

fn last_char_start(text: &str) -> usize {
    text.char_indices().next_back().map_or(0, |(at, _)| at)
}
