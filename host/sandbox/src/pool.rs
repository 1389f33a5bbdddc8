//! The instances of one plugin and one owner: a tenant, or a project of one. A call leases an instance; a lease that is dropped without
//! [`Lease::keep`] drops the instance with it, which is what happens after a trap, a deadline or a caller that went
//! away; [`Lease::renew`] puts another in its place. Invariant: no instance ever serves two owners, nor a call after one that did not end well, or of which nothing may be kept.
//!
//! A call takes its place and its instance under one lock, and leaves both under one. Places are given in the order in which
//! a tenant has asked for them in a class, to a better class more often, and where tenants share a pool to each in its turn
//! (`pool/waiters.rs`): what a call leaves goes to whoever is next, and is free for all only where nobody waits. What is made while no call sees to it is in `pool/making.rs`.

mod making;
mod waiters;

pub(crate) use making::Makings;

use crate::blueprint::Blueprint;
use crate::capability::Namespace;
use crate::detour::Detour;
use crate::instance::Instance;
use crate::lane::{Count, lane};
use crate::registry::{Registry, Work};
use crate::slots::share_of;
use crate::stage::CallError;
use making::UnderWay;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidegate_fair::Owner;
use tidegate_types::{Class, TenantId};
use tokio::sync::oneshot;
use waiters::Waiters;

/// Idle instances, and the places that bound the live ones.
pub(crate) struct Pool {
    blueprint: Arc<Blueprint>,
    namespace: Namespace,
    /// Whose share of all places and memory its instances are.
    share: Owner,
    makings: Weak<Makings>,
    places: Mutex<Places>,
    /// Calls that are entered on fibers, whatever they could be.
    pub(crate) on_fibers: Detour,
    /// Windows and prompts about which the guard is asked in full, whatever it has to say at a glance.
    pub(crate) in_full: Detour,
}

struct Places {
    /// Instances without work, most recently used last. They hold no place.
    idle: Vec<Idle>,
    /// Places that nobody holds: none while somebody waits.
    free: usize,
    waiters: Waiters,
    /// When a call began or ended that was answered, whatever became of its instance.
    answered: Option<Instant>,
    /// Whether an instance is made that no call sees to.
    under_way: Option<UnderWay>,
}

struct Idle {
    instance: Box<Instance>,
    since: Instant,
    /// The thread that used it last.
    lane: u32,
}

/// The right to one live instance, of a call.
struct Place<'p>(&'p Arc<Pool>);

/// The same between calls: on its way to whoever waits. `None` once it is a [`Place`] or was given back.
struct OwnedPlace(Option<Arc<Pool>>);

/// A place, with an instance where one is idle.
type Taken<'p> = (Place<'p>, Option<Box<Instance>>);

/// The use of one instance by one call.
pub(crate) struct Lease<'p> {
    /// Boxed: it moves between pool and call each time. Dropped before its place is another's.
    pub(crate) instance: Box<Instance>,
    /// It was waited for or made: time has passed.
    pub(crate) is_late: bool,
    /// How long it was made, which is no time of the call's.
    pub(crate) made_in: Duration,
    place: Place<'p>,
}

impl<'p> Lease<'p> {
    /// Ends a call that went well, at `now`: the instance may serve the next one.
    pub(crate) fn keep(self, now: Instant) {
        let Self { instance, place, .. } = self;
        let pool = place.0;
        let is_worn = pool.registry().is_worn(instance.calls, instance.born, now);
        let kept = pool.may_idle(instance, now);
        std::mem::forget(place);
        pool.give_back(Some(now), kept);
        if is_worn {
            pool.make_successor();
        }
    }

    /// In the same place, and with the same slot, an instance that knows nothing of what the one that is here did.
    pub(crate) async fn renew(self) -> Result<Self, CallError> {
        let Self { instance, made_in, place, .. } = self;
        let pool = place.0;
        let slot = instance.into_slot().ok_or_else(|| pool.full())?;
        let idle = pool.pop_idle(&mut pool.places.lock());
        if let Some(instance) = idle {
            drop(slot);
            pool.registry().relieve(pool.work());
            return Ok(Self { instance, is_late: true, made_in, place });
        }
        let lease = pool.lease_of_new(place, slot, Duration::ZERO).await?;
        Ok(Self { made_in: made_in + lease.made_in, ..lease })
    }

