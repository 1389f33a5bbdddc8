//! Leaves out the oldest turns of a history that does not fit the model; a summary stands for them, where there is one.
//! Never in silence: the reply says how many messages, and for how many of them it has a summary.

use crate::chat::Pipeline;
use crate::estimate::{rendered_bytes, text_bytes};
use crate::long_work::{Kept, Waiting, beside, in_turn};
use crate::models::Model;
use crate::stages::{LONG_TEXT_BYTES, fit};
use crate::states::{Request, ServerTool};
use std::sync::Arc;
use tidegate_types::{Chat, Message, Provenance, Reject, Role, ToolDef, Transcript};

/// Of the model's window, what is left to an answer where its caller names no bound.
const ANSWER_SHARE: u32 = 8;

impl Pipeline {
    /// Shortens a request's history until it fits `model`. Where something is left out, what stands for it is put in
    /// front, screened as all text from outside. Counting the tokens of a long history takes its time, and no other
    /// request's.
    pub(super) async fn shortened(
        &self,
        model: &Arc<Model>,
        mut request: Box<Request>,
        tools: &[ServerTool],
    ) -> Result<Box<Request>, Reject> {
        let defs: Arc<[ToolDef]> = tools.iter().map(|tool| tool.def.clone()).collect();
        if request.summary.is_some() {
            let model = Arc::clone(model);
            let counting = aside(request, Arc::clone(&defs), move |request, defs, waiting| {
                fits(&model, &request.chat, defs, waiting)
            });
            let (fits, mut counted) = counting.await?;
            if !fits || counted.left_out > 0 {
                counted = self.with_summary(counted).await?;
            }
            request = counted;
        }
        let model = Arc::clone(model);
        let shortening = aside(request, defs, move |request, defs, waiting| {
            let left_out = shorten(&model, Arc::make_mut(&mut request.chat), defs, waiting)?;
            request.left_out += left_out.len() as u64;
            if request.chat.messages.iter().any(is_summary) {
                request.summarized += left_out.iter().filter(|n| **n < request.summary_through).count() as u64;
            } else {
                request.summarized = 0;
            }
            Ok(())
        });
        Ok(shortening.await?.1)
    }

    /// Puts the summary behind the instructions, where the guards let it pass.
    async fn with_summary(&self, mut request: Box<Request>) -> Result<Box<Request>, Reject> {
        let Some(summary) = request.summary.take() else { return Ok(request) };
        let said = vec![message(&summary.text)];
        let left = self.screen_outside(&request.cx, said, &mut request.findings).await?;
        let Some(said) = left.into_iter().flatten().next() else { return Ok(request) };
        let instructs = |message: &Message| matches!(message.role, Role::System | Role::Developer);
        let messages = &mut Arc::make_mut(&mut request.chat).messages;
        let at = messages.iter().position(|message| !instructs(message));
        messages.insert(at.unwrap_or(messages.len()), said);
        (request.summarized, request.summary_through) = (summary.absent, summary.through);
        Ok(request)
    }
}

/// Work on a request, which has it with all that it holds until the work has ended.
async fn aside<T: Send + 'static>(
    mut request: Box<Request>,
    defs: Arc<[ToolDef]>,
    work: impl FnOnce(&mut Request, &[ToolDef], &Waiting) -> Result<T, Reject> + Send + 'static,
) -> Result<(T, Box<Request>), Reject> {
    let (num_bytes, caller) = (rendered_bytes(&request.chat, &defs), Arc::clone(&request.cx.caller));
    let work = move |waiting: &Waiting| Ok((work(&mut request, &defs, waiting)?, request));
    if num_bytes > LONG_TEXT_BYTES {
        in_turn((&caller, num_bytes), Kept::new(), work).await
    } else {
        beside((), work).await
    }
}

/// The id of the message that a summary is.
const SUMMARY: &str = "conversation/summary";

fn message(summary: &str) -> Message {
    let text = format!("Summary of what was said before in this conversation: {summary}");
    let provenance = Some(Provenance { source: "conversation".into(), uri: None, span: None });
    Message { provenance, ..Message::text(SUMMARY, Role::User, text) }
}

fn is_summary(message: &Message) -> bool {
    message.id == SUMMARY
}

/// Tokens for everything but the answer; `None` where an upstream does not say what it takes.
fn room(model: &Model, chat: &Chat) -> Option<usize> {
    let window = model.context_tokens;
    let answer = chat.max_tokens.unwrap_or(window / ANSWER_SHARE).min(window / 2);
    (window > 0).then_some((window - answer) as usize)
}

fn fits(model: &Model, chat: &Chat, tools: &[ToolDef], waiting: &Waiting) -> Result<bool, Reject> {
    let Some(room) = room(model, chat) else { return Ok(true) };
    Ok(fit::prompt_tokens(model, chat, tools, room, waiting)? <= room)
}

/// Shortens `chat` until it fits; gives the numbers of the messages of the history that were left out. What may not be
/// left out may still be too long, and is then refused by name.
fn shorten(model: &Model, chat: &mut Chat, tools: &[ToolDef], waiting: &Waiting) -> Result<Vec<usize>, Reject> {
    let mut left_out = Vec::new();
    let Some(room) = room(model, chat) else { return Ok(left_out) };
    loop {
        let tokens = fit::prompt_tokens(model, chat, tools, room, waiting)?;
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
            left_out.extend(leave_out(&mut chat.messages, turn));
            dropped += (held - text_bytes(chat)).max(1);
        }
        if before == chat.messages.len() {
            // With no turn left to go, the summary is what there is to give up.
            chat.messages.retain(|message| !is_summary(message));
        }
        if before == chat.messages.len() {
            break;
        }
    }
    Ok(left_out)
}

/// From the oldest message that may be left out to the next question.
fn oldest_turn(messages: &[Message]) -> Option<std::ops::Range<usize>> {
    let first = messages.iter().position(|message| Transcript::may_leave_out(&message.id))?;
    let rest = &messages[first + 1..];
    let next =
        rest.iter().position(|message| message.role == Role::User || Transcript::own_index(&message.id).is_some());
    Some(first..next.map_or(messages.len(), |next| first + 1 + next))
}

/// Gives the numbers of those that are gone.
fn leave_out(messages: &mut Vec<Message>, turn: std::ops::Range<usize>) -> Vec<usize> {
    let (mut i, mut gone) = (0, Vec::new());
    messages.retain(|message| {
        let number = turn.contains(&i).then(|| Transcript::earlier_index(&message.id)).flatten();
        i += 1;
        gone.extend(number);
        number.is_none()
    });
    gone
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
