//! Log-probabilities of an upstream's tokens, and which text each token stands for.
//!
//! Upstreams send them beside text, beside something else (reasoning, a call), a chunk late, or of a token's name in the
//! vocabulary (`Ġhello`). A token is taken for a part of a text only where it and all before it in its chunk, joined, are how
//! that text begins, byte for byte. The others pass too, and say that nobody knows their text: guards judge text, not tokens.

use crate::logprobs::named;
use serde::Deserialize;
use std::collections::BTreeMap;
use tidegate_types::{TextLogprob, TopLogprob};

/// Both shapes: `content` is chat's, the lists are legacy completions'.
#[derive(Deserialize)]
pub(super) struct Logprobs {
    content: Option<Vec<WireToken>>,
    tokens: Option<Vec<String>>,
    token_logprobs: Option<Vec<Option<f32>>>,
    top_logprobs: Option<Vec<Option<BTreeMap<String, f32>>>>,
}

#[derive(Deserialize)]
struct WireToken {
    token: String,
    logprob: Option<f32>,
    bytes: Option<Vec<u8>>,
    top_logprobs: Option<Vec<WireTop>>,
}

#[derive(Deserialize)]
struct WireTop {
    token: String,
    logprob: Option<f32>,
    bytes: Option<Vec<u8>>,
}

/// Tokens of one choice that wait for text.
#[derive(Default)]
pub(super) struct HeldTokens {
    tokens: Vec<TextLogprob>,
    /// So many of them came with something that is no text: they are none of the next one.
    num_apart: usize,
    /// Bytes of text that the choice has said.
    said: u64,
    /// About what those that wait take.
    bytes: usize,
}

/// Of a token or an alternative to one, beside its text.
const TOKEN_BYTES: usize = 64;

impl HeldTokens {
    pub(super) fn add(&mut self, logprobs: Logprobs) {
        let tokens = logprobs.into_tokens();
        let bytes = |top: &TopLogprob| top.token.len() + top.bytes.len() + TOKEN_BYTES;
        let of_token = |token: &TextLogprob| bytes(&token.chosen) + token.top.iter().map(bytes).sum::<usize>();
        self.bytes += tokens.iter().map(of_token).sum::<usize>();
        self.tokens.extend(tokens);
    }

    /// About what those take that wait for text.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What came so far is of no text.
    pub(super) fn set_apart(&mut self) {
        self.num_apart = self.tokens.len();
    }

    /// Gives all of them to a text, and says of those that are it where each ends.
    pub(super) fn of_text(&mut self, text: &str) -> Vec<TextLogprob> {
        let before = self.said;
        self.bytes = 0;
        self.said += text.len() as u64;
        let mut tokens = std::mem::take(&mut self.tokens);
        let own = tokens.get_mut(std::mem::take(&mut self.num_apart)..).unwrap_or_default();
        place(own, text, before);
        tokens
    }
}

/// Places the tokens that joined are how the text begins, up to one that is not its text (half a character that its server
/// could not write, one that a stop string cut, the one that ends an answer).
fn place(tokens: &mut [TextLogprob], text: &str, before: u64) {
    let mut rest = text.as_bytes();
    let is_next = |token: &&TextLogprob| match rest.strip_prefix(&*token.chosen.bytes) {
        Some(behind) if !rest.is_empty() => {
            rest = behind;
            true
        }
        _ => false,
    };
    let count = tokens.iter().take_while(is_next).count();
    let mut end = before;
    for token in tokens.iter_mut().take(count) {
        end += token.chosen.bytes.len() as u64;
        token.end = Some(end);
    }
}

impl From<WireTop> for TopLogprob {
    fn from(top: WireTop) -> Self {
        let bytes = top.bytes.unwrap_or_else(|| top.token.as_bytes().to_vec());
        Self { logprob: top.logprob.unwrap_or(f32::NEG_INFINITY), bytes, token: top.token }
    }
}

impl Logprobs {
    fn into_tokens(self) -> Vec<TextLogprob> {
        if let Some(content) = self.content {
            return content.into_iter().map(WireToken::into_token).collect();
        }
        let mut logprobs = self.token_logprobs.unwrap_or_default().into_iter();
        let mut tops = self.top_logprobs.unwrap_or_default().into_iter();
        let mut tokens = Vec::new();
        for token in self.tokens.unwrap_or_default() {
            let chosen = named(token, logprobs.next().flatten().unwrap_or(f32::NEG_INFINITY));
            let top = tops.next().flatten().unwrap_or_default().into_iter();
            let mut top: Vec<TopLogprob> = top.map(|(token, logprob)| named(token, logprob)).collect();
            top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
            tokens.push(TextLogprob { chosen, top, end: None });
        }
        tokens
    }
}

impl WireToken {
    fn into_token(self) -> TextLogprob {
        let Self { token, logprob, bytes, top_logprobs } = self;
        let top = top_logprobs.unwrap_or_default().into_iter().map(Into::into).collect();
        TextLogprob { chosen: WireTop { token, logprob, bytes }.into(), top, end: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tokens of a text end that is the choice's second, behind `ab`.
    fn ends(tokens: &[&[u8]], num_apart: usize, text: &str) -> Vec<Option<u64>> {
        let token = |bytes: &&[u8]| {
            let token = String::from_utf8_lossy(bytes).into_owned();
            let chosen = TopLogprob { token, logprob: -0.5, bytes: bytes.to_vec() };
            TextLogprob { chosen, top: Vec::new(), end: None }
        };
        let mut held = HeldTokens::default();
        held.of_text("ab");
        held.tokens = tokens[..num_apart].iter().map(token).collect();
        held.set_apart();
        held.tokens.extend(tokens[num_apart..].iter().map(token));
        held.of_text(text).into_iter().map(|token| token.end).collect()
    }

    #[test]
    fn tokens_that_joined_are_their_text_are_placed() {
        assert_eq!(ends(&[b"c", b" \xe2", b"\x82", b"\xacd"], 0, "c €d"), [Some(3), Some(5), Some(6), Some(8)]);
        assert_eq!(ends(&[b"c", b"<|end|>"], 0, "c"), [Some(3), None], "the end of an answer is no text");
        assert_eq!(ends(&[b"think", b"c"], 1, "c"), [None, Some(3)], "what came with reasoning is none of it");
    }

    #[test]
    fn those_before_one_that_is_not_its_text_are_placed() {
        assert_eq!(ends(&[b"c"], 0, "cd"), [Some(3)]);
        assert_eq!(ends(&[b"c", b"de"], 0, "cd"), [Some(3), None], "a stop string cut it");
        let broken = "\u{fffd}".as_bytes();
        assert_eq!(ends(&[b"c ", broken, broken, b" d"], 0, "c € d"), [Some(4), None, None, None]);
    }

    #[test]
    fn tokens_that_are_not_their_text_are_not_placed() {
        let nowhere: [(&[&[u8]], &str); 3] =
            [(&["Ġc".as_bytes(), b"d"], " cd"), (&[b"think", b"c"], "c"), (&[b"ab"], "cd")];
        for (tokens, text) in nowhere {
            assert_eq!(ends(tokens, 0, text), vec![None; tokens.len()], "{tokens:?} of {text:?}");
        }
    }
}
