//! [`Turns`] for long work on a request's text: reading a large body, laying out and encoding a long prompt. At once there is
//! as much of it as there are cores, and the rest waits by the tenant queue (`tidegate-fair`), where work counts by its bytes:
//! however much one tenant sends, another's is next when a turn is free.
//!
//! A turn is held until the work has ended, be its request gone long before: so nobody has more of it by going away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use tidegate_fair::{FairQueue, Owner};
use tidegate_types::Caller;
use tokio::sync::Notify;

/// The turns, and who waits for one. Clones share them.
#[derive(Clone)]
pub struct Turns(Arc<Mutex<Line>>);

struct Line {
    num_free: usize,
    queue: FairQueue<Waiting>,
}

struct Waiting {
    owner: Owner,
    num_bytes: u64,
    called: Arc<Notify>,
}

/// A turn, or the place of one who waits for it; dropping it gives up what it is.
pub struct Turn {
    turns: Turns,
    owner: Owner,
    /// Tells it from others that wait.
    called: Arc<Notify>,
}

impl Turns {
    /// So many at once.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Line { num_free: most, queue: FairQueue::new() })))
    }

    /// As many at once as there are cores.
    pub fn of_cores() -> Self {
        Self::new(available_parallelism().map_or(1, usize::from))
    }

    /// Waits for a turn for the caller's work on so many bytes. Dropping the future gives up the place.
    pub async fn take(&self, caller: &Caller, num_bytes: usize) -> Turn {
        let turn = self.stand(Owner::of(caller), num_bytes as u64);
        turn.called.notified().await;
        turn
    }

    fn stand(&self, owner: Owner, num_bytes: u64) -> Turn {
        let called = Arc::new(Notify::new());
        let mut line = self.line();
        line.queue.push(&owner, Waiting { owner: owner.clone(), num_bytes, called: Arc::clone(&called) });
        line.call();
        Turn { turns: self.clone(), owner, called }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Gives the free turns to who is next. What that costs is charged at once, so that the next one is of another tenant.
    fn call(&mut self) {
        while self.num_free > 0
            && let Some(next) = self.queue.pop()
        {
            self.num_free -= 1;
            self.queue.charge(&next.owner, next.num_bytes);
            next.called.notify_one();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.turns.line();
        let waited = line.queue.remove(&self.owner, |waiting| Arc::ptr_eq(&waiting.called, &self.called));
        if waited.is_none() {
            line.queue.release(&self.owner);
            line.num_free += 1;
            line.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;
    use std::pin::Pin;
    use tidegate_types::TenantId;

    type Asked = Pin<Box<dyn Future<Output = Turn>>>;

    fn caller(tenant: &str) -> Caller {
        Caller { tenant: TenantId::new(tenant), ..Caller::local() }
    }

    /// Asks for turns in this order, for as many bytes.
    fn ask(turns: &Turns, tenants: &[(&'static str, usize)]) -> Vec<(&'static str, Option<Asked>)> {
        let asked = |(tenant, num_bytes): &(&'static str, usize)| {
            let (turns, tenant, num_bytes) = (turns.clone(), *tenant, *num_bytes);
            let mut asked: Asked = Box::pin(async move { turns.take(&caller(tenant), num_bytes).await });
            assert!(asked.as_mut().now_or_never().is_none(), "no turn is free");
            (tenant, Some(asked))
        };
        tenants.iter().map(asked).collect()
    }

    /// The order in which they get a turn, when there is one at once.
    fn order(asked: &mut [(&'static str, Option<Asked>)], first: Turn) -> Vec<&'static str> {
        let (mut order, mut running) = (Vec::new(), first);
        while asked.iter().any(|(_, asked)| asked.is_some()) {
            drop(running);
            let called: Vec<_> = asked
                .iter_mut()
                .filter_map(|(tenant, asked)| {
                    let turn = asked.as_mut()?.as_mut().now_or_never()?;
                    *asked = None;
                    Some((*tenant, turn))
                })
                .collect();
            let [(tenant, turn)] = <[_; 1]>::try_from(called).unwrap_or_else(|all| panic!("{} turns", all.len()));
            order.push(tenant);
            running = turn;
        }
        order
    }

    #[test]
    fn another_tenants_work_does_not_wait_for_all_that_one_has_sent() {
        let turns = Turns::new(1);
        let first = turns.take(&caller("many"), 100).now_or_never().expect("a free turn");
        let mut asked = ask(&turns, &[("many", 100); 5]);
        asked.extend(ask(&turns, &[("few", 100), ("few", 100)]));
        assert_eq!(order(&mut asked, first), ["many", "few", "many", "few", "many", "many", "many"]);
    }

    #[test]
    fn work_counts_by_its_bytes() {
        let turns = Turns::new(1);
        let first = turns.take(&caller("long"), 300).now_or_never().expect("a free turn");
        let mut asked = ask(&turns, &[("long", 300), ("short", 100), ("long", 300)]);
        asked.extend(ask(&turns, &[("short", 100); 4]));
        assert_eq!(order(&mut asked, first), ["long", "short", "short", "short", "long", "short", "short"]);
    }

    #[test]
    fn who_goes_away_leaves_its_place_or_its_turn_to_the_next() {
        let turns = Turns::new(1);
        let first = turns.take(&caller("a"), 1).now_or_never().expect("a free turn");
        let mut asked = ask(&turns, &[("a", 1), ("b", 1), ("c", 1)]);
        asked[0].1 = None;
        drop(first);
        // Called, and gone before it looked.
        asked[1].1 = None;
        let turn = asked[2].1.take().and_then(FutureExt::now_or_never).expect("its turn");
        drop(turn);
        assert!(turns.take(&caller("a"), 1).now_or_never().is_some());
    }
}
