//! What all pools share: the instances and bytes that may live at once, and who gives way when they are used up. The
//! instance that was idle longest goes first, whatever its plugin and tenant; one that works is never taken. Where too little
//! is idle, a tenant below its share may have some past the limit.
//!
//! Idle instances are taken only where somebody has a place, or memory, by it: a tenant that has more than its share, and
//! whose calls wait for a service that hangs, takes nobody's warm ones for nothing.

use crate::config::SandboxConfig;
use crate::lane::Count;
use crate::per_key::PerKey;
use crate::pool::Pool;
use crate::pools::Pools;
use crate::slots::{Slot, Slots};
use parking_lot::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidegate_fair::{Owner, Places};

/// What a plugin's instances spend their time with, and so which slots they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Computing.
    Compute,
    /// Waiting for what others answer.
    Wait,
}

/// The sandbox-wide bounds.
pub(crate) struct Registry {
    compute: Arc<Slots>,
    wait: Arc<Slots>,
    bytes: Mutex<Places>,
    max_bytes: usize,
    max_age: Duration,
    max_idle: Duration,
    recycle_after: u32,
    pools: Mutex<Vec<Weak<Pools>>>,
    /// Those of plugins that are gone, until the sweep drops them.
    left: Mutex<Vec<Arc<Pools>>>,
    /// The most memory that one instance has had, for each name of plugins that are loaded.
    peaks: PerKey<String, AtomicUsize>,
}

/// An instance without work.
struct Idle {
    since: Instant,
    bytes: usize,
    pool: Arc<Pool>,
}

impl Registry {
    pub(crate) fn new(config: &SandboxConfig) -> Self {
        Self {
            compute: Slots::new(config.total_instances),
            wait: Slots::new(config.total_waiting_instances),
            bytes: Mutex::new(Places::new(config.total_memory_bytes)),
            max_bytes: config.total_memory_bytes,
            max_age: config.max_age,
            max_idle: config.max_idle,
            recycle_after: config.recycle_after_calls,
            pools: Mutex::default(),
            left: Mutex::default(),
            peaks: PerKey::new(AtomicUsize::default),
        }
    }

    /// Makes the idle instances of a new plugin known.
    pub(crate) fn enroll(&self, pools: &Arc<Pools>) {
        self.pools.lock().push(Arc::downgrade(pools));
    }

    /// Leaves the instances of a plugin that is gone to the sweep: whoever had it last may serve connections.
    pub(crate) fn leave(&self, pools: Arc<Pools>) {
        self.left.lock().push(pools);
    }

    /// The most memory that one instance has had of all plugins of that name: one that is loaded anew, or twice, goes on from
    /// there.
    pub(crate) fn peak_of(&self, name: &str) -> Arc<AtomicUsize> {
        self.peaks.of(name.to_owned())
    }

    /// How many instances without work there are.
    pub(crate) fn num_idle(&self, work: Work) -> &Count {
        self.slots(work).idle()
    }

    fn slots(&self, work: Work) -> &Arc<Slots> {
        match work {
            Work::Compute => &self.compute,
            Work::Wait => &self.wait,
        }
    }

    /// The right to one more instance; takes it from the instance that was idle longest, or waits until `until`.
    pub(crate) async fn slot(&self, work: Work, owner: &Owner, until: Instant) -> Option<Slot> {
        let slots = self.slots(work);
        let mut missing = match slots.take_free(owner) {
            Ok(slot) => return Some(slot),
            Err(missing) => missing,
        };
        // Who may have one past the limit takes that of one that is idle first.
        while self.evict_for(work, missing) {
            match slots.take_fair(owner) {
                Ok(slot) => return Some(slot),
                Err(more) => missing = more,
            }
        }
        match slots.take_or_queue(owner) {
            Ok(slot) => Some(slot),
            Err(waiting) => {
                // What became idle since is found by this, and what does from now on by whoever leaves it.
                self.relieve(work);
                tokio::time::timeout_at(until.into(), waiting).await.ok().and_then(Result::ok)
            }
        }
    }

