//! `/v1/responses`: an answer that is kept and gone on from, streamed with typed events, or made in the background.

use crate::answering::{Answering, Keep, history};
use crate::backend::RequestContext;
use crate::body::{Body, Response};
use crate::endpoints::conversations::{limited, new_messages};
use crate::endpoints::generate::{event_stream, extra_headers, full};
use crate::endpoints::items::rendered;
use crate::endpoints::streams::seen;
use crate::error::refuse_while_stopping;
use crate::exchange::{Exchange, json};
use crate::idempotency::being_made;
use crate::kept::{not_found, store_failed};
use crate::replay::{ReplayBody, away, gone};
use crate::server::Api;
use std::sync::Arc;
use std::time::Duration;
use tidegate_store::conversations::{At, NewResponse, Order, Origin, Put, StoredResponse, Turn};
use tidegate_streams::{Found, TooLarge, Writer};
use tidegate_types::clock::unix_s;
use tidegate_types::{Caller, Chat, Fault, Notebook, Reject, RejectKind, Retention, TenantId};
use tidegate_wire::conversations::deleted;
use tidegate_wire::responses::{Ended, Head, ResponseEncoder, ResponseRequest, Skin, parse_response, status_of};
use tracing::Instrument;

pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    // Whoever asks again with the same key may be at another gateway, and finds the log there.
    let claimed = exchange.made.is_some();
    let (mut context, unique) = (exchange.context(), exchange.name()?);
    let notebook = Notebook::default();
    context.notebook = Some(notebook.clone());
    let body = exchange.body().await?;
    let mut asked = parse_response(&body)?;
    let Exchange { api, caller, .. } = exchange;
    if asked.store == Some(false) {
        context.retention = Retention::Nothing;
    }
    let (id, retention) = (format!("resp_{unique}"), context.retention);
    let store = stores(&api, &caller, &asked)?;
    let place = place(&api, &caller, &asked, &unique).await?;
    if let (Some(leaf), false) = (&place.leaf, place.at == At::Leaf) {
        let at = (place.conversation.as_str(), leaf.as_str());
        let loading = history(api.kept()?, caller.owner(), at, asked.instructed, asked.truncation);
        context.history = Some(loading);
    }
    let stream = std::mem::replace(&mut asked.chat.stream, true);
    let head = Head {
        id: id.clone(),
        created: unix_s(),
        model: asked.chat.model.clone(),
        store,
        currency: api.service.currency(),
        echo: std::mem::take(&mut asked.echo),
    };
    let skin = if stream || asked.background || claimed { Skin::Typed } else { Skin::Silent };
    let padded = asked.include_obfuscation.unwrap_or(api.limits.obfuscation);
    let encoder = ResponseEncoder::new(head, &unique, skin, api.limits.max_answer_bytes).padded(padded);
    if skin == Skin::Typed {
        refuse_unsayable(&api, &encoder, body.len())?;
    }
    let keep = match store {
        true => Some(keep(&api, &context, &place, &id, &asked)?),
        false => None,
    };
    let name = store.then_some(id.as_str());
    if asked.background {
        refuse_while_stopping(&api)?;
        let log = open(&api, caller.owner(), name)?;
        let answering = Answering { api: Arc::clone(&api), encoder, keep, writer: Some(log), notebook };
        return in_background(answering, asked.chat, context, stream, &id).await;
    }
    asked.chat.stream = stream;
    let log = if stream || claimed { Some(open(&api, caller.owner(), name)?) } else { None };
    if let (Some(writer), Some(name), true) = (&log, name, claimed) {
        // Whoever asks the same elsewhere looks for it from now on.
        api.streams.tell(name, writer);
    }
    let mut reply = match api.service.chat(asked.chat, context).await {
        Ok(reply) => reply,
        Err(reject) => return Err(refused(log, claimed, reject)),
    };
    let headers = extra_headers(&reply);
    let mut response = match log {
        Some(writer) if stream => {
            let first = match tokio::time::timeout(api.limits.first_event_wait, reply.next()).await {
                Ok(Some(Err(reject))) => return Err(refused(Some(writer), claimed, reject)),
                Ok(first) => Some(first),
                Err(_) => None,
            };
            if let (Some(name), false) = (name, claimed) {
                api.streams.tell(name, &writer);
            }
            let cursor = writer.log().read_after(0).map_err(gone)?;
            let answering = Answering { api: Arc::clone(&api), encoder, keep, writer: Some(writer), notebook };
            api.tasks.spawn(async move { answering.run(reply, first).await }.in_current_span());
            event_stream(Body::replay(ReplayBody::new(&api, cursor).owning()))
        }
        writer => {
            let answered = Answering { api, encoder, keep, writer, notebook }.run(reply, None).await;
            match answered.ended {
                Ended::Failed(reject) => return Err(reject),
                Ended::Finished(_) | Ended::Cancelled => json(answered.body),
            }
        }
    };
    response.headers_mut().extend(headers);
    response.extensions_mut().insert(retention);
    Ok(response)
}

