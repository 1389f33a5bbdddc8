//! What is counted for whom. Whoever has nothing running and nothing charged is forgotten; sweeping costs a share of
//! the insertions that made it necessary.

use crate::meter::Meter;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{ProjectId, Quota, TenantId};

/// Who is limited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// An API key, by its name.
    Key(Arc<str>),
    /// A project, all its keys together.
    Project(ProjectId),
    /// A tenant, all its projects together.
    Tenant(TenantId),
    /// A user of a tenant, by a hash of what the tenant calls it: names may be long, and are nobody's business here.
    User(TenantId, u128),
    /// All users of a tenant together that there was no room to tell apart.
    OtherUsers(TenantId),
    /// A model, for all its callers together.
    Model(Arc<str>),
}

impl Subject {
    /// A word for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Project(_) => "project",
            Self::Tenant(_) => "tenant",
            Self::User(..) | Self::OtherUsers(_) => "user",
            Self::Model(_) => "model",
        }
    }
}

/// What a limiter remembers at most. Keys, projects, tenants and models are bounded by the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Users of one tenant that are told apart; further ones share one limit until others are idle.
    pub users_per_tenant: usize,
}

/// Entries below which it is not worth to look for idle ones.
const MIN_SWEEP: usize = 256;

/// A tenant with as many users as are told apart is looked through at most this often.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// What is counted for one subject.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) requests: Option<Meter>,
    pub(crate) tokens: Option<Meter>,
    /// Let in and not ended.
    pub(crate) running: u32,
}

impl Entry {
    /// The meters of `quota`, made or set to its rates. Of what is limited no more the meter stays until it is empty, as it was: who
    /// is limited again before has used what it had.
    pub(crate) fn adopt(&mut self, quota: &Quota, now: Duration) {
        adopt(&mut self.requests, quota.requests_per_minute, now);
        adopt(&mut self.tokens, quota.tokens_per_minute, now);
    }

    fn is_idle(&mut self, now: Duration) -> bool {
        let mut meters = self.requests.iter_mut().chain(&mut self.tokens);
        self.running == 0 && meters.all(|meter| meter.is_idle(now))
    }
}

fn adopt(meter: &mut Option<Meter>, rate: Option<u64>, now: Duration) {
    let Some(rate) = rate else {
        meter.take_if(|meter| meter.is_idle(now));
        return;
    };
    match meter {
        Some(meter) if meter.limit() == rate => {}
        Some(meter) => meter.set_rate(rate, now),
        None => *meter = Some(Meter::new(rate, now)),
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    entries: HashMap<Subject, Entry>,
    /// Entries of each tenant's users.
    users: HashMap<TenantId, usize>,
    bounds: Bounds,
    /// The number of entries at which to look for idle ones.
    sweep_at: usize,
    swept: Duration,
}

impl Table {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let (entries, users) = (HashMap::new(), HashMap::new());
        Self { entries, users, bounds, sweep_at: MIN_SWEEP, swept: Duration::ZERO }
    }

    pub(crate) fn get(&mut self, subject: &Subject) -> Option<&mut Entry> {
        self.entries.get_mut(subject)
    }

    /// The entry that counts for `subject`, and whose it is.
    pub(crate) fn enter(&mut self, subject: &Subject, now: Duration) -> (Subject, &mut Entry) {
        let subject = if self.entries.contains_key(subject) { subject.clone() } else { self.make_room(subject, now) };
        (subject.clone(), self.entries.entry(subject).or_default())
    }

    fn make_room(&mut self, subject: &Subject, now: Duration) -> Subject {
        if self.entries.len() >= self.sweep_at {
            self.sweep(now);
        }
        let Subject::User(tenant, _) = subject else { return subject.clone() };
        let full = |table: &Self| table.users.get(tenant).copied().unwrap_or(0) >= table.bounds.users_per_tenant;
        if full(self) && now.saturating_sub(self.swept) >= SWEEP_PAUSE {
            self.sweep(now);
        }
        if full(self) {
            return Subject::OtherUsers(tenant.clone());
        }
        *self.users.entry(tenant.clone()).or_default() += 1;
        subject.clone()
    }

    fn sweep(&mut self, now: Duration) {
        self.entries.retain(|_, entry| !entry.is_idle(now));
        self.users.clear();
        for subject in self.entries.keys() {
            if let Subject::User(tenant, _) = subject {
                *self.users.entry(tenant.clone()).or_default() += 1;
            }
        }
        self.sweep_at = (self.entries.len() * 2).max(MIN_SWEEP);
        self.swept = now;
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
