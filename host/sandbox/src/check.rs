//! Checks that several stages make on what a guest returned. Each error says what is wrong with which value, and
//! becomes [`crate::stage::CallError::BadResult`].

use crate::bindings::tidegate::plugin::types as wit;
use crate::convert;
use tidegate_types::{Finding, Span};

const MAX_FINDINGS: usize = 256;
const MAX_CATEGORY_BYTES: usize = 128;
/// A longer name is one of a message that is there: passages have those of where they come from.
const MAX_MESSAGE_ID_BYTES: usize = 128;

/// The span, when it lies in the text on character borders.
pub(crate) fn span(span: wit::Span, text: &str, what: &str) -> Result<Span, String> {
    let (start, end) = (span.start as usize, span.end as usize);
    if start > end || end > text.len() {
        return Err(format!("{what} is {start}..{end}, out of a text of {} bytes", text.len()));
    }
    if !text.is_char_boundary(start) || !text.is_char_boundary(end) {
        return Err(format!("{what} is {start}..{end}, which cuts a character"));
    }
    Ok(convert::span(span))
}

/// Refuses spans that overlap; sorts them. Two empty spans at one place overlap too: their order would be a guess.
pub(crate) fn disjoint<T>(items: &mut [T], span: impl Fn(&T) -> Span, what: &str) -> Result<(), String> {
    items.sort_by_key(|item| (span(item).start, span(item).end));
    for pair in items.windows(2) {
        let (a, b) = (span(&pair[0]), span(&pair[1]));
        if b.start < a.end || a == b {
            return Err(format!("{what} {}..{} and {}..{} overlap", a.start, a.end, b.start, b.end));
        }
    }
    Ok(())
}

/// The findings, when each span lies in the text that `text_of` gives for the finding's message.
pub(crate) fn findings<'t>(
    findings: Vec<wit::FindingResult>,
    text_of: impl Fn(Option<&str>) -> Result<&'t str, String>,
) -> Result<Vec<Finding>, String> {
    if findings.len() > MAX_FINDINGS {
        return Err(format!("{} findings; at most {MAX_FINDINGS}", findings.len()));
    }
    let check = |finding: wit::FindingResult| {
        let wit::FindingResult { category, severity, score, message_id, span, .. } = finding;
        if category.is_empty() || category.len() > MAX_CATEGORY_BYTES || category.contains(char::is_control) {
            return Err(format!("a finding's category is not a line of 1 to {MAX_CATEGORY_BYTES} bytes"));
        }
        if let Some(score) = score.filter(|score| !(0.0..=1.0).contains(score)) {
            return Err(format!("finding `{category}` has the score {score}; scores are from 0 to 1"));
        }
        if message_id.as_ref().is_some_and(|id| id.len() > MAX_MESSAGE_ID_BYTES) {
            text_of(message_id.as_deref())?;
        }
        let span = match span {
            Some(found) => Some(self::span(found, text_of(message_id.as_deref())?, "a finding's span")?),
            None => None,
        };
        Ok(Finding { category, severity: convert::severity(severity), score, message_id, span })
    };
    findings.into_iter().map(check).collect()
}

/// The text that a finding about a window counts in. What is streamed has no message to name.
pub(crate) fn text_of_window<'t>(id: Option<&str>, text: &'t str) -> Result<&'t str, String> {
    match id {
        Some(id) if id.len() > MAX_MESSAGE_ID_BYTES => Err(format!(
            "a finding about a window names a message by {} bytes; at most {MAX_MESSAGE_ID_BYTES}",
            id.len()
        )),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_finding_says_is_bounded() {
        let check = |category: &str, message_id: &str| {
            let finding = wit::FindingResult {
                category: category.into(),
                severity: wit::Severity::Low,
                score: None,
                message_id: Some(message_id.into()),
                span: None,
                attrs: Vec::new(),
            };
            let text_of = |id: Option<&str>| {
                if id.is_some_and(|id| id.starts_with('m')) { Ok("") } else { Err("no such".into()) }
            };
            findings(vec![finding], text_of).map(|found| found.len())
        };
        assert_eq!(check("a:b", "m0"), Ok(1));
        assert_eq!(check(&"a".repeat(128), &"n".repeat(128)), Ok(1));
        assert_eq!(check("a", &"m".repeat(4_000)), Ok(1), "a message with a long id");
        assert!(check(&"a".repeat(129), "m0").unwrap_err().contains("category"));
        assert_eq!(check("a", &"n".repeat(129)), Err("no such".into()));
        assert!(findings(vec![], |_| Ok("")).is_ok_and(|found| found.is_empty()));
    }

    #[test]
    fn a_span_lies_in_the_text_on_characters() {
        let at = |start, end| span(wit::Span { start, end }, "aü€", "it");
        assert_eq!(at(0, 6), Ok(Span { start: 0, end: 6 }));
        assert_eq!(at(1, 3), Ok(Span { start: 1, end: 3 }));
        assert_eq!(at(6, 6), Ok(Span { start: 6, end: 6 }));
        for (start, end) in [(1, 2), (2, 3), (4, 6), (3, 5), (0, 7), (7, 7), (3, 1), (u32::MAX, 0), (0, u32::MAX)] {
            assert!(at(start, end).is_err(), "{start}..{end}");
        }
    }

    proptest! {
        #[test]
        fn every_accepted_span_can_be_sliced(text in ".{0,20}", start in 0u32..40, end in 0u32..40) {
            if let Ok(span) = span(wit::Span { start, end }, &text, "it") {
                prop_assert!(text.get(span.start as usize..span.end as usize).is_some());
            }
        }

        #[test]
        fn accepted_spans_are_sorted_and_share_no_byte(
            mut spans in prop::collection::vec((0u32..20, 0u32..5), 0..8)
        ) {
            let of = |&(start, len): &(u32, u32)| Span { start, end: start + len };
            let mut seen = [0u32; 32];
            for at in spans.iter().flat_map(|s| of(s).start..of(s).end) {
                seen[at as usize] += 1;
            }
            if disjoint(&mut spans, of, "spans").is_ok() {
                prop_assert!(seen.iter().all(|count| *count <= 1));
                prop_assert!(spans.windows(2).all(|pair| of(&pair[0]).end <= of(&pair[1]).start));
            }
        }
    }
}
