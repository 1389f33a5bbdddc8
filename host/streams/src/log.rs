//! One log: a queue of events with numbers, and who waits for more. What may stay in it: `log/writer.rs`; whom its writer waits
//! for: `log/pace.rs`.

mod pace;
mod writer;

pub use writer::Writer;

use crate::memory::Holding;
use crate::shared::{Follow, SharedLogs};
use bytes::Bytes;
use pace::Pace;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tidegate_types::{Reject, TenantId};

/// The code of the end of a log whose writer is no more.
pub const LOST: &str = "stream_lost";

/// The code of the end that readers are told of a log which had no room for what came next.
pub const CUT: &str = "stream_cut";

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

/// As many times large events stay beside what a log may hold: the end of a text, a call, its end and that of the answer may
/// come before anybody reads.
const LARGE_KEPT: usize = 4;

#[derive(Default)]
struct State {
    events: VecDeque<Entry>,
    /// Events that were dropped from the front.
    dropped: u64,
    bytes: usize,
    /// Of those, what is there beside what the log may hold: of the large events that came last, the last ones first.
    beside: [usize; LARGE_KEPT],
    /// How many times large events came.
    num_large: u64,
    /// Why nothing more is taken, where that is so.
    cut: Option<Reject>,
    end: Option<(Instant, Result<(), Reject>)>,
    /// Its writer went away before the end.
    dropped_by_writer: bool,
    stopped: bool,
    /// Where other gateways find it.
    told: Option<Arc<dyn SharedLogs>>,
    gave_way: bool,
    /// Who waits for what comes next, by the numbers of their cursors: who goes away waits no more.
    waiting: BTreeMap<u64, Waker>,
    /// Cursors that have waited so far.
    num_cursors: u64,
    /// Who waits for the end.
    of_end: Vec<Waker>,
    /// The writer's task, woken by a stop.
    writer: Option<Waker>,
    /// The reader that it is filled for.
    pace: Option<Pace>,
}

struct Entry {
    event: Bytes,
    /// Which time it came among large ones, from 1; 0 where it is not large.
    large: u64,
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

    /// How it ended: complete, or with the reject that its last event says. `None` while it runs, though readers may have been
    /// told an end before: what had no room in the log has happened all the same.
    pub fn outcome(&self) -> Option<Result<(), Reject>> {
        self.state.lock().end.as_ref().map(|(_, outcome)| outcome.clone())
    }

    /// Whether its writer went away before it wrote anything: nothing was begun, and it is as one that never was.
    pub fn is_void(&self) -> bool {
        let state = self.state.lock();
        state.dropped_by_writer && state.num_written() == 0
    }

    /// How it ended for those who read it.
    fn told(&self) -> Option<Result<(), Reject>> {
        let state = self.state.lock();
        let ended = state.end.as_ref().map(|(_, outcome)| outcome.clone());
        state.cut.clone().map(Err).or(ended)
    }

    /// The end, where no event says it.
    fn unsaid(&self) -> Option<Reject> {
        let state = self.state.lock();
        if state.cut.is_some() {
            return state.cut.clone();
        }
        let is_said = !state.dropped_by_writer && state.num_written() > 0;
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
        Ok(Cursor(Place::Here { log: Arc::clone(self), next: seen.min(last) + 1, number: None, paces: false }))
    }

    pub(crate) fn tell(&self, shared: &Arc<dyn SharedLogs>) {
        self.state.lock().told = Some(Arc::clone(shared));
    }

    /// It is dropped for others before its time, wherever it is found under this name.
    pub(crate) fn give_way(&self, id: &str) {
        let mut state = self.state.lock();
        state.gave_way = true;
        let told = state.told.take();
        drop(state);
        if let Some(shared) = told {
            shared.let_go(id);
        }
    }

    /// Whether it was dropped for others before its time.
    pub fn has_given_way(&self) -> bool {
        self.state.lock().gave_way
    }

    /// Ready once it has ended, whatever its readers were told before.
    pub fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return Poll::Ready(());
        }
        if !state.of_end.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.of_end.push(cx.waker().clone());
        }
        Poll::Pending
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

    fn wait(&mut self, cursor: &mut Option<u64>, cx: &mut Context<'_>) {
        let cursor = *cursor.get_or_insert_with(|| {
            self.num_cursors += 1;
            self.num_cursors
        });
        let waker = self.waiting.entry(cursor).or_insert_with(|| cx.waker().clone());
        waker.clone_from(cx.waker());
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.holding.give_back(self.state.get_mut().bytes);
    }
}

/// Wakes outside of the lock, since a woken reader takes it.
fn wake(mut state: parking_lot::MutexGuard<'_, State>) {
    let (waiting, of_end) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.of_end));
    drop(state);
    waiting.into_values().chain(of_end).for_each(Waker::wake);
}

/// One reader's place in a log.
pub struct Cursor(Place);

enum Place {
    Here {
        log: Arc<Log>,
        next: u64,
        /// Among those that have waited.
        number: Option<u64>,
        /// Whether it is the one that the writer waits for.
        paces: bool,
    },
    Elsewhere(Box<dyn Follow>),
}

impl Cursor {
    pub(crate) fn elsewhere(follow: Box<dyn Follow>) -> Self {
        Self(Place::Elsewhere(follow))
    }

    /// How the log ended for this reader; `None` while it runs, as far as is known.
    pub fn outcome(&self) -> Option<Result<(), Reject>> {
        match &self.0 {
            Place::Here { log, .. } => log.told(),
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

    /// What it reads, where that is in this process.
    pub fn log(&self) -> Option<&Arc<Log>> {
        match &self.0 {
            Place::Here { log, .. } => Some(log),
            Place::Elsewhere(_) => None,
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
            Place::Here { log, next, number, paces } => log.poll_at(next, (number, *paces), cx),
            Place::Elsewhere(follow) => follow.poll_next(cx),
        }
    }
}

impl Log {
    fn poll_at(
        &self,
        next: &mut u64,
        (number, paces): (&mut Option<u64>, bool),
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Numbered, Missed>>> {
        let mut state = self.state.lock();
        let Some(at) = next.checked_sub(state.dropped + 1) else {
            return Poll::Ready(Some(Err(Missed { first_kept: state.dropped + 1 })));
        };
        if let Some(event) = usize::try_from(at).ok().and_then(|at| state.events.get(at)) {
            let numbered = Numbered { number: *next, event: event.event.clone() };
            *next += 1;
            let writer = if paces { state.paced_on(numbered.event.len()) } else { None };
            drop(state);
            writer.into_iter().for_each(Waker::wake);
            return Poll::Ready(Some(Ok(numbered)));
        }
        if state.end.is_some() || state.cut.is_some() {
            return Poll::Ready(None);
        }
        state.wait(number, cx);
        Poll::Pending
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let Place::Here { log, number, paces, .. } = &self.0 else { return };
        if number.is_none() && !paces {
            return;
        }
        let mut state = log.state.lock();
        let waited = number.and_then(|number| state.waiting.remove(&number));
        let writer = if *paces { state.paced_no_more() } else { None };
        // Without the lock: who has it may have the last of something.
        drop(state);
        drop(waited);
        writer.into_iter().for_each(Waker::wake);
    }
}