    pub(crate) fn pool(&self) -> &'p Pool {
        self.place.0
    }

    /// As [`Self::keep`], where the instance may serve nobody else.
    pub(crate) fn end(self, now: Instant) {
        let Self { instance, place, .. } = self;
        drop(instance);
        let pool = place.0;
        std::mem::forget(place);
        pool.give_back(Some(now), None);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.give_back(None, None);
    }
}

impl Drop for OwnedPlace {
    fn drop(&mut self) {
        if let Some(pool) = self.0.take() {
            pool.give_back(None, None);
        }
    }
}

impl OwnedPlace {
    /// For a call of its pool.
    fn lend(mut self, pool: &Arc<Pool>) -> Place<'_> {
        debug_assert!(self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, pool)), "a place of another pool");
        self.0 = None;
        Place(pool)
    }
}

impl Places {
    /// The instance that this thread used last, which has the best chance to be in its caches; else the one that was used
    /// last by any.
    fn pop_idle(&mut self) -> Option<Box<Instance>> {
        let own = lane();
        let at = self.idle.iter().rposition(|idle| idle.lane == own).or(self.idle.len().checked_sub(1))?;
        Some(self.idle.remove(at).instance)
    }
}

impl Pool {
    pub(crate) fn new(blueprint: Arc<Blueprint>, namespace: Namespace, makings: &Arc<Makings>) -> Arc<Self> {
        let free = blueprint.max_instances();
        let places = Places { idle: Vec::new(), free, waiters: Waiters::default(), answered: None, under_way: None };
        let share = share_of(namespace.share.clone());
        let (makings, places) = (Arc::downgrade(makings), Mutex::new(places));
        let (on_fibers, in_full) = Default::default();
        Arc::new(Self { blueprint, namespace, share, makings, places, on_fibers, in_full })
    }

    /// Whether it has the instances of this plugin that serve `owner`.
    pub(crate) fn serves(&self, blueprint: &Arc<Blueprint>, owner: &TenantId) -> bool {
        Arc::ptr_eq(&self.blueprint, blueprint) && self.namespace.owner == *owner
    }

