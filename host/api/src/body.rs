//! The bodies of responses.

use crate::events::EventBody;
use crate::flow;
use crate::record::Record;
use crate::replay::ReplayBody;
use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_streams::Log;
use tidegate_types::{Fault, Reject, Retention};
use tracing::Span;

pub(crate) type Response = hyper::Response<Body>;

/// Of an answer that is handed out at once, in bytes: a frame of HTTP/2 holds no more, where nobody asks for larger ones. The
/// next piece is asked for when the client has taken from the last, so that `flow.rs` sees who takes nothing, and who takes
/// little by little of a large event.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// A response's body, with the record of its request, which is written when the body is dropped.
pub(crate) struct Body {
    kind: Kind,
    /// Whether it may be kept, where its request had a say in that.
    pub(crate) retention: Option<Retention>,
    /// What its answer holds of what is shared, until it has left or is given up.
    pub(crate) held: Option<Box<dyn Any + Send>>,
    record: Option<Record>,
    /// What happens while the body is made is a part of its request.
    span: Span,
}

enum Kind {
    /// What is left of an answer that is there as a whole; `None` once all of it was handed out.
    Full(Option<Bytes>),
    /// As events come.
    Events(Box<EventBody>),
    /// As a log grows.
    Replay(Box<ReplayBody>),
}

impl Body {
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::of(Kind::Full((!bytes.is_empty()).then_some(bytes)))
    }

    pub(crate) fn events(events: EventBody) -> Self {
        Self::of(Kind::Events(Box::new(events)))
    }

    pub(crate) fn replay(replay: ReplayBody) -> Self {
        Self::of(Kind::Replay(Box::new(replay)))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, retention: None, held: None, record: None, span: Span::none() }
    }

    /// Makes the record live as long as the body.
    pub(crate) fn keep(&mut self, record: Record) {
        self.span = record.span.clone();
        self.record = Some(record);
    }

    /// Bytes, where that is known.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.kind {
            Kind::Full(bytes) => Some(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Events(_) | Kind::Replay(_) => None,
        }
    }

    /// Takes the bytes of a body that is there as a whole; any other has none.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        match &mut self.kind {
            Kind::Full(bytes) => Some(bytes.take().unwrap_or_default()),
            Kind::Events(_) | Kind::Replay(_) => None,
        }
    }

    /// How what it says has ended; one that broke off before has failed.
    pub(crate) fn outcome(&self) -> Result<(), Reject> {
        let outcome = match &self.kind {
            Kind::Full(_) => Some(Ok(())),
            Kind::Events(events) => events.outcome(),
            Kind::Replay(replay) => replay.outcome(),
        };
        outcome.unwrap_or_else(|| Err(Reject::internal(Fault::Operator, "a stream ended without a word")))
    }

    /// The log of what it says, where that is kept besides, and so made to its end where it cannot be told.
    pub(crate) fn kept_log(&self) -> Option<&Arc<Log>> {
        if let Kind::Replay(replay) = &self.kind { replay.kept_log() } else { None }
    }

    /// Whether what it says is made for it alone, and ends with it.
    pub(crate) fn is_readers_own(&self) -> bool {
        match &self.kind {
            Kind::Full(_) | Kind::Events(_) => true,
            Kind::Replay(replay) => replay.is_readers_own(),
        }
    }

    /// The same response without its body, for `HEAD`.
    pub(crate) fn clear(&mut self) {
        self.kind = Kind::Full(None);
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { kind, record, span, .. } = self.get_mut();
        let bytes = span.in_scope(|| match kind {
            Kind::Full(left) => Poll::Ready(next_piece(left)),
            Kind::Events(events) => events.poll_bytes(cx, record.as_mut()),
            Kind::Replay(replay) => replay.poll_bytes(cx, record.as_mut()),
        });
        let polled = bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))));
        flow::note(&polled);
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Events(events) => events.is_ended(),
            Kind::Replay(replay) => replay.is_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.len().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The next bytes of what waits to be handed out.
pub(crate) fn next_of(buffer: &mut BytesMut) -> Bytes {
    buffer.split_to(buffer.len().min(PIECE_BYTES)).freeze()
}

/// The next bytes of an answer. Behind each piece but the last something is left, so that the last is known as such.
fn next_piece(left: &mut Option<Bytes>) -> Option<Bytes> {
    match left {
        Some(bytes) if bytes.len() > PIECE_BYTES => Some(bytes.split_to(PIECE_BYTES)),
        _ => left.take(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Body as _;

    /// Each piece of a whole answer, with what the body says of itself behind it: how much is left, and whether that is all.
    fn pieces(len: usize) -> Vec<(usize, u64, bool)> {
        let mut body = Body::full(vec![b'x'; len]);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut said = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) {
            let piece = frame.into_data().unwrap().len();
            said.push((piece, body.size_hint().exact().unwrap(), body.is_end_stream()));
        }
        said
    }

    #[test]
    fn a_small_answer_is_one_piece_and_a_large_one_says_exactly_what_is_left() {
        const PIECE: u64 = PIECE_BYTES as u64;
        assert!(pieces(0).is_empty());
        assert_eq!(pieces(PIECE_BYTES), [(PIECE_BYTES, 0, true)]);
        let large = [(PIECE_BYTES, PIECE + 1, false), (PIECE_BYTES, 1, false), (1, 0, true)];
        assert_eq!(pieces(2 * PIECE_BYTES + 1), large);
    }
}
