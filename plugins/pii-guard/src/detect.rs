//! Finds personal data and secrets in text that arrives in pieces.
//!
//! One detector per kind, hand-written: each looks at one place, in time bounded by the longest thing of its kind,
//! and says match, no match, or "more text could change that". So the whole is linear, needs no tables built at
//! start, and a stream waits for at most [`MAX_HELD_BYTES`]. Where several kinds match at one place the longest
//! wins, and a number that begins inside of another one and ends behind it is found with it.

mod card;
mod email;
mod iban;
mod key;
mod line_break;
mod pem;
mod phone;
mod prefilter;
mod skim;
mod typeset;
mod visible;

pub use prefilter::prefilter;

use serde::Deserialize;
use skim::skim;
use tidegate_plugin_sdk::scan::{Place, Scanner, Step};
use typeset::Typeset;
use visible::Copies;

/// The longest undecided stretch: an e-mail address of 128 + 1 + 255 bytes, and before it a line break as JSON writes it.
pub const MAX_HELD_BYTES: u32 = 386;

/// What is looked for, in the order of [`Kind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An e-mail address.
    Email,
    /// A payment card's number.
    Card,
    /// A phone number.
    Phone,
    /// An international bank account number.
    Iban,
    /// A key or token that gives access.
    ApiKey,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Email, Self::Card, Self::Phone, Self::Iban, Self::ApiKey];

    /// The name in the config, in findings and in replacements.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Card => "card",
            Self::Phone => "phone",
            Self::Iban => "iban",
            Self::ApiKey => "api-key",
        }
    }

    /// Whether it is made of digits in groups; the others are words.
    fn is_number(self) -> bool {
        matches!(self, Self::Card | Self::Phone | Self::Iban)
    }

    fn is_word(self) -> bool {
        !self.is_number()
    }
}

/// The rules of an open token with dots inside, of a private key in lines, and of one within a header; a scanner's other rules
/// are positions in [`Kind::ALL`].
const DOTTED_KEY_RULE: usize = Kind::ALL.len();
const PEM_RULE: usize = DOTTED_KEY_RULE + 1;
const PEM_HEADER_RULE: usize = PEM_RULE + 1;

/// Looks for the kinds that are switched on.
#[derive(Debug)]
pub struct Detector {
    kinds: Vec<Kind>,
    copies: Copies,
}

impl Detector {
    /// Looks for `kinds`.
    pub fn new(kinds: Vec<Kind>) -> Self {
        Self { kinds, copies: Copies::default() }
    }

    /// The kind that a rule stands for.
    pub fn kind(rule: usize) -> Kind {
        Kind::ALL.get(rule).copied().unwrap_or(Kind::ApiKey)
    }

    fn step_of(kind: Kind, at: Place<'_>) -> Step {
        let rule = kind as usize;
        match kind {
            Kind::Email => email::step(at, rule),
            Kind::ApiKey => key::step(at, rule),
            Kind::Card => card::step(at, rule),
            Kind::Phone => phone::step(at, rule),
            Kind::Iban => iban::step(at, rule),
        }
    }
}

impl Scanner for Detector {
    fn step(&self, at: Place<'_>) -> Step {
        match at.open {
            Some(rule) => self.copies.look(at, |at| key::go_on(at, rule)),
            None => line_break::step(at, |at| self.copies.look(at, |at| self.look(at))),
        }
    }

    fn end(&self) {
        self.copies.forget();
    }

    fn idle(&self, at: Place<'_>) -> usize {
        plain(at)
    }
}

impl Detector {
    fn look(&self, at: Place<'_>) -> Step {
        let others = longest(self.of(Kind::is_word), at);
        match (Typeset::of(at), others) {
            (_, Step::More | Step::Open { .. }) | (None, _) => others,
            (Some(number), _) => longer(number.look(|at| self.number(at)), others),
        }
    }

    fn of(&self, is_wanted: fn(Kind) -> bool) -> impl Iterator<Item = Kind> {
        self.kinds.iter().copied().filter(move |kind| is_wanted(*kind))
    }

