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
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Idle instances, most recently used last, and the permits that bound the live ones.
pub(crate) struct Pool {
    blueprint: Arc<Blueprint>,
    namespace: Namespace,
    kv: Arc<dyn KvStore>,
    registry: Arc<Registry>,
    clock: Clock,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    instance: Box<Instance>,
    since: Instant,
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
            self.pool.idle.lock().push(Idle { instance: self.instance, since: now });
        }
    }
}

impl Pool {
    pub(crate) fn new(blueprint: Arc<Blueprint>, namespace: Namespace, core: &Core) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(blueprint.max_instances()));
        let (kv, registry) = (core.config.kv.clone(), core.registry.clone());
        let clock = core.ticker.clock().clone();
        let pool = Arc::new(Self { blueprint, namespace, kv, registry, clock, permits, idle: Mutex::default() });
        pool.registry.enroll(&pool);
        pool
    }

    /// An instance for one call: an idle one, or a new one. Waits until `until` for another call to end.
    pub(crate) async fn lease(self: &Arc<Self>, until: Instant) -> Result<Lease, CallError> {
        let permit = self.permit(until).await?;
        let idle = self.idle.lock().pop();
        match idle {
            Some(Idle { instance, .. }) => Ok(Lease { instance, pool: self.clone(), _permit: permit }),
            None => self.new_lease(permit, until).await,
        }
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
