//! Writes JSON into a buffer that is reused, by hand: an event of a stream is a fixed frame around one string,
//! and going through a serializer would cost more than the event itself.

use bytes::BytesMut;
use serde_json::Value;
use tidegate_types::Usage;

/// What follows a backslash for bytes that JSON escapes; 0 where none is needed, `u` for `\u00xx`.
static ESCAPES: [u8; 256] = escapes();

const fn escapes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0a] = b'n';
    table[0x0c] = b'f';
    table[0x0d] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
}

pub(crate) fn raw(out: &mut BytesMut, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// A quoted and escaped string.
pub(crate) fn string(out: &mut BytesMut, text: &str) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + 2);
    out.extend_from_slice(b"\"");
    loop {
        let (clean, dirty) = rest.split_at(clean_len(rest));
        out.extend_from_slice(clean);
        let Some((&byte, tail)) = dirty.split_first() else { break };
        escaped(out, byte);
        rest = tail;
    }
    out.extend_from_slice(b"\"");
}

fn escaped(out: &mut BytesMut, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match ESCAPES[usize::from(byte)] {
        b'u' => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
        letter => out.extend_from_slice(&[b'\\', letter]),
    }
}

/// How many bytes from the start need no escape. Eight at a time, by the usual tricks on words: a byte below
/// 0x20, or zero after a XOR with a quote or a backslash, borrows into its own top bit first.
/// Source: Bit Twiddling Hacks, "Determine if a word has a byte less than n".
fn clean_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let has_below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & TOPS;
    let mut len = 0;
    for eight in bytes.chunks_exact(8) {
        let word = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let quote = has_below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = has_below(word ^ (ONES * u64::from(b'\\')), 1);
        let dirty = has_below(word, 0x20) | quote | backslash;
        if dirty != 0 {
            return len + (dirty.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    let rest = bytes[len..].iter().position(|byte| ESCAPES[usize::from(*byte)] != 0);
    rest.map_or(bytes.len(), |at| len + at)
}

pub(crate) fn optional_string(out: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => string(out, text),
        None => raw(out, "null"),
    }
}

pub(crate) fn uint(out: &mut BytesMut, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// What OpenAI reports for a token outside of what it can rank; JSON has no infinity.
const NO_LOGPROB: f32 = -9999.0;

/// A number; one that JSON cannot write becomes -9999.
pub(crate) fn float(out: &mut BytesMut, value: f32) {
    use std::fmt::Write;
    let value = if value.is_finite() { value } else { NO_LOGPROB };
    // `Debug` keeps the decimal point and writes small numbers in few digits; both are JSON. A `BytesMut` grows
    // as needed, so writing to it cannot fail.
    let _ = write!(out, "{value:?}");
}

/// Any JSON value.
pub(crate) fn value(out: &mut BytesMut, value: &Value) {
    use std::fmt::Write;
    let _ = write!(out, "{value}");
}

/// `items` between brackets.
pub(crate) fn list<T>(out: &mut BytesMut, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut BytesMut, T)) {
    out.extend_from_slice(b"[");
    for (i, each) in items.into_iter().enumerate() {
        if i > 0 {
            out.extend_from_slice(b",");
        }
        item(out, each);
    }
    out.extend_from_slice(b"]");
}

/// OpenAI's `usage` object; `null` where nobody counted.
pub(crate) fn usage(out: &mut BytesMut, usage: Option<&Usage>) {
    let Some(usage) = usage else { return raw(out, "null") };
    raw(out, r#"{"prompt_tokens":"#);
    uint(out, usage.input_tokens);
    raw(out, r#","completion_tokens":"#);
    uint(out, usage.output_tokens);
    raw(out, r#","total_tokens":"#);
    uint(out, usage.input_tokens.saturating_add(usage.output_tokens));
    raw(out, r#","prompt_tokens_details":{"cached_tokens":"#);
    uint(out, usage.cached_tokens);
    raw(out, "}");
    if let Some(reasoning_tokens) = usage.reasoning_tokens {
        raw(out, r#","completion_tokens_details":{"reasoning_tokens":"#);
        uint(out, reasoning_tokens);
        raw(out, "}");
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    proptest! {
        #[test]
        fn strings_are_written_as_serde_json_writes_them(text in any::<String>(), noise in "[\\x00-\\x22\\x5b-\\x80]{0,40}") {
            let text = text + &noise;
            prop_assert_eq!(written(|out| string(out, &text)), serde_json::to_string(&text).unwrap());
        }

        #[test]
        fn numbers_read_back_equal(integer in any::<u64>(), real in any::<f32>()) {
            prop_assert_eq!(written(|out| uint(out, integer)), integer.to_string());
            let back: f32 = serde_json::from_str(&written(|out| float(out, real))).unwrap();
            prop_assert_eq!(back, if real.is_finite() { real } else { NO_LOGPROB });
        }
    }
}
