//! What goes wrong with an upstream, and what the caller reads. The message is for the caller and names no
//! server; the cause is for the log and says everything. What is worth another attempt is read from [`Trouble`].

use crate::config::{ApiKey, Reader};
use std::fmt::Display;
use std::time::{Duration, SystemTime};
use tidegate_egress::{EgressError, HeaderMap, StatusCode};
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::client::{Failure, WireError};

/// What a failure says of the server and of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trouble {
    /// There was no connection: the server has not seen the request.
    Unreachable,
    /// The server wants to be left alone, and is well otherwise.
    Busy,
    /// The server, or what stands before it, says that it cannot answer now.
    Overloaded,
    /// Something in front of the server says that it failed: an answer may have been made, or still be.
    Gateway,
    /// The connection broke before the answer was complete.
    Broken,
    /// Nothing came in the time that a server has.
    Silent,
    /// Nothing came in what was left of the time that all attempts have together.
    Late,
    /// The server tried and failed, or talks nonsense; another one might fail at the same request.
    Failed,
    /// It is a matter of how this server is set up: another one may be set up well.
    Misconfigured,
    /// It is a matter of the request or of the config.
    Refused,
}

impl Trouble {
    /// Whether another server may do better, and this one will not.
    pub(crate) fn is_for_elsewhere(self) -> bool {
        matches!(self, Self::Silent | Self::Misconfigured)
    }
}

/// A request that failed at one server.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) reject: Box<Reject>,
    pub(crate) trouble: Trouble,
}

impl Failed {
    /// Whether the answer may only have taken too long. What is silent behind a head has [`Trouble::Failed`].
    pub(crate) fn is_late(&self) -> bool {
        match self.trouble {
            Trouble::Silent | Trouble::Late => true,
            Trouble::Failed => self.reject.kind == RejectKind::UpstreamTimeout,
            _ => false,
        }
    }

    /// The failure that a request ends with, after `attempts`.
    pub(crate) fn after(self, attempts: u32) -> Reject {
        let mut reject = *self.reject;
        if let Some(cause) = reject.cause.as_mut().filter(|_| attempts > 1) {
            cause.push_str(&format!(" (the last of {attempts} attempts)"));
        }
        reject
    }
}

impl From<Failed> for Reject {
    fn from(failed: Failed) -> Self {
        *failed.reject
    }
}

/// Turns failures of one upstream into rejects.
#[derive(Clone)]
pub(crate) struct Failures {
    pub(crate) upstream: String,
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) reader: Reader,
    /// Whether the upstream's own words, which may repeat what it was asked, may be logged.
    pub(crate) words: bool,
}

impl Failures {
    /// No connection, no answer in time, or a broken connection.
    pub(crate) fn egress(&self, error: &EgressError) -> Failed {
        let (trouble, reject) = match error {
            EgressError::ConnectTimeout { .. } | EgressError::LookupTimeout { .. } => (Trouble::Unreachable, late()),
            _ if error.is_timeout() => (Trouble::Silent, late()),
            EgressError::Connect { .. } => {
                let reject = reject(RejectKind::BadUpstream, "the model's server cannot be reached");
                (Trouble::Unreachable, reject.code("upstream_unreachable"))
            }
            EgressError::TooLarge { .. } => (Trouble::Refused, too_long()),
            EgressError::BadUrl { .. } | EgressError::Tls(_) => {
                (Trouble::Refused, self.operator("the model's server is set up wrongly"))
            }
            _ => (Trouble::Broken, cut()),
        };
        self.failed(trouble, reject, error)
    }

    /// All attempts together have taken as long as they may.
    pub(crate) fn late(&self, limit: Duration) -> Failed {
        self.failed(Trouble::Late, late(), format_args!("no answer within {limit:?}, all attempts together"))
    }

    /// An answer outside of the protocol, cut, or with an error in it.
    pub(crate) fn wire(&self, error: WireError) -> Failed {
        match error {
            WireError::BrokeOff { .. } => self.failed(Trouble::Broken, cut(), error),
            WireError::Failed(failure) => match failure.status.and_then(|status| StatusCode::from_u16(status).ok()) {
                Some(status) if !status.is_success() => self.status(status, &HeaderMap::new(), failure),
                _ => {
                    let reject = reject(RejectKind::BadUpstream, "the model's server failed");
                    self.said(Trouble::Failed, reject, "an error event", &failure)
                }
            },
            WireError::TooLong { .. } => self.failed(Trouble::Refused, too_long(), error),
            WireError::Malformed(_) if !self.words => self.unexpected("an answer outside of the protocol"),
            WireError::Malformed(_) | WireError::EventTooLong { .. } => self.unexpected(error),
        }
    }

    /// A stream that ended in the middle.
    pub(crate) fn cut_short(&self, why: &str) -> Failed {
        self.failed(Trouble::Broken, cut(), why)
    }

    /// An answer that is no answer.
    pub(crate) fn unexpected(&self, what: impl Display) -> Failed {
        let reject = reject(RejectKind::BadUpstream, "the model's server answered with nonsense");
        self.failed(Trouble::Failed, reject, what)
    }

