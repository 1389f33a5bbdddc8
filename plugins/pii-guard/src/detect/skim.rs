//! What most text is, told byte by byte from one table: short words and numbers that are no part of what is looked for. A hint:
//! where it stops, the detectors look.

use super::{goes_on, is_between, is_plain, key, phone};

/// What a byte is: one bit each, so that those of a word are told together.
type Class = u8;

/// Part of a word.
const LETTER: Class = 0;
/// The same, where the word has no digits. Of a number a dot is part, and an apostrophe of a name.
const SIGN: Class = 1;
/// The same alone within a word, or within a number. To be looked at closely at the beginning of a word, or beside another: so
/// do private keys begin.
const HYPHEN: Class = 1 << 1;
/// Part of a number, or of a word without signs.
const DIGIT: Class = 1 << 2;
/// Between words.
const BETWEEN: Class = 1 << 3;
/// To be looked at closely: other scripts, what numbers and addresses have.
const OTHER: Class = 1 << 4;

/// One look-up for each byte: most of a guard's work is that.
const CLASSES: [Class; 256] = {
    let mut classes = [OTHER; 256];
    let mut byte = 0;
    while byte < 128 {
        let it = byte as u8;
        if it.is_ascii_digit() {
            classes[byte] = DIGIT;
        } else if it.is_ascii_alphabetic() || it == b'_' {
            classes[byte] = LETTER;
        } else if matches!(it, b'.' | b'+' | b'%' | b'\'') {
            classes[byte] = SIGN;
        } else if it == b'-' {
            classes[byte] = HYPHEN;
        } else if is_between(it) {
            classes[byte] = BETWEEN;
        }
        byte += 1;
    }
    classes
};

/// Bytes of short words and numbers, each with what follows it. Eight are looked at together where they are what most text is
/// made of.
pub(super) fn skim(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += letters(&bytes[at..]);
        match word(&bytes[at..]) {
            0 => return at,
            len => at += len,
        }
    }
}

/// Bytes of short words of letters and full stops, each with what follows it, as far as whole eights go.
fn letters(bytes: &[u8]) -> usize {
    let (mut run, mut border) = (0, 0);
    for (eight, end) in bytes.as_chunks().0.iter().zip((8..).step_by(8)) {
        let Some(between) = between_letters(u64::from_le_bytes(*eight)) else { break };
        run += between.trailing_zeros() as usize / 8;
        if run >= key::MIN_BYTES {
            break;
        }
        if between != 0 {
            run = between.leading_zeros() as usize / 8;
            border = end - run;
        }
    }
    border
}

/// Bytes of a word or number with what follows it, where it is short and none of what is looked for; else 0.
fn word(bytes: &[u8]) -> usize {
    let (mut seen, mut len, mut end) = (LETTER, 0, OTHER);
    for byte in bytes.iter().take(key::MIN_BYTES) {
        let class = CLASSES[usize::from(*byte)];
        if class & (BETWEEN | OTHER) != 0 {
            end = class;
            break;
        }
        seen |= class;
        len += 1;
    }
    if end != BETWEEN {
        return 0;
    }
    let (word, behind) = bytes.split_at(len);
    let has = |classes: Class| seen & classes != 0;
    let passes = match (has(DIGIT), has(SIGN | HYPHEN)) {
        (true, false) => is_plain(word, behind),
        (true, true) => is_short(word) && !has_dashes(word) && !goes_on(behind),
        (false, _) => !has(HYPHEN) || !has_dashes(word),
    };
    if passes { len + 1 } else { 0 }
}

/// As private keys begin.
fn has_dashes(word: &[u8]) -> bool {
    word.starts_with(b"-") || word.windows(2).any(|two| two == b"--")
}