    /// The longest number at a place. What ends it may be the beginning of another one, of which the rest is to leave no more than
    /// this: `030 123 4111 1111 1111 1111` has a phone number's form as far as the card's first group.
    fn number(&self, at: Place<'_>) -> Step {
        let (mut found, mut from) = (longest(self.of(Kind::is_number), at), 1);
        while let Step::Match { len, .. } = found {
            let Some(start) = next_group(&at.rest[..len.min(MAX_WIDE_BYTES)], from) else { break };
            let inside = Place { rest: &at.rest[start..], before: at.rest[..start].chars().next_back(), ..at };
            found = match longest(self.of(Kind::is_number), inside) {
                Step::More => Step::More,
                Step::Match { len: more, rule } => longer(Step::Match { len: start + more, rule }, found),
                _ => found,
            };
            from = start + 1;
        }
        found
    }
}

/// Within so much of a number others are looked for, so that with the last of them it is no longer than what a stream may hold back.
const MAX_WIDE_BYTES: usize = 200;

/// Where the next group of digits begins in a number.
fn next_group(number: &str, from: usize) -> Option<usize> {
    let is_start = |two: &[u8]| !two[0].is_ascii_alphanumeric() && two[1].is_ascii_digit();
    number.as_bytes().get(from - 1..)?.windows(2).position(is_start).map(|at| from + at)
}

/// The longest of what is found at a place, or [`Step::More`] where more text may change what it is.
fn longest(kinds: impl Iterator<Item = Kind>, at: Place<'_>) -> Step {
    let mut best = Step::No;
    for kind in kinds {
        match Detector::step_of(kind, at) {
            Step::More if at.is_last => {}
            open @ (Step::More | Step::Open { .. }) => return open,
            found => best = longer(found, best),
        }
    }
    best
}

fn longer(found: Step, best: Step) -> Step {
    match (found, best) {
        (Step::More, _) => found,
        (Step::Match { len, .. }, Step::Match { len: longest, .. }) if len <= longest => best,
        (Step::Match { .. }, _) | (Step::Skip(_), Step::No) => found,
        _ => best,
    }
}

/// Bytes at a place within which no kind begins, skimmed; most text is that. A hint only: where it says 0, the
/// detectors look.
fn plain(at: Place<'_>) -> usize {
    let mut passed = 0;
    // All kinds begin at the border of a word.
    if at.before.and_then(visible::seen).is_some_and(is_word) {
        passed = word(at.rest);
    }
    loop {
        let rest = &at.rest[passed..];
        match skim(rest.as_bytes()) {
            0 => {}
            len => {
                passed += len;
                continue;
            }
        }
        let between = between(rest);
        let len = between + plain_word(&rest[between..]);
        if len == 0 {
            return passed;
        }
        passed += len;
    }
}

/// Bytes of a word or number with what follows it, when it is none of what is looked for: short, no address and no
/// other number behind it.
fn plain_word(text: &str) -> usize {
    let (word, behind) = text.as_bytes().split_at(email::run(text, key::MIN_BYTES, email::WORD));
    // Behind an apostrophe a number may begin.
    if word.contains(&b'\'') && word.iter().any(u8::is_ascii_digit) {
        return 0;
    }
    let end = match behind.first() {
        // It may begin a line break, and behind that a word begins.
        Some(b'\\') => 0,
        Some(next) if is_between(*next) => 1,
        _ => return 0,
    };
    if is_plain(word, behind) { word.len() + end } else { 0 }
}

/// Whether a word or number is none of what is looked for. `behind`: all that follows, as far as it is there.
fn is_plain(word: &[u8], behind: &[u8]) -> bool {
    if word.first().is_some_and(u8::is_ascii_digit) {
        return word.len() <= MAX_PLAIN_DIGITS && !goes_on(behind);
    }
    let has_check_digits = matches!(word, [_, _, b'0'..=b'9', b'0'..=b'9', ..]);
    // Of a checksum the first word may be short, and what follows belongs to it.
    (1..key::MIN_BYTES).contains(&word.len()) && !has_check_digits && !word.starts_with(b"sha")
}