/// The response that the same request made before, or makes.
pub(crate) async fn again(mut exchange: Exchange, made: String) -> Result<Response, Reject> {
    let asked = parse_response(&exchange.body().await?)?;
    let (api, tenant) = (&exchange.api, exchange.caller.owner());
    attach(api, tenant, &format!("resp_{made}"), asked.chat.stream, !asked.background).await
}

/// Answers with a response that is made, or was made, for somebody who asked the same.
async fn attach(api: &Api, tenant: &TenantId, id: &str, stream: bool, wait: bool) -> Result<Response, Reject> {
    let log = if stream {
        api.streams.find_anywhere(tenant, id).await.map_err(away)?
    } else {
        running(api, tenant, id).await?
    };
    match (&log, stream) {
        (Some(log), true) => {
            return Ok(event_stream(Body::replay(ReplayBody::new(api, log.read_after(0).map_err(gone)?))));
        }
        (None, true) => {
            let stored = find(api, tenant, id).await?;
            if stored.is_running() {
                return Err(being_made());
            }
            let message = format!("the events of this response are no longer kept; it is `{id}`, {}", stored.status);
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("events_gone"));
        }
        (_, false) => {}
    }
    let outcome = match log {
        Some(log) if wait => ended(api, tenant, id, log).await?,
        log => log.and_then(|log| log.outcome()),
    };
    match outcome {
        Some(Err(reject)) if reject.code.as_deref() != Some("cancelled") => Err(reject),
        _ => Ok(json(find(api, tenant, id).await?.body)),
    }
}

/// The log, where the response may still be made. Of one that the store knows to have ended no other gateway is asked in
/// vain.
async fn running(api: &Api, tenant: &TenantId, id: &str) -> Result<Option<Found>, Reject> {
    match api.streams.find_anywhere(tenant, id).await {
        Ok(found) => Ok(found),
        Err(unknown) => match find(api, tenant, id).await {
            Ok(stored) if !stored.is_running() => Ok(None),
            _ => Err(away(unknown)),
        },
    }
}

/// Once the log has ended, how; `None` where it is no longer kept.
async fn ended(api: &Api, tenant: &TenantId, id: &str, log: Found) -> Result<Option<Result<(), Reject>>, Reject> {
    let mut found = Some(log);
    loop {
        let pause = match &found {
            Some(log) if log.outcome().is_some() => return Ok(log.outcome()),
            Some(Found::Here(_)) => Duration::from_millis(5),
            Some(Found::Elsewhere(_)) => Duration::from_millis(50),
            None => return Ok(None),
        };
        tokio::time::sleep(pause).await;
        if let Some(Found::Elsewhere(_)) = found {
            found = api.streams.find_anywhere(tenant, id).await.map_err(away)?;
        }
    }
}

/// Whether the response is kept; an error where it was to be and cannot.
fn stores(api: &Api, caller: &Caller, asked: &ResponseRequest) -> Result<bool, Reject> {
    let must = asked.store == Some(true) || asked.background;
    match (api.writable(caller), must) {
        (Ok(_), _) => Ok(asked.store != Some(false)),
        (Err(reject), true) => Err(reject),
        (Err(_), false) => Ok(false),
    }
}

