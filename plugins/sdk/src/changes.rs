//! What a guard changes in a prompt in one call, within what a result may have. Where changes are many, neighbours become one:
//! what stands between them is written again as it is. So however often something is found in a prompt, all of it goes.

use crate::stages::Edit;
use crate::types::Span;
use std::ops::Range;

/// So many edits leave most of a stage's `output_bytes` to their texts; the first hosts took no more of one call.
pub const MAX_EDITS: usize = 4096;

/// Below this many, each change is an edit of its own.
const FEW: usize = 512;

/// About what an edit costs beside its texts; between two changes that are nearer to each other, it is more than the text.
const EDIT_BYTES: usize = 160;

/// What all edits may cost, so that findings beside them fit into a stage's `output_bytes` of 1 MiB too.
const MAX_BYTES: usize = 900 << 10;

/// Changes to a prompt. Those of one part are added behind each other, in the order of its bytes, and none overlap.
#[derive(Debug, Default)]
pub struct Changes<'a> {
    texts: Vec<Change<'a>>,
    arguments: Vec<(String, String)>,
}

#[derive(Debug)]
struct Change<'a> {
    message_id: &'a str,
    part: usize,
    /// The whole part as it is.
    old: &'a str,
    range: Range<usize>,
    new: String,
}

impl<'a> Changes<'a> {
    /// Replaces bytes of a text part, which is `old` as a whole.
    pub fn replace(&mut self, message_id: &'a str, part: usize, old: &'a str, range: Range<usize>, new: String) {
        self.texts.push(Change { message_id, part, old, range, new });
    }

    /// Replaces a tool call's arguments by other JSON.
    pub fn set_arguments(&mut self, call_id: &str, json: String) {
        self.arguments.push((call_id.into(), json));
    }

    /// The edits; `None` where they are more than one result may have, however they are put.
    pub fn into_edits(self) -> Option<Vec<Edit>> {
        let texts = joined(self.texts, MAX_EDITS.saturating_sub(self.arguments.len()));
        let arguments = self.arguments.into_iter().map(|(call, json)| Edit::SetArguments(call, json));
        let edits: Vec<Edit> = arguments.chain(texts.into_iter().map(Change::into_edit)).collect();
        (edits.len() <= MAX_EDITS && edits.iter().map(cost).sum::<usize>() <= MAX_BYTES).then_some(edits)
    }
}

impl Change<'_> {
    fn into_edit(self) -> Edit {
        Edit::ReplaceText {
            message_id: self.message_id.into(),
            part: u32::try_from(self.part).unwrap_or(u32::MAX),
            span: Span::of(self.range),
            text: self.new,
        }
    }

    /// Bytes up to the next change, where that is of the same text.
    fn gap(&self, next: &Self) -> Option<usize> {
        let is_same = self.message_id == next.message_id && self.part == next.part;
        is_same.then(|| next.range.start.saturating_sub(self.range.end))
    }
}

fn cost(edit: &Edit) -> usize {
    EDIT_BYTES
        + match edit {
            Edit::ReplaceText { message_id, text, .. } => message_id.len() + text.len(),
            Edit::SetArguments(call, json) => call.len() + json.len(),
            Edit::PutMessage { .. } | Edit::DropMessage(_) | Edit::SetParam(..) => 0,
        }
}

