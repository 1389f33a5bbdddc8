//! A response in the background: its caller hears of it once it was let in, and it goes on without its caller.
//!
//! What the store would not take is refused before a model is asked. What this gateway knows by itself (whether there is such a
//! model, whose limits and budgets are used up, whether there is a place, how long the prompt is) it knows before anybody could
//! grow impatient: that has its own status, and leaves nothing.
//! Guards and other servers may take as long as they like: what they refuse later is how the response has failed.

use crate::answering::{Answering, Asking, Keep};
use crate::backend::{Aborted, History, RequestContext};
use crate::body::{Body, Response};
use crate::endpoints::generate::{event_stream, extra_headers};
use crate::exchange::json;
use crate::kept::{not_found, store_failed};
use crate::replay::{ReplayBody, gone_of_response};
use hyper::HeaderMap;
use std::pin::pin;
use std::sync::Arc;
use tidegate_store::conversations::{Put, Turn};
use tidegate_types::{Chat, Fault, Reject, Transcript};
use tracing::Instrument;

/// Answers once the response was let in, or that takes too long; it is there from then on.
pub(super) async fn in_background(
    mut answering: Answering,
    chat: Chat,
    context: RequestContext,
    stream: bool,
) -> Result<Response, Reject> {
    let context = RequestContext { history: once_taken(&answering, context.history), ..context };
    let (api, aborted) = (Arc::clone(&answering.api), context.aborted.clone());
    let (mut asking, mut headers) = (answering.asking(chat, context), HeaderMap::new());
    if let Ok(reply) = tokio::time::timeout(api.limits.let_in_within, &mut asking).await {
        let reply = reply?;
        headers = extra_headers(&reply);
        answering.encoder.answered_by(&reply.model);
        asking = Box::pin(std::future::ready(Ok(reply)));
    }
    // In a task, since whoever asked may go away: what the store knows to be made is made.
    let beginning = api.tasks.spawn(begin(answering, asking, aborted, stream).in_current_span());
    let begun = beginning.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))?;
    let mut response = begun?;
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Notes the response, and makes it behind.
async fn begin(answering: Answering, asking: Asking, aborted: Aborted, stream: bool) -> Result<Response, Reject> {
    let (api, begun) = (Arc::clone(&answering.api), answering.encoder.begun());
    let (noted, asking) = beside(note_begun(&answering, &begun), asking).await;
    noted.inspect_err(|reject| aborted.by(reject))?;
    let mut cursor = None;
    if let (Some(writer), Some(keep)) = (&answering.writer, &answering.keep) {
        api.streams.tell(&keep.turn.response.id, writer);
        cursor = stream.then(|| writer.log().read_after(0).map_err(gone_of_response)).transpose()?;
    }
    api.tasks.spawn(async move { answering.follow(asking).await }.in_current_span());
    Ok(match cursor {
        Some(cursor) => event_stream(Body::replay(ReplayBody::of_response(&api, cursor).kept(true))),
        None => json(begun),
    })
}

/// Does `work` while what is asked for goes on: that may hold what the store is waiting for.
async fn beside<T>(work: impl Future<Output = T>, mut asking: Asking) -> (T, Asking) {
    let mut work = pin!(work);
    tokio::select! {
        done = &mut work => (done, asking),
        reply = &mut asking => (work.await, Box::pin(std::future::ready(reply))),
    }
}

/// Reads the history of a request that was let in once the store has said that it would take its response. A model that is asked
/// may bill it, and to what the store does not take nobody could come back.
fn once_taken(answering: &Answering, history: Option<History>) -> Option<History> {
    let Some(keep) = &answering.keep else { return history };
    let turn = Arc::new(being_made(keep, &answering.encoder.begun()));
    let (conversations, tenant) = (keep.conversations.clone(), keep.tenant.clone());
    Some(History(Arc::new(move |asked| {
        let (conversations, tenant) = (conversations.clone(), tenant.clone());
        let (turn, history) = (Arc::clone(&turn), history.clone());
        Box::pin(async move {
            taken(conversations.try_put(&tenant, &turn).await.map_err(store_failed)?, &turn)?;
            match history {
                Some(History(load)) => load(asked).await,
                None => Ok(Transcript { messages: asked, ..Transcript::default() }),
            }
        })
    })))
}

/// Writes that the response is being made, before anybody is told.
async fn note_begun(answering: &Answering, begun: &str) -> Result<(), Reject> {
    let Some(keep) = &answering.keep else { return Ok(()) };
    let turn = being_made(keep, begun);
    taken(keep.conversations.put(&keep.tenant, &turn).await.map_err(store_failed)?, &turn)
}

/// What is written of a response at its beginning: its object, and no message.
fn being_made(keep: &Keep, begun: &str) -> Turn {
    let mut turn = keep.turn.clone();
    turn.input.clear();
    turn.response.body = begun.to_owned();
    turn
}

fn taken(put: Put, turn: &Turn) -> Result<(), Reject> {
    match put {
        Put::Written => Ok(()),
        Put::Deleted if !turn.response.previous.is_empty() => Err(not_found("response").at("previous_response_id")),
        Put::Deleted | Put::Taken => Err(not_found("conversation")),
    }
}
