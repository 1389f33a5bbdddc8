//! Who waits for a place of a pool. Instances that tenants share have one pool: whose calls had the fewest of its places is
//! next (`tidegate-fair`), so that nobody waits for all that one tenant has sent. A tenant's calls go in the order in which
//! they came; in a pool of one tenant, that is all.

use super::OwnedPlace;
use crate::slots::share_of;
use tidegate_fair::{FairQueue, Owner};
use tidegate_types::TenantId;
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
    pub(super) fn push(&mut self, tenant: &TenantId) -> oneshot::Receiver<OwnedPlace> {
        while let Some(gone) = self.queue.pop_where(|waiter| waiter.told.is_closed()) {
            self.leave(&gone.owner);
        }
        let owner = share_of(tenant.clone());
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

    fn push(waiters: &mut Waiters, tenant: &str) -> oneshot::Receiver<OwnedPlace> {
        waiters.push(&TenantId::new(tenant))
    }

    #[test]
    fn a_tenant_does_not_wait_for_all_that_another_has_sent() {
        let mut waiters = Waiters::default();
        let tenants = ["many"; 5].into_iter().chain(["few"; 2]);
        let mut waiting: Vec<_> = tenants.map(|tenant| (tenant, push(&mut waiters, tenant))).collect();
        let mut order = Vec::new();
        while let Some(next) = waiters.pop() {
            next.send(OwnedPlace(None)).map_err(drop).unwrap();
            let at = waiting.iter_mut().position(|(_, waiting)| waiting.try_recv().is_ok()).unwrap();
            order.push(waiting.remove(at).0);
        }
        assert_eq!(order, ["many", "few", "many", "few", "many", "many", "many"]);
        assert_eq!(waiters.num, 0);
    }

    #[test]
    fn who_has_gone_is_passed_over_and_forgotten() {
        let mut waiters = Waiters::default();
        for _ in 0..100 {
            drop(push(&mut waiters, "a"));
        }
        let mut there = push(&mut waiters, "b");
        assert!(waiters.num <= 2, "{} wait", waiters.num);
        drop(push(&mut waiters, "b"));
        waiters.pop().unwrap().send(OwnedPlace(None)).map_err(drop).unwrap();
        assert!(there.try_recv().is_ok() && waiters.pop().is_none() && waiters.num == 0);
    }
}
