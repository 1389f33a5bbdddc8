//! Text as typesetters write it: web pages and models group digits by spaces that do not break, and by hyphens of other kinds
//! than the keyboard's; Chinese and Japanese text has letters and digits of full width; and what is invisible stands anywhere.
//! Detectors of numbers and addresses know the keyboard's characters, so they look at a copy that has those.

use super::MAX_HELD_BYTES;
use std::borrow::Cow;
use tidegate_plugin_sdk::scan::{Place, Step};

/// Characters that are looked at: more than any number has, its separators included.
const NEAR: usize = 96;

/// A place as detectors of numbers see it.
pub(super) struct Typeset<'a> {
    at: Place<'a>,
    /// The text near it, where it is another one than the place's.
    near: &'a str,
    plain: Cow<'a, str>,
    /// The same, where what is invisible separates nothing.
    joined: Option<String>,
}

impl<'a> Typeset<'a> {
    /// `None` where no number begins, whatever follows.
    pub(super) fn of(at: Place<'a>) -> Option<Self> {
        if !begins_number(at.rest) {
            return None;
        }
        // Most numbers stand among the keyboard's characters.
        if at.rest.as_bytes()[..at.rest.len().min(NEAR)].is_ascii() {
            return Some(Self { at, near: at.rest, plain: Cow::Borrowed(at.rest), joined: None });
        }
        let near = near(at.rest);
        let copy = |of: fn(char) -> Option<char>| near.chars().filter_map(of).collect::<String>();
        let is_typeset = near.chars().any(|c| plain(c) != Some(c));
        let plain = if is_typeset { Cow::Owned(copy(plain)) } else { Cow::Borrowed(at.rest) };
        let separates = |c: char| is_ignorable(c) && self::plain(c).is_some();
        let joined = (is_typeset && near.chars().any(separates)).then(|| copy(joined));
        Some(Self { at, near, plain, joined })
    }

