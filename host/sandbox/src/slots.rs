//! The places of live instances, for one kind of work; and of one plugin's requests (`capability/http/places.rs`). A tenant
//! whose plugins wait for a service that hangs would fill them all and so shut out everybody else: past the limit there is
//! still room for a tenant below its share ([`tidegate_fair::places`]). Invariant: nobody waits who could have a place. What
//! instances without work hold is the registry's to take: [`Slots::missing_for_waiters`] says when.

use crate::lane::Count;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_fair::{Owner, Places};
use tidegate_types::{Class, TenantId};
use tokio::sync::oneshot;

/// Whose share it is. Shares are even: who pays for more of the engine has no more need for plugins.
pub(crate) fn share_of(tenant: TenantId) -> Owner {
    Owner { tenant, class: Class::default(), weight: 1 }
}

/// The places, and who waits for one.
pub(crate) struct Slots {
    held: Mutex<Held>,
    max: usize,
    /// Somebody waits, or more places are held than `max`.
    crowded: AtomicBool,
    /// Those of instances without work.
    idle: Count,
}

struct Held {
    places: Places,
    waiters: VecDeque<Waiter>,
}

struct Waiter {
    owner: Owner,
    told: oneshot::Sender<Slot>,
}

/// The right to one live instance, or to one request.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    owner: Owner,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Outside the lock: who has given up drops it here, and so hands it on.
        for (told, slot) in self.slots.hand_on(&self.owner) {
            let _ = told.send(slot);
        }
    }
}

impl Slots {
    pub(crate) fn new(max: u32) -> Arc<Self> {
        let max = max as usize;
        let held = Held { places: Places::new(max), waiters: VecDeque::new() };
        Arc::new(Self { held: Mutex::new(held), max, crowded: AtomicBool::new(false), idle: Count::default() })
    }

    /// The limit; all together may hold twice as much.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Places that are taken.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().places.held()
    }

    /// How many are held by instances without work; whoever gives one to such an instance, or takes it, counts it.
    pub(crate) fn idle(&self) -> &Count {
        &self.idle
    }

    /// Whether others may need what has no work. An instance is counted as idle before this is asked, and a waiter queues
    /// before it looks how many are: one of the two sees the other.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::SeqCst)
    }

    /// A place within the limit; or how many must be given back before `owner` may have one, 0 for who is below its share.
    pub(crate) fn take_free(self: &Arc<Self>, owner: &Owner) -> Result<Slot, usize> {
        let mut held = self.held.lock();
        match held.places.held() < self.max {
            true => Ok(self.take(&mut held, owner.clone())),
            false => Err(held.places.missing(owner, 1)),
        }
    }

    /// As [`Self::take_free`], and past the limit for who is below its share.
    pub(crate) fn take_fair(self: &Arc<Self>, owner: &Owner) -> Result<Slot, usize> {
        let mut held = self.held.lock();
        match held.places.missing(owner, 1) {
            0 => Ok(self.take(&mut held, owner.clone())),
            missing => Err(missing),
        }
    }

    /// As [`Self::take_fair`]; or the end of the queue.
    pub(crate) fn take_or_queue(self: &Arc<Self>, owner: &Owner) -> Result<Slot, oneshot::Receiver<Slot>> {
        let mut held = self.held.lock();
        if held.places.has_room(owner, 1) {
            return Ok(self.take(&mut held, owner.clone()));
        }
        let (told, waiting) = oneshot::channel();
        held.forget_gone();
        held.waiters.push_back(Waiter { owner: owner.clone(), told });
        self.note(&held);
        Err(waiting)
    }

    /// Whether an instance of `owner` without work may keep its place for the next call.
    pub(crate) fn may_keep(&self, owner: &Owner) -> bool {
        !self.is_crowded() || self.held.lock().places.may_keep(owner)
    }

    /// How many places must be given back before the first of those that wait has one; `None` where nobody waits.
    pub(crate) fn missing_for_waiters(&self) -> Option<usize> {
        let mut held = self.held.lock();
        held.forget_gone();
        self.note(&held);
        let mut seen = BTreeSet::new();
        let first_of_each = held.waiters.iter().filter(|waiter| seen.insert(&waiter.owner.tenant));
        first_of_each.map(|waiter| held.places.missing(&waiter.owner, 1)).min()
    }

    fn take(self: &Arc<Self>, held: &mut Held, owner: Owner) -> Slot {
        held.places.take(&owner, 1);
        self.note(held);
        Slot { slots: Arc::clone(self), owner }
    }

    /// Takes a place back and gives away what can be given: mostly that one, but shares grow where a tenant has left.
    fn hand_on(self: &Arc<Self>, owner: &Owner) -> Vec<(oneshot::Sender<Slot>, Slot)> {
        let mut held = self.held.lock();
        held.places.give_back(owner, 1);
        held.forget_gone();
        let mut handed = Vec::new();
        while let Some(Waiter { owner, told }) = held.next_waiter() {
            handed.push((told, self.take(&mut held, owner)));
        }
        self.note(&held);
        handed
    }

    fn note(&self, held: &Held) {
        self.crowded.store(!held.waiters.is_empty() || held.places.held() > self.max, Ordering::SeqCst);
    }
}

