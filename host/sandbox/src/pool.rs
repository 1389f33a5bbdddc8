//! The instances of one plugin and one owner: a tenant, or a project of one. A call leases an instance; a lease that is dropped without
//! [`Lease::keep`] drops the instance with it, which is what happens after a trap, a deadline or a caller that went
//! away. Invariant: no instance ever serves two owners, nor a call after one that did not end well, or of which nothing may be kept.

use crate::blueprint::Blueprint;
use crate::capability::{KvStore, Namespace};
use crate::instance::Instance;
use crate::registry::{Registry, Work};
use crate::sandbox::Core;
use crate::stage::CallError;
use crate::ticker::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For so long after a call an instance is taken to lie in the caches of the core that it ran on.
const WARM: Duration = Duration::from_millis(2);
/// So many calls take a warm instance from another thread before the pool makes one more: a burst is no reason to hold more
/// memory, traffic on several threads is.
const MOVES: u32 = 64;

/// Idle instances, most recently used last, and the permits that bound the live ones.
pub(crate) struct Pool {
    blueprint: Arc<Blueprint>,
    namespace: Namespace,
    kv: Arc<dyn KvStore>,
    registry: Arc<Registry>,
    clock: Clock,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    /// Calls that took a warm instance from another thread since the last one was made for that.
    moves: AtomicU32,
}

struct Idle {
    instance: Box<Instance>,
    since: Instant,
    /// Where it served its last call.
    thread: Thread,
}

/// A thread, while it lives; one that ends may give its name to another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Thread(usize);

impl Thread {
    /// The one that runs this: cheaper than the standard library's, which counts references.
    fn current() -> Self {
        thread_local!(static PLACE: u8 = const { 0 });
        Self(PLACE.with(|place| std::ptr::from_ref(place).addr()))
    }
}

/// The use of one instance by one call.
pub(crate) struct Lease {
    /// Boxed: it moves between pool and call each time.
    pub(crate) instance: Box<Instance>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    /// Ends a call that went well: the instance may serve the next one.
    pub(crate) fn keep(self) {
        let now = Instant::now();
        if self.pool.registry.may_idle(self.pool.work(), self.instance.calls, self.instance.born, now) {
            let idle = Idle { instance: self.instance, since: now, thread: Thread::current() };
            self.pool.idle.lock().push(idle);
        }
    }
}

impl Pool {
    pub(crate) fn new(blueprint: Arc<Blueprint>, namespace: Namespace, core: &Core) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(blueprint.max_instances()));
        let (kv, registry) = (core.config.kv.clone(), core.registry.clone());
        let clock = core.ticker.clock().clone();
        let pool = Arc::new(Self {
            blueprint,
            namespace,
            kv,
            registry,
            clock,
            permits,
            idle: Mutex::default(),
            moves: AtomicU32::new(0),
        });
        pool.registry.enroll(&pool);
        pool
    }

    /// An instance for one call: an idle one, or a new one. Waits until `until` for another call to end.
    pub(crate) async fn lease(self: &Arc<Self>, now: Instant, until: Instant) -> Result<Lease, CallError> {
        let permit = self.permit(until).await?;
        match self.idle_instance(now) {
            Some(Idle { instance, .. }) => Ok(Lease { instance, pool: self.clone(), _permit: permit }),
            None => self.new_lease(permit, until).await,
        }
    }

    /// The instance that this thread has just used, whose memory is in its core's caches: to fetch that from another core
    /// costs as much as the call. Else the newest that is in nobody's. Where other threads keep all of them busy, now and
    /// then none, so that one is made for this thread.
    fn idle_instance(&self, now: Instant) -> Option<Idle> {
        let here = Thread::current();
        let mut idle = self.idle.lock();
        let is_warm = |idle: &Idle| now.saturating_duration_since(idle.since) < WARM;
        let own = idle.iter().rposition(|idle| idle.thread == here && is_warm(idle));
        if let Some(at) = own.or_else(|| idle.iter().rposition(|idle| !is_warm(idle))) {
            return Some(idle.remove(at));
        }
        // Each permit that is out, this call's included, stands for an instance.
        let has_room = || idle.len() <= self.permits.available_permits() && self.registry.has_room(self.work());
        if !idle.is_empty() && self.moves.fetch_add(1, Ordering::Relaxed) >= MOVES && has_room() {
            self.moves.store(0, Ordering::Relaxed);
            return None;
        }
        idle.pop()
    }

    async fn permit(&self, until: Instant) -> Result<OwnedSemaphorePermit, CallError> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let permit = tokio::time::timeout_at(until.into(), self.permits.clone().acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| self.busy())
    }

    /// Makes an instance. One that is not configured in time is finished in the background and serves the next
    /// call, so that a plugin whose `configure` outlasts a call's limit starts all the same.
    async fn new_lease(self: &Arc<Self>, permit: OwnedSemaphorePermit, until: Instant) -> Result<Lease, CallError> {
        let Some(slot) = self.registry.slot(self.work(), until).await else {
            let (what, limit) = ("instances", self.registry.max_instances(self.work()));
            return Err(CallError::Full { plugin: self.blueprint.name.to_string(), what, limit });
        };
        let state = self.blueprint.serving_state(self.namespace.clone(), self.kv.clone(), self.registry.clone());
        let pool = self.clone();
        let mut making = Box::pin(async move {
            // The caller may be gone before this is done.
            let clock = pool.clock.clone();
            let _running = clock.running();
            let instance = Box::new(Instance::configured(state, Some(slot)).await?);
            Ok(Lease { instance, pool, _permit: permit })
        });
        match tokio::time::timeout_at(until.into(), &mut making).await {
            Ok(made) => made,
            Err(_) => {
                tokio::spawn(async move {
                    match making.await {
                        Ok(lease) => lease.keep(),
                        Err(error) => tracing::warn!(target: "plugin", "{error}"),
                    }
                });
                Err(self.busy())
            }
        }
    }

    fn busy(&self) -> CallError {
        CallError::Busy { plugin: self.blueprint.name.to_string(), instances: self.blueprint.max_instances() }
    }

    /// Which slots its instances take.
    pub(crate) fn work(&self) -> Work {
        self.blueprint.work
    }

    /// Since when the instance that waits longest is idle.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.idle.lock().first().map(|idle| idle.since)
    }

    /// Drops the instance that waits longest.
    pub(crate) fn drop_oldest(&self) -> bool {
        let oldest = {
            let mut idle = self.idle.lock();
            (!idle.is_empty()).then(|| idle.remove(0))
        };
        oldest.is_some()
    }

    /// Drops what is idle or old for too long.
    pub(crate) fn drop_stale(&self, now: Instant, max_idle: Duration, max_age: Duration) {
        let is_stale = |idle: &mut Idle| {
            now.saturating_duration_since(idle.since) >= max_idle
                || now.saturating_duration_since(idle.instance.born) >= max_age
        };
        let stale: Vec<Idle> = self.idle.lock().extract_if(.., is_stale).collect();
        drop(stale);
    }
}