/// Where a response stands.
pub(super) struct Place {
    pub(super) conversation: String,
    /// The last message of what is gone on from; `None` where there is nothing.
    pub(super) leaf: Option<String>,
    pub(super) at: At,
    pub(super) listed: bool,
}

async fn place(api: &Api, caller: &Caller, asked: &ResponseRequest, unique: &str) -> Result<Place, Reject> {
    let behind = |conversation: String, leaf: String, listed| {
        let at = At::Behind(leaf.clone());
        Place { conversation, leaf: Some(leaf), at, listed }
    };
    if let Some(id) = &asked.conversation {
        let found = api.conversations()?.get(caller.owner(), id).await.map_err(store_failed)?;
        let found = found.ok_or_else(|| not_found("conversation").at("conversation"))?;
        return Ok(behind(found.id, found.leaf, true));
    }
    let Some(previous) = &asked.previous else {
        let conversation = format!("thread_{unique}");
        return Ok(Place { conversation, leaf: None, at: At::Leaf, listed: false });
    };
    let found = find(api, caller.owner(), previous).await.map_err(|reject| reject.at("previous_response_id"))?;
    if found.is_running() {
        let message = "the previous response is still being made; go on from it once it has ended";
        return Err(Reject::invalid("previous_response_id", message).code("response_in_progress"));
    }
    let conversations = api.conversations()?;
    let listed = conversations.get(caller.owner(), &found.conversation).await.map_err(store_failed)?;
    Ok(behind(found.conversation, found.leaf, listed.is_some()))
}

fn keep(api: &Api, context: &RequestContext, place: &Place, id: &str, asked: &ResponseRequest) -> Result<Keep, Reject> {
    let caller = &context.caller;
    let response = NewResponse {
        id: id.to_owned(),
        previous: asked.previous.clone().unwrap_or_default(),
        status: "in_progress".into(),
        body: String::new(),
        used: None,
    };
    let turn = Turn {
        conversation: place.conversation.clone(),
        at: place.at.clone(),
        response,
        input: new_messages("input", asked.input.clone())?,
        output: Vec::new(),
        listed: place.listed,
    };
    let (conversations, context) = (api.writable(caller)?.clone(), RequestContext { history: None, ..context.clone() });
    Ok(Keep { conversations, tenant: caller.owner().clone(), context, turn })
}

/// A log that its caller can come back to under `name`, or that nobody can. Other gateways are not told of it yet: of what
/// is refused nothing stays.
fn open(api: &Api, tenant: &TenantId, name: Option<&str>) -> Result<Writer, Reject> {
    match name {
        Some(name) => api.streams.take(tenant, name),
        None => api.streams.open_unnamed(tenant),
    }
    .map_err(full)
}

/// What a log could not be told of at its end is refused before it costs anything: its events repeat the request.
fn refuse_unsayable(api: &Api, encoder: &ResponseEncoder, body_bytes: usize) -> Result<(), Reject> {
    let limit_bytes = api.limits.streams.log_bytes;
    // What is repeated is hardly longer than it was sent: most requests need not be written out.
    if body_bytes < limit_bytes / 2 {
        return Ok(());
    }
    match encoder.begun().len() {
        bytes if bytes > limit_bytes => Err(TooLarge { bytes, limit_bytes }.into()),
        _ => Ok(()),
    }
}

/// A request that was not accepted; whoever waits elsewhere for the same one hears it from its log.
fn refused(log: Option<Writer>, claimed: bool, reject: Reject) -> Reject {
    if let (Some(writer), true) = (log, claimed) {
        writer.end(Err(reject.clone()));
    }
    reject
}

