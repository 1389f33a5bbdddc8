//! Instances that are made while no caller sees to it. What an interpreter takes to start may be more than its callers wait
//! for: when one goes away, the rest of its work is done in a task, and whoever calls next waits for that instance and does
//! not begin with another. The successor of an instance that is replaced for its calls or its age is made so, too.
//!
//! Invariants: of a pool there is one such task at most; it holds a slot and is under the same limits on time as where a call
//! sees to it; it ends with its plugin. It holds no place, as what is idle holds none: no call waits for one because of it.

use super::{Idle, Lease, Place, Places, Pool};
use crate::capability::for_line;
use crate::failure;
use crate::instance::Instance;
use crate::lane::Count;
use crate::slots::Slot;
use crate::stage::CallError;
use crate::state::{HostState, Phase};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Makes an instance, within the limits on that.
type Make = Pin<Box<dyn Future<Output = Result<Box<Instance>, CallError>> + Send>>;

/// The tasks of one plugin. Dropping it ends them.
#[derive(Default)]
pub(crate) struct Makings {
    tasks: Mutex<JoinSet<()>>,
}

/// That an instance is made in a task, and who waits for it.
#[derive(Default)]
pub(super) struct UnderWay(Option<oneshot::Sender<Box<Instance>>>);

/// An instance in the making, for a call. When that goes away a task goes on.
struct Making<'p> {
    pool: &'p Arc<Pool>,
    /// What is left to do.
    make: Option<Make>,
}

/// Of a pool's one task; dropped with it.
struct Turn(Arc<Pool>);

impl Makings {
    fn start(&self, runtime: &Handle, turn: Turn, make: Make) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(see_through(turn, make), runtime);
    }
}

async fn see_through(turn: Turn, make: Make) {
    match make.await {
        Ok(instance) => turn.0.hand_on(instance, Instant::now()),
        Err(error) => {
            let why = error.to_string();
            tracing::warn!("an instance that no call sees to was not made: {}", for_line(&why));
            // Others may wait for what it had.
            turn.0.registry().relieve(turn.0.work());
        }
    }
}

impl Future for Making<'_> {
    type Output = Result<Box<Instance>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Put back only where more is to be done: nobody goes on with what has ended or panicked.
        let Some(mut make) = self.make.take() else { return Poll::Pending };
        let made = make.as_mut().poll(context);
        if made.is_pending() {
            self.make = Some(make);
        }
        made
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if let Some(make) = self.make.take() {
            self.pool.go_on(make);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let under_way = self.0.places.lock().under_way.take();
        // Whoever waits is woken without the lock.
        drop(under_way);
    }
}

