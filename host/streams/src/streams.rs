//! All logs of this process, by id.

use crate::log::{Log, Writer};
use crate::memory::{Holding, Memory};
use crate::shared::SharedLogs;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidegate_types::TenantId;

/// Bounds of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long an ended log can still be read.
    pub keep: Duration,
    /// Bytes of one log's events; past that its oldest are dropped. An event of more is refused.
    pub log_bytes: usize,
    /// Bytes of all logs' events; past that those that have ended are dropped early, of whoever holds the most, and then
    /// whoever holds more than its share opens none.
    pub total_bytes: usize,
    /// Logs of one tenant; past that those that ended first are dropped early, and none is opened while all of them run.
    pub per_tenant: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { keep: Duration::from_secs(300), log_bytes: 4 << 20, total_bytes: 256 << 20, per_tenant: 10_000 }
    }
}

/// Names a log. Not to be guessed: 128 random bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(String);

impl StreamId {
    fn random() -> Result<Self, Full> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| Full::NoRandomness(error.to_string()))?;
        Ok(Self(format!("stream_{:032x}", u128::from_le_bytes(bytes))))
    }

    /// As on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why no log can be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Running logs hold all the memory that logs may, and the tenant's as much as its share of it.
    #[error("the tenant's streams hold {bytes} bytes, and its share of what all may is {share}")]
    Bytes {
        /// What the tenant's hold.
        bytes: usize,
        /// What they may, while all logs hold as much as they may.
        share: usize,
    },
    /// The tenant has as many as it may.
    #[error("the tenant has {0} logs, its limit")]
    Tenant(usize),
    /// There is a log of this name.
    #[error("there is a stream of this name")]
    Taken,
    /// The machine gives no random numbers to name one.
    #[error("this machine gives no random numbers: {0}")]
    NoRandomness(String),
}

/// Logs are swept at most this often: it looks at each of them.
const SWEEP: Duration = Duration::from_secs(1);

/// Of a tenant's logs, the part that gives way at once where it has as many as it may: looking for them looks at each.
const GIVE_WAY: usize = 16;

/// The logs that can be read.
pub struct Streams {
    limits: Limits,
    memory: Arc<Memory>,
    kept: Mutex<Kept>,
    /// Where other gateways find those that have a name.
    shared: Option<Arc<dyn SharedLogs>>,
}

struct Kept {
    logs: HashMap<String, Arc<Log>>,
    of_tenant: HashMap<TenantId, usize>,
    /// Of tenants that have logs, those without a name too.
    holdings: HashMap<TenantId, Weak<Holding>>,
    swept: Instant,
}

/// Logs of one tenant that have ended, in that order.
struct Ended {
    holding: Arc<Holding>,
    logs: BTreeSet<(Instant, String)>,
}

