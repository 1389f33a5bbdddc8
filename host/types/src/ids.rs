//! Identifiers. A [`RequestId`] names one HTTP request everywhere (answer, log, plugin, upstream);
//! a [`JobId`] names one sequence inside the engine.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Names one request; made by `api`, returned in `x-request-id`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Wraps an id that `api` made or accepted.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether both are of one request: clients may give several the same name.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one sequence inside one engine handle; never reused while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job-{}", self.0)
    }
}
