//! When a word was sent, written into the word: the stand-in upstream and the readers are one process with one clock.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// In a word that is to be stamped; guards find nothing in small letters.
pub(crate) const BLANK: &str = "zzzzzzz";
const LETTERS: usize = BLANK.len();
const BASE: u64 = 26;
/// At the begin of a text and behind another word: what events are padded with is random, and may have any word.
const MARKS: [&[u8]; 2] = [b"content\":\"word", b" word"];
/// Of a mark and its stamp, so many bytes may wait for the last one.
pub(crate) const LONGEST: usize = MARKS[0].len() + LETTERS - 1;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time since the process began to measure.
pub(crate) fn now() -> Duration {
    START.elapsed()
}

/// A time in letters, to the microsecond; good for two hours.
pub(crate) fn letters(at: Duration) -> [u8; LETTERS] {
    let mut left = at.as_micros() as u64;
    let mut out = [b'a'; LETTERS];
    for letter in out.iter_mut().rev() {
        *letter += (left % BASE) as u8;
        left /= BASE;
    }
    out
}

/// The first whole stamped word of a text: where it ends, and when it was sent.
pub(crate) fn next(text: &[u8]) -> Option<(usize, Duration)> {
    let begin = |mark: &[u8]| Some(text.windows(mark.len()).position(|seen| seen == mark)? + mark.len());
    let at = MARKS.into_iter().filter_map(begin).min()?;
    let stamp = text.get(at..at + LETTERS)?;
    let micros = stamp.iter().fold(0, |sum, letter| sum * BASE + u64::from(letter.wrapping_sub(b'a')));
    Some((at + LETTERS, Duration::from_micros(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_says_when() {
        for micros in [0, 1, 25, 26, 8_031_810_175] {
            let at = Duration::from_micros(micros);
            let text = [b"{\"content\":\"word", &letters(at)[..], b" \"}"].concat();
            assert_eq!(next(&text), Some((text.len() - 3, at)));
            assert_eq!(next(&text[..text.len() - 4]), None, "the last letter is missing");
        }
    }
}
