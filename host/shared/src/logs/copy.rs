//! Copies one log to the server, behind the stream: what is there together goes together, and neither the engine nor a
//! client waits for it. While the server is away the log itself keeps what is missing, as long as it has room.

use super::{Core, MAX_BYTES, PATIENCE, PAUSE, millis};
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

pub(super) struct Copying {
    core: Arc<Core>,
    tenant: TenantId,
    id: String,
    log: Arc<Log>,
}

/// What there is to say of the log.
struct Batch {
    /// The number of the first event.
    first: u64,
    events: Vec<Bytes>,
    end: Option<Result<(), Reject>>,
}

/// What came of saying it.
enum Said {
    /// The server has everything up to this number.
    UpTo(u64),
    /// It could not be asked.
    Nothing,
    /// It wants nothing more of this log: that was forgotten, or another gateway has begun it anew.
    Enough,
}

impl Copying {
    pub(super) fn new(core: Arc<Core>, tenant: TenantId, id: String, log: Arc<Log>) -> Self {
        Self { core, tenant, id, log }
    }

    pub(super) async fn run(self) {
        let begun = Batch { first: 0, events: Vec::new(), end: None };
        let (mut said, mut has_begun, mut last) = (self.say(&begun).await, false, 0);
        loop {
            match said {
                // Nobody can read it any more.
                Said::Enough => return self.log.stop(),
                Said::UpTo(number) => (has_begun, last) = (true, number),
                Said::Nothing if self.is_over() => return,
                Said::Nothing => tokio::time::sleep(PAUSE).await,
            }
            if !has_begun {
                // Nothing goes behind what another log of this name has left.
                said = self.say(&begun).await;
                continue;
            }
            let batch = self.gather(last).await;
            if batch.end.is_some() && self.log.is_void() {
                return self.take_back().await;
            }
            said = self.say(&batch).await;
            let whole = batch.first + batch.events.len() as u64;
            if let (Said::UpTo(number), Some(_)) = (&said, &batch.end)
                && number + 1 >= whole
            {
                return;
            }
        }
    }

    /// What follows event `last`: waits for something, then for a moment more.
    async fn gather(&self, last: u64) -> Batch {
        // What the log no longer has is missing on the server, too.
        let seen = last.max(self.log.first_kept() - 1);
        let mut batch = Batch { first: seen + 1, events: Vec::new(), end: None };
        let Ok(mut cursor) = self.log.read_after(seen) else { return batch };
        let waiting = poll_fn(|cx| cursor.poll_next(cx));
        // Even without news the server hears of the log: it may have forgotten it, and would at last.
        let Ok(next) = tokio::time::timeout(self.core.link.config.lease / 3, waiting).await else { return batch };
        match next {
            Some(Ok(event)) => batch.events.push(event.event),
            Some(Err(_)) => return batch,
            None => {
                batch.end = cursor.outcome();
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
                Poll::Ready(Some(Ok(event))) => {
                    bytes += event.event.len();
                    batch.events.push(event.event);
                }
                Poll::Ready(None) => {
                    batch.end = cursor.outcome();
                    return;
                }
                Poll::Ready(Some(Err(_))) | Poll::Pending => return,
            }
        }
    }

    async fn say(&self, batch: &Batch) -> Said {
        let core = &*self.core;
        let Some(line) = core.link.line() else { return Said::Nothing };
        let end = batch.end.clone().map(|outcome| outcome.map_err(|reject| Reject { cause: None, ..reject }));
        let end = end.map(|end| serde_json::to_string(&end).unwrap_or_default()).unwrap_or_default();
        let keep = core.settings.keep + if batch.end.is_some() { Duration::ZERO } else { core.link.config.lease };
        let mut command = core.append.call(&core.keys(&self.id));
        command.arg(self.tenant.as_str()).arg(&core.link.gateway).arg(millis(keep));
        command.arg(self.log.first_kept()).arg(end).arg(batch.first);
        for event in &batch.events {
            command.arg(&event[..]);
        }
        let mut connection = line.connection.clone();
        match core.link.wait(&line, PATIENCE, command.query_async::<i64>(&mut connection)).await {
            Some(number) => u64::try_from(number).map_or(Said::Enough, Said::UpTo),
            None => Said::Nothing,
        }
    }

    /// Has the server forget a log that has come to nothing, for another of its name.
    async fn take_back(&self) {
        let core = &*self.core;
        let Some(line) = core.link.line() else { return };
        let mut command = core.take_back.call(&core.keys(&self.id));
        command.arg(&core.link.gateway);
        let mut connection = line.connection.clone();
        // What is not taken back now is begun anew by the next, or has its end with the server.
        core.link.wait(&line, PATIENCE, command.exec_async(&mut connection)).await;
    }

    /// Whether nobody could read it any more.
    fn is_over(&self) -> bool {
        self.log.is_void() || self.log.ended_at().is_some_and(|ended| ended.elapsed() > self.core.settings.keep)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let mut written = self.core.written.lock();
        // Another log may have the name by now.
        if written.get(&self.id).is_some_and(|log| log.as_ptr() == Arc::as_ptr(&self.log)) {
            written.remove(&self.id);
        }
        drop(written);
        self.core.copying.fetch_sub(1, Ordering::AcqRel);
    }
}
