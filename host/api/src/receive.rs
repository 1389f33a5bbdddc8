//! Receiving a request's body: JSON, bounded in size, in time, and in what all requests hold together, which no tenant fills
//! for the others.

use crate::exchange::Inbound;
use crate::routes::Access;
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use tidegate_fair::{Owner, Places};
use tidegate_types::{Caller, Fault, Reject, RejectKind};

/// Bytes of a body that is sent without a credential. Where that is taken nothing reads it, but it is held while it comes.
const MAX_OPEN_BYTES: usize = 1 << 10;

/// The whole body of the caller's request whose headers are `headers`.
pub(crate) async fn json(api: &Api, caller: &Caller, headers: &HeaderMap, body: Inbound) -> Result<Bytes, Reject> {
    is_json(headers)?;
    read(api, caller, headers, body, api.limits.max_body_bytes).await
}

/// The same, whatever it is, for a path of this access.
pub(crate) async fn any(
    api: &Api,
    access: Access,
    caller: &Caller,
    headers: &HeaderMap,
    body: Inbound,
) -> Result<Bytes, Reject> {
    let most = if access.is_open() { MAX_OPEN_BYTES } else { usize::MAX };
    read(api, caller, headers, body, most.min(api.limits.max_body_bytes)).await
}

async fn read(api: &Api, caller: &Caller, headers: &HeaderMap, body: Inbound, limit: usize) -> Result<Bytes, Reject> {
    let (mut body, activity) = match body {
        Inbound::Arriving(body, activity) => (body, activity),
        Inbound::Whole(bytes) => return Ok(bytes),
    };
    let whole = arrived(api, caller, headers, &mut body, limit).await?;
    activity.set_unread(false);
    Ok(whole)
}

async fn arrived(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    body: &mut Incoming,
    limit: usize,
) -> Result<Bytes, Reject> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let mut whole = pin!(whole(api.room_for_bodies(caller), body, limit));
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

async fn whole(room: Room<'_>, body: &mut Incoming, limit: usize) -> Result<Bytes, Reject> {
    let mut held = room.held();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|error| broken(&error)).map(Frame::into_data)? else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        // A body of one piece, which most are, is not copied, nor counted: it is not waited for.
        if first.is_empty() && rest.is_empty() && body.is_end_stream() {
            return if room.has(data.len()) { Ok(data) } else { Err(full()) };
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

/// The bytes of bodies that arrive, or wait to be read, of all requests.
pub(crate) struct Bodies {
    places: Mutex<Places>,
    /// What is held of them, for who need not look closer.
    held: AtomicUsize,
    most: usize,
}

impl Bodies {
    /// So many at most; past that only for tenants below their share.
    pub(crate) fn new(most: usize) -> Self {
        Self { places: Mutex::new(Places::new(most)), held: AtomicUsize::new(0), most }
    }

    /// The room that a caller's request finds.
    pub(crate) fn room<'a>(&'a self, caller: &'a Caller) -> Room<'a> {
        Room { bodies: self, caller }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.places().held()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller's part of what all requests may hold.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    bodies: &'a Bodies,
    pub(crate) caller: &'a Caller,
}

impl<'a> Room<'a> {
    /// Nothing of it yet.
    pub(crate) fn held(self) -> Held<'a> {
        Held { room: self, bytes: 0 }
    }

    /// Whether so many bytes have room, which are not held for longer than it takes to ask. Most often there is enough for
    /// everybody, and threads do not wait for each other to find that.
    fn has(self, bytes: usize) -> bool {
        let Bodies { held, most, .. } = self.bodies;
        held.load(Ordering::Relaxed).saturating_add(bytes) <= *most
            || self.bodies.places().has_room(&Owner::of(self.caller), bytes)
    }

    fn take(self, bytes: usize) -> bool {
        let owner = Owner::of(self.caller);
        let mut places = self.bodies.places();
        let has_room = places.has_room(&owner, bytes);
        if has_room {
            places.take(&owner, bytes);
            self.bodies.held.store(places.held(), Ordering::Relaxed);
        }
        has_room
    }

    fn give_back(self, bytes: usize) {
        let mut places = self.bodies.places();
        places.give_back(&Owner::of(self.caller), bytes);
        self.bodies.held.store(places.held(), Ordering::Relaxed);
    }
}

/// One request's part of it, given back when it is dropped.
pub(crate) struct Held<'a> {
    room: Room<'a>,
    bytes: usize,
}

impl Held<'_> {
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Reject> {
        if bytes > 0 && !self.room.take(bytes) {
            return Err(full());
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.room.give_back(self.bytes);
        }
    }
}

fn full() -> Reject {
    let message = "the server is receiving too many requests; try again in a second";
    Reject::unavailable(Fault::Operator, message, 1).because("max_receiving_bytes is reached")
}

/// What is said of a body that is larger than any.
pub(crate) fn too_large(limit: usize) -> Reject {
    let message = format!("the request's body is larger than the {limit} bytes that this server takes here");
    Reject::new(RejectKind::TooLarge, Fault::Client, message)
}

fn broken(error: &hyper::Error) -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, "the request's body broke off").code("invalid_http").because(error)
}
