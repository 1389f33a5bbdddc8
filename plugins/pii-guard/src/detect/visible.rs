//! Text as its reader sees it: digits and letters of full width are those of the keyboard, digits of other scripts are digits, and
//! what is invisible is not there, nor is an accent that stands apart from its letter (NFD). Detectors know the keyboard's characters,
//! so they look at a copy that has those.

use super::{Kind, MAX_HELD_BYTES, is_word, line_break};
use std::cell::RefCell;
use tidegate_plugin_sdk::scan::{Place, Step};
use tidegate_plugin_sdk::text::is_ignorable;

/// Copies of what is near the places of one scan.
#[derive(Debug, Default)]
pub(super) struct Copies(RefCell<Copied>);

/// A copy of a stretch of text, which serves many places: a copy for each of them would take longer than all that looks at it.
#[derive(Debug, Default)]
struct Copied {
    /// The length of the rest where it begins: places of a scan are known by that.
    rest_len: usize,
    text: String,
    /// Of each character, and of the end: where it is in the stretch, and where in the copy.
    marks: Vec<(usize, usize)>,
}

/// Bytes that are looked at from a place on: what stands before it, a line break, waits together with them.
const NEAR: usize = MAX_HELD_BYTES as usize - line_break::BYTES;
/// Bytes of a stretch.
const STRETCH: usize = 4 * MAX_HELD_BYTES as usize;

impl Copies {
    /// What `detect` finds at a place, where characters near it are seen as others or as none. What begins right behind an invisible
    /// character begins a word, so that whoever looks there need not know what is before that.
    pub(super) fn look(&self, at: Place<'_>, detect: impl Fn(Place<'_>) -> Step) -> Step {
        let near = &at.rest[..at.rest.floor_char_boundary(NEAR)];
        let before = if at.open.is_some() { seen } else { seen_before };
        let at = Place { before: at.before.and_then(before), ..at };
        if near.is_ascii() || !near.contains(is_set) {
            return detect(at);
        }
        if at.open.is_none() && begins_nothing(at.before, near) {
            return Step::No;
        }
        self.0.borrow_mut().cover(at.rest, near.len());
        self.0.borrow().look(at, near.len(), detect)
    }

    /// Gives back what is remembered of a text.
    pub(super) fn forget(&self) {
        self.0.take();
    }
}

impl Copied {
    /// Copies the text from a place on, where what is near that is not copied yet.
    fn cover(&mut self, rest: &str, near: usize) {
        let from = self.rest_len.wrapping_sub(rest.len());
        if self.marks.last().is_some_and(|(len, _)| from <= *len && from + near <= *len) {
            return;
        }
        (self.rest_len, self.text, self.marks) = (rest.len(), String::new(), Vec::new());
        let stretch = &rest[..rest.floor_char_boundary(STRETCH)];
        for (at, c) in stretch.char_indices() {
            self.marks.push((at, self.text.len()));
            self.text.extend(seen(c));
        }
        self.marks.push((stretch.len(), self.text.len()));
    }

    fn look(&self, at: Place<'_>, near: usize, detect: impl Fn(Place<'_>) -> Step) -> Step {
        let from = self.rest_len - at.rest.len();
        let copied = |own: usize| self.marks[self.marks.partition_point(|(start, _)| *start < own)].1;
        let (start, end) = (copied(from), copied(from + near));
        // What is further away counts as nothing, or a text of invisible characters would wait for ever.
        let is_cut = near < at.rest.len();
        let look = |is_last| match &self.text[start..end] {
            "" if is_last => Step::No,
            "" => Step::More,
            rest => detect(Place { rest, is_last, ..at }),
        };
        let step = match look(at.is_last && !is_cut) {
            Step::More if is_cut => look(true),
            step => step,
        };
        // Up to the last character that is seen.
        let own = |len: usize| self.marks[self.marks.partition_point(|(_, copied)| *copied < start + len)].0 - from;
        // And with its accents. A key has none, and may be told in pieces, each before the next is there.
        let with_accents = |len: usize| own(len) + accents(&at.rest[own(len)..near]);
        match step {
            Step::Skip(len) => Step::Skip(own(len)),
            // Of a key more may follow there.
            Step::Match { len, rule } if is_cut && start + len == end && rule == Kind::ApiKey as usize => {
                Step::Open { len: own(len), rule }
            }
            Step::Match { len, rule } if rule < Kind::ApiKey as usize => Step::Match { len: with_accents(len), rule },
            Step::Match { len, rule } => Step::Match { len: own(len), rule },
            Step::Open { len, rule } => Step::Open { len: own(len), rule },
            step => step,
        }
    }
}

