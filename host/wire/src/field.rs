//! Typed reading of single fields. Every error names the field, what is allowed and what was found, with the
//! codes that OpenAI uses (`invalid_type`, `integer_above_max_value`, ...).

use crate::json::{Entries, Node};
use crate::path::Path;
use tidegate_types::Reject;

/// A 400 at `at`.
pub(crate) fn refuse(at: &Path<'_>, code: &str, message: impl FnOnce(&str) -> String) -> Reject {
    let param = at.render();
    let message = message(&param);
    Reject::invalid(param, message).code(code)
}

pub(crate) fn wrong_type(at: &Path<'_>, expected: &str, found: &Node<'_>) -> Reject {
    refuse(at, "invalid_type", |param| format!("`{param}` must be {expected}, not {}", found.describe()))
}

pub(crate) fn missing(at: &Path<'_>, expected: &str) -> Reject {
    refuse(at, "missing_required_parameter", |param| format!("`{param}` is required: {expected}"))
}

/// A field that exists in the protocol and that this server will not honour; `remedy` says what to do instead.
pub(crate) fn unsupported(at: &Path<'_>, remedy: &str) -> Reject {
    refuse(at, "unsupported_parameter", |param| format!("`{param}` is not supported: {remedy}"))
}

/// A word that is none of the allowed ones.
pub(crate) fn not_one_of(at: &Path<'_>, allowed: &str, found: &str) -> Reject {
    let found: String = found.chars().take(40).collect();
    refuse(at, "invalid_value", |param| format!("`{param}` must be one of {allowed}, not {found:?}"))
}

pub(crate) fn string(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    match node {
        Node::Str(text) => Ok(text.into_owned()),
        other => Err(wrong_type(at, "a string", &other)),
    }
}

/// A string of 1 to `max` bytes.
pub(crate) fn short_string(node: Node<'_>, at: &Path<'_>, max: usize) -> Result<String, Reject> {
    let text = string(node, at)?;
    if text.is_empty() {
        return Err(refuse(at, "empty_string", |param| format!("`{param}` must not be empty")));
    }
    at_most(&text, at, max)?;
    Ok(text)
}

/// A name of 1 to `max` bytes, as [`check_name`] allows it.
pub(crate) fn name(node: Node<'_>, at: &Path<'_>, max: usize) -> Result<String, Reject> {
    let text = short_string(node, at, max)?;
    check_name(&text, at, max)?;
    Ok(text)
}

/// What a caller names goes into journals, databases and back: it has at most `max` bytes and no control characters,
/// of which Postgres does not take all.
pub(crate) fn check_name(text: &str, at: &Path<'_>, max: usize) -> Result<(), Reject> {
    at_most(text, at, max)?;
    if text.chars().any(char::is_control) {
        return Err(refuse(at, "invalid_value", |param| format!("`{param}` must not contain control characters")));
    }
    Ok(())
}

pub(crate) fn at_most(text: &str, at: &Path<'_>, max: usize) -> Result<(), Reject> {
    let len = text.len();
    if len > max {
        return Err(refuse(at, "string_above_max_length", |param| {
            format!("`{param}` must have at most {max} bytes, not {len}")
        }));
    }
    Ok(())
}

pub(crate) fn boolean(node: &Node<'_>, at: &Path<'_>) -> Result<bool, Reject> {
    match node {
        Node::Bool(value) => Ok(*value),
        other => Err(wrong_type(at, "true or false", other)),
    }
}

pub(crate) fn list<'a>(node: Node<'a>, at: &Path<'_>) -> Result<Vec<Node<'a>>, Reject> {
    match node {
        Node::List(items) => Ok(items),
        other => Err(wrong_type(at, "a list", &other)),
    }
}

pub(crate) fn object<'a>(node: Node<'a>, at: &Path<'_>) -> Result<Entries<'a>, Reject> {
    match node {
        Node::Map(entries) => Ok(entries),
        other => Err(wrong_type(at, "an object", &other)),
    }
}

/// An integer in `min..=max`.
pub(crate) fn integer(node: &Node<'_>, at: &Path<'_>, min: i64, max: i64) -> Result<i64, Reject> {
    let value = match node {
        Node::Int(value) => *value,
        Node::Uint(_) => i64::MAX,
        other => return Err(wrong_type(at, "an integer", other)),
    };
    if value < min || matches!(node, Node::Uint(_)) || value > max {
        let code = if value < min { "integer_below_min_value" } else { "integer_above_max_value" };
        return Err(refuse(at, code, |param| {
            format!("`{param}` must be an integer between {min} and {max}, not {}", node.describe())
        }));
    }
    Ok(value)
}

/// As [`integer`], for ranges inside `u32`.
pub(crate) fn small_integer(node: &Node<'_>, at: &Path<'_>, min: u32, max: u32) -> Result<u32, Reject> {
    let value = integer(node, at, i64::from(min), i64::from(max))?;
    u32::try_from(value).map_err(|_| wrong_type(at, "an integer", node))
}

/// The numbers a field allows, both ends among them.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Range {
    pub(crate) const fn closed(min: f64, max: f64) -> Self {
        Self { min, max }
    }
}

pub(crate) fn number(node: &Node<'_>, at: &Path<'_>, range: Range) -> Result<f32, Reject> {
    let value = match node {
        Node::Int(value) => *value as f64,
        Node::Uint(value) => *value as f64,
        Node::Float(value) => *value,
        other => return Err(wrong_type(at, "a number", other)),
    };
    let Range { min, max } = range;
    if !(min..=max).contains(&value) {
        let code = if value < min { "decimal_below_min_value" } else { "decimal_above_max_value" };
        return Err(refuse(at, code, |param| format!("`{param}` must be between {min} and {max}, not {value}")));
    }
    // A positive value must not become zero where zero means something else (greedy, off).
    let narrow = value as f32;
    Ok(if narrow == 0.0 && value > 0.0 { f32::MIN_POSITIVE } else { narrow })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_at_their_ends() {
        let at = Path::ROOT.key("x");
        let closed = Range::closed(0.0, 2.0);
        assert_eq!(number(&Node::Int(0), &at, closed).unwrap(), 0.0);
        assert_eq!(number(&Node::Float(2.0), &at, closed).unwrap(), 2.0);
        assert!(number(&Node::Float(2.0000001), &at, closed).is_err());
        let reject = number(&Node::Int(-1), &at, closed).unwrap_err();
        assert_eq!(reject.message, "`x` must be between 0 and 2, not -1");
        assert!(number(&Node::Float(1e-60), &at, closed).unwrap() > 0.0);
    }

    #[test]
    fn integers_refuse_floats_and_overflow() {
        let at = Path::ROOT.key("n");
        assert!(integer(&Node::Float(1.0), &at, 0, 9).is_err());
        assert!(integer(&Node::Uint(u64::MAX), &at, i64::MIN, i64::MAX).is_err());
        assert_eq!(integer(&Node::Int(i64::MIN), &at, i64::MIN, i64::MAX).unwrap(), i64::MIN);
        let reject = small_integer(&Node::Int(17), &at, 1, 16).unwrap_err();
        assert_eq!(reject.message, "`n` must be an integer between 1 and 16, not the number 17");
    }
}
