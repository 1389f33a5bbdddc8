//! Streaming-safe scanning: find things in text that arrives in pieces, with an answer that never hangs on
//! where the pieces end.
//!
//! A [`Scanner`] looks at one place and says: nothing starts here, something starts here and is this long, or
//! "cannot tell before more text comes". [`scan`] walks the text with it, leftmost match first, and stops at
//! the first place that cannot be told: everything before it is settled, the rest waits. So the result is a
//! function of the text alone, provided the scanner answers [`Step::More`] whenever further text could change
//! its answer; [`crate::testing`] checks that for a guard as a whole.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A place in a text, as a scanner sees it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The text from this place on; never empty.
    pub rest: &'a str,
    /// The character before this place, as it was before it was redacted; `None` at the very start, behind
    /// [`Step::Skip`] and behind what left unjudged.
    pub before: Option<char>,
    /// The rule whose match is open here: see [`Step::Open`].
    pub open: Option<usize>,
    /// Nothing follows `rest`: [`Step::More`] is not an answer now.
    pub is_last: bool,
}

/// What a scanner finds at a place. Lengths are bytes and end on character borders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing starts here, whatever follows. Where a match is open: it ended before this place.
    No,
    /// These bytes, at least one, belong to no match, and what follows them begins anew.
    Skip(usize),
    /// A match, whatever follows.
    Match {
        /// Bytes, at least one.
        len: usize,
        /// Which of the scanner's rules.
        rule: usize,
    },
    /// A match, at least this long, whose end is not in sight. It is reported at once; the scanner is asked
    /// again behind it, with [`Place::open`] set. So a match may be longer than what a stream may hold back.
    Open {
        /// Bytes, at least one.
        len: usize,
        /// Which of the scanner's rules.
        rule: usize,
    },
    /// It depends on what follows.
    More,
}

/// Finds what starts at a place.
pub trait Scanner {
    /// Looks at one place.
    fn step(&self, at: Place<'_>) -> Step;

    /// A scan is over: of what the scanner remembers of places, nothing holds any more. Within a scan places come in order,
    /// and each is known by the length of its rest.
    fn end(&self) {}

    /// Bytes at a place, where no match is open, within which none starts, whatever follows: as many times [`Step::No`], but
    /// cheaper. A hint, after which `step` looks at what is behind them.
    fn idle(&self, _: Place<'_>) -> usize {
        0
    }
}

/// What must be remembered between pieces of a text: a few bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    before: Before,
    open: Option<u16>,
}

/// What stands before the place where a scan goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Before {
    /// What the text has there: of a stream, its look-behind.
    #[default]
    AsRead,
    /// Nothing: the scan begins anew.
    Nothing,
    /// This, of a match: the client may read something else.
    Matched(char),
}

/// A match, or the next piece of an open one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Bytes of the text that was scanned.
    pub range: Range<usize>,
    /// Which of the scanner's rules.
    pub rule: usize,
    /// It continues the hit before: the same match.
    pub continues: bool,
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Matches, in order and apart, all before `safe`.
    pub hits: Vec<Hit>,
    /// Everything before this byte is settled.
    pub safe: usize,
}

/// Scans `text` from byte `from`, and moves `resume` to the place where it stopped. `is_last` says that no text
/// follows, so that nothing is left waiting. Of a stream, `text` is the whole window and `from` where pending text begins:
/// what stands before `from` is looked at too, as what the client has read last.
pub fn scan(scanner: &impl Scanner, resume: &mut Resume, text: &str, from: usize, is_last: bool) -> Scanned {
    let mut hits = Vec::new();
    let mut at = from;
    while let Some(place) = resume.place(scanner, text, &mut at, is_last) {
        let open = place.open;
        let step = scanner.step(place);
        resume.open = None;
        let behind = |len: usize| text.ceil_char_boundary(at + len.max(1));
        (at, resume.before) = match step {
            Step::More if !is_last => {
                resume.open = open.and_then(|rule| u16::try_from(rule).ok());
                break;
            }
            Step::No | Step::More if open.is_some() => continue,
            Step::No | Step::More => (behind(1), Before::AsRead),
            Step::Skip(len) => (behind(len), Before::Nothing),
            Step::Match { len, rule } | Step::Open { len, rule } => {
                hits.push(Hit { range: at..behind(len), rule, continues: open.is_some() });
                if matches!(step, Step::Open { .. }) {
                    resume.open = u16::try_from(rule).ok();
                }
                (behind(len), last_char(text.get(at..behind(len))).map_or(Before::Nothing, Before::Matched))
            }
        };
    }
    scanner.end();
    Scanned { hits, safe: at }
}

impl Resume {
    /// The next place at which something may start, to which `at` goes on; `None` where the text ends before it.
    fn place<'a>(&mut self, scanner: &impl Scanner, text: &'a str, at: &mut usize, is_last: bool) -> Option<Place<'a>> {
        let place = self.place_at(text, *at, is_last)?;
        let idle = if place.open.is_some() { 0 } else { scanner.idle(place) };
        if idle == 0 {
            return Some(place);
        }
        (*at, self.before) = (text.ceil_char_boundary(*at + idle), Before::AsRead);
        self.place_at(text, *at, is_last)
    }

    fn place_at<'a>(&self, text: &'a str, at: usize, is_last: bool) -> Option<Place<'a>> {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let before = match self.before {
            Before::AsRead => last_char(text.get(..at)),
            Before::Nothing => None,
            Before::Matched(last) => Some(last),
        };
        Some(Place { rest, before, open: self.open.map(usize::from), is_last })
    }
}

