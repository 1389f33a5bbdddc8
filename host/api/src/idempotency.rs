//! `Idempotency-Key`: a client that does not know whether it got through asks again with the same key, and gets what the
//! first request made. Any `POST` may have one. It is its caller's, and stands for one body on one path for a day.
//!
//! A request with a key is made by a task of its own, since whoever asked may be gone; everybody who asks the same reads
//! what it makes, as it comes. What failed is told to those who wait, and the key is free again: a failure has made
//! nothing. What is made stays in memory, in [`answers`]; where a request makes something that lasts in the store, the
//! store knows its key too, so that neither a restart nor another gateway makes it twice.

pub(crate) mod answers;
mod lasting;

use crate::body::{Body, Response};
use crate::endpoints::generate;
use crate::exchange::{Exchange, Inbound};
use crate::generation::Pieces;
use crate::receive;
use crate::replay::ReplayBody;
use crate::routes::{Access, Route};
use crate::server::Api;
use answers::{Begun, Claim, Id, KEY_AGE, Made, MadeBody, Waiting};
use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use metrics::counter;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_streams::Writer;
use tidegate_types::{Act, Fault, Reject, RejectKind, Retention};
use tracing::Instrument;

const HEADER: &str = "idempotency-key";
const MAX_BYTES: usize = 256;
/// Says of an answer that it was made for an earlier request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// How long an answer that shows a key is given again: long enough for a client whose connection broke, and no longer.
const SECRET_AGE: Duration = Duration::from_secs(60);

/// A request as its key knows it.
pub(crate) struct Asked {
    /// Whose key, where it was sent to, and which.
    id: Id,
    /// Tells its body from others.
    fingerprint: Id,
}

/// Whether the request says that it is to be done once.
pub(crate) fn is_asked(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::POST && headers.contains_key(HEADER)
}

/// Answers a request that has a key: makes the answer, or gives what was made.
pub(crate) async fn once(route: &'static Route, mut exchange: Exchange) -> Result<Response, Reject> {
    let api = Arc::clone(&exchange.api);
    let (parts, body) = exchange.request.into_parts();
    let key = key(&parts.headers)?.to_owned();
    let body = receive::any(&api, route.access, &exchange.caller, &parts.headers, body).await?;
    exchange.request = Request::from_parts(parts, Inbound::Whole(body.clone()));
    let asked = Asked { id: id(route, &exchange, &key), fingerprint: *blake3::hash(&body).as_bytes() };
    // Who logs out is no caller, and anyone may ask for that.
    let whose = (!route.access.is_open()).then_some(&exchange.caller.tenant);
    let (claim, word) = match api.answers.claim(asked.id, asked.fingerprint, whose, Instant::now()) {
        Claim::New(begun) => {
            let waiting = begun.waiting();
            api.tasks.spawn(make(route, exchange, asked, begun).in_current_span());
            (Ok((waiting, false)), "new")
        }
        Claim::Same(waiting) => (Ok((waiting, true)), "same"),
        Claim::Gone => (Err(gone()), "gone"),
        Claim::Other => (Err(reused()), "other"),
        Claim::Full => (Err(full()), "full"),
    };
    counter!("tidegate_idempotency_keys_total", "claim" => word).increment(1);
    let (waiting, again) = claim?;
    given(&api, waiting, again).await
}

fn key(headers: &HeaderMap) -> Result<&HeaderValue, Reject> {
    let mut keys = headers.get_all(HEADER).iter();
    match (keys.next(), keys.next()) {
        (Some(key), None) if (1..=MAX_BYTES).contains(&key.len()) => Ok(key),
        (_, None) => {
            let message = format!("the header `Idempotency-Key` must have 1 to {MAX_BYTES} bytes");
            Err(Reject::invalid(HEADER, message).code("invalid_value"))
        }
        _ => {
            Err(Reject::invalid(HEADER, "there are several headers `Idempotency-Key`; send one").code("invalid_value"))
        }
    }
}

