//! A reply as a stream of events. hyper polls this body, the body polls the reply: no task, no channel, no copy
//! but into the buffer that is sent. What is ready together leaves in one write; nothing waits for more.
//!
//! Invariant: a stream ends with `[DONE]` after a complete answer, with an error event after anything else, or
//! with the client's own absence.

use crate::backend::{Reply, ReplyEvent};
use crate::body::{PIECE_BYTES, next_of};
use crate::error;
use crate::record::Record;
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_types::{Reject, Usage};
use tidegate_wire::StreamEncoder;
use tidegate_wire::stream::{error_event, keep_alive};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Room for some thirty events before the buffer is made anew.
pub(crate) const BUFFER_BYTES: usize = 8 << 10;

/// The first event, where it came before the headers left; the outer `Option` says whether it did.
pub(crate) type First = Option<Option<Result<ReplyEvent, Reject>>>;

/// Writes a reply's events.
pub(crate) struct Encoding {
    encoder: StreamEncoder,
    usage: Option<Usage>,
}

/// What was written of an event of a reply.
pub(crate) enum Written {
    /// Nothing yet: it comes at the end.
    Later,
    /// A part of the answer.
    Part,
    /// The last.
    End(Result<(), Reject>),
}

impl Encoding {
    pub(crate) fn new(encoder: StreamEncoder) -> Self {
        Self { encoder, usage: None }
    }

    /// Writes what a reply says; `None` is its end.
    pub(crate) fn write(&mut self, event: Option<Result<ReplyEvent, Reject>>, out: &mut BytesMut) -> Written {
        let reject = match event {
            Some(Ok(ReplyEvent::Delta(delta))) => match self.encoder.delta(&delta, out) {
                Ok(()) => return Written::Part,
                Err(reject) => reject,
            },
            Some(Ok(ReplyEvent::Usage(usage))) => {
                self.usage = Some(usage);
                return Written::Later;
            }
            Some(Ok(ReplyEvent::Uncited)) => {
                self.encoder.uncite();
                return Written::Later;
            }
            Some(Err(reject)) => reject,
            None => {
                self.encoder.usage(self.usage.as_ref(), out);
                self.encoder.done(out);
                return Written::End(Ok(()));
            }
        };
        error_event(&reject, out);
        Written::End(Err(reject))
    }
}

/// The body of a streamed answer.
pub(crate) struct EventBody {
    encoding: Encoding,
    /// Dropped at the end of the answer, which frees what it holds.
    reply: Option<Reply>,
    first: First,
    buffer: BytesMut,
    cutting: Pin<Box<WaitForCancellationFutureOwned>>,
    silence: Silence,
    outcome: Option<Result<(), Reject>>,
}

impl EventBody {
    /// The answer ends with an error once `cutting` is cancelled.
    pub(crate) fn new(
        api: &Arc<Api>,
        encoder: StreamEncoder,
        reply: Reply,
        first: First,
        cutting: CancellationToken,
    ) -> Self {
        Self {
            encoding: Encoding::new(encoder),
            reply: Some(reply),
            first,
            buffer: BytesMut::with_capacity(BUFFER_BYTES),
            cutting: Box::pin(cutting.cancelled_owned()),
            silence: Silence::new(api.limits.keep_alive),
            outcome: None,
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.reply.is_none() && self.buffer.is_empty()
    }

    /// How the answer has ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Result<(), Reject>> {
        self.outcome.clone()
    }

    /// The next bytes to send.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>, mut record: Option<&mut Record>) -> Poll<Option<Bytes>> {
        // What is ready together is sent together up to this size, so that one stream cannot keep the others waiting.
        while self.buffer.len() < PIECE_BYTES {
            match self.poll_event(cx) {
                Poll::Ready(Some(event)) => self.take(event, record.as_deref_mut()),
                Poll::Ready(None) if self.buffer.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if self.buffer.is_empty() {
            ready!(self.poll_waiting(cx, record));
        }
        self.silence.touch();
        Poll::Ready(Some(next_of(&mut self.buffer)))
    }

    /// `Some(None)` is the end of the reply, `None` the end of the body.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<Result<ReplyEvent, Reject>>>> {
        let Some(reply) = &mut self.reply else { return Poll::Ready(None) };
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => reply.events.poll_next(cx).map(Some),
        }
    }

    fn take(&mut self, event: Option<Result<ReplyEvent, Reject>>, record: Option<&mut Record>) {
        let written = self.encoding.write(event, &mut self.buffer);
        if let Written::End(outcome) = &written {
            if let (Some(reply), Err(reject)) = (self.reply.take(), outcome) {
                reply.fail(reject);
            }
            self.outcome = Some(outcome.clone());
        }
        match (written, record) {
            (Written::Part, Some(record)) => record.note_event(),
            (Written::End(Ok(())), Some(record)) => record.answered(),
            (Written::End(Err(reject)), Some(record)) => record.rejected(&reject),
            (Written::Later, _) | (_, None) => {}
        }
    }

    /// Nothing to send: the server may be stopping, or the silence has lasted long enough for a comment.
    fn poll_waiting(&mut self, cx: &mut Context<'_>, record: Option<&mut Record>) -> Poll<()> {
        if self.cutting.as_mut().poll(cx).is_ready() {
            self.take(Some(Err(error::stopping())), record);
            return Poll::Ready(());
        }
        self.silence.poll(cx).map(|()| keep_alive(&mut self.buffer))
    }
}

/// Measures how long nothing was sent. The timer is not moved by each event: it runs out and then looks.
pub(crate) struct Silence {
    limit: Duration,
    since: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now(), sleep: None }
    }

    pub(crate) fn touch(&mut self) {
        self.since = Instant::now();
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(self.since + self.limit)));
        loop {
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let due = self.since + self.limit;
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
