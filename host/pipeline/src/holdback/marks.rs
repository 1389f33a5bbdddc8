//! Log-probabilities of text that waits for its guard.
//!
//! A token says words, and the guard judges the text alone. So a token is taken only where its source says where its
//! text ends, and that text is the token's bytes; it leaves only if no redaction touched that text. A special token, one
//! that a stop string cuts, or one of which nobody knows the text, stays behind.

use super::{Border, Cut, moved};
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

    fn is_touched(&self, cut: &Cut) -> bool {
        self.start < cut.end && cut.start < self.end
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
        for mark in self.marks.iter_mut().filter(|mark| cuts.iter().any(|cut| mark.is_touched(cut))) {
            mark.logprob = None;
        }
        let mut released = Vec::new();
        let mut borders = borders.iter_mut().peekable();
        let mut popped = 0;
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.end <= through) {
            while let Some((_, border)) = borders.next_if(|(marks, _)| *marks <= popped) {
                border.logprobs = released.len();
            }
            popped += 1;
            let end = moved(mark.end, cuts).map(|end| left + end as u64);
            released.extend(mark.logprob.map(|logprob| TextLogprob { end, ..logprob }));
        }
        borders.for_each(|(_, border)| border.logprobs = released.len());
        for mark in &mut self.marks {
            (mark.start, mark.end) = (mark.start.saturating_sub(through), mark.end.saturating_sub(through));
        }
        released
    }
}
