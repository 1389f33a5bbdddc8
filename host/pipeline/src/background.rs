//! Work that follows an answer and that nobody waits for: memories are written, observers are told. Its request holds no
//! place any more, so it has places of its own: what finds none is dropped and counted, and that is only the work of tenants
//! that have their share.

use crate::admission::Admission;
use metrics::counter;
use std::future::Future;
use std::time::Duration;
use tidegate_trace as trace;
use tidegate_types::Caller;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// Pieces of work that may wait or run at once; past it only those of tenants below their share.
const MAX_WAITING: usize = 1024;

/// The tasks of one pipeline and its successors.
#[derive(Clone)]
pub(crate) struct Background {
    tasks: TaskTracker,
    places: Admission,
}

impl Default for Background {
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), places: Admission::new(MAX_WAITING) }
    }
}

impl Background {
    /// Starts the caller's `work` where there is room; `what` names it in the count of what was dropped, and in the trace of
    /// the request that it follows.
    pub(crate) fn start<F>(&self, what: &'static str, caller: &Caller, request: &Span, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Without a runtime the program is at its end.
        let (Ok(runtime), Some(place)) = (tokio::runtime::Handle::try_current(), self.places.enter(caller)) else {
            counter!("tidegate_background_dropped_total", "what" => what).increment(1);
            return;
        };
        self.tasks.spawn_on(
            async move {
                work.await;
                drop(place);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_types::TenantId;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn a_tenant_with_too_much_to_do_loses_its_own_and_nobody_elses() {
        let (background, end) = (Background::default(), CancellationToken::new());
        let started = |tenant: &str, pieces: usize| {
            let (caller, started) = (Caller { tenant: TenantId::new(tenant), ..Caller::local() }, Arc::new(()));
            for _ in 0..pieces {
                let (end, held) = (end.clone(), Arc::clone(&started));
                background.start("memory", &caller, &Span::none(), async move {
                    end.cancelled().await;
                    drop(held);
                });
            }
            Arc::strong_count(&started) - 1
        };
        assert_eq!(started("many", 2 * MAX_WAITING), MAX_WAITING);
        assert_eq!(started("few", 10), 10);
        end.cancel();
        assert!(background.settle(Duration::from_secs(60)).await);
        assert_eq!(started("many", 1), 1, "what has ended gave its place back");
    }
}
