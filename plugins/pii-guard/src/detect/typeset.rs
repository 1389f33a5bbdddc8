//! Numbers as typesetters write them: web pages and models group digits by spaces that do not break, and by hyphens of other kinds
//! than the keyboard's. Detectors of numbers know the plain ones, so they look at a copy that has those.

use std::borrow::Cow;
use tidegate_plugin_sdk::scan::{Place, Step};

/// Characters that are looked at: more than any number has, its separators included. Of numbers that begin in each other more may
/// follow: they are found from here on, one stretch after the other.
const NEAR: usize = 96;

/// A place as detectors of numbers see it.
pub(super) struct Typeset<'a> {
    at: Place<'a>,
    plain: Cow<'a, str>,
    /// More text follows than the copy has.
    is_cut: bool,
}

impl<'a> Typeset<'a> {
    /// `None` where no number begins, whatever follows.
    pub(super) fn of(at: Place<'a>) -> Option<Self> {
        if !begins_number(at.rest) {
            return None;
        }
        // Most numbers stand among the keyboard's characters, each of which is a byte.
        if at.rest.as_bytes()[..at.rest.len().min(NEAR)].is_ascii() {
            return Some(Self { at, plain: Cow::Borrowed(at.rest), is_cut: false });
        }
        let near = near(at.rest);
        let is_typeset = near.chars().any(|c| plain(c) != c);
        let plain = if is_typeset { near.chars().map(plain).collect() } else { Cow::Borrowed(at.rest) };
        Some(Self { at, plain, is_cut: is_typeset && near.len() < at.rest.len() })
    }

    /// What a detector sees in the plain copy, in bytes of the text itself.
    pub(super) fn look(&self, detect: impl Fn(Place<'_>) -> Step) -> Step {
        let look = |is_last| detect(Place { rest: &self.plain, before: self.at.before.map(plain), is_last, ..self.at });
        let step = match look(self.at.is_last) {
            // However much comes, it is not in the copy.
            Step::More if self.is_cut => look(true),
            step => step,
        };
        match step {
            Step::Match { len, rule } => Step::Match { len: self.own(len), rule },
            step => step,
        }
    }

    /// Bytes of the text that the first `len` of the copy are.
    fn own(&self, len: usize) -> usize {
        match &self.plain {
            Cow::Borrowed(_) => len,
            Cow::Owned(plain) => {
                let num_chars = plain[..len].chars().count();
                self.at.rest.chars().take(num_chars).map(char::len_utf8).sum()
            }
        }
    }
}

fn near(text: &str) -> &str {
    text.char_indices().nth(NEAR).map_or(text, |(end, _)| &text[..end])
}

/// Whether a number may begin so: a phone's, a card's, an account's, of which two letters may be all that is there yet.
fn begins_number(text: &str) -> bool {
    match text.as_bytes() {
        [b'0'..=b'9' | b'+' | b'(', ..] => true,
        [first, rest @ ..] if first.is_ascii_alphabetic() => {
            matches!(rest, [] | [_] | [_, b'0'..=b'9', ..])
        }
        _ => false,
    }
}

/// The keyboard's character for one of typesetters.
pub(super) fn plain(c: char) -> char {
    match c {
        // Unicode's separators of words (Zs): no-break, thin, narrow no-break, ideographic space and their like.
        '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        // Hyphens, figure and en dash, the minus sign, and the small hyphen. No em dash: it stands between words and numbers without
        // spaces, and what it ends is no group of a number.
        '\u{2010}'..='\u{2013}' | '\u{2212}' | '\u{fe63}' => '-',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::found;

    /// Unicode's Zs but the keyboard's.
    const SPACES: &str = "\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{202f}\u{205f}\u{3000}";
    const HYPHENS: &str = "\u{2010}\u{2011}\u{2012}\u{2013}\u{2212}\u{fe63}\u{ff0d}";

    #[test]
    fn numbers_are_found_however_their_groups_are_set() {
        let numbers = [
            (Kind::Card, "4111 1111 1111 1111"),
            (Kind::Card, "4111-1111-1111-1111"),
            (Kind::Iban, "DE89 3704 0044 0532 0130 00"),
            (Kind::Iban, "MT84 MALT 0110 0001 2345 MTLC AST0 01S"),
            (Kind::Phone, "+33 6 12 34 56 78"),
            (Kind::Phone, "01 23 45 67 89"),
            (Kind::Phone, "415-555-2671"),
        ];
        for (kind, number) in numbers {
            for (space, hyphen) in SPACES.chars().zip(HYPHENS.chars().cycle()) {
                let set = number.replace(' ', &space.to_string()).replace('-', &hyphen.to_string());
                for text in [set.clone(), format!("Is it\u{a0}{set}?"), format!("{set}\u{a0}, {}", "é".repeat(200))] {
                    assert_eq!(found(kind, &text), [&set], "{text}");
                }
            }
        }
    }

    #[test]
    fn an_em_dash_is_no_part_of_a_number() {
        for (text, number) in [
            ("reach me at home\u{2014}415-555-2671", "415-555-2671"),
            ("415-555-2671\u{2014}24 hours a day", "415-555-2671"),
            ("Ring me\u{2014}+49 30 1234567", "+49 30 1234567"),
            ("+49 30 1234567\u{2014}24 hours", "+49 30 1234567"),
        ] {
            assert_eq!(found(Kind::Phone, text), [number], "{text}");
        }
    }

    #[test]
    fn other_numbers_are_left_alone_in_any_typeface() {
        for text in [
            "2019\u{2013}2024",
            "4111\u{a0}1111\u{a0}1111\u{a0}1112",
            "1\u{202f}000\u{202f}000\u{202f}000",
            "12\u{2013}15 June",
            "1998\u{2014}2004",
            "1234567 \u{2212} 7654321 = 3",
            "2026\u{3000}11\u{3000}27",
        ] {
            for kind in [Kind::Card, Kind::Phone, Kind::Iban] {
                assert_eq!(found(kind, text), [""; 0], "{text}");
            }
        }
    }
}
