//! Makes the edits of a guard. Spans of one verdict refer to the text as the guard saw it. A verdict with edits that do not
//! fit is no verdict: the sandbox refuses it, and so the guard has failed, as `on_error` says.

mod moves;

use crate::context::RequestContext;
use crate::stage::Stage;
use moves::Move;
use std::collections::HashMap;
use tidegate_sandbox::stage::Edit;
use tidegate_types::{Fault, Message, Part, Reject, Span};

/// Edits messages as a guard wants. What does not fit is this program's mistake; the reason names what the guard named.
pub(super) fn apply(
    cx: &RequestContext,
    stage: &Stage,
    messages: &mut Vec<Message>,
    edits: Vec<Edit>,
) -> Result<(), Reject> {
    apply_to(messages, edits).map_err(|why| {
        debug_assert!(false, "the sandbox let an edit through: {why}");
        let why = cx.for_log(Some(why)).unwrap_or_else(|| "an edit that does not fit".into());
        Reject::internal(Fault::Operator, format!("the sandbox let an edit of `{}` through: {why}", stage.name))
    })
}

/// Whether they change which messages there are.
pub(super) fn moves(edits: &[Edit]) -> bool {
    edits.iter().any(|edit| matches!(edit, Edit::PutMessage { .. } | Edit::DropMessage(_)))
}

/// Edits messages: first texts and arguments, as the guard saw them, then which messages there are. Each text is copied
/// once, however many edits it has: a caller decides how many those are. What does not fit is an error, and leaves some of
/// them made.
pub fn apply_to(messages: &mut Vec<Message>, edits: Vec<Edit>) -> Result<(), String> {
    let (mut texts, mut arguments, mut moves) = (Vec::new(), Vec::new(), Vec::new());
    for edit in edits {
        match edit {
            Edit::ReplaceText { message_id, part, span, text } => {
                texts.push(Replacement { message_id, part, span, text });
            }
            Edit::SetArguments { message_id, part, arguments: new } => arguments.push((message_id, part, new)),
            Edit::PutMessage { after, message } => moves.push(Move::Put(after, message)),
            Edit::DropMessage(id) => moves.push(Move::Drop(id)),
        }
    }
    let positions: HashMap<String, usize> =
        messages.iter().enumerate().rev().map(|(at, m)| (m.id.clone(), at)).collect();
    let find = |id: &str| positions.get(id).copied().ok_or_else(|| unknown(id));
    replace_texts(messages, texts, find)?;
    set_arguments(messages, arguments, find)?;
    moves::make(messages, positions, moves)
}

struct Replacement {
    message_id: String,
    part: u32,
    span: Span,
    text: String,
}

fn unknown(id: &str) -> String {
    format!("there is no message `{id}`")
}

fn replace_texts(
    messages: &mut [Message],
    mut edits: Vec<Replacement>,
    find: impl Fn(&str) -> Result<usize, String>,
) -> Result<(), String> {
    edits.sort_by(|a, b| {
        (&a.message_id, a.part, a.span.start, a.span.end).cmp(&(&b.message_id, b.part, b.span.start, b.span.end))
    });
    let mut of_text = edits.chunk_by(|a, b| a.message_id == b.message_id && a.part == b.part);
    of_text.try_for_each(|edits| {
        let Some(Replacement { message_id, part, .. }) = edits.first() else { return Ok(()) };
        let text = text_of(&mut messages[find(message_id)?], *part)?;
        *text = replaced(text, edits)?;
        Ok(())
    })
}

fn text_of(message: &mut Message, part: u32) -> Result<&mut String, String> {
    match message.parts.get_mut(part as usize) {
        Some(Part::Text(text) | Part::Reasoning(text) | Part::Refusal(text)) => Ok(text),
        Some(Part::ToolOutcome(outcome)) => {
            outcome.structured = None;
            Ok(&mut outcome.content)
        }
        _ => Err(format!("part {part} of message `{}` is no text", message.id)),
    }
}

