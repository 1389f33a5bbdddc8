//! How an outbound request fails.

use std::time::Duration;

/// A condition that a caller can act on. Messages name the origin, never a header or a body.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The base URL cannot be used.
    #[error("the URL {url:?} cannot be used: {why}")]
    BadUrl {
        /// As configured.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A URL that a plugin wrote is none.
    #[error("the URL cannot be used: {why}")]
    BadTarget {
        /// What is wrong with it.
        why: &'static str,
    },
    /// Not an origin that was granted.
    #[error("{origin} is not a granted origin")]
    OriginDenied {
        /// Where to.
        origin: String,
    },
    /// The origin's name leads to an address that was not granted.
    #[error("{origin} leads to {address}, which is no public address and not a granted one")]
    AddressDenied {
        /// Where to.
        origin: String,
        /// The address.
        address: std::net::IpAddr,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(rustls::Error),
    /// No connection.
    #[error("cannot connect to {origin}: {why}")]
    Connect {
        /// Where to.
        origin: String,
        /// The system's reason.
        why: String,
    },
    /// No connection in time.
    #[error("no connection to {origin} within {limit:?}")]
    ConnectTimeout {
        /// Where to.
        origin: String,
        /// The bound.
        limit: Duration,
    },
    /// The origin's name was not looked up in time.
    #[error("the name in {origin} was not looked up within {limit:?}: {why}")]
    LookupTimeout {
        /// Where to.
        origin: String,
        /// The bound.
        limit: Duration,
        /// What held it up.
        why: String,
    },
    /// No answer in time.
    #[error("{origin} did not answer within {limit:?}")]
    FirstByteTimeout {
        /// Whom was asked.
        origin: String,
        /// The bound.
        limit: Duration,
    },
    /// The answer stopped in the middle.
    #[error("{origin} fell silent for {limit:?} in the middle of its answer")]
    IdleTimeout {
        /// Whom was asked.
        origin: String,
        /// The bound.
        limit: Duration,
    },
    /// The answer is too long.
    #[error("the answer of {origin} is longer than {limit_bytes} bytes")]
    TooLarge {
        /// Whom was asked.
        origin: String,
        /// The bound.
        limit_bytes: u64,
    },
    /// The connection broke, or the other side does not speak HTTP.
    #[error("the connection to {origin} broke: {why}")]
    Broken {
        /// Whom was asked.
        origin: String,
        /// What happened.
        why: String,
    },
}

// Not `#[from]`, which makes it the source too: the message has it, and who prints sources would say it twice.
impl From<rustls::Error> for EgressError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl EgressError {
    /// Whether it was a matter of time.
    pub fn is_timeout(&self) -> bool {
        use EgressError::{ConnectTimeout, FirstByteTimeout, IdleTimeout, LookupTimeout};
        matches!(self, ConnectTimeout { .. } | LookupTimeout { .. } | FirstByteTimeout { .. } | IdleTimeout { .. })
    }
}

/// An error with its sources, which is where hyper says what happened.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
