//! JSON, read strictly (RFC 8259), with places in errors and the end of a value that text follows.
//!
//! An object with the same key twice is refused: readers disagree about which one counts. Nesting is bounded, so that
//! no answer can use up the stack.

use crate::number::Number;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Deeper values are refused.
pub const MAX_DEPTH: usize = 64;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// Members in the order of the text.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The member of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The kind, with its article.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(number) if number.is_whole() => "an integer",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// Equality of JSON Schema: the order of members does not matter.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_same(b)),
            (Self::Object(a), Self::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(key, value)| other.get(key).is_some_and(|o| value.is_same(o)))
            }
            (a, b) => a == b,
        }
    }
}

/// Why a text is not JSON, and at which byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub at: usize,
    /// What.
    pub what: String,
}

/// Reads a text that is one value and white space.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(text: &str) -> Result<Json, Problem> {
    let (value, end) = parse_prefix(text)?;
    match text[end..].find(|c: char| !is_space(c)) {
        None => Ok(value),
        Some(at) => Err(Problem { at: end + at, what: "text behind the value".into() }),
    }
}

/// Reads a value at the beginning of a text, behind white space; answers the byte behind it too.
///
/// # Errors
/// What is wrong, and where.
pub fn parse_prefix(text: &str) -> Result<(Json, usize), Problem> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

/// A key or place as it is told: schemas may have long ones, and a refusal that is longer than the host takes would be none.
pub(crate) fn told(text: &str) -> Cow<'_, str> {
    const HALF_CHARS: usize = 50;
    let num_chars = text.chars().count();
    let behind = |num: usize| text.char_indices().nth(num).map_or(text.len(), |(at, _)| at);
    match num_chars <= 2 * HALF_CHARS {
        true => text.into(),
        false => format!("{}…{}", &text[..behind(HALF_CHARS)], &text[behind(num_chars - HALF_CHARS)..]).into(),
    }
}

