//! Leaves out the oldest turns of a history that does not fit the model, or what its caller may ask of it; a summary stands
//! for them, where there is one.
//! Never in silence: the reply says how many messages, and for how many of them it has a summary.
//!
//! A history may be megabytes long. It is counted to its end once; from then on what a byte of it costs is known, and what is
//! still too long is counted no further than is needed to see that.

use crate::bounds::LengthBounds;
use crate::chat::Pipeline;
use crate::estimate::{rendered_bytes, text_bytes};
use crate::models::Model;
use crate::stages::LONG_TEXT_BYTES;
use crate::stages::fit::{Length, prompt_length};
use crate::states::{Request, ServerTool};
use std::sync::Arc;
use tidegate_text::Past;
use tidegate_turns::{Waiting, beside, in_turn};
use tidegate_types::{Chat, LeftOut, Message, Provenance, Reject, Role, ToolDef, Transcript};

/// Of the model's window, what is left to an answer where its caller names no bound.
const ANSWER_SHARE: u32 = 8;

impl Pipeline {
    /// Shortens a request's history until it fits `model` and its `bounds`. Where something is left out, what stands for it is put in
    /// front, screened as all text from outside. Counting the tokens of a long history takes its time, and no other
    /// request's.
    pub(super) async fn shortened(
        &self,
        model: &Arc<Model>,
        mut request: Box<Request>,
        tools: &[ServerTool],
        bounds: LengthBounds,
    ) -> Result<Box<Request>, Reject> {
        let defs: Arc<[ToolDef]> = tools.iter().map(|tool| tool.def.clone()).collect();
        let mut counts = Counts { room: room(model.context_tokens, bounds, &request.chat), cost: None };
        if request.summary.is_some() {
            let model = Arc::clone(model);
            let counting = aside(request, Arc::clone(&defs), move |request, defs, waiting| {
                let over = counts.over(&request.chat, |chat, past| prompt_length(&model, chat, defs, past, waiting))?;
                Ok((over, counts))
            });
            let ((over, counted), asked) = counting.await?;
            if over.is_none() && asked.left_out.long == 0 {
                return Ok(asked);
            }
            counts = counted;
            request = self.with_summary(asked).await?;
        }
        let model = Arc::clone(model);
        let shortening = aside(request, defs, move |request, defs, waiting| {
            let length = |chat: &Chat, past: (usize, Past)| prompt_length(&model, chat, defs, past, waiting);
            let left_out = shorten(Arc::make_mut(&mut request.chat), counts, length)?;
            request.left_out.long += left_out.len() as u64;
            if request.chat.messages.iter().any(is_summary) {
                request.summarized.long += left_out.iter().filter(|n| **n < request.summary_through).count() as u64;
            } else {
                request.summarized = LeftOut::default();
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
    if num_bytes > LONG_TEXT_BYTES { in_turn((&caller, num_bytes), (), work).await } else { beside((), work).await }
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

/// Tokens for everything but the answer, by a model that was made for so many; `None` where neither it, as an upstream that
/// does not say what it takes, nor a bound says how many there are.
fn room(model: u32, bounds: LengthBounds, chat: &Chat) -> Option<usize> {
    let window = bounds.window(model)?;
    let most = bounds.output.map_or(window / 2, |bound| bound.tokens.min(window / 2));
    // A bound leaves one to the answer at least.
    let answer = chat.max_tokens.unwrap_or(window / ANSWER_SHARE).min(most).max(1);
    Some(window.saturating_sub(answer) as usize)
}

/// What the counts of one prompt, as it becomes shorter, have said of it.
#[derive(Clone, Copy)]
struct Counts {
    room: Option<usize>,
    /// Tokens of so many bytes, of the whole prompt.
    cost: Option<(usize, usize)>,
}

impl Counts {
    /// About how many bytes of its text are too many; `None` where it fits.
    fn over(
        &mut self,
        chat: &Chat,
        length: impl FnOnce(&Chat, (usize, Past)) -> Result<Length, Reject>,
    ) -> Result<Option<usize>, Reject> {
        let Some(room) = self.room else { return Ok(None) };
        let bytes = text_bytes(chat).max(1);
        let past = if self.cost.is_some() { Past::Stop } else { Past::Count };
        let tokens = match (length(chat, (room, past))?, self.cost) {
            (Length::Over(at_least), Some((tokens, of_bytes))) => {
                let about = tokens * bytes / of_bytes;
                if about < at_least {
                    // What is left costs more than what is gone, and is counted anew.
                    self.cost = None;
                }
                about.max(at_least)
            }
            (Length::Over(tokens) | Length::Exactly(tokens), _) => {
                self.cost = Some((tokens, bytes));
                tokens
            }
        };
        Ok((tokens > room).then(|| ((tokens - room) * bytes).div_ceil(tokens)))
    }
}

/// Shortens `chat`, whose `length` is asked for, until it fits; gives the numbers of the messages of the history that were
/// left out. What may not be left out may still be too long, and is then refused by name.
fn shorten(
    chat: &mut Chat,
    mut counts: Counts,
    mut length: impl FnMut(&Chat, (usize, Past)) -> Result<Length, Reject>,
) -> Result<Vec<usize>, Reject> {
    let mut left_out = Vec::new();
    // By what a byte costs on average; then it is counted again.
    while let Some(too_many) = counts.over(chat, &mut length)? {
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

/// From the oldest message that may be left out to the next question. A turn in which a tool was called stays where what the tool
/// said comes only now.
fn oldest_turn(messages: &[Message]) -> Option<std::ops::Range<usize>> {
    let mut from = 0;
    loop {
        let first = from + messages[from..].iter().position(|message| Transcript::may_leave_out(&message.id))?;
        let rest = &messages[first + 1..];
        let next =
            rest.iter().position(|message| message.role == Role::User || Transcript::own_index(&message.id).is_some());
        let end = next.map_or(messages.len(), |next| first + 1 + next);
        if messages.get(end).is_none_or(|message| message.role != Role::Tool) {
            return Some(first..end);
        }
        from = end;
    }
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
    use tidegate_types::Quota;

    #[test]
    fn there_is_room_for_what_fits_the_model_and_every_bound() {
        let bounds = |max_context_tokens, max_output_tokens| {
            LengthBounds::of_model(&Quota { max_context_tokens, max_output_tokens, ..Quota::default() })
        };
        for (model, (context, output), asked, expected) in [
            (800, (None, None), None, Some(700)),
            (800, (None, None), Some(1000), Some(400)),
            (800, (Some(80), None), None, Some(70)),
            (800, (Some(8000), Some(20)), None, Some(780)),
            (800, (None, Some(20)), Some(500), Some(780)),
            (0, (None, Some(20)), None, None),
            (0, (Some(80), None), Some(0), Some(79)),
            (0, (Some(1), None), None, Some(0)),
        ] {
            let chat = Chat { max_tokens: asked, ..Chat::new("m", Vec::new()) };
            assert_eq!(room(model, bounds(context, output), &chat), expected, "{model} {context:?} {output:?}");
        }
    }

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

    #[test]
    fn a_call_stays_with_what_its_tool_says_now() {
        let turn = |messages: &[(&str, Role)]| {
            let message = |(id, role): &(&str, Role)| Message::text(*id, role.clone(), "x");
            oldest_turn(&messages.iter().map(message).collect::<Vec<_>>())
        };
        let (user, model, tool) = (Role::User, Role::Assistant, Role::Tool);
        let called = [("h0", user.clone()), ("h1", model.clone()), ("m0", tool.clone())];
        assert_eq!(turn(&called), None);
        let later = [&called[..], &[("h2", user.clone()), ("h3", model.clone()), ("m1", user.clone())]].concat();
        assert_eq!(turn(&later), Some(3..5));
        let earlier = [("h0", user.clone()), ("h1", model.clone()), ("h2", tool), ("h3", model), ("m0", user)];
        assert_eq!(turn(&earlier), Some(0..4));
    }

    /// What is left of a history of `turns` in front of a question, so many bytes each, and how many bytes were read for that
    /// where a byte is a token in `d`s and a fourth of one elsewhere, and there is room for `ROOM` tokens.
    fn left(turns: &[(char, usize)], question: usize) -> (usize, usize) {
        const ROOM: usize = 1000;
        let earlier = turns.iter().enumerate();
        let mut messages: Vec<Message> = earlier
            .map(|(i, (c, len))| Message::text(Transcript::earlier(i), Role::User, c.to_string().repeat(*len)))
            .collect();
        messages.push(Message::text("m0", Role::User, "x".repeat(question)));
        let (mut chat, mut num_read) = (Chat::new("m", messages), 0);
        let counts = Counts { room: Some(ROOM), cost: None };
        let length = |chat: &Chat, (room, past): (usize, Past)| {
            let bytes = chat.messages.iter().flat_map(|message| message.joined_text().into_bytes());
            let mut quarters = 0;
            for byte in bytes {
                (quarters, num_read) = (quarters + if byte == b'd' { 4 } else { 1 }, num_read + 1);
                if past == Past::Stop && quarters / 4 > 2 * room {
                    return Ok(Length::Over(room + 1));
                }
            }
            Ok(if quarters / 4 > 2 * room { Length::Over(quarters / 4) } else { Length::Exactly(quarters / 4) })
        };
        let gone = shorten(&mut chat, counts, length).expect("counted");
        (turns.len() - gone.len(), num_read)
    }

    #[test]
    fn a_long_history_is_read_once_and_no_more_of_it_goes_than_must() {
        const ALL: usize = 100_000;
        for (turns, question, fitting) in [
            (vec![('x', 100); ALL / 100], 0, 40),
            (vec![('x', 100); ALL / 100], 2000, 20),
            (vec![('d', 100); ALL / 100], 0, 10),
            // The latest cost more than the average.
            ([vec![('x', 100); ALL / 100], vec![('d', 100); 100]].concat(), 0, 10),
            // Nothing that may go makes the question fit.
            (vec![('x', 100); 10], ALL, 0),
        ] {
            let all: usize = turns.iter().map(|(_, len)| len).sum::<usize>() + question;
            let (left, num_read) = left(&turns, question);
            assert_eq!(left, fitting, "of {} turns, before {question} bytes", turns.len());
            assert!(num_read < all + all / 4, "{num_read} of {all} bytes");
        }
    }
}
