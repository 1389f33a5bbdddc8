//! A borrowed JSON tree: what the validator walks. Strings without escapes borrow from the body; maps keep the
//! order of the body and refuse a repeated key, because two readers of the same body could take different ones.
//!
//! Depth is bounded by serde_json (128), so that walking and dropping a tree never exhausts the stack, and the number of
//! values by [`MAX_VALUES`]: a value of one digit takes many times its byte, here and where it is kept to be passed on. What
//! comes back of an answer and is not looked at is not kept, and takes none of them ([`Place`]).
//! Next: `field.rs`, which reads typed values out of a [`Node`].

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use tidegate_types::{Fault, Reject, RejectKind};

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Above `i64::MAX`.
    Uint(u64),
    Float(f64),
    Str(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Map(Entries<'a>),
}

/// The entries of a map in the order of the body, no key twice.
pub(crate) type Entries<'a> = Vec<(Cow<'a, str>, Node<'a>)>;

/// Maps up to this size are searched linearly for a repeated key, larger ones through a set.
const LINEAR_KEYS: usize = 16;

/// Values and keys of one body. As many messages as a chat may have, each with a call or its outcome, have room.
const MAX_VALUES: usize = 100_000;
/// The same of what is made of tokens, none of which is kept as a value: those of as many texts as embeddings are made of at
/// once have room.
const MAX_TOKEN_VALUES: usize = 1_200_000;

/// Reads a body. Errors are 400s that say what is wrong and where.
pub(crate) fn parse(body: &[u8]) -> Result<Node<'_>, Reject> {
    parse_up_to(MAX_VALUES, Place::Else, body)
}

/// The same of a body with items in a member `input` or `items`. Log-probabilities of those are null: a token has some
/// hundred values of them.
pub(crate) fn parse_with_items(body: &[u8]) -> Result<Node<'_>, Reject> {
    parse_up_to(MAX_VALUES, Place::Body, body)
}

/// The same of a body that may have the tokens of texts.
pub(crate) fn parse_tokens(body: &[u8]) -> Result<Node<'_>, Reject> {
    parse_up_to(MAX_TOKEN_VALUES, Place::Else, body)
}

fn parse_up_to(most: usize, place: Place, body: &[u8]) -> Result<Node<'_>, Reject> {
    if body.is_empty() {
        return Err(malformed("the request body is empty; send a JSON object"));
    }
    let text = std::str::from_utf8(body).map_err(|e| {
        malformed(format!("the request body is not valid UTF-8: byte {} is no part of a character", e.valid_up_to()))
    })?;
    let left = Cell::new(most);
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Budget { left: &left, place }.deserialize(&mut reader).and_then(|node| reader.end().map(|()| node));
    read.map_err(|error| {
        if left.get() == 0 {
            return too_many_values(most);
        }
        let text = error.to_string();
        match text.strip_prefix("recursion limit exceeded") {
            Some(place) => malformed(format!("the request body nests deeper than 128 levels{place}")),
            None => malformed(format!("the request body is not valid JSON: {text}")),
        }
    })
}

fn too_many_values(most: usize) -> Reject {
    let message = format!(
        "the request body has more than {most} JSON values and keys, the most that is read; ask about less at once"
    );
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("too_many_values")
}

fn malformed(message: impl Into<String>) -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("invalid_json")
}

impl Node<'_> {
    /// What it is, for messages. Strings are not quoted: a prompt does not belong in an error or a log.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Int(value) => format!("the number {value}"),
            Self::Uint(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Str(_) => "a string".into(),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "an object".into(),
        }
    }

    /// The same as an owned value, for what is passed on unread.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Int(value) => value.into(),
            Self::Uint(value) => value.into(),
            Self::Float(value) => value.into(),
            Self::Str(value) => Value::String(value.into_owned()),
            Self::List(items) => items.into_iter().map(Node::into_value).collect(),
            Self::Map(entries) => {
                Value::Object(entries.into_iter().map(|(k, v)| (k.into_owned(), v.into_value())).collect())
            }
        }
    }
}

