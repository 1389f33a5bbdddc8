//! From items to messages: what a model said in one turn is one, and what its tools said stands behind it.

use std::collections::HashMap;
use tidegate_types::{Message, Part, Reject, Role};

/// Joins what a model said in one turn: its reasoning, its words and its calls are one message for a template. Every
/// outcome is put behind the message with its call, wherever it came after that: a caller may say something in between, and a
/// model that reasons between two calls says them in two messages.
pub fn joined(items: Vec<Message>) -> Result<Vec<Message>, Reject> {
    let mut said: Vec<Said> = Vec::with_capacity(items.len());
    let mut called: HashMap<String, usize> = HashMap::new();
    for item in items {
        if let [Part::ToolOutcome(outcome)] = item.parts.as_slice() {
            let Some(by) = called.get(&outcome.call_id).and_then(|at| said.get_mut(*at)) else {
                let message = format!("there is no call of the id `{}` before its output", outcome.call_id);
                return Err(Reject::invalid("input", message).code("invalid_value"));
            };
            by.outcomes.push(item);
            continue;
        }
        let calls: Vec<String> = item.parts.iter().filter_map(called_by).collect();
        match said.last_mut().filter(|last| last.goes_on_with(&item)) {
            Some(last) => last.message.parts.extend(item.parts),
            None => said.push(Said { message: item, outcomes: Vec::new() }),
        }
        called.extend(calls.into_iter().map(|id| (id, said.len() - 1)));
    }
    Ok(said.into_iter().flat_map(|Said { message, outcomes }| std::iter::once(message).chain(outcomes)).collect())
}

fn called_by(part: &Part) -> Option<String> {
    if let Part::ToolCall(call) = part { Some(call.id.clone()) } else { None }
}

/// A message, and what came of the calls in it.
struct Said {
    message: Message,
    outcomes: Vec<Message>,
}

impl Said {
    /// Whether `item` is a part of the same turn of a model: behind its reasoning, or a call.
    fn goes_on_with(&self, item: &Message) -> bool {
        let is_models = self.message.role == Role::Assistant && item.role == Role::Assistant;
        let thought = self.message.parts.iter().all(|part| matches!(part, Part::Reasoning(_)));
        let is_call = item.parts.iter().all(|part| matches!(part, Part::ToolCall(_)));
        self.outcomes.is_empty() && is_models && (thought || is_call)
    }
}

/// The first outcome whose call is not in the message of the model before it: where it stands, and its call's id. One pass,
/// since outcomes may be all that there is.
pub(crate) fn unanswered(messages: &[Message]) -> Option<(usize, &str)> {
    let mut before: Option<&Message> = None;
    messages.iter().enumerate().find_map(|(i, message)| {
        if message.role != Role::Tool {
            before = Some(message);
        }
        let [Part::ToolOutcome(outcome)] = message.parts.as_slice() else { return None };
        let calls = |part: &Part| matches!(part, Part::ToolCall(call) if call.id == outcome.call_id);
        let called = before.is_some_and(|message| message.parts.iter().any(calls));
        (!called).then_some((i, outcome.call_id.as_str()))
    })
}