impl Streams {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        let (logs, of_tenant, holdings) = (HashMap::new(), HashMap::new(), HashMap::new());
        let kept = Kept { logs, of_tenant, holdings, swept: Instant::now() };
        Self { memory: Memory::new(limits.total_bytes), limits, kept: Mutex::new(kept), shared: None }
    }

    /// Shares logs that are opened from now on.
    pub fn share(&mut self, shared: Option<Arc<dyn SharedLogs>>) {
        self.shared = shared;
    }

    pub(crate) fn shared(&self) -> Option<&Arc<dyn SharedLogs>> {
        self.shared.as_ref()
    }

    /// Opens a log of a tenant.
    pub fn open(&self, tenant: &TenantId) -> Result<(StreamId, Writer), Full> {
        let id = StreamId::random()?;
        let writer = self.open_as(tenant, id.as_str())?;
        Ok((id, writer))
    }

    /// Opens a log of an owner that no other gateway is told of.
    pub fn open_here(&self, tenant: &TenantId) -> Result<(StreamId, Writer), Full> {
        let id = StreamId::random()?;
        let log = self.enter(tenant, id.as_str())?;
        Ok((id, Writer::new(log)))
    }

    /// Opens a log that nobody can find by a name: gone with its last reader.
    pub fn open_unnamed(&self, tenant: &TenantId) -> Result<Writer, Full> {
        let holding = self.room(&mut self.kept.lock(), tenant)?;
        Ok(Writer::new(Arc::new(Log::new(tenant.clone(), self.limits.log_bytes, holding))))
    }

    /// Opens a log under a name that its owner made, which must not be one to guess either.
    pub fn open_as(&self, tenant: &TenantId, id: &str) -> Result<Writer, Full> {
        let writer = self.take(tenant, id)?;
        self.tell(id, &writer);
        Ok(writer)
    }

    /// As [`Streams::open_as`], but no other gateway is told before [`Streams::tell`]: where it is not yet clear whether
    /// there will be anything to read.
    pub fn take(&self, tenant: &TenantId, id: &str) -> Result<Writer, Full> {
        Ok(Writer::new(self.enter(tenant, id)?))
    }

    /// Lets readers at other gateways find a log that was taken under this name.
    pub fn tell(&self, id: &str, writer: &Writer) {
        if let Some(shared) = &self.shared {
            shared.publish(writer.log().tenant(), id, writer.log());
        }
    }

    fn enter(&self, tenant: &TenantId, id: &str) -> Result<Arc<Log>, Full> {
        let mut kept = self.kept.lock();
        let holding = self.room(&mut kept, tenant)?;
        match kept.logs.get(id) {
            Some(log) if log.is_void() => kept.forget(id),
            Some(_) => return Err(Full::Taken),
            None => {}
        }
        let most = self.limits.per_tenant;
        if kept.num_of(tenant) >= most {
            kept.give_way(tenant, most.div_ceil(GIVE_WAY));
        }
        if kept.num_of(tenant) >= most {
            return Err(Full::Tenant(most));
        }
        let log = Arc::new(Log::new(tenant.clone(), self.limits.log_bytes, holding));
        kept.logs.insert(id.to_owned(), Arc::clone(&log));
        *kept.of_tenant.entry(tenant.clone()).or_default() += 1;
        Ok(log)
    }

    /// What the tenant's logs hold, where there is room for another.
    fn room(&self, kept: &mut Kept, tenant: &TenantId) -> Result<Arc<Holding>, Full> {
        let holding = kept.holding(tenant, &self.memory);
        self.sweep(kept, Instant::now());
        if self.memory.is_full() && holding.is_share() {
            return Err(Full::Bytes { bytes: holding.bytes(), share: self.memory.share() });
        }
        Ok(holding)
    }

    /// The log of this name, where it is the tenant's. Another's is as one that never was.
    pub fn find(&self, tenant: &TenantId, id: &str) -> Option<Arc<Log>> {
        let now = Instant::now();
        let log = self.kept.lock().logs.get(id).cloned();
        log.filter(|log| log.tenant() == tenant && !self.is_over(log, now))
    }

    /// Ends and drops logs of the tenant's, wherever they are written: nobody finds them any more.
    pub fn forget(&self, tenant: &TenantId, ids: Vec<String>) {
        self.forget_here(tenant, &ids);
        if let Some(shared) = &self.shared {
            shared.forget(tenant, ids);
        }
    }

    /// The same with those of this process alone: what other gateways write under these names goes on, and is found.
    pub fn forget_here(&self, tenant: &TenantId, ids: &[String]) {
        for id in ids {
            let mut kept = self.kept.lock();
            let log = kept.logs.get(id).filter(|log| log.tenant() == tenant).cloned();
            if let Some(log) = log {
                kept.forget(id);
                drop(kept);
                log.stop();
            }
        }
    }

    /// Bytes of all logs' events.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn is_over(&self, log: &Log, now: Instant) -> bool {
        log.is_void() || log.ended_at().is_some_and(|ended| now.saturating_duration_since(ended) >= self.limits.keep)
    }

    /// Drops what ended long ago; and, while all together hold too much, what ended first of whoever holds the most.
    fn sweep(&self, kept: &mut Kept, now: Instant) {
        if now.saturating_duration_since(kept.swept) < SWEEP && !self.memory.is_full() {
            return;
        }
        kept.swept = now;
        let over: Vec<String> =
            kept.logs.iter().filter(|(_, log)| self.is_over(log, now)).map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| kept.forget(id));
        kept.holdings.retain(|_, holding| holding.strong_count() > 0);
        if self.memory.is_full() {
            kept.make_room(&self.memory);
        }
    }
}

impl Kept {
    fn holding(&mut self, tenant: &TenantId, memory: &Arc<Memory>) -> Arc<Holding> {
        let known = self.holdings.get(tenant).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let holding = Holding::new(memory);
            self.holdings.insert(tenant.clone(), Arc::downgrade(&holding));
            holding
        })
    }

    /// Drops logs that have ended until there is room: of whoever holds the most, and more than its share, those first
    /// that ended first.
    fn make_room(&mut self, memory: &Memory) {
        let mut ended: HashMap<&TenantId, Ended> = HashMap::new();
        for (id, log) in &self.logs {
            let Some(at) = log.ended_at() else { continue };
            let of = ended.entry(log.tenant());
            let of = of.or_insert_with(|| Ended { holding: Arc::clone(log.holding()), logs: BTreeSet::new() });
            of.logs.insert((at, id.clone()));
        }
        let mut ended: Vec<Ended> = ended.into_values().collect();
        while memory.is_full() {
            let can = ended.iter_mut().filter(|of| of.holding.is_share() && !of.logs.is_empty());
            let Some(heaviest) = can.max_by_key(|of| of.holding.bytes()) else { return };
            heaviest.logs.pop_first().into_iter().for_each(|(_, id)| self.forget(&id));
        }
    }

    fn num_of(&self, tenant: &TenantId) -> usize {
        self.of_tenant.get(tenant).copied().unwrap_or_default()
    }

    /// Drops so many of the tenant's logs, those that ended first; none that runs.
    fn give_way(&mut self, tenant: &TenantId, count: usize) {
        let own = self.logs.iter().filter(|(_, log)| log.tenant() == tenant);
        let mut ended: Vec<(Instant, String)> =
            own.filter_map(|(id, log)| Some((log.ended_at()?, id.clone()))).collect();
        ended.sort_unstable();
        ended.iter().take(count).for_each(|(_, id)| self.forget(id));
    }

    fn forget(&mut self, id: &str) {
        let Some(log) = self.logs.remove(id) else { return };
        if let Some(count) = self.of_tenant.get_mut(log.tenant()) {
            *count -= 1;
            if *count == 0 {
                self.of_tenant.remove(log.tenant());
            }
        }
    }
}
