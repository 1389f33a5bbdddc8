//! Logs that several gateways share, as whoever reads sees them; where they are is elsewhere, and this crate stays without
//! IO. A log is written where its generation runs, and read anywhere.

use crate::log::{Log, Missed, Numbered};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_types::{Reject, TenantId};

/// Something shared that is being asked for.
pub type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, Away>> + Send + 'a>>;

/// What is shared is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what gateways share is out of reach")]
pub struct Away;

/// The logs of all gateways.
pub trait SharedLogs: Send + Sync + 'static {
    /// Lets others read a log that was opened here. Waits for nothing.
    fn publish(&self, tenant: &TenantId, id: &str, log: &Arc<Log>);

    /// The log of this name, where it is the tenant's. Another's is as one that never was.
    fn find<'a>(&'a self, tenant: &'a TenantId, id: &'a str) -> Asking<'a, Option<About>>;

    /// The events behind number `seen`, as they come.
    fn follow(&self, id: &str, seen: u64) -> Box<dyn Follow>;

    /// Asks the gateway where the log is written to end it.
    fn stop<'a>(&'a self, tenant: &'a TenantId, id: &'a str) -> Asking<'a, ()>;

    /// A log that was published here has given way before its time: others lose it as well. Waits for nothing.
    fn let_go(&self, id: &str);

    /// Nobody finds these any more, and whoever writes them is asked to end. Waits for nothing.
    fn forget(&self, tenant: &TenantId, ids: Vec<String>);
}

/// A log of another gateway, as it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// How it ended, if it has. One whose gateway is no more has failed.
    pub outcome: Option<Result<(), Reject>>,
    /// The oldest event that is kept; 1 where there is none yet.
    pub first_kept: u64,
}

/// A reader's place in a log of another gateway.
pub trait Follow: Send + Sync {
    /// The next event; `None` behind the last of a log that has ended.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Numbered, Missed>>>;

    /// How it ended, once it has.
    fn outcome(&self) -> Option<Result<(), Reject>>;

    /// The end, where no event of the log says it: the log's gateway is gone, or cannot be asked.
    fn unsaid(&self) -> Option<Reject>;
}
