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

/// Legacy completions: parallel lists. `offset` is where the first token starts, in characters of the answer.
pub(crate) fn completion(out: &mut BytesMut, tokens: &[TextLogprob], offset: usize) {
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
    let mut offset = offset;
    list(out, tokens, |out, token| {
        uint(out, offset as u64);
        // A character begins once, however many tokens it takes.
        offset += token.chosen.bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    });
    raw(out, "}");
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
        completion(&mut out, std::slice::from_ref(&token), 0);
        let got: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(got["tokens"], serde_json::json!(["bytes:\\xe2"]));
        assert_eq!(got["top_logprobs"], serde_json::json!([{"bytes:\\xe2": -0.5, "bytes:\\x80": -1.0}]));
        assert_eq!((&token.top[1].bytes, token.top[1].token.as_str()), (&vec![0x80], "\u{fffd}"));
        assert_eq!(named("bytes: x".into(), 0.0).bytes, b"bytes: x");
    }

    #[test]
    fn offsets_count_a_character_of_several_tokens_once() {
        let token = |bytes: &[u8]| {
            let chosen =
                TopLogprob { token: String::from_utf8_lossy(bytes).into(), logprob: -0.5, bytes: bytes.into() };
            TextLogprob { chosen, top: Vec::new(), end: None }
        };
        let mut out = BytesMut::new();
        completion(&mut out, &[token(b"\xe2"), token(b"\x82"), token(b"\xacx"), token(b"y"), token(b"z")], 3);
        let got: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(got["text_offset"], serde_json::json!([3, 4, 4, 5, 6]));
    }
}
