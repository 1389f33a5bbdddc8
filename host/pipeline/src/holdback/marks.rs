//! Log-probabilities of text that waits for its guard.
//!
//! A token says words, and the guard judges the text alone. So a token is taken only where its source says where its
//! text ends, and that text is the token's bytes; it leaves only if no redaction touched that text. A special token, one
//! that a stop string cuts, or one of which nobody knows the text, stays behind.

use super::Border;
use super::cuts::{Cut, Walk};
use std::collections::VecDeque;
use tidegate_types::TextLogprob;

/// Tokens of text that waits.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marks: VecDeque<Mark>,
}

/// Where in what waits a token's text is; what has left of it counts no more.
#[derive(Debug)]
struct Mark {
    start: usize,
    end: usize,
    /// `None` once a part of its text was redacted.
    logprob: Option<TextLogprob>,
}

impl Mark {
    /// That of a token of `text`, of which `pending_from` bytes have left, as they left: what was redacted is no longer the
    /// token's. `came` is where the text ends, by the count of the token's source.
    fn new(mut logprob: TextLogprob, text: &str, pending_from: usize, came: u64) -> Option<Self> {
        let behind = usize::try_from(came.checked_sub(logprob.end?)?).ok()?;
        let end = text.len().checked_sub(behind)?;
        let start = end.checked_sub(logprob.chosen.bytes.len())?;
        let is_its_text = start < end && text.as_bytes().get(start..end) == Some(&logprob.chosen.bytes);
        if !is_its_text || end <= pending_from {
            return None;
        }
        logprob.name_by_bytes();
        let (start, end) = (start.saturating_sub(pending_from), end - pending_from);
        Some(Self { start, end, logprob: Some(logprob) })
    }
}

impl Marks {
    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// Takes a token of the `text` if it stands for a part of it that has not left (see [`Mark::new`]), behind those before.
    pub(super) fn add(&mut self, logprob: TextLogprob, text: &str, pending_from: usize, came: u64) {
        let last = self.marks.back().map_or(0, |last| last.end);
        self.marks.extend(Mark::new(logprob, text, pending_from, came).filter(|mark| last <= mark.end));
    }

    /// The tokens that end in the first `through` bytes, which leave with these cuts behind `left` bytes. Says of each
    /// border, given with how many tokens were before it, how many of those that leave are.
    pub(super) fn release(
        &mut self,
        through: usize,
        cuts: &[Cut],
        left: u64,
        borders: &mut [(usize, Border)],
    ) -> Vec<TextLogprob> {
        if self.marks.is_empty() {
            return Vec::new();
        }
        let (mut walk, mut released) = (Walk::of(cuts), Vec::new());
        let mut borders = borders.iter_mut().peekable();
        let mut popped = 0;
        while let Some(Mark { start, end, logprob }) = self.marks.pop_front_if(|mark| mark.end <= through) {
            while let Some((_, border)) = borders.next_if(|(marks, _)| *marks <= popped) {
                border.logprobs = released.len();
            }
            popped += 1;
            if !walk.is_cut(start, end) {
                let end = walk.moved(end).map(|end| left + end as u64);
                released.extend(logprob.map(|logprob| TextLogprob { end, ..logprob }));
            }
        }
        borders.for_each(|(_, border)| border.logprobs = released.len());
        for mark in &mut self.marks {
            if walk.is_cut(mark.start, mark.end) {
                mark.logprob = None;
            }
            (mark.start, mark.end) = (mark.start.saturating_sub(through), mark.end.saturating_sub(through));
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::super::cuts::tests::{cuts, is_cut, moved};
    use super::*;
    use proptest::prelude::*;
    use tidegate_types::TopLogprob;

    /// Of tokens by where each begins and ends; each is called by its number.
    fn marks(mut places: Vec<(usize, usize)>) -> Marks {
        places.sort_by_key(|(_, end)| *end);
        let mark = |(number, (start, end)): (usize, (usize, usize))| {
            let chosen = TopLogprob { token: String::new(), logprob: number as f32, bytes: Vec::new() };
            Mark { start, end, logprob: Some(TextLogprob { chosen, top: Vec::new(), end: None }) }
        };
        Marks { marks: places.into_iter().enumerate().map(mark).collect() }
    }

    /// What is said of a token that leaves, or stays: its number, and where it begins and ends.
    type Said = (Option<f32>, usize, u64);

    fn number(logprob: Option<&TextLogprob>) -> Option<f32> {
        logprob.map(|logprob| logprob.chosen.logprob)
    }

    /// As [`Marks::release`], with each token held against each cut: what leaves, and what stays.
    fn compared(marks: &Marks, through: usize, cuts: &[Cut], left: u64) -> (Vec<Said>, Vec<Said>) {
        let (mut gone, mut stays) = (Vec::new(), Vec::new());
        for Mark { start, end, logprob } in &marks.marks {
            let is_cut = is_cut(*start, *end, cuts);
            let number = number(logprob.as_ref()).filter(|_| !is_cut);
            match end.checked_sub(through).filter(|rest| *rest > 0) {
                Some(rest) => stays.push((number, start.saturating_sub(through), rest as u64)),
                None if is_cut => {}
                None => gone.push((number, 0, left + moved(*end, cuts).unwrap() as u64)),
            }
        }
        (gone, stays)
    }

    proptest! {
        #[test]
        fn tokens_leave_as_if_each_was_held_against_each_cut(
            places in prop::collection::vec((0_usize..50, 1_usize..9), 0..30),
            cuts in cuts(),
            more in 0_usize..20,
            left in 0_u64..9,
        ) {
            let mut marks = marks(places.into_iter().map(|(start, bytes)| (start, start + bytes)).collect());
            let through = cuts.last().map_or(0, |cut| cut.end) + more;
            let (gone, stays) = compared(&marks, through, &cuts, left);
            let released = marks.release(through, &cuts, left, &mut []);
            let released: Vec<Said> =
                released.iter().map(|logprob| (number(Some(logprob)), 0, logprob.end.unwrap())).collect();
            prop_assert_eq!(released, gone);
            let waiting = marks.marks.iter();
            let waiting: Vec<Said> =
                waiting.map(|mark| (number(mark.logprob.as_ref()), mark.start, mark.end as u64)).collect();
            prop_assert_eq!(waiting, stays);
        }
    }
}