/// Whether no kind begins here: in the middle of a word, or with what is not there.
fn begins_nothing(before: Option<char>, near: &str) -> bool {
    let first = near.chars().next().and_then(seen);
    first.is_none_or(|first| is_word(first) && before.is_some_and(is_word))
}

/// What stands before a place where something may begin, as it is seen. A slash of full width is mostly a sign between words or numbers,
/// of no path or version: behind it a number may begin.
fn seen_before(c: char) -> Option<char> {
    if c == WIDE_SLASH { Some(c) } else { seen(c) }
}

const WIDE_SLASH: char = '\u{ff0f}';

/// Bytes of the accents at the start.
fn accents(text: &str) -> usize {
    text.chars().take_while(|c| is_accent(*c)).map(char::len_utf8).sum()
}

/// Whether a character is a mark of the letter before it, as decomposed text has them (Unicode's block of combining diacritical marks).
pub(super) fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// Whether a character is seen as another one, or not at all.
pub(super) fn is_set(c: char) -> bool {
    !c.is_ascii() && seen(c) != Some(c)
}

/// The keyboard's character for one that looks like it, as far as numbers and addresses have it; `None` for what is invisible, and for
/// accents: a letter without them is one of the same word.
pub(super) fn seen(c: char) -> Option<char> {
    match c {
        '\0'..='\u{ac}' => Some(c),
        // Those of full width: % ( ) + - . / digits @ letters _
        '\u{ff05}'
        | '\u{ff08}'..='\u{ff09}'
        | '\u{ff0b}'
        | '\u{ff0d}'..='\u{ff0f}'
        | '\u{ff10}'..='\u{ff19}'
        | '\u{ff20}'..='\u{ff3a}'
        | '\u{ff3f}'
        | '\u{ff41}'..='\u{ff5a}' => char::from_u32(u32::from(c) - 0xfee0),
        c if is_accent(c) || is_ignorable(c) => None,
        // Digits of Arabic, Persian, Hindi, Bengali and Thai, and those of mathematics.
        '\u{660}'..='\u{669}' => digit(c, 0x660),
        '\u{6f0}'..='\u{6f9}' => digit(c, 0x6f0),
        '\u{966}'..='\u{96f}' => digit(c, 0x966),
        '\u{9e6}'..='\u{9ef}' => digit(c, 0x9e6),
        '\u{e50}'..='\u{e59}' => digit(c, 0xe50),
        '\u{1d7ce}'..='\u{1d7ff}' => digit(c, 0x1d7ce),
        c => Some(c),
    }
}

