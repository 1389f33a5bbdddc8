//! Text that the guard need not be asked about: words and short numbers in which no kind is and none begins, whatever is before
//! them and follows. At each step the question is whether something may begin here.

use super::{key, phone};
use tidegate_plugin_sdk::Prefilter;

/// An automaton of words and numbers:
///
/// - Words begin at the start and behind all that is no part of them. There phone numbers may begin with a `+` or a `(`, so a `+` leads to
///   neither a digit nor a `(`, and private keys with five dashes, so several dashes lead to no letter.
/// - Digits are in words of ASCII letters, and not as in the beginning of an IBAN, two of them behind two letters.
/// - Behind a `-` that follows a letter or a dot there are one or two digits, and then an end: no phone number begins behind a `-`,
///   groups of a card number that go on have three digits, and the shortest keys have more letters and digits there.
/// - A number has at most eight digits, fewer than a card number or a phone number without a `+` has. Groups count together, with
///   all that may stand between them: `2026-11-27` leaves, and about `2026-11-27 10` the guard is asked.
/// - Letters right behind a digit belong to one word with it, in which nothing begins.
/// - An `@` at the start is part of no address. An apostrophe is in addresses what a dot is: part of one, and behind it one may begin.
/// - A backslash may begin a line break as JSON writes it: nothing leaves up to it or to its letter, for behind that a word begins,
///   and nobody who sees the letter alone before it could tell.
/// - What is invisible may stand within all that is looked for, and is passed only where nothing has begun. So may an accent, but behind
///   letters, as accents stand, it makes another letter of the last one: no digit is passed in that word, with or without it.
pub fn prefilter() -> Prefilter {
    let others = [("other letters", "word"), ("signs", "sign")];
    let within = [&any_letter("word")[..], &others].concat();
    let next = [("dots", "dotted"), ("parentheses", "opened")];
    let ends = ["ends", "separators", "typeset", "others"].map(|class| (class, "start"));
    let ends = [&ends[..], &[BACKSLASH]].concat();
    let ended = [&next[..], &ends].concat();
    let letters = |next: &'static str, digit: &'static str, hyphen: &'static str| {
        [&any_letter(next)[..], &[("digits", digit), ("hyphens", hyphen)], &others, &ended].concat()
    };
    let begins = [
        &letters("a letter", NUMBERS[0], "opened")[..],
        &[("ats", "word"), ("invisible", "start"), ("accents", "start")],
    ]
    .concat();
    let is_break = |(class, next): &(&'static str, &'static str)| {
        if *class == "break letters" { (*class, "broken") } else { (*class, *next) }
    };
    let accents = ("accents", "word");
    let accented = |letters: Vec<(&'static str, &'static str)>| [letters, vec![accents]].concat();
    let words = classes(Prefilter::new(key::MIN_BYTES as u32 - 1))
        .state("start", &begins)
        .state("backslash", &begins.iter().map(is_break).collect::<Vec<_>>())
        // Behind a line break as JSON writes it.
        .state("broken", &begins)
        // Behind a `(`, or one `-` at the start.
        .state("opened", &letters("a letter", NUMBERS[0], "dashes"))
        .state("dashes", &[&[("hyphens", "dashes")], &ends[..]].concat())
        .state("dotted", &letters("a letter", NUMBERS[0], "hyphen"))
        .state("a letter", &accented(letters("two letters", "mixed", "hyphen")))
        .state("two letters", &accented(letters("letters", "check digit", "hyphen")))
        .state("letters", &accented(letters("letters", "mixed", "hyphen")))
        .state("mixed", &[&any_letter("mixed")[..], &[("digits", "mixed")], &ended].concat())
        .state("check digit", &[&any_letter("mixed")[..], &ended].concat())
        .state("ordinal", &letters("ordinal", "ordinal", "hyphen"))
        .state("hyphen", &[&within[..], &[("digits", "-1")], &ended].concat())
        .state("-1", &[&[("digits", "-12")], &ended[..]].concat())
        .state("-12", &ended)
        .state("word", &[&within[..], &[("hyphens", "joined"), accents], &ended].concat())
        // No parenthesis: `+(49) ...` may be a phone number.
        .state("sign", &[&within[..], &[("dots", "dotted"), ("hyphens", "joined")], &ends].concat())
        // Behind a sign after which a digit or another such sign may belong to what was before.
        .state("joined", &within);
    numbers(words)
}

/// The states of a number by its digits, and behind each what may stand between two groups.
const NUMBERS: [&str; phone::MIN_PLAIN_DIGITS - 1] = ["1", "2", "3", "4", "5", "6", "7", "8"];
const BEHIND: [&str; NUMBERS.len()] = ["1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ", "8 "];

