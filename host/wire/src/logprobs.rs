//! Log-probabilities of an answer, in the shapes of both endpoints.

use crate::write::{float, list, raw, string, uint};
use bytes::BytesMut;
use std::borrow::Cow;
use std::collections::HashSet;
use tidegate_types::{TextLogprob, TopLogprob};

/// Chat: `{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}`, or `null` without any.
pub(crate) fn chat(out: &mut BytesMut, tokens: &[TextLogprob]) {
    if tokens.is_empty() {
        return raw(out, "null");
    }
    raw(out, r#"{"content":"#);
    self::tokens(out, tokens);
    raw(out, r#","refusal":null}"#);
}

/// The list alone, as a response's text has it.
pub(crate) fn tokens(out: &mut BytesMut, tokens: &[TextLogprob]) {
    list(out, tokens, |out, token| {
        one(out, &token.chosen);
        raw(out, r#","top_logprobs":"#);
        list(out, &token.top, |out, top| {
            one(out, top);
            raw(out, "}");
        });
        raw(out, "}");
    });
}

/// The common members of an entry, without the closing brace.
fn one(out: &mut BytesMut, token: &TopLogprob) {
    raw(out, r#"{"token":"#);
    string(out, &token.token);
    raw(out, r#","logprob":"#);
    float(out, token.logprob);
    raw(out, r#","bytes":"#);
    list(out, &token.bytes, |out, byte| uint(out, u64::from(*byte)));
}

/// Legacy completions: parallel lists. The tokens are those of `text`, before which the answer has what `before` says.
pub(crate) fn completion(out: &mut BytesMut, tokens: &[TextLogprob], text: &str, before: Before) {
    if tokens.is_empty() {
        return raw(out, "null");
    }
    raw(out, r#"{"tokens":"#);
    list(out, tokens, |out, token| string(out, &name(&token.chosen)));
    raw(out, r#","token_logprobs":"#);
    list(out, tokens, |out, token| float(out, token.chosen.logprob));
    raw(out, r#","top_logprobs":"#);
    list(out, tokens, top_map);
    raw(out, r#","text_offset":"#);
    let mut offsets = Offsets::of(text, before);
    list(out, tokens, |out, token| uint(out, offsets.next(token) as u64));
    raw(out, "}");
}

/// What an answer of legacy completions has before a text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Bytes of its tokens' text.
    pub(crate) bytes: u64,
    /// Characters of all that the client reads as its text.
    pub(crate) chars: usize,
}

impl Before {
    /// Adds text that has tokens.
    pub(crate) fn add(&mut self, text: &str) {
        self.bytes += text.len() as u64;
        self.chars += begun(text.as_bytes());
    }

    /// Adds text that has none, such as reasoning.
    pub(crate) fn add_without_tokens(&mut self, text: &str) {
        self.chars += begun(text.as_bytes());
    }
}

/// Where tokens begin in what the client reads, in characters. A guard redacts text and drops its tokens, so what tells is
/// where a token ends; one that nobody has placed begins where the one before it ended, as far as there is text.
struct Offsets<'a> {
    text: &'a [u8],
    before: Before,
    /// The last token that is placed ends there in `text`, behind so many characters of the answer.
    at: usize,
    chars: usize,
    /// Where the next one begins, if it is not placed.
    guess: usize,
    end: usize,
}

impl<'a> Offsets<'a> {
    fn of(text: &'a str, before: Before) -> Self {
        let (text, chars) = (text.as_bytes(), before.chars);
        Self { text, before, at: 0, chars, guess: chars, end: chars + begun(text) }
    }

    fn next(&mut self, token: &TextLogprob) -> usize {
        let own = begun(&token.chosen.bytes);
        let Some(end) = self.place(token) else {
            let offset = self.guess.min(self.end);
            self.guess += own;
            return offset;
        };
        self.chars += begun(&self.text[self.at..end]);
        (self.at, self.guess) = (end, self.chars);
        self.chars.saturating_sub(own)
    }

    /// Where the token ends in the text, which it does behind those before it.
    fn place(&self, token: &TextLogprob) -> Option<usize> {
        let end = usize::try_from(token.end?.checked_sub(self.before.bytes)?).ok()?;
        (self.at..=self.text.len()).contains(&end).then_some(end)
    }
}

/// How many characters begin in these bytes: one that takes several tokens begins once.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

/// What begins the name of a token that is no text by itself.
const PART: &str = "bytes:";

/// A token's text; part of a character as OpenAI names it there, `bytes:\xe2\x80`, so that two of them differ.
fn name(token: &TopLogprob) -> Cow<'_, str> {
    match std::str::from_utf8(&token.bytes) {
        Ok(_) => Cow::Borrowed(&token.token),
        Err(_) => token.bytes.iter().fold(PART.to_owned(), |name, byte| name + &format!("\\x{byte:02x}")).into(),
    }
}

/// The token that has this name.
pub(crate) fn named(name: String, logprob: f32) -> TopLogprob {
    match name.strip_prefix(PART).and_then(part_bytes) {
        Some(bytes) => TopLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes },
        None => TopLogprob { bytes: name.as_bytes().to_vec(), token: name, logprob },
    }
}

fn part_bytes(codes: &str) -> Option<Vec<u8>> {
    codes.strip_prefix("\\x")?.split("\\x").map(|code| u8::from_str_radix(code, 16).ok()).collect()
}

/// Alternatives by name, the chosen token among them. Two tokens of the same text (a special one, and its letters) would
/// be one key twice; the more likely one stays.
fn top_map(out: &mut BytesMut, token: &TextLogprob) {
    let mut seen = HashSet::new();
    raw(out, "{");
    for alternative in token.top.iter().chain([&token.chosen]) {
        let name = name(alternative);
        if seen.contains(&name) {
            continue;
        }
        if !seen.is_empty() {
            raw(out, ",");
        }
        string(out, &name);
        raw(out, ":");
        float(out, alternative.logprob);
        seen.insert(name);
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_character_have_names_of_their_own_and_are_found_again() {
        let part = |byte: u8, logprob| named(format!("bytes:\\x{byte:02x}"), logprob);
        let token = TextLogprob { chosen: part(0xe2, -0.5), top: vec![part(0xe2, -0.5), part(0x80, -1.0)], end: None };
        let mut out = BytesMut::new();
        completion(&mut out, std::slice::from_ref(&token), "", Before::default());
        let got: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(got["tokens"], serde_json::json!(["bytes:\\xe2"]));
        assert_eq!(got["top_logprobs"], serde_json::json!([{"bytes:\\xe2": -0.5, "bytes:\\x80": -1.0}]));
        assert_eq!((&token.top[1].bytes, token.top[1].token.as_str()), (&vec![0x80], "\u{fffd}"));
        assert_eq!(named("bytes: x".into(), 0.0).bytes, b"bytes: x");
    }

    /// Offsets of tokens: their bytes, and where each ends in the answer, of which `text` is the last.
    fn offsets(tokens: &[(&[u8], Option<u64>)], text: &str, before: &str) -> Vec<usize> {
        let token = |(bytes, end): &(&[u8], Option<u64>)| {
            let token = String::from_utf8_lossy(bytes).into();
            TextLogprob {
                chosen: TopLogprob { token, logprob: -0.5, bytes: bytes.to_vec() },
                top: Vec::new(),
                end: *end,
            }
        };
        let mut said = Before::default();
        said.add(before);
        let (mut out, tokens) = (BytesMut::new(), tokens.iter().map(token).collect::<Vec<TextLogprob>>());
        completion(&mut out, &tokens, text, said);
        let got: serde_json::Value = serde_json::from_slice(&out).unwrap();
        serde_json::from_value(got["text_offset"].clone()).unwrap()
    }

    #[test]
    fn offsets_count_a_character_of_several_tokens_once() {
        let parts: [&[u8]; 5] = [b"\xe2", b"\x82", b"\xacx", b"y", b"z"];
        let mut end = 4;
        let placed = parts.map(|bytes| {
            end += bytes.len() as u64;
            (bytes, Some(end))
        });
        for tokens in [parts.map(|bytes| (bytes, None)), placed] {
            assert_eq!(offsets(&tokens, "€xyz", "aéb"), [3, 4, 4, 5, 6]);
        }
    }

    #[test]
    fn offsets_are_places_in_what_is_left_of_a_text() {
        let redacted: [(&[u8], _); 3] = [(b"mail", Some(4)), (b" to", Some(16)), (b" go", Some(19))];
        assert_eq!(offsets(&redacted, "mail [\u{e9}mail] to go", ""), [0, 12, 15]);
        assert_eq!(offsets(&[(b" to", Some(16))], "[\u{e9}mail] to", "mail "), [12], "in an event of its own");
        assert_eq!(offsets(&[(b"ab cd", Some(5))], " cd", "ab"), [0], "which began in the event before");
    }

    #[test]
    fn a_token_that_nobody_has_placed_is_behind_the_one_before_it() {
        let tokens: [(&[u8], _); 4] = [(b"a", Some(1)), (b"<|end|>", None), (b"b", Some(2)), (b"<|end|>", None)];
        assert_eq!(offsets(&tokens, "ab", ""), [0, 1, 1, 2]);
        assert_eq!(offsets(&[(b"<|x|>", None), (b"a", None)], "ab", "c"), [1, 3], "there is no more text");
        assert_eq!(offsets(&[(b"b", Some(2)), (b"a", Some(1)), (b"c", Some(9))], "ab", ""), [1, 2, 2], "it is wrong");
    }
}
