//! Copies one log to the server, behind the stream: what is there together goes together, and neither the engine nor a
//! client waits for it. While the server is away the log itself keeps what is missing, as long as it has room.
//!
//! A large event goes in pieces, few at a time of all logs: the logs have one connection, which is given up where an answer
//! takes too long, and nobody's event may be the reason for that. Where it is all the same, the log ends for the others, who
//! can still end it itself, and forget it.

use super::{Core, MAX_BYTES, MAX_EVENT_BYTES, PATIENCE, PAUSE, Upto, millis, too_large};
use bytes::Bytes;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tidegate_streams::{Cursor, Log};
use tidegate_types::{Reject, TenantId};

/// How long events wait for others to go with.
const LINGER: Duration = Duration::from_millis(10);

/// Events that go together, up to the one that passes [`MAX_BYTES`]: more would hold up the logs that use the same
/// connection.
const MAX_EVENTS: usize = 256;

/// Attempts to send a piece of an event, each of which has cost all logs their connection.
const ATTEMPTS: u32 = 5;

pub(super) struct Copying {
    core: Arc<Core>,
    tenant: TenantId,
    id: String,
    log: Arc<Log>,
}

/// What there is to say of the log.
#[derive(Default)]
struct Batch {
    /// The number of the first event. Its end holds once all before and all of these are there.
    first: u64,
    events: Vec<Bytes>,
    /// Which piece of the first event goes, where that is large; then it is the only one.
    piece: Option<u64>,
    /// What readers elsewhere are told.
    end: Option<Result<(), Reject>>,
    /// That, though the log itself goes on.
    goes_on: bool,
}

/// What came of saying it.
enum Said {
    /// The server has so much.
    UpTo(Upto),
    /// It could not be asked.
    Nothing,
    /// It did not answer.
    Failed,
    /// It wants nothing more of this log: that was forgotten, or another gateway has begun it anew.
    Enough,
}

impl Copying {
    pub(super) fn new(core: Arc<Core>, tenant: TenantId, id: String, log: Arc<Log>) -> Self {
        Self { core, tenant, id, log }
    }

    pub(super) async fn run(self) {
        let begun = Batch::default();
        let (mut said, mut has_begun, mut upto, mut failed) = (self.say(&begun).await, false, Upto::default(), 0);
        loop {
            match said {
                // Nobody can read it any more.
                Said::Enough => return self.log.stop(),
                Said::UpTo(there) => (has_begun, upto, failed) = (true, there, 0),
                Said::Nothing | Said::Failed if self.is_over() => return,
                Said::Nothing | Said::Failed => tokio::time::sleep(PAUSE).await,
            }
            if !has_begun {
                // Nothing goes behind what another log of this name has left.
                said = self.say(&begun).await;
                continue;
            }
            let batch = self.gather(upto, failed).await;
            if batch.end.is_some() && self.log.is_void() {
                // What is not taken back now is begun anew by the next, or has its end with the server.
                self.core.take_back(std::slice::from_ref(&self.id), Duration::ZERO).await;
                return;
            }
            said = self.say(&batch).await;
            failed += u32::from(batch.piece.is_some() && matches!(said, Said::Failed));
            let whole = batch.first + batch.events.len() as u64;
            if let (Said::UpTo(there), Some(_)) = (&said, &batch.end)
                && there.number + 1 >= whole
            {
                if batch.goes_on {
                    self.stay(batch).await;
                }
                return;
            }
        }
    }

