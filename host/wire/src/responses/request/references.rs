//! Items of an input that stand for kept ones, as clients send what was answered before by its ids. Who has the store finds
//! them; from then on the request is as one that has them whole.

use super::ResponseRequest;
use crate::items::{Given, joined};
use tidegate_types::{Message, Reject, Role};

/// An item of the input that stands for one that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where it is in the input.
    pub place: usize,
    /// The item that it stands for.
    pub id: String,
}

impl ResponseRequest {
    /// Puts kept items in the places of the input that refer to them: one for each of the references, in their order.
    pub fn resolve(&mut self, items: Vec<Message>) -> Result<(), Reject> {
        let references = std::mem::take(&mut self.references);
        let (input, asked) = (&mut self.input, &mut self.chat.messages);
        let first = usize::from(self.instructed);
        for (Reference { place, .. }, item) in references.iter().zip(items) {
            let item = Message { id: String::new(), ..item };
            if let Some(asked) = asked.get_mut(first + place) {
                *asked = Message { id: std::mem::take(&mut asked.id), ..item.clone() };
            }
            if let Some(input) = input.get_mut(*place) {
                *input = item;
            }
        }
        let alone = self.previous.is_none() && self.conversation.is_none();
        if alone && !references.is_empty() {
            *asked = joined(std::mem::take(asked))?;
        }
        Ok(())
    }
}

/// The messages, and what of them is yet to be found.
pub(super) fn apart(given: Vec<Given>) -> (Vec<Message>, Vec<Reference>) {
    let mut references = Vec::new();
    let message = |(place, given)| match given {
        Given::Whole(message) => message,
        Given::Reference(id) => {
            references.push(Reference { place, id });
            Message { id: String::new(), role: Role::Assistant, name: None, parts: Vec::new(), provenance: None }
        }
    };
    (given.into_iter().enumerate().map(message).collect(), references)
}
