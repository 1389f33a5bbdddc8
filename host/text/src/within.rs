//! How much of a long text is encoded. What an encoder holds of a text is some hundred times the text, so one that is far
//! too long for its model is refused before that: by its bytes, where they cannot fit ([`Measure`]), and else by the tokens
//! of its pieces, of which each is let go before the next.
//!
//! What may fit is encoded as a whole, for a cut changes the tokens beside it. Only what surely does not is refused.
//!
//! Read next: `blanks.rs`, for white space that is no token of its own.

use crate::blanks::without_blank_ends;
use crate::error::TextError;
use crate::measure::Measure;
use crate::veil::is_stand_in;

/// Encoded at once at most, of a text that may not fit.
const PIECE_BYTES: usize = 64 << 10;
/// A text with no more bytes than this for each token that is read is encoded as a whole: most that fit have no more.
const USUAL_BYTES: usize = 4;
/// The pieces of a text that fits never have so many times its tokens: a cut changes a few beside it, and a piece has
/// thousands.
const CUTS_COST: usize = 2;
/// Of each piece so many are not counted at all: unknown characters may be one token however many there are, and a cut makes
/// two of it.
const CUT_TOKENS: usize = 8;
/// A stand-in has four bytes, and what it stands for at least one.
const STAND_IN_EXCESS: usize = 3;

/// What becomes of the count of a text that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// It stops there.
    Stop,
    /// It goes on to the end, for somebody who leaves out what is too much.
    Count,
}

/// So many tokens of a text are wanted, for as long as somebody waits.
#[derive(Clone, Copy)]
pub struct Within<'a> {
    /// Tokens of the longest text that is of use.
    pub most_tokens: usize,
    /// What is to be known of a longer one.
    pub past: Past,
    /// Whether nobody waits any more; asked before each piece.
    pub gone: &'a dyn Fn() -> bool,
}

impl Within<'_> {
    /// All of a text, however long it is.
    pub const ALL: Within<'static> = Within { most_tokens: usize::MAX, past: Past::Stop, gone: &|| false };

    pub(crate) fn check_gone(&self) -> Result<(), TextError> {
        if (self.gone)() { Err(TextError::Gone) } else { Ok(()) }
    }

    /// Bytes that a text may have, where more surely do not fit.
    pub(crate) fn most_bytes(&self, measure: Measure) -> Option<usize> {
        let longest = measure.longest.filter(|_| self.past == Past::Stop)?;
        self.most_tokens.checked_mul(longest)
    }

    /// Refuses a text, perhaps veiled, that surely does not fit; `count` counts the tokens of a piece. Where marks swallow
    /// white space it has no long run of that beside them.
    pub(crate) fn check(
        &self,
        text: &str,
        measure: Measure,
        mut count: impl FnMut(&str) -> Result<usize, TextError>,
    ) -> Result<(), TextError> {
        self.check_gone()?;
        if text.len() <= PIECE_BYTES.max(self.most_tokens.saturating_mul(USUAL_BYTES)) {
            return Ok(());
        }
        if let (Some(most), Some(longest)) = (self.most_bytes(measure), measure.longest) {
            let bytes = written_bytes(text.as_bytes());
            if bytes > most {
                return Err(TextError::TooManyTokens { at_least: bytes.div_ceil(longest) });
            }
        }
        let mut counted = 0;
        for piece in pieces(text) {
            self.check_gone()?;
            let piece = if measure.swallows { without_blank_ends(piece) } else { piece };
            counted += count(piece)?.saturating_sub(CUT_TOKENS);
            if self.past == Past::Stop && counted / CUTS_COST > self.most_tokens {
                break;
            }
        }
        match self.past {
            _ if counted / CUTS_COST <= self.most_tokens => Ok(()),
            Past::Stop => Err(TextError::TooManyTokens { at_least: counted / CUTS_COST }),
            Past::Count => Err(TextError::TooManyTokens { at_least: counted }),
        }
    }
}

