//! [`Turns`]: so many at once, and the rest waits by the tenant queue (`tidegate-fair`), where each counts by its cost: however
//! much one tenant asks for, another's is next when a turn is free. Long work has turns ([`in_turn`]), and so do reads and
//! writes of what plugins keep.
//!
//! Classes share one lane: a better class has a larger share and not all there is, so nobody waits without end while who is
//! before it goes on asking. What a tenant asks for in one class does not wait for what it asks for in another.
//!
//! A turn is held until it is dropped, be its request gone long before: so nobody has more of it by going away. Next: `work.rs`.

mod work;

pub use tidegate_fair::Owner;
pub use work::{LONG_WORK, Waiting, beside, in_turn};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_fair::FairQueue;
use tokio::sync::Notify;

/// The turns, and who waits for one. Clones share them.
#[derive(Clone)]
pub struct Turns(Arc<Mutex<Line>>);

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Turns")
    }
}

struct Line {
    num_free: usize,
    queue: FairQueue<Place>,
}

struct Place {
    owner: Owner,
    cost: u64,
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

    /// Waits for a turn, which costs so much in whatever is shared out. Dropping the future gives up the place.
    pub async fn take(&self, owner: &Owner, cost: u64) -> Turn {
        let turn = self.stand(owner.in_one_lane(), cost);
        turn.called.notified().await;
        turn
    }

    fn stand(&self, owner: Owner, cost: u64) -> Turn {
        let called = Arc::new(Notify::new());
        let mut line = self.line();
        line.queue.push(&owner, Place { owner: owner.clone(), cost, called: Arc::clone(&called) });
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
            self.queue.charge(&next.owner, next.cost);
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
    use tidegate_types::{Class, TenantId};

    type Asked = Pin<Box<dyn Future<Output = Turn>>>;

    const STANDARD: Class = Class::Standard;

    fn owner(tenant: &str, class: Class) -> Owner {
        Owner { tenant: TenantId::new(tenant), class, weight: 1 }
    }

    fn take(turns: &Turns, tenant: &str, cost: u64) -> Option<Turn> {
        turns.take(&owner(tenant, STANDARD), cost).now_or_never()
    }

    /// Asks for turns in this order, at these costs.
    fn ask<'t>(turns: &Turns, all: &[(&'t str, Class, u64)]) -> Vec<(&'t str, Option<Asked>)> {
        let asked = |&(tenant, class, cost): &(&'t str, Class, u64)| {
            let (turns, owner) = (turns.clone(), owner(tenant, class));
            let mut asked: Asked = Box::pin(async move { turns.take(&owner, cost).await });
            assert!(asked.as_mut().now_or_never().is_none(), "no turn is free");
            (tenant, Some(asked))
        };
        all.iter().map(asked).collect()
    }

    /// Who gets the turn that is given back.
    fn next<'t>(asked: &mut [(&'t str, Option<Asked>)], running: Turn) -> (&'t str, Turn) {
        drop(running);
        let called: Vec<_> = asked
            .iter_mut()
            .filter_map(|(tenant, asked)| {
                let turn = asked.as_mut()?.as_mut().now_or_never()?;
                *asked = None;
                Some((*tenant, turn))
            })
            .collect();
        let [next] = <[_; 1]>::try_from(called).unwrap_or_else(|all| panic!("{} turns", all.len()));
        next
    }

    /// The order in which they get a turn, when there is one at once.
    fn order<'t>(asked: &mut [(&'t str, Option<Asked>)], first: Turn) -> Vec<&'t str> {
        let (mut order, mut running) = (Vec::new(), first);
        while asked.iter().any(|(_, asked)| asked.is_some()) {
            let (tenant, turn) = next(asked, running);
            order.push(tenant);
            running = turn;
        }
        order
    }

    #[test]
    fn another_tenants_work_does_not_wait_for_all_that_one_has_sent() {
        let turns = Turns::new(1);
        let first = take(&turns, "many", 100).expect("a free turn");
        let mut asked = ask(&turns, &[("many", STANDARD, 100); 5]);
        asked.extend(ask(&turns, &[("few", STANDARD, 100); 2]));
        assert_eq!(order(&mut asked, first), ["many", "few", "many", "few", "many", "many", "many"]);
    }

    #[test]
    fn work_counts_by_its_cost() {
        let turns = Turns::new(1);
        let first = take(&turns, "long", 300).expect("a free turn");
        let mut asked = ask(&turns, &[("long", STANDARD, 300), ("short", STANDARD, 100), ("long", STANDARD, 300)]);
        asked.extend(ask(&turns, &[("short", STANDARD, 100); 4]));
        assert_eq!(order(&mut asked, first), ["long", "short", "short", "short", "long", "short", "short"]);
    }

    #[test]
    fn a_better_class_has_a_larger_share() {
        let turns = Turns::new(1);
        let first = take(&turns, "other", 1).expect("a free turn");
        let mut asked = ask(&turns, &[("batch", Class::Batch, 100); 3]);
        asked.extend(ask(&turns, &[("standard", STANDARD, 100); 6]));
        asked.extend(ask(&turns, &[("interactive", Class::Interactive, 100); 12]));
        let order = order(&mut asked, first);
        // After the first of each, by which nobody has had anything yet.
        let of = |tenant: &str| order[3..10].iter().filter(|next| **next == tenant).count();
        assert_eq!((of("interactive"), of("standard"), of("batch")), (4, 2, 1), "{order:?}");
    }

    #[test]
    fn a_worse_class_has_its_turn_while_a_better_one_goes_on_asking() {
        let turns = Turns::new(1);
        let mut running = take(&turns, "other", 1).expect("a free turn");
        let mut asked = ask(&turns, &[("person", Class::Interactive, 100); 4]);
        asked.extend(ask(&turns, &[("night", Class::Batch, 100)]));
        for before in 0.. {
            let (tenant, turn) = next(&mut asked, running);
            if tenant == "night" {
                break;
            }
            assert!(before < 4, "{before} before it");
            running = turn;
            asked.extend(ask(&turns, &[("person", Class::Interactive, 100)]));
        }
    }

    #[test]
    fn what_a_tenant_asks_for_in_one_class_does_not_wait_for_its_other_classes() {
        let turns = Turns::new(1);
        let first = take(&turns, "other", 1).expect("a free turn");
        let mut asked = ask(&turns, &[("one", Class::Batch, 100); 9]);
        asked.extend(ask(&turns, &[("two", Class::Interactive, 100); 2]));
        asked.extend(ask(&turns, &[("one", Class::Interactive, 100)]).into_iter().map(|(_, asked)| ("person", asked)));
        let place = order(&mut asked, first).iter().position(|tenant| *tenant == "person");
        assert!(place.is_some_and(|place| place < 4), "{place:?}");
    }

    #[test]
    fn who_goes_away_leaves_its_place_or_its_turn_to_the_next() {
        let turns = Turns::new(1);
        let first = take(&turns, "a", 1).expect("a free turn");
        let mut asked = ask(&turns, &[("a", STANDARD, 1), ("b", STANDARD, 1), ("c", STANDARD, 1)]);
        asked[0].1 = None;
        drop(first);
        // Called, and gone before it looked.
        asked[1].1 = None;
        let turn = asked[2].1.take().and_then(FutureExt::now_or_never).expect("its turn");
        drop(turn);
        assert!(take(&turns, "a", 1).is_some());
    }
}
