//! What goes wrong with an upstream, and what the caller reads. The message is for the caller and names no
//! server; the cause is for the log and says everything.

use crate::config::ApiKey;
use std::fmt::Display;
use tidegate_egress::{EgressError, HeaderMap, StatusCode};
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::client::{Failure, WireError};

/// Turns failures of one upstream into rejects.
#[derive(Clone)]
pub(crate) struct Failures {
    pub(crate) upstream: String,
    pub(crate) api_key: Option<ApiKey>,
    /// Whether the upstream's own words, which may repeat what it was asked, may be logged.
    pub(crate) words: bool,
}

impl Failures {
    /// No connection, no answer in time, or a broken connection.
    pub(crate) fn egress(&self, error: &EgressError) -> Reject {
        let reject = match error {
            _ if error.is_timeout() => reject(RejectKind::UpstreamTimeout, "the model's server did not answer in time"),
            EgressError::Connect { .. } => {
                reject(RejectKind::BadUpstream, "the model's server cannot be reached").code("upstream_unreachable")
            }
            EgressError::TooLarge { .. } => reject(RejectKind::BadUpstream, "the model's answer is too long"),
            EgressError::BadUrl { .. } | EgressError::Tls(_) => self.operator("the model's server is set up wrongly"),
            _ => cut(),
        };
        self.because(reject, error)
    }

    /// An answer outside of the protocol, cut, or with an error in it.
    pub(crate) fn wire(&self, error: WireError) -> Reject {
        match error {
            WireError::BrokeOff { .. } => self.because(cut(), error),
            WireError::Failed(failure) => match failure.status.and_then(|status| StatusCode::from_u16(status).ok()) {
                Some(status) if !status.is_success() => self.status(status, &HeaderMap::new(), failure),
                _ => {
                    self.said(reject(RejectKind::BadUpstream, "the model's server failed"), "an error event", &failure)
                }
            },
            WireError::Malformed(_) if !self.words => self.unexpected("an answer outside of the protocol"),
            WireError::Malformed(_) | WireError::EventTooLong { .. } => {
                self.because(reject(RejectKind::BadUpstream, "the model's server answered with nonsense"), error)
            }
        }
    }

    /// A stream that ended in the middle.
    pub(crate) fn cut_short(&self, why: &str) -> Reject {
        self.because(cut(), why)
    }

    /// An answer that is no answer.
    pub(crate) fn unexpected(&self, what: impl Display) -> Reject {
        self.because(reject(RejectKind::BadUpstream, "the model's server answered with nonsense"), what)
    }

    /// A status other than success.
    pub(crate) fn status(&self, status: StatusCode, headers: &HeaderMap, failure: Failure) -> Reject {
        let mut reject = match status.as_u16() {
            // The upstream has read the request and names what is wrong with it: the caller can act.
            400 | 409 | 413 | 415 | 422 => self.passed_on(&failure),
            401..=403 => self.operator("the model's server refuses this gateway"),
            404 | 405 => self.operator("the model's server does not know the model or the endpoint"),
            300..=399 => self.operator("the model's server redirects elsewhere, which is not followed"),
            408 | 504 => reject(RejectKind::UpstreamTimeout, "the model's server ran out of time"),
            429 => reject(RejectKind::RateLimited, "the model's server has too many requests; try again later"),
            _ => reject(RejectKind::BadUpstream, "the model's server failed"),
        };
        reject.retry_after_s = retry_after(headers);
        self.said(reject, &format!("status {}", status.as_u16()), &failure)
    }

    fn passed_on(&self, failure: &Failure) -> Reject {
        let message = match failure.message.as_str() {
            "" => "the model's server refuses the request without saying why".to_owned(),
            message => self.redact(message),
        };
        let mut reject = Reject::new(RejectKind::Invalid, Fault::Client, message);
        reject.param.clone_from(&failure.param);
        reject.code.clone_from(&failure.code);
        reject
    }

    fn operator(&self, message: &str) -> Reject {
        let message = format!("{message}; the operator of this gateway must correct that");
        Reject::new(RejectKind::BadUpstream, Fault::Operator, message).code("upstream_misconfigured")
    }

    fn said(&self, reject: Reject, how: &str, failure: &Failure) -> Reject {
        if !self.words {
            return self.because(reject, format!("{how}; what it says is not kept"));
        }
        let words = if failure.message.is_empty() { "nothing" } else { &failure.message };
        self.because(reject, format!("{how}, saying: {words}"))
    }

    fn because(&self, reject: Reject, cause: impl Display) -> Reject {
        let cause = self.redact(&format!("upstream `{}`: {cause}", self.upstream));
        reject.because(cause)
    }

    fn redact(&self, text: &str) -> String {
        self.api_key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }
}

fn reject(kind: RejectKind, message: &str) -> Reject {
    Reject::new(kind, Fault::Upstream, message)
}

fn cut() -> Reject {
    reject(RejectKind::BadUpstream, "the model's answer broke off before it was complete").code("upstream_cut")
}

/// Seconds; the form with a date is not used by any server of this protocol.
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()
}
