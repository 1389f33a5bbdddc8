//! Generating an answer: read and validate the body, begin the reply, then stream it or gather it.

use crate::backend::{Reply, ReplyEvent};
use crate::body::{Body, Response};
use crate::error;
use crate::events::EventBody;
use crate::exchange::{Exchange, json};
use crate::receive;
use crate::server::Api;
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_types::Reject;
use tidegate_wire::stream::UsageChunk;
use tidegate_wire::{Answer, Head, ParsedRequest, StreamEncoder};

/// Answers a request whose body `parse` reads.
pub(crate) async fn answer(
    exchange: Exchange,
    parse: fn(&[u8]) -> Result<ParsedRequest, Reject>,
) -> Result<Response, Reject> {
    let context = exchange.context();
    let Exchange { api, unique, request, .. } = exchange;
    let (parts, body) = request.into_parts();
    let ParsedRequest { chat, include_usage } = parse(&receive::json(&api, &parts.headers, body).await?)?;
    let (stream, n) = (chat.stream, chat.n);
    let mut head = Head::new(&chat, &unique, now(), "");
    let reply = api.service.chat(chat, context).await?;
    head.model.clone_from(&reply.model);
    let headers = extra_headers(&reply);
    let mut response = if stream {
        let usage = if include_usage { UsageChunk::Include } else { UsageChunk::Omit };
        streamed(&api, StreamEncoder::new(head, n, usage), reply).await?
    } else {
        let cutting = &api.phase.cutting;
        tokio::select! {
            whole = gathered(&api, &head, n, reply) => json(whole?),
            () = cutting.cancelled() => return Err(error::stopping()),
        }
    };
    response.headers_mut().extend(headers);
    Ok(response)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Headers of the reply; one that HTTP cannot carry is left out, and said.
fn extra_headers(reply: &Reply) -> Vec<(HeaderName, HeaderValue)> {
    let header = |(name, value): &(&'static str, String)| {
        let pair = HeaderName::try_from(*name).ok().zip(HeaderValue::from_str(value).ok());
        if pair.is_none() {
            tracing::warn!(header = name, "the header's value cannot be sent");
        }
        pair
    };
    reply.headers.iter().filter_map(header).collect()
}

async fn gathered(api: &Api, head: &Head, n: u32, mut reply: Reply) -> Result<Bytes, Reject> {
    let mut answer = Answer::new(n, api.limits.max_answer_bytes);
    let mut usage = None;
    while let Some(event) = reply.next().await {
        match event? {
            ReplyEvent::Delta(delta) => answer.push(delta)?,
            ReplyEvent::Usage(counted) => usage = Some(counted),
        }
    }
    answer.render(head, usage.as_ref())
}

/// The headers wait a moment for the first event, so that a failure before it has its own status.
async fn streamed(api: &Arc<Api>, encoder: StreamEncoder, mut reply: Reply) -> Result<Response, Reject> {
    let first = match tokio::time::timeout(api.limits.first_event_wait, reply.next()).await {
        Ok(Some(Err(reject))) => return Err(reject),
        Ok(first) => Some(first),
        Err(_) => None,
    };
    let mut response = Response::new(Body::events(EventBody::new(api, encoder, reply, first)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Asks nginx and its kin not to buffer.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}
