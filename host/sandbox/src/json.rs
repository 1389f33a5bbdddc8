//! JSON from a guest. What a host keeps of it shall take about what its text does: as a value, `[0,0,..]` takes 36 times that.
//! So text stays text where nobody here reads it ([`plain`]), and of what becomes a value it is counted before how many there
//! will be ([`Values`]).

use serde::de::IgnoredAny;
use serde_json::Value;

/// Values in all JSON of one result: lists, objects, and what is in them. They take 2 MiB and more.
pub(crate) const MAX_VALUES: usize = 16_384;

/// How many values the rest of a result may have.
pub(crate) struct Values {
    left: usize,
}

impl Values {
    /// Of a result of which nothing was read yet.
    pub(crate) fn of_result() -> Self {
        Self { left: MAX_VALUES }
    }

    /// Reads a part of the result; `what` names it in the error.
    pub(crate) fn read(&mut self, text: &str, what: &str) -> Result<Value, String> {
        self.take(text, what)?;
        serde_json::from_str(text).map_err(|error| no_json(what, &error))
    }

    /// Counts a part of the result, for who reads it then.
    pub(crate) fn take(&mut self, text: &str, what: &str) -> Result<(), String> {
        let too_many = || format!("{what} has too many values: those of one result are {MAX_VALUES} at most");
        self.left = self.left.checked_sub(count(text)).ok_or_else(too_many)?;
        Ok(())
    }
}

fn no_json(what: &str, error: &serde_json::Error) -> String {
    format!("{what} is not JSON: {error}")
}

/// The values of a JSON text. Of what is no JSON: no fewer than there are before that shows.
fn count(text: &str) -> usize {
    let (mut count, mut last, mut in_string, mut is_escaped) = (1, 0, false, false);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b',' | b'[' | b'{' => count += 1,
            // Nothing is in it.
            b']' | b'}' if matches!(last, b'[' | b'{') => count -= 1,
            _ => {}
        }
        last = byte;
    }
    count
}

/// Refuses what is no JSON and stays text. A caller's text has numbers, escapes and depths that a value cannot hold, and who
/// redacts it leaves those.
pub(crate) fn check(text: &str, what: &str) -> Result<(), String> {
    serde_json::from_str(text).map(|_: IgnoredAny| ()).map_err(|error| no_json(what, &error))
}

/// The same JSON without spaces, and without escapes that need not be: a guard looks for words in it.
pub(crate) fn plain(text: &str, what: &str) -> Result<String, String> {
    let mut out = Vec::new();
    let mut read = serde_json::Deserializer::from_str(text);
    let written = serde_transcode::transcode(&mut read, &mut serde_json::Serializer::new(&mut out));
    written.and_then(|()| read.end()).map_err(|error| no_json(what, &error))?;
    String::from_utf8(out).map_err(|error| format!("{what} is not UTF-8: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 9] = [
        "0",
        " \"a, [b] \\\" {c}\" ",
        "[]",
        "[ { } , [ ] ]",
        "{\"a\":[1,-2,2.5e3,1e300],\"b\":{\"\\\\\":null,\",\":true}}",
        "[\"\\\\\",\"\\\"\",\"[\"]",
        "{\"\":{},\"a\":[[[0]]]}",
        "[18446744073709551615,-9223372036854775808,1e16,1e-7]",
        "{\"\\u0069gnore\":\"\\u00e9\\n\\u0001 \\/ \\ud83d\\ude00\"}",
    ];

    fn values(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(values).sum(),
            Value::Object(fields) => fields.values().map(values).sum(),
            _ => 0,
        }
    }

    #[test]
    fn values_are_counted_as_they_will_be() {
        for text in TEXTS {
            assert_eq!(count(text), values(&serde_json::from_str(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn of_what_is_no_json_no_fewer_are_counted_than_there_are_before_that_shows() {
        for (text, at_least) in [("", 0), ("]", 1), ("[1,2", 3), ("[1,2]]]", 3), ("[[],[],}", 3), ("{\"a\":1,\"", 2)] {
            assert!(count(text) >= at_least, "{text}");
        }
    }

    #[test]
    fn what_is_in_all_json_of_a_result_is_bounded_before_it_is_read() {
        let zeros = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        let mut result = Values::of_result();
        result.read(&zeros(MAX_VALUES - 3), "a schema").unwrap();
        let why = result.read("[0,0]", "a schema").unwrap_err();
        assert_eq!(why, "a schema has too many values: those of one result are 16384 at most");
        result.read("[0]", "a schema").unwrap();
        let unread = format!("{}, and no end", zeros(MAX_VALUES));
        assert!(Values::of_result().read(&unread, "it").unwrap_err().contains("too many values"));
        assert!(Values::of_result().read("{", "it").unwrap_err().starts_with("it is not JSON: "));
    }

    #[test]
    fn what_stays_text_is_written_as_its_value_would_be() {
        for text in TEXTS {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(plain(text, "it").unwrap(), value.to_string(), "{text}");
        }
        assert_eq!(plain("{\"a\":1, \"a\":2}", "it").unwrap(), "{\"a\":1,\"a\":2}", "both are there");
        for text in ["", "{", "[1,]", "1 2", "[\"\\ud800\"]", "1e999", &"[".repeat(10_000)] {
            assert!(plain(text, "it").unwrap_err().starts_with("it is not JSON: "), "{text}");
        }
    }
}
