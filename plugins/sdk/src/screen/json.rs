//! Matches in JSON text: in what its strings mean, whatever way they are written. `john\u0040example.com` is an address.
//!
//! In JSON, strings and what stands between them are looked at one by one, so that what is left is JSON however much is
//! replaced. Text that is no JSON (a model's mistake, an answer that was cut) is looked at as one string.

use super::prompt::whole_matches;
use crate::scan::Scanner;
use serde::de::IgnoredAny;
use std::ops::Range;

/// A match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonHit {
    /// Bytes of the text as it is written.
    pub(super) range: Range<usize>,
    /// Which of the scanner's rules.
    pub(super) rule: usize,
    in_string: bool,
}

impl JsonHit {
    /// What stands in its place. A number may only be replaced by a string, quotes included, or what is left is no JSON.
    pub(super) fn replacement(&self, text: String) -> String {
        if self.in_string { text } else { format!("\"{text}\"") }
    }
}

/// Every match, in order and apart.
pub(super) fn matches(scanner: &impl Scanner, json: &str) -> Vec<JsonHit> {
    let mut hits = Vec::new();
    if !is_json(json) {
        in_string(scanner, json, 0..json.len(), &mut hits);
        return hits;
    }
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| rest.find(|c| !is_between(c))) {
        let start = at + found;
        let token = &json[start..];
        if token.starts_with('"') {
            let inside = start + 1..start + string_len(token);
            at = inside.end + 1;
            in_string(scanner, json, inside, &mut hits);
        } else {
            let len = token.find(|c| is_between(c) || c == '"').unwrap_or(token.len());
            at = start + len;
            // All of it: a part of a number cannot be a string.
            let first = whole_matches(scanner, &token[..len]).into_iter().next();
            hits.extend(first.map(|hit| JsonHit { range: start..at, rule: hit.rule, in_string: false }));
        }
    }
    hits
}