/// Where a value is in a body, as far as that says what of it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The body, which may have items.
    Body,
    /// A list of them.
    Items,
    Item,
    /// The list of what an item says.
    Content,
    Part,
    /// Of a part: what nobody looks at.
    Logprobs,
    Else,
}

impl Place {
    fn member(self, key: &str) -> Self {
        match (self, key) {
            (Self::Body, "input" | "items") => Self::Items,
            (Self::Item, "content") => Self::Content,
            (Self::Part, "logprobs") => Self::Logprobs,
            _ => Self::Else,
        }
    }

    fn element(self) -> Self {
        match self {
            Self::Items => Self::Item,
            Self::Content => Self::Part,
            _ => Self::Else,
        }
    }
}

/// How many more values may be read, and which one is next.
#[derive(Clone, Copy)]
struct Budget<'c> {
    left: &'c Cell<usize>,
    place: Place,
}

impl Budget<'_> {
    fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Takes one; the last is never given, so that none left means that it was the reason.
    fn take<E: de::Error>(self) -> Result<(), E> {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 { Err(E::custom("too many values")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Budget<'_> {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.place == Place::Logprobs {
            // Neither kept nor walked: serde_json passes over it without a stack.
            return IgnoredAny::deserialize(deserializer).map(|_| Node::Null);
        }
        self.take::<D::Error>()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Budget<'_> {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(value).map_or(Node::Uint(value), Node::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Node::Float(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Node::Str(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Node::Str(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.at(self.place.element()))? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Entries<'de> = Vec::new();
        let mut seen = Seen::default();
        while let Some(Key(key)) = map.next_key()? {
            if seen.repeats(key.clone(), &entries) {
                return Err(de::Error::custom(format_args!("the key `{key:.64}` is given twice")));
            }
            self.take::<A::Error>()?;
            let value = map.next_value_seed(self.at(self.place.member(&key)))?;
            entries.push((key, value));
        }
        Ok(Node::Map(entries))
    }
}

/// Finds repeated keys without quadratic work on a map of a million keys.
#[derive(Default)]
struct Seen<'a>(HashSet<Cow<'a, str>>);

impl<'a> Seen<'a> {
    fn repeats(&mut self, key: Cow<'a, str>, entries: &Entries<'a>) -> bool {
        if entries.len() < LINEAR_KEYS {
            return entries.iter().any(|(known, _)| *known == key);
        }
        if self.0.is_empty() {
            self.0.extend(entries.iter().map(|(known, _)| known.clone()));
        }
        !self.0.insert(key)
    }
}

struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Key(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Key(Cow::Owned(value.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &[u8]) -> String {
        let reject = parse(body).unwrap_err();
        assert_eq!(reject.kind, RejectKind::Invalid);
        assert_eq!(reject.code.as_deref(), Some("invalid_json"));
        reject.message
    }

    #[test]
    fn plain_strings_borrow_and_escaped_ones_do_not() {
        let Node::Map(entries) = parse(br#"{"a":"plain","b":"new\nline"}"#).unwrap() else { panic!("a map") };
        assert!(matches!(&entries[0].1, Node::Str(Cow::Borrowed("plain"))));
        assert!(matches!(&entries[1].1, Node::Str(Cow::Owned(text)) if text == "new\nline"));
    }

    #[test]
    fn malformed_bodies_say_where() {
        assert!(message(b"").contains("empty"));
        assert!(message(b"{\"a\":").contains("line 1 column 5"));
        assert!(message(b"{\"a\":1}x").contains("trailing"));
        assert!(message(b"{\"a\":\"\xff\"}").contains("byte 6"));
        assert!(message(br#"{"a":"\ud800"}"#).contains("JSON"));
        assert!(message(b"{\"a\":1e999}").contains("number"));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(message(deep.as_bytes()).contains("128 levels"));
        let fine = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(parse(fine.as_bytes()).is_ok());
    }

    #[test]
    fn a_key_given_twice_is_refused_in_small_and_large_maps() {
        assert!(message(br#"{"a":1,"b":2,"a":3}"#).contains("`a` is given twice"));
        assert!(message(br#"{"a":1,"\u0061":3}"#).contains("`a` is given twice"));
        let keys: Vec<String> = (0..1000).map(|i| format!("\"k{i}\":{i}")).collect();
        assert!(parse(format!("{{{}}}", keys.join(",")).as_bytes()).is_ok());
        assert!(message(format!("{{{},\"k3\":0}}", keys.join(",")).as_bytes()).contains("`k3`"));
        assert!(message(format!("{{{},\"k999\":0}}", keys.join(",")).as_bytes()).contains("`k999`"));
    }

    #[test]
    fn the_values_of_a_body_are_bounded_and_a_long_text_is_one() {
        let refused = |most: usize, body: String| {
            let parse: fn(&[u8]) -> Result<Node<'_>, Reject> =
                if most == MAX_TOKEN_VALUES { parse_tokens } else { parse };
            let reject = parse(body.as_bytes()).err()?;
            assert!(reject.message.contains(&most.to_string()), "{reject}");
            reject.code
        };
        let many = |value: &str, count: usize| format!("[{}0]", format!("{value},").repeat(count));
        let too_many = Some("too_many_values".to_owned());
        for most in [MAX_VALUES, MAX_TOKEN_VALUES] {
            assert_eq!(refused(most, many("0", most)), too_many);
            assert_eq!(refused(most, many("[[]]", most / 2)), too_many);
            assert_eq!(refused(most, many("{\"a\":0}", most / 3)), too_many);
            assert_eq!(refused(most, many("{\"a\":0}", most / 4)), None);
        }
        assert_eq!(refused(MAX_TOKEN_VALUES, many("0", 2048 * 512 + 2048)), None, "the tokens of 2048 texts");
        assert_eq!(refused(MAX_VALUES, many(&format!("\"{}\"", "0,".repeat(1 << 20)), 4)), None);
    }

    #[test]
    fn log_probabilities_of_items_take_no_values_and_are_passed_over_there_alone() {
        let many = format!("[{}0]", "[0],".repeat(MAX_VALUES));
        for (body, fits) in [
            (format!(r#"{{"input":[{{"content":[{{"text":"a","logprobs":{many}}}]}}]}}"#), true),
            (format!(r#"{{"items":[{{"content":[{{"logprobs":{many}}},{{"logprobs":{many}}}]}}]}}"#), true),
            (format!(r#"{{"input":[{{"content":[{{"logprobs":{}}}]}}]}}"#, "[".repeat(1 << 20)), false),
            (format!(r#"{{"input":[{{"content":[{{"other":{many}}}]}}]}}"#), false),
            (format!(r#"{{"input":[{{"content":{{"logprobs":{many}}}}}]}}"#), false),
            (format!(r#"{{"input":[{{"logprobs":{many}}}]}}"#), false),
            (format!(r#"{{"logprobs":{many}}}"#), false),
        ] {
            assert_eq!(parse_with_items(body.as_bytes()).is_ok(), fits, "{:.60}", body);
            assert!(parse(body.as_bytes()).is_err(), "{:.60}", body);
        }
        // A schema may have a property of that name.
        let tools = r#"{"tools":[{"parameters":{"properties":{"content":[{"logprobs":{"type":"number"}}]}}}]}"#;
        let expected: Value = serde_json::from_str(tools).unwrap();
        assert_eq!(parse_with_items(tools.as_bytes()).unwrap().into_value(), expected);
    }

    #[test]
    fn values_survive() {
        let body = br#"{"a":[1,-2,3.5,18446744073709551615,true,null,"x"],"b":{}}"#;
        let expected: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(parse(body).unwrap().into_value(), expected);
    }
}
