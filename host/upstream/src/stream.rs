//! An upstream's answer as it comes. Bytes, events and deltas are read in one poll by whoever reads the answer.

use crate::failure::{Failed, Failures, Trouble};
use crate::usage::Bounds;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_egress::Response;
use tidegate_trace as trace;
use tidegate_types::{Delta, DeltaKind, Reject, Usage};
use tidegate_wire::client::{AnswerReader, Received, WireError};
use tidegate_wire::sse::SseReader;
use tracing::Span;

/// Bytes of one event: a whole tool call or a token's alternatives fit many times over.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// What an upstream says.
#[derive(Clone, Debug, PartialEq)]
pub enum UpstreamEvent {
    /// Part of the answer.
    Delta(Delta),
    /// A piece of a tool call, of so many bytes: the call is told once it is whole.
    Piece(usize),
    /// What the upstream counted; the last one is the whole answer's. Absent where it counts nothing, or
    /// nothing believable.
    Usage(Usage),
}

/// How the body is to be read.
pub(crate) enum Shape {
    /// As events.
    Events(SseReader),
    /// As one JSON document, from a server that does not stream.
    Whole(Vec<u8>),
}

impl Shape {
    pub(crate) fn events() -> Self {
        Self::Events(SseReader::new(MAX_EVENT_BYTES))
    }
}

/// One answer being read. Ends with `None` only when every choice has finished; anything else is an error.
/// Dropping it closes the connection.
pub struct UpstreamStream {
    response: Option<Response>,
    shape: Shape,
    reader: AnswerReader,
    received: VecDeque<Received>,
    bounds: Bounds,
    failures: Arc<Failures>,
    /// Lasts for as long as the answer is read.
    span: trace::Lasting,
}

impl UpstreamStream {
    pub(crate) fn new(
        response: Response,
        shape: Shape,
        reader: AnswerReader,
        bounds: Bounds,
        failures: Arc<Failures>,
    ) -> Self {
        let (response, received, span) = (Some(response), VecDeque::new(), trace::Lasting::of(Span::none()));
        Self { response, shape, reader, received, bounds, failures, span }
    }

    /// Makes the span last as long as this.
    pub(crate) fn within(mut self, span: Span) -> Self {
        self.span = trace::Lasting::of(span);
        self
    }

    /// What the upstream calls the model that answers, once it has said something.
    pub fn model(&self) -> Option<&str> {
        self.reader.model()
    }

    /// The next event; an error is the last.
    pub async fn next(&mut self) -> Option<Result<UpstreamEvent, Reject>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<UpstreamEvent, Reject>>> {
        self.poll_event(cx).map(|event| Some(event?.map_err(Reject::from)))
    }

    /// As [`Self::poll_next`], with what a failure says of the server.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<UpstreamEvent, Failed>>> {
        loop {
            if let Some(received) = self.received.pop_front() {
                match self.event(received) {
                    Some(event) => return Poll::Ready(Some(Ok(event))),
                    None => continue,
                }
            }
            if self.response.is_none() {
                return Poll::Ready(None);
            }
            if let Err(failed) = ready!(self.poll_fill(cx)) {
                self.response = None;
                self.received.clear();
                trace::fail(&self.span, "upstream");
                return Poll::Ready(Some(Err(self.begun(failed))));
            }
        }
    }

    /// Who answers in one document has made all of it before the head: it is not to be made again.
    fn begun(&self, failed: Failed) -> Failed {
        match (&self.shape, failed.trouble) {
            (Shape::Whole(_), Trouble::Broken | Trouble::Silent) => Failed { trouble: Trouble::Failed, ..failed },
            _ => failed,
        }
    }

    /// Reads on until there is something in `received` or the answer is over.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        loop {
            self.read_events().map_err(|error| self.failures.wire(error))?;
            let Some(response) = self.response.as_mut().filter(|_| self.received.is_empty()) else {
                return Poll::Ready(Ok(()));
            };
            match ready!(response.poll_data(cx)) {
                Some(Ok(data)) => match &mut self.shape {
                    Shape::Events(events) => events.push(&data),
                    // Bounded by the connector's limit on a response.
                    Shape::Whole(body) => body.extend_from_slice(&data),
                },
                Some(Err(error)) => return Poll::Ready(Err(self.failures.egress(&error))),
                None => return Poll::Ready(self.end_of_body()),
            }
        }
    }

    /// Takes what has arrived apart, up to the first delta: a caller may stop reading after any.
    fn read_events(&mut self) -> Result<(), WireError> {
        let Shape::Events(events) = &mut self.shape else { return Ok(()) };
        while self.received.is_empty() {
            match events.next_event()? {
                Some(data) => self.reader.event(data, &mut self.received)?,
                None => break,
            }
        }
        Ok(())
    }

    /// The body ended without `[DONE]`; some servers never say it. Complete is complete.
    fn end_of_body(&mut self) -> Result<(), Failed> {
        self.response = None;
        match &mut self.shape {
            Shape::Events(events) if events.is_mid_event() => {
                let last = match events.last_event() {
                    Ok(Some(data)) => self.reader.event(data, &mut self.received),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                };
                match (last, self.reader.end(&mut self.received)) {
                    (Err(error @ WireError::Failed(_)), _) => Err(self.failures.wire(error)),
                    (_, Ok(())) => Ok(()),
                    (_, Err(_)) => Err(self.failures.cut_short("the last event is cut")),
                }
            }
            Shape::Events(_) => self.reader.end(&mut self.received).map_err(|error| self.failures.wire(error)),
            Shape::Whole(body) => {
                self.reader.whole(body, &mut self.received).map_err(|error| self.failures.wire(error))
            }
        }
    }

    fn event(&mut self, received: Received) -> Option<UpstreamEvent> {
        if let Received::Delta(_) | Received::Piece(_) = &received {
            self.response.iter_mut().for_each(Response::has_begun);
        }
        match received {
            Received::Delta(delta) => {
                self.bounds.text_bytes += text_bytes(&delta);
                Some(UpstreamEvent::Delta(delta))
            }
            Received::Piece(bytes) => Some(UpstreamEvent::Piece(bytes)),
            Received::Usage(usage) => match self.bounds.check(&usage) {
                Ok(()) => Some(UpstreamEvent::Usage(usage)),
                Err(why) => {
                    tracing::warn!(upstream = %self.failures.upstream, "its usage cannot be true and is ignored: {why}");
                    None
                }
            },
            Received::Done => {
                if let Some(response) = self.response.take() {
                    response.settle();
                }
                None
            }
        }
    }
}

fn text_bytes(delta: &Delta) -> u64 {
    let bytes = match &delta.kind {
        DeltaKind::Text { text, .. } | DeltaKind::Reasoning(text) | DeltaKind::Refusal(text) => text.len(),
        DeltaKind::ToolCall { call, .. } => call.name.len() + call.arguments.len(),
        DeltaKind::Finish(_) => 0,
    };
    bytes as u64
}