impl Pool {
    /// An instance for a call where none is idle, in time of its own ([`Blueprint::configure_wall`]): what an interpreter takes
    /// to start is more than a window of a stream may take.
    ///
    /// [`Blueprint::configure_wall`]: crate::blueprint::Blueprint::configure_wall
    pub(super) async fn new_lease<'p>(
        self: &'p Arc<Self>,
        place: Place<'p>,
        until: Instant,
    ) -> Result<Lease<'p>, CallError> {
        let began = Instant::now();
        let inherited = self.inherit().await;
        let waited = began.elapsed();
        if let Some(instance) = inherited {
            return Ok(Lease { instance, is_late: true, made_in: waited, place });
        }
        let slot = self.registry().slot(self.work(), &self.share, until + waited).await;
        let slot = slot.ok_or_else(|| self.full())?;
        self.lease_of_new(place, slot, waited).await
    }

    /// `waited`: how long of the time for making one is over.
    pub(super) async fn lease_of_new<'p>(
        self: &'p Arc<Self>,
        place: Place<'p>,
        slot: Slot,
        waited: Duration,
    ) -> Result<Lease<'p>, CallError> {
        let began = Instant::now();
        let making = Making { pool: self, make: Some(self.make(slot)) };
        // Of the one time for both.
        let left = self.blueprint.configure_wall().saturating_sub(waited);
        let made = tokio::time::timeout(left, making).await;
        let instance = made.unwrap_or_else(|_| Err(failure::of_slow_start(&self.blueprint)))?;
        Ok(Lease { instance, is_late: true, made_in: waited + began.elapsed(), place })
    }

    fn make(&self, slot: Slot) -> Make {
        let clock = self.blueprint.clock.clone();
        let state = HostState::new(self.blueprint.clone(), self.namespace.clone(), Phase::Serve);
        Box::pin(async move {
            let _running = clock.running();
            Instance::configured(state, Some(slot)).await.map(Box::new)
        })
    }

    /// The instance that is made in a task, where no other call waits for it.
    async fn inherit(&self) -> Option<Box<Instance>> {
        let made = {
            let mut places = self.places.lock();
            // It may have come since the caller looked; nothing is under way then.
            if let Some(idle) = self.pop_idle(&mut places) {
                return Some(idle);
            }
            let UnderWay(heir) = places.under_way.as_mut()?;
            if heir.as_ref().is_some_and(|heir| !heir.is_closed()) {
                return None;
            }
            let (tell, made) = oneshot::channel();
            *heir = Some(tell);
            made
        };
        // The task is under the same limit; this is for one whose runtime stands still.
        let made = tokio::time::timeout(self.blueprint.configure_wall(), made).await;
        // Who came when it was made already finds it there.
        made.ok().and_then(Result::ok).or_else(|| self.pop_idle(&mut self.places.lock()))
    }

    /// Has an instance made by a task, unless there is one, or others wait for what it takes.
    fn go_on(self: &Arc<Self>, make: Make) {
        // Without a runtime the program is at its end, and without its plugin nobody calls again.
        let (Ok(runtime), Some(makings)) = (Handle::try_current(), self.makings.upgrade()) else { return };
        if !self.registry().is_crowded(self.work())
            && let Some(turn) = self.turn()
        {
            makings.start(&runtime, turn, make);
        } else {
            drop(make);
            self.registry().relieve(self.work());
        }
    }

    fn turn(self: &Arc<Self>) -> Option<Turn> {
        let mut places = self.places.lock();
        let is_first = places.under_way.is_none();
        is_first.then(|| {
            places.under_way = Some(UnderWay::default());
            Turn(Arc::clone(self))
        })
    }

    /// Gives an instance to whoever waits for it; else it is idle.
    fn hand_on(self: &Arc<Self>, instance: Box<Instance>, now: Instant) {
        let heir = self.places.lock().under_way.as_mut().and_then(|under_way| under_way.0.take());
        let unheard = match heir {
            Some(heir) => heir.send(instance).err(),
            None => Some(instance),
        };
        if let Some(idle) = unheard.and_then(|instance| self.may_idle(instance, now)) {
            let unplaced = self.places.lock().keep(idle, self.num_idle());
            drop(unplaced);
        }
        // Others may wait for what is idle now.
        self.registry().relieve(self.work());
    }

    /// Makes an instance for the next call, where that would find none and nobody else needs what it takes.
    pub(super) fn make_successor(self: &Arc<Self>) {
        if self.has_use_for_another()
            && let Some(slot) = self.registry().free_slot(self.work(), &self.share)
        {
            self.go_on(self.make(slot));
        }
    }

    fn has_use_for_another(&self) -> bool {
        let places = self.places.lock();
        places.idle.is_empty() && places.free > 0 && places.under_way.is_none()
    }
}

