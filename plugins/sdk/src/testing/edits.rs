//! What a guard's verdict makes of a message.

use crate::stages::{Action, Edit};
use crate::types::{Message, Part, Role};

/// A message as a prompt guard's verdict leaves it, as far as that changes texts and arguments.
///
/// # Panics
/// When an edit is of another message or of no text, or its place is not in the text.
#[expect(clippy::panic, reason = "a test helper fails its test")]
pub fn edited(message: &Message, action: &Action) -> Message {
    let mut message = message.clone();
    let Action::Rewrite(edits) = action else { return message };
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| if let Edit::ReplaceText { span, .. } = edit { span.start } else { 0 });
    for edit in edits.into_iter().rev() {
        let (part, range, new) = match edit {
            Edit::ReplaceText { message_id, part, span, text } => {
                assert_eq!(message_id, &message.id, "the edit is of another message");
                (*part as usize, Some(*span), text)
            }
            Edit::SetArguments(id, json) => {
                let calls = |part: &Part| matches!(part, Part::ToolCall(call) if call.id == *id);
                (message.parts.iter().position(calls).unwrap_or(usize::MAX), None, json)
            }
            other => panic!("{other:?} is no edit of a text"),
        };
        let old = match message.parts.get_mut(part) {
            Some(Part::Text(old) | Part::Reasoning(old) | Part::Refusal(old)) => old,
            Some(Part::ToolOutcome(outcome)) => &mut outcome.content,
            Some(Part::ToolCall(call)) => &mut call.arguments,
            _ => panic!("part {part} has no text"),
        };
        let range = range.map_or(0..old.len(), |span| span.start as usize..span.end as usize);
        old.replace_range(range, new);
    }
    message
}

/// Cuts a text into two parts of a message, at every place, and compares what is left of both together with what is left
/// of it in one part. Returns that.
///
/// # Panics
/// When something is left of the parts that is not left of the whole.
pub fn assert_same_for_any_parts(text: &str, inspect: impl Fn(&Message) -> Action) -> String {
    let left = |parts: &[&str]| {
        let parts = parts.iter().map(|text| Part::Text((*text).to_owned())).collect();
        let message = Message { parts, ..Message::text("m0", Role::User, "") };
        let edited = edited(&message, &inspect(&message));
        edited.texts().map(|(_, text)| text).collect::<String>()
    };
    let whole = left(&[text]);
    for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
        let (head, tail) = text.split_at(at);
        assert_eq!(left(&[head, tail]), whole, "in {head:?} and {tail:?}");
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Span;

    #[test]
    #[should_panic(expected = "the edit is of another message")]
    fn an_edit_of_another_message_is_found() {
        let edit = |id: &str| {
            Action::Rewrite(vec![Edit::ReplaceText {
                message_id: id.into(),
                part: 0,
                span: Span { start: 0, end: 5 },
                text: "bye".into(),
            }])
        };
        let message = Message::text("m7", Role::User, "hello you");
        assert_eq!(edited(&message, &edit("m7")).parts, [Part::Text("bye you".into())]);
        edited(&message, &edit("m0"));
    }
}
