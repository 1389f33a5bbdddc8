//! `/v1/responses`: an answer that is kept and gone on from, streamed with typed events, or made in the background. How one is
//! made: `responses/create.rs`, `responses/background.rs`, `responses/referred.rs`; here is what is asked of it later.

mod background;
mod create;
mod referred;

pub(crate) use create::create;

use crate::body::{Body, Response};
use crate::endpoints::generate::event_stream;
use crate::endpoints::items::shown_page;
use crate::endpoints::streams::seen;
use crate::exchange::{Exchange, json};
use crate::idempotency::being_made;
use crate::kept::{not_found, store_failed};
use crate::replay::{EVENTS_GONE, ReplayBody, away, gone_of_response};
use crate::server::Api;
use crate::uri::unknown_after;
use std::time::Duration;
use tidegate_store::Conversations;
use tidegate_store::conversations::StoredResponse;
use tidegate_streams::{CUT, Found};
use tidegate_types::{Fault, Reject, RejectKind, TenantId};
use tidegate_wire::conversations::deleted;
use tidegate_wire::responses::{parse_response, status_of};

/// The response that the same request made before, or makes: another gateway, where that `is_running`.
pub(crate) async fn again(mut exchange: Exchange, made: String, is_running: bool) -> Result<Response, Reject> {
    let asked = exchange.read(parse_response).await?;
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), format!("resp_{made}"));
    match asked.chat.stream {
        true => streamed_again(api, tenant, &id, is_running).await,
        false => whole_again(api, tenant, &id, !asked.background).await,
    }
}

/// The events from the first, where they are kept.
async fn streamed_again(api: &Api, tenant: &TenantId, id: &str, is_running: bool) -> Result<Response, Reject> {
    if let Some(log) = api.streams.find_anywhere(tenant, id).await.map_err(away)? {
        return Ok(event_stream(Body::replay(ReplayBody::of_response(
            api,
            log.read_after(0).map_err(gone_of_response)?,
        ))));
    }
    let stored = find(api, tenant, id).await?;
    if stored.is_running() && is_running {
        return Err(being_made());
    }
    let message = format!("the events of this response are no longer kept; it is `{id}`, {}", stored.status);
    Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code(EVENTS_GONE))
}

/// The object, once its maker has ended it where that is to be waited for.
async fn whole_again(api: &Api, tenant: &TenantId, id: &str, wait: bool) -> Result<Response, Reject> {
    let outcome = match running(api, tenant, id).await? {
        Some(log) if wait => ended(api, tenant, id, log).await?,
        log => log.and_then(|log| log.outcome()),
    };
    match outcome {
        // Only its stream has ended; how the answer did the store knows.
        Some(Err(reject)) if reject.code.as_deref() == Some(CUT) => {
            let stored = find(api, tenant, id).await?;
            if wait && stored.is_running() { Err(being_made()) } else { Ok(json(stored.body)) }
        }
        Some(Err(reject)) if !reject.is_cancelled() => Err(reject),
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

/// The response; with `stream=true` its events, from `starting_after` on, while they are kept.
pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let (api, tenant, id) = (&exchange.api, exchange.caller.owner(), exchange.word(0));
    if exchange.param("stream")?.as_deref() != Some("true") {
        return Ok(json(find(api, tenant, id).await?.body));
    }
    let Some(log) = api.streams.find_anywhere(tenant, id).await.map_err(away)? else {
        find(api, tenant, id).await?;
        let message = "the events of this response are no longer kept; read it without `stream`";
        return Err(Reject::invalid("stream", message).code(EVENTS_GONE));
    };
    // Events are numbered from 0 in what they say, and from 1 in their ids.
    let by_header = exchange.request.headers().contains_key("last-event-id");
    let is_first = exchange.param("starting_after")?.is_none();
    let seen = seen(&exchange)?.saturating_add(u64::from(!by_header && !is_first));
    Ok(event_stream(Body::replay(ReplayBody::of_response(api, log.read_after(seen).map_err(gone_of_response)?))))
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
    let (of, asked) = (id.to_owned(), page.clone());
    let read =
        async move |conversations: Conversations, tenant: TenantId| conversations.input(&tenant, &of, &asked).await;
    let found = exchange.read_much(read).await?;
    if found.messages.is_empty() && !page.after.is_empty() {
        let had = api.conversations()?.had_input(tenant, id, &page.after).await.map_err(store_failed)?;
        had.then_some(()).ok_or_else(unknown_after)?;
    }
    Ok(shown_page(&exchange, &found))
}

pub(super) async fn find(api: &Api, tenant: &TenantId, id: &str) -> Result<StoredResponse, Reject> {
    let found = api.conversations()?.response(tenant, id).await.map_err(store_failed)?;
    found.ok_or_else(|| not_found("response"))
}
