//! Line breaks and tabs as JSON writes them, `\n`, `\r` and `\t`: a backslash and a letter. Text of tools' results and of answers is
//! not decoded, so it has them as they are written. The letter is no part of what stands right behind it.
//!
//! On streams both characters wait together, and with what is undecided behind them: whoever is asked next is handed what is
//! before that, a character, which would not say what the letter belongs to. So a scan never goes on right behind one.

use tidegate_plugin_sdk::scan::{Place, Step};

pub(super) const BYTES: usize = 2;

/// Whether one begins a text, as far as that is there.
pub(super) fn may_begin(text: &[u8]) -> bool {
    matches!(text, [b'\\'] | [b'\\', b'n' | b'r' | b't', ..])
}

/// What `detect` finds at a place, or, of a line break, behind it.
pub(super) fn step(at: Place<'_>, detect: impl Fn(Place<'_>) -> Step) -> Step {
    match at.rest.as_bytes() {
        [b'n' | b'r' | b't', ..] if at.before == Some('\\') => Step::No,
        text if !may_begin(text) => detect(at),
        text if text.len() <= BYTES => {
            if at.is_last {
                Step::No
            } else {
                Step::More
            }
        }
        _ => match detect(Place { rest: &at.rest[BYTES..], before: None, ..at }) {
            undecided @ (Step::No | Step::More) => undecided,
            _ => Step::Skip(BYTES),
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::{found, whole};

    #[test]
    fn a_line_break_as_json_writes_it_hides_nothing_behind_it() {
        let key = format!("AKIA{}", "IOSFODNN7EXAMPLE");
        for (kind, find) in [
            (Kind::Email, "jo@example.com"),
            (Kind::Email, "nina.t@example.com"),
            (Kind::Card, "4111 1111 1111 1111"),
            (Kind::Card, "４１１１１１１１１１１１１１１１"),
            (Kind::Phone, "+49 30 1234567"),
            (Kind::Phone, "(415) 555-2671"),
            (Kind::Phone, "030 1234567"),
            (Kind::Iban, "DE89370400440532013000"),
            (Kind::ApiKey, &key),
            (Kind::ApiKey, "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3h"),
        ] {
            for line_break in ["\\n", "\\r", "\\t", "\\r\\n", "\\n\\n", "\\\\n"] {
                for before in ["", "{\"a\":\"card:", "4111", "né", "x@y.example"] {
                    let text = format!("{before}{line_break}{find}{line_break}b\"}}");
                    let all = found(kind, &text);
                    assert_eq!(all.last(), Some(&find), "{text}");
                }
            }
        }
        let dashes = "-".repeat(5);
        let key =
            format!("{dashes}BEGIN PRIVATE KEY{dashes}\\n{}\\n{dashes}END PRIVATE KEY{dashes}", "aB3d".repeat(16));
        assert_eq!(whole(Kind::ApiKey, &format!("key:\\n{key}\\n4111")), [key.as_str()]);
    }

    /// Its letter would be cut off.
    #[test]
    fn nothing_begins_with_the_letter_of_a_line_break() {
        assert_eq!(found(Kind::Email, "\\n@example.com"), [""; 0]);
        assert_eq!(found(Kind::Email, "\\nb@example.com"), ["b@example.com"]);
        assert_eq!(found(Kind::Email, "\\unb@example.com"), ["unb@example.com"]);
        assert_eq!(found(Kind::Card, "a\\xn4111111111111111"), [""; 0]);
    }
}
