//! The logs that can be found, and what gives way where they are too many or hold too much.

use crate::log::Log;
use crate::memory::{Holding, Memory};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidegate_types::TenantId;

/// Logs are swept at most this often: it looks at each of them.
const SWEEP: Duration = Duration::from_secs(1);

/// The logs by their names.
pub(crate) struct Kept {
    pub(crate) logs: HashMap<String, Arc<Log>>,
    /// Of tenants that have logs, those without a name too.
    holdings: HashMap<TenantId, Weak<Holding>>,
    memory: Arc<Memory>,
    /// How long an ended log can still be read.
    keep: Duration,
    swept: Instant,
}

/// Logs of one tenant that have ended, in that order.
struct Ended {
    holding: Arc<Holding>,
    logs: BTreeSet<(Instant, String)>,
}

impl Kept {
    pub(crate) fn new(memory: Arc<Memory>, keep: Duration) -> Self {
        Self { logs: HashMap::new(), holdings: HashMap::new(), memory, keep, swept: Instant::now() }
    }

    /// The log of this name, unless it ended too long ago.
    pub(crate) fn get(&self, id: &str, now: Instant) -> Option<Arc<Log>> {
        self.logs.get(id).filter(|log| !self.is_over(log, now)).cloned()
    }

    fn is_over(&self, log: &Log, now: Instant) -> bool {
        log.is_void() || log.ended_at().is_some_and(|ended| now.saturating_duration_since(ended) >= self.keep)
    }

    /// Drops what ended long ago; and, while all together hold too much, what ended first of whoever holds the most.
    pub(crate) fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept) < SWEEP && !self.memory.is_full() {
            return;
        }
        self.swept = now;
        let over: Vec<String> =
            self.logs.iter().filter(|(_, log)| self.is_over(log, now)).map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| self.forget(id));
        self.holdings.retain(|_, holding| holding.strong_count() > 0);
        if self.memory.is_full() {
            self.make_room();
        }
    }

    /// What the tenant's logs hold.
    pub(crate) fn holding(&mut self, tenant: &TenantId) -> Arc<Holding> {
        let known = self.holdings.get(tenant).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let holding = Holding::new(&self.memory);
            self.holdings.insert(tenant.clone(), Arc::downgrade(&holding));
            holding
        })
    }

    /// Drops logs that have ended until there is room: of whoever holds the most, and more than its share, those first
    /// that ended first.
    fn make_room(&mut self) {
        let mut ended: HashMap<*const Holding, Ended> = HashMap::new();
        for (id, log) in &self.logs {
            let Some(at) = log.ended_at() else { continue };
            let of = ended.entry(Arc::as_ptr(log.holding()));
            let of = of.or_insert_with(|| Ended { holding: Arc::clone(log.holding()), logs: BTreeSet::new() });
            of.logs.insert((at, id.clone()));
        }
        let mut ended: Vec<Ended> = ended.into_values().collect();
        while self.memory.is_full() {
            let can = ended.iter_mut().filter(|of| of.holding.is_share() && !of.logs.is_empty());
            let Some(heaviest) = can.max_by_key(|of| of.holding.bytes()) else { return };
            heaviest.logs.pop_first().into_iter().for_each(|(_, id)| self.drop_early(&id));
        }
    }

    /// Drops so many of a tenant's logs, those that ended first; none that runs.
    pub(crate) fn give_way(&mut self, of: &Arc<Holding>, count: usize) {
        let own = self.logs.iter().filter(|(_, log)| Arc::ptr_eq(log.holding(), of));
        let mut ended: Vec<(Instant, String)> =
            own.filter_map(|(id, log)| Some((log.ended_at()?, id.clone()))).collect();
        ended.sort_unstable();
        ended.iter().take(count).for_each(|(_, id)| self.drop_early(id));
    }

    /// Other gateways lose it as well.
    fn drop_early(&mut self, id: &str) {
        let Some(log) = self.logs.get(id).cloned() else { return };
        self.forget(id);
        log.give_way(id);
    }

    pub(crate) fn forget(&mut self, id: &str) {
        if let Some(log) = self.logs.remove(id) {
            log.holding().leave();
        }
    }
}
