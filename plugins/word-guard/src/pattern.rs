//! Regular expressions for streams: at each place all ways through the expression are followed at once, character
//! by character, and at the end of a window it is plain whether a way is still open. The longest match counts. Where much was
//! walked for nothing the text is read backwards first ([`ahead`]), so that time is bounded by text times expression.
//!
//! A crate would do all but the last; it would also be larger than the rest of this plugin together. The notation
//! is the usual one, without groups to refer to, look-around, anchors and lazy repetition: those are refused by name.
//! Invariant: no match is longer than `max_bytes`, whatever the text; repetition without an end stops there.

mod ahead;
mod parse;
mod program;

use crate::words::Behind;
use ahead::Ahead;
use program::{Program, Ways};
use std::cell::{Cell, RefCell};
use tidegate_plugin_sdk::scan::{Place, Step};

/// A regular expression.
#[derive(Debug)]
pub struct Pattern {
    program: Program,
    max_bytes: usize,
    /// Reused from place to place.
    ways: RefCell<(Ways, Ways)>,
    /// What is known of the text to come, where it was looked at.
    ahead: RefCell<Ahead>,
    /// Bytes that were walked and belong to no match, since the text ahead was read.
    wasted: Cell<usize>,
}

impl Pattern {
    /// Reads an expression whose matches have at most `max_bytes`.
    ///
    /// # Errors
    /// What is wrong or not supported, and where; an expression that matches the empty text, only text that is longer than
    /// `max_bytes`, or, but for repetition without an end, any such text: it would be cut there.
    pub fn new(text: &str, ignore_case: bool, max_bytes: usize) -> Result<Self, String> {
        let tree = parse::parse(text)?;
        let shortest = tree.min_bytes(ignore_case);
        if shortest == 0 {
            return Err("it matches the empty text, which is everywhere".into());
        }
        if shortest > max_bytes {
            return Err(format!("its shortest match has {shortest} bytes; `max_match_bytes` is {max_bytes}"));
        }
        let program = Program::compile(&tree, ignore_case)?;
        if let Some(longest) = tree.max_bytes().filter(|longest| *longest > max_bytes) {
            return Err(format!(
                "its longest match has {longest} bytes; `max_match_bytes` is {max_bytes}: raise that, or leave the repetition open \
                 (`{{n,}}`), which ends there"
            ));
        }
        let ways = RefCell::new((program.ways(), program.ways()));
        Ok(Self { program, max_bytes, ways, ahead: RefCell::default(), wasted: Cell::new(0) })
    }

    /// A text was looked at: see [`tidegate_plugin_sdk::scan::Scanner::end`].
    pub fn end(&self) {
        self.ahead.borrow_mut().forget();
        self.wasted.set(0);
    }

    /// Whether a match may begin with a character.
    pub fn may_begin(&self, c: char) -> bool {
        self.program.may_begin(c)
    }

    /// The longest match at a place.
    pub fn step(&self, at: Place<'_>, rule: usize) -> Step {
        if !at.rest.starts_with(|c| self.may_begin(c)) {
            return Step::No;
        }
        let mut ahead = self.ahead.borrow_mut();
        let offset = ahead.offset(at);
        if offset.is_some_and(|offset| !ahead.may_begin(offset, self.max_bytes)) {
            return Step::No;
        }
        let (best, walked) = self.look(at, offset.map(|offset| (&*ahead, offset)));
        let Some(best) = best else { return Step::More };
        if offset.is_none() {
            let wasted = self.wasted.get() + walked - best.unwrap_or_default();
            self.wasted.set(wasted);
            if wasted > self.max_bytes {
                ahead.read(&self.program, at, self.max_bytes);
                self.wasted.set(0);
            }
        }
        best.map_or(Step::No, |len| Step::Match { len, rule })
    }

    /// The longest match at a place, and how far was looked for it; of the match `None` where it depends on what follows.
    fn look(&self, at: Place<'_>, ahead: Option<(&Ahead, usize)>) -> (Option<Option<usize>>, usize) {
        let mut ways = self.ways.borrow_mut();
        let (now, next) = &mut *ways;
        now.clear();
        let (mut behind, mut best, mut len) = (Behind::one(at.before), None, 0);
        self.program.start(now);
        loop {
            let here = at.rest[len..].chars().next();
            if here.is_none() && !at.is_last {
                let found = match self.program.foresee(now, next) {
                    Some(true) => Some(Some(len)),
                    Some(false) => Some(best),
                    None => None,
                };
                return (found, len);
            }
            // The letter of a line break is no word by itself, whatever the border behind it.
            let is_letter = behind.is_break && len == 1;
            if self.program.settle(now, behind.is_border(here)) && len > 0 && !is_letter {
                best = Some(len);
            }
            let goes_on =
                |(ahead, offset): (&Ahead, usize)| ahead.may_end(now.list(), offset + len, offset + self.max_bytes);
            let is_over = now.is_empty() || !ahead.is_none_or(goes_on);
            let Some(c) = here.filter(|c| !is_over && len + c.len_utf8() <= self.max_bytes) else {
                return (Some(best), len);
            };
            self.program.advance(now, next, c);
            std::mem::swap(now, next);
            (behind, len) = (behind.then(c), len + c.len_utf8());
            if now.is_empty() {
                return (Some(best), len);
            }
        }
    }
}

#[cfg(test)]
mod tests;