/// In one piece: phone numbers without a `+` have several, and card numbers more digits.
const MAX_PLAIN_DIGITS: usize = card::MIN_DIGITS - 1;

/// Whether a number may go on in what is behind it: between two groups a phone number has one of these, and perhaps a second one
/// behind it, which may be set as no ASCII. A card number may have a tab.
fn goes_on(behind: &[u8]) -> bool {
    match behind {
        [b' ' | b'/' | b')' | b'\t'] => true,
        [b' ' | b'/' | b')' | b'\t', next, ..] => !next.is_ascii() || next.is_ascii_digit() || b" ()/-.".contains(next),
        _ => false,
    }
}

/// ASCII that is part of nothing and begins nothing. A backslash makes of a letter none, an apostrophe one name of two.
const fn is_between(byte: u8) -> bool {
    byte.is_ascii()
        && !byte.is_ascii_alphanumeric()
        && !matches!(byte, b'_' | b'.' | b'-' | b'+' | b'%' | b'@' | b'(' | b'\\' | b'\'')
}

/// Bytes at the start that begin nothing: spaces, signs, characters of scripts without spaces.
fn between(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match text[at..].chars().next().filter(|_| !byte.is_ascii()) {
            Some(c) if !email::is_name(c) && !visible::is_set(c) => at += c.len_utf8(),
            None if is_between(*byte) || matches!(byte, b'.' | b'%' | b'@') => at += 1,
            None if *byte == b'\\' && !line_break::may_begin(&bytes[at..]) => at += 1,
            _ => break,
        }
    }
    at
}

/// Bytes of the word at the start, in the letters that an address may have.
fn word(text: &str) -> usize {
    email::run(text, usize::MAX, email::NAME)
}

/// What a number, a name or a key is not cut out of: those of its characters that words are made of where spaces stand
/// between words. Chinese, Japanese and Thai have none, so there a number stands right beside other characters.
fn is_word(c: char) -> bool {
    email::is_name(c)
}

/// What follows a candidate's end.
enum Follower {
    /// Something that may stand behind it.
    Border,
    /// More of the same word: no match.
    Word,
    /// Not known yet.
    Unknown,
}

