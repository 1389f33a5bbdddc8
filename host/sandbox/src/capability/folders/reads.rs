//! Reads of one plugin's documents, a few at once, beside the calls' threads; who waits does so by the tenant queue, so that who
//! lists large folders keeps nobody else waiting.

use super::CapabilityError;
use crate::slots::share_of;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate_turns::{Turn, Turns};
use tidegate_types::TenantId;
use tokio::time::{Instant, timeout_at};

/// At once.
pub(super) const MAX_READS: usize = 8;
/// Where none has ended for so long, none is waited for: many times as long as a read takes in a folder that answers.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct Reads {
    turns: Turns,
    /// When one has last ended.
    ended: Mutex<Option<Instant>>,
}

impl Default for Reads {
    fn default() -> Self {
        Self { turns: Turns::new(MAX_READS), ended: Mutex::default() }
    }
}

impl Reads {
    /// Does `work` in its turn. That goes with the work, and not with who waits for it.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        tenant: TenantId,
        work: impl FnOnce() -> Result<T, CapabilityError> + Send + 'static,
    ) -> Result<T, CapabilityError> {
        let turn = self.turn(tenant).await.ok_or_else(|| {
            let message = format!("{MAX_READS} reads of documents of this plugin have not ended; a folder may be away");
            CapabilityError::Unavailable(message)
        })?;
        let reads = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            *reads.ended.lock() = Some(Instant::now());
            drop(turn);
            done
        });
        done.await.unwrap_or_else(|error| Err(CapabilityError::Unavailable(format!("reading stopped: {error}"))))
    }

    async fn turn(&self, tenant: TenantId) -> Option<Turn> {
        let owner = share_of(tenant);
        let mut taking = pin!(self.turns.take(&owner, 1));
        let mut until = Instant::now() + PATIENCE;
        loop {
            if let Ok(turn) = timeout_at(until, &mut taking).await {
                return Some(turn);
            }
            // While others end, its turn comes.
            let next = (*self.ended.lock())? + PATIENCE;
            if next <= until {
                return None;
            }
            until = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name)
    }

    /// Reads that take longer together than anybody is patient.
    #[tokio::test]
    async fn a_tenant_that_has_many_waiting_is_waited_for_by_itself_alone() {
        let reads = Arc::new(Reads::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let slow = |name: &'static str| {
            let (reads, order) = (Arc::clone(&reads), Arc::clone(&order));
            tokio::spawn(async move {
                let slow = || {
                    std::thread::sleep(Duration::from_millis(150));
                    Ok(())
                };
                reads.run(tenant(name), slow).await?;
                order.lock().push(name);
                Ok::<_, CapabilityError>(())
            })
        };
        let mut all: Vec<_> = (0..6 * MAX_READS).map(|_| slow("many")).collect();
        // Before the few ask: all of the many do.
        tokio::task::yield_now().await;
        all.push(slow("few"));
        for one in all {
            one.await.unwrap().expect("nobody is refused while reads end");
        }
        let place = order.lock().iter().position(|name| *name == "few").unwrap();
        assert!(place < 3 * MAX_READS, "{place}");
    }

    #[tokio::test]
    async fn where_no_read_ends_the_next_is_refused() {
        let (reads, (let_go, gate)) = (Arc::new(Reads::default()), std::sync::mpsc::sync_channel::<()>(1));
        let gate = Arc::new(std::sync::Mutex::new(gate));
        reads.run(tenant("a"), || Ok(())).await.unwrap();
        for _ in 0..MAX_READS {
            let gate = Arc::clone(&gate);
            let hanging = move || gate.lock().unwrap().recv().map_err(|_| CapabilityError::Unavailable("over".into()));
            assert!(reads.run(tenant("a"), hanging).now_or_never().is_none());
        }
        let refused = reads.run(tenant("b"), || Ok(())).await.unwrap_err();
        assert!(matches!(&refused, CapabilityError::Unavailable(why) if why.contains("8 reads")), "{refused}");
        drop(let_go);
    }
}
