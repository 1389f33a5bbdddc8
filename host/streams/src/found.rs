//! A log by its name, wherever it is written.

use crate::log::{Cursor, Log, Missed};
use crate::shared::{About, Away, SharedLogs};
use crate::streams::Streams;
use std::sync::Arc;
use tidegate_types::{Reject, TenantId};

/// A log that was found.
pub enum Found {
    /// One of this process.
    Here(Arc<Log>),
    /// One of another gateway.
    Elsewhere(Elsewhere),
}

/// A log of another gateway.
pub struct Elsewhere {
    logs: Arc<dyn SharedLogs>,
    tenant: TenantId,
    id: String,
    about: About,
}

impl Streams {
    /// The log of this name in any gateway, where it is the tenant's. An error where only others could know.
    pub async fn find_anywhere(&self, tenant: &TenantId, id: &str) -> Result<Option<Found>, Away> {
        if let Some(log) = self.find(tenant, id) {
            return Ok(Some(Found::Here(log)));
        }
        let Some(logs) = self.shared() else { return Ok(None) };
        let about = logs.find(tenant, id).await?;
        let elsewhere = |about| Elsewhere { logs: Arc::clone(logs), tenant: tenant.clone(), id: id.to_owned(), about };
        Ok(about.map(elsewhere).map(Found::Elsewhere))
    }
}

impl Found {
    /// How it ended; `None` while it runs. Of another gateway's, when it was found.
    pub fn outcome(&self) -> Option<Result<(), Reject>> {
        match self {
            Self::Here(log) => log.outcome(),
            Self::Elsewhere(elsewhere) => elsewhere.about.outcome.clone(),
        }
    }

    /// A reader that goes on behind event `seen`; 0 reads from the start. An error where that is no longer kept.
    pub fn read_after(&self, seen: u64) -> Result<Cursor, Missed> {
        match self {
            Self::Here(log) => log.read_after(seen),
            Self::Elsewhere(Elsewhere { logs, id, about: About { first_kept, .. }, .. }) => {
                if seen.saturating_add(1) < *first_kept {
                    return Err(Missed { first_kept: *first_kept });
                }
                // Who was at the log's own gateway may have seen more than others know of yet.
                Ok(Cursor::elsewhere(logs.follow(id, seen)))
            }
        }
    }

    /// Asks whoever writes it to end.
    pub async fn stop(&self) -> Result<(), Away> {
        match self {
            Self::Here(log) => log.stop(),
            Self::Elsewhere(Elsewhere { logs, tenant, id, .. }) => logs.stop(tenant, id).await?,
        }
        Ok(())
    }
}
