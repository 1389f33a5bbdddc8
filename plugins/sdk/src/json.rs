//! JSON as text: a few helpers for writing it, and an object's members as they stand.

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// A text as a JSON string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// JSON texts as a JSON array.
pub fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// The members of a JSON object, in order, their values as they were written.
///
/// # Errors
/// For text that is no JSON object.
pub fn members(json: &str) -> Result<Vec<(String, &str)>, String> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, &'de str)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                members.push((key, value.get()));
            }
            Ok(members)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let members = deserializer.deserialize_map(Members).map_err(|e| e.to_string())?;
    deserializer.end().map_err(|e| e.to_string())?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_stand_as_they_were_written() {
        let found = members(r#" {"a" : [1, 2], "b":{"c":"}"}, "a":3} "#).unwrap();
        assert_eq!(found, [("a".to_owned(), "[1, 2]"), ("b".to_owned(), r#"{"c":"}"}"#), ("a".to_owned(), "3")]);
        for wrong in ["", "[]", "3", "{", "{} x", "{\"a\"}"] {
            assert!(members(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_quoted_text_comes_back(text in "\\PC{0,20}|[\\x00-\\x7f]{0,20}") {
            prop_assert_eq!(serde_json::from_str::<String>(&quote(&text)).unwrap(), text);
        }
    }
}
