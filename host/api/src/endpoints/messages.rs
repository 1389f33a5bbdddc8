//! The simple pair: `POST /v1/conversations/{id}/messages` takes a message and names the stream of its answer, which
//! `GET /v1/streams/{stream_id}` reads. A message that its client sends again is the same message, and has one answer.

use crate::answering::{Answering, Keep};
use crate::backend::RequestContext;
use crate::body::Response;
use crate::endpoints::conversations::{find, new_messages};
use crate::endpoints::items::find_item;
use crate::error::refuse_while_stopping;
use crate::exchange::{Exchange, json};
use crate::history::history;
use crate::ids;
use crate::kept::{not_found, store_failed};
use crate::server::Api;
use serde_json::Map;
use std::sync::Arc;
use tidegate_store::Conversations;
use tidegate_store::conversations::{At, Maker, NewResponse, Origin, Turn};
use tidegate_streams::Full;
use tidegate_types::clock::unix_s;
use tidegate_types::{Caller, Chat, Fault, Notebook, Reject, RejectKind, Role, TenantId, default_model};
use tidegate_wire::conversations::{accepted, parse_regenerate, parse_simple};
use tidegate_wire::responses::{Head, ResponseEncoder, Skin, Truncation};
use tracing::Instrument;

/// Of an answer that is being made.
const RUNNING: &str = "in_progress";

pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    let context = exchange.context();
    let conversation = find(&exchange).await?.id;
    refuse_while_stopping(&exchange.api)?;
    let conversations = exchange.writable()?;
    let asked = exchange.read(parse_simple).await?;
    let Exchange { api, caller, .. } = exchange;
    let model = asked.model.map_or_else(|| first_model(&api, &caller), Ok)?;
    let mut new = new_messages("content", vec![asked.message])?;
    new.iter_mut().for_each(|new| new.client_id.clone_from(&asked.message_id));
    let at = asked.parent_id.map_or(At::Leaf, At::Branch);
    // Written before it is said to be accepted.
    let written = conversations.append(caller.owner(), &conversation, &at, &new).await;
    let written = written.map_err(store_failed)?;
    let id = written.and_then(|mut ids| ids.pop()).ok_or_else(|| not_found("item").at("parent_id"))?;
    // The stream is named after the message, so that whoever sends it again finds the same one.
    let unique = id.trim_start_matches("msg_").to_owned();
    let response = response_id(&unique);
    let answer = Answer { conversation, leaf: id.clone(), at: At::Behind(id.clone()), unique, model };
    let status = begin(&api, &caller, context, answer).await?;
    Ok(json(accepted(&asked.message_id, &id, &response, &status).to_string()))
}

/// Answers a message of the user anew: the answer is a branch of its own beside the one before, and the current one.
pub(crate) async fn regenerate(mut exchange: Exchange) -> Result<Response, Reject> {
    let context = exchange.context();
    let (conversation, item) = find_item(&exchange).await?;
    refuse_while_stopping(&exchange.api)?;
    let conversations = exchange.writable()?;
    let model = exchange.read(parse_regenerate).await?;
    let Exchange { api, caller, .. } = exchange;
    let leaf = if item.message.role == Role::User {
        item.id.clone()
    } else {
        // An answer may have several items: what it follows is what its first one does.
        let found = conversations.of_response(caller.owner(), &item.response, Origin::Output).await;
        let all = found.map_err(store_failed)?;
        let first = if item.response.is_empty() { None } else { all.into_iter().next() };
        first.map_or(item.parent.clone(), |first| first.parent)
    };
    let unique = ids::secret()?;
    let (item_id, response) = (leaf.clone(), response_id(&unique));
    let model = model.map_or_else(|| first_model(&api, &caller), Ok)?;
    let answer = Answer { conversation: conversation.id, leaf: leaf.clone(), at: At::Branch(leaf), unique, model };
    let status = begin(&api, &caller, context, answer).await?;
    Ok(json(accepted(&item.client_id, &item_id, &response, &status).to_string()))
}