/// The text with its matches replaced. What was no JSON becomes a JSON string.
pub(super) fn replaced(json: &str, hits: &[JsonHit], replacement: impl Fn(usize) -> String) -> String {
    let (mut redacted, mut from) = (String::with_capacity(json.len()), 0);
    for hit in hits {
        redacted.push_str(&json[from..hit.range.start]);
        redacted.push_str(&hit.replacement(replacement(hit.rule)));
        from = hit.range.end;
    }
    redacted.push_str(&json[from..]);
    if is_json(&redacted) { redacted } else { crate::json::quote(&redacted) }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn is_between(c: char) -> bool {
    c.is_ascii_whitespace() || matches!(c, '{' | '}' | '[' | ']' | ',' | ':')
}

/// Bytes of a string up to its closing quote, the opening one included.
fn string_len(token: &str) -> usize {
    let bytes = token.as_bytes();
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    token.len()
}

fn in_string(scanner: &impl Scanner, json: &str, inside: Range<usize>, hits: &mut Vec<JsonHit>) {
    let written = &json[inside.clone()];
    let meant = written.contains('\\').then(|| Meant::of(written));
    let text = meant.as_ref().map_or(written, |meant| &meant.text);
    let place = |at: usize| inside.start + meant.as_ref().map_or(at, |meant| meant.written(at));
    for hit in whole_matches(scanner, text) {
        hits.push(JsonHit { range: place(hit.range.start)..place(hit.range.end), rule: hit.rule, in_string: true });
    }
}

/// What a string with escape sequences means.
struct Meant {
    text: String,
    /// Behind each escape sequence: the place in the text, and the place in what is written.
    places: Vec<(usize, usize)>,
}

impl Meant {
    fn of(written: &str) -> Self {
        let mut meant = Self { text: String::with_capacity(written.len()), places: Vec::new() };
        let mut at = 0;
        while let Some(len) = written[at..].find('\\') {
            meant.text.push_str(&written[at..at + len]);
            let (c, len_of_escape) = escape(&written[at + len..]);
            meant.text.push(c);
            at += len + len_of_escape;
            meant.places.push((meant.text.len(), at));
        }
        meant.text.push_str(&written[at..]);
        meant
    }

    fn written(&self, at: usize) -> usize {
        let behind = self.places.partition_point(|(place, _)| *place <= at);
        let (place, written) = behind.checked_sub(1).map_or((0, 0), |last| self.places[last]);
        written + (at - place)
    }
}

/// The character that an escape sequence means, and the sequence's bytes. What is none means itself.
fn escape(rest: &str) -> (char, usize) {
    let plain = |c| (c, 2);
    match rest.as_bytes().get(1) {
        Some(b'n') => plain('\n'),
        Some(b't') => plain('\t'),
        Some(b'r') => plain('\r'),
        Some(b'b') => plain('\u{8}'),
        Some(b'f') => plain('\u{c}'),
        Some(c @ (b'"' | b'\\' | b'/')) => plain(char::from(*c)),
        Some(b'u') => unicode(rest).unwrap_or(('\\', 1)),
        _ => ('\\', 1),
    }
}

/// `\u0041`, or two of them for a character outside of the basic plane; half of such a pair is no character.
fn unicode(rest: &str) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 6)?.strip_prefix("\\u").filter(|digits| !digits.starts_with('+'))?;
        u16::from_str_radix(digits, 16).ok()
    };
    let first = unit(0)?;
    match char::decode_utf16([Some(first), unit(6)].into_iter().flatten()).next()? {
        Ok(c) => Some((c, 6 * c.len_utf16())),
        Err(_) => Some((char::REPLACEMENT_CHARACTER, 6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{Place, Step};
    use proptest::prelude::*;

    /// Finds `a@b`, and runs of four digits.
    struct Toy;
    impl Scanner for Toy {
        fn step(&self, at: Place<'_>) -> Step {
            match at.rest.as_bytes() {
                [b'a', b'@', b'b', ..] => Step::Match { len: 3, rule: 0 },
                digits @ [_, _, _, _, ..] if digits[..4].iter().all(u8::is_ascii_digit) => {
                    Step::Match { len: 4, rule: 1 }
                }
                _ => Step::No,
            }
        }
    }

    fn redacted(json: &str) -> String {
        replaced(json, &matches(&Toy, json), |rule| format!("[{rule}]"))
    }

    #[test]
    fn strings_are_read_as_what_they_mean() {
        for (json, expected) in [
            (r#"{"to":"a@b"}"#, r#"{"to":"[0]"}"#),
            (r#"{"to":"a\u0040b"}"#, r#"{"to":"[0]"}"#),
            (r#"{"to":"\u0061\u0040\u0062\n\ud83d\ude00a\u0040b"}"#, r#"{"to":"[0]\n\ud83d\ude00[0]"}"#),
            (r#"["\\a@b\"","\/a@b\ud800"]"#, r#"["\\[0]\"","\/[0]\ud800"]"#),
            (r#"["a","@b", "é\"a@b"]"#, r#"["a","@b", "é\"[0]"]"#),
            (r#""\\u006a@b""#, r#""\\u006[0]""#),
        ] {
            assert_eq!(redacted(json), expected);
        }
    }

    #[test]
    fn what_is_between_strings_stays_json() {
        for (json, expected) in [
            (r#"{"card":12345,"n":[1,2]}"#, r#"{"card":"[1]","n":[1,2]}"#),
            ("[-1234, 0.1234e5 ,true]", r#"["[1]", "[1]" ,true]"#),
            ("12345678", r#""[1]""#),
        ] {
            assert_eq!(redacted(json), expected);
        }
    }

    #[test]
    fn what_is_no_json_is_one_text() {
        assert_eq!(redacted("to a@b"), r#""to [0]""#);
        assert_eq!(redacted(r#"{"to":"a\u0040b","#), r#""{\"to\":\"[0]\",""#);
        assert_eq!(redacted("\\u00 \\u+123 a\\u0040b\\"), r#""\\u00 \\u+123 [0]\\""#);
    }

    proptest! {
        /// Whatever way a string is written, the same is found in it, and JSON stays JSON.
        #[test]
        fn escapes_hide_nothing(
            text in "[a@b1é\"\\\\/\n😀]{0,12}",
            escaped in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let mut written = String::from("[\"");
            for (c, escaped) in text.chars().zip(escaped) {
                let mut units = [0; 2];
                match c {
                    _ if escaped => c.encode_utf16(&mut units).iter().for_each(|u| written += &format!("\\u{u:04x}")),
                    '"' | '\\' => written.extend(['\\', c]),
                    '\n' => written += "\\n",
                    c => written.push(c),
                }
            }
            written += "\", 1234]";
            let [read, number]: [String; 2] = serde_json::from_str(&redacted(&written)).unwrap();
            let found = whole_matches(&Toy, &text);
            let mut expected = text.clone();
            found.iter().rev().for_each(|hit| expected.replace_range(hit.range.clone(), &format!("[{}]", hit.rule)));
            prop_assert_eq!((read, number.as_str()), (expected, "[1]"));
        }
    }
}