/// How long a veiled text is at least without its veil. No other character of text begins with this byte.
pub(crate) fn written_bytes(veiled: &[u8]) -> usize {
    veiled.len().saturating_sub(STAND_IN_EXCESS * veiled.iter().filter(|byte| **byte == 0xF4).count())
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    debug_assert!(['\u{100000}', '\u{10FFFD}'].iter().all(|c| is_stand_in(*c) && c.to_string().as_bytes()[0] == 0xF4));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blanks::LONG_BYTES;

    const LONG: usize = 1 << 20;

    /// What is said of a text of `LONG` bytes with a token for each `per_token`, and how many bytes were looked at.
    fn check(most_tokens: usize, past: Past, longest: Option<usize>, per_token: usize) -> (Option<usize>, usize) {
        let (text, mut looked) = ("x".repeat(LONG), 0);
        let within = Within { most_tokens, past, gone: &|| false };
        let checked = within.check(&text, Measure { longest, swallows: false }, |piece| {
            looked += piece.len();
            Ok(piece.len() / per_token)
        });
        match checked {
            Err(TextError::TooManyTokens { at_least }) => (Some(at_least), looked),
            checked => (checked.map(|()| None).expect("no other error"), looked),
        }
    }

    #[test]
    fn what_cannot_fit_is_refused_by_its_bytes_and_what_does_not_after_a_few_pieces() {
        assert_eq!(check(1000, Past::Stop, Some(16), 1), (Some(LONG / 16), 0));
        assert_eq!(check(1000, Past::Stop, None, 2), (Some((PIECE_BYTES / 2 - CUT_TOKENS) / 2), PIECE_BYTES));
        assert_eq!(check(40_000, Past::Stop, None, 2), (Some(3 * (PIECE_BYTES / 2 - CUT_TOKENS) / 2), 3 * PIECE_BYTES));
        assert_eq!(check(1000, Past::Stop, None, 1000).0, None, "it may fit");
        assert_eq!(check(LONG / 4, Past::Stop, None, 1), (None, 0), "of a usual length");
        assert_eq!(
            check(1000, Past::Count, Some(16), 2),
            (Some(LONG / 2 - 16 * CUT_TOKENS), LONG),
            "who shortens wants the count"
        );
    }

    #[test]
    fn nothing_is_encoded_for_who_has_gone() {
        let asked = std::cell::Cell::new(0);
        let gone = || asked.replace(asked.get() + 1) == 2;
        let within = Within { most_tokens: 1, past: Past::Count, gone: &gone };
        let mut looked = 0;
        let checked = within.check(&"x".repeat(LONG), Measure::default(), |piece| {
            looked += piece.len();
            Ok(1)
        });
        assert!(matches!(checked, Err(TextError::Gone)) && looked == PIECE_BYTES, "{looked}");
    }

    #[test]
    fn white_space_that_a_mark_beyond_a_cut_may_swallow_counts_for_nothing_and_more_of_it_does() {
        let within = Within { most_tokens: 100, past: Past::Stop, gone: &|| false };
        let half = PIECE_BYTES - LONG_BYTES;
        let cut = format!("{0}{1}{0}", ".".repeat(half), " ".repeat(2 * LONG_BYTES));
        let check = |text: &str, swallows| {
            let blanks = |piece: &str| Ok(piece.bytes().filter(|byte| *byte == b' ').count());
            within.check(text, Measure { longest: None, swallows }, blanks)
        };
        assert!(check(&cut, true).is_ok() && check(&cut, false).is_err());
        assert!(check(&" ".repeat(LONG), true).is_err());
    }

    #[test]
    fn a_veil_makes_no_text_longer_and_no_piece_splits_a_character() {
        assert_eq!(written_bytes("a\u{100000}b\u{10FFFD}é🌊".as_bytes()), "a.b.é🌊".len());
        let text = "é🌊世".repeat(20_000);
        assert!(pieces(&text).all(|piece| piece.len() > PIECE_BYTES - 4 || text.ends_with(piece)));
        assert_eq!(pieces(&text).collect::<String>(), text);
    }
}
