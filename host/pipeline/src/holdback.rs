//! What of a stream may leave: the pure half of a stream guard, one for each (guard, choice, channel).
//!
//! Text comes in by [`Holdback::push`], goes to the guard as a [`WindowText`], and leaves by
//! [`Holdback::apply`] up to the guard's watermark. Invariants, each a property test: windows tile the text
//! exactly; nothing past the watermark leaves (but for the cap of an open stage); no character is split; a token's
//! log-probability leaves with the end of its text, and only where the client reads that text as the token has it, byte
//! for byte. Events that came together are judged together, and what leaves of them says where each ended.
//! Read next: `holdback/marks.rs` for the log-probabilities, `holdback/cuts.rs` for what is redacted.

mod cuts;
mod marks;

use cuts::{Cut, Walk, redacted};
use marks::Marks;
use tidegate_sandbox::Prefilter;
use tidegate_sandbox::stage::{Inspection, Redaction, WindowAction};
use tidegate_types::TextLogprob;

/// Bytes of released text that a guard sees again as context, at most.
pub const LOOK_BEHIND_BYTES: usize = 256;

/// Bytes that nobody needs any more before they are taken out, where there are twice as many as of those that stay: what is
/// moved then is little, and the text stays within a line or two of the cache where a guard looks at none.
const STALE_BYTES: usize = 64;

/// What happens when a guard withholds more than the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtCap {
    /// The answer ends: the stage fails closed.
    Halt,
    /// The oldest text leaves unjudged, and is counted: the stage fails open.
    Release,
}

/// Text for the guard: look-behind of `settled` bytes, then all that waits.
#[derive(Debug, PartialEq, Eq)]
pub struct WindowText<'a> {
    /// Look-behind and pending text.
    pub text: &'a str,
    /// Bytes of look-behind.
    pub settled: u32,
}

/// Text that may go to the client.
#[derive(Debug, Default, PartialEq)]
pub struct Released {
    /// May be empty.
    pub text: String,
    /// Of the tokens that end in `text`, each with where its text ends in all that has left.
    pub logprobs: Vec<TextLogprob>,
    /// Bytes that left without a verdict because of the cap.
    pub unjudged_bytes: usize,
    /// Bytes that the guard withholds, where they are more than its cap and the stage is closed: the answer ends.
    pub over_cap: Option<usize>,
    /// Between the events that `text` is of, where several came together. One that was redacted is not there.
    pub borders: Vec<Border>,
}

impl Released {
    /// Whether the guard kept back more than it may.
    pub(crate) fn is_at_cap(&self) -> bool {
        self.unjudged_bytes > 0 || self.over_cap.is_some()
    }
}

/// Where an event ends and the next begins, in what leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Border {
    /// Bytes of text before it.
    pub text: usize,
    /// Log-probabilities before it.
    pub logprobs: usize,
}

/// The guard's answer cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldbackError {
    /// A span or the watermark is out of the window, inside a character, out of order, or past the watermark.
    #[error("{0}")]
    BadInspection(&'static str),
}

/// Text of one channel between generation and client.
#[derive(Debug)]
pub struct Holdback {
    /// What has left, look-behind last, and what waits: a window is a part of it.
    text: String,
    /// Bytes of look-behind, its last character aside.
    look_behind: usize,
    /// Where in `text` the look-behind begins.
    seen_from: usize,
    /// Where in `text` begins what waits.
    pending_from: usize,
    /// Tokens of what waits.
    marks: Marks,
    /// Tokens come with the text.
    has_tokens: bool,
    /// Bytes of text that came.
    came: u64,
    /// Bytes of text that have left.
    left: u64,
    /// Where in what waits, and behind how many tokens, events end that others came together with.
    borders: Vec<(usize, usize)>,
    carry: Vec<u8>,
    seq: u32,
}

impl Default for Holdback {
    fn default() -> Self {
        Self::with_look_behind(None)
    }
}

