//! One log: a queue of events with numbers, and who waits for more.

use crate::memory::Holding;
use crate::shared::Follow;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tidegate_types::{Fault, Reject, RejectKind, TenantId};

/// The code of the end of a log whose writer is no more.
pub const LOST: &str = "stream_lost";

/// The code of the end of a log whose writer had an event that no log holds.
pub const TOO_LARGE: &str = "event_too_large";

/// An event that no log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an event of this stream has {bytes} bytes, and the server keeps none of more than {limit_bytes} \
     (`[server.streams] log_kib`); send less that it has to repeat, or ask without `stream`"
)]
pub struct TooLarge {
    /// Of the event.
    pub bytes: usize,
    /// Of one log.
    pub limit_bytes: usize,
}

impl From<TooLarge> for Reject {
    fn from(error: TooLarge) -> Self {
        Self::new(RejectKind::TooLarge, Fault::Client, error.to_string()).code(TOO_LARGE)
    }
}

/// An event and its number; the first is 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// What `Last-Event-ID` repeats.
    pub number: u64,
    /// As the writer gave it.
    pub event: Bytes,
}

/// Events that a reader asks for are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events before {first_kept} are no longer kept")]
pub struct Missed {
    /// The oldest event that is.
    pub first_kept: u64,
}

/// The events of one generation. Readers share it; [`Writer`] fills it.
pub struct Log {
    tenant: TenantId,
    limit_bytes: usize,
    /// What its tenant's logs hold together.
    holding: Arc<Holding>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Bytes>,
    /// Events that were dropped from the front.
    dropped: u64,
    bytes: usize,
    end: Option<(Instant, Result<(), Reject>)>,
    /// Its writer went away before the end.
    dropped_by_writer: bool,
    /// An event that was not taken; none was behind it.
    refused: Option<TooLarge>,
    stopped: bool,
    waiting: Vec<Waker>,
    /// The writer's task, woken by a stop.
    writer: Option<Waker>,
}

impl Log {
    pub(crate) fn new(tenant: TenantId, limit_bytes: usize, holding: Arc<Holding>) -> Self {
        Self { tenant, limit_bytes, holding, state: Mutex::default() }
    }

    pub(crate) fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    pub(crate) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// When it ended, if it has.
    pub fn ended_at(&self) -> Option<Instant> {
        self.state.lock().end.as_ref().map(|(at, _)| *at)
    }

    /// How it ended: complete, or with the reject that its last event says. `None` while it runs.
    pub fn outcome(&self) -> Option<Result<(), Reject>> {
        self.state.lock().end.as_ref().map(|(_, outcome)| outcome.clone())
    }

    /// Whether its writer went away before it wrote anything: nothing was begun, and it is as one that never was.
    pub fn is_void(&self) -> bool {
        let state = self.state.lock();
        state.dropped_by_writer && state.num_written() == 0
    }

    /// The end, where no event says it.
    fn unsaid(&self) -> Option<Reject> {
        let state = self.state.lock();
        let is_said = !state.dropped_by_writer && state.refused.is_none() && state.num_written() > 0;
        state.end.as_ref().filter(|_| !is_said)?.1.clone().err()
    }

    /// A reader that goes on behind event `seen`; 0 reads from the start. An error where that is no longer kept.
    pub fn read_after(self: &Arc<Self>, seen: u64) -> Result<Cursor, Missed> {
        let state = self.state.lock();
        let (first_kept, last) = (state.dropped + 1, state.num_written());
        drop(state);
        if seen.saturating_add(1) < first_kept {
            return Err(Missed { first_kept });
        }
        // One who claims to have seen more than there is waits for what follows that.
        Ok(Cursor(Place::Here { log: Arc::clone(self), next: seen.min(last) + 1 }))
    }

    /// The oldest event that is kept.
    pub fn first_kept(&self) -> u64 {
        self.state.lock().dropped + 1
    }

    /// Asks the writer to end; its work is dropped at its next poll.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
    }
}

impl State {
    fn num_written(&self) -> u64 {
        self.dropped + self.events.len() as u64
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.holding.give_back(self.state.get_mut().bytes);
    }
}

/// Fills one log. Dropped before [`Writer::end`], it ends the log with an error, so that no reader waits for ever.
pub struct Writer {
    log: Arc<Log>,
    ended: bool,
}