fn numbers(words: Prefilter) -> Prefilter {
    NUMBERS.into_iter().zip(BEHIND).zip(1..).fold(words, |prefilter, ((number, behind), num_digits)| {
        let digit = NUMBERS.get(num_digits).map(|next| ("digits", *next));
        let between = ["dots", "separators", "typeset"].map(|class| (class, behind));
        let goes_on = [digit.as_slice(), &between, &OVER].concat();
        let [joins, joined] = [behind, "joined"].map(|next| [("hyphens", next), ("parentheses", next)]);
        prefilter
            .state(number, &[&goes_on[..], &joins, &any_letter("ordinal")].concat())
            .state(behind, &[&goes_on[..], &joined, &any_letter("a letter")].concat())
    })
}

/// The keyboard's letters, each as the others are but behind a backslash.
fn any_letter(next: &'static str) -> [(&'static str, &'static str); 2] {
    ["letters", "break letters"].map(|class| (class, next))
}

/// It ends what is before it.
const BACKSLASH: (&str, &str) = ("backslashes", "backslash");

/// Behind a number, and what follows is none of it.
const OVER: [(&str, &str); 5] =
    [("other letters", "word"), ("signs", "sign"), ("ends", "start"), ("others", "start"), BACKSLASH];

/// Letters of names, as [`super::email::is_name`] has them: Latin, Greek, Cyrillic, Armenian.
const OTHER_LETTERS: [&str; 13] = [
    "\u{c0}\u{d6}",
    "\u{d8}\u{f6}",
    "\u{f8}\u{2c1}",
    "\u{370}\u{373}",
    "\u{386}",
    "\u{388}\u{38a}",
    "\u{38c}",
    "\u{38e}\u{3a1}",
    "\u{3a3}\u{3f5}",
    "\u{3f7}\u{481}",
    "\u{48a}\u{52f}",
    "\u{531}\u{556}",
    "\u{560}\u{588}",
];
/// What is invisible: it may stand within all that is looked for, so it is passed only where nothing has begun.
const INVISIBLE: [&str; 17] = [
    "\u{ad}",
    "\u{34f}",
    "\u{61c}",
    "\u{115f}\u{1160}",
    "\u{17b4}\u{17b5}",
    "\u{180b}\u{180f}",
    "\u{200b}\u{200f}",
    "\u{202a}\u{202e}",
    "\u{2060}\u{206f}",
    "\u{3164}",
    "\u{fe00}\u{fe0f}",
    "\u{feff}",
    "\u{ffa0}",
    "\u{fff0}\u{fff8}",
    "\u{1bca0}\u{1bca3}",
    "\u{1d173}\u{1d17a}",
    "\u{e0000}\u{e0fff}",
];
/// Accents that stand apart from their letters, but for one that is invisible besides.
const ACCENTS: [&str; 2] = ["\u{300}\u{34e}", "\u{350}\u{36f}"];
/// What groups of numbers may have between them in print.
const TYPESET: [&str; 9] = [
    "\u{a0}",
    "\u{1680}",
    "\u{2000}\u{200a}",
    "\u{2010}\u{2013}",
    "\u{202f}",
    "\u{205f}",
    "\u{2212}",
    "\u{3000}",
    "\u{fe63}",
];
/// Of the rest what is no letter of a name: most other scripts, signs, pictures.
const OTHERS: [&str; 37] = [
    "\u{a1}\u{ac}",
    "\u{ae}\u{bf}",
    "\u{d7}",
    "\u{f7}",
    "\u{590}\u{61b}",
    "\u{61d}\u{65f}",
    "\u{66a}\u{6ef}",
    "\u{6fa}\u{965}",
    "\u{970}\u{9e5}",
    "\u{9f0}\u{e4f}",
    "\u{e5a}\u{115e}",
    "\u{1161}\u{167f}",
    "\u{1681}\u{17b3}",
    "\u{17b6}\u{180a}",
    "\u{1810}\u{1fff}",
    "\u{2014}\u{2029}",
    "\u{2030}\u{205e}",
    "\u{2070}\u{2211}",
    "\u{2213}\u{2fff}",
    "\u{3001}\u{3163}",
    "\u{3165}\u{fdff}",
    "\u{fe10}\u{fe62}",
    "\u{fe64}\u{fefe}",
    "\u{ff00}\u{ff04}",
    "\u{ff06}\u{ff07}",
    "\u{ff0a}",
    "\u{ff0c}",
    "\u{ff1a}\u{ff1f}",
    "\u{ff3b}\u{ff3e}",
    "\u{ff40}",
    "\u{ff5b}\u{ff9f}",
    "\u{ffa1}\u{ffef}",
    "\u{fff9}\u{1bc9f}",
    "\u{1bca4}\u{1d172}",
    "\u{1d17b}\u{1d7cd}",
    "\u{1d800}\u{dffff}",
    "\u{e1000}\u{10ffff}",
];
/// ASCII that is part of nothing and begins nothing, but the separators.
const ENDS: [&str; 11] = ["\0\u{8}", "\n\u{1f}", "!$", "&", "*", ",", ":?", "[", "]^", "`", "{\u{7f}"];
const SEPARATORS: [&str; 6] = [" ", "\t", "/", ")", "\u{ff09}", "\u{ff0f}"];
/// Of all scripts whose digits are seen as the keyboard's.
const DIGITS: [&str; 8] = [
    "09",
    "\u{660}\u{669}",
    "\u{6f0}\u{6f9}",
    "\u{966}\u{96f}",
    "\u{9e6}\u{9ef}",
    "\u{e50}\u{e59}",
    "\u{ff10}\u{ff19}",
    "\u{1d7ce}\u{1d7ff}",
];

