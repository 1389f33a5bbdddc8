//! A JSON object of a known file: typed, bounded reads whose errors name file and key.
//!
//! `null` counts as absent, as transformers writes `null` for what is off; [`Object::is_null`] tells the two apart
//! where the meaning differs.

use crate::error::ModelError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// An object in a file.
#[derive(Debug)]
pub(crate) struct Object {
    path: PathBuf,
    /// Keys that lead to it, each with a dot behind; empty at the top.
    prefix: String,
    map: Map<String, Value>,
}

impl Object {
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ModelError> {
        let bad = |why: String| ModelError::Json { path: path.to_owned(), why };
        match serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))? {
            Value::Object(map) => Ok(Self { path: path.to_owned(), prefix: String::new(), map }),
            _ => Err(bad("it is not a JSON object".to_owned())),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The error that `key` is wrong.
    pub(crate) fn wrong(&self, key: &str, why: impl Into<String>) -> ModelError {
        ModelError::Key { path: self.path.clone(), key: format!("{}{key}", self.prefix), why: why.into() }
    }

    /// The error that `key` asks for something that is not supported.
    pub(crate) fn unsupported(&self, key: &str, value: &str, supported: &str) -> ModelError {
        let what = format!("`{}{key}` = {value}", self.prefix);
        ModelError::Unsupported { path: self.path.clone(), what, supported: supported.to_owned() }
    }

    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The value, unless it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        kind: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong(key, format!("is {}; it must be {kind}", short(value))))
    }

    /// A whole number in `range`.
    pub(crate) fn uint(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ModelError> {
        let kind = format!("a whole number from {} to {}", range.start(), range.end());
        let convert = |v: &Value| v.as_u64().and_then(|x| usize::try_from(x).ok()).filter(|x| range.contains(x));
        self.read(key, &kind, convert)
    }

    /// A whole number, of either sign.
    pub(crate) fn int(&self, key: &str) -> Result<Option<i64>, ModelError> {
        self.read(key, "a whole number", Value::as_i64)
    }

    /// A number in `range`.
    pub(crate) fn float(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ModelError> {
        let kind = format!("a number from {} to {}", range.start(), range.end());
        self.read(key, &kind, |v| v.as_f64().filter(|x| range.contains(x)))
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.read(key, "a string", Value::as_str)
    }

    /// A list of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        self.read(key, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    /// A token id or a list of them, each below `vocab`.
    pub(crate) fn token_ids(&self, key: &str, vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
        let id = |v: &Value| v.as_u64().filter(|x| *x < vocab as u64).map(|x| x as u32);
        self.read(key, &format!("a token id below {vocab}, or a list of them"), |v| match v {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => id(one).map(|x| vec![x]),
        })
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Object>, ModelError> {
        let map = self.read(key, "an object", Value::as_object)?;
        let prefix = format!("{}{key}.", self.prefix);
        Ok(map.map(|map| Object { path: self.path.clone(), prefix, map: map.clone() }))
    }

    /// `value`, or the error that `key` is missing.
    pub(crate) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, ModelError> {
        value.ok_or_else(|| self.wrong(key, "is missing"))
    }
}

/// A value as it may stand in a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
