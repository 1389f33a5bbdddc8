//! Who waits for a place of a pool: a better class has more of the places and not all there are, as turns have it
//! (`tidegate-fair`), so that an interactive call does not wait for all that was sent in batch. Instances that tenants share have one
//! pool: of a class, whose calls had the fewest of its places is next. A tenant's calls in a class go in the order in which they came.

use super::OwnedPlace;
use tidegate_fair::{FairQueue, Owner};
use tidegate_types::{Class, TenantId};
use tokio::sync::oneshot;

/// The queue.
#[derive(Default)]
pub(super) struct Waiters {
    queue: FairQueue<Waiter>,
    /// How many. Mostly none: then nobody looks further.
    num: usize,
}

struct Waiter {
    owner: Owner,
    told: oneshot::Sender<OwnedPlace>,
}

impl Waiters {
    /// Queues a call of `tenant`. Who gave up is passed over in any case; this keeps a queue in which all do so from growing.
    pub(super) fn push(&mut self, tenant: &TenantId, class: Class) -> oneshot::Receiver<OwnedPlace> {
        while let Some(gone) = self.queue.pop_where(|waiter| waiter.told.is_closed()) {
            self.leave(&gone.owner);
        }
        // Shares of tenants in a class are even (`slots.rs`), and classes are worth what they are elsewhere.
        let owner = Owner { tenant: tenant.clone(), class, weight: 1 }.in_one_lane();
        let (told, waiting) = oneshot::channel();
        self.queue.push(&owner, Waiter { owner: owner.clone(), told });
        self.num += 1;
        waiting
    }

    /// Who is next to have a place, which counts at once.
    pub(super) fn pop(&mut self) -> Option<oneshot::Sender<OwnedPlace>> {
        while self.num > 0
            && let Some(Waiter { owner, told }) = self.queue.pop()
        {
            let is_there = !told.is_closed();
            if is_there {
                self.queue.charge(&owner, 1);
            }
            self.leave(&owner);
            if is_there {
                return Some(told);
            }
        }
        None
    }

    /// One has left the queue.
    fn leave(&mut self, owner: &Owner) {
        self.queue.release(owner);
        self.num -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(waiters: &mut Waiters, tenant: &str, class: Class) -> oneshot::Receiver<OwnedPlace> {
        waiters.push(&TenantId::new(tenant), class)
    }

    /// Who has places, in their order, where these wait.
    fn order<'a>(waiting: impl Iterator<Item = (&'a str, Class)>) -> Vec<(&'a str, Class)> {
        let mut waiters = Waiters::default();
        let mut waiting: Vec<_> =
            waiting.map(|(name, class)| ((name, class), push(&mut waiters, name, class))).collect();
        let mut order = Vec::new();
        while let Some(next) = waiters.pop() {
            next.send(OwnedPlace(None)).map_err(drop).unwrap();
            let at = waiting.iter_mut().position(|(_, waiting)| waiting.try_recv().is_ok()).unwrap();
            order.push(waiting.remove(at).0);
        }
        assert_eq!(waiters.num, 0);
        order
    }

    #[test]
    fn a_tenant_does_not_wait_for_all_that_another_has_sent() {
        let tenants = ["many"; 5].into_iter().chain(["few"; 2]);
        let order = order(tenants.map(|tenant| (tenant, Class::Standard)));
        let order: Vec<_> = order.into_iter().map(|(tenant, _)| tenant).collect();
        assert_eq!(order, ["many", "few", "many", "few", "many", "many", "many"]);
    }

    #[test]
    fn a_better_class_does_not_wait_for_all_that_its_tenant_sends_in_a_worse_one() {
        let classes = [Class::Batch; 9].into_iter().chain([Class::Interactive; 4]);
        let order = order(classes.map(|class| ("one", class)));
        let last = order.iter().rposition(|(_, class)| *class == Class::Interactive).unwrap();
        assert!(last <= 5, "{order:?}");
        assert!(order[..=last].contains(&("one", Class::Batch)), "nobody waits without end: {order:?}");
    }

    #[test]
    fn who_has_gone_is_passed_over_and_forgotten() {
        let mut waiters = Waiters::default();
        for _ in 0..100 {
            drop(push(&mut waiters, "a", Class::Standard));
        }
        let mut there = push(&mut waiters, "b", Class::Standard);
        assert!(waiters.num <= 2, "{} wait", waiters.num);
        drop(push(&mut waiters, "b", Class::Standard));
        waiters.pop().unwrap().send(OwnedPlace(None)).map_err(drop).unwrap();
        assert!(there.try_recv().is_ok() && waiters.pop().is_none() && waiters.num == 0);
    }
}
