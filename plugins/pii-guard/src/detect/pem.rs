//! Private keys as files have them (RFC 7468, and the armour of OpenPGP): the line that begins one, lines of base64, the line that ends it. Also where
//! line breaks are written as `\n`, as in JSON. Certificates and public keys are no secrets.
//!
//! A key is longer than a stream may hold back: once its first line of base64, or a header, is seen to begin, the rest is
//! swallowed as it comes.

use super::{PEM_HEADER_RULE, PEM_RULE};
use tidegate_plugin_sdk::scan::{Place, Step};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Longer than any kind of key is named.
const MAX_LABEL_BYTES: usize = 40;
/// Spaces, line breaks and signs of quoting between two lines; more end the key.
const MAX_GAP_BYTES: usize = 64;
/// A shorter word is the last line of a key or none.
const MIN_LINE_BYTES: usize = 16;
const MAX_LINE_BYTES: usize = 128;
/// What keys have before their base64: encrypted ones, and those of OpenPGP.
const HEADERS: [&str; 7] =
    ["Proc-Type: ", "DEK-Info: ", "Version: ", "Comment: ", "Hash: ", "Charset: ", "MessageID: "];
/// How the line ends that begins one.
const NAMES: [&str; 2] = ["PRIVATE KEY-----", "PRIVATE KEY BLOCK-----"];

/// Of a line break as JSON writes it.
const HALF_BREAK: &str = "\\";

/// What a text says so far.
enum Seen {
    /// So many bytes are it.
    Whole(usize),
    /// So many bytes are a header's name, and its value goes on to the end of its line.
    Header(usize),
    /// It may become it.
    Begun,
    No,
}

/// At the first of the dashes: the line that begins a private key, and that something follows as a key would.
pub(super) fn step(at: Place<'_>) -> Step {
    let len = match line(at.rest, BEGIN) {
        Seen::Whole(len) if NAMES.iter().any(|name| at.rest[..len].ends_with(name)) => len,
        Seen::Begun if !at.is_last => return Step::More,
        _ => return Step::No,
    };
    match body(&at.rest[len..], MIN_LINE_BYTES) {
        Seen::Whole(more) => Step::Open { len: len + more, rule: PEM_RULE },
        Seen::Header(more) => Step::Open { len: len + more, rule: PEM_HEADER_RULE },
        Seen::Begun if !at.is_last => Step::More,
        _ => Step::No,
    }
}

/// Behind the start of a key: its next line, the rest of one, or its end.
pub(super) fn go_on(at: Place<'_>, rule: usize) -> Step {
    if rule == PEM_HEADER_RULE {
        match header_value(at.rest) {
            0 if at.rest == HALF_BREAK && !at.is_last => return Step::More,
            0 => {}
            len => return Step::Open { len, rule },
        }
    }
    let min = if at.before.is_some_and(is_base64) && at.rest.starts_with(is_base64) { 1 } else { MIN_LINE_BYTES };
    match (ending(at.rest), body(at.rest, min)) {
        (Seen::Whole(len), _) => Step::Match { len, rule: PEM_RULE },
        (_, Seen::Whole(len)) => Step::Open { len, rule: PEM_RULE },
        (_, Seen::Header(len)) => Step::Open { len, rule: PEM_HEADER_RULE },
        (Seen::Begun, _) | (_, Seen::Begun) if !at.is_last => Step::More,
        _ => Step::No,
    }
}

/// The line that ends a key, with a short one before it, or two: of OpenPGP the second is a checksum.
fn ending(text: &str) -> Seen {
    let mut at = 0;
    for _ in 0..2 {
        at += gap(&text[at..]);
        at += text[at..].bytes().take(MIN_LINE_BYTES).take_while(|b| is_base64(char::from(*b))).count();
    }
    at += gap(&text[at..]);
    match line(&text[at..], END) {
        Seen::Whole(len) => Seen::Whole(at + len),
        other => other,
    }
}

/// `-----BEGIN`, or `END`, a label and dashes.
fn line(text: &str, begin: &str) -> Seen {
    if text == HALF_BREAK {
        return Seen::Begun;
    }
    let Some(rest) = text.strip_prefix(begin) else {
        return if begin.starts_with(text) { Seen::Begun } else { Seen::No };
    };
    let fits = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b' ';
    let label = rest.bytes().take(MAX_LABEL_BYTES).take_while(fits).count();
    match &rest[label..] {
        dashes if dashes.starts_with(DASHES) => Seen::Whole(begin.len() + label + DASHES.len()),
        dashes if label <= MAX_LABEL_BYTES && DASHES.starts_with(dashes) => Seen::Begun,
        _ => Seen::No,
    }
}

/// A line of at least `min` bytes, or the name of a header, with the gap before it.
fn body(text: &str, min: usize) -> Seen {
    let gap = gap(text);
    let rest = &text[gap..];
    if gap == MAX_GAP_BYTES {
        return Seen::No;
    }
    // A header has a line of its own.
    let headers = if gap > 0 { &HEADERS[..] } else { &[] };
    if let Some(header) = headers.iter().find(|header| rest.starts_with(**header)) {
        return Seen::Header(gap + header.len());
    }
    let len = rest.chars().take(MAX_LINE_BYTES).take_while(|c| is_base64(*c)).count();
    match len {
        _ if len >= min => Seen::Whole(gap + len),
        _ if len == rest.len()
            || &rest[len..] == HALF_BREAK
            || headers.iter().any(|header| header.starts_with(rest)) =>
        {
            Seen::Begun
        }
        _ => Seen::No,
    }
}