/// Answers at once; the response is there from now on, and goes on without its caller.
async fn in_background(
    answering: Answering,
    chat: Chat,
    context: RequestContext,
    stream: bool,
    name: &str,
) -> Result<Response, Reject> {
    let (api, begun) = (Arc::clone(&answering.api), answering.encoder.begun());
    note_begun(&answering, &begun).await?;
    let mut cursor = None;
    if let Some(writer) = &answering.writer {
        api.streams.tell(name, writer);
        cursor = stream.then(|| writer.log().read_after(0).map_err(gone)).transpose()?;
    }
    api.tasks.spawn(async move { answering.ask(chat, context).await }.in_current_span());
    Ok(match cursor {
        Some(cursor) => event_stream(Body::replay(ReplayBody::new(&api, cursor))),
        None => json(begun),
    })
}

/// Writes that the response is being made, before anybody is told.
async fn note_begun(answering: &Answering, begun: &str) -> Result<(), Reject> {
    let Some(keep) = &answering.keep else { return Ok(()) };
    let mut turn = keep.turn.clone();
    turn.input.clear();
    turn.response.body = begun.to_owned();
    match keep.conversations.put(&keep.tenant, &turn).await.map_err(store_failed)? {
        Put::Written => Ok(()),
        Put::Deleted | Put::Taken => Err(not_found("conversation")),
    }
}

/// The response; with `stream=true` its events, from `starting_after` on, while they are kept.
pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), exchange.word(0));
    if exchange.param("stream")?.as_deref() != Some("true") {
        return Ok(json(find(api, tenant, id).await?.body));
    }
    let Some(log) = api.streams.find_anywhere(tenant, id).await.map_err(away)? else {
        find(api, tenant, id).await?;
        let message = "the events of this response are no longer kept; read it without `stream`";
        return Err(Reject::invalid("stream", message).code("events_gone"));
    };
    // Events are numbered from 0 in what they say, and from 1 in their ids.
    let by_header = exchange.request.headers().contains_key("last-event-id");
    let is_first = exchange.param("starting_after")?.is_none();
    let seen = seen(&exchange)?.saturating_add(u64::from(!by_header && !is_first));
    Ok(event_stream(Body::replay(ReplayBody::new(api, log.read_after(seen).map_err(gone)?))))
}

/// Deletes the response and those that go on from it.
pub(crate) async fn delete(exchange: Exchange) -> Result<Response, Reject> {
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), exchange.word(0));
    let gone = api.conversations()?.delete_response(tenant, id).await.map_err(store_failed)?;
    if gone.is_empty() {
        return Err(not_found("response"));
    }
    // Gone from the store is gone for everybody; what cannot be stopped now has nowhere to write its end to.
    api.forget_streams(tenant, &gone);
    Ok(json(deleted(id, "response").to_string()))
}

/// How long a cancelled response is waited for.
const CANCELLING: Duration = Duration::from_secs(5);

/// Ends the response, if it is still being made; answers with what there is of it.
pub(crate) async fn cancel(exchange: Exchange) -> Result<Response, Reject> {
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), exchange.word(0));
    if let Some(log) = running(api, tenant, id).await? {
        log.stop().await.map_err(away)?;
        // One that takes longer is read as it is.
        let _ = tokio::time::timeout(CANCELLING, ended(api, tenant, id, log)).await;
        if api.kept.is_none() {
            return Ok(json(status_of(id, "cancelled")));
        }
    }
    Ok(json(find(api, tenant, id).await?.body))
}

pub(crate) async fn input_items(exchange: Exchange) -> Result<Response, Reject> {
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), exchange.word(0));
    let page = exchange.page()?;
    find(api, tenant, id).await?;
    let found = api.conversations()?.of_response(tenant, id, Origin::Input).await;
    let mut items = found.map_err(store_failed)?;
    let currency = api.service.currency();
    if page.order == Order::Descending {
        items.reverse();
    }
    let behind = items.iter().position(|item| item.id == page.after).map_or(0, |at| at + 1);
    Ok(json(limited(items[behind..].iter().map(|item| rendered(item, &currency)).collect(), page.limit)))
}

pub(super) async fn find(api: &Api, tenant: &TenantId, id: &str) -> Result<StoredResponse, Reject> {
    let found = api.conversations()?.response(tenant, id).await.map_err(store_failed)?;
    found.ok_or_else(|| not_found("response"))
}
