//! What a submitter holds: the events of one job. Dropping it cancels the job.

use crate::shared::Shared;
use std::sync::Arc;
use tidegate_types::{Fault, JobEvent, JobId, Reject};
use tokio::sync::mpsc;

/// The events of one job: `Started`, tokens, then exactly one `Finished` or `Failed`.
///
/// The channel has room for all events that the job can have, so a slow reader never holds up the engine.
#[derive(Debug)]
pub struct JobStream {
    id: JobId,
    events: mpsc::Receiver<JobEvent>,
    shared: Arc<Shared>,
    ended: bool,
}

impl JobStream {
    pub(crate) fn new(id: JobId, events: mpsc::Receiver<JobEvent>, shared: Arc<Shared>) -> Self {
        Self { id, events, shared, ended: false }
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// The next event; `None` after the last. Never ends without `Finished` or `Failed`. Safe to cancel.
    pub async fn next(&mut self) -> Option<JobEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.note(event))
    }

    /// As [`Self::next`], for those who poll several streams at once.
    pub fn poll_next(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<JobEvent>> {
        if self.ended {
            return std::task::Poll::Ready(None);
        }
        self.events.poll_recv(cx).map(|event| Some(self.note(event)))
    }

    /// An event that is there already; `None` when there is none at this moment or after the last.
    pub fn try_next(&mut self) -> Option<JobEvent> {
        if self.ended {
            return None;
        }
        match self.events.try_recv() {
            Ok(event) => Some(self.note(Some(event))),
            Err(mpsc::error::TryRecvError::Empty) => None,
            Err(mpsc::error::TryRecvError::Disconnected) => Some(self.note(None)),
        }
    }

    fn note(&mut self, event: Option<JobEvent>) -> JobEvent {
        let event = event.unwrap_or_else(|| {
            JobEvent::Failed(Reject::unavailable(Fault::Engine, "the engine stopped before the answer ended", 1))
        });
        self.ended = matches!(event, JobEvent::Finished { .. } | JobEvent::Failed(_));
        event
    }
}

impl Drop for JobStream {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.cancel(self.id);
        }
    }
}
