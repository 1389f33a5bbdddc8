//! All logs of this process, by id.

use crate::kept::Kept;
use crate::log::{Log, Writer};
use crate::memory::{Holding, Memory};
use crate::shared::SharedLogs;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::{Caller, TenantId};

/// Bounds of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long an ended log can still be read.
    pub keep: Duration,
    /// Bytes of one log's events, beside large ones that say much of it again; past that its oldest are dropped.
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

/// Whose a log is: who finds it, and whose share of the memory it takes. A tenant may have a thousand projects: what they own
/// is apart, and they have one share together.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    tenant: &'a TenantId,
    owner: &'a TenantId,
}

impl<'a> From<&'a Caller> for Whose<'a> {
    fn from(caller: &'a Caller) -> Self {
        Self { tenant: &caller.tenant, owner: caller.owner() }
    }
}

/// What is the tenant's own.
impl<'a> From<&'a TenantId> for Whose<'a> {
    fn from(tenant: &'a TenantId) -> Self {
        Self { tenant, owner: tenant }
    }
}

/// Of a tenant's logs, the part that gives way at once where it has as many as it may: looking for them looks at each.
const GIVE_WAY: usize = 16;

/// The logs that can be read.
pub struct Streams {
    limits: Limits,
    memory: Arc<Memory>,
    kept: Arc<Mutex<Kept>>,
    /// Where other gateways find those that have a name.
    shared: Option<Arc<dyn SharedLogs>>,
}

impl Streams {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        let memory = Memory::new(limits.total_bytes);
        let kept = Arc::new(Mutex::new(Kept::new(Arc::clone(&memory), limits.keep)));
        Self { memory, limits, kept, shared: None }
    }

    /// Shares logs that are opened from now on.
    pub fn share(&mut self, shared: Option<Arc<dyn SharedLogs>>) {
        self.shared = shared;
    }

    pub(crate) fn shared(&self) -> Option<&Arc<dyn SharedLogs>> {
        self.shared.as_ref()
    }

    /// Opens a log of a tenant under a name of its own. No other gateway is told of it before [`Streams::tell`]: it is taken
    /// before what is to be read from it costs anything, and of what is refused then there is none.
    pub fn open<'a>(&self, whose: impl Into<Whose<'a>>) -> Result<(StreamId, Writer), Full> {
        let id = StreamId::random()?;
        let writer = self.open_as(whose, id.as_str())?;
        Ok((id, writer))
    }

    /// The same under a name that its owner made, which must not be one to guess either.
    pub fn open_as<'a>(&self, whose: impl Into<Whose<'a>>, id: &str) -> Result<Writer, Full> {
        Ok(self.writer(self.enter(whose.into(), id)?))
    }

    /// Opens a log that nobody can find by a name: gone with its last reader.
    pub fn open_unnamed<'a>(&self, whose: impl Into<Whose<'a>>) -> Result<Writer, Full> {
        let Whose { tenant, owner } = whose.into();
        let holding = self.room(&mut self.kept.lock(), tenant)?;
        Ok(self.writer(Arc::new(Log::new(owner.clone(), self.limits.log_bytes, holding))))
    }

    /// Lets readers at other gateways find a log that was opened under this name.
    pub fn tell(&self, id: &str, writer: &Writer) {
        if let Some(shared) = &self.shared {
            writer.log().tell(shared);
            shared.publish(writer.log().tenant(), id, writer.log());
        }
    }

    fn writer(&self, log: Arc<Log>) -> Writer {
        Writer::new(log, Arc::downgrade(&self.kept))
    }

    fn enter(&self, Whose { tenant, owner }: Whose<'_>, id: &str) -> Result<Arc<Log>, Full> {
        let mut kept = self.kept.lock();
        let holding = self.room(&mut kept, tenant)?;
        match kept.logs.get(id) {
            Some(log) if log.is_void() => kept.forget(id),
            Some(_) => return Err(Full::Taken),
            None => {}
        }
        let most = self.limits.per_tenant;
        if holding.num_logs() >= most {
            kept.give_way(&holding, most.div_ceil(GIVE_WAY));
        }
        if holding.num_logs() >= most {
            return Err(Full::Tenant(most));
        }
        holding.enter();
        let log = Arc::new(Log::new(owner.clone(), self.limits.log_bytes, holding));
        kept.logs.insert(id.to_owned(), Arc::clone(&log));
        Ok(log)
    }

    /// What the tenant's logs hold, where there is room for another.
    fn room(&self, kept: &mut Kept, tenant: &TenantId) -> Result<Arc<Holding>, Full> {
        let holding = kept.holding(tenant);
        kept.sweep(Instant::now());
        if self.memory.is_full() && holding.is_share() {
            return Err(Full::Bytes { bytes: holding.bytes(), share: self.memory.share() });
        }
        Ok(holding)
    }

    /// The log of this name, where it is the tenant's. Another's is as one that never was.
    pub fn find(&self, tenant: &TenantId, id: &str) -> Option<Arc<Log>> {
        self.kept.lock().get(id, Instant::now()).filter(|log| log.tenant() == tenant)
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
}