fn last_char(text: Option<&str>) -> Option<char> {
    text?.chars().next_back()
}

/// Everything that a scanner finds in a whole text.
pub fn find_all(scanner: &impl Scanner, text: &str) -> Vec<Hit> {
    scan(scanner, &mut Resume::default(), text, 0, true).hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Finds `ab` followed by any number of `c`, the first four at once and more as they come.
    struct Abc;
    impl Scanner for Abc {
        fn step(&self, at: Place<'_>) -> Step {
            let cs = |text: &str| text.bytes().take_while(|b| *b == b'c').count();
            if at.open.is_some() {
                let len = cs(at.rest);
                return if len == 0 { Step::No } else { Step::Open { len, rule: 0 } };
            }
            let Some(tail) = at.rest.strip_prefix("ab") else {
                return if "ab".starts_with(at.rest) { Step::More } else { Step::No };
            };
            match cs(tail) {
                4.. => Step::Open { len: 6, rule: 0 },
                n if n == tail.len() && !at.is_last => Step::More,
                n => Step::Match { len: 2 + n, rule: 0 },
            }
        }
    }

    /// The same, told where nothing starts; it never looks at such a place.
    struct Hurried;
    impl Scanner for Hurried {
        fn step(&self, at: Place<'_>) -> Step {
            assert!(at.open.is_some() || at.rest.starts_with('a'), "{at:?}");
            Abc.step(at)
        }

        fn idle(&self, at: Place<'_>) -> usize {
            at.rest.bytes().take_while(|byte| *byte != b'a').count()
        }
    }

    #[test]
    fn a_possible_match_waits_for_more_text() {
        let mut resume = Resume::default();
        assert_eq!(scan(&Abc, &mut resume, "xxa", 0, false), Scanned { hits: vec![], safe: 2 });
        assert_eq!(resume, Resume::default(), "the text has what is before");
        assert_eq!(scan(&Abc, &mut resume, "xxabc", 2, false), Scanned { hits: vec![], safe: 2 });
        let hit = Hit { range: 2..5, rule: 0, continues: false };
        assert_eq!(scan(&Abc, &mut resume, "xxabcé", 2, false), Scanned { hits: vec![hit], safe: 7 });
        assert_eq!(scan(&Abc, &mut resume, "xxabcéa", 7, true), Scanned { hits: vec![], safe: 8 });
    }

    /// What was matched may be redacted, so that the text has something else there.
    #[test]
    fn what_was_matched_is_remembered_until_more_was_read() {
        let mut resume = Resume::default();
        scan(&Abc, &mut resume, "abx", 0, false);
        assert_eq!(resume, Resume::default());
        scan(&Abc, &mut resume, "xabé", 1, false);
        assert_eq!(resume, Resume::default());
        scan(&Abc, &mut resume, "abcccc", 0, false);
        assert_eq!(resume, Resume { before: Before::Matched('c'), open: Some(0) });
    }

    #[test]
    fn an_open_match_goes_on_in_later_pieces() {
        let mut resume = Resume::default();
        let hit = |range, continues| Hit { range, rule: 0, continues };
        assert_eq!(scan(&Abc, &mut resume, "abcccc", 0, false).hits, [hit(0..6, false)]);
        assert_eq!(scan(&Abc, &mut resume, "ccx", 0, false), Scanned { hits: vec![hit(0..2, true)], safe: 3 });
        assert_eq!(scan(&Abc, &mut resume, "c", 0, false).hits, [], "it ended at the x");
    }

    /// Hits with the pieces of open ones joined.
    fn matches(hits: Vec<Hit>) -> Vec<Range<usize>> {
        let mut joined: Vec<Range<usize>> = Vec::new();
        for hit in hits {
            match joined.last_mut() {
                Some(last) if hit.continues => last.end = hit.range.end,
                _ => joined.push(hit.range),
            }
        }
        joined
    }

    proptest! {
        #[test]
        fn pieces_give_the_matches_of_the_whole(
            text in "[abcé]{0,40}",
            cuts in proptest::collection::vec(0usize..41, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| text.floor_char_boundary(c)).collect();
            cuts.sort_unstable();
            let whole = matches(find_all(&Abc, &text));
            prop_assert_eq!(&whole, &matches(in_pieces(&Abc, &text, &cuts)));
            prop_assert_eq!(&whole, &matches(in_pieces(&Hurried, &text, &cuts)));
        }
    }

    fn in_pieces(scanner: &impl Scanner, text: &str, cuts: &[usize]) -> Vec<Hit> {
        let (mut resume, mut safe, mut pieces) = (Resume::default(), 0, Vec::new());
        for cut in cuts {
            let scanned = scan(scanner, &mut resume, &text[..*cut], safe, false);
            safe = scanned.safe.max(safe);
            pieces.extend(scanned.hits);
        }
        pieces.extend(scan(scanner, &mut resume, text, safe, true).hits);
        pieces
    }
}
