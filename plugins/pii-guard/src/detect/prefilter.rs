//! Text that the guard need not be asked about: words and short numbers in which no kind is and none begins, whatever is before
//! them and follows.

use super::{MAX_PLAIN_DIGITS, email, is_between, key, typeset};
use tidegate_plugin_sdk::Prefilter;

/// The states of a number, by its bytes.
const NUMBERS: [&str; MAX_PLAIN_DIGITS] = ["1", "2", "3", "4", "5", "6", "7"];

/// An automaton of ten words and numbers:
///
/// - A word has letters of any script that separates words by spaces, full stops and such signs, and a `-` or a `(` right before
///   one of those: private keys begin with five dashes, phone numbers with `(` and a digit or a `+`.
/// - Digits are only in words of ASCII letters, and not as in the beginning of an IBAN, two of them behind two others.
/// - A number has at most seven digits, letters and signs. Behind what may stand between two groups of a longer one a word follows.
pub fn prefilter() -> Prefilter {
    let word = [("letters", "word"), ("other letters", "word"), ("signs", "word")];
    let ends = ["ends", "separators", "typeset", "others"].map(|class| (class, "start"));
    let mixed = [("letters", "mixed"), ("digits", "mixed")];
    let letters = |next: &'static str, digit: &'static str| {
        let next =
            [("letters", next), ("digits", digit), ("other letters", "word"), ("signs", "word"), ("joins", "joined")];
        [&next[..], &ends].concat()
    };
    let prefilter = classes(Prefilter::new(key::MIN_BYTES as u32 - 1))
        .state("start", &letters("a letter", NUMBERS[0]))
        .state("a letter", &letters("two letters", "a digit"))
        .state("two letters", &letters("letters", "check digit"))
        .state("letters", &letters("letters", "mixed"))
        .state("word", &[&word[..], &[("joins", "joined")], &ends].concat())
        .state("joined", &word)
        .state("mixed", &[&mixed[..], &ends].concat())
        // A letter and a digit; two such, and a digit.
        .state("a digit", &[&[("letters", "mixed"), ("digits", "check digit")], &ends[..]].concat())
        .state("check digit", &[&[("letters", "mixed")], &ends[..]].concat())
        .state(
            "behind",
            &[
                ("letters", "a letter"),
                ("other letters", "word"),
                ("signs", "word"),
                ("joins", "joined"),
                ("ends", "start"),
                ("others", "start"),
            ],
        );
    let next = NUMBERS[1..].iter().map(|next| Some(*next)).chain([None]);
    NUMBERS.iter().zip(next).fold(prefilter, |prefilter, (number, next)| {
        let longer = ["letters", "digits", "signs"].map(|class| next.map(|next| (class, next)));
        let apart = ["separators", "joins", "typeset"].map(|class| (class, "behind"));
        let next = longer.into_iter().flatten().chain([("ends", "start"), ("others", "start")]).chain(apart);
        prefilter.state(number, &next.collect::<Vec<_>>())
    })
}

/// Of all characters but the `@`.
fn classes(prefilter: Prefilter) -> Prefilter {
    let is_separator = |c: char| " /)".contains(c);
    let is_typeset = |c: char| typeset::plain(c) != c;
    let is_end = |c: char| c.is_ascii() && is_between(c as u8) && !is_separator(c);
    let is_other = |c: char| !c.is_ascii() && !is_typeset(c) && !email::is_name(c);
    prefilter
        .class("letters", ["az", "AZ", "_"])
        .class("other letters", ranges(|c| !c.is_ascii() && email::is_name(c)))
        .class("digits", ["09"])
        .class("signs", [".", "+", "%"])
        .class("joins", ["-", "("])
        .class("separators", ranges(is_separator))
        .class("typeset", ranges(is_typeset))
        .class("ends", ranges(is_end))
        .class("others", ranges(is_other).into_iter().chain([String::from_iter([FAR, char::MAX])]))
}

/// Behind it all characters are of scripts without spaces, signs and pictures.
const FAR: char = '\u{2100}';

/// The characters before [`FAR`] that fit, each range by its first and last.
fn ranges(fits: impl Fn(char) -> bool) -> Vec<String> {
    let mut ranges: Vec<(char, char)> = Vec::new();
    for c in ('\0'..FAR).filter(|c| fits(*c)) {
        match ranges.last_mut() {
            Some((_, last)) if *last as u32 + 1 == c as u32 => *last = c,
            _ => ranges.push((c, c)),
        }
    }
    ranges.iter().map(|(from, to)| [from, to].into_iter().take(1 + usize::from(from != to)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_text_is_let_through() {
        for (text, through) in [
            ("The cat sa", "The cat "),
            ("Größe, я и ты, 你好。", "Größe, я и ты, 你好。"),
            ("a well-fed (grey) cat, e.g. ", "a well-fed (grey) cat, e.g. "),
            ("word24543 7, ", "word24543 7, "),
            ("in 2024 the ", "in 2024 the "),
            ("in 2024 the", "in "),
            ("in 2024. The 3rd: 3.14, 50%, 10:30; v1 utf8 ", "in 2024. The 3rd: 3.14, 50%, 10:30; v1 utf8 "),
            ("2024年", "2024年"),
            ("“Well” – said – he… ✓ ", "“Well” – said – he… ✓ "),
            ("`x = [1, 2, 3];`\n", "`x = [1, 2, 3];`\n"),
            ("https://example.com/ ", "https://example.com/ "),
            ("a 4-bit number, 10\u{a0}km, 10\u{a0}% ", "a 4-bit number, 10\u{a0}km, 10\u{a0}% "),
            ("7 (see ", "7 (see "),
            ("a (", "a "),
        ] {
            assert_eq!(prefilter().through(text), Some(through.len()), "{text}");
        }
    }

    #[test]
    fn about_what_may_be_one_of_the_kinds_the_guard_is_asked() {
        for text in [
            "a@",
            "john.doe@",
            "--",
            "+4",
            "(0",
            "-1",
            "1-2",
            "1 2",
            "1  ",
            "1/2",
            "1 (5",
            "1) 5",
            "1 .5",
            "1 +4",
            "1\u{a0}5",
            "1\u{2011}5",
            "1 \u{a0}",
            "12345678",
            "1234567a",
            "DE89",
            "é8",
            "a.1",
            "abcdefghijklmnopqrst",
        ] {
            assert_eq!(prefilter().through(text), None, "{text}");
        }
    }
}