    /// What is over for readers elsewhere goes on here: until it ends the server hears of it, and others may end it.
    async fn stay(&self, mut told: Batch) {
        told.events.clear();
        loop {
            let ended = poll_fn(|cx| self.log.poll_ended(cx));
            let has_ended = tokio::time::timeout(self.core.link.config.lease / 3, ended).await.is_ok();
            told.goes_on = !has_ended;
            match self.say(&told).await {
                Said::Enough => return self.log.stop(),
                Said::UpTo(_) if has_ended => return,
                Said::UpTo(_) => {}
                Said::Nothing | Said::Failed if self.is_over() => return,
                Said::Nothing | Said::Failed => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// What follows that of which the server has so much: waits for something, then for a moment more. Of a log whose next
    /// event cannot be sent, as has `failed` so many times, that is an end.
    async fn gather(&self, upto: Upto, failed: u32) -> Batch {
        // What the log no longer has is missing on the server, too.
        let seen = upto.number.max(self.log.first_kept() - 1);
        let mut batch = Batch { first: seen + 1, ..Batch::default() };
        let Ok(mut cursor) = self.log.read_after(seen) else { return batch };
        let waiting = poll_fn(|cx| cursor.poll_next(cx));
        // Even without news the server hears of the log: it may have forgotten it, and would at last.
        let Ok(next) = tokio::time::timeout(self.core.link.config.lease / 3, waiting).await else { return batch };
        match next {
            Some(Ok(event)) if event.event.len() > MAX_BYTES => {
                let bytes = event.event.len();
                if bytes > MAX_EVENT_BYTES || failed >= ATTEMPTS {
                    self.end(&mut batch, Some(Err(too_large(bytes))));
                    // It holds whatever is missing: nothing more will come.
                    batch.first = 1;
                    return batch;
                }
                batch.piece = Some(if seen == upto.number { upto.pieces } else { 0 });
                batch.events.push(event.event);
                return batch;
            }
            Some(Ok(event)) => batch.events.push(event.event),
            Some(Err(_)) => return batch,
            None => {
                self.end(&mut batch, cursor.outcome());
                return batch;
            }
        }
        tokio::time::sleep(LINGER).await;
        self.take_ready(&mut cursor, &mut batch);
        batch
    }

    fn take_ready(&self, cursor: &mut Cursor, batch: &mut Batch) {
        let mut bytes: usize = batch.events.iter().map(Bytes::len).sum();
        while batch.events.len() < MAX_EVENTS && bytes < MAX_BYTES {
            match cursor.poll_next(&mut Context::from_waker(Waker::noop())) {
                // It goes by itself.
                Poll::Ready(Some(Ok(event))) if event.event.len() > MAX_BYTES => return,
                Poll::Ready(Some(Ok(event))) => {
                    bytes += event.event.len();
                    batch.events.push(event.event);
                }
                Poll::Ready(None) => return self.end(batch, cursor.outcome()),
                Poll::Ready(Some(Err(_))) | Poll::Pending => return,
            }
        }
    }

    fn end(&self, batch: &mut Batch, end: Option<Result<(), Reject>>) {
        (batch.end, batch.goes_on) = (end, self.log.ended_at().is_none());
    }

    async fn say(&self, batch: &Batch) -> Said {
        let core = &*self.core;
        // Closed never.
        let _turn = match batch.piece {
            Some(_) => core.pieces.acquire().await.ok(),
            None => None,
        };
        let Some(line) = core.link.line() else { return Said::Nothing };
        let end = batch.end.clone().map(|outcome| outcome.map_err(|reject| Reject { cause: None, ..reject }));
        let end = end.map(|end| serde_json::to_string(&end).unwrap_or_default()).unwrap_or_default();
        let has_ended = batch.end.is_some() && !batch.goes_on;
        let keep = if has_ended { core.settings.keep } else { core.outlasting() };
        let mut command = core.append.call(&core.keys(&self.id));
        command.arg(self.tenant.as_str()).arg(&core.link.gateway).arg(millis(keep));
        command.arg(self.log.first_kept()).arg(end).arg(u8::from(batch.goes_on)).arg(batch.first);
        match (batch.piece, batch.events.first()) {
            (Some(piece), Some(event)) => {
                let (bytes, behind) = part(event, piece);
                command.arg(piece).arg(behind).arg(bytes);
            }
            _ => {
                command.arg("").arg(0);
                for event in &batch.events {
                    command.arg(&event[..]);
                }
            }
        }
        let mut connection = line.connection.clone();
        match core.link.wait(&line, PATIENCE, command.query_async::<(i64, u64)>(&mut connection)).await {
            Some((number, pieces)) => {
                u64::try_from(number).map_or(Said::Enough, |number| Said::UpTo(Upto { number, pieces }))
            }
            None => Said::Failed,
        }
    }

    /// Whether nobody could read it any more.
    fn is_over(&self) -> bool {
        self.log.is_void()
            || self.log.has_given_way()
            || self.log.ended_at().is_some_and(|ended| ended.elapsed() > self.core.settings.keep)
    }
}

/// A piece of a large event, and how many bytes are behind it.
fn part(event: &[u8], piece: u64) -> (&[u8], usize) {
    let start = usize::try_from(piece).map_or(event.len(), |piece| piece.saturating_mul(MAX_BYTES)).min(event.len());
    let end = start.saturating_add(MAX_BYTES).min(event.len());
    (&event[start..end], event.len() - end)
}

impl Drop for Copying {
    fn drop(&mut self) {
        let mut written = self.core.written.lock();
        // Another log may have the name by now.
        if written.get(&self.id).is_some_and(|log| log.as_ptr() == Arc::as_ptr(&self.log)) {
            written.remove(&self.id);
        }
        drop(written);
        if self.log.has_given_way() {
            self.core.let_go(&self.id);
        }
        self.core.copying.fetch_sub(1, Ordering::AcqRel);
    }
}
