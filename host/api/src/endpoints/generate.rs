//! Generating an answer: read and validate the body, begin the reply, then stream it or gather it.

use crate::backend::{Reply, ReplyEvent};
use crate::body::{Body, Response};
use crate::events::{EventBody, First};
use crate::exchange::{Exchange, json};
use crate::generation;
use crate::kept::nothing_kept;
use crate::rate_headers;
use crate::replay::{ReplayBody, gone};
use crate::server::Api;
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::Value;
use std::sync::Arc;
use tidegate_streams::{Full, StreamId, Writer};
use tidegate_types::clock::unix_s;
use tidegate_types::{Fault, Reject, Retention};
use tidegate_wire::stream::UsageChunk;
use tidegate_wire::{Answer, Head, ParsedRequest, StreamEncoder};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Answers a request whose body `parse` reads.
pub(crate) async fn answer(
    mut exchange: Exchange,
    parse: fn(&[u8]) -> Result<ParsedRequest, Reject>,
) -> Result<Response, Reject> {
    let ParsedRequest { chat, include_usage, include_obfuscation } = exchange.read(parse).await?;
    let mut context = exchange.context();
    let Exchange { api, unique, caller, request, cutting, may_stream, .. } = exchange;
    let (stream, num_choices) = (chat.stream, chat.num_choices());
    let resumable = resumable(request.headers(), stream)?;
    match chat.extra.get("store") {
        // An upstream would store it.
        Some(Value::Bool(true)) if context.retention == Retention::Nothing => return Err(nothing_kept().at("store")),
        Some(Value::Bool(false)) => context.retention = Retention::Nothing,
        _ => {}
    }
    let retention = context.retention;
    let mut head = Head::new(&chat, &unique, unix_s(), "");
    // There is room for what is made, or it is not asked for.
    if stream {
        may_stream?;
    }
    let log = resumable.then(|| api.streams.open(&*caller).map_err(full)).transpose()?;
    let (answers, aborted) = (Arc::clone(&context.answers), context.aborted.clone());
    let mut reply = tokio::select! {
        reply = answers.chat(chat, context) => reply?,
        reject = aborted.clone().by_stopping(&cutting) => return Err(reject),
    };
    head.model.clone_from(&reply.model);
    head.citations = std::mem::take(&mut reply.citations);
    let headers = extra_headers(&reply);
    let mut response = if stream {
        let usage = if include_usage { UsageChunk::Include } else { UsageChunk::Omit };
        let padded = include_obfuscation.unwrap_or(api.limits.obfuscation);
        let encoder = StreamEncoder::new(head, num_choices, usage).padded(padded);
        streamed(&api, encoder, reply, log, retention, cutting).await?
    } else {
        tokio::select! {
            whole = gathered(&api, head, num_choices, reply) => json(whole?),
            reject = aborted.by_stopping(&cutting) => return Err(reject),
        }
    };
    response.headers_mut().extend(headers);
    response.body_mut().retention = Some(retention);
    Ok(response)
}

/// Headers of the reply, and what is left to its caller; one that HTTP cannot carry is left out, and said.
pub(crate) fn extra_headers(reply: &Reply) -> HeaderMap {
    let header = |(name, value): &(&'static str, String)| {
        let pair = HeaderName::try_from(*name).ok().zip(HeaderValue::from_str(value).ok());
        if pair.is_none() {
            tracing::warn!(header = name, "the header's value cannot be sent");
        }
        pair
    };
    let mut headers = reply.headers.iter().filter_map(header).collect();
    rate_headers::allowances(&mut headers, &reply.allowances);
    headers
}

async fn gathered(api: &Api, mut head: Head, num_choices: u32, mut reply: Reply) -> Result<Bytes, Reject> {
    let mut answer = Answer::new(num_choices, api.limits.max_answer_bytes);
    let mut usage = None;
    while let Some(event) = reply.next().await {
        match event? {
            ReplyEvent::Delta(delta) => {
                if let Err(reject) = answer.push(delta) {
                    reply.fail(&reject);
                    return Err(reject);
                }
            }
            ReplyEvent::Usage(counted) => usage = Some(counted),
            ReplyEvent::Uncited => head.citations.clear(),
        }
    }
    answer.render(&head, usage.as_ref())
}

/// Asks for a stream that its reader can come back to.
const RESUMABLE: &str = "x-tidegate-resumable";
/// Names it in the response.
const STREAM_ID: HeaderName = HeaderName::from_static("x-tidegate-stream-id");

fn resumable(headers: &HeaderMap, stream: bool) -> Result<bool, Reject> {
    let refuse = |message: &str| Err(Reject::invalid(RESUMABLE, message).code("invalid_value"));
    match headers.get(RESUMABLE).map(HeaderValue::as_bytes) {
        None | Some(b"false") => Ok(false),
        Some(b"true") if stream => Ok(true),
        Some(b"true") => refuse("the header `x-tidegate-resumable` is for streams; send `stream`: true"),
        Some(_) => refuse("the header `x-tidegate-resumable` must be `true` or `false`"),
    }
}

/// The first event, where it comes while the headers of its stream wait a moment for it, so that a failure before it has its own
/// status; the end of the server has one, too.
pub(crate) async fn first_event(api: &Api, reply: &mut Reply, cutting: &CancellationToken) -> Result<First, Reject> {
    let aborted = reply.aborted.clone();
    let waited = tokio::select! {
        waited = tokio::time::timeout(api.limits.first_event_wait, reply.next()) => waited,
        reject = aborted.by_stopping(cutting) => return Err(reject),
    };
    match waited {
        Ok(Some(Err(reject))) => Err(reject),
        Ok(first) => Ok(Some(first)),
        Err(_) => Ok(None),
    }
}

/// The headers wait for the first event ([`first_event`]). With a `log` the answer goes there, and outlives the connection; one
/// of which nothing may be kept stays in this process.
async fn streamed(
    api: &Arc<Api>,
    encoder: StreamEncoder,
    mut reply: Reply,
    log: Option<(StreamId, Writer)>,
    retention: Retention,
    cutting: CancellationToken,
) -> Result<Response, Reject> {
    let first = first_event(api, &mut reply, &cutting).await?;
    let Some((id, writer)) = log else {
        return Ok(event_stream(Body::events(EventBody::new(api, encoder, reply, first, cutting))));
    };
    if retention == Retention::Kept {
        api.streams.tell(id.as_str(), &writer);
    }
    let cursor = writer.log().read_after(0).map_err(gone)?;
    api.tasks.spawn(generation::run(Arc::clone(api), writer, encoder, reply, first).in_current_span());
    let mut response = event_stream(Body::replay(ReplayBody::new(api, cursor)));
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(STREAM_ID, id);
    }
    Ok(response)
}

pub(crate) fn full(full: Full) -> Reject {
    let message = match full {
        Full::Tenant(most) => format!(
            "{most} streams of this tenant, all its projects together, run, and no more may; try again when \
             one has ended"
        ),
        Full::Bytes { share, .. } => format!(
            "the streams of this tenant, all its projects together, hold its share of what the server keeps of all, \
             {share} bytes; try again when one has ended"
        ),
        Full::Taken | Full::NoRandomness(_) => {
            "the server has no room for another stream that can be come back to; try again later".to_owned()
        }
    };
    Reject::unavailable(Fault::Operator, message, 5).code("streams_full").because(full)
}

pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Asks nginx and its kin not to buffer.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