/// The text with its edits, which are sorted.
fn replaced(text: &str, edits: &[Replacement]) -> Result<String, String> {
    let mut new = String::with_capacity(text.len());
    let mut from = 0;
    for Replacement { message_id, span, text: instead, .. } in edits {
        let (start, end) = (span.start as usize, span.end as usize);
        if start < from {
            return Err(format!("replacements in message `{message_id}` overlap at byte {from}"));
        }
        let (Some(kept), Some(_)) = (text.get(from..start), text.get(start..end)) else {
            return Err(format!("span {start}..{end} does not lie on characters of message `{message_id}`"));
        };
        new.push_str(kept);
        new.push_str(instead);
        from = end;
    }
    new.push_str(text.get(from..).unwrap_or_default());
    Ok(new)
}

fn set_arguments(
    messages: &mut [Message],
    edits: Vec<(String, u32, String)>,
    find: impl Fn(&str) -> Result<usize, String>,
) -> Result<(), String> {
    edits.into_iter().try_for_each(|(message_id, part, new)| {
        match messages[find(&message_id)?].parts.get_mut(part as usize) {
            Some(Part::ToolCall(call)) => call.arguments = new,
            _ => return Err(format!("part {part} of message `{message_id}` is no tool call")),
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Role, ToolCall};

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

    #[test]
    fn texts_and_arguments_are_edited_wherever_they_are_and_messages_after_that() {
        let call = |id: &str| Part::ToolCall(ToolCall { id: id.into(), name: "f".into(), arguments: "{}".into() });
        let mut asked = Message::text("m1", Role::Assistant, "abc");
        asked.parts.extend([Part::Reasoning("def".into()), call("one"), call("two")]);
        let mut messages = vec![Message::text("m0", Role::User, "gone"), asked];
        let in_part = |part, span: (u32, u32), text: &str| Edit::ReplaceText {
            message_id: "m1".into(),
            part,
            span: Span { start: span.0, end: span.1 },
            text: text.into(),
        };
        let set =
            |part, arguments: &str| Edit::SetArguments { message_id: "m1".into(), part, arguments: arguments.into() };
        let edits = vec![
            Edit::DropMessage("m0".into()),
            in_part(1, (1, 2), "E"),
            set(3, "[2]"),
            in_part(0, (3, 3), "!"),
            in_part(0, (0, 1), ""),
        ];
        apply_to(&mut messages, edits).unwrap();
        assert_eq!(messages.len(), 1);
        let two = ToolCall { id: "two".into(), name: "f".into(), arguments: "[2]".into() };
        let expected = [Part::Text("bc!".into()), Part::Reasoning("dEf".into()), call("one"), Part::ToolCall(two)];
        assert_eq!(messages[0].parts, expected);
        for part in [0, 4] {
            let why = apply_to(&mut messages, vec![set(part, "{}")]).unwrap_err();
            assert_eq!(why, format!("part {part} of message `m1` is no tool call"));
        }
    }

    /// A time of its own would be a guess: what thousands of edits of a long text take is compared with what one takes.
    #[test]
    fn what_edits_cost_is_by_the_length_of_the_text_and_not_by_their_number() {
        let text = "john@example.com ".repeat(4096) + &"word ".repeat(2 << 20);
        let once = |count: u32| {
            let edits = (0..count).map(|i| replace((17 * i, 17 * i + 16), "[email]")).collect();
            let text = text.clone();
            let begun = std::time::Instant::now();
            let edited = edited(&text, edits).unwrap();
            assert_eq!(edited.len(), text.len() - 9 * count as usize);
            begun.elapsed()
        };
        // The least of some: whatever else the machine does is in none, or not in all.
        let time = |count: u32| (0..5).map(|_| once(count)).min().unwrap();
        let (one, many) = (time(1), time(4096));
        assert!(many < one * 100, "{one:?} for one, {many:?} for 4096");
    }
}
