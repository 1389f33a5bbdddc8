//! Items that a request refers to by their ids: read before it is let in, since what guards see, what is counted and what is
//! kept are the items themselves. So they have the bounds of a body, and come with it to no more than one may have.

use crate::endpoints::conversations::text_bytes;
use crate::kept::store_failed;
use crate::server::Api;
use tidegate_types::{Caller, Fault, Message, Reject, RejectKind};
use tidegate_wire::responses::{Reference, ResponseRequest};

/// Puts the items in the places of a request of so many bytes.
pub(super) async fn resolve(
    api: &Api,
    caller: &Caller,
    asked: &mut ResponseRequest,
    body_bytes: usize,
) -> Result<(), Reject> {
    let Some(first) = asked.references.first() else { return Ok(()) };
    let conversations = api.conversations().map_err(|reject| reject.at(place_of(first)))?;
    let limit_bytes = api.limits.max_body_bytes;
    let mut left_bytes = limit_bytes.saturating_sub(body_bytes);
    let ids = asked.references.iter().map(|reference| reference.id.as_str());
    let found = conversations.referred(caller.owner(), ids, left_bytes as u64).await.map_err(store_failed)?;
    let found = found.ok_or_else(|| too_long(limit_bytes))?;
    let mut items = Vec::with_capacity(asked.references.len());
    for reference in &asked.references {
        let item = found.get(&reference.id).ok_or_else(|| not_found(reference))?;
        // An item may be referred to more than once.
        left_bytes = left_bytes.checked_sub(num_bytes(item)).ok_or_else(|| too_long(limit_bytes))?;
        items.push(item.clone());
    }
    asked.resolve(items)
}

fn num_bytes(item: &Message) -> usize {
    item.parts.iter().map(text_bytes).sum()
}

fn place_of(reference: &Reference) -> String {
    format!("input[{}].id", reference.place)
}

/// The first words are OpenAI's, by which clients know that they have to send the item. It is deleted, another's, or never was:
/// nobody can tell which.
fn not_found(reference: &Reference) -> Reject {
    let message = format!(
        "Item with id '{}' not found. Items are not persisted when `store` is set to false, nor with `zero_retention`; send the \
         item whole, or ask for what is referred to later with `store`: true",
        reference.id
    );
    Reject::new(RejectKind::NotFound, Fault::Client, message).code("item_not_found").at(place_of(reference))
}

fn too_long(limit_bytes: usize) -> Reject {
    let message = format!(
        "with the items that `input` refers to, the request has more than the {limit_bytes} bytes that a body may have \
         (`[server] max_body_bytes`); refer to fewer items, or go on from a response by `previous_response_id`"
    );
    Reject::new(RejectKind::TooLarge, Fault::Client, message).at("input")
}
