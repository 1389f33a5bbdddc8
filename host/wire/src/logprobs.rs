//! Log-probabilities of an answer, in the shapes of both endpoints.

use crate::write::{float, list, raw, string, uint};
use bytes::BytesMut;
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
    list(out, tokens, |out, token| string(out, &token.chosen.token));
    raw(out, r#","token_logprobs":"#);
    list(out, tokens, |out, token| float(out, token.chosen.logprob));
    raw(out, r#","top_logprobs":"#);
    list(out, tokens, top_map);
    raw(out, r#","text_offset":"#);
    let mut offset = offset;
    list(out, tokens, |out, token| {
        uint(out, offset as u64);
        offset += token.chosen.token.chars().count();
    });
    raw(out, "}");
}

/// Alternatives by text, the chosen token among them. Two tokens of the same text (parts of a character) would
/// be one key twice; the more likely one stays.
fn top_map(out: &mut BytesMut, token: &TextLogprob) {
    let mut seen = HashSet::new();
    raw(out, "{");
    for alternative in token.top.iter().chain([&token.chosen]) {
        if !seen.insert(alternative.token.as_str()) {
            continue;
        }
        if seen.len() > 1 {
            raw(out, ",");
        }
        string(out, &alternative.token);
        raw(out, ":");
        float(out, alternative.logprob);
    }
    raw(out, "}");
}
