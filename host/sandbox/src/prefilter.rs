//! What a stream guard lets through whatever its config: the host then decides such text in its place and spares the call.

mod parse;

use serde_json::Value;

/// Text that an automaton of a guard's descriptor accepts, character by character. A stream guard that declares it promises
/// that it would let such text through as far as the automaton was in its first state last, without findings, and remember
/// nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefilter {
    /// The class of each ASCII character.
    ascii: [u8; 128],
    /// Those of others, in order.
    others: Vec<Range>,
    /// For each state the next one by class, and behind them that of characters without a class.
    next: Vec<u8>,
    /// Classes, and with it the place of characters that have none.
    num_classes: u8,
    run_bytes: usize,
    said: Value,
}

/// Characters of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    from: char,
    to: char,
    class: u8,
}

/// Nothing waits.
const START: u8 = 0;
/// No next state: the guard looks.
const NONE: u8 = u8::MAX;

impl Prefilter {
    /// Bytes of `text` that may leave, where it is of this kind; `None` where the guard has to look.
    pub fn through(&self, text: &str) -> Option<usize> {
        let (mut through, mut state) = (0, START);
        for (at, c) in text.char_indices() {
            state = self.next(state, c)?;
            let end = at + c.len_utf8();
            if state == START {
                through = end;
            } else if end - through > self.run_bytes {
                return None;
            }
        }
        Some(through)
    }

    fn next(&self, state: u8, c: char) -> Option<u8> {
        let class = self.ascii.get(c as usize).copied().unwrap_or_else(|| self.class_of(c));
        let row = usize::from(state) * (usize::from(self.num_classes) + 1);
        self.next.get(row + usize::from(class)).copied().filter(|next| *next != NONE)
    }

    fn class_of(&self, c: char) -> u8 {
        let behind = self.others.partition_point(|range| range.from <= c);
        let range = behind.checked_sub(1).and_then(|at| self.others.get(at));
        range.filter(|range| c <= range.to).map_or(self.num_classes, |range| range.class)
    }

    /// As it was declared.
    pub fn said(&self) -> &Value {
        &self.said
    }

    /// Bytes that may wait.
    pub fn run_bytes(&self) -> usize {
        self.run_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Words of a few letters, also with a sign within, and numbers behind which no other stands.
    fn words() -> Prefilter {
        Prefilter::new(&json!({
            "classes": {"letters": ["ac", "é", "αω"], "joins": ["-", "("], "digits": ["09"], "ends": [" ", ","]},
            "states": {
                "start": {"letters": "word", "joins": "joined", "digits": "number", "ends": "start"},
                "word": {"letters": "word", "joins": "joined", "ends": "start"},
                "joined": {"letters": "word"},
                "number": {"digits": "number", "ends": "behind"},
                "behind": {"letters": "word"},
            },
            "run-bytes": 4,
        }))
        .unwrap()
    }

    #[test]
    fn text_leaves_as_far_as_nothing_waits() {
        for (text, through) in [
            ("", Some(0)),
            ("abc", Some(0)),
            ("ab ", Some(3)),
            ("ab ,, ca", Some(6)),
            (" abca abca abca", Some(11)),
            ("abcab", None),
            ("ab abcab ", None),
            ("ab d ", None),
            ("ab \u{0} ", None),
            ("ab é ", Some(6)),
            ("αω ", Some(5)),
            ("αωα", None),
            ("ab è ", None),
            ("ab \u{10ffff}", None),
            ("a-b ", Some(4)),
            ("a, (b ", Some(6)),
            ("c a-", Some(2)),
            ("a- ", None),
            ("a--b ", None),
            ("a-1", None),
            ("12", Some(0)),
            ("a 12 ", Some(2)),
            ("1 ab ", Some(5)),
            ("1 ab", Some(0)),
            ("1 2", None),
            ("1  ", None),
            ("12 abc ", None),
        ] {
            assert_eq!(words().through(text), through, "{text:?}");
        }
        assert_eq!(words().run_bytes(), 4);
    }

    #[test]
    fn the_contracts_example_does_what_is_said_of_it() {
        let contract = include_str!("../../../wit/README.md");
        let (_, example) = contract.split_once("character by character:\n\n```json\n").unwrap();
        let said: Value = serde_json::from_str(example.split_once("```").unwrap().0).unwrap();
        assert_eq!(Prefilter::new(&said).unwrap().through("a well-fed ca"), Some("a well-fed ".len()));
    }

    proptest::proptest! {
        /// What is let through is so whatever else the same words are cut into.
        #[test]
        fn what_has_left_once_is_not_looked_at_again(text in "[ab1 ,(é-]{0,20}") {
            let whole = words().through(&text);
            let ends = text.char_indices().map(|(at, _)| at);
            let halves = ends.filter_map(|at| words().through(&text[..at]).map(|through| (at, through)));
            for (_, through) in halves {
                let rest = words().through(&text[through..]);
                proptest::prop_assert_eq!(rest.map(|rest| through + rest), whole);
            }
        }
    }
}
