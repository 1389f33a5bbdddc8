//! The filter `tojson`: JSON as Python's `json.dumps` writes it, which is what models saw in training.
//!
//! Differences from Jinja's own filter are those of transformers: no HTML escapes, no ASCII escapes, keys in
//! the order given, and `, ` and `: ` between items.

use crate::veil::is_stand_in;
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// The filter's arguments by position.
type Positional = (Option<bool>, Option<Value>, Option<Value>, Option<bool>);

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let (ensure_ascii, indent, separators, sort_keys): Positional = from_args(&args)?;
    let ensure_ascii = ensure_ascii.or(options.get("ensure_ascii")?).unwrap_or(false);
    let sort_keys = sort_keys.or(options.get("sort_keys")?).unwrap_or(false);
    let indent = unit_of_indent(indent.or(options.get("indent")?))?;
    let separators = separators.or(options.get("separators")?).filter(|value| !value.is_none());
    options.assert_all_used()?;
    let (item, key) = match separators {
        Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer { out: String::new(), ensure_ascii, sort_keys, indent, item, key, depth: 0 };
    writer.value(value)?;
    Ok(Value::from(writer.out))
}

/// A number of spaces, or the text itself.
fn unit_of_indent(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|value| !value.is_none() && !value.is_undefined()) else { return Ok(None) };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = indent.as_usize().filter(|spaces| *spaces <= 64);
    spaces.map(|spaces| Some(" ".repeat(spaces))).ok_or_else(|| unserializable("an indent that is no small number"))
}

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    item.as_str().map(str::to_owned).ok_or_else(|| unserializable("separators that are no texts"))
}

fn unserializable(what: &str) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("cannot write {what} as JSON"))
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => return Err(unserializable(&kind.to_string())),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&python_float(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.escape(c),
                // A stand-in becomes its own character only after rendering.
                c if self.ensure_ascii && c > '~' && !is_stand_in(c) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.out.push('[');
        self.depth += 1;
        let mut num_items = 0;
        for item in value.try_iter()? {
            self.before_item(num_items);
            self.value(&item)?;
            num_items += 1;
        }
        self.end(num_items, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        self.out.push('{');
        self.depth += 1;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        for (index, key) in keys.iter().enumerate() {
            self.before_item(index);
            self.text(&key_text(key)?);
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?)?;
        }
        self.end(keys.len(), '}');
        Ok(())
    }

    fn before_item(&mut self, index: usize) {
        if index > 0 {
            self.out.push_str(&self.item);
        }
        self.line_break();
    }

    fn end(&mut self, num_items: usize, bracket: char) {
        self.depth -= 1;
        if num_items > 0 {
            self.line_break();
        }
        self.out.push(bracket);
    }

    fn line_break(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(self.depth));
        }
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(python_float(f64::try_from(key.clone())?)),
        kind => Err(unserializable(&format!("a key of type {kind}"))),
    }
}

/// Python's `repr` of a float. Rust's debug form switches to exponents at the same places, but writes them
/// without sign and padding.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let plain = format!("{value:?}");
    match plain.split_once('e').map(|(mantissa, exponent)| (mantissa, exponent.parse::<i32>())) {
        Some((mantissa, Ok(exponent))) => {
            let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
            format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => plain,
    }
}
