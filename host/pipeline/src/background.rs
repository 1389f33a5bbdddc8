//! Work that follows an answer and that nobody waits for: memories are written, observers are told. Bounded: what is
//! over the bound is dropped and counted.

use metrics::counter;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_trace as trace;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// Pieces of work that may wait or run at once.
const MAX_WAITING: usize = 1024;

/// The tasks of one pipeline and its successors.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
}

impl Default for Background {
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), slots: Arc::new(Semaphore::new(MAX_WAITING)) }
    }
}

impl Background {
    /// Starts `work` where there is room; `what` names it in the count of what was dropped, and in the trace of the request
    /// that it follows.
    pub(crate) fn start<F>(&self, what: &'static str, request: &Span, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Without a runtime the program is at its end.
        let (Ok(runtime), Ok(slot)) = (tokio::runtime::Handle::try_current(), self.slots.clone().try_acquire_owned())
        else {
            counter!("tidegate_background_dropped_total", "what" => what).increment(1);
            return;
        };
        self.tasks.spawn_on(
            async move {
                work.await;
                drop(slot);
            }
            .instrument(trace::behind(request, what)),
            &runtime,
        );
    }

    /// Waits for what runs, for at most `grace`; says whether all of it ended.
    pub(crate) async fn settle(&self, grace: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(grace, self.tasks.wait()).await.is_ok()
    }
}
