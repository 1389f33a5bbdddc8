//! A log as a stream of events with ids, from wherever its reader left off. What is there leaves in large writes; what
//! is not yet is awaited.

use crate::body::{PIECE_BYTES, next_of};
use crate::events::{BUFFER_BYTES, Silence};
use crate::record::Record;
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_streams::shared::Away;
use tidegate_streams::{Cursor, Log, Missed};
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::stream::{error_event, event_id, keep_alive};

/// The code of what a reader is told who comes too late for some events.
pub(crate) const EVENTS_GONE: &str = "events_gone";

/// The body of a resumable answer, or of the rest of one.
pub(crate) struct ReplayBody {
    cursor: Cursor,
    /// Whether the generation ends when this reader goes away.
    owns: bool,
    /// Whether what is told is kept besides: then it is made to its end where this reader cannot be told the rest.
    kept: bool,
    counting: Counting,
    outcome: Option<Result<(), Reject>>,
    /// What leaves next: about a piece, however large the event is that it is of.
    buffer: BytesMut,
    /// What is left of that event: the log's own bytes, since many may read a large one slowly.
    event: Bytes,
    silence: Silence,
}

/// How the reader of a log tells where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    /// By the ids of events, from 1.
    Ids,
    /// By these, and by the numbers that events of a response say, from 0: `starting_after` is such a one.
    Sequence,
    /// Not at all: events have no ids.
    Nothing,
}

impl ReplayBody {
    pub(crate) fn new(api: &Api, cursor: Cursor) -> Self {
        let silence = Silence::new(api.limits.keep_alive);
        let (buffer, event) = (BytesMut::new(), Bytes::new());
        Self { cursor, owns: false, kept: false, counting: Counting::Ids, outcome: None, buffer, event, silence }
    }

    /// The body of a response's events.
    pub(crate) fn of_response(api: &Api, cursor: Cursor) -> Self {
        let mut body = Self::new(api, cursor);
        body.counting = Counting::Sequence;
        body
    }

    /// The body of an answer that was written to a log as it is.
    pub(crate) fn raw(api: &Api, cursor: Cursor) -> Self {
        let mut body = Self::new(api, cursor);
        body.counting = Counting::Nothing;
        body
    }

    /// Stops the generation when this reader goes away before its end, or cannot be told the rest and nothing keeps it. While
    /// it is there, what is made waits for it.
    pub(crate) fn owning(mut self) -> Self {
        self.owns = true;
        self.cursor.pace();
        self
    }

    /// Says whether what is told is kept besides.
    pub(crate) fn kept(mut self, kept: bool) -> Self {
        self.kept = kept;
        self
    }

    /// The log of what is told, where that is kept besides and made here.
    pub(crate) fn kept_log(&self) -> Option<&Arc<Log>> {
        self.cursor.log().filter(|_| self.kept)
    }

    /// Whether what is told is made for this reader, and for nothing else.
    pub(crate) fn is_readers_own(&self) -> bool {
        self.owns && !self.kept
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
            if !self.event.is_empty() {
                let room = PIECE_BYTES - self.buffer.len();
                self.buffer.extend_from_slice(&self.event.split_to(room.min(self.event.len())));
                continue;
            }
            let Poll::Ready(next) = self.cursor.poll_next(cx) else { break };
            match next {
                Some(Ok(next)) => {
                    if self.buffer.capacity() == 0 {
                        self.buffer.reserve(BUFFER_BYTES);
                    }
                    if self.counting != Counting::Nothing {
                        event_id(next.number, &mut self.buffer);
                    }
                    self.event = next.event;
                    if let Some(record) = record.as_deref_mut() {
                        record.note_event();
                    }
                }
                Some(Err(missed)) => {
                    let reject = match self.counting {
                        Counting::Ids => gone(missed),
                        Counting::Sequence => gone_of_response(missed),
                        Counting::Nothing => too_slow(),
                    };
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
        if self.owns && (self.outcome.is_none() || !self.kept) {
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
    Reject::new(RejectKind::Conflict, Fault::Client, message).code(EVENTS_GONE)
}

/// The reader comes too late for some events.
pub(crate) fn gone(missed: Missed) -> Reject {
    let last_gone = missed.first_kept.saturating_sub(1);
    gone_to(missed, last_gone)
}

/// The same, of a response: its events say numbers from 0, and have ids from 1.
pub(crate) fn gone_of_response(missed: Missed) -> Reject {
    let last_gone = missed.first_kept.saturating_sub(2);
    gone_to(missed, last_gone)
}

fn gone_to(missed: Missed, last_gone: u64) -> Reject {
    let message = format!("{missed}; what is there can be read with `starting_after={last_gone}`");
    Reject::new(RejectKind::Invalid, Fault::Client, message).at("starting_after").code(EVENTS_GONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use std::time::Duration;
    use tidegate_streams::{Limits, Streams};
    use tidegate_types::TenantId;

    /// There may be a hundred readers of it.
    #[tokio::test]
    async fn a_reader_of_a_large_event_has_no_more_than_a_piece_of_it_for_itself() {
        const LARGE: usize = 40 * PIECE_BYTES + 7;
        let streams = Streams::new(Limits::default());
        let mut writer = streams.open_unnamed(&TenantId::new("a")).unwrap();
        let events = [1, LARGE, 3, 2 * PIECE_BYTES, 1].map(|size| Bytes::from(vec![b'x'; size]));
        events.iter().for_each(|event| writer.append(event.clone()));
        for counting in [Counting::Ids, Counting::Sequence, Counting::Nothing] {
            let mut body = ReplayBody {
                cursor: writer.log().read_after(0).unwrap(),
                owns: false,
                kept: false,
                counting,
                outcome: None,
                buffer: BytesMut::new(),
                event: Bytes::new(),
                silence: Silence::new(Duration::from_secs(60)),
            };
            let mut expected = BytesMut::new();
            for (number, event) in (1..).zip(&events) {
                if counting != Counting::Nothing {
                    event_id(number, &mut expected);
                }
                expected.extend_from_slice(event);
            }
            let mut said = Vec::new();
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(piece)) = body.poll_bytes(&mut cx, None) {
                assert!(piece.len() <= PIECE_BYTES && body.buffer.capacity() <= 4 * PIECE_BYTES);
                said.extend_from_slice(&piece);
            }
            assert!(said == expected, "{} bytes of {}", said.len(), expected.len());
        }
    }
}
