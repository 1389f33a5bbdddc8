//! The reader that a log is filled for, where there is one: its writer waits for it, and drops nothing that it has not read.
//! Others that read the same log are waited for by nobody.
//!
//! Nothing bounds here how long it takes: whoever has the cursor drops it when it is given up, and the writer goes on.

use super::{Cursor, Log, Place, State};
use std::task::{Context, Poll, Waker};

/// How far that reader is.
pub(super) struct Pace {
    /// The event that it reads next.
    next: u64,
    /// Of all from there on.
    unread_bytes: usize,
    /// The writer's task, where it waits.
    writer: Option<Waker>,
}

impl Cursor {
    /// Has the writer wait for this reader from now on ([`super::Writer::poll_room`]), until it is dropped. One reader of a log
    /// may ask for that, in the process that writes it; of others it changes nothing.
    pub fn pace(&mut self) {
        if let Place::Here { log, next, paces, .. } = &mut self.0 {
            *paces |= log.state.lock().pace(*next);
        }
    }
}

impl Log {
    /// Whether the reader that this log is filled for, if there is one, has to read before so many bytes more come.
    pub(super) fn poll_room(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let is_asked_for = state.cut.is_none() && !state.stopped;
        let Some(pace) = state.pace.as_mut().filter(|pace| is_asked_for && pace.unread_bytes > 0) else {
            return Poll::Ready(());
        };
        // A tenant that holds too much goes on in place of what it holds, and of that nothing may be unread.
        if pace.unread_bytes.saturating_add(bytes) <= self.limit_bytes && self.holding.has_room_for(bytes) {
            return Poll::Ready(());
        }
        pace.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl State {
    /// Says whether the reader that is at `next` is the one that is waited for.
    fn pace(&mut self, next: u64) -> bool {
        if self.pace.is_some() {
            return false;
        }
        let num_read = usize::try_from(next.saturating_sub(self.dropped + 1)).unwrap_or(usize::MAX);
        let unread_bytes = self.events.iter().skip(num_read).map(|entry| entry.event.len()).sum();
        self.pace = Some(Pace { next, unread_bytes, writer: None });
        true
    }

    /// So many bytes more are there to be read.
    pub(super) fn paced_by(&mut self, bytes: usize) {
        if let Some(pace) = &mut self.pace {
            pace.unread_bytes += bytes;
        }
    }

    /// The reader that is waited for has read an event of so many bytes; gives who waits for that.
    pub(super) fn paced_on(&mut self, bytes: usize) -> Option<Waker> {
        let pace = self.pace.as_mut()?;
        pace.next += 1;
        pace.unread_bytes = pace.unread_bytes.saturating_sub(bytes);
        pace.writer.take()
    }

    /// Whether the oldest event waits for that reader.
    pub(super) fn is_oldest_unread(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.next <= self.dropped + 1)
    }

    /// That reader is no more; gives who waited for it.
    pub(super) fn paced_no_more(&mut self) -> Option<Waker> {
        self.pace.take()?.writer
    }
}