/// Bytes of what stands in a header up to the end of its line, or to half of a break that may be that: people's names and words
/// in any script, as long as they like.
fn header_value(text: &str) -> usize {
    let bytes = text.as_bytes();
    let ends = |at: &usize| matches!(bytes[*at..], [b'\n' | b'\r', ..] | [b'\\'] | [b'\\', b'n' | b'r', ..]);
    (0..bytes.len()).find(ends).unwrap_or(bytes.len())
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')
}

/// Bytes between two lines: white space, `\n` and `\r` as JSON writes them, what mail quotes with.
fn gap(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < MAX_GAP_BYTES {
        at += match bytes[at..] {
            [b' ' | b'\t' | b'\r' | b'\n' | b'>' | b'|', ..] => 1,
            [b'\\', b'n' | b'r', ..] => 2,
            _ => break,
        };
    }
    at.min(MAX_GAP_BYTES)
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::whole;

    /// Put together at run time, so that no scanner takes this file for a leak.
    fn key(kind: &str, between: &str) -> String {
        let dashes = "-".repeat(5);
        let lines = ["MHcCAQEEIzXKyBTX17dhbUgQmfjOdEAHI+7hGl+5N7pQdwxawf0JBVI2420PNCdu", "C7uhHvux3mDaSWQLyM=", "T="];
        let [first, second, last] = lines;
        [&format!("{dashes}BEGIN {kind}{dashes}"), first, second, last, &format!("{dashes}END {kind}{dashes}")]
            .map(str::to_owned)
            .join(between)
    }

    #[test]
    fn private_keys_are_found_whole() {
        for kind in ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY"] {
            for between in ["\n", "\r\n", "\\n", "\n> ", " "] {
                let key = key(kind, between);
                assert_eq!(whole(Kind::ApiKey, &format!("It is\n{key}\nand no other.")), [key.as_str()]);
                assert_eq!(whole(Kind::ApiKey, &format!("\"{key}\"")), [key.as_str()]);
            }
        }
        let (key, headers) = (key("RSA PRIVATE KEY", "\n"), "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B2C\n\n");
        let encrypted = key.replacen("MHc", &format!("{headers}MHc"), 1);
        assert_eq!(whole(Kind::ApiKey, &format!("{encrypted} it is")), [encrypted.as_str()]);
        let block = encrypted.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK").replace("T=\n", "T=\n=aB3d\n");
        let block = block.replace(headers, "Version: GnuPG v2\nComment: of (no) one's\n\n");
        assert_eq!(whole(Kind::ApiKey, &format!("{block} it is")), [block.as_str()]);
    }

    /// A header has a name, an address or a sentence of anybody's, in a file or in a JSON string.
    #[test]
    fn a_key_is_found_whole_whatever_its_headers_say() {
        for between in ["\n", "\r\n", "\\n"] {
            let key = key("PGP PRIVATE KEY BLOCK", between);
            for said in ["J\u{fc}rgen M\u{fc}ller", "J\\u00fcrgen", "\u{8c22}\u{8c22}", &"long and ".repeat(40), ""] {
                let headers = format!("Version: GnuPG v2{between}Comment: {said}{between}{between}");
                let block = key.replacen("MHc", &format!("{headers}MHc"), 1);
                assert_eq!(whole(Kind::ApiKey, &format!("{block} it is")), [block.as_str()], "{said}");
            }
        }
    }

    /// The end of a line in a JSON string, or a file whose last line does not end.
    #[test]
    fn what_stands_before_a_key_hides_it_from_nobody() {
        let key = key("PRIVATE KEY", "\n");
        for before in ["ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"] {
            let text = format!("{before}{key} it is");
            assert_eq!(whole(Kind::ApiKey, &text), [before, &key], "a token whose line does not end");
        }
        for before in ["# key\\n", "-----END CERTIFICATE-----", ".", "-", "x", "%"] {
            let text = format!("{before}{key} it is");
            assert_eq!(whole(Kind::ApiKey, &text), [key.as_str()], "{before}");
        }
        assert_eq!(whole(Kind::ApiKey, &format!("{key}{key}")).concat(), format!("{key}{key}"), "two");
    }

    #[test]
    fn a_key_that_is_cut_is_found_as_far_as_it_goes() {
        let key = key("EC PRIVATE KEY", "\n");
        for end in [60, 95, 115] {
            assert_eq!(whole(Kind::ApiKey, &key[..end]), [&key[..end]], "{end} bytes");
        }
        let text = format!("{}\nis all of it.", &key[..92]);
        assert_eq!(whole(Kind::ApiKey, &text), [&key[..92]]);
    }

    #[test]
    fn talk_about_keys_and_what_is_no_secret_are_left_alone() {
        let dashes = "-".repeat(5);
        for text in [
            format!("Lines between {dashes}BEGIN PRIVATE KEY{dashes} and {dashes}END PRIVATE KEY{dashes} are base64."),
            format!("{dashes}BEGIN PRIVATE KEY{dashes}\n(your key)\n{dashes}END PRIVATE KEY{dashes}"),
            format!("{dashes}BEGIN PRIVATE KEY"),
            "----- BEGIN".to_owned(),
            key("CERTIFICATE", "\n").replace(|c: char| c.is_ascii_digit(), "x"),
        ] {
            assert_eq!(whole(Kind::ApiKey, &text), [""; 0], "{text}");
        }
    }
}