impl Writer {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        Self { log, ended: false }
    }

    /// The log that it fills.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Appends an event; the oldest make room where the log is full, or its tenant holds too much. One that no log holds
    /// ends what is written here: nothing is taken behind it, and its error is the outcome that readers are told.
    pub fn append(&mut self, event: Bytes) -> Result<(), TooLarge> {
        let Log { limit_bytes, holding, .. } = &*self.log;
        let mut state = self.log.state.lock();
        if state.refused.is_none() && event.len() > *limit_bytes {
            state.refused = Some(TooLarge { bytes: event.len(), limit_bytes: *limit_bytes });
        }
        if let Some(refused) = state.refused {
            return Err(refused);
        }
        let before = state.bytes;
        state.bytes += event.len();
        holding.add(event.len());
        state.events.push_back(event);
        // A tenant that holds too much goes on in place of what it holds: no log loses more than it takes.
        let has_room = |bytes: usize| bytes <= *limit_bytes && (bytes <= before || !holding.must_not_grow());
        while !has_room(state.bytes) && state.events.len() > 1 {
            if let Some(oldest) = state.events.pop_front() {
                state.bytes -= oldest.len();
                state.dropped += 1;
                holding.give_back(oldest.len());
            }
        }
        wake(state);
        Ok(())
    }

    /// Ends the log; what its last event says is the writer's to append before. Of one without any event, or that refused
    /// one, readers are told the outcome.
    pub fn end(mut self, outcome: Result<(), Reject>) {
        self.close(outcome);
    }

    /// Ready once somebody has asked for the end.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.log.state.lock();
        if state.stopped {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn close(&mut self, outcome: Result<(), Reject>) {
        self.ended = true;
        let mut state = self.log.state.lock();
        let outcome = state.refused.map_or(outcome, |refused| Err(refused.into()));
        state.end = Some((Instant::now(), outcome));
        wake(state);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.ended {
            self.log.state.lock().dropped_by_writer = true;
            let message = "the answer was broken off here, and nothing more of it will come; ask again";
            self.close(Err(Reject::unavailable(Fault::Operator, message, 1).code(LOST)));
        }
    }
}

/// Wakes outside of the lock, since a woken reader takes it.
fn wake(mut state: parking_lot::MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_iter().for_each(Waker::wake);
}

/// One reader's place in a log.
pub struct Cursor(Place);

enum Place {
    Here { log: Arc<Log>, next: u64 },
    Elsewhere(Box<dyn Follow>),
}

impl Cursor {
    pub(crate) fn elsewhere(follow: Box<dyn Follow>) -> Self {
        Self(Place::Elsewhere(follow))
    }

    /// How the log ended; `None` while it runs, as far as this reader knows.
    pub fn outcome(&self) -> Option<Result<(), Reject>> {
        match &self.0 {
            Place::Here { log, .. } => log.outcome(),
            Place::Elsewhere(follow) => follow.outcome(),
        }
    }

    /// The end, where no event of the log says it.
    pub fn unsaid(&self) -> Option<Reject> {
        match &self.0 {
            Place::Here { log, .. } => log.unsaid(),
            Place::Elsewhere(follow) => follow.unsaid(),
        }
    }

    /// Asks the writer to end, where that is in this process.
    pub fn stop(&self) {
        if let Place::Here { log, .. } = &self.0 {
            log.stop();
        }
    }

    /// The next event; `None` behind the last of a log that has ended. An error where the reader was too slow.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Numbered, Missed>>> {
        match &mut self.0 {
            Place::Here { log, next } => log.poll_at(next, cx),
            Place::Elsewhere(follow) => follow.poll_next(cx),
        }
    }
}

impl Log {
    fn poll_at(&self, next: &mut u64, cx: &mut Context<'_>) -> Poll<Option<Result<Numbered, Missed>>> {
        let mut state = self.state.lock();
        let Some(at) = next.checked_sub(state.dropped + 1) else {
            return Poll::Ready(Some(Err(Missed { first_kept: state.dropped + 1 })));
        };
        if let Some(event) = usize::try_from(at).ok().and_then(|at| state.events.get(at)) {
            let numbered = Numbered { number: *next, event: event.clone() };
            *next += 1;
            return Poll::Ready(Some(Ok(numbered)));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
