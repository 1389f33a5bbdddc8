//! Regular expressions for streams: at each place all ways through the expression are followed at once, character
//! by character, so that time is bounded by text times expression, and at the end of a window it is plain whether
//! a way is still open. The longest match counts.
//!
//! A crate would do all but the last; it would also be larger than the rest of this plugin together. The notation
//! is the usual one, without groups to refer to, look-around, anchors and lazy repetition: those are refused by name.
//! Invariant: no match is longer than `max_bytes`, whatever the text; repetition without an end stops there.

mod parse;
mod program;

use parse::Class;
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
    /// What a match begins with any number of.
    run: Option<Class>,
    /// The length of the rest from which on a match may begin again; longer ones are known to begin none.
    resumes_at: Cell<usize>,
}

impl Pattern {
    /// Reads an expression whose matches have at most `max_bytes`.
    ///
    /// # Errors
    /// What is wrong or not supported, and where; an expression that matches the empty text, or only text that is
    /// longer than `max_bytes`.
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
        let ways = RefCell::new((program.ways(), program.ways()));
        let run = tree.leading_run().cloned();
        Ok(Self { program, max_bytes, ways, run, resumes_at: Cell::new(usize::MAX) })
    }

    /// A text is looked at from here on: see [`tidegate_plugin_sdk::scan::Scanner::begin`].
    pub fn begin(&self) {
        self.resumes_at.set(usize::MAX);
    }

    /// Whether a match may begin with a character.
    pub fn may_begin(&self, c: char) -> bool {
        self.program.may_begin(c)
    }

    /// The longest match at a place.
    pub fn step(&self, at: Place<'_>, rule: usize) -> Step {
        if at.rest.len() > self.resumes_at.get() || !at.rest.starts_with(|c| self.may_begin(c)) {
            return Step::No;
        }
        let step = self.look(at, rule);
        if step == Step::No && self.run.is_some() {
            self.resumes_at.set(at.rest.len() - self.barren(at));
        }
        step
    }

    /// Bytes at a place, where no match begins, within which none does. A match that begins further on in a run of what the
    /// expression repeats first would, with the run before it, be one of this place, but for its length: so it is looked as far
    /// as any of them may end. Without this a long run would be gone through at each of its places.
    fn barren(&self, at: Place<'_>) -> usize {
        let is_of_run = |c: &char| self.run.as_ref().is_some_and(|class| self.program.takes(class, *c));
        let run: usize = at.rest.chars().take_while(is_of_run).take(self.max_bytes).map(char::len_utf8).sum();
        if at.rest.chars().next().is_none_or(|first| run <= first.len_utf8()) {
            return 0;
        }
        match self.first_end(at, 2 * self.max_bytes) {
            End::At(end) => run.min(end.saturating_sub(self.max_bytes)),
            End::None => run.min(self.max_bytes),
        }
    }

    /// The end of the shortest match at a place that has at most `most` bytes.
    fn first_end(&self, at: Place<'_>, most: usize) -> End {
        let mut ways = self.ways.borrow_mut();
        let (now, next) = &mut *ways;
        now.clear();
        self.program.start(now);
        let (mut before, mut len) = (at.before, 0);
        loop {
            let here = at.rest[len..].chars().next();
            if here.is_none() && !at.is_last {
                // It ends here or further on.
                return End::At(len);
            }
            if self.program.settle(now, before, here) && len > 0 {
                return End::At(len);
            }
            let Some(c) = here.filter(|c| !now.is_empty() && len + c.len_utf8() <= most) else { return End::None };
            self.program.advance(now, next, c);
            std::mem::swap(now, next);
            (before, len) = (here, len + c.len_utf8());
        }
    }

    fn look(&self, at: Place<'_>, rule: usize) -> Step {
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

/// Where a match ends, at the earliest.
enum End {
    At(usize),
    None,
}

fn found(len: Option<usize>, rule: usize) -> Step {
    len.map_or(Step::No, |len| Step::Match { len, rule })
}

#[cfg(test)]
mod tests;
