//! Making a response: what is asked is read, the place where it stands is found, and then it is streamed, gathered, or made
//! in the background. What is refused leaves nothing, so the order counts: nothing is opened, told or written before all that
//! could be refused was looked at.

use super::background::in_background;
use super::find;
use super::referred::resolve;
use crate::answering::{Answering, Keep};
use crate::backend::{History, Reply, RequestContext};
use crate::body::{Body, Response};
use crate::endpoints::conversations::new_messages;
use crate::endpoints::generate::{event_stream, extra_headers, first_event, full};
use crate::error::refuse_while_stopping;
use crate::exchange::{Exchange, json};
use crate::history::history;
use crate::kept::{not_found, store_failed};
use crate::replay::{ReplayBody, gone_of_response};
use crate::server::Api;
use std::sync::Arc;
use tidegate_store::conversations::{At, NewResponse, Turn};
use tidegate_streams::Writer;
use tidegate_types::clock::unix_s;
use tidegate_types::{Caller, Fault, Notebook, Reject, RejectKind, Retention};
use tidegate_wire::responses::{Ended, Head, ResponseEncoder, ResponseRequest, Skin, parse_response};
use tracing::Instrument;

/// Log-probabilities of a text that the events of its end repeat are at most this part of the stream's log: there are three such
/// events, which are kept beside what the log may hold.
const REPEATED: usize = 8;

pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    let claimed = exchange.made.is_some();
    let (mut context, unique) = (exchange.context(), exchange.name()?);
    let notebook = Notebook::default();
    context.notebook = Some(notebook.clone());
    let (mut asked, num_bytes) = exchange.read(|body| Ok((parse_response(body)?, body.len()))).await?;
    let Exchange { api, caller, may_stream, .. } = exchange;
    if asked.store == Some(false) {
        context.retention = Retention::Nothing;
    }
    let (id, retention) = (format!("resp_{unique}"), context.retention);
    let store = stores(&api, &caller, &asked)?;
    let place = place(&api, &caller, &asked, &unique).await?;
    Box::pin(resolve(&api, &caller, &mut asked, num_bytes)).await?;
    context.history = earlier(&api, &caller, &place, &asked)?;
    let stream = std::mem::replace(&mut asked.chat.stream, true);
    // Its events may be read: here, later by its name, or by whoever asks the same at another gateway.
    let is_told = stream || asked.background || (claimed && store);
    let skin = if is_told { Skin::Typed } else { Skin::Silent };
    let encoder = encoder(&api, &mut asked, &unique, skin, store);
    if stream {
        may_stream?;
    }
    if is_told {
        refuse_unsayable(&api, &encoder, num_bytes)?;
    }
    let keep = if store { Some(keep(&api, &context, &place, &id, &asked)?) } else { None };
    let name = store.then_some(id.as_str());
    let mut answering = Answering { api: Arc::clone(&api), encoder, keep, writer: None, notebook };
    if asked.background {
        refuse_while_stopping(&api)?;
        answering.writer = Some(open(&api, &caller, name)?);
        return in_background(answering, asked.chat, context, stream).await;
    }
    asked.chat.stream = stream;
    let log = if is_told { Some(OwnLog::open(&api, &caller, name, claimed)?) } else { None };
    let (answers, aborted) = (Arc::clone(&context.answers), context.aborted.clone());
    let reply = tokio::select! {
        reply = answers.chat(asked.chat, context) => reply,
        reject = aborted.by_stopping(&api.phase.cutting) => Err(reject),
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(reject) => return Err(log.map_or(reject.clone(), |log| log.refused(reject))),
    };
    let headers = extra_headers(&reply);
    let mut response = match log {
        Some(log) if stream => streamed(answering, log, reply).await?,
        log => whole(answering, log, reply).await?,
    };
    response.headers_mut().extend(headers);
    response.body_mut().retention = Some(retention);
    Ok(response)
}

/// What was said before, where the response stands behind something.
fn earlier(api: &Api, caller: &Caller, place: &Place, asked: &ResponseRequest) -> Result<Option<History>, Reject> {
    let (Some(leaf), false) = (&place.leaf, place.at == At::Leaf) else { return Ok(None) };
    let at = (place.conversation.as_str(), leaf.as_str());
    Ok(Some(history(api.kept()?, caller.owner(), at, asked.instructed, asked.truncation)))
}

