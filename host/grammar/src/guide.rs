//! Follows one answer: which tokens may come next.
//!
//! A guide reads the answer's tokens where they are kept, so whoever has these can make another: after a lost device, in
//! another process, behind a preemption.

use crate::error::GrammarError;
use llguidance::{Matcher, TokenParser};

/// The place of one answer in its grammar.
pub struct Guide {
    matcher: Matcher,
    /// Tokens of the answer that were read.
    num_read: usize,
    /// Nothing can follow but the end.
    ended: bool,
}

impl Guide {
    pub(crate) fn new(parser: TokenParser) -> Self {
        Self { matcher: Matcher::new(Ok(parser)), num_read: 0, ended: false }
    }

    /// The tokens that may follow `output`, which is the whole answer so far, as bits of `vocab` ids. `ends` are the tokens
    /// that end an answer: they may come where the grammar is complete, and nowhere else; where nothing can follow,
    /// they alone.
    pub fn mask(&mut self, output: &[u32], ends: &[u32], vocab: usize) -> Result<Vec<u32>, GrammarError> {
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
                Err(error) if !complete => return Err(stuck(error)),
                Err(_) => self.ended = true,
            }
        }
        clear_behind(&mut mask, vocab);
        ends.iter().for_each(|end| set(&mut mask, *end, complete));
        if mask.iter().all(|word| *word == 0) {
            return Err(GrammarError::Stuck("no token may follow".to_owned()));
        }
        Ok(mask)
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guide(behind {} tokens)", self.num_read)
    }
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
