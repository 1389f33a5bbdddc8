//! Leaves out the oldest turns of a history that does not fit the model. Never in silence: the reply says how many
//! messages.

use crate::estimate::text_bytes;
use crate::models::Model;
use crate::stages::fit;
use tidegate_types::{Chat, Message, Reject, Role, ToolDef, Transcript};

/// Of the model's window, what is left to an answer where its caller names no bound.
const ANSWER_SHARE: u32 = 8;

/// Shortens `chat` until it fits; gives how many messages were left out. What may not be left out may still be too
/// long, and is then refused by name.
pub(super) fn shorten(model: &Model, chat: &mut Chat, tools: &[ToolDef]) -> Result<u64, Reject> {
    let window = model.context_tokens;
    let answer = chat.max_tokens.unwrap_or(window / ANSWER_SHARE).min(window / 2);
    let room = (window - answer) as usize;
    let mut left_out = 0;
    // An upstream may not say what it takes.
    if window == 0 {
        return Ok(0);
    }
    loop {
        let tokens = fit::prompt_tokens(model, chat, tools)?;
        if tokens <= room {
            break;
        }
        // By what a byte costs on average; then it is counted again.
        let bytes = text_bytes(chat).max(1);
        let too_many = ((tokens - room) * bytes).div_ceil(tokens);
        let (before, mut dropped) = (chat.messages.len(), 0);
        while dropped < too_many.max(1) {
            let Some(turn) = oldest_turn(&chat.messages) else { break };
            let held = text_bytes(chat);
            leave_out(&mut chat.messages, turn);
            dropped += (held - text_bytes(chat)).max(1);
        }
        let gone = before - chat.messages.len();
        if gone == 0 {
            break;
        }
        left_out += gone as u64;
    }
    Ok(left_out)
}

/// From the oldest message that may be left out to the next question.
fn oldest_turn(messages: &[Message]) -> Option<std::ops::Range<usize>> {
    let first = messages.iter().position(|message| Transcript::may_leave_out(&message.id))?;
    let rest = &messages[first + 1..];
    let next = rest.iter().position(|message| message.role == Role::User || message.id.starts_with('m'));
    Some(first..next.map_or(messages.len(), |next| first + 1 + next))
}

fn leave_out(messages: &mut Vec<Message>, turn: std::ops::Range<usize>) {
    let mut i = 0;
    messages.retain(|message| {
        let gone = turn.contains(&i) && Transcript::may_leave_out(&message.id);
        i += 1;
        !gone
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_turns_go_and_what_is_pinned_stays() {
        let message = |(id, role): &(&str, Role)| Message::text(*id, role.clone(), "x");
        let mut messages: Vec<Message> = [
            ("m0", Role::System),
            ("h0", Role::User),
            ("h1", Role::Assistant),
            ("p2", Role::Tool),
            ("h3", Role::Assistant),
            ("h4", Role::User),
            ("h5", Role::Assistant),
            ("m1", Role::User),
        ]
        .iter()
        .map(message)
        .collect();
        let mut ids = Vec::new();
        while let Some(turn) = oldest_turn(&messages) {
            leave_out(&mut messages, turn);
            ids.push(messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>().join(" "));
        }
        assert_eq!(ids, ["m0 p2 h4 h5 m1", "m0 p2 m1"]);
    }
}
