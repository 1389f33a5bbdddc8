//! The bounds of the HTTP side.

use crate::idempotency::answers::IdempotencyLimits;
use std::time::Duration;

/// Bounds of connections, requests and answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; one more is answered 503.
    pub max_connections: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Bytes of all request bodies that are being received together; past it only for tenants below their share of it.
    pub max_receiving_bytes: usize,
    /// Bytes of the text of an answer that is not streamed.
    pub max_answer_bytes: usize,
    /// For the first request of a connection to begin, and for the headers of any to arrive; TLS included.
    pub header_timeout: Duration,
    /// For a request's body to arrive.
    pub body_timeout: Duration,
    /// How long a client may take no bytes of an answer; over HTTP/2, of any one of its streams.
    pub write_timeout: Duration,
    /// How long a connection may be idle between requests. Longer than the 60 s of common load balancers, which
    /// would otherwise send a request into a connection that is being closed.
    pub idle_timeout: Duration,
    /// A stream that is silent for this long gets a comment, so that proxies keep it open.
    pub keep_alive: Duration,
    /// How long a stream's headers wait for its first event, so that an early failure still has its own status.
    pub first_event_wait: Duration,
    /// How long a caller waits at most for a response in the background to be let in, so that a refusal has its own status.
    pub let_in_within: Duration,
    /// Of the logs of resumable streams.
    pub streams: tidegate_streams::Limits,
    /// Whether events of streams are made alike in size, where a caller does not say.
    pub obfuscation: bool,
    /// Of what is kept for callers' idempotency keys.
    pub idempotency: IdempotencyLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_body_bytes: 10 << 20,
            max_receiving_bytes: 512 << 20,
            max_answer_bytes: 64 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            keep_alive: Duration::from_secs(15),
            first_event_wait: Duration::from_secs(5),
            let_in_within: Duration::from_secs(1),
            streams: tidegate_streams::Limits::default(),
            obfuscation: true,
            idempotency: IdempotencyLimits::default(),
        }
    }
}
