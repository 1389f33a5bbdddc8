//! Cuts a text into passages: at headings and blank lines where it can, else at the end of a line, a sentence or a
//! word.
//!
//! Invariant: passages are in order and apart, each at most half as long again as asked, on character borders, and
//! all text but white space lies in one.

use std::ops::Range;

/// Passages of about `wanted` bytes.
pub fn split(text: &str, wanted: usize) -> Vec<Range<usize>> {
    let mut passages: Vec<Range<usize>> = Vec::new();
    let mut current = 0..0;
    for paragraph in paragraphs(text) {
        let is_full = paragraph.end - current.start > wanted;
        let is_heading = text[paragraph.clone()].starts_with('#') && current.len() >= wanted / 4;
        if !current.is_empty() && (is_full || is_heading) {
            passages.push(current.clone());
            current = paragraph.clone();
        }
        current = if current.is_empty() { paragraph } else { current.start..paragraph.end };
        while current.len() > wanted + wanted / 2 {
            let cut = current.start + cut_at(&text[current.clone()], wanted);
            passages.push(trim(text, current.start..cut));
            current = trim(text, cut..current.end);
        }
    }
    if !current.is_empty() {
        passages.push(current);
    }
    passages.retain(|passage| !passage.is_empty());
    passages
}

/// Stretches between blank lines, without white space around them; a heading is one of its own.
fn paragraphs(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = 0..0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let range = at..at + line.len();
        at = range.end;
        if line.trim().is_empty() || line.starts_with('#') {
            found.push(std::mem::replace(&mut current, range.end..range.end));
        }
        if !line.trim().is_empty() {
            current = if current.is_empty() { range } else { current.start..range.end };
        }
    }
    found.push(current);
    found.into_iter().map(|range| trim(text, range)).filter(|range| !range.is_empty()).collect()
}

fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let inner = &text[range.clone()];
    let start = range.start + (inner.len() - inner.trim_start().len());
    start..start + inner.trim().len()
}

/// Where to cut a text that is too long: the last good place within `wanted` bytes, at least one character in.
fn cut_at(text: &str, wanted: usize) -> usize {
    let head = &text[..text.floor_char_boundary(wanted)];
    let good = [head.rfind('\n'), sentence_end(head), head.rfind(char::is_whitespace)];
    let place = good.into_iter().flatten().find(|at| *at >= wanted / 2).unwrap_or(head.len());
    let first = text.chars().next().map_or(1, char::len_utf8);
    place.max(first)
}

fn sentence_end(text: &str) -> Option<usize> {
    let ends = [". ", "! ", "? "].iter().filter_map(|end| Some(text.rfind(end)? + 1));
    let wide = ["。", "！", "？"].iter().filter_map(|end| Some(text.rfind(end)? + end.len()));
    ends.chain(wide).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(text: &str, wanted: usize) -> Vec<&str> {
        split(text, wanted).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn passages_end_at_headings_and_blank_lines() {
        let text = "# Ferry\n\nIt leaves at 7:45.\n\nA ticket costs 12 euros.\n\n# Museum\nClosed on Mondays.\n";
        assert_eq!(
            pieces(text, 60),
            ["# Ferry\n\nIt leaves at 7:45.\n\nA ticket costs 12 euros.", "# Museum\nClosed on Mondays."]
        );
        assert_eq!(
            pieces(text, 30),
            ["# Ferry\n\nIt leaves at 7:45.", "A ticket costs 12 euros.", "# Museum\nClosed on Mondays."]
        );
        assert_eq!(pieces(" \n\n \n", 30), [""; 0]);
    }

    #[test]
    fn a_long_paragraph_is_cut_at_sentences_or_words() {
        let text = "One two three four five. Six seven eight nine ten eleven twelve.";
        assert_eq!(pieces(text, 40), ["One two three four five.", "Six seven eight nine ten eleven twelve."]);
        assert_eq!(pieces(&"x".repeat(100), 40).len(), 2);
    }

    proptest! {
        #[test]
        fn passages_are_in_order_bounded_and_hold_all_text(text in "[a-zé# .\n谢]{0,300}", wanted in 20usize..80) {
            let passages = split(&text, wanted);
            let mut end = 0;
            for passage in &passages {
                prop_assert!(passage.start >= end && passage.end > passage.start);
                prop_assert!(passage.len() <= wanted + wanted / 2, "{passage:?} for {wanted}");
                prop_assert!(text[end..passage.start].trim().is_empty());
                end = passage.end;
            }
            prop_assert!(text[end..].trim().is_empty());
        }
    }
}