/// Whether a word with digits and dots or hyphens is too short for what is looked for: `2026-11-27`, `v2.1.0`, `gpt-4o`. Neither a
/// checksum, which goes on behind a `/`, nor the beginning of an IBAN.
fn is_short(word: &[u8]) -> bool {
    let num_digits = word.iter().filter(|byte| byte.is_ascii_digit()).count();
    let is_head = |four: &[u8]| {
        let [letters, digits] = [&four[..2], &four[2..]];
        letters.iter().all(u8::is_ascii_alphabetic) && digits.iter().all(u8::is_ascii_digit)
    };
    word.len() < key::MIN_HYPHENED_BYTES
        && num_digits < phone::MIN_PLAIN_DIGITS
        && !word.iter().any(|byte| matches!(byte, b'+' | b'%'))
        && !word.windows(3).any(|three| three == b"sha")
        && !word.windows(4).any(is_head)
}

/// Each byte's highest bit.
const HIGHEST: u64 = every(0x80);

const fn every(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The highest bits of those among eight bytes that are spaces or commas; `None` where others are no letters and full
/// stops. Below 128 a byte's highest bit is free to hold what an addition says of it.
fn between_letters(eight: u64) -> Option<u64> {
    if eight & HIGHEST != 0 {
        return None;
    }
    let is = |byte: u8| !((eight ^ every(byte)) + every(0x7f));
    let between = (is(b' ') | is(b',')) & HIGHEST;
    let small = eight | every(0x20);
    let letters = (small + every(0x80 - b'a')) & !(small + every(0x7f - b'z'));
    ((between | letters | is(b'.')) & HIGHEST == HIGHEST).then_some(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_together_are_what_each_is() {
        for (byte, at) in (0..=255_u8).flat_map(|byte| (0..8).map(move |at| (byte, at))) {
            for other in [b'a', b' '] {
                let mut eight = [other; 8];
                eight[at] = byte;
                let is_between = |byte: u8| matches!(byte, b' ' | b',');
                let bits = eight.map(|byte| if is_between(byte) { 0x80 } else { 0 });
                let known = byte.is_ascii_alphabetic() || byte == b'.' || is_between(byte);
                let expected = known.then(|| u64::from_le_bytes(bits));
                assert_eq!(between_letters(u64::from_le_bytes(eight)), expected, "{byte} at {at}");
            }
        }
    }

    #[test]
    fn numbers_and_words_with_digits_are_passed_where_nothing_can_come_of_them() {
        for (text, passed) in [
            ("word24543 7, ", 13),
            ("a 1234567, b", 11),
            ("a 12345678, ", 12),
            ("a 1234567890 b, ", 16),
            ("a 123456789012, ", 16),
            ("a 1234567890123, ", 2),
            ("a 1234567890 1", 2),
            ("2026-11-27, 3.14 is 192.168.1.1, ", 33),
            ("27.11.2026. It ", 15),
            ("2026-11-27 1", 0),
            ("030-123456, ", 0),
            ("1-a, ", 5),
            ("1+2 ", 0),
            ("gpt-4o, a1.b2-c3. It", 18),
            ("x-123456789, ", 0),
            ("a-b-c-d-e-f-g1, ", 16),
            ("a-b-c-d-e-f-gh1, ", 0),
            ("-a1, ", 0),
            ("a--1, ", 0),
            ("sha256-a, ", 0),
            ("a-de44, ", 0),
            ("a-1 (5", 0),
            ("a 7 b ", 6),
            ("a 7 8, ", 2),
            ("a 7 ", 2),
            ("a 7/(", 2),
            ("de44 ", 0),
            ("sha1 ", 0),
            ("v1.2, ", 6),
            ("a.1, ", 5),
            ("good a.b c1, ", 13),
            ("letters. c1, ", 13),
            ("it's o'c-d. 'a' ", 16),
            ("'a1', 'b': ", 11),
            ("o'DE89 ", 0),
            ("'123456789' ", 0),
            ("o'c@", 0),
        ] {
            assert_eq!(skim(text.as_bytes()), passed, "{text}");
        }
    }

    proptest::proptest! {
        /// Eight bytes at once, or one word after the other.
        #[test]
        fn skimming_goes_as_far_as_word_by_word(text in "([a-zA-Z,. ]{0,30}|[a-z]{15,25}|[0-9é_]{0,3}){0,6}") {
            let (bytes, mut at) = (text.as_bytes(), 0);
            while let len @ 1.. = word(&bytes[at..]) {
                at += len;
            }
            proptest::prop_assert_eq!(skim(bytes), at);
        }
    }
}
