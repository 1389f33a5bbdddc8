//! The JSON inside of an answer that says more: code fences, and prose before and behind. Nothing is made up and
//! nothing inside of the value is touched: an answer with a trailing comma, single quotes or a missing brace stays
//! invalid, and so does one with two values, for nobody knows which was meant.

use crate::json::{is_space, parse, parse_prefix};
use serde::Deserialize;
use std::ops::Range;

/// What may be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Repair {
    /// One pair of code fences around everything.
    Fences,
    /// Text before and behind one object or array.
    Prose,
}

/// Where the JSON of an answer is; all of it where nothing has to be taken away.
pub fn find(text: &str, repairs: &[Repair]) -> Range<usize> {
    let mut whole = trimmed(text, 0..text.len());
    if repairs.contains(&Repair::Fences)
        && let Some(inside) = unfenced(text, whole.clone())
    {
        whole = inside;
    }
    // A string may say anything: brackets within one that is the whole answer are its own.
    if repairs.contains(&Repair::Prose)
        && let Some(only) = only_value(text, whole.clone())
        && (only == whole || parse(&text[whole.clone()]).is_err())
    {
        return only;
    }
    whole
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let inside = &text[range.clone()];
    let blank = |c: char| is_space(c) || c == '\u{FEFF}';
    let start = range.start + (inside.len() - inside.trim_start_matches(blank).len());
    start..(start + inside.trim_matches(blank).len())
}

/// The inside of one fence that begins and ends the text.
fn unfenced(text: &str, whole: Range<usize>) -> Option<Range<usize>> {
    let inside = text[whole.clone()].strip_prefix("```")?;
    let language = inside.find('\n')?;
    let known = inside[..language].trim();
    let body = inside[language..].strip_suffix("```").filter(|_| known.is_empty() || is_json_name(known))?;
    let start = whole.start + "```".len() + language;
    Some(trimmed(text, start..start + body.len())).filter(|inside| !text[inside.clone()].contains("```"))
}

fn is_json_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("json") || name.eq_ignore_ascii_case("json5") || name.eq_ignore_ascii_case("jsonc")
}

/// Of `\u0000`; a shorter one is cut off.
const ESCAPE_BYTES: usize = 6;

/// How many places are tried: prose may hold brackets of its own.
const MAX_TRIES: usize = 32;

/// The one object or array of a text; brackets that are no JSON are prose.
fn only_value(text: &str, whole: Range<usize>) -> Option<Range<usize>> {
    let mut found: Option<Range<usize>> = None;
    let (mut at, mut tries) = (whole.start, 0);
    while let Some(start) = text[at..whole.end].find(['{', '[']).map(|offset| at + offset) {
        tries += 1;
        if tries > MAX_TRIES {
            return None;
        }
        match parse_prefix(&text[start..whole.end]) {
            Ok(_) if found.is_some() => return None,
            Ok((_, len)) => {
                found = Some(start..start + len);
                at = start + len;
            }
            // Broken JSON that is cut off or misspelt may hold sound parts, which are not what was meant.
            Err(problem) if problem.at > 1 && is_object_or_cut_off(&text[start..whole.end], problem.at) => return None,
            Err(_) => at = start + 1,
        }
    }
    found
}

/// Whether what begins a text and fails at a byte can be no prose. In what is cut off all that follows is inside of it.
fn is_object_or_cut_off(text: &str, failed_at: usize) -> bool {
    let left = text.get(failed_at..).unwrap_or_default();
    let begins_one_of = |names: [&str; 3]| names.iter().any(|name| name.starts_with(left));
    text.starts_with('{')
        || begins_one_of(["true", "false", "null"])
        || (left.starts_with('\\') && left.len() < ESCAPE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_and_prose_are_taken_away_and_nothing_else() {
        let check = |text: &str, repairs: &[Repair], expected: &str| {
            assert_eq!(&text[find(text, repairs)], expected, "{text}");
        };
        let both = [Repair::Fences, Repair::Prose];
        check(" {\"a\":1}\n", &[], "{\"a\":1}");
        check("```json\n{\"a\":1}\n```", &both, "{\"a\":1}");
        check("```\n[1]\n```\n", &[Repair::Fences], "[1]");
        check("Sure! Here it is:\n```json\n{\"a\":1}\n```\nAnything else?", &both, "{\"a\":1}");
        check("Sure: {\"a\":[1]} as of [today].", &[Repair::Prose], "{\"a\":[1]}");
        check("```json\nHere it is:\n{\"a\":1}\n```", &both, "{\"a\":1}");
        check("```json\nHere it is:\n{\"a\":1}\n```", &[Repair::Fences], "Here it is:\n{\"a\":1}");
        check("```\n[1]\n[2]\n```", &both, "[1]\n[2]");
        check("```python\n{}\n```", &[Repair::Fences], "```python\n{}\n```");
        let untouched =
            ["{\"a\":1} or {\"a\":2}", "{\"a\":[1],}", "x {\"a\":{\"b\":1}", "no json", "{'a':{}}", "```json\n{}"];
        check(untouched[0], &both, untouched[0]);
        check(untouched[1], &both, untouched[1]);
        check(untouched[2], &both, untouched[2]);
        check(untouched[3], &both, untouched[3]);
        check(untouched[5], &[Repair::Fences], untouched[5]);
        for cut_off in ["Here: [[true],[fals", "Here: [{\"a\":1}, nul", "[[\"x\"],[\"y\\", "[[\"x\"],[\"y\\u00"] {
            check(cut_off, &both, cut_off);
        }
        for cut_off in ["Sure: [1, {\"a\":1}", "[\"{}", "[[1], [2]", "{\"a\":1} and [{\"b\":2}"] {
            check(cut_off, &both, cut_off);
        }
        check("{\"a\":1} as of [", &both, "{\"a\":1}");
        check("\"see [1]\"", &both, "\"see [1]\"");
        check("```json\n\"see [1]\"\n```", &both, "\"see [1]\"");
        check("\"see\" [1]", &both, "[1]");
    }
}
