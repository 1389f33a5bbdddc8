//! All logs of this process, by id.

use crate::log::{Log, Writer};
use crate::shared::SharedLogs;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate_types::TenantId;

/// Bounds of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long an ended log can still be read.
    pub keep: Duration,
    /// Bytes of one log's events; past that its oldest are dropped.
    pub log_bytes: usize,
    /// Bytes of all logs' events; past that ended logs are dropped early, and then no new one is opened.
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
    /// Running logs hold all the memory that logs may.
    #[error("running streams hold all {0} bytes that logs may")]
    Bytes(usize),
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
    total: Arc<AtomicUsize>,
    kept: Mutex<Kept>,
    /// Where other gateways find those that have a name.
    shared: Option<Arc<dyn SharedLogs>>,
}

struct Kept {
    logs: HashMap<String, Arc<Log>>,
    of_tenant: HashMap<TenantId, usize>,
    swept: Instant,
}

impl Streams {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        let kept = Kept { logs: HashMap::new(), of_tenant: HashMap::new(), swept: Instant::now() };
        Self { limits, total: Arc::default(), kept: Mutex::new(kept), shared: None }
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
        if self.is_full() {
            return Err(Full::Bytes(self.limits.total_bytes));
        }
        let log = Log::new(tenant.clone(), self.limits.log_bytes, Arc::clone(&self.total));
        Ok(Writer::new(Arc::new(log)))
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
        self.sweep(&mut kept, Instant::now());
        if self.is_full() {
            return Err(Full::Bytes(self.limits.total_bytes));
        }
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
        let log = Arc::new(Log::new(tenant.clone(), self.limits.log_bytes, Arc::clone(&self.total)));
        kept.logs.insert(id.to_owned(), Arc::clone(&log));
        *kept.of_tenant.entry(tenant.clone()).or_default() += 1;
        Ok(log)
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
        self.total.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.bytes() >= self.limits.total_bytes
    }

    fn is_over(&self, log: &Log, now: Instant) -> bool {
        log.is_void() || log.ended_at().is_some_and(|ended| now.saturating_duration_since(ended) >= self.limits.keep)
    }

    /// Drops what ended long ago; and, while all together hold too much, what ended first.
    fn sweep(&self, kept: &mut Kept, now: Instant) {
        if now.saturating_duration_since(kept.swept) < SWEEP && !self.is_full() {
            return;
        }
        kept.swept = now;
        let over: Vec<String> =
            kept.logs.iter().filter(|(_, log)| self.is_over(log, now)).map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| kept.forget(id));
        if self.is_full() {
            let mut ended: Vec<(Instant, String)> =
                kept.logs.iter().filter_map(|(id, log)| Some((log.ended_at()?, id.clone()))).collect();
            ended.sort();
            ended.iter().take_while(|_| self.is_full()).for_each(|(_, id)| kept.forget(id));
        }
    }
}

impl Kept {
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
