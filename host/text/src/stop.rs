//! Stop strings, found across token borders.
//!
//! The text before a stop string is released as soon as it cannot be part of one, so the match must not
//! depend on how the text is cut. The rule is that of a reader who takes one character at a time: the match
//! that is complete first wins, and of two that end together the one that began first.
//!
//! One Knuth-Morris-Pratt automaton per stop string: constant work per byte, and its state is exactly how
//! much text has to wait.
//!
//! Read next: `output.rs`, which the text comes from.

use crate::error::TextError;

/// What [`StopMatcher::push`] decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that may leave.
    pub text: String,
    /// The stop string that ended the answer, by its place in the list. It is no part of any text.
    pub matched: Option<usize>,
}

/// Finds the first of several stop strings in a stream of text.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    automata: Vec<Automaton>,
    /// Text that may be the beginning of a stop string.
    held: String,
    ended: bool,
}

impl StopMatcher {
    /// A matcher for these strings; none of them may be empty.
    pub fn new(stops: &[String]) -> Result<Self, TextError> {
        if let Some(empty) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop(empty));
        }
        let automata = stops.iter().map(|stop| Automaton::new(stop.as_bytes())).collect();
        Ok(Self { automata, held: String::new(), ended: false })
    }

    /// Takes the next text. After a match nothing is released any more.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.ended {
            return StopStep::default();
        }
        if self.automata.is_empty() {
            return StopStep { text: text.to_owned(), matched: None };
        }
        let scanned = self.held.len();
        self.held.push_str(text);
        for end in scanned..self.held.len() {
            if let Some((index, stop_len)) = self.advance(self.held.as_bytes()[end]) {
                self.ended = true;
                self.held.truncate(end + 1 - stop_len);
                return StopStep { text: std::mem::take(&mut self.held), matched: Some(index) };
            }
        }
        let waiting = self.automata.iter().map(|automaton| automaton.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - waiting);
        StopStep { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// Ends this stretch of text: what was held back is no stop string after all. What is pushed next begins a
    /// new stretch, and no stop string reaches across.
    pub fn flush(&mut self) -> String {
        for automaton in &mut self.automata {
            automaton.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Bytes that wait, since they may be the beginning of a stop string.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Feeds one byte to all automata; the longest stop string that ends here, if any.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut found: Option<(usize, usize)> = None;
        for (index, automaton) in self.automata.iter_mut().enumerate() {
            if automaton.advance(byte) && found.is_none_or(|(_, len)| automaton.stop.len() > len) {
                found = Some((index, automaton.stop.len()));
            }
        }
        found
    }
}

/// Knuth-Morris-Pratt: `matched` bytes of `stop` are a suffix of the text so far.
#[derive(Clone, Debug)]
struct Automaton {
    stop: Vec<u8>,
    /// `fallback[n]`: the longest proper prefix of `stop` that is a suffix of its first `n` bytes.
    fallback: Vec<usize>,
    matched: usize,
}

impl Automaton {
    fn new(stop: &[u8]) -> Self {
        let mut fallback = vec![0, 0];
        for &byte in &stop[1..] {
            let mut len = fallback[fallback.len() - 1];
            while len > 0 && stop[len] != byte {
                len = fallback[len];
            }
            fallback.push(if stop[len] == byte { len + 1 } else { 0 });
        }
        Self { stop: stop.to_vec(), fallback, matched: 0 }
    }

    /// True where the stop string ends at this byte.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.stop[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        if self.stop[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.stop.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops).expect("no empty stop");
        let mut text = String::new();
        let mut matched = None;
        for chunk in chunks {
            let step = matcher.push(chunk);
            text += &step.text;
            matched = matched.or(step.matched);
        }
        text += &matcher.flush();
        (text, matched)
    }

    #[test]
    fn a_stop_string_across_chunks_is_found_and_cut() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".to_owned(), Some(0)));
    }

    #[test]
    fn a_beginning_that_does_not_go_on_is_released() {
        let mut matcher = StopMatcher::new(&["abc".to_owned()]).expect("no empty stop");
        assert_eq!(matcher.push("xab").text, "x");
        assert_eq!(matcher.push("ab").text, "ab");
        assert_eq!(matcher.push("d").text, "abd");
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn only_a_possible_beginning_waits() {
        let mut matcher = StopMatcher::new(&["\n\n".to_owned()]).expect("no empty stop");
        assert_eq!(matcher.push("line\n").text, "line");
        assert_eq!(matcher.flush(), "\n");
    }

    #[test]
    fn the_match_that_is_complete_first_wins_and_the_longer_of_two() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".to_owned(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["xabc"]), ("x".to_owned(), Some(1)));
    }

    #[test]
    fn no_stop_string_reaches_across_a_flush() {
        let mut matcher = StopMatcher::new(&["ab".to_owned()]).expect("no empty stop");
        assert_eq!(matcher.push("xa").text, "x");
        assert_eq!(matcher.held_bytes(), 1);
        assert_eq!(matcher.flush(), "a");
        assert_eq!(matcher.push("b"), StopStep { text: "b".to_owned(), matched: None });
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let stops = ["a".to_owned(), String::new()];
        assert!(matches!(StopMatcher::new(&stops), Err(TextError::EmptyStop(1))));
    }

    #[test]
    fn nothing_is_released_after_a_match() {
        let mut matcher = StopMatcher::new(&["!".to_owned()]).expect("no empty stop");
        assert_eq!(matcher.push("a!b").matched, Some(0));
        assert_eq!(matcher.push("more"), StopStep::default());
        assert_eq!(matcher.flush(), "");
    }

    /// The rule, written as a search over the whole text.
    fn first_match(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ending = |stop: &String| text.as_bytes()[..end].ends_with(stop.as_bytes());
            let mut hits: Vec<usize> = (0..stops.len()).filter(|&i| ending(&stops[i])).collect();
            hits.sort_by_key(|&i| (std::cmp::Reverse(stops[i].len()), i));
            if let Some(&hit) = hits.first() {
                return (text[..end - stops[hit].len()].to_owned(), Some(hit));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn every_chunking_gives_the_match_of_the_whole_text(
            stops in prop::collection::vec("[abé]{1,5}", 0..4),
            chunks in prop::collection::vec("[abé]{0,4}", 0..12),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let refs: Vec<&str> = chunks.iter().map(String::as_str).collect();
            let owned: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
            prop_assert_eq!(run(&stops, &refs), first_match(&owned, &chunks.concat()));
        }

        #[test]
        fn what_waits_is_always_the_beginning_of_a_stop_string(
            stops in prop::collection::vec("[ab]{1,5}", 1..4),
            chunks in prop::collection::vec("[ab]{0,4}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stops).expect("no empty stop");
            for chunk in &chunks {
                if matcher.push(chunk).matched.is_some() {
                    break;
                }
                let held = matcher.held.as_str();
                prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held) && stop != held));
            }
        }
    }
}