impl Holdback {
    /// For a guard that sees at most so many bytes of what has left again, and its last character; without a number, and at
    /// most, 256.
    pub fn with_look_behind(bytes: Option<u32>) -> Self {
        Self {
            text: String::new(),
            look_behind: bytes.map_or(LOOK_BEHIND_BYTES, |bytes| LOOK_BEHIND_BYTES.min(bytes as usize)),
            seen_from: 0,
            pending_from: 0,
            marks: Marks::default(),
            has_tokens: false,
            came: 0,
            left: 0,
            borders: Vec::new(),
            carry: Vec::new(),
            seq: 0,
        }
    }

    /// Adds generated text.
    pub fn push(&mut self, text: &str, logprobs: Vec<TextLogprob>) {
        self.text.push_str(text);
        self.came += text.len() as u64;
        self.has_tokens |= !logprobs.is_empty();
        for logprob in logprobs {
            self.marks.add(logprob, &self.text, self.pending_from, self.came);
        }
    }

    /// Adds text that came together with what was added last, as an event of its own.
    pub fn push_next(&mut self, text: &str, logprobs: Vec<TextLogprob>) {
        self.borders.push((self.pending_bytes(), self.marks.len()));
        self.push(text, logprobs);
    }

    /// Has `text` wait in the place of what waits.
    pub fn replace(&mut self, text: &str) {
        self.text.truncate(self.pending_from);
        self.text.push_str(text);
        self.marks = Marks::default();
        self.borders.clear();
    }

    /// Notes text that the guard has not seen and that left before what waits, as its look-behind.
    pub fn comes_behind(&mut self, text: &str) {
        self.text.insert_str(self.pending_from, text);
        self.came += text.len() as u64;
        self.settle(text.len());
    }

    /// The text that waits.
    pub fn pending(&self) -> &str {
        &self.text[self.pending_from..]
    }

    /// Whether text waits.
    pub fn is_empty(&self) -> bool {
        self.pending_bytes() == 0
    }

    /// Bytes that wait.
    pub fn pending_bytes(&self) -> usize {
        self.text.len() - self.pending_from
    }

