//! A log as a stream of events with ids, from wherever its reader left off. What is there leaves in large writes; what
//! is not yet is awaited.

use crate::body::{PIECE_BYTES, next_of};
use crate::events::{BUFFER_BYTES, Silence};
use crate::record::Record;
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use std::task::{Context, Poll, ready};
use tidegate_streams::shared::Away;
use tidegate_streams::{Cursor, Missed};
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::stream::{error_event, event_id, keep_alive};

/// The body of a resumable answer, or of the rest of one.
pub(crate) struct ReplayBody {
    cursor: Cursor,
    /// Whether the generation ends when this reader goes away.
    owns: bool,
    /// Whether events are told their numbers.
    numbered: bool,
    outcome: Option<Result<(), Reject>>,
    buffer: BytesMut,
    silence: Silence,
}

impl ReplayBody {
    pub(crate) fn new(api: &Api, cursor: Cursor) -> Self {
        let silence = Silence::new(api.limits.keep_alive);
        Self { cursor, owns: false, numbered: true, outcome: None, buffer: BytesMut::new(), silence }
    }

    /// The body of an answer that was written to a log as it is.
    pub(crate) fn raw(api: &Api, cursor: Cursor) -> Self {
        let mut body = Self::new(api, cursor);
        body.numbered = false;
        body
    }

    /// Stops the generation when this reader goes away before its end.
    pub(crate) fn owning(mut self) -> Self {
        self.owns = true;
        self
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.outcome.is_some() && self.buffer.is_empty()
    }

    /// How the log has ended, if it has and this reader is there.
    pub(crate) fn outcome(&self) -> Option<Result<(), Reject>> {
        self.outcome.clone()
    }

    /// The next bytes to send.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>, mut record: Option<&mut Record>) -> Poll<Option<Bytes>> {
        while self.outcome.is_none() && self.buffer.len() < PIECE_BYTES {
            let Poll::Ready(next) = self.cursor.poll_next(cx) else { break };
            match next {
                Some(Ok(next)) => {
                    if self.buffer.capacity() == 0 {
                        self.buffer.reserve(BUFFER_BYTES);
                    }
                    if self.numbered {
                        event_id(next.number, &mut self.buffer);
                    }
                    self.buffer.extend_from_slice(&next.event);
                    if let Some(record) = record.as_deref_mut() {
                        record.note_event();
                    }
                }
                Some(Err(missed)) => {
                    let reject = if self.numbered { gone(missed) } else { too_slow() };
                    error_event(&reject, &mut self.buffer);
                    self.end(Err(reject), record.as_deref_mut());
                }
                None => {
                    if let Some(reject) = self.cursor.unsaid() {
                        error_event(&reject, &mut self.buffer);
                    }
                    let outcome = self.cursor.outcome().unwrap_or(Ok(()));
                    self.end(outcome, record.as_deref_mut());
                }
            }
        }
        if self.buffer.is_empty() {
            if self.outcome.is_some() {
                return Poll::Ready(None);
            }
            // Many readers wait for long, and a buffer is most of what one holds.
            self.buffer = BytesMut::new();
            ready!(self.silence.poll(cx));
            keep_alive(&mut self.buffer);
        }
        self.silence.touch();
        Poll::Ready(Some(next_of(&mut self.buffer)))
    }

    fn end(&mut self, outcome: Result<(), Reject>, record: Option<&mut Record>) {
        self.outcome = Some(outcome.clone());
        match (outcome, record) {
            (Ok(()), Some(record)) => record.answered(),
            (Err(reject), Some(record)) => record.rejected(&reject),
            (_, None) => {}
        }
    }
}

impl Drop for ReplayBody {
    fn drop(&mut self) {
        if self.owns && self.outcome.is_none() {
            self.cursor.stop();
        }
    }
}

/// Only another gateway could know of the stream, and none can be asked.
pub(crate) fn away(away: Away) -> Reject {
    let message = "the stream is not one of this gateway's, and the others cannot be asked now; try again";
    Reject::unavailable(Fault::Operator, message, 2).code("shared_unavailable").because(away)
}

/// A reader of what has no numbers cannot come back to it.
fn too_slow() -> Reject {
    let message = "the answer is longer than what is kept of it, and was read too slowly; ask again with another \
                   `Idempotency-Key`, or with `x-tidegate-resumable`";
    Reject::new(RejectKind::Conflict, Fault::Client, message).code("events_gone")
}

/// The reader comes too late for some events.
pub(crate) fn gone(missed: Missed) -> Reject {
    let message =
        format!("{missed}; what is there can be read with `starting_after={}`", missed.first_kept.saturating_sub(1));
    Reject::new(RejectKind::Invalid, Fault::Client, message).at("starting_after").code("events_gone")
}
