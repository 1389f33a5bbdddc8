//! Regular expressions for streams: at each place all ways through the expression are followed at once, character
//! by character, so that time is bounded by text times expression, and at the end of a window it is plain whether
//! a way is still open. The longest match counts.
//!
//! A crate would do all but the last; it would also be larger than the rest of this plugin together. The notation
//! is the usual one, without groups to refer to, look-around, anchors and lazy repetition: those are refused by name.
//! Invariant: no match is longer than `max_bytes`, whatever the text; repetition without an end stops there.

mod parse;
mod program;

use program::{Program, Ways};
use std::cell::RefCell;
use tidegate_plugin_sdk::scan::{Place, Step};

/// A regular expression.
#[derive(Debug)]
pub struct Pattern {
    program: Program,
    max_bytes: usize,
    /// Reused from place to place.
    ways: RefCell<(Ways, Ways)>,
}

impl Pattern {
    /// Reads an expression whose matches have at most `max_bytes`.
    ///
    /// # Errors
    /// What is wrong or not supported, and where; an expression that matches the empty text, or only text that is
    /// longer than `max_bytes`.
    pub fn new(text: &str, ignore_case: bool, max_bytes: usize) -> Result<Self, String> {
        let tree = parse::parse(text)?;
        let shortest = tree.min_chars();
        if shortest == 0 {
            return Err("it matches the empty text, which is everywhere".into());
        }
        if shortest > max_bytes {
            return Err(format!("its shortest match has {shortest} characters; `max_match_bytes` is {max_bytes}"));
        }
        let program = Program::compile(&tree, ignore_case)?;
        let ways = RefCell::new((program.ways(), program.ways()));
        Ok(Self { program, max_bytes, ways })
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
        let mut ways = self.ways.borrow_mut();
        let (now, next) = &mut *ways;
        now.clear();
        let mut before = at.before;
        let mut best = None;
        let mut chars = at.rest.char_indices().peekable();
        self.program.start(now);
        loop {
            let here = chars.peek().copied();
            let len = here.map_or(at.rest.len(), |(start, _)| start);
            if here.is_none() && !at.is_last {
                return match self.program.foresee(now, next) {
                    Some(true) => found(Some(len), rule),
                    Some(false) => found(best, rule),
                    None => Step::More,
                };
            }
            if self.program.settle(now, before, here.map(|(_, c)| c)) && len > 0 {
                best = Some(len);
            }
            let Some((start, c)) = chars.next() else { return found(best, rule) };
            if now.is_empty() || start + c.len_utf8() > self.max_bytes {
                return found(best, rule);
            }
            self.program.advance(now, next, c);
            std::mem::swap(now, next);
            before = Some(c);
            if now.is_empty() {
                return found(best, rule);
            }
        }
    }
}

fn found(len: Option<usize>, rule: usize) -> Step {
    len.map_or(Step::No, |len| Step::Match { len, rule })
}

#[cfg(test)]
mod tests;
