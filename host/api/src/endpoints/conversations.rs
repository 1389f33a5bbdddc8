//! `/v1/conversations`: made, read, changed, deleted, listed, searched and exported.

use crate::body::Response;
use crate::endpoints::items::rendered;
use crate::exchange::{Exchange, json, with_type};
use crate::ids;
use crate::kept::{not_found, store_failed};
use crate::uri::{bad, unknown_after};
use serde_json::Value;
use tidegate_store::Conversations;
use tidegate_store::conversations::{
    Conversation, Feedback, Made, MessageStatus, NewMessage, Order, Page, StoredSummary, now_ms,
};
use tidegate_types::{Fault, Message, Part, Reject, RejectKind, TenantId};
use tidegate_wire::conversations as wire;

/// Items that an export reads at a time.
const EXPORT_PAGE: u32 = 50;

/// What is looked for; databases have limits of their own, which are not the same.
const MAX_WORDS_BYTES: usize = 1024;

/// Text of an item that is kept: pages of them are made in memory.
const MAX_ITEM_BYTES: usize = 1 << 20;

pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    let (name, conversations) = (exchange.name()?, exchange.writable()?);
    let asked = exchange.read(|body| wire::parse_conversation(body, true)).await?;
    let made = Conversation {
        id: format!("conv_{name}"),
        title: asked.title.unwrap_or_default(),
        metadata: asked.metadata.unwrap_or_else(|| "{}".into()),
        leaf: String::new(),
        created_ms: now_ms(),
    };
    let items = new_messages("items", asked.items)?;
    conversations.create(exchange.caller.owner(), &made, &items).await.map_err(store_failed)?;
    Ok(json(shown(&made).to_string()))
}

/// The conversation that the same request made before.
pub(crate) async fn again(mut exchange: Exchange, made: String) -> Result<Response, Reject> {
    exchange.rest = format!("conv_{made}");
    get(exchange).await
}

pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    Ok(json(shown(&find(&exchange).await?).to_string()))
}

pub(crate) async fn update(mut exchange: Exchange) -> Result<Response, Reject> {
    let conversations = exchange.writable()?;
    let asked = exchange.read(|body| wire::parse_conversation(body, false)).await?;
    let (title, metadata) = (asked.title.as_deref(), asked.metadata.as_deref());
    let changed = conversations.update(exchange.caller.owner(), exchange.word(0), title, metadata).await;
    let changed = changed.map_err(store_failed)?.ok_or_else(|| not_found("conversation"))?;
    Ok(json(shown(&changed).to_string()))
}

/// It is gone for everybody at once, and from the files after the time that the operator set.
pub(crate) async fn delete(exchange: Exchange) -> Result<Response, Reject> {
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), exchange.word(0));
    let deleted = api.conversations()?.delete(tenant, id).await.map_err(store_failed)?;
    // Nobody could keep what is being made for it.
    api.forget_streams(tenant, &deleted.ok_or_else(|| not_found("conversation"))?);
    Ok(json(wire::deleted(id, "conversation.deleted").to_string()))
}

/// The tenant's conversations, newest first; with `q`, those that have these words. Not in OpenAI's API.
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    let (page, words) = (exchange.page()?, exchange.param("q")?.unwrap_or_default());
    if words.len() > MAX_WORDS_BYTES {
        return Err(bad("q", &format!("text of at most {MAX_WORDS_BYTES} bytes; it has {}", words.len())));
    }
    let one_more = Page { limit: page.limit + 1, ..page.clone() };
    let read = async move |conversations: Conversations, tenant: TenantId| {
        conversations.list(&tenant, &one_more, &words).await
    };
    let found = exchange.read_much(read).await?;
    let conversations = exchange.api.conversations()?;
    if found.is_empty() && !page.after.is_empty() {
        let had = conversations.had(exchange.caller.owner(), &page.after).await.map_err(store_failed)?;
        had.then_some(()).ok_or_else(unknown_after)?;
    }
    Ok(json(limited(found.iter().map(shown).collect(), page.limit)))
}

