//! Ids of tool calls as a guest sees them. An edit names a call by its id, and ids repeat: some models begin anew in each
//! turn, some callers make them up. So a call whose id an earlier one has is seen under another.

use std::collections::{HashMap, HashSet};
use tidegate_types::{Message, Part};

/// A part of a message: the indices of both.
pub(crate) type Place = (usize, usize);

/// The ids that differ from those in the messages, by where they stand; mostly none.
#[derive(Default)]
pub(crate) struct CallIds(HashMap<Place, String>);

/// Calls of one id so far.
#[derive(Default)]
struct Same {
    /// Under which id each is seen, where that is another.
    calls: Vec<Option<String>>,
    answered: usize,
    /// The last number that was tried.
    number: usize,
}

impl CallIds {
    /// What came of a call is given that call's id: of several with one id the first that nothing came of yet.
    pub(crate) fn of(messages: &[Message]) -> Self {
        let taken: HashSet<&str> = parts(messages).filter_map(|(_, part)| called(part)).collect();
        let (mut seen, mut ids) = (HashMap::<&str, Same>::new(), HashMap::new());
        for (place, part) in parts(messages) {
            let id = match part {
                Part::ToolCall(call) => seen.entry(&call.id).or_default().call(&call.id, &taken),
                Part::ToolOutcome(outcome) => seen.get_mut(outcome.call_id.as_str()).and_then(Same::outcome),
                _ => None,
            };
            ids.extend(id.map(|id| (place, id)));
        }
        Self(ids)
    }

    /// The id that a call, or what came of it, is seen under: `own`, where that is not another.
    pub(crate) fn at<'a>(&'a self, place: Place, own: &'a str) -> &'a str {
        self.0.get(&place).map_or(own, String::as_str)
    }

    /// Where the call is that is seen under each id.
    pub(crate) fn places(&self, messages: &[Message]) -> HashMap<String, Place> {
        let call = |(place, part)| called(part).map(|own| (self.at(place, own).to_owned(), place));
        parts(messages).filter_map(call).collect()
    }
}

impl Same {
    fn call(&mut self, id: &str, taken: &HashSet<&str>) -> Option<String> {
        let another = (!self.calls.is_empty()).then(|| {
            loop {
                self.number += 1;
                let numbered = format!("{id}~{}", self.number + 1);
                if !taken.contains(numbered.as_str()) {
                    break numbered;
                }
            }
        });
        self.calls.push(another.clone());
        another
    }

    fn outcome(&mut self) -> Option<String> {
        let of = self.answered.min(self.calls.len().saturating_sub(1));
        self.answered = of + 1;
        self.calls.get(of).cloned().flatten()
    }
}

fn called(part: &Part) -> Option<&str> {
    if let Part::ToolCall(call) = part { Some(&call.id) } else { None }
}

fn parts(messages: &[Message]) -> impl Iterator<Item = (Place, &Part)> {
    messages
        .iter()
        .enumerate()
        .flat_map(|(at, message)| message.parts.iter().enumerate().map(move |(part_at, part)| ((at, part_at), part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Role, ToolCall, ToolOutcome};

    fn call(id: &str) -> Part {
        Part::ToolCall(ToolCall { id: id.into(), name: "f".into(), arguments: "{}".into() })
    }

    fn outcome(id: &str) -> Part {
        let (call_id, content) = (id.into(), String::new());
        Part::ToolOutcome(ToolOutcome { call_id, content, structured: None, is_error: false })
    }

    /// As they are seen, of messages with these parts each.
    fn seen(messages: Vec<Vec<Part>>) -> Vec<String> {
        let messages: Vec<Message> =
            messages.into_iter().map(|parts| Message { parts, ..Message::text("m", Role::Assistant, "") }).collect();
        let ids = CallIds::of(&messages);
        let places = ids.places(&messages);
        let id = |(place, part): (Place, &Part)| {
            let own = match part {
                Part::ToolCall(call) => &call.id,
                Part::ToolOutcome(outcome) => &outcome.call_id,
                _ => return None,
            };
            let shown = ids.at(place, own).to_owned();
            assert!(called(part).is_none() || places[&shown] == place, "{shown}");
            Some(shown)
        };
        parts(&messages).filter_map(id).collect()
    }

    #[test]
    fn each_call_is_seen_under_an_id_of_its_own_and_what_came_of_it_under_the_same() {
        let apart = vec![vec![Part::Text("x".into()), call("a"), call("b")], vec![outcome("b")], vec![outcome("a")]];
        assert_eq!(seen(apart), ["a", "b", "b", "a"]);
        let turns = vec![vec![call("a")], vec![outcome("a")], vec![call("a")], vec![outcome("a")], vec![outcome("a")]];
        assert_eq!(seen(turns), ["a", "a", "a~2", "a~2", "a~2"]);
        let too_many =
            vec![vec![call("a")], vec![outcome("a"), outcome("a")], vec![call("a"), call("a")], vec![outcome("a")]];
        assert_eq!(seen(too_many), ["a", "a", "a", "a~2", "a~3", "a~2"]);
        let at_once = vec![vec![call("a"), call("a"), call("")], vec![outcome("a"), outcome("a"), outcome("c")]];
        assert_eq!(seen(at_once), ["a", "a~2", "", "a", "a~2", "c"]);
        let taken = vec![vec![call("a"), call("a"), call("a~2"), call("a~2"), call("a"), call("a")]];
        assert_eq!(seen(taken), ["a", "a~3", "a~2", "a~2~2", "a~4", "a~5"]);
    }
}
