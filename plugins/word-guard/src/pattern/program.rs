//! An expression as a program for a machine that is in many states at once (Thompson's construction).

use super::parse::{Class, Kind, Tree};
use crate::words::is_word;

/// Instructions of one pattern; repetition in braces is written out.
const MAX_INSTRUCTIONS: usize = 4096;

#[derive(Debug)]
pub(super) enum Instruction {
    /// Takes a character of the class, then goes to the next instruction.
    Take(Class),
    /// Goes on only at a border of a word.
    Border,
    Jump(usize),
    Split(usize, usize),
    Match,
}

#[derive(Debug)]
pub(super) struct Program {
    instructions: Vec<Instruction>,
    ignore_case: bool,
    /// Which ASCII characters a match may begin with, and at the end whether any other one may.
    firsts: [bool; 129],
}

/// Instructions that the machine is at, each once.
#[derive(Debug)]
pub(super) struct Ways {
    list: Vec<usize>,
    is_in: Vec<bool>,
}

impl Ways {
    pub(super) fn clear(&mut self) {
        for at in self.list.drain(..) {
            self.is_in[at] = false;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn list(&self) -> &[usize] {
        &self.list
    }

    fn add(&mut self, at: usize) {
        if !self.is_in[at] {
            self.is_in[at] = true;
            self.list.push(at);
        }
    }
}

impl Program {
    pub(super) fn compile(tree: &Tree, ignore_case: bool) -> Result<Self, String> {
        let mut program = Self { instructions: Vec::new(), ignore_case, firsts: [true; 129] };
        program.emit(tree)?;
        program.instructions.push(Instruction::Match);
        program.firsts = program.find_firsts();
        Ok(program)
    }

    /// Whether a match may begin with a character; most text is passed by on this.
    pub(super) fn may_begin(&self, c: char) -> bool {
        self.firsts[(c as usize).min(128)]
    }

    /// As if every place were a border.
    fn find_firsts(&self) -> [bool; 129] {
        let mut ways = self.ways();
        ways.add(0);
        self.settle(&mut ways, true);
        let classes = || ways.list.iter().filter_map(|at| self.class(*at));
        std::array::from_fn(|code| match u8::try_from(code) {
            Ok(code @ ..128) => classes().any(|class| class.has(char::from(code), self.ignore_case)),
            _ => classes().any(Class::has_others),
        })
    }

    fn class(&self, at: usize) -> Option<&Class> {
        match &self.instructions[at] {
            Instruction::Take(class) => Some(class),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Fills in, for each instruction at the place `here` between two characters, where the nearest match ends. `behind`: the same
    /// behind the character `after`. A repetition leads back, so it is gone over until nothing changes.
    pub(super) fn ends(&self, here: u16, is_border: bool, after: Option<char>, behind: &[u16], ends: &mut [u16]) {
        #[cfg(test)]
        super::tests::STEPS.set(super::tests::STEPS.get() + 1);
        for (at, end) in ends.iter_mut().enumerate() {
            *end = match (&self.instructions[at], after) {
                (Instruction::Match, _) => here,
                (Instruction::Take(class), Some(c)) if class.has(c, self.ignore_case) => behind[at + 1],
                _ => u16::MAX,
            };
        }
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for at in (0..ends.len()).rev() {
                let end = match self.instructions[at] {
                    Instruction::Jump(to) => ends[to],
                    Instruction::Border if is_border => ends[at + 1],
                    Instruction::Split(one, other) => ends[one].min(ends[other]),
                    _ => continue,
                };
                has_changed |= end != ends[at];
                ends[at] = end;
            }
        }
    }

    pub(super) fn ways(&self) -> Ways {
        Ways { list: Vec::with_capacity(self.instructions.len()), is_in: vec![false; self.instructions.len()] }
    }

    pub(super) fn start(&self, ways: &mut Ways) {
        ways.add(0);
    }

    /// At the end of what is known: whether a match ends here, if that does not hang on the next character and no
    /// longer match can follow.
    pub(super) fn foresee(&self, now: &Ways, scratch: &mut Ways) -> Option<bool> {
        let mut with = |is_border: bool| {
            scratch.clear();
            now.list.iter().for_each(|at| scratch.add(*at));
            let matched = self.settle(scratch, is_border);
            scratch.is_empty().then_some(matched)
        };
        let (at_border, inside) = (with(true)?, with(false)?);
        (at_border == inside).then_some(inside)
    }

    /// Follows what takes no character, at a place that is a border of a word or none; only instructions that take one stay.
    /// Returns whether a match ends here.
    pub(super) fn settle(&self, ways: &mut Ways, is_border: bool) -> bool {
        let mut matched = false;
        let mut idx = 0;
        while let Some(at) = ways.list.get(idx).copied() {
            idx += 1;
            match self.instructions[at] {
                Instruction::Take(_) => {}
                Instruction::Match => matched = true,
                Instruction::Jump(to) => ways.add(to),
                Instruction::Border if is_border => ways.add(at + 1),
                Instruction::Border => {}
                Instruction::Split(one, other) => {
                    ways.add(one);
                    ways.add(other);
                }
            }
        }
        let takes = |at: &usize| self.class(*at).is_some();
        for at in ways.list.iter().filter(|at| !takes(at)) {
            ways.is_in[*at] = false;
        }
        ways.list.retain(takes);
        matched
    }

    /// From `now` over a character to `next`.
    pub(super) fn advance(&self, now: &Ways, next: &mut Ways, c: char) {
        #[cfg(test)]
        super::tests::STEPS.set(super::tests::STEPS.get() + 1);
        next.clear();
        for at in &now.list {
            if self.class(*at).is_some_and(|class| class.has(c, self.ignore_case)) {
                next.add(at + 1);
            }
        }
    }

    fn emit(&mut self, tree: &Tree) -> Result<(), String> {
        if self.instructions.len() > MAX_INSTRUCTIONS {
            return Err("it is too large; use fewer or smaller repetitions in braces".into());
        }
        match tree {
            Tree::Empty => {}
            Tree::One(class) => self.instructions.push(Instruction::Take(class.clone())),
            Tree::Border => self.instructions.push(Instruction::Border),
            Tree::Sequence(trees) => trees.iter().try_for_each(|tree| self.emit(tree))?,
            Tree::Either(trees) => self.emit_either(trees)?,
            Tree::Repeat { tree, min, max } => self.emit_repeat(tree, *min, *max)?,
        }
        Ok(())
    }

    fn emit_either(&mut self, trees: &[Tree]) -> Result<(), String> {
        let Some((last, others)) = trees.split_last() else { return Ok(()) };
        let mut ends = Vec::new();
        for tree in others {
            let split = self.reserve();
            self.emit(tree)?;
            ends.push(self.reserve());
            self.instructions[split] = Instruction::Split(split + 1, self.instructions.len());
        }
        self.emit(last)?;
        for end in ends {
            self.instructions[end] = Instruction::Jump(self.instructions.len());
        }
        Ok(())
    }

    fn emit_repeat(&mut self, tree: &Tree, min: usize, max: Option<usize>) -> Result<(), String> {
        (0..min).try_for_each(|_| self.emit(tree))?;
        let Some(max) = max else {
            let split = self.reserve();
            self.emit(tree)?;
            self.instructions.push(Instruction::Jump(split));
            self.instructions[split] = Instruction::Split(split + 1, self.instructions.len());
            return Ok(());
        };
        let mut splits = Vec::new();
        for _ in min..max {
            splits.push(self.reserve());
            self.emit(tree)?;
        }
        for split in splits {
            self.instructions[split] = Instruction::Split(split + 1, self.instructions.len());
        }
        Ok(())
    }

    /// A place for an instruction that is known later.
    fn reserve(&mut self) -> usize {
        self.instructions.push(Instruction::Match);
        self.instructions.len() - 1
    }
}

impl Class {
    /// Whether it may have a character outside of ASCII: the Kelvin sign and the long s are `k` and `s` in another
    /// case.
    fn has_others(&self) -> bool {
        let is_other = |(low, high): &(char, char)| {
            !high.is_ascii() || ['k', 'K', 's', 'S'].iter().any(|c| (low..=high).contains(&c))
        };
        self.is_negated || !self.kinds.is_empty() || self.ranges.iter().any(is_other)
    }

    fn has(&self, c: char, ignore_case: bool) -> bool {
        let is_in = |c: char| {
            let in_ranges = self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
            in_ranges || self.kinds.iter().any(|kind| kind.has(c))
        };
        let in_other_case = || {
            let is_sigma = SIGMAS.contains(&c);
            let cased = [single(c.to_lowercase(), c), single(c.to_uppercase(), c)];
            cased.into_iter().chain(SIGMAS.into_iter().filter(|_| is_sigma)).any(is_in)
        };
        (is_in(c) || (ignore_case && in_other_case())) != self.is_negated
    }
}

/// One letter: at the end of a word Greek has another small one.
const SIGMAS: [char; 3] = ['Σ', 'σ', 'ς'];

/// The other case of a character, where that is one character.
fn single(mut cased: impl Iterator<Item = char>, c: char) -> char {
    match (cased.next(), cased.next()) {
        (Some(cased), None) => cased,
        _ => c,
    }
}

impl Kind {
    fn has(self, c: char) -> bool {
        match self {
            Self::Digit(wanted) => c.is_numeric() == wanted,
            Self::Word(wanted) => is_word(c) == wanted,
            Self::Space(wanted) => c.is_whitespace() == wanted,
        }
    }
}