/// At most `most` changes where that can be, those joined that are nearest to each other.
fn joined(changes: Vec<Change<'_>>, most: usize) -> Vec<Change<'_>> {
    if changes.len() <= FEW.min(most) {
        return changes;
    }
    let near = near(&changes, most);
    let mut kept: Vec<Change<'_>> = Vec::new();
    for change in changes {
        match kept.last_mut().filter(|last| last.gap(&change).is_some_and(|gap| gap <= near)) {
            Some(last) => {
                last.new.push_str(last.old.get(last.range.end..change.range.start).unwrap_or_default());
                last.new.push_str(&change.new);
                last.range.end = change.range.end;
            }
            None => kept.push(change),
        }
    }
    kept
}

/// The largest gap that is closed, so that at most `most` changes are left: whatever costs less than an edit, and more as far
/// as that is needed. Sorted rather than selected: where the standard library is built for size, as for wasm, selecting among
/// gaps that are alike takes the square of their number.
fn near(changes: &[Change<'_>], most: usize) -> usize {
    let (mut num_gaps, mut far) = (0, Vec::new());
    for gap in changes.windows(2).filter_map(|pair| pair[0].gap(&pair[1])) {
        num_gaps += 1;
        far.extend((gap > EDIT_BYTES).then_some(gap));
    }
    let excess = changes.len().saturating_sub(most).min(num_gaps);
    let more = excess.saturating_sub(num_gaps - far.len());
    far.sort_unstable();
    more.checked_sub(1).and_then(|last| far.get(last).copied()).unwrap_or(EDIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The texts with their edits applied, from the end.
    fn applied(mut texts: Vec<String>, edits: &[Edit]) -> Vec<String> {
        for edit in edits.iter().rev() {
            let Edit::ReplaceText { part, span, text, .. } = edit else { panic!("{edit:?}") };
            texts[*part as usize].replace_range(span.start as usize..span.end as usize, text);
        }
        texts
    }

    fn all(texts: &[String], found: &str) -> Option<Vec<Edit>> {
        let mut changes = Changes::default();
        for (part, text) in texts.iter().enumerate() {
            for (at, _) in text.match_indices(found) {
                changes.replace("m0", part, text, at..at + found.len(), "[x]".into());
            }
        }
        changes.into_edits()
    }

    #[test]
    fn a_few_changes_are_edits_of_their_own() {
        let edits = all(&["a@ b@".into(), "@".into()], "@").unwrap();
        let edit = |part, start| Edit::ReplaceText {
            message_id: "m0".into(),
            part,
            span: Span { start, end: start + 1 },
            text: "[x]".into(),
        };
        assert_eq!(edits, [edit(0, 1), edit(0, 4), edit(1, 0)]);
    }

    #[test]
    fn thousands_of_changes_fit_and_change_the_same() {
        // Near each other, far apart, and one in each of many parts.
        let apart: String = (0..4_100).map(|n| format!("secret{}", ".".repeat(165 + n % 20))).collect();
        let parts: Vec<String> = (0..4000).map(|n| format!("{n} secret")).collect();
        for texts in [vec!["secret\n".repeat(20_000)], vec![apart], parts] {
            let edits = all(&texts, "secret").unwrap();
            assert!(edits.len() <= MAX_EDITS, "{}", edits.len());
            let expected: Vec<String> = texts.iter().map(|text| text.replace("secret", "[x]")).collect();
            assert!(applied(texts, &edits) == expected);
        }
    }

    #[test]
    fn what_fits_no_way_is_said() {
        assert_eq!(all(&vec!["secret".to_owned(); MAX_EDITS + 1], "secret"), None);
        assert_eq!(all(&["secret\n".repeat(300_000)], "secret"), None);
        let mut changes = Changes::default();
        changes.set_arguments("c1", " ".repeat(MAX_BYTES));
        assert_eq!(changes.into_edits(), None);
    }

    proptest! {
        #[test]
        fn joined_changes_change_the_same(
            texts in proptest::collection::vec("[a@]{0,12}", 1..6),
            most in 0usize..12,
        ) {
            let mut changes = Vec::new();
            for (part, old) in texts.iter().enumerate() {
                for (at, _) in old.match_indices('@') {
                    changes.push(Change { message_id: "m0", part, old, range: at..at + 1, new: "[x]".into() });
                }
            }
            let edits: Vec<Edit> = joined(changes, most).into_iter().map(Change::into_edit).collect();
            let changed = texts.iter().filter(|text| text.contains('@')).count();
            prop_assert!(edits.len() <= most.max(changed));
            let expected: Vec<String> = texts.iter().map(|text| text.replace('@', "[x]")).collect();
            prop_assert_eq!(applied(texts, &edits), expected);
        }
    }
}