/// Characters as [`super::visible::seen`] has them, written down and not looked for: each instance that is configured describes itself.
fn classes(prefilter: Prefilter) -> Prefilter {
    prefilter
        .class("letters", ["am", "oq", "s", "uz", "AZ", "_", "\u{ff21}\u{ff3a}", "\u{ff41}\u{ff5a}", "\u{ff3f}"])
        .class("break letters", ["n", "r", "t"])
        .class("backslashes", ["\\"])
        .class("other letters", OTHER_LETTERS)
        .class("digits", DIGITS)
        .class("signs", ["+", "%", "\u{ff0b}", "\u{ff05}"])
        .class("dots", [".", "'", "\u{ff0e}"])
        .class("ats", ["@", "\u{ff20}"])
        .class("hyphens", ["-", "\u{ff0d}"])
        .class("parentheses", ["(", "\u{ff08}"])
        .class("invisible", INVISIBLE)
        .class("accents", ACCENTS)
        .class("separators", SEPARATORS)
        .class("typeset", TYPESET)
        .class("ends", ENDS)
        .class("others", OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::{Detector, Kind, email, goes_on, is_between, typeset, visible};
    use tidegate_plugin_sdk::scan::find_all;

    #[test]
    fn characters_are_what_the_detectors_take_them_for() {
        for c in '\0'..=char::MAX {
            let is_of = |class: &[&str]| {
                class.iter().any(|range| range.chars().next() <= Some(c) && Some(c) <= range.chars().next_back())
            };
            if visible::is_set(c) {
                let Some(plain) = visible::seen(c) else {
                    assert!(is_of(&INVISIBLE) != is_of(&ACCENTS), "{c:?}");
                    continue;
                };
                for before in ["", "a", "ab", "1", "1 ", "."] {
                    let through = |c: char| prefilter().through(&format!("{before}{c}")).map(|len| len > before.len());
                    assert_eq!(through(c), through(plain), "{before}{c:?}");
                }
                continue;
            }
            let (is_typeset, is_name) = (typeset::plain(c) != c, email::is_name(c));
            assert_eq!(is_of(&TYPESET), is_typeset, "{c:?}");
            assert_eq!(is_of(&ENDS) || is_of(&SEPARATORS), c.is_ascii() && is_between(c as u8), "{c:?}");
            assert_eq!(is_of(&SEPARATORS), c.is_ascii() && goes_on(&[c as u8]), "{c:?}");
            assert!(!is_of(&OTHER_LETTERS) || !c.is_ascii() && is_name, "{c:?}");
            assert!(!is_of(&OTHERS) || !c.is_ascii() && !is_name && !is_typeset, "{c:?}");
            assert!(!is_of(&INVISIBLE) && !is_of(&ACCENTS), "{c:?}");
        }
    }

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
            ("on 2026-11-27 at 10, ", "on 2026-11-27 at 10, "),
            ("27.11.2026, 11/27/2026; 2026-11-27T10:30:00Z ", "27.11.2026, 11/27/2026; 2026-11-27T10:30:00Z "),
            ("(2024), -5, 10-12 days, 12.5k, 10км ", "(2024), -5, 10-12 days, 12.5k, 10км "),
            ("- one\n- 2, -- and (你好)\n|---|---:|\n-----\n", "- one\n- 2, -- and (你好)\n|---|---:|\n-----\n"),
            ("v2.1.0, gpt-4, covid-19, step-2.5, a1.b2, B200, ", "v2.1.0, gpt-4, covid-19, step-2.5, a1.b2, B200, "),
            (
                "f(), f(1, x2), (see f(x)), pre- and post-, @dataclass ",
                "f(), f(1, x2), (see f(x)), pre- and post-, @dataclass ",
            ),
            ("main.rs:10, 1.0rc1, .5, e.g. 3... ok ", "main.rs:10, 1.0rc1, .5, e.g. 3... ok "),
            ("1) one\n2) two\n", "1) one\n2) two\n"),
            ("1 234 567, 192.168.1.1, ", "1 234 567, 192.168.1.1, "),
            ("\"a\\nb, C:\\tmp, \\(x\\), \\alpha 1\\n, ", "\"a\\nb, C:\\tmp, \\(x\\), \\alpha 1\\n, "),
            ("a \\n", "a "),
            ("a \\", "a "),
            ("a b\\n4", "a "),
            ("it's 'a' l'été, {'a1': 'b'} ", "it's 'a' l'été, {'a1': 'b'} "),
            ("a o'b", "a "),
            ("a 'b", "a "),
            ("a 1 2 3 ", "a "),
            ("２０２４年，ＡＢＣ，第１０章（见下） ", "２０２４年，ＡＢＣ，第１０章（见下） "),
            (
                "e\u{301}le\u{300}ve, e\u{323}\u{302} a\u{300}: (u\u{308}) re\u{301}-e\u{301}lu. ",
                "e\u{301}le\u{300}ve, e\u{323}\u{302} a\u{300}: (u\u{308}) re\u{301}-e\u{301}lu. ",
            ),
            ("👩\u{200d}💻 ❤\u{fe0f} می\u{200c}خواهم, ", "👩\u{200d}💻 ❤\u{fe0f} می\u{200c}خواهم, "),
        ] {
            assert_eq!(prefilter().through(text), Some(through.len()), "{text}");
        }
    }

    #[test]
    fn about_what_may_be_one_of_the_kinds_the_guard_is_asked() {
        for text in [
            "a@",
            "john.doe@",
            "--a",
            "--1",
            "-----B",
            "1---",
            "1 (--",
            "(+4",
            "1--2",
            "1 -2",
            "1 (5",
            "1\u{2011}.(5",
            "123456789",
            "2026-11-27 1",
            "1 234 567 89",
            "1234567.89",
            "12345678-9",
            "1+23456789",
            "030 \u{a0}1234567",
            "12345678)\u{2011}9",
            "1234\u{3000}5678\u{2012}9",
            "12345678\u{2212}9",
            "1.GB29",
            "12345678.GB29",
            "1+GB29",
            "1-GB29",
            "a-123",
            "a-1b",
            "a-b-1",
            "xoxb-abcdefg-1",
            "1 (.5",
            "jane\u{ff20}",
            "jane\u{200b}roe",
            "jane\u{301}@",
            "e\u{301}8",
            "d\u{301}e89",
            "xoxb\u{301}-abcdefg-1",
            "4\u{336}1",
            "ab1\u{301}",
            "-\u{301}",
            "(\u{301}",
            "4111\u{200d}",
            "4111\t1111\t1",
            "４１１１１１１１１",
            "٤١١١١١١١١",
            "\u{ff0b}４９",
            "1 ((5",
            "1 (-",
            "a--",
            "f(+4",
            "+1",
            "+(2",
            "( +1",
            "DE89",
            "\\n411111111",
            "\\nDE89",
            "\\tjo@",
            "sean.o'brien@",
            "o'DE89",
            "2'345678901",
            "é8",
            "abcdefghijklmnopqrst",
        ] {
            assert_eq!(prefilter().through(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(20_000))]

        /// Numbers in groups of all kinds, with what may make more or less of them before, between and behind.
        #[test]
        fn nothing_that_is_found_begins_in_what_leaves(
            text in "((DE89|GB29 NWBK|xoxb-|sk-|--|\\\\[nrtx]?|[a-zé年'\u{301}]{1,4}|v1|@|jo\u{ff0e}|４|\u{ff0b}|\u{200b}|\u{301})?(\\+?\\(?|[(. %-]{0,2})0?[0-9]{1,3}([ ()\u{200b}\u{301}]?[ \t./()\u{ff0d}\u{ff0f}\u{200d}\u{a0}\u{ad}\u{2060}\u{2014}\u{2212}\u{3000}-]{1,2}[0-9４]{2,7}){0,3}\
                     [-a-z',: \n@\u{ff20}ｅ\u{200b}\u{301}]{0,3}(x\\.io|\\\\n)?){1,3}",
        ) {
            let (found, prefilter) = (find_all(&Detector::new(Kind::ALL.to_vec()), &text), prefilter());
            let first = found.first().map_or(text.len(), |find| find.range.start);
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let through = ends.map_while(|end| prefilter.through(&text[..end])).max();
            proptest::prop_assert!(through <= Some(first), "{found:?}");
        }
    }
}
