//! From items to messages: what a model said in one turn is one, and what its tools said stands behind it.

use std::collections::{HashMap, HashSet};
use tidegate_types::{Message, Part, Reject, Role, ToolCall, ToolOutcome, Transcript};

/// Joins what a model said in one turn: its reasoning, its words and its calls are one message for a template. Every
/// outcome is put behind the message with its call, wherever it came after that: a caller may say something in between, and a
/// model that reasons between two calls says them in two messages.
pub fn joined(items: Vec<Message>) -> Result<Vec<Message>, Reject> {
    let mut said: Vec<Said> = Vec::with_capacity(items.len());
    let mut called: HashMap<String, usize> = HashMap::new();
    for item in items {
        if let Some(outcome) = outcome(&item) {
            let Some(by) = called.get(&outcome.call_id).and_then(|at| said.get_mut(*at)) else {
                let message = format!("there is no call of the id `{}` before its output", outcome.call_id);
                return Err(Reject::invalid("input", message).code("invalid_value"));
            };
            by.is_pinned |= Transcript::is_pinned(&item.id);
            by.outcomes.push(item);
            continue;
        }
        let calls: Vec<String> = item.parts.iter().filter_map(called_by).map(str::to_owned).collect();
        match said.last_mut().filter(|last| last.goes_on_with(&item)) {
            Some(last) => {
                last.is_pinned |= Transcript::is_pinned(&item.id);
                last.message.parts.extend(item.parts);
            }
            None => said.push(Said::of(item)),
        }
        called.extend(calls.into_iter().map(|id| (id, said.len() - 1)));
    }
    Ok(said.into_iter().flat_map(Said::messages).collect())
}

/// Which of these items are outcomes without their call before them, by their places in order. A history has such where it was
/// cut between the two, or where the call was deleted.
pub fn uncalled<'a>(items: impl IntoIterator<Item = &'a Message>) -> Vec<usize> {
    let mut called: HashSet<&str> = HashSet::new();
    let is_uncalled = |(place, item): (usize, &'a Message)| {
        called.extend(item.parts.iter().filter_map(called_by));
        outcome(item).filter(|outcome| !called.contains(outcome.call_id.as_str())).map(|_| place)
    };
    items.into_iter().enumerate().filter_map(is_uncalled).collect()
}

/// Which of these items are calls of which no outcome comes behind them, there or in what is `asked` behind all of them, by their
/// places in order; with what was only thought to make them. A history has such where it was cut between the two, where the outcome
/// was deleted, or where it never came.
pub fn unreturned<'a, I>(items: I, asked: &'a [Message]) -> Vec<usize>
where
    I: IntoIterator<Item = &'a Message>,
    I::IntoIter: DoubleEndedIterator + ExactSizeIterator,
{
    let mut outcomes = Outcomes::default();
    asked.iter().rev().for_each(|item| outcomes.go_past(item));
    let (mut places, mut is_gone, mut behind) = (Vec::new(), false, None);
    for (place, item) in items.into_iter().enumerate().rev() {
        let is_lone = call(item).is_some_and(|call| !outcomes.has(&call.id));
        outcomes.go_past(item);
        is_gone = is_lone || (is_gone && is_thought(item) && behind != Some(&Role::Assistant));
        if is_gone {
            places.push(place);
        } else {
            behind = Some(&item.role);
        }
    }
    places.reverse();
    places
}

/// Outcomes that come behind an item, by the ids of their calls. Servers give an id again in a later turn, and some within one: so
/// each call has one of them for itself.
#[derive(Default)]
struct Outcomes<'a>(HashMap<&'a str, usize>);

impl<'a> Outcomes<'a> {
    fn has(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|left| *left > 0)
    }

    /// To the item before this one.
    fn go_past(&mut self, item: &'a Message) {
        if let Some(outcome) = outcome(item) {
            *self.0.entry(&outcome.call_id).or_default() += 1;
        }
        for id in item.parts.iter().filter_map(called_by) {
            if let Some(left) = self.0.get_mut(id) {
                *left = left.saturating_sub(1);
            }
        }
    }
}

/// The call that an item is.
fn call(item: &Message) -> Option<&ToolCall> {
    if let [Part::ToolCall(call)] = item.parts.as_slice() { Some(call) } else { None }
}

/// Whether an item is what a model thought, and no more.
fn is_thought(item: &Message) -> bool {
    item.role == Role::Assistant && item.parts.iter().all(|part| matches!(part, Part::Reasoning(_)))
}

/// What an item says that came of a call.
fn outcome(item: &Message) -> Option<&ToolOutcome> {
    if let [Part::ToolOutcome(outcome)] = item.parts.as_slice() { Some(outcome) } else { None }
}

fn called_by(part: &Part) -> Option<&str> {
    if let Part::ToolCall(call) = part { Some(&call.id) } else { None }
}

/// A message, and what came of the calls in it.
struct Said {
    message: Message,
    outcomes: Vec<Message>,
    /// Whether any of it may not be left out of a history.
    is_pinned: bool,
}

impl Said {
    fn of(message: Message) -> Self {
        Self { is_pinned: Transcript::is_pinned(&message.id), message, outcomes: Vec::new() }
    }

    /// Whether `item` is a part of the same turn of a model: behind its reasoning, or a call.
    fn goes_on_with(&self, item: &Message) -> bool {
        let is_models = self.message.role == Role::Assistant && item.role == Role::Assistant;
        let thought = self.message.parts.iter().all(|part| matches!(part, Part::Reasoning(_)));
        let is_call = item.parts.iter().all(|part| matches!(part, Part::ToolCall(_)));
        self.outcomes.is_empty() && is_models && (thought || is_call)
    }

    /// What is pinned keeps the rest: without its outcome a call could not be said to a model, and no outcome without its call.
    fn messages(self) -> impl Iterator<Item = Message> {
        let Self { mut message, outcomes, is_pinned } = self;
        message.join_neighbours();
        std::iter::once(message).chain(outcomes).map(move |mut message| {
            if let Some(n) = Transcript::earlier_index(&message.id).filter(|_| is_pinned) {
                message.id = Transcript::pinned(n);
            }
            message
        })
    }
}

/// The first outcome whose call is not in the message of the model before it: where it stands, and its call's id. One pass,
/// since outcomes may be all that there is, and each id is read once, since they may be long and alike.
pub(crate) fn unanswered(messages: &[Message]) -> Option<(usize, &str)> {
    let mut called: HashSet<&str> = HashSet::new();
    messages.iter().enumerate().find_map(|(i, message)| {
        if message.role != Role::Tool {
            called.clear();
            called.extend(message.parts.iter().filter_map(called_by));
        }
        let outcome = outcome(message)?;
        let id = outcome.call_id.as_str();
        (!called.contains(id)).then_some((i, id))
    })
}