impl Places {
    /// Keeps an instance that no call has had; gives it back where calls could not have as many at once.
    fn keep(&mut self, idle: Idle, num_idle: &Count) -> Option<Idle> {
        if self.idle.len() >= self.free {
            return Some(idle);
        }
        self.idle.push(idle);
        num_idle.add(1);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Plugin;
    use crate::plugin::tests::{by, load, registry};
    use crate::registry::Work;
    use crate::sandbox::Snapshot;
    use std::pin::pin;
    use std::time::Duration;
    use tidegate_types::Class;

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// What a caller leaves that goes away: it is made once `gate` opens. Also what is dropped with it.
    fn leave(plugin: &Plugin, gate: oneshot::Receiver<()>) -> Arc<()> {
        let (pool, alive) = (plugin.pool(&by("a")), Arc::new(()));
        let slot = registry(plugin).free_slot(Work::Compute, pool.share()).unwrap();
        let (make, held) = (pool.make(slot), Arc::clone(&alive));
        let make = Box::pin(async move {
            let _held = held;
            let _ = gate.await;
            make.await
        });
        drop(Making { pool: &pool, make: Some(make) });
        alive
    }

    async fn is_gone(alive: Arc<()>) {
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_a_caller_leaves_is_made_for_the_next_one() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let (open, gate) = oneshot::channel();
        let _alive = leave(&plugin, gate);
        let pool = plugin.pool(&by("a"));
        let mut next = pin!(pool.lease(&pool.share.tenant, Class::default(), in_a_minute()));
        assert!(futures_util::poll!(&mut next).is_pending(), "it waits for the same");
        let other = pool.lease(&pool.share.tenant, Class::default(), in_a_minute()).await.unwrap();
        assert_eq!(registry(&plugin).live_instances(), 2, "a second one has its own made");
        open.send(()).unwrap();
        let lease = next.await.unwrap();
        assert_eq!(registry(&plugin).live_instances(), 2);
        lease.keep(Instant::now());
        other.keep(Instant::now());
        assert_eq!(pool.places.lock().free, plugin.max_instances());
    }

    #[tokio::test]
    async fn what_nobody_comes_for_is_idle_and_one_at_a_time_is_made_so() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let (open, gate) = oneshot::channel();
        let alive = leave(&plugin, gate);
        assert_eq!(Arc::strong_count(&leave(&plugin, oneshot::channel().1)), 1, "the second is dropped");
        open.send(()).unwrap();
        is_gone(alive).await;
        let pool = plugin.pool(&by("a"));
        assert_eq!((pool.idle().len(), pool.places.lock().free), (1, plugin.max_instances()));
        let (_open, gate) = oneshot::channel();
        assert!(pool.drop_oldest());
        assert_eq!(Arc::strong_count(&leave(&plugin, gate)), 2, "that one is over");
    }

    #[tokio::test]
    async fn it_ends_with_its_plugin() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let (_open, gate) = oneshot::channel();
        let alive = leave(&plugin, gate);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&alive), 2, "it goes on");
        drop(plugin);
        is_gone(alive).await;
    }

    #[tokio::test]
    async fn it_does_not_go_on_while_others_wait_for_what_it_has() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let (pool, other) = (plugin.pool(&by("a")), plugin.pool(&by("b")));
        let slot = registry(&plugin).free_slot(Work::Compute, pool.share()).unwrap();
        let past = registry(&plugin).slot(Work::Compute, other.share(), in_a_minute()).await;
        assert!(past.is_some(), "it has its share past the limit");
        drop(Making { pool: &pool, make: Some(pool.make(slot)) });
        assert_eq!(registry(&plugin).live_instances(), 1, "what is past the limit is given back");
    }

    #[tokio::test]
    async fn a_call_never_waits_for_the_place_of_what_no_call_sees_to() {
        let plugin = load(8, Snapshot::Never).unwrap();
        let (open, gate) = oneshot::channel();
        let alive = leave(&plugin, gate);
        let pool = plugin.pool(&by("a"));
        let most = plugin.max_instances();
        let mut calls: Vec<_> =
            (0..most).map(|_| Box::pin(pool.lease(&pool.share.tenant, Class::default(), in_a_minute()))).collect();
        let mut leases = Vec::new();
        for call in calls.split_off(1) {
            assert!(futures_util::poll!(calls[0].as_mut()).is_pending());
            leases.push(call.await.unwrap());
        }
        assert_eq!(pool.places.lock().free, 0);
        drop(calls);
        leases.into_iter().for_each(|lease| lease.keep(Instant::now()));
        open.send(()).unwrap();
        is_gone(alive).await;
        assert_eq!(pool.idle().len(), most);
    }

    #[tokio::test]
    async fn what_calls_could_not_have_at_once_is_dropped() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let (open, gate) = oneshot::channel();
        let alive = leave(&plugin, gate);
        let pool = plugin.pool(&by("a"));
        pool.places.lock().free = 0;
        open.send(()).unwrap();
        is_gone(alive).await;
        tokio::task::yield_now().await;
        assert_eq!((pool.idle().len(), registry(&plugin).live_instances()), (0, 0));
    }
}
