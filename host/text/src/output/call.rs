//! The body of a tool call in the formats that models use, behind the mark that opens it.
//!
//! | format | body |
//! |---|---|
//! | Hermes | an object with `name` and `arguments` |
//! | Llama | an object with `name` and `parameters` |
//! | Mistral | an array of objects as in Hermes, or `name`, an optional `[CALL_ID]id`, `[ARGS]`, the arguments |
//!
//! Names of the fields are taken in either spelling. Arguments are an object; JSON text of an object inside a
//! string, which some models write, is unwrapped; missing ones are the empty object where a mark says that it is a call.
//! Without one, an object without arguments is an answer in JSON.

use super::MAX_CALL_BYTES;
use super::scan::{Scanned, Scanner};
use crate::dialect::ToolFormat;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use tidegate_types::ToolCall;

/// First keys of an object that may be a call where no mark says so; others are an answer in JSON.
const CALL_KEYS: [&str; 6] = ["name", "type", "function", "parameters", "arguments", "id"];

/// Longest name of a tool, with Mistral's call id.
const MAX_HEADER_BYTES: usize = 256;

/// What is known of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// It may go on.
    Incomplete,
    /// It is none.
    Malformed,
    /// These calls, each a name and JSON text of its arguments, in so many bytes.
    Complete { calls: Vec<(String, String)>, len: usize },
}

/// What shows that a call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The format's mark.
    Mark,
    /// Nothing but the object itself.
    Bare,
}

/// The reader of one body, kept while the text grows.
#[derive(Debug)]
pub(super) struct Body {
    format: ToolFormat,
    opening: Opening,
    /// Where the JSON starts, and how far it was read.
    json: Option<(usize, Scanner)>,
}

impl Body {
    pub fn new(format: ToolFormat, opening: Opening) -> Self {
        Self { format, opening, json: None }
    }

    /// Looks at the text behind the mark, which has only grown since the last look.
    pub fn read(&mut self, text: &str, is_last: bool) -> Call {
        let unfinished = if is_last { Call::Malformed } else { Call::Incomplete };
        if self.json.is_none() {
            match self.find_json(text) {
                Start::At(at) => self.json = Some((at, Scanner::default())),
                Start::Unknown => return unfinished,
                Start::Nowhere => return Call::Malformed,
            }
        }
        let Some((start, scanner)) = &mut self.json else { return unfinished };
        let window = &text[*start..];
        let window = &window[..window.floor_char_boundary(MAX_CALL_BYTES)];
        if self.format == ToolFormat::LlamaJson && !may_be_call(window) {
            return Call::Malformed;
        }
        match scanner.scan(window) {
            Scanned::Complete(len) => match self.calls(text, len) {
                Some(calls) => Call::Complete { calls, len: start_of(&self.json) + len },
                None => Call::Malformed,
            },
            Scanned::Invalid => Call::Malformed,
            Scanned::Incomplete if text.len() - *start >= MAX_CALL_BYTES => Call::Malformed,
            Scanned::Incomplete => unfinished,
        }
    }

    fn find_json(&self, text: &str) -> Start {
        let blank = text.len() - text.trim_start().len();
        match (self.format, text[blank..].chars().next()) {
            (_, None) => Start::Unknown,
            (_, Some('{')) | (ToolFormat::Mistral, Some('[')) => Start::At(blank),
            (ToolFormat::Mistral, Some(_)) => named_start(text),
            _ => Start::Nowhere,
        }
    }

    fn calls(&self, text: &str, len: usize) -> Option<Vec<(String, String)>> {
        let start = start_of(&self.json);
        let json = &text[start..start + len];
        let header = text[..start].trim();
        if !header.is_empty() {
            let name = header.split('[').next().unwrap_or_default().trim();
            return Some(vec![(name.to_owned(), object_text(json)?)]);
        }
        if json.starts_with('[') {
            let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
            let calls: Option<Vec<_>> = items.iter().map(|item| one_call(item.get(), self.opening)).collect();
            return calls.filter(|calls| !calls.is_empty());
        }
        Some(vec![one_call(json, self.opening)?])
    }
}

fn start_of(json: &Option<(usize, Scanner)>) -> usize {
    json.as_ref().map_or(0, |(start, _)| *start)
}

/// Where a body's JSON starts.
enum Start {
    At(usize),
    /// The text ends before that is decided.
    Unknown,
    Nowhere,
}

/// Mistral's newer form: `name[ARGS]{`, `name[CALL_ID]id[ARGS]{`, `name{`.
fn named_start(text: &str) -> Start {
    let header_len = text.find('{').unwrap_or(text.len()).min(MAX_HEADER_BYTES);
    let header = &text[..text.floor_char_boundary(header_len)];
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.[]".contains(c) || c.is_whitespace();
    if !header.chars().all(is_allowed) {
        return Start::Nowhere;
    }
    match text[header.len()..].chars().next() {
        Some('{') if is_named_header(header.trim()) => Start::At(header.len()),
        None => Start::Unknown,
        Some(_) => Start::Nowhere,
    }
}

fn is_named_header(header: &str) -> bool {
    let name_len = header.find('[').unwrap_or(header.len());
    let (name, marks) = header.split_at(name_len);
    let is_name = !name.trim().is_empty() && !name.trim().contains(char::is_whitespace);
    let marks = marks.trim().strip_prefix("[CALL_ID]").map_or(marks.trim(), |rest| {
        rest.trim_start().trim_start_matches(|c: char| c.is_ascii_alphanumeric()).trim_start()
    });
    is_name && (marks.is_empty() || marks == "[ARGS]")
}

/// Whether an object that has begun may still be a call, by its first key.
fn may_be_call(json: &str) -> bool {
    let inside = json[1..].trim_start();
    let Some(key) = inside.strip_prefix('"') else { return inside.is_empty() };
    match key.split_once('"') {
        Some((key, _)) => CALL_KEYS.contains(&key),
        None => CALL_KEYS.iter().any(|known| known.starts_with(key)),
    }
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    function: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    parameters: Option<&'a RawValue>,
}

/// A field that is there, be it null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

fn one_call(json: &str, opening: Opening) -> Option<(String, String)> {
    let fields: Fields<'_> = serde_json::from_str(json).ok()?;
    let is_name = |name: &Cow<'_, str>| (1..=ToolCall::MAX_NAME_BYTES).contains(&name.len());
    let name = fields.name.or(fields.function).filter(is_name)?;
    let arguments = match (fields.arguments.or(fields.parameters), opening) {
        (Some(arguments), _) => object_text(arguments.get())?,
        (None, Opening::Mark) => "{}".to_owned(),
        (None, Opening::Bare) => return None,
    };
    Some((name.into_owned(), arguments))
}

/// JSON text of an object, out of an object, a string that holds one, or null.
fn object_text(json: &str) -> Option<String> {
    match json.trim_start().chars().next()? {
        '{' => is_json(json).then(|| json.to_owned()),
        '"' => {
            let inside: String = serde_json::from_str(json).ok()?;
            (inside.trim_start().starts_with('{') && is_json(&inside)).then_some(inside)
        }
        'n' => Some("{}".to_owned()),
        _ => None,
    }
}

/// Whatever its numbers: 1e999 is JSON, which no float holds.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}
