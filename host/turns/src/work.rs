//! Long work on a request's text, which no thread of a connection may wait for: reading a large body, laying out and encoding
//! a long prompt. At once there is as much of it as there are cores, whatever it is and whichever model it is for, and the
//! rest waits for its turn. What a prompt's request holds of places and limits is held until its work has ended, so that who
//! asks and goes away has no more of it than who stays. A body has none of these yet: it is parsed in one step, to its end, and its
//! room is given back when its client leaves; its turn is not.

use crate::{Owner, Turns};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use tidegate_types::{Caller, Fault, Reject};

/// The turns of long work. Of the whole process: a reload makes no more cores.
pub static LONG_WORK: LazyLock<Turns> = LazyLock::new(|| Turns::new(available_parallelism().map_or(1, usize::from)));

/// Whether somebody still waits for a piece of work.
#[derive(Clone, Default)]
pub struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// Asked by the work between its steps.
    pub fn is_over(&self) -> bool {
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

/// Does the caller's `work` on a text of so many bytes beside the connections' threads once it is its turn. Dropping the
/// future gives up the turn, or has work that runs stop at its next step, where it has any.
pub async fn in_turn<T: Send + 'static>(
    (caller, num_bytes): (&Caller, usize),
    kept: impl Send + 'static,
    work: impl FnOnce(&Waiting) -> Result<T, Reject> + Send + 'static,
) -> Result<T, Reject> {
    let turn = LONG_WORK.take(&Owner::of(caller), num_bytes as u64).await;
    beside((turn, kept), work).await
}

/// The same at once, for what is short. Both hold what they are given until the work has ended.
pub async fn beside<T: Send + 'static>(
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
    done.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;
    use tidegate_types::TenantId;

    #[tokio::test]
    async fn who_goes_away_stops_the_work_and_holds_the_place_until_it_has_stopped() {
        let place = Arc::new(());
        let (begun, has_begun) = sync_channel(1);
        let (stopped, has_stopped) = sync_channel(1);
        let (go, may_go) = sync_channel::<()>(0);
        let held = place.clone();
        let asked = tokio::spawn(async move {
            let work = move |waiting: &Waiting| {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                stopped.send(waiting.is_over()).unwrap();
                Ok(())
            };
            in_turn((&Caller::local(), 1), held, work).await
        });
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
            let work = move |waiting: &Waiting| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                running.fetch_sub(1, Ordering::SeqCst);
                assert!(!waiting.is_over());
                Ok(())
            };
            async move { in_turn((&Caller::local(), 1), (), work).await }
        });
        for done in futures_util::future::join_all(all).await {
            done.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) <= available_parallelism().map_or(1, usize::from));
    }

    #[tokio::test]
    async fn a_tenants_work_is_done_before_what_another_sent_before_it_but_has_more_of() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let piece = |tenant: &'static str| {
            let order = order.clone();
            let caller = Caller { tenant: TenantId::new(tenant), ..Caller::local() };
            let work = move |_: &Waiting| {
                order.lock().unwrap().push(tenant);
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            };
            async move { in_turn((&caller, 1), (), work).await }
        };
        let many = 32 * available_parallelism().map_or(1, usize::from);
        let all = (0..many).map(|_| piece("many")).chain([piece("few")]);
        for done in futures_util::future::join_all(all).await {
            done.unwrap();
        }
        let place = order.lock().unwrap().iter().position(|tenant| *tenant == "few");
        assert!(place.is_some_and(|place| place < many / 2), "{place:?} of {many}");
    }
}