/// What writes the events of the response that is `resp_{unique}`, and how much it may say.
fn encoder(api: &Api, asked: &mut ResponseRequest, unique: &str, skin: Skin, store: bool) -> ResponseEncoder {
    let head = Head {
        id: format!("resp_{unique}"),
        created: unix_s(),
        model: asked.chat.model.clone(),
        store,
        currency: api.service.currency(),
        echo: std::mem::take(&mut asked.echo),
    };
    let padded = asked.include_obfuscation.unwrap_or(api.limits.obfuscation);
    let encoder = ResponseEncoder::new(head, unique, skin, api.limits.max_answer_bytes).padded(padded);
    encoder.repeating(api.limits.streams.log_bytes / REPEATED)
}

/// The log of a response whose caller waits for it, and who else is told of it when.
struct OwnLog<'a> {
    writer: Writer,
    /// Under which it is found.
    name: Option<&'a str>,
    /// Whoever asks again with the same key may be at another gateway, and looks for it from the beginning. Else other
    /// gateways are told once there is something to read: of what is refused they hear nothing.
    claimed: bool,
}

impl<'a> OwnLog<'a> {
    fn open(api: &Api, caller: &Caller, name: Option<&'a str>, claimed: bool) -> Result<Self, Reject> {
        let log = Self { writer: open(api, caller, name)?, name, claimed };
        if claimed {
            log.tell(api);
        }
        Ok(log)
    }

    /// The request was accepted, and its answer has begun.
    fn begun(self, api: &Api) -> Writer {
        if !self.claimed {
            self.tell(api);
        }
        self.writer
    }

    /// The request was not accepted; whoever waits elsewhere for the same one hears it from its log.
    fn refused(self, reject: Reject) -> Reject {
        if self.claimed {
            self.writer.end(Err(reject.clone()));
        }
        reject
    }

    fn tell(&self, api: &Api) {
        if let Some(name) = self.name {
            api.streams.tell(name, &self.writer);
        }
    }
}

/// Streams the answer, which ends when its reader goes away. The headers wait for the first event ([`first_event`]).
async fn streamed(mut answering: Answering, log: OwnLog<'_>, mut reply: Reply) -> Result<Response, Reject> {
    let api = Arc::clone(&answering.api);
    let first = match first_event(&api, &mut reply, &api.phase.cutting).await {
        Ok(first) => first,
        Err(reject) => return Err(log.refused(reject)),
    };
    let writer = log.begun(&api);
    let cursor = writer.log().read_after(0).map_err(gone_of_response)?;
    let body = ReplayBody::of_response(&api, cursor).owning().kept(answering.keep.is_some());
    answering.writer = Some(writer);
    api.tasks.spawn(async move { answering.run(reply, first).await }.in_current_span());
    Ok(event_stream(Body::replay(body)))
}

/// Answers once all of it is there.
async fn whole(mut answering: Answering, log: Option<OwnLog<'_>>, reply: Reply) -> Result<Response, Reject> {
    answering.writer = log.map(|log| log.writer);
    let answered = answering.run(reply, None).await;
    match answered.ended {
        Ended::Failed(reject) => Err(reject),
        Ended::Finished(_) | Ended::Cancelled => Ok(json(answered.body)),
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
struct Place {
    conversation: String,
    /// The last message of what is gone on from; `None` where there is nothing.
    leaf: Option<String>,
    at: At,
    listed: bool,
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
fn open(api: &Api, caller: &Caller, name: Option<&str>) -> Result<Writer, Reject> {
    match name {
        Some(name) => api.streams.open_as(caller, name),
        None => api.streams.open_unnamed(caller),
    }
    .map_err(full)
}

/// A response whose events would begin with more than their readers could be told, or than is to be held for them, is refused
/// before it costs anything: the first two repeat the request, and the answer comes behind them.
fn refuse_unsayable(api: &Api, encoder: &ResponseEncoder, body_bytes: usize) -> Result<(), Reject> {
    let limit_bytes = api.limits.streams.log_bytes / 2;
    // What is repeated is hardly longer than it was sent: most requests need not be written out.
    if body_bytes < limit_bytes / 2 {
        return Ok(());
    }
    let bytes = encoder.begun().len();
    if bytes <= limit_bytes {
        return Ok(());
    }
    let message = format!(
        "events of this response would repeat {bytes} bytes of the request, and the server takes no more than {limit_bytes} \
         (half of `[server.streams] log_kib`); send less that it has to repeat, or ask without `stream`, `background` and \
         an `Idempotency-Key`, so that it has no events"
    );
    Err(Reject::new(RejectKind::TooLarge, Fault::Client, message).code("event_too_large"))
}