fn follower(at: Place<'_>, end: usize) -> Follower {
    match at.rest[end..].chars().next() {
        Some(c) if is_word(c) => Follower::Word,
        None if !at.is_last => Follower::Unknown,
        _ => Follower::Border,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tidegate_plugin_sdk::scan::find_all;

    /// What a detector for one kind finds in a text.
    pub(crate) fn found(kind: Kind, text: &str) -> Vec<&str> {
        find_all(&Detector::new(vec![kind]), text).into_iter().map(|hit| &text[hit.range]).collect()
    }

    /// The same, what is found in pieces joined.
    pub(crate) fn whole(kind: Kind, text: &str) -> Vec<&str> {
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        for hit in find_all(&Detector::new(vec![kind]), text) {
            match ranges.last_mut() {
                Some(range) if hit.continues => range.end = hit.range.end,
                _ => ranges.push(hit.range),
            }
        }
        ranges.into_iter().map(|range| &text[range]).collect()
    }

    /// Looks at every place.
    struct Slow(Detector);
    impl Scanner for Slow {
        fn end(&self) {
            self.0.end();
        }

        fn step(&self, at: Place<'_>) -> Step {
            self.0.step(at)
        }
    }

    proptest::proptest! {
        #[test]
        fn skimming_misses_nothing(text in crate::tests::awkward(), more in "([a-zA-Z0-9 \t_.,:;+%@()/'é谢\u{2014}\u{3000}-]|\\\\[nrtx]){0,60}") {
            let text = format!("{text}{more}{text}");
            let detector = || Detector::new(Kind::ALL.to_vec());
            proptest::prop_assert_eq!(find_all(&detector(), &text), find_all(&Slow(detector()), &text));
        }
    }

    /// Scripts without spaces between words: what is looked for stands right beside other characters.
    #[test]
    fn finds_stand_beside_characters_of_scripts_without_spaces() {
        let key = format!("sk-{}", "abcdefgh12345678ijklmn");
        let finds = [
            (Kind::Email, "john@example.com"),
            (Kind::Card, "4111111111111111"),
            (Kind::Card, "4111 1111 1111 1111"),
            (Kind::Phone, "+49 30 1234567"),
            (Kind::Phone, "415-555-2671"),
            (Kind::Iban, "DE89370400440532013000"),
            (Kind::ApiKey, &key),
            (Kind::ApiKey, "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3h"),
        ];
        for (kind, find) in finds {
            for beside in ['是', 'は', 'ト', 'ท', '은', '，'] {
                let text = format!("{beside}{find}{beside}");
                assert_eq!(found(kind, &text), [find], "{text}");
            }
        }
        assert_eq!(found(Kind::Card, "é4111111111111111"), [""; 0], "a word");
    }

    #[test]
    fn a_number_whose_groups_are_apart_in_another_typeface_is_no_plain_one() {
        for text in ["030 \u{a0}(1234567", "030 \u{2011}(1234567", "030/\u{2011}(1234567", "415)\u{a0}555-2671"] {
            let all = find_all(&Detector::new(Kind::ALL.to_vec()), text);
            assert_eq!(all, find_all(&Slow(Detector::new(Kind::ALL.to_vec())), text), "{text}");
            assert_eq!(all.len(), 1, "{text}");
        }
    }

    /// A rule is told from a kind, and a kind from a rule.
    #[test]
    fn a_rule_stands_for_its_kind() {
        for kind in Kind::ALL {
            assert_eq!(Detector::kind(kind as usize), kind);
        }
    }

    #[test]
    fn a_number_hides_the_end_of_none_that_begins_in_it() {
        for (text, whole) in [
            ("01 4111 1111 1111 1111", "01 4111 1111 1111 1111"),
            ("030 123 4111 1111 1111 1111.", "030 123 4111 1111 1111 1111"),
            ("+49 301234 4111 1111 1111 1111, 1", "+49 301234 4111 1111 1111 1111"),
            ("0049 30 1234 3782 822463 10005", "0049 30 1234 3782 822463 10005"),
            (
                "+49\u{a0}301234\u{a0}4111\u{a0}1111\u{a0}1111\u{a0}1111",
                "+49\u{a0}301234\u{a0}4111\u{a0}1111\u{a0}1111\u{a0}1111",
            ),
            ("4537 4111 1111 1111 1111", "4537 4111 1111 1111 1111"),
            ("030 1234567 12", "030 1234567"),
        ] {
            let hits = find_all(&Detector::new(Kind::ALL.to_vec()), text);
            assert_eq!(hits.iter().map(|hit| &text[hit.range.clone()]).collect::<Vec<_>>(), [whole]);
        }
        let list = "01 4111 1111 1111 1111\n02 5555 5555 5555 4444\n03 3782 822463 10005";
        let hits = find_all(&Detector::new(Kind::ALL.to_vec()), list);
        assert!(hits.len() == 3 && hits.iter().all(|hit| Detector::kind(hit.rule) == Kind::Card), "{hits:?}");
        let phones = find_all(&Detector::new(vec![Kind::Phone]), "01 4111 1111 1111 1111");
        assert_eq!(phones.len(), 1, "cards are not looked for");
    }

    #[test]
    fn the_longest_kind_at_a_place_wins() {
        let text = "sk-abcdefgh12345678ijkl@example.com";
        let hits = find_all(&Detector::new(Kind::ALL.to_vec()), text);
        assert_eq!(hits.len(), 1);
        assert_eq!((Detector::kind(hits[0].rule), hits[0].range.clone()), (Kind::Email, 0..text.len()));
    }
}