    /// What a detector sees in the plain copy, in bytes of the text itself.
    pub(super) fn look(&self, detect: impl Fn(Place<'_>) -> Step) -> Step {
        let near = match &self.plain {
            Cow::Borrowed(all) => all,
            Cow::Owned(_) => self.near,
        };
        let found = in_copy(self.at, near, &self.plain, plain, &detect);
        match &self.joined {
            Some(text) => super::longer(in_copy(self.at, near, text, joined, detect), found),
            None => found,
        }
    }
}

/// What is found in a copy of the text near a place, in bytes of the text itself.
fn in_copy(
    at: Place<'_>,
    near: &str,
    copy: &str,
    of: fn(char) -> Option<char>,
    detect: impl Fn(Place<'_>) -> Step,
) -> Step {
    // What is further away counts as nothing, or a text of invisible characters would wait for ever.
    let is_last = at.is_last || near.len() < at.rest.len();
    match detect(Place { rest: copy, before: at.before.map(|c| plain(c).unwrap_or(c)), is_last, ..at }) {
        Step::Match { len, rule } => Step::Match { len: own(near, of, len), rule },
        step => step,
    }
}

/// Bytes of the text that the first `len` of its copy are.
fn own(near: &str, of: fn(char) -> Option<char>, len: usize) -> usize {
    let mut copied = 0;
    let is_within = |(_, c): &(usize, char)| {
        copied += of(*c).map_or(0, char::len_utf8);
        copied < len
    };
    let whole = near.char_indices().take_while(is_within).count();
    near.char_indices().nth(whole).map_or(near.len(), |(at, c)| at + c.len_utf8())
}

/// What `detect` sees in an address where that is not all as the keyboard has it.
pub(super) fn address(at: Place<'_>, detect: impl Fn(Place<'_>) -> Step) -> Step {
    let near = &at.rest[..at.rest.floor_char_boundary(MAX_HELD_BYTES as usize)];
    let copy: String = near.chars().filter_map(visible).collect();
    if copy.is_empty() { Step::No } else { in_copy(at, near, &copy, visible, detect) }
}

fn near(text: &str) -> &str {
    text.char_indices().nth(NEAR).map_or(text, |(end, _)| &text[..end])
}

/// Whether a number may begin so: a phone's, a card's, an account's, of which two letters may be all that is there yet.
fn begins_number(text: &str) -> bool {
    match text.as_bytes() {
        [b'0'..=b'9' | b'+' | b'(', ..] => true,
        [first] | [first, _] | [first, _, b'0'..=b'9', ..] if first.is_ascii_alphabetic() => true,
        near => near.iter().take(3).any(|byte| !byte.is_ascii()) && begins_set_number(text),
    }
}

/// The same of a text whose first characters are perhaps not as the keyboard has them.
fn begins_set_number(text: &str) -> bool {
    if !text.chars().take(3).any(is_set) || text.starts_with(is_ignorable) {
        return false;
    }
    let mut seen = near(text).chars().filter_map(visible);
    match (seen.next(), seen.next(), seen.next()) {
        (Some('0'..='9' | '+' | '('), ..) => true,
        (Some(first), second, third) if first.is_ascii_alphabetic() => {
            second.is_none() || third.is_none_or(|check| check.is_ascii_digit())
        }
        _ => false,
    }
}

/// Whether a character is the keyboard's in another form, or none: where one stands, what is near is looked at in a copy.
pub(super) fn is_set(c: char) -> bool {
    !c.is_ascii() && visible(c) != Some(c)
}

/// Whether it is the keyboard's in another form.
pub(super) fn is_wide(c: char) -> bool {
    ('\u{ff0b}'..='\u{ff5a}').contains(&c) && visible(c) != Some(c)
}

/// The keyboard's character for one of full width, as far as numbers and addresses have it; `None` for what is invisible.
pub(super) fn visible(c: char) -> Option<char> {
    match c {
        '\0'..='\u{ac}' => Some(c),
        '\u{ff0b}' | '\u{ff0e}' | '\u{ff10}'..='\u{ff19}' | '\u{ff20}'..='\u{ff3a}' | '\u{ff41}'..='\u{ff5a}' => {
            char::from_u32(u32::from(c) - 0xfee0)
        }
        c if is_ignorable(c) => None,
        c => Some(c),
    }
}

/// What Unicode says may be ignored (Default_Ignorable_Code_Point): joiners, marks of direction, variations.
pub(super) fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// As [`plain`], where what is invisible separates nothing.
fn joined(c: char) -> Option<char> {
    if is_ignorable(c) { None } else { plain(c) }
}

/// The keyboard's character for one of typesetters, in a number.
pub(super) fn plain(c: char) -> Option<char> {
    match c {
        // With the spaces two invisible characters, where a line may break or may not, and with the hyphens the soft one.
        '\u{200b}' | '\u{2060}' => Some(' '),
        '\u{ad}' => Some('-'),
        // Unicode's separators of words (Zs): no-break, thin, narrow no-break, ideographic space and their like.
        '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => Some(' '),
        // Hyphens, figure and en dash, the minus sign, and the hyphens of small and full width. No em dash: it stands between words and numbers
        // without spaces, and what it ends is no group of a number.
        '\u{2010}'..='\u{2013}' | '\u{2212}' | '\u{fe63}' | '\u{ff0d}' => Some('-'),
        c => visible(c),
    }
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::found;

    /// Unicode's Zs but the keyboard's, and the invisible ones.
    const SPACES: &str = "\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{202f}\u{205f}\u{3000}\u{200b}\u{2060}";
    const HYPHENS: &str = "\u{ad}\u{2010}\u{2011}\u{2012}\u{2013}\u{2212}\u{fe63}\u{ff0d}";

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

    /// As it is written with a keyboard for Chinese or Japanese.
    fn wide(text: &str) -> String {
        let wide = |c: char| if c == '-' || c == ' ' { c } else { char::from_u32(u32::from(c) + 0xfee0).unwrap() };
        text.chars().map(wide).collect()
    }

    #[test]
    fn full_width_hides_nothing() {
        for (kind, text) in [
            (Kind::Card, "4111111111111111"),
            (Kind::Card, "4111 1111 1111 1111"),
            (Kind::Iban, "DE89 3704 0044 0532 0130 00"),
            (Kind::Phone, "+49 30 1234567"),
            (Kind::Phone, "030-1234567"),
            (Kind::Email, "jane.roe@example.com"),
        ] {
            let set = wide(text);
            for text in [set.clone(), format!("是{set}，"), format!("Is it {set}?")] {
                assert_eq!(found(kind, &text), [&set], "{text}");
            }
            assert_eq!(found(kind, &format!("x{set}")).len(), usize::from(kind == Kind::Email), "a word");
        }
        assert_eq!(found(Kind::Email, "to jane\u{ff20}example.com."), ["jane\u{ff20}example.com"]);
    }

    #[test]
    fn what_is_invisible_hides_nothing() {
        for invisible in ['\u{200b}', '\u{200d}', '\u{ad}', '\u{2060}', '\u{feff}', '\u{fe0f}', '\u{e0020}'] {
            for (kind, text) in [
                (Kind::Card, "41|1111|1111111111"),
                (Kind::Card, "4111|1111|1111|1111"),
                (Kind::Card, "4|1|1|1|1|1|1|1|1|1|1|1|1|1|1|1"),
                (Kind::Iban, "D|E|89370400440532013000"),
                (Kind::Phone, "+49 |30 123|4567"),
                (Kind::Email, "jane.roe@exam|ple.com"),
                (Kind::Email, "j|ane|@|example.c|om"),
            ] {
                let set = text.replace('|', &invisible.to_string());
                assert_eq!(found(kind, &format!("Is it {set}{invisible}?")), [&set], "{set:?}");
                let far = text.replace('|', &invisible.to_string().repeat(400));
                assert_eq!(found(kind, &far).len(), 0, "too far apart");
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
