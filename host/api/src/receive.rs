//! Receiving a request's body: JSON, bounded in size, in time, and in what all requests hold together.

use crate::exchange::Inbound;
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tidegate_types::{Fault, Reject, RejectKind};

/// The whole body of a request whose headers are `headers`.
pub(crate) async fn json(api: &Api, headers: &HeaderMap, body: Inbound) -> Result<Bytes, Reject> {
    is_json(headers)?;
    any(api, headers, body).await
}

/// The same, whatever it is.
pub(crate) async fn any(api: &Api, headers: &HeaderMap, body: Inbound) -> Result<Bytes, Reject> {
    let (mut body, activity) = match body {
        Inbound::Arriving(body, activity) => (body, activity),
        Inbound::Whole(bytes) => return Ok(bytes),
    };
    let whole = arrived(api, headers, &mut body).await?;
    activity.set_unread(false);
    Ok(whole)
}

async fn arrived(api: &Api, headers: &HeaderMap, body: &mut Incoming) -> Result<Bytes, Reject> {
    let limit = api.limits.max_body_bytes;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let mut whole = pin!(whole(api, body, limit));
    // Most bodies are there with their heads: a timer is made for the others.
    if let Poll::Ready(outcome) = poll_fn(|cx| Poll::Ready(whole.as_mut().poll(cx))).await {
        return outcome;
    }
    match tokio::time::timeout(api.limits.body_timeout, whole).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Reject::new(
            RejectKind::RequestTimeout,
            Fault::Client,
            format!("the request's body did not arrive within {:?}", api.limits.body_timeout),
        )),
    }
}

/// Required even where a body could only be JSON: a web page can send other types to a server on its reader's
/// machine without asking, JSON it cannot.
fn is_json(headers: &HeaderMap) -> Result<(), Reject> {
    let media = |message| Err(Reject::new(RejectKind::UnsupportedMedia, Fault::Client, message));
    if headers.get(CONTENT_ENCODING).is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return media("the request's body is compressed; send it without `Content-Encoding`");
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let json = kind.eq_ignore_ascii_case("application/json")
        || (kind.len() > 5
            && kind.is_char_boundary(kind.len() - 5)
            && kind[kind.len() - 5..].eq_ignore_ascii_case("+json"));
    if json { Ok(()) } else { media("send the request with `Content-Type: application/json`") }
}

async fn whole(api: &Api, body: &mut Incoming, limit: usize) -> Result<Bytes, Reject> {
    let mut held = api.room_for_bodies().held();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|error| broken(&error)).map(Frame::into_data)? else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        // A body of one piece, which most are, is not copied, nor counted: it is not waited for.
        if first.is_empty() && rest.is_empty() && body.is_end_stream() {
            held.check(data.len())?;
            return Ok(data);
        }
        held.grow(data.len())?;
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// What all requests may hold of bodies that arrive, or wait to be read.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    used: &'a AtomicUsize,
    most: usize,
}

impl<'a> Room<'a> {
    pub(crate) fn new(used: &'a AtomicUsize, most: usize) -> Self {
        Self { used, most }
    }

    /// Nothing of it yet.
    pub(crate) fn held(self) -> Held<'a> {
        Held { room: self, bytes: 0 }
    }
}

/// One request's part of it, given back when it is dropped.
pub(crate) struct Held<'a> {
    room: Room<'a>,
    bytes: usize,
}

impl Held<'_> {
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Reject> {
        self.bytes += bytes;
        let others = self.room.used.fetch_add(bytes, Ordering::Relaxed);
        self.fits(others, bytes)
    }

    /// Whether so many bytes have room, which are not held for longer than it takes to ask.
    fn check(&self, bytes: usize) -> Result<(), Reject> {
        self.fits(self.room.used.load(Ordering::Relaxed), bytes)
    }

    fn fits(&self, others: usize, bytes: usize) -> Result<(), Reject> {
        if others + bytes > self.room.most {
            let message = "the server is receiving too many requests; try again in a second";
            return Err(Reject::unavailable(Fault::Operator, message, 1).because("max_receiving_bytes is reached"));
        }
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What is said of a body that is larger than any.
pub(crate) fn too_large(limit: usize) -> Reject {
    let message = format!("the request's body is larger than the {limit} bytes that this server takes");
    Reject::new(RejectKind::TooLarge, Fault::Client, message)
}

fn broken(error: &hyper::Error) -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, "the request's body broke off").code("invalid_http").because(error)
}
