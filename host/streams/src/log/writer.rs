//! Who fills a log, and what stays in it.
//!
//! A log holds so many bytes of events, and then the oldest go. Beside that it holds what is large and came last, a few times:
//! the events that end a text, a tool call or an answer say all of it again, each in one go and right behind each other, so that
//! counted like others they would push each other out before anybody could have read one. Older large ones count like others,
//! and all go where they are the oldest. What all logs hold has a bound for them as for others.

use super::{CUT, Entry, LOST, Log, State, wake};
use crate::kept::Kept;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;
use tidegate_types::{Fault, Reject};

/// Events that come together are large where they are more than this part of a log, and than an event ever is that says
/// nothing again; or than the whole log.
const LARGE_PART: usize = 32;
const LARGE_BYTES: usize = 4 << 10;

/// Fills one log. Dropped before [`Writer::end`], it ends the log with an error, so that no reader waits for ever.
pub struct Writer {
    log: Arc<Log>,
    /// Where logs that have ended give way.
    kept: Weak<Mutex<Kept>>,
    ended: bool,
}

impl Writer {
    pub(crate) fn new(log: Arc<Log>, kept: Weak<Mutex<Kept>>) -> Self {
        Self { log, kept, ended: false }
    }

    /// The log that it fills.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Appends an event, as [`Writer::append_together`] does.
    pub fn append(&mut self, event: Bytes) {
        self.append_together(vec![event]);
    }

    /// Appends events, none of which pushes out another; the oldest make room where all are more than the log may hold, or
    /// its tenant holds too much, but for what the reader has not read that it is filled for ([`Writer::poll_room`]). What is
    /// large and finds no room ends the log for its readers ([`CUT`]): of that and of what follows nothing is taken.
    pub fn append_together(&mut self, events: Vec<Bytes>) {
        if events.is_empty() || self.log.state.lock().cut.is_some() {
            return;
        }
        let size: usize = events.iter().map(Bytes::len).sum();
        let Log { limit_bytes, holding, .. } = &*self.log;
        let is_large = size > (limit_bytes / LARGE_PART).max(LARGE_BYTES).min(*limit_bytes);
        if is_large && !holding.has_room_for(size) {
            self.sweep();
        }
        let mut state = self.log.state.lock();
        // Of who holds too much it goes in place of what the log holds already.
        if is_large && !holding.has_room_for(size) && state.bytes < size {
            state.cut = Some(no_room(size));
            return wake(state);
        }
        let (before, together) = (state.bytes, events.len());
        let large = if is_large { state.large_came(size) } else { 0 };
        state.bytes += size;
        state.paced_by(size);
        state.events.extend(events.into_iter().map(|event| Entry { event, large }));
        holding.add(size);
        // A tenant that holds too much goes on in place of what it holds: no log loses more than it takes.
        let has_room =
            |state: &State| state.counted() <= *limit_bytes && (state.bytes <= before || !holding.must_not_grow());
        while !has_room(&state) && state.events.len() > together && !state.is_oldest_unread() {
            holding.give_back(state.drop_oldest());
        }
        wake(state);
    }

    /// Ready once the reader that the log is filled for ([`super::Cursor::pace`]) has read so much that events of so many bytes
    /// more find room beside the rest; at once where there is none, nothing more is taken, or somebody has asked for the end.
    /// Whoever appends without waiting for that makes the log hold more than its bound.
    pub fn poll_room(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        self.log.poll_room(bytes, cx)
    }

    /// Why nothing more is taken, where that is so.
    pub fn cut(&self) -> Option<Reject> {
        self.log.state.lock().cut.clone()
    }

    /// Ends the log; what its last event says is the writer's to append before. Of one without any event readers are told
    /// the outcome.
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
        // Nobody else may come to see to that; this one itself stays for whoever comes back, until the next.
        self.sweep();
        let mut state = self.log.state.lock();
        state.end = Some((Instant::now(), outcome));
        wake(state);
    }

    /// Where all logs hold too much, makes those give way that have ended. Not while the log is locked.
    fn sweep(&self) {
        if let Some(kept) = self.kept.upgrade().filter(|_| self.log.holding.is_full()) {
            kept.lock().sweep(Instant::now());
        }
    }
}

impl State {
    /// What counts against the log's limit.
    fn counted(&self) -> usize {
        self.bytes - self.beside.iter().sum::<usize>()
    }

    /// Large events of this size come: of those before, the last ones alone stay beside what the log may hold. Gives which
    /// time it is.
    fn large_came(&mut self, size: usize) -> u64 {
        self.beside.rotate_right(1);
        self.beside[0] = size;
        self.num_large += 1;
        self.num_large
    }

    /// Drops the oldest event; gives its size.
    fn drop_oldest(&mut self) -> usize {
        let Some(Entry { event, large }) = self.events.pop_front() else { return 0 };
        self.dropped += 1;
        self.bytes -= event.len();
        let age = usize::try_from(self.num_large - large).unwrap_or(usize::MAX);
        if let Some(beside) = self.beside.get_mut(age).filter(|_| large > 0) {
            *beside -= event.len();
        }
        event.len()
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

fn no_room(bytes: usize) -> Reject {
    let message = format!(
        "what comes next says much of this answer again, in {bytes} bytes, and the streams of its tenant hold their share of \
         what the server keeps of all; where the answer is kept it can be read whole, and else be asked for without `stream`"
    );
    Reject::unavailable(Fault::Operator, message, 5).code(CUT)
}
