//! What can be wrong before the first request, and how a `Reject` becomes a response.

use crate::body::{Body, Response};
use crate::rate_headers;
use crate::server::Api;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use tidegate_types::{Fault, Reject, RejectKind};

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A key of the config is not a hash.
    #[error("the key `{name}`: `hash` must be `blake3:` and 64 hex digits; `tidegate key NAME` makes one")]
    BadKeyHash {
        /// The key's name.
        name: String,
    },
    /// Two keys have the same hash.
    #[error("the keys `{first}` and `{second}` are the same key")]
    SameKey {
        /// One of the two.
        first: String,
        /// The other.
        second: String,
    },
    /// The certificate or its key cannot be read.
    #[error("the TLS {what} cannot be read: {why}")]
    BadPem {
        /// `certificate`, `key` or `authority of clients`.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key do not go together.
    #[error("TLS cannot be set up: {0}")]
    Tls(rustls::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's reason.
        cause: std::io::Error,
    },
}

// Not `#[from]`, which makes it the source too: the message has it, and who prints sources would say it twice.
impl From<rustls::Error> for ApiError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// Seconds after which to try again where nobody knows better.
const DEFAULT_RETRY_AFTER_S: u32 = 1;

/// The response of a failed request, in OpenAI's shape.
pub(crate) fn response(reject: &Reject) -> Response {
    let mut response = Response::new(Body::full(tidegate_wire::error_body(reject)));
    *response.status_mut() = status(reject.kind);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let useless = reject.limited.as_ref().and_then(|limited| limited.exceeded).is_some_and(|e| e.retry_after.is_none());
    let busy = matches!(reject.kind, RejectKind::RateLimited | RejectKind::Unavailable) && !useless;
    if let Some(seconds) = reject.retry_after_s.or(busy.then_some(DEFAULT_RETRY_AFTER_S)) {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(limited) = &reject.limited {
        rate_headers::allowances(headers, &limited.allowances);
        limited.exceeded.iter().for_each(|exceeded| rate_headers::exceeded(headers, exceeded));
    }
    if reject.is_final {
        rate_headers::is_final(headers);
    }
    if reject.kind == RejectKind::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// What a running answer is told when the server has waited long enough for it.
pub(crate) fn stopping() -> Reject {
    Reject::unavailable(Fault::Operator, "the server is stopping; ask again", 1).code("stopping")
}

/// While the server stops, nothing new is begun in the background.
pub(crate) fn refuse_while_stopping(api: &Api) -> Result<(), Reject> {
    if api.phase.draining.is_cancelled() { Err(stopping()) } else { Ok(()) }
}

fn status(kind: RejectKind) -> StatusCode {
    StatusCode::from_u16(tidegate_wire::status(kind)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
