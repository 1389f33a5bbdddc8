//! Reads one log of another gateway: a task asks for the next events, and hands them over as the reader takes them. It has no
//! more than a few lots of them, but for large events, which have one room for all readers of this gateway.

use super::room::Held;
use super::{Core, MAX_EVENT_BYTES, Piece, Upto, interrupted, is_unsaid, lost};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tidegate_streams::shared::Follow;
use tidegate_streams::{Missed, Numbered};
use tidegate_types::Reject;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Events that are asked for together, and lots of them that wait for a slow reader.
const MAX_EVENTS: usize = 128;
const MAX_LOTS: usize = 2;

/// Between questions: short while there is news, longer where there is none.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(80));

/// The room for large events, each from its first piece until it has left: one as large as any finds room at last.
pub(super) const ROOM_KIB: usize = MAX_EVENT_BYTES >> 10;

/// For so many leases a large event waits for room, which those hold who read slowly.
const PATIENCE_LEASES: u32 = 4;

/// What a reader gets.
enum Lot {
    Events(Vec<Numbered>),
    Missed(Missed),
    End(Result<(), Reject>),
    /// It ends here, and none of its events says so.
    Broken(Reject),
}

/// A reader's side.
pub(super) struct Following {
    lots: mpsc::Receiver<Lot>,
    ready: VecDeque<Numbered>,
    outcome: Option<Result<(), Reject>>,
    is_broken: bool,
    asking: JoinHandle<()>,
}

pub(super) fn start(core: Arc<Core>, id: String, seen: u64) -> Following {
    let (lots, taken) = mpsc::channel(MAX_LOTS);
    let asking = tokio::spawn(ask(core, id, seen, lots));
    Following { lots: taken, ready: VecDeque::new(), outcome: None, is_broken: false, asking }
}

impl Follow for Following {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Numbered, Missed>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.outcome.is_some() {
                return Poll::Ready(None);
            }
            match ready!(self.lots.poll_recv(cx)) {
                Some(Lot::Events(events)) => self.ready.extend(events),
                Some(Lot::Missed(missed)) => return Poll::Ready(Some(Err(missed))),
                Some(Lot::End(outcome)) => self.outcome = Some(outcome),
                Some(Lot::Broken(reject)) => (self.outcome, self.is_broken) = (Some(Err(reject)), true),
                None => (self.outcome, self.is_broken) = (Some(Err(interrupted())), true),
            }
        }
    }

    fn outcome(&self) -> Option<Result<(), Reject>> {
        self.outcome.clone()
    }

    fn unsaid(&self) -> Option<Reject> {
        self.outcome.clone()?.err().filter(|_| self.is_broken)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

/// Asks until the log has ended, the reader is gone, or nothing is known of it for as long as a lease.
async fn ask(core: Arc<Core>, id: String, seen: u64, lots: mpsc::Sender<Lot>) {
    let (mut pause, mut known) = (PAUSES.0, Instant::now());
    let mut taken = Taken { upto: Upto { number: seen, pieces: 0 }, begun: Vec::new(), behind: 0, room: None };
    let last = loop {
        let found = match core.link.line() {
            Some(line) => core.look(&line, &id, taken.upto, MAX_EVENTS).await,
            None => Err(tidegate_streams::shared::Away),
        };
        let is_late = known.elapsed() > core.link.config.lease;
        match found {
            Err(_) if is_late => break Lot::Broken(interrupted()),
            // A server that has forgotten it is told again by the log's gateway, if that is there.
            Ok(None) if is_late => break Lot::Broken(lost()),
            Err(_) | Ok(None) => pause = PAUSES.1,
            Ok(Some(found)) if !found.pieces.is_empty() => {
                (known, pause) = (Instant::now(), PAUSES.0);
                let Some(events) = taken.take(found.pieces) else {
                    break Lot::Missed(Missed { first_kept: found.first });
                };
                if !events.is_empty() && lots.send(Lot::Events(events)).await.is_err() {
                    return;
                }
                if taken.lacks_room() {
                    // Who has yet to take what came before holds nothing that others wait for.
                    if lots.reserve_many(MAX_LOTS).await.is_err() {
                        return;
                    }
                    let Some(room) = core.room_for(&found.tenant, taken.begun.len() + taken.behind).await else {
                        break Lot::Broken(interrupted());
                    };
                    taken.enter(room);
                    known = Instant::now();
                }
                if found.has_more {
                    continue;
                }
            }
            Ok(Some(found)) => {
                known = Instant::now();
                match found.outcome {
                    Some(Err(reject)) if found.first == 0 || is_unsaid(&reject) => break Lot::Broken(reject),
                    Some(outcome) => break Lot::End(outcome),
                    None => {}
                }
                if !found.is_owned {
                    break Lot::Broken(lost());
                }
                pause = (pause * 3 / 2).min(PAUSES.1);
            }
        }
        tokio::time::sleep(pause).await;
    };
    // A reader that is gone wants no last word.
    let _ = lots.send(last).await;
}

impl Core {
    /// Room for a large event, as others leave it. `None` where they do not.
    async fn room_for(&self, tenant: &str, bytes: usize) -> Option<Held> {
        let room = self.room.take(tenant, bytes.div_ceil(1 << 10).min(ROOM_KIB));
        tokio::time::timeout(PATIENCE_LEASES * self.link.config.lease, room).await.ok()
    }
}

/// A large event, with its room.
struct Large {
    bytes: Vec<u8>,
    _room: Held,
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a reader has: whole events up to a number, and the beginning of the next.
struct Taken {
    upto: Upto,
    begun: Vec<u8>,
    /// Bytes that are missing of what has begun.
    behind: usize,
    room: Option<Held>,
}

impl Taken {
    /// Whether an event has begun that may not go on yet.
    fn lacks_room(&self) -> bool {
        self.upto.pieces > 0 && self.room.is_none()
    }

    fn enter(&mut self, room: Held) {
        self.begun.reserve_exact(self.behind);
        self.room = Some(room);
    }

    /// Takes the pieces that follow; gives the events that are whole with them. `None` where some are missing.
    fn take(&mut self, pieces: Vec<Piece>) -> Option<Vec<Numbered>> {
        let mut events = Vec::new();
        for Piece { number, piece, behind, bytes } in pieces {
            if (number, piece) != (self.upto.number + 1, self.upto.pieces) {
                return None;
            }
            // Most events are of one piece, and not copied.
            let bytes = match piece {
                0 => bytes,
                _ => {
                    let mut begun = std::mem::take(&mut self.begun);
                    begun.extend_from_slice(&bytes);
                    begun
                }
            };
            if behind == 0 {
                self.upto = Upto { number, pieces: 0 };
                let event = match self.room.take() {
                    Some(room) => Bytes::from_owner(Large { bytes, _room: room }),
                    None => Bytes::from(bytes),
                };
                events.push(Numbered { number, event });
            } else {
                self.upto.pieces += 1;
                (self.begun, self.behind) = (bytes, behind);
            }
        }
        Some(events)
    }
}