/// What a caller who names no model gets.
fn first_model(api: &Api, caller: &Caller) -> Result<String, Reject> {
    let cards = api.service.models(caller);
    let model = default_model(cards.iter().map(|card| (&*card.id, card.chats())));
    let message = "no model that you may ask answers chats; `GET /v1/models` lists those that there are";
    let none = || Reject::new(RejectKind::NotFound, Fault::Client, message).at("model").code("model_not_found");
    model.map(str::to_owned).ok_or_else(none)
}

fn response_id(unique: &str) -> String {
    format!("resp_{unique}")
}

/// An answer to be made.
struct Answer {
    conversation: String,
    /// The last message that the model sees.
    leaf: String,
    at: At,
    unique: String,
    model: String,
}

/// Begins the answer, unless it was begun before, here or at another gateway. The log comes first, so that of those who ask
/// the same here one goes on; where the store does not take it, no log was there. Gives how far the answer is.
async fn begin(api: &Arc<Api>, caller: &Caller, mut context: RequestContext, answer: Answer) -> Result<String, Reject> {
    let Answer { conversation, leaf, at, unique, model } = answer;
    let (conversations, tenant) = (api.writable(caller)?, caller.owner());
    let (stream, id) = (format!("stream_{unique}"), response_id(&unique));
    let writer = match api.streams.open_as(caller, &stream) {
        Ok(writer) => writer,
        // Whoever has the log may not have told the store of it yet.
        Err(Full::Taken) => return Ok(status(conversations, tenant, &id).await?.unwrap_or_else(|| RUNNING.into())),
        Err(full) => return Err(crate::endpoints::generate::full(full)),
    };
    let asking = context.clone();
    context.history = Some(history(api.kept()?, tenant, (&conversation, &leaf), false, Truncation::Auto));
    let (currency, echo) = (api.service.currency(), Map::new());
    let head = Head { id: id.clone(), created: unix_s(), model: model.clone(), store: true, currency, echo };
    let encoder = ResponseEncoder::new(head, &unique, Skin::Simple, api.limits.max_answer_bytes);
    let encoder = encoder.padded(api.limits.obfuscation);
    let (previous, body) = (String::new(), encoder.begun());
    let response = NewResponse { id: id.clone(), previous, status: RUNNING.into(), body, used: None };
    let (input, output) = (Vec::new(), Vec::new());
    let turn = Turn { conversation, at, response, input, output, listed: true };
    let keep = Keep { conversations: conversations.clone(), tenant: tenant.clone(), context: asking, turn };
    let (shared, notebook) = (Arc::clone(api), Notebook::default());
    let answering = Answering { api: shared, encoder, keep: Some(keep), writer: Some(writer), notebook };
    // In a task, since whoever asked may go away: what the store knows to be made here is made.
    // The message is in the history.
    let chat = Chat { stream: true, ..Chat::new(model, Vec::new()) };
    let making = api.tasks.spawn(make(answering, stream, chat, context).in_current_span());
    match making.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))?? {
        Maker::This => Ok(RUNNING.into()),
        // An answer may be deleted and its message stay.
        Maker::Other => Ok(status(conversations, tenant, &id).await?.unwrap_or_else(|| "deleted".into())),
        Maker::Nobody => Err(unanswerable()),
    }
}

/// What the store says of an answer, where it is there.
async fn status(conversations: &Conversations, tenant: &TenantId, id: &str) -> Result<Option<String>, Reject> {
    Ok(conversations.response(tenant, id).await.map_err(store_failed)?.map(|found| found.status))
}

/// The item that was named may well be there: an answer outlives the message that it answers.
fn unanswerable() -> Reject {
    let message = "the message that this would answer was deleted, or its conversation was";
    Reject::new(RejectKind::NotFound, Fault::Client, message).code("item_not_found")
}

/// Has the store say who makes the answer; where it is this gateway, makes it behind.
async fn make(answering: Answering, stream: String, chat: Chat, context: RequestContext) -> Result<Maker, Reject> {
    let api = Arc::clone(&answering.api);
    let (Some(keep), Some(writer)) = (&answering.keep, &answering.writer) else { return Ok(Maker::Nobody) };
    let maker = keep.conversations.begin(&keep.tenant, &keep.turn).await.map_err(store_failed)?;
    if maker == Maker::This {
        api.streams.tell(&stream, writer);
        let asking = answering.asking(chat, context);
        api.tasks.spawn(answering.follow(asking).in_current_span());
    }
    Ok(maker)
}
