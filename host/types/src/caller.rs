//! Who asks. Every job, cache key, plugin pool, metric and record carries this from the first day.

use crate::quota::Scope;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The unit of isolation: prefix-cache keys, plugin pools and fair share are per tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// Wraps a tenant's name from the config.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The tenant's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Priority class; a better class is scheduled first. `Interactive < Standard < Batch` in urgency order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A person waits.
    Interactive,
    /// The default.
    #[default]
    Standard,
    /// Nobody waits; yields to all others.
    Batch,
}

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Whose data and share this is.
    pub tenant: TenantId,
    /// The name of the API key that was used; `"local"` when no keys are configured.
    pub key_name: Arc<str>,
    /// Priority class.
    pub class: Class,
    /// Share of the engine relative to other tenants of the class, at least 1.
    pub weight: u32,
    /// What it may, and how much.
    pub scope: Arc<Scope>,
}

impl Caller {
    /// The caller of a gateway that has no keys (loopback only).
    pub fn local() -> Self {
        Self {
            tenant: TenantId::new("local"),
            key_name: "local".into(),
            class: Class::default(),
            weight: 1,
            scope: Arc::default(),
        }
    }
}
