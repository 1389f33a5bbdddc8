//! Values in the JSON of a plugin. The host counts them before it reads it, since as values they take many times their text.

use crate::plugin::Error;
use crate::types::{Message, Part};

/// The host's bound: values in all JSON of one result, or of one question to a model.
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

    /// Takes a part of the result, which must be JSON; `what` names it in the error.
    pub(crate) fn take(&mut self, json: &str, what: &str) -> Result<serde_json::Value, String> {
        let too_many = || format!("{what} has too many values: those of one result are {MAX_VALUES} at most");
        self.left = self.left.checked_sub(count(json)).ok_or_else(too_many)?;
        serde_json::from_str(json).map_err(|error| format!("{what} is not JSON: {error}"))
    }
}

/// Refuses a question to a model that has too many values, or an `opaque` part that is no JSON.
pub(super) fn check(messages: &[Message], params: &str) -> Result<(), Error> {
    let mut values = Values::of_result();
    let mut take = |json: &str, what: &str| values.take(json, what).map(|_| ()).map_err(Error::InvalidInput);
    for part in messages.iter().flat_map(|message| &message.parts) {
        if let Part::Opaque { body, .. } = part {
            take(body, "an opaque part's body")?;
        }
    }
    if params.trim().is_empty() { Ok(()) } else { take(params, "`params`") }
}

/// The values of a JSON text: lists, objects, and what is in them.
fn count(json: &str) -> usize {
    let (mut count, mut last, mut in_string, mut is_escaped) = (1, 0, false, false);
    for byte in json.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Role;

    #[test]
    fn values_are_counted_as_the_host_counts_them() {
        for (json, expected) in [
            ("0", 1),
            ("[]", 1),
            ("[ { } , [ ] ]", 3),
            (" \"a, [b] \\\" {c}\" ", 1),
            ("{\"a\":[1,-2],\"b\":{\"c\":null}}", 6),
            ("{\"a\":1,\"a\":2}", 3),
        ] {
            assert_eq!(count(json), expected, "{json}");
        }
    }

    #[test]
    fn a_question_has_so_many_values_in_all_of_its_json() {
        let zeros = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        let asked = |bodies: &[String], params: &str| {
            let opaque = |body: &String| Part::Opaque { kind: "x".into(), body: body.clone() };
            let parts = bodies.iter().map(opaque).collect();
            check(&[Message { parts, ..Message::text("m0", Role::User, "") }], params)
        };
        let params = "{\"seed\":1}";
        assert_eq!(asked(&[zeros(8190), zeros(8190)], params), Ok(()));
        let told = |what: &str| {
            let why = format!("{what} has too many values: those of one result are 16384 at most");
            Err(Error::InvalidInput(why))
        };
        assert_eq!(asked(&[zeros(8190), zeros(8191)], params), told("`params`"));
        assert_eq!(asked(&[zeros(8190), zeros(8193)], ""), told("an opaque part's body"));
        assert!(matches!(asked(&["{".into()], ""), Err(Error::InvalidInput(why)) if why.contains("is not JSON")));
    }
}
