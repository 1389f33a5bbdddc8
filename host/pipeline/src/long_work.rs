//! Work on one long text that no thread of a connection may wait for: laying out and encoding prompts. At once there is as
//! much of it as there are cores, over all requests and models, and the others wait in order. What a request holds of places
//! and limits is held until its work has ended, so that who asks and goes away has no more of it than who stays.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use tidegate_types::{Fault, Reject};
use tokio::sync::Semaphore;

/// Of the whole process: a reload makes no more cores.
static TURNS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from))));

/// What a request holds while it runs.
pub(crate) type Kept = Vec<Keeps>;

/// One part of that: a place, or what is counted for a limit.
pub(crate) type Keeps = Arc<dyn Any + Send + Sync>;

/// Whether somebody still waits for a piece of work.
#[derive(Clone, Default)]
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// Asked by the work between its steps.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of who waits: dropped with the request's future.
struct Waiter(Waiting);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` beside the connections' threads once it is its turn. Dropping the future gives up the turn, or has work that
/// runs stop at its next step.
pub(crate) async fn in_turn<T: Send + 'static>(
    kept: Kept,
    work: impl FnOnce(&Waiting) -> Result<T, Reject> + Send + 'static,
) -> Result<T, Reject> {
    let turn = Arc::clone(&TURNS).acquire_owned().await.map_err(broken)?;
    beside((turn, kept), work).await
}

/// The same at once, for what is short. Both hold what they are given until the work has ended.
pub(crate) async fn beside<T: Send + 'static>(
    kept: impl Send + 'static,
    work: impl FnOnce(&Waiting) -> Result<T, Reject> + Send + 'static,
) -> Result<T, Reject> {
    let waiter = Waiter(Waiting::default());
    let waiting = waiter.0.clone();
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&waiting);
        drop(kept);
        done
    });
    done.await.map_err(broken)?
}

fn broken(error: impl ToString) -> Reject {
    Reject::internal(Fault::Operator, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    #[tokio::test]
    async fn who_goes_away_stops_the_work_and_holds_the_place_until_it_has_stopped() {
        let place = Arc::new(());
        let (begun, has_begun) = sync_channel(1);
        let (stopped, has_stopped) = sync_channel(1);
        let (go, may_go) = sync_channel::<()>(0);
        let held: Keeps = place.clone();
        let asked = tokio::spawn(in_turn(vec![held], move |waiting| {
            begun.send(()).unwrap();
            may_go.recv().unwrap();
            stopped.send(waiting.is_over()).unwrap();
            Ok(())
        }));
        let has_begun = tokio::task::spawn_blocking(move || has_begun.recv());
        has_begun.await.unwrap().unwrap();
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        assert_eq!(Arc::strong_count(&place), 2, "the place is held");
        go.send(()).unwrap();
        assert!(has_stopped.recv().unwrap(), "the work was told");
        while Arc::strong_count(&place) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn there_is_as_much_at_once_as_there_are_cores() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all = (0..64).map(|_| {
            let (running, most) = (running.clone(), most.clone());
            in_turn(Kept::new(), move |waiting| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                running.fetch_sub(1, Ordering::SeqCst);
                assert!(!waiting.is_over());
                Ok(())
            })
        });
        for done in futures_util::future::join_all(all).await {
            done.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) <= available_parallelism().map_or(1, usize::from));
    }
}
