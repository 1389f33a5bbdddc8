//! Follows one answer: which tokens may come next.
//!
//! A guide reads the answer's tokens where they are kept, so whoever has these can make another: after a lost device, in
//! another process, behind a preemption. It does so itself where it has found out more on the way than it may keep.

use crate::compiled::Compiled;
use crate::error::GrammarError;
use llguidance::Matcher;

/// How many tokens a matcher must have followed before it is made anew, which takes as long as some masks.
const LEAST_FOLLOWED: usize = 64;

/// The place of one answer in its grammar.
pub struct Guide {
    compiled: Compiled,
    matcher: Matcher,
    /// Tokens of the answer that were read.
    num_read: usize,
    /// What the matcher was made anew of: it has read so many tokens, and looked at nothing beside.
    base: Option<(Box<Matcher>, usize)>,
    /// Nothing can follow but the end.
    ended: bool,
}

impl Guide {
    pub(crate) fn new(compiled: Compiled) -> Self {
        let matcher = compiled.matcher();
        Self { compiled, matcher, num_read: 0, base: None, ended: false }
    }

    /// The tokens that may follow `output`, which is the whole answer so far, as bits of `vocab` ids. `ends` are the tokens
    /// that end an answer: they may come where the grammar is complete, and nowhere else; where nothing can follow,
    /// they alone.
    pub fn mask(&mut self, output: &[u32], ends: &[u32], vocab: usize) -> Result<Vec<u32>, GrammarError> {
        let (mut mask, complete) = match self.allowed(output, vocab) {
            Err(_) if output.len() >= self.base_read() + LEAST_FOLLOWED => {
                self.begin_anew(output)?;
                self.allowed(output, vocab)?
            }
            allowed => allowed?,
        };
        clear_behind(&mut mask, vocab);
        ends.iter().for_each(|end| set(&mut mask, *end, complete));
        if mask.iter().all(|word| *word == 0) {
            return Err(GrammarError::Stuck("no token may follow".to_owned()));
        }
        Ok(mask)
    }

    /// What may follow but the end, and whether the answer may end.
    fn allowed(&mut self, output: &[u32], vocab: usize) -> Result<(Vec<u32>, bool), GrammarError> {
        let unread = output.get(self.num_read..).unwrap_or_default();
        if !(self.ended && unread.is_empty()) {
            self.matcher.consume_tokens(unread).map_err(stuck)?;
        }
        self.num_read = output.len();
        let mut mask = vec![0; vocab.div_ceil(u32::BITS as usize)];
        self.ended |= self.matcher.is_stopped();
        let complete = self.ended || self.matcher.is_accepting().map_err(stuck)?;
        if !self.ended {
            match self.matcher.compute_mask() {
                Ok(allowed) => mask.iter_mut().zip(allowed.as_slice()).for_each(|(word, bits)| *word = *bits),
                Err(error) if complete && is_end(&error) => self.ended = true,
                Err(error) => return Err(stuck(error)),
            }
        }
        Ok((mask, complete))
    }

    /// The lexer keeps a state for all that was looked at, be it said or not, and has a bound of them. Where an answer was
    /// followed for long, one that has those of the tokens alone has room again.
    fn begin_anew(&mut self, output: &[u32]) -> Result<(), GrammarError> {
        let read = self.base_read();
        let (base, base_read) = self.base.get_or_insert_with(|| (Box::new(self.compiled.matcher()), 0));
        base.consume_tokens(output.get(read..).unwrap_or_default()).map_err(stuck)?;
        *base_read = output.len();
        (self.matcher, self.num_read, self.ended) = (base.deep_clone(), output.len(), false);
        Ok(())
    }

    fn base_read(&self) -> usize {
        self.base.as_ref().map_or(0, |(_, read)| *read)
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guide(behind {} tokens)", self.num_read)
    }
}

/// Whether no token may follow, and not what may be was too much to find out.
fn is_end(error: &impl std::fmt::Display) -> bool {
    error.to_string().starts_with("NoExtension")
}

fn stuck(error: impl std::fmt::Display) -> GrammarError {
    let said = error.to_string();
    let first = said.lines().next().unwrap_or_default();
    GrammarError::Stuck(first.chars().take(200).collect())
}

/// The last word has bits of no id.
fn clear_behind(mask: &mut [u32], vocab: usize) {
    let used = vocab % u32::BITS as usize;
    if let (Some(last), 1..) = (mask.last_mut(), used) {
        *last &= (1 << used) - 1;
    }
}

fn set(mask: &mut [u32], id: u32, allowed: bool) {
    let (word, bit) = ((id / u32::BITS) as usize, 1 << (id % u32::BITS));
    match mask.get_mut(word) {
        Some(word) if allowed => *word |= bit,
        Some(word) => *word &= !bit,
        None => {}
    }
}