/// All that is kept of a conversation, as lines of JSON: itself, its items on all branches, their summaries, what people
/// thought of them. Not in OpenAI's API.
pub(crate) async fn export(exchange: Exchange) -> Result<Response, Reject> {
    let conversation = find(&exchange).await?;
    let (conversations, tenant) = (exchange.api.conversations()?, exchange.caller.owner());
    let (mut lines, currency) = (format!("{}\n", shown(&conversation)), exchange.api.service.currency());
    let mut page = Page { after: String::new(), limit: EXPORT_PAGE, order: Order::Ascending };
    loop {
        let (id, asked) = (conversation.id.clone(), page.clone());
        let read =
            async move |conversations: Conversations, tenant: TenantId| conversations.tree(&tenant, &id, &asked).await;
        let found = exchange.read_much(read).await?;
        found.messages.iter().for_each(|item| lines.push_str(&format!("{}\n", rendered(item, &currency))));
        if lines.len() > exchange.api.limits.max_answer_bytes {
            let message = "the conversation is too long to be exported in one piece; read its items page by page";
            return Err(Reject::new(RejectKind::TooLarge, Fault::Operator, message).code("export_too_large"));
        }
        match found.messages.last() {
            Some(last) if found.has_more => page.after.clone_from(&last.id),
            _ => break,
        }
    }
    for summary in conversations.summaries(tenant, &conversation.id).await.map_err(store_failed)? {
        let StoredSummary { message, covers, text, model, created_ms } = &summary;
        lines.push_str(&format!("{}\n", wire::summary(message, *covers, text, model, *created_ms)));
    }
    let opinions = conversations.feedback(tenant, &conversation.id).await.map_err(store_failed)?;
    for Feedback { message, rating, reason, swipe, created_ms, .. } in opinions {
        let shown = wire::opinion(&message, &wire::Opinion { rating, reason, swipe }, created_ms);
        lines.push_str(&format!("{shown}\n"));
    }
    Ok(with_type("application/x-ndjson", lines))
}

/// The conversation that the path names.
pub(super) async fn find(exchange: &Exchange) -> Result<Conversation, Reject> {
    let found = exchange.api.conversations()?.get(exchange.caller.owner(), exchange.word(0)).await;
    found.map_err(store_failed)?.ok_or_else(|| not_found("conversation"))
}

pub(super) fn shown(conversation: &Conversation) -> Value {
    wire::conversation(&conversation.id, conversation.created_ms, &conversation.metadata, &conversation.title)
}

/// A page of at most `limit`, of which one more was asked for.
fn limited(mut data: Vec<Value>, limit: u32) -> String {
    let has_more = data.len() > limit as usize;
    data.truncate(limit as usize);
    wire::page(data, has_more).to_string()
}

/// Messages of a caller, with ids of their own.
pub(super) fn new_messages(param: &str, messages: Vec<Message>) -> Result<Vec<NewMessage>, Reject> {
    let new = |(i, message): (usize, Message)| {
        let bytes = message.parts.iter().map(text_bytes).sum::<usize>();
        if bytes > MAX_ITEM_BYTES {
            let why = format!("an item that is kept must have at most {MAX_ITEM_BYTES} bytes, not {bytes}");
            return Err(Reject::invalid(format!("{param}[{i}]"), why).code("string_above_max_length"));
        }
        let id = format!("msg_{}", ids::secret()?);
        let (status, made) = (MessageStatus::Completed, Made::default());
        Ok(NewMessage { id, client_id: String::new(), message, status, made })
    };
    messages.into_iter().enumerate().map(new).collect()
}

pub(super) fn text_bytes(part: &Part) -> usize {
    match part {
        Part::Text(text) | Part::Reasoning(text) | Part::Refusal(text) => text.len(),
        Part::ToolCall(call) => call.arguments.len(),
        Part::ToolOutcome(outcome) => outcome.content.len(),
        Part::Opaque { body, .. } => body.to_string().len(),
    }
}
