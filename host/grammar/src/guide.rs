//! Follows one answer: which tokens may come next.
//!
//! A guide reads the answer's tokens where they are kept, so whoever has these can make another: after a lost device, in
//! another process, behind a preemption. It does so itself where it has found out more on the way than it may keep.

use crate::compiled::Compiled;
use crate::error::GrammarError;
use llguidance::Matcher;
use std::time::{Duration, Instant};

/// How many tokens a matcher must have followed before it is made anew, which takes as long as some masks.
const LEAST_FOLLOWED: usize = 64;
/// For how long it is made anew in one go: with a hostile pattern it takes 100 ms, for which nobody else waits.
const GO: Duration = Duration::from_millis(4);
/// Tokens read between two looks at the clock.
const READ_AT_ONCE: usize = 4;

/// The place of one answer in its grammar.
pub struct Guide {
    compiled: Compiled,
    matcher: Matcher,
    /// Tokens of the answer that were read.
    num_read: usize,
    /// What the matcher was made anew of: it has read so many tokens, and looked at nothing beside.
    base: Option<(Box<Matcher>, usize)>,
    /// The base has not read all yet.
    is_beginning_anew: bool,
    /// How long that may take in one go.
    go: Duration,
    /// Nothing can follow but the end.
    ended: bool,
}

impl Guide {
    pub(crate) fn new(compiled: Compiled) -> Self {
        let matcher = compiled.matcher();
        Self { compiled, matcher, num_read: 0, base: None, is_beginning_anew: false, go: GO, ended: false }
    }

    /// The tokens that may follow `output`, which is the whole answer so far, as bits of `vocab` ids. `ends` are the tokens
    /// that end an answer: they may come where the grammar is complete, and nowhere else; where nothing can follow,
    /// they alone. However long it takes.
    pub fn mask(&mut self, output: &[u32], ends: &[u32], vocab: usize) -> Result<Vec<u32>, GrammarError> {
        loop {
            if let Some(mask) = self.mask_in_one_go(output, ends, vocab)? {
                return Ok(mask);
            }
        }
    }

    /// The same, or `None` where others shall have their turn before more is found out. The next call goes on with that.
    pub fn mask_in_one_go(
        &mut self,
        output: &[u32],
        ends: &[u32],
        vocab: usize,
    ) -> Result<Option<Vec<u32>>, GrammarError> {
        let allowed = if self.is_beginning_anew { None } else { Some(self.allowed(output, vocab)) };
        let (mut mask, complete) = match allowed {
            Some(Ok(allowed)) => allowed,
            Some(Err(error)) if output.len() < self.base_read() + LEAST_FOLLOWED => return Err(error),
            Some(Err(_)) | None => {
                if !self.begin_anew(output)? {
                    return Ok(None);
                }
                self.allowed(output, vocab)?
            }
        };
        clear_behind(&mut mask, vocab);
        ends.iter().for_each(|end| set(&mut mask, *end, complete));
        if mask.iter().all(|word| *word == 0) {
            return Err(GrammarError::Stuck("no token may follow".to_owned()));
        }
        Ok(Some(mask))
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
    /// followed for long, one that has those of the tokens alone has room again. Says whether that is done.
    fn begin_anew(&mut self, output: &[u32]) -> Result<bool, GrammarError> {
        let (start, read) = (Instant::now(), self.base_read());
        let (base, base_read) = self.base.get_or_insert_with(|| (Box::new(self.compiled.matcher()), 0));
        self.is_beginning_anew = true;
        for tokens in output.get(read..).unwrap_or_default().chunks(READ_AT_ONCE) {
            if start.elapsed() > self.go && *base_read > read {
                return Ok(false);
            }
            base.consume_tokens(tokens).map_err(stuck)?;
            *base_read += tokens.len();
        }
        self.is_beginning_anew = false;
        (self.matcher, self.num_read, self.ended) = (base.deep_clone(), output.len(), false);
        Ok(true)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grammars, Token};
    use tidegate_types::TenantId;

    #[test]
    fn what_is_made_anew_in_parts_is_the_same() {
        let grammars = Grammars::new(|| Ok((0..=255_u8).map(|byte| Token::Text(vec![byte])).collect()));
        let compiled = grammars.compile(&TenantId::new("t"), "start: /(ab){0,2000}/").unwrap();
        let output: Vec<u32> = b"ab".repeat(500).into_iter().map(u32::from).collect();
        let (mut guide, mut whole) = (compiled.guide(), compiled.guide());
        guide.go = Duration::ZERO;
        for len in [1, 100, 101, output.len()] {
            let (read, mut num_put_off) = (guide.base_read(), 0);
            guide.is_beginning_anew = true;
            let mask = loop {
                match guide.mask_in_one_go(&output[..len], &[], 256).unwrap() {
                    Some(mask) => break mask,
                    None => num_put_off += 1,
                }
            };
            assert_eq!(mask, whole.mask(&output[..len], &[], 256).unwrap(), "behind {len}");
            assert_eq!(num_put_off, (len - read).div_ceil(READ_AT_ONCE) - 1, "behind {len}");
        }
    }
}
