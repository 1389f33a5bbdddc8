//! Applies a prompt guard's edits. Spans of one verdict refer to the text as the guard saw it, so edits of one
//! part are applied from its end.

use std::cmp::Reverse;
use tidegate_sandbox::stage::Edit;
use tidegate_types::{Chat, Message, Part, Span};

/// Edits the conversation.
pub(super) fn apply(chat: &mut Chat, edits: Vec<Edit>) -> Result<(), String> {
    if let Some(Edit::SetParam(name, _)) = edits.iter().find(|edit| matches!(edit, Edit::SetParam(..))) {
        return Err(format!("it may not set the sampling parameter `{name}`: the config allows none"));
    }
    apply_to(&mut chat.messages, edits)?;
    if chat.messages.is_empty() { Err("it dropped every message".into()) } else { Ok(()) }
}

/// Edits messages.
pub(super) fn apply_to(messages: &mut Vec<Message>, mut edits: Vec<Edit>) -> Result<(), String> {
    edits.sort_by_key(|edit| match edit {
        Edit::ReplaceText { span, .. } => (0, Reverse(span.start)),
        _ => (1, Reverse(0)),
    });
    check_overlaps(&edits)?;
    edits.into_iter().try_for_each(|edit| apply_one(messages, edit))
}

fn apply_one(messages: &mut Vec<Message>, edit: Edit) -> Result<(), String> {
    match edit {
        Edit::ReplaceText { message_id, part, span, text } => {
            let at = position(messages, &message_id)?;
            replace_text(&mut messages[at], part, span, &text)
        }
        Edit::PutMessage { after, message } => {
            let at = match after {
                Some(id) => position(messages, &id)? + 1,
                None => 0,
            };
            messages.insert(at, message);
            Ok(())
        }
        Edit::DropMessage(id) => {
            let at = position(messages, &id)?;
            messages.remove(at);
            Ok(())
        }
        Edit::SetArguments(call_id, arguments) => set_arguments(messages, &call_id, arguments),
        Edit::SetParam(name, _) => Err(format!("`{name}` is no part of a message")),
    }
}

fn position(messages: &[Message], id: &str) -> Result<usize, String> {
    messages.iter().position(|m| m.id == id).ok_or_else(|| format!("there is no message `{id}`"))
}

fn replace_text(message: &mut Message, part: u32, span: Span, text: &str) -> Result<(), String> {
    let id = message.id.clone();
    let target = match message.parts.get_mut(part as usize) {
        Some(Part::Text(target) | Part::Reasoning(target) | Part::Refusal(target)) => target,
        Some(Part::ToolOutcome(outcome)) => {
            outcome.structured = None;
            &mut outcome.content
        }
        _ => return Err(format!("part {part} of message `{id}` is no text")),
    };
    let range = span.start as usize..span.end as usize;
    if target.get(range.clone()).is_none() {
        return Err(format!("span {}..{} does not lie on characters of message `{id}`", span.start, span.end));
    }
    target.replace_range(range, text);
    Ok(())
}

fn set_arguments(messages: &mut [Message], call_id: &str, arguments: String) -> Result<(), String> {
    serde_json::from_str::<serde_json::Value>(&arguments)
        .map_err(|error| format!("arguments for call `{call_id}` are no JSON: {error}"))?;
    for part in messages.iter_mut().flat_map(|m| &mut m.parts) {
        if let Part::ToolCall(call) = part
            && call.id == call_id
        {
            call.arguments = arguments;
            return Ok(());
        }
    }
    Err(format!("there is no tool call `{call_id}`"))
}

/// Replacements are sorted from the end: each must end where the one behind it (in the text) starts, or before.
fn check_overlaps(edits: &[Edit]) -> Result<(), String> {
    for (i, edit) in edits.iter().enumerate() {
        let Edit::ReplaceText { message_id, part, span, .. } = edit else { continue };
        let clash = edits[..i].iter().any(|other| match other {
            Edit::ReplaceText { message_id: id, part: p, span: s, .. } => {
                id == message_id && p == part && span.end > s.start
            }
            _ => false,
        });
        if clash {
            return Err(format!("replacements in message `{message_id}` overlap at byte {}", span.end));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::Role;

    fn replace(span: (u32, u32), text: &str) -> Edit {
        Edit::ReplaceText {
            message_id: "m0".into(),
            part: 0,
            span: Span { start: span.0, end: span.1 },
            text: text.into(),
        }
    }

    fn edited(text: &str, edits: Vec<Edit>) -> Result<String, String> {
        let mut messages = vec![Message::text("m0", Role::User, text)];
        apply_to(&mut messages, edits)?;
        Ok(messages[0].joined_text())
    }

    #[test]
    fn spans_refer_to_the_text_as_the_guard_saw_it() {
        let edits = vec![replace((0, 1), "[first]"), replace((2, 3), "[third]")];
        assert_eq!(edited("abc", edits).unwrap(), "[first]b[third]");
    }

    #[test]
    fn overlapping_replacements_are_refused() {
        let why = edited("abcdef", vec![replace((0, 3), "x"), replace((2, 4), "y")]).unwrap_err();
        assert!(why.contains("overlap at byte 3"), "{why}");
    }

    #[test]
    fn a_span_inside_a_character_is_refused() {
        assert!(edited("é", vec![replace((0, 1), "e")]).is_err());
        assert!(edited("é", vec![replace((0, 9), "e")]).is_err());
    }

    #[test]
    fn unknown_messages_are_named() {
        let mut messages = vec![Message::text("m0", Role::User, "a")];
        let why = apply_to(&mut messages, vec![Edit::DropMessage("m7".into())]).unwrap_err();
        assert_eq!(why, "there is no message `m7`");
    }
}