    /// What the guard shall see.
    pub fn window(&self) -> WindowText<'_> {
        WindowText { text: &self.text[self.seen_from..], settled: self.settled() as u32 }
    }

    /// What the guard sees again of what has left.
    pub fn look_behind(&self) -> &str {
        &self.text[self.seen_from..self.pending_from]
    }

    fn settled(&self) -> usize {
        self.pending_from - self.seen_from
    }

    /// The guard's memory of this channel.
    pub fn carry(&self) -> &[u8] {
        &self.carry
    }

    /// Number of the next window.
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// What the guard has declared that it says of this window, while it remembers nothing; `None` where it has to be asked. So
    /// it has where more than `cap` would wait: it may let that go.
    pub fn prefiltered(&self, prefilter: &Prefilter, cap: usize) -> Option<Inspection> {
        let through = prefilter.through(self.pending())?;
        let may_wait = self.carry.is_empty() && self.pending_bytes() - through <= cap;
        may_wait.then(|| Inspection::pass(self.settled() + through))
    }

    /// Follows an inspection of the window that [`Self::window`] gave. `last` says that no text follows: then
    /// all of it must be judged.
    pub fn apply(
        &mut self,
        inspection: Inspection,
        last: bool,
        cap: usize,
        at_cap: AtCap,
    ) -> Result<Released, HoldbackError> {
        let through = self.watermark(inspection.safe_through)?;
        let redactions = match inspection.action {
            WindowAction::Pass => Vec::new(),
            WindowAction::Redact(redactions) => self.to_pending(redactions, through)?,
            WindowAction::Halt { .. } => return Err(HoldbackError::BadInspection("a halt releases nothing")),
        };
        let withheld = self.pending_bytes() - through;
        let allowed = if last { 0 } else { cap };
        let (mut forced, mut over_cap) = (through, None);
        if withheld > allowed {
            match at_cap {
                AtCap::Halt => over_cap = Some(withheld),
                AtCap::Release => forced = self.pending().ceil_char_boundary(self.pending_bytes() - allowed),
            }
        }
        self.carry = inspection.carry;
        self.seq += 1;
        Ok(Released { over_cap, ..self.release(forced, &redactions, forced - through) })
    }

    /// Lets everything go unjudged: the guard failed and its stage is open. That was a window, too.
    pub fn release_unjudged(&mut self) -> Released {
        let all = self.pending_bytes();
        self.seq += 1;
        self.release(all, &[], all)
    }

    fn watermark(&self, safe_through: u32) -> Result<usize, HoldbackError> {
        let through = (safe_through as usize)
            .checked_sub(self.settled())
            .ok_or(HoldbackError::BadInspection("`safe-through` lies before `settled`"))?;
        if !self.pending().is_char_boundary(through) {
            return Err(HoldbackError::BadInspection("`safe-through` is past the window or inside a character"));
        }
        Ok(through)
    }

    /// Window spans to spans of what waits, checked.
    fn to_pending(&self, redactions: Vec<Redaction>, through: usize) -> Result<Vec<Cut>, HoldbackError> {
        let mut cuts = Vec::with_capacity(redactions.len());
        let mut previous_end = 0;
        for redaction in redactions {
            let start = (redaction.span.start as usize).checked_sub(self.settled());
            let end = (redaction.span.end as usize).checked_sub(self.settled());
            let (Some(start), Some(end)) = (start, end) else {
                return Err(HoldbackError::BadInspection("a redaction starts before `settled`"));
            };
            if start < previous_end || end < start || end > through {
                return Err(HoldbackError::BadInspection("redactions overlap or pass `safe-through`"));
            }
            if !self.pending().is_char_boundary(start) || !self.pending().is_char_boundary(end) {
                return Err(HoldbackError::BadInspection("a redaction cuts a character"));
            }
            previous_end = end;
            cuts.push(Cut { start, end, text: redaction.text });
        }
        Ok(cuts)
    }

    fn release(&mut self, through: usize, cuts: &[Cut], unjudged_bytes: usize) -> Released {
        let mut text = self.pending()[..through].to_owned();
        if !cuts.is_empty() {
            text = redacted(&text, cuts);
            self.text.replace_range(self.pending_from..self.pending_from + through, &text);
        }
        let mut borders = self.release_borders(through, cuts);
        let logprobs = self.marks.release(through, cuts, self.left, &mut borders);
        self.settle(text.len());
        if unjudged_bytes > 0 {
            // What the guard has not judged is nothing that it knows: a word may have begun there. Nor does what it remembers of
            // the text before it go on behind it.
            self.seen_from = self.pending_from;
            self.carry.clear();
        }
        let borders = borders.into_iter().map(|(_, border)| border).collect();
        Released { text, logprobs, unjudged_bytes, over_cap: None, borders }
    }

    /// The borders in what leaves, each behind how many tokens it was. Those in what stays are forgotten: it leaves with
    /// the event that comes next, so that never more events leave than came.
    fn release_borders(&mut self, through: usize, cuts: &[Cut]) -> Vec<(usize, Border)> {
        let within = self.borders.drain(..).filter(|(at, _)| (1..through).contains(at));
        let mut walk = Walk::of(cuts);
        within.filter_map(|(at, marks)| Some((marks, Border { text: walk.moved(at)?, logprobs: 0 }))).collect()
    }

    /// The first bytes of what waited have left.
    fn settle(&mut self, bytes: usize) {
        self.left += bytes as u64;
        self.pending_from += bytes;
        let oldest = self.text.ceil_char_boundary(self.pending_from.saturating_sub(self.look_behind));
        let last = self.text.floor_char_boundary(self.pending_from.saturating_sub(1));
        self.seen_from = oldest.min(last).max(self.seen_from);
        self.forget_stale();
    }

    /// A token is compared with all of its text, of which more may have left than the guard sees again.
    fn forget_stale(&mut self) {
        let kept = if self.has_tokens { LOOK_BEHIND_BYTES } else { self.look_behind };
        let stale = self.text.floor_char_boundary(self.seen_from.min(self.pending_from.saturating_sub(kept)));
        if stale >= STALE_BYTES.max(2 * kept) {
            self.text.drain(..stale);
            self.pending_from -= stale;
            self.seen_from -= stale;
        }
    }
}
