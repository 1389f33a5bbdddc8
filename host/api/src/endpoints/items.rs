//! `/v1/conversations/{id}/items`: what is said in a conversation. Without a word about branches it is the current one
//! that is read, and that goes on.

use crate::body::Response;
use crate::endpoints::conversations::{find, new_messages, shown};
use crate::exchange::{Exchange, json};
use crate::kept::{not_found, store_failed, streams_of};
use crate::uri::{bad, unknown_after};
use serde_json::Value;
use tidegate_store::Conversations;
use tidegate_store::conversations::{At, Conversation, Feedback, MessagePage, StoredMessage, now_ms};
use tidegate_types::{Reject, TenantId, Usage};
use tidegate_wire::conversations as wire;
use tidegate_wire::items::{Details, detailed, item};
use tidegate_wire::responses::without_item;

/// The current branch, newest first; with `leaf`, the branch that ends there; with `branch=all`, every one.
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    let page = exchange.page()?;
    let conversation = find(&exchange).await?;
    let leaf = exchange.param("leaf")?.unwrap_or(conversation.leaf);
    let branch = match exchange.param("branch")?.as_deref() {
        None => Some(leaf),
        Some("all") => None,
        Some(_) => return Err(bad("branch", "all, or left out")),
    };
    let (id, asked) = (conversation.id.clone(), page.clone());
    let read = async move |conversations: Conversations, tenant: TenantId| match branch {
        Some(leaf) => conversations.branch(&tenant, &id, &leaf, &asked).await,
        None => conversations.tree(&tenant, &id, &asked).await,
    };
    let found = exchange.read_much(read).await?;
    if found.messages.is_empty() && !page.after.is_empty() {
        let (conversations, tenant) = (exchange.api.conversations()?, exchange.caller.owner());
        let had = conversations.had_message(tenant, &conversation.id, &page.after).await.map_err(store_failed)?;
        had.then_some(()).ok_or_else(unknown_after)?;
    }
    Ok(shown_page(&exchange, &found))
}

/// Items as the answer has them.
pub(super) fn shown_page(exchange: &Exchange, found: &MessagePage) -> Response {
    let currency = exchange.api.service.currency();
    let items = found.messages.iter().map(|item| rendered(item, &currency)).collect();
    json(wire::page(items, found.has_more).to_string())
}

/// Adds items behind the current leaf.
pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    let conversations = exchange.writable()?;
    let asked = exchange.read(wire::parse_items).await?;
    let new = new_messages("items", asked)?;
    // Not the thread of a response, which nobody could read them in.
    let conversation = find(&exchange).await?;
    let written = conversations.append(exchange.caller.owner(), &conversation.id, &At::Leaf, &new).await;
    written.map_err(store_failed)?.ok_or_else(|| not_found("conversation"))?;
    let items: Vec<Value> = new.iter().map(|new| item(&new.id, &new.message, new.status.as_str())).collect();
    Ok(json(wire::page(items, false).to_string()))
}

pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let (_, found) = find_item(&exchange).await?;
    Ok(json(rendered(&found, &exchange.api.service.currency()).to_string()))
}

/// Pins an item, or makes its branch the current one. Not in OpenAI's API.
pub(crate) async fn change(mut exchange: Exchange) -> Result<Response, Reject> {
    let (conversation, found) = find_item(&exchange).await?;
    let conversations = exchange.writable()?;
    let change = exchange.read(wire::parse_item_change).await?;
    let (tenant, conversation, id) = (exchange.caller.owner(), &conversation.id, &found.id);
    if let Some(pinned) = change.pinned {
        conversations.pin(tenant, conversation, id, pinned).await.map_err(store_failed)?;
    }
    if change.select {
        conversations.select(tenant, conversation, id).await.map_err(store_failed)?;
    }
    let changed = conversations.message(tenant, conversation, id).await.map_err(store_failed)?;
    let changed = changed.ok_or_else(|| not_found("item"))?;
    Ok(json(rendered(&changed, &exchange.api.service.currency()).to_string()))
}

/// Deletes one item; the answer is the conversation, as OpenAI has it.
pub(crate) async fn delete(exchange: Exchange) -> Result<Response, Reject> {
    let (conversation, found) = find_item(&exchange).await?;
    let (api, tenant) = (&exchange.api, exchange.caller.owner());
    let without = |body: &str| without_item(body, &found.id);
    let deleted = api.conversations()?.delete_message(tenant, &conversation.id, &found.id, without).await;
    let answers = deleted.map_err(store_failed)?.ok_or_else(|| not_found("item"))?;
    // What is being made for it ends.
    api.forget_streams(tenant, &answers);
    if !found.response.is_empty() {
        api.streams.forget(tenant, streams_of(&found.response).into());
    }
    // A title that a model found may have gone with it.
    Ok(json(shown(&find(&exchange).await?).to_string()))
}

/// Keeps what the caller thinks of an item. Not in OpenAI's API.
pub(crate) async fn rate(mut exchange: Exchange) -> Result<Response, Reject> {
    let (conversation, found) = find_item(&exchange).await?;
    let conversations = exchange.writable()?;
    let opinion = exchange.read(wire::parse_opinion).await?;
    let (caller, tenant) = (&exchange.caller, exchange.caller.owner());
    if !opinion.swipe.is_empty() {
        let other = conversations.message(tenant, &conversation.id, &opinion.swipe).await;
        let other = other.map_err(store_failed)?;
        other.filter(|other| other.id != found.id).ok_or_else(no_swipe)?;
    }
    let wire::Opinion { rating, reason, swipe } = opinion.clone();
    let given = Feedback { message: found.id, key_name: caller.name(), rating, reason, swipe, created_ms: now_ms() };
    conversations.rate(tenant, &conversation.id, &given).await.map_err(store_failed)?;
    Ok(json(wire::opinion(&given.message, &opinion, given.created_ms).to_string()))
}

fn no_swipe() -> Reject {
    Reject::invalid("swipe", "`swipe` must be the id of another item of this conversation").code("invalid_value")
}

/// The item that the path names, and its conversation.
pub(super) async fn find_item(exchange: &Exchange) -> Result<(Conversation, StoredMessage), Reject> {
    let conversation = find(exchange).await?;
    let tenant = exchange.caller.owner();
    let found = exchange.api.conversations()?.message(tenant, &conversation.id, exchange.word(1)).await;
    let found = found.map_err(store_failed)?.ok_or_else(|| not_found("item"))?;
    Ok((conversation, found))
}

/// An item with what is known of it.
pub(super) fn rendered(stored: &StoredMessage, currency: &str) -> Value {
    let made = &stored.made;
    let details = Details {
        parent_id: &stored.parent,
        sibling: stored.sibling,
        message_id: &stored.client_id,
        response_id: &stored.response,
        pinned: stored.pinned,
        model: &made.model,
        finish_reason: &made.finish,
        usage: (made.usage != Usage::default()).then_some(made.usage),
        report: Some(&made.report),
        currency,
        created_ms: stored.created_ms,
    };
    detailed(item(&stored.id, &stored.message, stored.status.as_str()), details)
}
