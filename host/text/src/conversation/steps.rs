//! The messages of a conversation as a template gets them, in order: a tool's outcome is one of its own, and where the
//! template takes one call in a message, so is each call.

use std::collections::{HashMap, VecDeque};
use tidegate_types::{Message, Part, ToolCall, ToolOutcome};

/// One message of a template.
#[derive(Clone, Debug)]
pub(super) enum Step<'m> {
    /// What a message says and calls: these of its parts, none of them an outcome.
    Said { message: &'m Message, parts: Vec<&'m Part> },
    /// What a tool answered, and the tool's name where it is known.
    Outcome { outcome: &'m ToolOutcome, name: Option<&'m str> },
}

/// Outcomes are behind the other parts of their message.
pub(super) fn steps(messages: &[Message]) -> Vec<Step<'_>> {
    let mut steps = Vec::with_capacity(messages.len());
    // The names of the tools that were called so far, by the ids of the calls; the latest call of an id counts.
    let mut called = HashMap::new();
    for message in messages {
        let (mut parts, mut outcomes) = (Vec::with_capacity(message.parts.len()), Vec::new());
        for part in &message.parts {
            if let Part::ToolOutcome(outcome) = part { outcomes.push(outcome) } else { parts.push(part) }
        }
        called.extend(parts.iter().filter_map(|part| call(part)).map(|call| (call.id.as_str(), call.name.as_str())));
        if outcomes.is_empty() || !parts.is_empty() {
            steps.push(Step::Said { message, parts });
        }
        for outcome in outcomes {
            let name = message.name.as_deref().or_else(|| called.get(outcome.call_id.as_str()).copied());
            steps.push(Step::Outcome { outcome, name });
        }
    }
    steps
}

/// The same with one call in a message, and each call's outcome behind it, which were behind all of them.
pub(super) fn one_call_each(steps: Vec<Step<'_>>) -> Vec<Step<'_>> {
    let mut out = Vec::with_capacity(steps.len());
    let mut steps = steps.into_iter().peekable();
    while let Some(step) = steps.next() {
        match step {
            Step::Said { message, parts } if parts.iter().filter_map(|part| call(part)).nth(1).is_some() => {
                let mut outcomes = Outcomes::default();
                while let Some(outcome) = steps.next_if(|step| matches!(step, Step::Outcome { .. })) {
                    outcomes.push(outcome);
                }
                for (call, parts) in apart(parts) {
                    out.push(Step::Said { message, parts });
                    out.extend(outcomes.take(&call.id));
                }
                out.extend(outcomes.steps.into_iter().flatten());
            }
            step => out.push(step),
        }
    }
    out
}

/// Outcomes behind one message, each until its call takes it.
#[derive(Default)]
struct Outcomes<'m> {
    steps: Vec<Option<Step<'m>>>,
    /// Their places by the ids of their calls; some models give all calls of a message the same.
    places: HashMap<&'m str, VecDeque<usize>>,
}

impl<'m> Outcomes<'m> {
    fn push(&mut self, step: Step<'m>) {
        if let Step::Outcome { outcome, .. } = &step {
            self.places.entry(&outcome.call_id).or_default().push_back(self.steps.len());
        }
        self.steps.push(Some(step));
    }

    fn take(&mut self, id: &str) -> Option<Step<'m>> {
        let place = self.places.get_mut(id)?.pop_front()?;
        self.steps[place].take()
    }
}

/// Each call with the parts of its message; what is said beside the calls comes with the first.
fn apart(parts: Vec<&Part>) -> Vec<(&ToolCall, Vec<&Part>)> {
    let calls: Vec<_> = parts.iter().filter_map(|part| Some((call(part)?, vec![*part]))).collect();
    let mut said: Vec<&Part> = parts.into_iter().filter(|part| call(part).is_none()).collect();
    let with_said = |(i, (call, own)): (usize, (_, Vec<_>))| match i {
        0 => (call, std::mem::take(&mut said).into_iter().chain(own).collect()),
        _ => (call, own),
    };
    calls.into_iter().enumerate().map(with_said).collect()
}

fn call(part: &Part) -> Option<&ToolCall> {
    if let Part::ToolCall(call) = part { Some(call) } else { None }
}