impl Held {
    /// Who waits longest of those that may have a place.
    fn next_waiter(&mut self) -> Option<Waiter> {
        let mut full = BTreeSet::new();
        let places = &self.places;
        let may = |waiter: &Waiter| {
            let tenant = &waiter.owner.tenant;
            !full.contains(tenant) && (places.has_room(&waiter.owner, 1) || !full.insert(tenant.clone()))
        };
        let at = self.waiters.iter().position(may)?;
        self.waiters.remove(at)
    }

    fn forget_gone(&mut self) {
        self.waiters.retain(|waiter| !waiter.told.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn of(tenant: &str) -> Owner {
        share_of(TenantId::new(tenant))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(10)
    }

    async fn take_or_wait(slots: &Arc<Slots>, owner: &Owner, until: Instant) -> Option<Slot> {
        match slots.take_or_queue(owner) {
            Ok(slot) => Some(slot),
            Err(waiting) => tokio::time::timeout_at(until.into(), waiting).await.ok().and_then(Result::ok),
        }
    }

    #[track_caller]
    fn take(slots: &Arc<Slots>, tenant: &str) -> Slot {
        slots.take_free(&of(tenant)).unwrap_or_else(|missing| panic!("{missing} are missing"))
    }

    async fn ask(slots: &Arc<Slots>, tenant: &str) -> Option<Slot> {
        take_or_wait(slots, &of(tenant), soon()).await
    }

    #[tokio::test]
    async fn one_tenant_has_all_places_and_never_those_of_others() {
        let slots = Slots::new(4);
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(ask(&slots, "greedy").await.unwrap());
        }
        assert!(ask(&slots, "greedy").await.is_none());
        let others = [ask(&slots, "a").await.unwrap(), ask(&slots, "a").await.unwrap()];
        assert!(ask(&slots, "a").await.is_none(), "its half");
        let _third = ask(&slots, "b").await.unwrap();
        assert!(slots.is_crowded());
        all.pop();
        assert!(ask(&slots, "greedy").await.is_none(), "it has more than its share still");
        drop((all, others));
        assert!(!slots.is_crowded() && slots.held() == 1);
    }

    #[tokio::test]
    async fn what_is_given_back_goes_to_who_waits_longest_and_may_have_it() {
        let slots = Slots::new(2);
        let later = Instant::now() + Duration::from_secs(60);
        let (first, second) = (take(&slots, "a"), take(&slots, "a"));
        let other = [ask(&slots, "b").await.unwrap(), ask(&slots, "c").await.unwrap()];
        let gone = take_or_wait(&slots, &of("d"), soon()).await;
        assert!(gone.is_none(), "twice the limit is the end");
        let (of_a, of_d) = (of("a"), of("d"));
        let waiting = async { tokio::join!(take_or_wait(&slots, &of_a, later), take_or_wait(&slots, &of_d, later)) };
        let give = async {
            tokio::task::yield_now().await;
            drop(first);
            tokio::task::yield_now().await;
            drop((second, other));
        };
        let ((a, d), ()) = tokio::join!(waiting, give);
        assert!(a.is_some() && d.is_some() && slots.held() == 2);
    }

    #[tokio::test]
    async fn who_waits_is_helped_by_what_comes_free_within_the_limit_or_within_its_share() {
        let slots = Slots::new(2);
        let greedy = [take(&slots, "greedy"), take(&slots, "greedy")];
        assert_eq!(slots.missing_for_waiters(), None);
        let waiting = slots.take_or_queue(&of("greedy")).map(drop).unwrap_err();
        assert_eq!((slots.missing_for_waiters(), slots.may_keep(&of("greedy"))), (Some(1), true));
        let other = ask(&slots, "other").await.unwrap();
        assert_eq!((slots.missing_for_waiters(), slots.may_keep(&of("greedy"))), (Some(2), false));
        assert!(slots.may_keep(&of("other")), "what `greedy` waits for is not its to give");
        drop(waiting);
        assert_eq!(slots.missing_for_waiters(), None);
        drop((greedy, other));
        assert!(!slots.is_crowded());
    }

    #[tokio::test]
    async fn a_place_that_nobody_hears_of_is_not_lost() {
        let slots = Slots::new(1);
        let place = take(&slots, "a");
        let of_a = of("a");
        let mut given_up = Box::pin(take_or_wait(&slots, &of_a, Instant::now() + Duration::from_secs(60)));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop(place);
        drop(given_up);
        assert_eq!(slots.held(), 0);
        take(&slots, "b");
    }
}
