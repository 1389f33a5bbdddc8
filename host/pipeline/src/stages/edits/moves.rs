//! Which messages there are once a guard's edits are made. Guards put and drop as many as a verdict has room for, and callers
//! send as many as a body has: each edit is one look and moves no other message.

use super::unknown;
use std::collections::HashMap;
use tidegate_types::Message;

/// An edit of which messages there are.
pub(super) enum Move {
    /// Behind that message, or first.
    Put(Option<String>, Message),
    Drop(String),
}

/// Messages, each with the one behind it.
struct Order {
    /// The first place has no message, and leads to the first that has.
    places: Vec<Place>,
    by_id: HashMap<String, usize>,
}

struct Place {
    /// `None` where it was dropped.
    message: Option<Message>,
    next: usize,
}

/// Behind the last message.
const END: usize = usize::MAX;

/// Makes the edits. `positions` has the messages by their ids.
pub(super) fn make(
    messages: &mut Vec<Message>,
    positions: HashMap<String, usize>,
    moves: Vec<Move>,
) -> Result<(), String> {
    if moves.is_empty() {
        return Ok(());
    }
    let mut order = Order::of(std::mem::take(messages), positions);
    let made = moves.into_iter().try_for_each(|to| order.make(to));
    *messages = order.into_messages();
    made
}

impl Order {
    fn of(messages: Vec<Message>, positions: HashMap<String, usize>) -> Self {
        let last = messages.len();
        let next = |at: usize| if at == last { END } else { at + 1 };
        let head = Place { message: None, next: next(0) };
        let behind = messages.into_iter().zip(1..);
        let places = behind.map(|(message, at)| Place { message: Some(message), next: next(at) });
        let places = std::iter::once(head).chain(places).collect();
        Self { places, by_id: positions.into_iter().map(|(id, at)| (id, at + 1)).collect() }
    }

    fn make(&mut self, to: Move) -> Result<(), String> {
        match to {
            Move::Put(after, message) => {
                let before = after.map_or(Ok(0), |id| self.by_id.get(&id).copied().ok_or_else(|| unknown(&id)))?;
                let at = self.places.len();
                self.by_id.insert(message.id.clone(), at);
                let next = std::mem::replace(&mut self.places[before].next, at);
                self.places.push(Place { message: Some(message), next });
            }
            Move::Drop(id) => {
                let at = self.by_id.remove(&id).ok_or_else(|| unknown(&id))?;
                self.places[at].message = None;
            }
        }
        Ok(())
    }

    fn into_messages(mut self) -> Vec<Message> {
        let (mut messages, mut at) = (Vec::with_capacity(self.by_id.len()), 0);
        while let Some(place) = self.places.get_mut(at) {
            messages.extend(place.message.take());
            at = place.next;
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_types::Role;

    fn message(id: usize) -> Message {
        Message::text(id.to_string(), Role::User, "x")
    }

    fn made(num_messages: usize, moves: Vec<Move>) -> Result<Vec<String>, String> {
        let mut messages: Vec<Message> = (0..num_messages).map(message).collect();
        let positions = messages.iter().enumerate().map(|(at, message)| (message.id.clone(), at)).collect();
        make(&mut messages, positions, moves)?;
        Ok(messages.into_iter().map(|message| message.id).collect())
    }

    proptest! {
        /// The same as one edit after the other in a list.
        #[test]
        fn messages_are_where_each_edit_puts_them(wanted in prop::collection::vec((any::<bool>(), 0..9_usize), 0..20)) {
            let (mut list, mut moves) = ((0..4).map(|id| id.to_string()).collect::<Vec<_>>(), Vec::new());
            for (number, (puts, place)) in wanted.into_iter().enumerate() {
                if puts {
                    let at = place.min(list.len());
                    let after = at.checked_sub(1).map(|before| list[before].clone());
                    moves.push(Move::Put(after, message(100 + number)));
                    list.insert(at, (100 + number).to_string());
                } else if place < list.len() {
                    moves.push(Move::Drop(list.remove(place)));
                }
            }
            prop_assert_eq!(made(4, moves), Ok(list));
        }
    }

    #[test]
    fn what_was_dropped_is_not_there_and_the_rest_stays() {
        let mut messages: Vec<Message> = (0..3).map(message).collect();
        let positions = messages.iter().enumerate().map(|(at, message)| (message.id.clone(), at)).collect();
        let moves = vec![Move::Drop("1".into()), Move::Put(Some("1".into()), message(7))];
        assert_eq!(make(&mut messages, positions, moves), Err("there is no message `1`".into()));
        assert_eq!(messages, [message(0), message(2)]);
    }

    /// By the time of one alone, as time of its own would be a guess.
    #[test]
    fn what_edits_cost_is_by_the_number_of_messages_and_not_times_that_of_edits() {
        let once = |num_edits: usize| {
            let drops = (0..num_edits).map(|id| Move::Drop((39_999 - id).to_string())).collect();
            let begun = std::time::Instant::now();
            assert_eq!(made(40_000, drops).unwrap().len(), 40_000 - num_edits);
            begun.elapsed()
        };
        let least = |num_edits: usize| (0..5).map(|_| once(num_edits)).min().unwrap();
        let (one, many) = (least(1), least(20_000));
        assert!(many < one * 10, "{one:?} for one, {many:?} for 20000");
    }
}