fn digit(c: char, zero: u32) -> Option<char> {
    char::from_digit((u32::from(c) - zero) % 10, 10)
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::{found, whole};

    fn wide(text: &str) -> String {
        let wide = |c: char| if c == ' ' { c } else { char::from_u32(u32::from(c) + 0xfee0).unwrap() };
        text.chars().map(wide).collect()
    }

    #[test]
    fn full_width_hides_nothing() {
        for (kind, text) in [
            (Kind::Card, "4111111111111111"),
            (Kind::Card, "4111-1111-1111-1111"),
            (Kind::Iban, "DE89 3704 0044 0532 0130 00"),
            (Kind::Phone, "+49 30 1234567"),
            (Kind::Phone, "(415) 555-2671"),
            (Kind::Phone, "030/1234567"),
            (Kind::Email, "jane.roe+x@example.com"),
            (Kind::ApiKey, "sk_live_a1B2c3D4e5F6g7H8i9J0k1L2"),
        ] {
            let set = wide(text);
            for text in [set.clone(), format!("是{set}，"), format!("Is it {set}?"), format!("ｘ {set}")] {
                assert_eq!(found(kind, &text), [&set], "{text}");
            }
        }
        assert_eq!(found(Kind::Card, &wide("x4111111111111111")), [""; 0], "within a word");
        assert_eq!(found(Kind::Email, "to jane\u{ff20}example.com."), ["jane\u{ff20}example.com"]);
    }

    /// As Japanese text has it.
    #[test]
    fn a_slash_of_full_width_stands_between_numbers_too() {
        for (text, phones) in [
            ("電話／03-1234-5678、", &["03-1234-5678"][..]),
            ("03-1234-5678／090-1234-5678", &["03-1234-5678", "090-1234-5678"]),
            (
                "０３－１２３４－５６７８／０３－１２３４－５６７９",
                &["０３－１２３４－５６７８", "０３－１２３４－５６７９"],
            ),
            ("03-123-4567／03-123-4568／+81 3 1234 5678", &["03-123-4567", "03-123-4568", "+81 3 1234 5678"]),
            ("+81 3 1234 5678／030/1234567", &["+81 3 1234 5678", "030/1234567"]),
            ("２０２４／０５／１７　１０：３０", &[]),
        ] {
            assert_eq!(found(Kind::Phone, text), phones, "{text}");
        }
    }

    #[test]
    fn digits_of_other_scripts_are_digits() {
        for zero in ['\u{660}', '\u{6f0}', '\u{966}', '\u{9e6}', '\u{e50}', '\u{1d7ce}', '\u{1d7d8}', '\u{1d7f6}'] {
            let digit = |c: char| c.to_digit(10).map_or(c, |digit| char::from_u32(u32::from(zero) + digit).unwrap());
            for (kind, text) in [(Kind::Card, "4111 1111 1111 1111"), (Kind::Phone, "+98 21 1234 5678")] {
                let set: String = text.chars().map(digit).collect();
                assert_eq!(found(kind, &format!("a {set}.")), [&set], "{set}");
            }
        }
    }

    #[test]
    fn what_is_invisible_hides_nothing() {
        for invisible in ['\u{200b}', '\u{200d}', '\u{ad}', '\u{2060}', '\u{feff}', '\u{fe0f}', '\u{e0020}'] {
            for (kind, text) in [
                (Kind::Card, "41|1111|1111111111"),
                (Kind::Card, "4|1|1|1|1|1|1|1|1|1|1|1|1|1|1|1"),
                (Kind::Card, "4111| 1111 |1111| 1111"),
                (Kind::Iban, "D|E|89370400440532013000"),
                (Kind::Phone, "+49 |30 123|4567"),
                (Kind::Email, "jane.roe@exam|ple.com"),
                (Kind::Email, "j|ane|@|example.c|om"),
            ] {
                let set = text.replace('|', &invisible.to_string());
                for around in ["", " ", ", ", "是"] {
                    let text = format!("{around}{invisible}{set}{invisible}{around}");
                    assert_eq!(found(kind, &text), [&set], "{text:?}");
                }
                let far = text.replace('|', &invisible.to_string().repeat(400));
                assert_eq!(found(kind, &far).len(), 0, "too far apart");
            }
        }
    }

    /// `é` as `e` and an accent.
    fn apart(text: &str) -> String {
        let apart = |c: char| match c {
            'é' => "e\u{301}".to_owned(),
            'ü' => "u\u{308}".to_owned(),
            'ệ' => "e\u{323}\u{302}".to_owned(),
            c => c.to_string(),
        };
        text.chars().map(apart).collect()
    }

    #[test]
    fn accents_apart_from_their_letters_hide_nothing() {
        for address in ["jane@müller.de", "jürgen@example.com", "rené@café.example", "ệ@việt.vn", "jane@example.comé"]
        {
            let set = apart(address);
            for around in ["", " ", "是", ", "] {
                let text = format!("{around}{set}{around}");
                assert_eq!(found(Kind::Email, &text), [&set], "{text}");
                assert_eq!(found(Kind::Email, &format!("\u{301}{text}é")).len(), 1, "{text}");
            }
            // Accents are part of what is found: none is left alone.
            assert_eq!(found(Kind::Email, &format!("{set}\u{301}\u{345}.")), [format!("{set}\u{301}\u{345}")]);
        }
        let struck: String = "415-555-2671".chars().flat_map(|c| [c, '\u{336}']).collect();
        assert_eq!(found(Kind::Phone, &format!("Call {struck} now.")), [struck]);
        for text in ["Élève, été, dé 4111111111111112", "Tiếng Việt có nhiều dấu: à, ệ, ữ", "né 12, là-bas 3"]
        {
            for kind in Kind::ALL {
                assert_eq!(found(kind, &apart(text)), [""; 0], "{text}");
            }
        }
    }

    #[test]
    fn an_open_key_goes_on_over_what_is_invisible() {
        let key = format!("sk-{}", "a1B2\u{200b}".repeat(400));
        assert_eq!(whole(Kind::ApiKey, &key), [key.trim_end_matches('\u{200b}')]);
    }
}
