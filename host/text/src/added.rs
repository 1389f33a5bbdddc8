//! Which added tokens steer the model, and how to find them in text.
//!
//! Tokenizers add two sorts of tokens to their vocabulary. Most are marks that steer the model (`<|im_end|>`,
//! `<tool_call>`, `[INST]`); some are plain text that got a token of its own (runs of spaces or newlines).
//! Only marks must be kept out of a caller's reach; plain ones must not, or ordinary text would be encoded
//! otherwise than the model was trained. The flag `special` is no help alone: the tool and thinking marks of
//! many models do not carry it.
//!
//! Read next: `veil.rs`, which keeps callers from writing them.

use crate::files::UnknownToken;
use std::collections::HashSet;
use tokenizers::Tokenizer;

/// The tokens that steer a model.
pub(crate) struct ControlTokens {
    ids: HashSet<u32>,
    forward: Trie,
    backward: Trie,
    /// All texts, each between NULs, to look up what is inside one of them.
    joined: String,
    longest: usize,
}

impl ControlTokens {
    /// Those of a tokenizer. The unknown token is none: any text may encode to it.
    pub fn of(tokenizer: &Tokenizer, unknown: Option<&UnknownToken>) -> Self {
        let mut ids = HashSet::new();
        let mut texts = Vec::new();
        for (id, token) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            let is_unknown = match unknown {
                Some(UnknownToken::Text(text)) => *text == token.content,
                Some(UnknownToken::Id(unknown)) => unknown == id,
                None => false,
            };
            // A single character cannot be written in another way, so it cannot be kept out of text.
            let is_mark = (token.special || is_bracketed(&token.content)) && token.content.chars().count() > 1;
            if is_mark {
                texts.push(token.content.clone());
                if !is_unknown {
                    ids.insert(*id);
                }
            }
        }
        Self::from_texts(ids, &texts)
    }

    fn from_texts(ids: HashSet<u32>, texts: &[String]) -> Self {
        let (mut forward, mut backward) = (Trie::default(), Trie::default());
        for text in texts {
            forward.insert(text.bytes());
            backward.insert(text.bytes().rev());
        }
        let joined = format!("\0{}\0", texts.join("\0"));
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Self { ids, forward, backward, joined, longest }
    }

    /// Whether this id steers the model.
    pub fn contains(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    /// Byte positions where a mark begins in `text`, whole or cut off by the end of the text.
    pub fn beginnings<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let bytes = text.as_bytes();
        (0..bytes.len()).filter(move |&start| match self.forward.walk(bytes[start..].iter().copied()) {
            Walk::Whole | Walk::Ended => true,
            Walk::Left => false,
        })
    }

    /// Byte positions behind a mark's end whose beginning lies before the text.
    pub fn cut_endings<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let bytes = text.as_bytes();
        let last = bytes.len().min(self.longest.saturating_sub(1));
        (1..=last).filter(move |&end| matches!(self.backward.walk(bytes[..end].iter().rev().copied()), Walk::Ended))
    }

    /// Whether a mark holds the text in its inside, so that it could be completed on both sides.
    pub fn has_inside(&self, text: &str) -> bool {
        !text.is_empty() && text.len() < self.longest && self.joined.contains(text)
    }
}

/// `<...>` and `[...]`, also behind a SentencePiece space marker.
fn is_bracketed(text: &str) -> bool {
    let text = text.trim_matches(|c: char| c == '▁' || c.is_whitespace());
    (text.starts_with('<') && text.ends_with('>')) || (text.starts_with('[') && text.ends_with(']'))
}

/// How following a text through a [`Trie`] ended.
enum Walk {
    /// A whole entry was read.
    Whole,
    /// The text ended inside an entry.
    Ended,
    /// The text left all entries.
    Left,
}

/// A set of byte strings.
struct Trie {
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    next: Vec<(u8, usize)>,
    is_end: bool,
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Trie {
    fn insert(&mut self, bytes: impl Iterator<Item = u8>) {
        let mut at = 0;
        for byte in bytes {
            at = match self.child(at, byte) {
                Some(child) => child,
                None => {
                    self.nodes.push(Node::default());
                    let child = self.nodes.len() - 1;
                    self.nodes[at].next.push((byte, child));
                    child
                }
            };
        }
        self.nodes[at].is_end = true;
    }

    fn child(&self, at: usize, byte: u8) -> Option<usize> {
        self.nodes[at].next.iter().find(|(b, _)| *b == byte).map(|(_, child)| *child)
    }

    fn walk(&self, bytes: impl Iterator<Item = u8>) -> Walk {
        let mut at = 0;
        for byte in bytes {
            match self.child(at, byte) {
                Some(child) => at = child,
                None => return Walk::Left,
            }
            if self.nodes[at].is_end {
                return Walk::Whole;
            }
        }
        if at == 0 { Walk::Left } else { Walk::Ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(texts: &[&str]) -> ControlTokens {
        ControlTokens::from_texts(HashSet::new(), &texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn marks_are_bracketed_and_runs_of_spaces_are_not() {
        for mark in ["<tool_call>", "<|im_end|>", "[INST]", "[/INST]", "▁<PRE>", "<｜User｜>"] {
            assert!(is_bracketed(mark), "{mark}");
        }
        for text in ["    ", "\n\n", "<", "hello", "[x", "a>"] {
            assert!(!is_bracketed(text), "{text}");
        }
    }

    #[test]
    fn beginnings_are_found_whole_and_at_the_end() {
        let marks = marks(&["<a>", "<b|c>", "[/X]"]);
        assert_eq!(marks.beginnings("x<a><b|c>[/").collect::<Vec<_>>(), [1, 4, 9]);
        assert_eq!(marks.beginnings("<c> <b> [X]").count(), 0);
    }

    #[test]
    fn endings_are_found_at_the_start_only() {
        let marks = marks(&["<a>", "<b|c>"]);
        assert_eq!(marks.cut_endings("|c> x a>").collect::<Vec<_>>(), [3]);
        assert_eq!(marks.cut_endings(">").collect::<Vec<_>>(), [1]);
        assert_eq!(marks.cut_endings("<a>").count(), 0, "a whole mark is no cut one");
    }

    #[test]
    fn insides_are_proper_parts() {
        let marks = marks(&["<tool_call>", "<b>"]);
        assert!(marks.has_inside("tool_call") && marks.has_inside("b"));
        assert!(!marks.has_inside("x") && !marks.has_inside("") && !marks.has_inside("<tool_call><b>"));
    }
}
