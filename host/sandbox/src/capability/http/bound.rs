//! How long a request may take: the least of what it asks for itself, what the operator grants, and what is left to the call.
//! Who has no answer is told which of these it was, for each is somebody else's to change.

use super::HttpRequest;
use crate::capability::CapabilityError;
use std::time::Duration;

/// Characters of an origin in a message.
pub(super) const MAX_SHOWN: usize = 128;

/// A request, and which of the bounds on its time is the least.
pub(super) struct Outgoing {
    pub(super) request: HttpRequest,
    pub(super) bound: Bound,
}

/// What says how long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Its own.
    Request,
    /// The operator's grant of `http`.
    Grant,
    /// What is left to the call.
    Call,
}

/// How long a request may take, and what says so.
pub(super) fn least(own: Option<Duration>, granted: Duration, left: Duration) -> (Duration, Bound) {
    match own {
        Some(own) if own <= granted && own <= left => (own, Bound::Request),
        _ if granted <= left => (granted, Bound::Grant),
        _ => (left, Bound::Call),
    }
}

impl Outgoing {
    /// The error of a request without an answer.
    pub(super) fn out_of_time(&self) -> CapabilityError {
        let HttpRequest { url, timeout, .. } = &self.request;
        let why = match self.bound {
            Bound::Request => "the request's own `timeout-ms`",
            Bound::Grant => "`http.timeout_ms` of the grant",
            Bound::Call => "what was left to the call (`wall_ms`, or the client's request)",
        };
        CapabilityError::Timeout(format!("{} has not answered in {} ms, {why}", origin(url), timeout.as_millis()))
    }
}

/// Where a URL leads, for a message: without what stands before `@`, which may be a password.
pub(super) fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + "://".len()));
    let host = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let shown: String = [scheme, host].concat().chars().take(MAX_SHOWN).collect();
    shown.escape_debug().to_string()
}