/// Each field with its length, so that no two differ only in where one ends.
fn id(route: &Route, exchange: &Exchange, key: &HeaderValue) -> Id {
    let caller = &exchange.caller;
    // Who logs out is no caller; the cookie says who it is.
    let cookies: Vec<&[u8]> = match route.access {
        Access::Login => exchange.request.headers().get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect(),
        _ => Vec::new(),
    };
    let uri = exchange.request.uri();
    let (name, query) = (caller.name(), uri.query().unwrap_or_default());
    let mut hasher = blake3::Hasher::new();
    let fields = [caller.owner().as_str().as_bytes(), name.as_bytes(), uri.path().as_bytes(), query.as_bytes()];
    for field in fields.into_iter().chain([key.as_bytes()]).chain(cookies) {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    *hasher.finalize().as_bytes()
}

/// Makes the answer, for whoever waits, and keeps it. Before anybody is told that it failed, the key is free again.
async fn make(route: &'static Route, mut exchange: Exchange, asked: Asked, begun: Begun) {
    let api = Arc::clone(&exchange.api);
    // Where a stream could not be told to whoever asks the same, it is not begun either.
    let log = api.streams.open_unnamed(&*exchange.caller).map_err(generate::full);
    exchange.may_stream = log.as_ref().map(|_| ()).map_err(Reject::clone);
    let (keep, retention) = (api.limits.streams.keep, exchange.caller.scope.retention);
    let (outcome, claimed) = lasting::handle(route, exchange, &asked).await;
    // The request itself may have said so.
    let asked_for = outcome.as_ref().ok().and_then(|response| response.body().retention);
    let age = age(route, asked_for.unwrap_or(retention), keep);
    let kept = outcome.as_ref().ok().and_then(|response| response.body().kept_log()).cloned();
    let ended = match outcome {
        Ok(response) => tell(&begun, response, log).await,
        Err(reject) => Ended { outcome: Err(reject), bytes: 0, log: None },
    };
    // The stream may have ended alone: what it told is made to its end, and may not be there yet.
    let goes_on = kept.filter(|log| !matches!(log.outcome(), Some(Err(_))));
    let done = match &ended.outcome {
        // What was cancelled has made what there is of it; where nobody was told anything there is nothing to give again.
        Err(reject) if !begun.is_told() || (goes_on.is_none() && !reject.is_cancelled()) => {
            if let Some(claimed) = claimed {
                claimed.release().await;
            }
            begun.fail(reject);
            None
        }
        _ => {
            begun.keep(ended.bytes, Instant::now() + age);
            if age < KEY_AGE {
                forget_later(&api, age);
            }
            claimed
        }
    };
    if let Some(log) = ended.log {
        log.end(ended.outcome);
    }
    // Nobody here waits for that.
    if let Some(claimed) = done {
        if let Some(log) = goes_on {
            poll_fn(|cx| log.poll_ended(cx)).await;
        }
        claimed.done().await;
    }
}

/// How an answer has ended.
struct Ended {
    outcome: Result<(), Reject>,
    /// What it holds.
    bytes: usize,
    /// Of one that was streamed; whoever reads it waits for its end.
    log: Option<Writer>,
}

/// How long an answer may be given again; one of which nothing may be kept as long as a stream can be come back to, `keep`.
fn age(route: &Route, retention: Retention, keep: Duration) -> Duration {
    match route.access {
        // It shows the key that it made.
        Access::Admin(Act::Keys) => SECRET_AGE,
        _ if retention == Retention::Nothing => keep.min(KEY_AGE),
        _ => KEY_AGE,
    }
}

/// What may not stay is dropped in time, though nobody may ask.
fn forget_later(api: &Arc<Api>, age: Duration) {
    let of = Arc::clone(api);
    api.tasks.spawn(async move {
        tokio::select! {
            () = tokio::time::sleep(age) => of.answers.expire(Instant::now()),
            () = of.phase.draining.cancelled() => {}
        }
    });
}

/// Tells the answer to those who wait, to its end; a stream by way of `log`.
async fn tell(begun: &Begun, response: Response, log: Result<Writer, Reject>) -> Ended {
    let (parts, mut body) = response.into_parts();
    let made = |body| Made { status: parts.status, headers: parts.headers.clone(), body };
    if let Some(whole) = body.take_whole() {
        let bytes = whole.len();
        begun.tell(Ok(made(MadeBody::Whole(whole))));
        return Ended { outcome: Ok(()), bytes, log: None };
    }
    let writer = match log {
        Ok(writer) => writer,
        // One that was made before: nothing is lost.
        Err(full) => return Ended { outcome: Err(full), bytes: 0, log: None },
    };
    begun.tell(Ok(made(MadeBody::Stream(Arc::clone(writer.log())))));
    write(body, writer).await
}

/// Writes a streamed answer to its log, whoever reads it.
async fn write(mut body: Body, mut writer: Writer) -> Ended {
    let (mut bytes, mut pieces) = (0, Pieces::default());
    while let Some(Ok(frame)) = poll_fn(|cx| hyper::body::Body::poll_frame(Pin::new(&mut body), cx)).await {
        if let Ok(data) = frame.into_data() {
            bytes += data.len();
            writer.append_together(pieces.add(&data));
        }
        // Nobody could read the rest, and it ends with its body.
        if let Some(reject) = writer.cut().filter(|_| body.is_readers_own()) {
            return Ended { outcome: Err(reject), bytes, log: Some(writer) };
        }
    }
    Ended { outcome: body.outcome(), bytes, log: Some(writer) }
}

/// The answer, once there is one.
async fn given(api: &Api, mut waiting: Waiting, again: bool) -> Result<Response, Reject> {
    let answer = waiting.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
    let made =
        answer.unwrap_or_else(|| Err(Reject::internal(Fault::Operator, "a request's task ended without a word")))?;
    let mut response = match made.body {
        MadeBody::Whole(bytes) => Response::new(Body::full(bytes)),
        MadeBody::Stream(log) => {
            let cursor = log.read_after(0).map_err(|_| gone())?;
            Response::new(Body::replay(ReplayBody::raw(api, cursor)))
        }
    };
    *response.status_mut() = made.status;
    *response.headers_mut() = made.headers;
    if again {
        let headers = response.headers_mut();
        // What was left to the caller then is not what is left now.
        let old: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("x-ratelimit-")).cloned().collect();
        old.iter().for_each(|name| drop(headers.remove(name)));
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn reused() -> Reject {
    let message = "this `Idempotency-Key` came with another body before; use a new key for a new request";
    Reject::new(RejectKind::Conflict, Fault::Client, message).code("idempotency_key_reused")
}

/// It is another gateway's, and its answer is not to be had here yet. Making it here would be making it twice.
pub(crate) fn being_made() -> Reject {
    let message = "what was asked with this `Idempotency-Key` is being made by another gateway; ask again with the same \
                   key in a moment";
    let mut reject = Reject::new(RejectKind::Conflict, Fault::Client, message).code("idempotency_in_progress");
    reject.retry_after_s = Some(2);
    reject
}

/// Making it again could be making it twice.
pub(crate) fn gone() -> Reject {
    let message = "what was asked with this `Idempotency-Key` was begun before, and its answer is kept no more; look \
                   whether it is there, and use a new key to ask anew";
    Reject::new(RejectKind::Conflict, Fault::Client, message).code("idempotency_answer_gone")
}

fn full() -> Reject {
    let message = "the server makes as many requests with an `Idempotency-Key` as it may; try again in a second";
    Reject::unavailable(Fault::Operator, message, 1).code("idempotency_keys_full")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{Door, Found, find};

    #[test]
    fn what_shows_a_key_is_given_again_for_a_minute_and_anything_else_for_a_day() {
        for (path, expected) in [
            ("/admin/keys", SECRET_AGE),
            ("/admin/keys/ann/rotate", SECRET_AGE),
            ("/admin/reload", KEY_AGE),
            ("/v1/organization/projects", KEY_AGE),
            ("/v1/organization/projects/p/users", KEY_AGE),
            ("/v1/responses", KEY_AGE),
        ] {
            let Found::Route(route, _) = find(Door::Every, &Method::POST, path) else { panic!("no {path}") };
            let short = Duration::from_secs(1);
            assert_eq!(age(route, Retention::Kept, short), expected, "{path}");
            assert_eq!(age(route, Retention::Nothing, short) < expected, expected == KEY_AGE, "{path}");
        }
    }
}