    /// The right to one more instance, where that is free.
    pub(crate) fn free_slot(&self, work: Work, owner: &Owner) -> Option<Slot> {
        self.slots(work).take_free(owner).ok()
    }

    /// Whether others may need what nobody has a use for at this moment.
    pub(crate) fn is_crowded(&self, work: Work) -> bool {
        self.slots(work).is_crowded()
    }

    /// Whether an instance of `owner` that has no work may wait for some.
    pub(crate) fn may_idle(&self, work: Work, owner: &Owner, calls: u32, born: Instant, now: Instant) -> bool {
        !self.is_worn(calls, born, now) && self.slots(work).may_keep(owner)
    }

    /// Whether an instance is replaced for its calls or its age.
    pub(crate) fn is_worn(&self, calls: u32, born: Instant, now: Instant) -> bool {
        calls >= self.recycle_after || now.saturating_duration_since(born) >= self.max_age
    }

    /// Takes places from idle instances for those that wait, as far as that helps one. To be called whenever there may be
    /// more idle ones, or fewer places are held.
    pub(crate) fn relieve(&self, work: Work) {
        let slots = self.slots(work);
        while slots.is_crowded()
            && let Some(missing) = slots.missing_for_waiters()
        {
            if !self.evict_for(work, missing) {
                return;
            }
        }
    }

    /// Books bytes of linear memory and tables: within the limit, for which idle instances go where that is enough; else past
    /// it, as far as `owner` may.
    pub(crate) fn reserve_bytes(&self, owner: &Owner, bytes: usize) -> bool {
        let within = |held: &Places| held.held().saturating_add(bytes) <= self.max_bytes;
        let fair = |held: &Places| held.has_room(owner, bytes);
        if self.book(owner, bytes, within) {
            return true;
        }
        let mut idle = self.idle(|_| true);
        let is_own = |idle: &Idle| idle.pool.share() == owner;
        let sum = |own: bool| idle.iter().filter(|idle| is_own(idle) == own).map(|idle| idle.bytes).sum::<usize>();
        let (own, others) = (sum(true), sum(false));
        let at_work = self.held_bytes().saturating_sub(own + others);
        if at_work.saturating_add(bytes) <= self.max_bytes
            && idle.iter().any(|idle| idle.pool.drop_oldest() && self.book(owner, bytes, within))
        {
            return true;
        }
        if self.book(owner, bytes, fair) {
            return true;
        }
        // Its own first: they count against its share.
        idle.sort_by_key(|idle| !is_own(idle));
        let helps = self.bytes.lock().will_have_room(owner, bytes, own, others);
        helps && idle.iter().any(|idle| idle.pool.drop_oldest() && self.book(owner, bytes, fair))
    }

    fn book(&self, owner: &Owner, bytes: usize, may: impl FnOnce(&Places) -> bool) -> bool {
        let mut held = self.bytes.lock();
        let may = may(&held);
        // Who holds nothing counts for no share.
        if may && bytes > 0 {
            held.take(owner, bytes);
        }
        may
    }

    /// Gives booked bytes back.
    pub(crate) fn release_bytes(&self, owner: &Owner, bytes: usize) {
        self.bytes.lock().give_back(owner, bytes);
    }