pub(crate) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn problem<T>(&self, what: impl Into<String>) -> Result<T, Problem> {
        Err(Problem { at: self.at, what: what.into() })
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| is_space(char::from(byte))) {
            self.at += 1;
        }
    }

    fn skip(&mut self, word: &str) -> bool {
        let skips = self.text[self.at..].starts_with(word);
        self.at += if skips { word.len() } else { 0 };
        skips
    }

    fn value(&mut self, depth: usize) -> Result<Json, Problem> {
        if depth > MAX_DEPTH {
            return self.problem(format!("nested deeper than {MAX_DEPTH}"));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) if self.skip("true") => Ok(Json::Bool(true)),
            Some(_) if self.skip("false") => Ok(Json::Bool(false)),
            Some(_) if self.skip("null") => Ok(Json::Null),
            Some(_) => self.problem("no JSON value begins here"),
            None => self.problem("the text ends where a value must come"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Problem> {
        self.at += 1;
        let mut members: Vec<(String, Json)> = Vec::new();
        let mut names = BTreeSet::new();
        self.skip_space();
        if self.skip("}") {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return self.problem("a key in double quotes must come");
            }
            let start = self.at;
            let key = self.string()?;
            if !names.insert(key.clone()) {
                return Err(Problem { at: start, what: "a key comes twice".into() });
            }
            self.skip_space();
            if !self.skip(":") {
                return self.problem("`:` must come");
            }
            self.skip_space();
            members.push((key, self.value(depth + 1)?));
            if self.ends("}")? {
                return Ok(Json::Object(members));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, Problem> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.skip("]") {
            return Ok(Json::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            if self.ends("]")? {
                return Ok(Json::List(items));
            }
        }
    }

    fn ends(&mut self, end: &str) -> Result<bool, Problem> {
        self.skip_space();
        match self.peek() {
            _ if self.skip(end) => Ok(true),
            _ if self.skip(",") => Ok(false),
            None => self.problem(format!("the text ends before `{end}`")),
            Some(_) => self.problem(format!("`,` or `{end}` must come")),
        }
    }

    fn number(&mut self) -> Result<Json, Problem> {
        let start = self.at;
        self.skip("-");
        let digits = self.digits()?;
        if digits > 1 && self.text.as_bytes()[self.at - digits] == b'0' {
            return self.problem("a number has a leading 0");
        }
        if self.skip(".") {
            self.digits()?;
        }
        if self.skip("e") || self.skip("E") {
            let _ = self.skip("+") || self.skip("-");
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        Number::read(text).map_or_else(|| self.problem("a number is too large"), |number| Ok(Json::Number(number)))
    }

    fn digits(&mut self) -> Result<usize, Problem> {
        let digits = self.text.as_bytes()[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        if digits == 0 { self.problem("a digit must come") } else { Ok(digits) }
    }

    fn string(&mut self) -> Result<String, Problem> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                Some(_) => return self.problem("a control character in a string must be escaped"),
                None => return self.problem("the text ends inside of a string"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Problem> {
        let Some(letter) = self.text.as_bytes().get(self.at + 1) else {
            return self.problem("the text ends inside of a string");
        };
        let plain = match letter {
            b'"' | b'\\' | b'/' => char::from(*letter),
            b'b' => '\u{8}',
            b'f' => '\u{C}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return self.problem("unknown escape"),
        };
        self.at += 2;
        Ok(plain)
    }

    fn unicode(&mut self) -> Result<char, Problem> {
        let first = self.unit()?;
        let code = match first {
            0xD800..=0xDBFF if self.text[self.at..].starts_with("\\u") => {
                let second = self.unit()?;
                (0xDC00..=0xDFFF).contains(&second).then(|| 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))
            }
            _ => Some(first),
        };
        code.and_then(char::from_u32).map_or_else(|| self.problem("half of a surrogate pair"), Ok)
    }

    fn unit(&mut self) -> Result<u32, Problem> {
        let digits = self.text.get(self.at + 2..self.at + 6).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(unit) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
            return self.problem("four hexadecimal digits must follow `\\u`");
        };
        self.at += 6;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let check = |text: &str, at, what: &str| {
            let problem = parse(text).unwrap_err();
            assert!(problem.at == at && problem.what.contains(what), "{text}: {problem:?}");
        };
        check("", 0, "the text ends");
        check("{\"a\":1,}", 7, "a key in double quotes");
        check("{'a':1}", 1, "a key in double quotes");
        check("[1 2]", 3, "`,` or `]`");
        check("[1,2", 4, "ends before `]`");
        check("01", 2, "leading 0");
        check("1e999", 5, "too large");
        check("\"a\nb\"", 2, "control character");
        check(r#""\x""#, 1, "unknown escape");
        check(r#""\ud800x""#, 7, "surrogate");
        check(r#"{"a":1,"a":2}"#, 7, "comes twice");
        check("{} x", 3, "text behind");
        check(&"[".repeat(100), MAX_DEPTH + 1, "nested deeper");
    }

    /// A comparison of each key with all before it would take a thousand times as long for 32 times as many.
    #[test]
    fn many_keys_are_read_in_time_that_grows_with_their_number() {
        let time = |num_keys: usize| {
            let members: Vec<String> = (0..num_keys).map(|key| format!("\"key{key:05}\":0")).collect();
            let text = format!("{{{}}}", members.join(","));
            let once = || {
                let start = std::time::Instant::now();
                assert!(parse(&text).is_ok());
                start.elapsed().as_nanos()
            };
            (0..3).map(|_| once()).min().unwrap()
        };
        let (few, many) = (time(1_000), time(32_000));
        assert!(many < 250 * few, "{few} ns, then {many} ns");
    }

    proptest! {
        /// The same texts are JSON as for serde_json, but for doubled keys, which were left out.
        #[test]
        fn texts_are_taken_as_by_another_reader(text in r#"[\[\]{}",:0-9.eE+\-\\untrlfas ]{0,24}"#) {
            let theirs: Result<serde_json::Value, _> = serde_json::from_str(&text);
            match parse(&text) {
                Ok(_) => prop_assert!(theirs.is_ok(), "{:?}", theirs),
                Err(problem) => prop_assert!(theirs.is_err() || problem.what.contains("twice"), "{:?}", problem),
            }
        }
    }
}
