//! Finds the end of a JSON object or array in text that grows.
//!
//! It only counts brackets outside of strings and refuses characters that JSON does not have there; whether
//! the text is JSON is for the parser that gets it. That is enough to never take a mark inside a string for
//! the end of a call, and to give up at the first character that cannot be JSON.

/// Deepest nesting that is followed; what JSON parsers accept.
const MAX_DEPTH: usize = 120;

/// What is known of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// It ends before this byte.
    Complete(usize),
    /// It may go on.
    Incomplete,
    /// It is no JSON.
    Invalid,
}

/// The state between two looks at the text.
#[derive(Clone, Debug, Default)]
pub(super) struct Scanner {
    /// Bytes read.
    position: usize,
    /// Closing brackets that are due, innermost last.
    due: Vec<u8>,
    in_string: bool,
    is_escaped: bool,
}

impl Scanner {
    /// Reads on in `text`, which starts with the value's bracket and has only grown since the last look.
    pub fn scan(&mut self, text: &str) -> Scanned {
        while let Some(&byte) = text.as_bytes().get(self.position) {
            self.position += 1;
            if !self.accept(byte) {
                return Scanned::Invalid;
            }
            if self.due.is_empty() {
                return Scanned::Complete(self.position);
            }
        }
        Scanned::Incomplete
    }

    fn accept(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                0..=0x1F => return false,
                _ => {}
            }
            return true;
        }
        match byte {
            b'{' => self.due.push(b'}'),
            b'[' => self.due.push(b']'),
            b'}' | b']' => return self.due.pop() == Some(byte),
            b'"' => self.in_string = true,
            b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' | b'+' | b'-' | b'.' | b'0'..=b'9' => {}
            // Of the words true, false, null and the exponent.
            b't' | b'r' | b'u' | b'e' | b'f' | b'a' | b'l' | b's' | b'n' | b'E' => {}
            _ => return false,
        }
        self.due.len() <= MAX_DEPTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_past_brackets_in_strings() {
        let text = r#"{"a": "}\"]</tool_call>", "b": [1, {"c": null}]} and more"#;
        assert_eq!(Scanner::default().scan(text), Scanned::Complete(text.len() - " and more".len()));
    }

    #[test]
    fn what_cannot_be_json_is_invalid_at_once() {
        for text in ["{<", "{]", "{\"a\": 1)", "{\"a\n", &"[".repeat(200)] {
            assert_eq!(Scanner::default().scan(text), Scanned::Invalid, "{text}");
        }
        assert_eq!(Scanner::default().scan("{\"a\": [tru"), Scanned::Incomplete);
    }

    #[test]
    fn looking_often_is_looking_once() {
        let text = r#"{"a": "\\\"é", "b": [1, {"c": "x"}]}"#;
        let mut scanner = Scanner::default();
        let ends = (1..text.len()).filter(|end| text.is_char_boundary(*end));
        for end in ends {
            assert_eq!(scanner.scan(&text[..end]), Scanned::Incomplete, "{end}");
        }
        assert_eq!(scanner.scan(text), Scanned::Complete(text.len()));
    }
}
