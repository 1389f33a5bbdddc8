//! Tokens and calls as they come: counters that the path adds to and the journal reads.

use crate::call::{Call, Calls};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_types::Usage;

/// Tokens of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Of prompts, cached ones included.
    pub input: u64,
    /// Of those, found in the prefix cache.
    pub cached: u64,
    /// Generated.
    pub output: u64,
}

impl From<Tokens> for Usage {
    fn from(Tokens { input, cached, output }: Tokens) -> Self {
        Self { input_tokens: input, cached_tokens: cached, output_tokens: output, reasoning_tokens: None }
    }
}

/// Counts the tokens and calls of one generation, over all its turns.
#[derive(Debug, Default)]
pub struct Tally {
    input: AtomicU64,
    cached: AtomicU64,
    output: AtomicU64,
    /// Seldom: a turn apart from each other, and never on the path of a token.
    calls: Mutex<Calls>,
    num_calls: AtomicU64,
}

// Relaxed: each counter is a figure of its own, and nothing else is read after it.
impl Tally {
    /// A turn begins with a prompt of so many tokens.
    pub fn add_input(&self, tokens: u64) {
        self.input.fetch_add(tokens, Ordering::Relaxed);
    }

    /// So many tokens of the prompt were in the prefix cache.
    pub fn add_cached(&self, tokens: u64) {
        self.cached.fetch_add(tokens, Ordering::Relaxed);
    }

    /// So many tokens were generated.
    pub fn add_output(&self, tokens: u64) {
        self.output.fetch_add(tokens, Ordering::Relaxed);
    }

    /// A turn that was counted as `counted` has ended, and who generated it says `said`.
    pub fn correct(&self, counted: Usage, said: Usage) {
        let correct = |counter: &AtomicU64, counted: u64, said: u64| {
            // Wrapping, so that one addition corrects both ways.
            counter.fetch_add(said.wrapping_sub(counted), Ordering::Relaxed);
        };
        correct(&self.input, counted.input_tokens, said.input_tokens);
        correct(&self.cached, counted.cached_tokens, said.cached_tokens);
        correct(&self.output, counted.output_tokens, said.output_tokens);
    }

    /// A tool or a retriever has answered.
    pub(crate) fn add_call(&self, call: Call) {
        self.calls.lock().add(call);
        self.num_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// What was called so far.
    pub(crate) fn calls(&self) -> Calls {
        self.calls.lock().clone()
    }

    /// How many calls there were so far.
    pub(crate) fn num_calls(&self) -> u64 {
        self.num_calls.load(Ordering::Relaxed)
    }

    /// The tokens that were counted so far.
    pub fn tokens(&self) -> Tokens {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tokens { input: read(&self.input), cached: read(&self.cached), output: read(&self.output) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_corrects_both_ways() {
        let tally = Tally::default();
        tally.add_input(10);
        tally.add_output(7);
        let counted = Usage { input_tokens: 10, cached_tokens: 0, output_tokens: 7, ..Default::default() };
        tally.correct(counted, Usage { input_tokens: 12, cached_tokens: 8, output_tokens: 5, ..Default::default() });
        assert_eq!(tally.tokens(), Tokens { input: 12, cached: 8, output: 5 });
    }
}
