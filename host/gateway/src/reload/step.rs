//! What a reload is at, for those who wait for it to end.

use super::locked;
use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

/// A reload that is under way.
pub(super) struct Step {
    since: Instant,
    at: Mutex<String>,
}

impl Step {
    pub(super) fn begin() -> Self {
        Self { since: Instant::now(), at: Mutex::new("it begins".into()) }
    }

    /// What it is at from now on.
    pub(super) fn is(&self, at: String) {
        *locked(&self.at) = at;
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "under way since {} s: {}", self.since.elapsed().as_secs(), locked(&self.at))
    }
}

/// Another reload has not come to its end while somebody waited: what it is at.
#[derive(Debug)]
pub(super) struct Busy(pub(super) String);

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another reload is {}; ask again when that has ended", self.0)
    }
}

impl std::error::Error for Busy {}