    /// Linear memory of all instances.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.lock().held()
    }

    /// Live instances.
    pub(crate) fn live_instances(&self) -> usize {
        self.compute.held() + self.wait.held()
    }

    /// The limit on bytes, for messages.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The limit on instances and its key in a config, for messages.
    pub(crate) fn max_instances(&self, work: Work) -> (&'static str, usize) {
        let key = match work {
            Work::Compute => "plugins.instances",
            Work::Wait => "plugins.waiting_instances",
        };
        (key, self.slots(work).max())
    }

    /// Drops what is idle or old for too long, and forgets pools that nobody uses.
    pub(crate) fn sweep(&self, now: Instant) {
        for pools in self.live_pools() {
            pools.all().iter().for_each(|pool| pool.drop_stale(now, self.max_idle, self.max_age));
            pools.forget_unused();
        }
        self.drop_left();
        // Places of a plugin that is gone came free without a call.
        [Work::Compute, Work::Wait].into_iter().for_each(|work| self.relieve(work));
    }

    /// Drops what plugins have left that are gone.
    pub(crate) fn drop_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        // An answer that ends may have one of the pools for a moment more.
        for pool in left.iter().flat_map(|pools| pools.all()) {
            pool.drop_stale(Instant::now(), Duration::ZERO, Duration::ZERO);
        }
    }

    /// Drops the instance that was idle longest, where as many are idle as are missing. Asked whenever a call ends while others
    /// wait: it looks at no pool in vain.
    fn evict_for(&self, work: Work, missing: usize) -> bool {
        self.num_idle(work).sum() >= missing.max(1)
            && self.idle(|pool| pool.work() == work).iter().any(|idle| idle.pool.drop_oldest())
    }

    /// Instances without work, the one that was idle longest first.
    fn idle(&self, of: impl Fn(&Pool) -> bool) -> Vec<Idle> {
        let pools = self.live_pools().into_iter().flat_map(|pools| pools.all()).filter(|pool| of(pool));
        let idle_in = |pool: Arc<Pool>| {
            let idle = pool.idle().into_iter();
            idle.map(move |(since, bytes)| Idle { since, bytes, pool: Arc::clone(&pool) })
        };
        let mut idle: Vec<Idle> = pools.flat_map(idle_in).collect();
        idle.sort_by_key(|idle| idle.since);
        idle
    }

    fn live_pools(&self) -> Vec<Arc<Pools>> {
        let mut pools = self.pools.lock();
        pools.retain(|pools| pools.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Plugin;
    use crate::plugin::tests::{by, core_of, load, registry};
    use crate::sandbox::Snapshot;
    use crate::slots::share_of;
    use std::pin::pin;
    use std::sync::atomic::Ordering;
    use tidegate_types::{Class, TenantId};

    #[test]
    fn a_plugin_that_is_loaded_again_goes_on_with_its_peak_and_a_new_one_begins() {
        let registry = Registry::new(&SandboxConfig::default());
        let (first, second) = (registry.peak_of("a"), registry.peak_of("a"));
        first.store(5, Ordering::Relaxed);
        drop(first);
        assert_eq!(registry.peak_of("a").load(Ordering::Relaxed), 5);
        drop(second);
        assert_eq!(registry.peak_of("a").load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_instance_is_worn_by_its_calls_or_by_the_time_since_it_was_made() {
        let (born, max_age, tick) = (Instant::now(), Duration::from_secs(600), Duration::from_nanos(1));
        let registry = Registry::new(&SandboxConfig { max_age, recycle_after_calls: 3, ..SandboxConfig::default() });
        for (calls, age, expected) in
            [(0, max_age - tick, false), (0, max_age, true), (2, Duration::ZERO, false), (3, Duration::ZERO, true)]
        {
            assert_eq!(registry.is_worn(calls, born, born + age), expected, "{calls} calls, {age:?} old");
        }
    }

    fn of(tenant: &str) -> Owner {
        share_of(TenantId::new(tenant))
    }

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Leaves `tenant` an idle instance, and says how many bytes that has.
    async fn warm(plugin: &Plugin, tenant: &str) -> usize {
        let pool = plugin.pool(&by(tenant));
        pool.lease(&pool.share().tenant, Class::default(), in_a_minute()).await.unwrap().keep(Instant::now());
        pool.idle()[0].1
    }

    fn is_warm(plugin: &Plugin, tenant: &str) -> bool {
        !plugin.pool(&by(tenant)).is_empty()
    }

    /// Here the sweep, which comes by once a second, stands still.
    #[tokio::test]
    async fn what_a_plugin_leaves_is_dropped_by_the_sweep_and_by_nobody_who_had_it() {
        let plugin = load(2, Snapshot::Never).unwrap();
        warm(&plugin, "a").await;
        let core = core_of(&plugin);
        let locked = core.registry.pools.lock();
        std::thread::sleep(Duration::from_millis(1500));
        drop(plugin);
        let left = core.registry.live_instances();
        drop(locked);
        assert_eq!(left, 1);
        let until = in_a_minute();
        while core.registry.live_instances() > 0 {
            assert!(Instant::now() < until, "it is never dropped");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test]
    async fn nothing_is_left_of_a_sandbox_that_ends_with_its_last_plugin() {
        let plugin = load(2, Snapshot::Never).unwrap();
        warm(&plugin, "a").await;
        let registry = Arc::downgrade(&core_of(&plugin).registry);
        drop(plugin);
        assert!(registry.upgrade().is_none());
    }

    #[tokio::test]
    async fn for_memory_that_nobody_can_have_no_idle_instance_goes() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let registry = registry(&plugin);
        let bytes = warm(&plugin, "other").await;
        let [greedy, new] = ["greedy", "new"].map(of);
        assert!(registry.reserve_bytes(&greedy, registry.max_bytes() - bytes));
        assert!(!registry.reserve_bytes(&greedy, bytes + 1), "it has all there is");
        assert!(registry.reserve_bytes(&new, bytes + 1), "it has its share past the limit");
        assert!(is_warm(&plugin, "other"));
        registry.release_bytes(&new, bytes + 1);
        assert!(registry.reserve_bytes(&greedy, bytes));
        assert!(!is_warm(&plugin, "other"), "that was enough");
    }

    #[tokio::test]
    async fn what_a_tenant_has_idle_does_not_stand_in_its_own_way() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let registry = registry(&plugin);
        let bytes = warm(&plugin, "other").await + warm(&plugin, "own").await;
        let share = registry.max_bytes() / 4;
        assert!(registry.reserve_bytes(&of("greedy"), registry.max_bytes() - bytes));
        assert!(registry.reserve_bytes(&of("new"), share));
        assert!(registry.reserve_bytes(&of("own"), share), "its share, among four");
        assert!(is_warm(&plugin, "other") && !is_warm(&plugin, "own"));
    }

    #[tokio::test]
    async fn where_twice_the_limit_is_held_what_is_idle_gives_way_to_who_has_less_than_its_share() {
        let plugin = load(4, Snapshot::Never).unwrap();
        let registry = registry(&plugin);
        let (max, bytes) = (registry.max_bytes(), warm(&plugin, "other").await);
        for (tenant, amount) in [("greedy", max - bytes), ("a", max / 2), ("b", max / 2)] {
            assert!(registry.reserve_bytes(&of(tenant), amount), "{tenant}");
        }
        assert!(!registry.reserve_bytes(&of("c"), bytes + 1) && is_warm(&plugin, "other"));
        assert!(registry.reserve_bytes(&of("c"), bytes) && !is_warm(&plugin, "other"));
        assert!(!registry.reserve_bytes(&of("d"), 1), "that is the end");
        assert_eq!(registry.held_bytes(), 2 * max);
    }

    #[tokio::test]
    async fn a_call_that_ends_looks_at_no_pool_where_that_helps_nobody() {
        let plugin = load(2, Snapshot::Never).unwrap();
        let (registry, until) = (registry(&plugin), in_a_minute());
        let [greedy, other] = ["greedy", "other"].map(|tenant| plugin.pool(&by(tenant)));
        let [of_greedy, of_other] = [&greedy, &other].map(|pool| &pool.share().tenant);
        let hanging = [
            greedy.lease(of_greedy, Class::default(), until).await.unwrap(),
            greedy.lease(of_greedy, Class::default(), until).await.unwrap(),
        ];
        let call = other.lease(of_other, Class::default(), until).await.unwrap();
        let mut waiting = pin!(registry.slot(Work::Compute, greedy.share(), until));
        assert!(futures_util::poll!(&mut waiting).is_pending(), "two must go before it may have one");
        let locked = registry.pools.lock();
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| call.keep(Instant::now()));
            while !ending.is_finished() && Instant::now() + Duration::from_secs(50) < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let has_ended = ending.is_finished();
            drop(locked);
            assert!(has_ended, "it waits for what it need not know");
        });
        assert!(!other.is_empty());
        drop(hanging);
        let slot = futures_util::poll!(&mut waiting);
        assert!(slot.map(|slot| slot.is_some()).is_ready(), "now it may");
    }
}