    /// A status other than success.
    pub(crate) fn status(&self, status: StatusCode, headers: &HeaderMap, failure: Failure) -> Failed {
        let out_of_time = || reject(RejectKind::UpstreamTimeout, "the model's server ran out of time");
        let failing = || reject(RejectKind::BadUpstream, "the model's server failed");
        let (trouble, mut reject) = match status.as_u16() {
            // The upstream has read the request and names what is wrong with it: the caller can act.
            400 | 409 | 413 | 415 | 422 => {
                let about_content = failure.is_about_content;
                let kind = if about_content { RejectKind::ContentFilter } else { RejectKind::Invalid };
                (Trouble::Refused, self.passed_on(kind, &failure))
            }
            // Of those who moderate what they are asked some say it so.
            403 if failure.is_about_content => (Trouble::Refused, self.moderated(&failure)),
            401..=405 if self.reader == Reader::Chooser => (Trouble::Refused, self.passed_on(kind(status), &failure)),
            401 => (Trouble::Misconfigured, self.operator("the model's server refuses this gateway")),
            // It may be for what this request asks for, or for its price.
            402 | 403 => (Trouble::Refused, self.operator("the model's server refuses this gateway")),
            404 | 405 => {
                (Trouble::Misconfigured, self.operator("the model's server does not know the model or the endpoint"))
            }
            300..=399 => {
                (Trouble::Misconfigured, self.operator("the model's server redirects elsewhere, which is not followed"))
            }
            408 => (Trouble::Busy, out_of_time()),
            429 => {
                let message = "the model's server has too many requests; try again later";
                (Trouble::Busy, reject(RejectKind::RateLimited, message))
            }
            504 => (Trouble::Gateway, out_of_time()),
            502 => (Trouble::Gateway, failing()),
            503 | 529 => (Trouble::Overloaded, failing()),
            _ => (Trouble::Failed, failing()),
        };
        reject.retry_after_s = retry_after(headers, SystemTime::now());
        self.said(trouble, reject, &format!("status {}", status.as_u16()), &failure)
    }

    fn passed_on(&self, kind: RejectKind, failure: &Failure) -> Reject {
        let message = match failure.message.as_str() {
            "" => "the model's server refuses the request without saying why".to_owned(),
            message => self.redact(message),
        };
        let mut reject = Reject::new(kind, Fault::Client, message);
        reject.param = failure.param.clone().filter(|param| is_name(param));
        reject.code = failure.code.clone().filter(|code| is_name(code));
        reject
    }

    /// In the server's words it is for whoever chose it: they may name its account, and quote what was asked.
    fn moderated(&self, failure: &Failure) -> Reject {
        if self.reader == Reader::Chooser {
            return self.passed_on(RejectKind::ContentFilter, failure);
        }
        let message = "the model's server refuses the request by its rules for content; change what the request says";
        Reject::new(RejectKind::ContentFilter, Fault::Client, message)
    }

    fn operator(&self, message: &str) -> Reject {
        let message = format!("{message}; the operator of this gateway must correct that");
        Reject::new(RejectKind::BadUpstream, Fault::Operator, message).code("upstream_misconfigured")
    }

    fn said(&self, trouble: Trouble, reject: Reject, how: &str, failure: &Failure) -> Failed {
        if !self.words {
            return self.failed(trouble, reject, format!("{how}; what it says is not kept"));
        }
        let words = if failure.message.is_empty() { "nothing" } else { &failure.message };
        self.failed(trouble, reject, format!("{how}, saying: {words}"))
    }

    fn failed(&self, trouble: Trouble, reject: Reject, cause: impl Display) -> Failed {
        let cause = self.redact(&format!("upstream `{}`: {cause}", self.upstream));
        Failed { reject: Box::new(reject.because(cause)), trouble }
    }

    fn redact(&self, text: &str) -> String {
        self.api_key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }
}

/// What a status says to whoever chose the server.
fn kind(status: StatusCode) -> RejectKind {
    match status.as_u16() {
        401 => RejectKind::Unauthenticated,
        402 | 403 => RejectKind::Forbidden,
        404 => RejectKind::NotFound,
        _ => RejectKind::MethodNotAllowed,
    }
}

fn reject(kind: RejectKind, message: &str) -> Reject {
    Reject::new(kind, Fault::Upstream, message)
}

fn late() -> Reject {
    reject(RejectKind::UpstreamTimeout, "the model's server did not answer in time")
}

fn too_long() -> Reject {
    reject(RejectKind::BadUpstream, "the model's answer is too long").code("upstream_answer_too_long")
}

/// Whether it can be the name of a field or of a failure. Guards judge what a server says in words, and these not: they pass as
/// they are.
fn is_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-[]".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_of_name)
}

const MAX_NAME_BYTES: usize = 128;

fn cut() -> Reject {
    reject(RejectKind::BadUpstream, "the model's answer broke off before it was complete").code("upstream_cut")
}

/// Whole seconds from `now`, rounded up. Servers say seconds, some of them with a fraction; what stands before them may say a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<u32> {
    let said = headers.get("retry-after")?.to_str().ok()?.trim();
    let seconds = match said.parse::<f64>() {
        Ok(seconds) => Some(seconds).filter(|seconds| *seconds >= 0.0)?,
        Err(_) => httpdate::parse_http_date(said).ok()?.duration_since(now).unwrap_or_default().as_secs_f64(),
    };
    Some(seconds.ceil() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn when_to_come_back_is_said_in_seconds_or_as_a_date() {
        // Sun, 06 Nov 1994 08:49:37 GMT, half a second earlier.
        let now = UNIX_EPOCH + Duration::from_millis(784_111_776_500);
        let cases = [
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("0", Some(0)),
            ("0.4", Some(1)),
            ("99999999999", Some(u32::MAX)),
            ("inf", Some(u32::MAX)),
            ("-1", None),
            ("NaN", None),
            ("soon", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(1)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(61)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(1)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
        ];
        for (said, seconds) in cases {
            let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), said.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), seconds, "{said}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