    /// An instance for one call of `tenant`: an idle one, or a new one. Waits until `until` for another call to end.
    pub(crate) async fn lease<'p>(
        self: &'p Arc<Self>,
        tenant: &TenantId,
        class: Class,
        until: Instant,
    ) -> Result<Lease<'p>, CallError> {
        let (place, idle, is_late) = match self.take(tenant, class) {
            Ok((place, idle)) => (place, idle, false),
            Err(waiting) => {
                let handed = tokio::time::timeout_at(until.into(), waiting).await;
                let place = handed.ok().and_then(Result::ok).ok_or_else(|| self.busy())?.lend(self);
                let idle = self.pop_idle(&mut self.places.lock());
                (place, idle, true)
            }
        };
        match idle {
            Some(instance) => Ok(Lease { instance, is_late, made_in: Duration::ZERO, place }),
            None => Box::pin(self.new_lease(place, until)).await,
        }
    }

    /// An idle instance, where there is a place for a call.
    pub(crate) fn lease_idle<'p>(self: &'p Arc<Self>) -> Option<Lease<'p>> {
        let mut places = self.places.lock();
        let left = places.free.checked_sub(1)?;
        let instance = self.pop_idle(&mut places)?;
        places.free = left;
        Some(Lease { instance, is_late: false, made_in: Duration::ZERO, place: Place(self) })
    }

    /// A place, with an instance where one is idle; or the end of a queue.
    fn take<'p>(
        self: &'p Arc<Self>,
        tenant: &TenantId,
        class: Class,
    ) -> Result<Taken<'p>, oneshot::Receiver<OwnedPlace>> {
        let mut places = self.places.lock();
        if let Some(left) = places.free.checked_sub(1) {
            places.free = left;
            let idle = self.pop_idle(&mut places);
            return Ok((Place(self), idle));
        }
        Err(places.waiters.push(tenant, class))
    }

    fn pop_idle(&self, places: &mut Places) -> Option<Box<Instance>> {
        let instance = places.pop_idle()?;
        self.num_idle().subtract(1);
        Some(instance)
    }

    /// Leaves a place, and the instance where it may serve another call, to whoever is next. `answered` where its call was.
    fn give_back(self: &Arc<Self>, answered: Option<Instant>, mut kept: Option<Idle>) {
        // Handed on without the lock: who has given up drops it, and who is woken may do anything.
        while let Some(waiter) = self.next_waiter(answered, kept.take()) {
            match waiter.send(OwnedPlace(Some(Arc::clone(self)))) {
                Ok(()) => break,
                Err(mut unheard) => unheard.0 = None,
            }
        }
        // Others may wait for what is idle now; whether they do was not known for sure before.
        self.registry().relieve(self.work());
    }

    /// Who is next to have a place; where nobody waits, the place is free.
    fn next_waiter(&self, answered: Option<Instant>, kept: Option<Idle>) -> Option<oneshot::Sender<OwnedPlace>> {
        let mut places = self.places.lock();
        places.answered = answered.or(places.answered);
        if let Some(kept) = kept {
            places.idle.push(kept);
            self.num_idle().add(1);
        }
        let next = places.waiters.pop();
        places.free += usize::from(next.is_none());
        next
    }

    /// An instance that may wait for the next call; another is dropped here.
    fn may_idle(&self, instance: Box<Instance>, now: Instant) -> Option<Idle> {
        let may = self.registry().may_idle(self.work(), &self.share, instance.calls, instance.born, now);
        may.then(|| Idle { instance, since: now, lane: lane() })
    }

    fn full(&self) -> CallError {
        let (key, limit) = self.registry().max_instances(self.work());
        CallError::Full { plugin: self.blueprint.name.to_string(), what: "instances", key, limit }
    }

    /// Whether another call was answered since then.
    pub(crate) fn has_answered_since(&self, then: Instant) -> bool {
        self.places.lock().answered.is_some_and(|answered| answered >= then)
    }

    /// What a call is told that waited for others and then had too little time.
    pub(crate) fn busy(&self) -> CallError {
        CallError::Busy { plugin: self.blueprint.name.to_string(), instances: self.blueprint.max_instances() }
    }

    fn registry(&self) -> &Registry {
        &self.blueprint.registry
    }

    /// Which slots its instances take.
    pub(crate) fn work(&self) -> Work {
        self.blueprint.work
    }

    /// Whose share its instances are of.
    pub(crate) fn share(&self) -> &Owner {
        &self.share
    }

    /// Since when each of its instances without work is idle, and its bytes.
    pub(crate) fn idle(&self) -> Vec<(Instant, usize)> {
        let bytes = |idle: &Idle| idle.instance.store.data().memory.held();
        self.places.lock().idle.iter().map(|idle| (idle.since, bytes(idle))).collect()
    }

    /// What there is to say of the instance that was used last, where one is without work.
    #[cfg(test)]
    pub(crate) fn last_idle<T>(&self, said: impl FnOnce(&Instance) -> T) -> Option<T> {
        self.places.lock().idle.last().map(|idle| said(&idle.instance))
    }

    /// Whether it has no instance without work.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.lock().idle.is_empty()
    }

    /// How many there are in all pools of the same work. Changed under this one's lock, and so right whenever that is free.
    fn num_idle(&self) -> &Count {
        self.registry().num_idle(self.work())
    }

    /// Drops the instance that waits longest.
    pub(crate) fn drop_oldest(&self) -> bool {
        let oldest = {
            let mut places = self.places.lock();
            (!places.idle.is_empty()).then(|| {
                self.num_idle().subtract(1);
                places.idle.remove(0)
            })
        };
        oldest.is_some()
    }

    /// Drops what is idle or old for too long.
    pub(crate) fn drop_stale(&self, now: Instant, max_idle: Duration, max_age: Duration) {
        let is_stale = |idle: &mut Idle| {
            now.saturating_duration_since(idle.since) >= max_idle
                || now.saturating_duration_since(idle.instance.born) >= max_age
        };
        let mut places = self.places.lock();
        let stale: Vec<Idle> = places.idle.extract_if(.., is_stale).collect();
        self.num_idle().subtract(stale.len());
        // What an instance holds is given back without the lock.
        drop(places);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = self.places.get_mut().idle.len();
        self.num_idle().subtract(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SandboxConfig;
    use crate::plugin::tests::{by, load};
    use crate::sandbox::Snapshot;
    use crate::stage::Prompt;
    use std::pin::pin;
    use tidegate_types::{Message, Role};

    /// In the order in which neither the call nor the waiter has seen the other before.
    #[tokio::test]
    async fn who_queues_while_a_call_ends_has_what_that_leaves() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let pool = plugin.pool(&by("a"));
        let Lease { instance, place, .. } = pool.lease(&pool.share.tenant, Class::default(), until).await.unwrap();
        let kept = pool.may_idle(instance, Instant::now());
        assert!(kept.is_some(), "nobody waits");
        let mut waiting = pin!(pool.registry().slot(Work::Compute, &pool.share, until));
        assert!(futures_util::poll!(&mut waiting).is_pending(), "its tenant has all there are");
        std::mem::forget(place);
        pool.give_back(None, kept);
        let slot = futures_util::poll!(&mut waiting);
        assert!(slot.map(|slot| slot.is_some()).is_ready(), "it waits for an instance that nobody uses");
    }

    #[tokio::test]
    async fn a_lease_is_renewed_with_what_is_idle_or_else_with_what_is_made_and_in_its_one_slot() {
        let plugin = load(2, Snapshot::Never).unwrap();
        let (pool, until) = (plugin.pool(&by("a")), Instant::now() + Duration::from_secs(60));
        let lease = async || pool.lease(&pool.share.tenant, Class::default(), until).await.unwrap();
        let (first, second) = (lease().await, lease().await);
        let (used, kept) = (first.instance.born, second.instance.born);
        second.keep(Instant::now());
        let renewed = first.renew().await.unwrap();
        assert_eq!((renewed.instance.born, renewed.is_late), (kept, true));
        assert_eq!((pool.is_empty(), pool.registry().live_instances()), (true, 1));
        let made_in = renewed.made_in;
        let renewed = renewed.renew().await.unwrap();
        assert!(renewed.instance.born > kept && kept > used && renewed.made_in > made_in, "it was made");
        assert_eq!((pool.is_empty(), pool.registry().live_instances()), (true, 1));
        let other = lease().await;
        assert_eq!(pool.registry().live_instances(), 2, "there is room for as many as before");
        drop((renewed, other));
        assert_eq!(pool.places.lock().free, plugin.max_instances());
    }

    /// It is used again and again, and so never idle for as long as would end it.
    #[tokio::test]
    async fn however_lately_an_instance_was_used_its_age_is_since_it_was_made() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let (pool, until) = (plugin.pool(&by("a")), Instant::now() + Duration::from_secs(60));
        let (config, tick) = (SandboxConfig::default(), Duration::from_nanos(1));
        let lease = pool.lease(&pool.share.tenant, Class::default(), until).await.unwrap();
        let born = lease.instance.born;
        let (used, old) = (born + config.max_age - config.max_idle / 2, born + config.max_age);
        lease.keep(used);
        pool.registry().sweep(old - tick);
        let lease = pool.lease(&pool.share.tenant, Class::default(), until).await.unwrap();
        assert_eq!(lease.instance.born, born, "it was there");
        lease.keep(used);
        pool.registry().sweep(old);
        assert!(pool.is_empty());
        let Lease { instance, place, .. } = pool.lease(&pool.share.tenant, Class::default(), until).await.unwrap();
        let old = instance.born + config.max_age;
        assert!(pool.may_idle(instance, old).is_none(), "nor does it wait for another call");
        drop(place);
    }

    /// Here the sweep, which comes by once a second, stands still at another tenant's pool.
    #[test]
    fn a_loop_ends_however_long_it_takes_to_drop_idle_instances() {
        let plugin = load(2, Snapshot::Never).unwrap();
        let other = plugin.pool(&by("other"));
        let held = other.places.lock();
        std::thread::sleep(Duration::from_millis(1500));
        let messages = [Message::text("m0", Role::User, "loop")];
        let prompt = Prompt { messages: &messages, tools: &[], params: &[] };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let looped = runtime.block_on(plugin.inspect_prompt(&by("a"), prompt));
        assert!(matches!(looped, Err(CallError::Deadline { clock: "cpu", .. })), "{looped:?}");
        drop(held);
    }
}
