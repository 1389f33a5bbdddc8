//! How a request may fail. One type from the parser to the engine, so that every failure ends in one answer.

use crate::quota::Limited;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whose fault it is; decides who is to act, and what is logged at which level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The caller must change the request.
    Client,
    /// A plugin failed.
    Plugin,
    /// The engine failed.
    Engine,
    /// An upstream failed.
    Upstream,
    /// The operator must change the config.
    Operator,
}

/// What a caller can act on; `wire` maps it to a status and OpenAI's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RejectKind {
    /// 400: the request is wrong; `param` says where.
    Invalid,
    /// 401: no key or a wrong one.
    Unauthenticated,
    /// 403: the key may not do this.
    Forbidden,
    /// 404: no such model or path.
    NotFound,
    /// 405: the path exists, the method does not.
    MethodNotAllowed,
    /// 408: the request took too long to arrive.
    RequestTimeout,
    /// 409: something that is there, or was asked before, is in the way.
    Conflict,
    /// 413: the body is over the limit.
    TooLarge,
    /// 415: not JSON.
    UnsupportedMedia,
    /// 400 with code `content_filter`: a guard, or the model's server, refused the prompt for what it says.
    ContentFilter,
    /// 429: too many requests or tokens.
    RateLimited,
    /// 500: a defect here.
    Internal,
    /// 502: the upstream answered nonsense or broke off.
    BadUpstream,
    /// 503: full or not ready; `retry_after_s` says when to come back.
    Unavailable,
    /// 504: the upstream did not answer in time.
    UpstreamTimeout,
}

/// A refused or failed request. `message` is for the caller; `cause` only for the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reject {
    /// What the caller can act on.
    pub kind: RejectKind,
    /// Whose fault it is.
    pub fault: Fault,
    /// Names the thing, the limit and the remedy.
    pub message: String,
    /// The request's field, as a path: `messages[2].content`.
    pub param: Option<String>,
    /// A stable word for programs: `context_length_exceeded`.
    pub code: Option<String>,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u32>,
    /// Whether it is better not tried again, as clients do by themselves after such a status: the answer may be made and billed
    /// each time, and come too late each time, or there is none before the operator has done something.
    pub is_final: bool,
    /// What is left to a limited caller, and the limit that refused it, where one did.
    pub limited: Option<Box<Limited>>,
    /// For the log only; may name plugins, paths and upstreams.
    pub cause: Option<String>,
}

impl Reject {
    /// A failure with a kind, a fault and a message for the caller.
    pub fn new(kind: RejectKind, fault: Fault, message: impl Into<String>) -> Self {
        Self {
            kind,
            fault,
            message: message.into(),
            param: None,
            code: None,
            retry_after_s: None,
            is_final: false,
            limited: None,
            cause: None,
        }
    }

    /// The caller's request is wrong at `param`.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(RejectKind::Invalid, Fault::Client, message).at(param)
    }

    /// A defect or failure on our side; `cause` is logged, the caller reads a generic line.
    pub fn internal(fault: Fault, cause: impl Into<String>) -> Self {
        let mut reject = Self::new(RejectKind::Internal, fault, "the server failed to process the request");
        reject.cause = Some(cause.into());
        reject
    }

    /// Full or not ready.
    pub fn unavailable(fault: Fault, message: impl Into<String>, retry_after_s: u32) -> Self {
        let mut reject = Self::new(RejectKind::Unavailable, fault, message);
        reject.retry_after_s = Some(retry_after_s);
        reject
    }

    /// Somebody asked for the end of what was being made, which has made what there is of it.
    pub fn cancelled() -> Self {
        Self::new(RejectKind::Invalid, Fault::Client, "the stream was cancelled").code("cancelled")
    }

    /// Whether it is [`Self::cancelled`], and not a failure of the same code: an upstream chooses its words. What it says comes
    /// with a cause, which this has not.
    pub fn is_cancelled(&self) -> bool {
        *self == Self::cancelled()
    }

    /// Sets the request's field.
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Sets the stable word for programs.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Sets the cause for the log.
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}): {}", self.kind, self.fault, self.message)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Reject {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cancelled_is_told_from_what_says_so() {
        assert!(Reject::cancelled().is_cancelled());
        let other = Reject::new(RejectKind::Invalid, Fault::Client, "no").code("cancelled");
        for said in [other, Reject::cancelled().because("upstream `u`: status 400")] {
            assert!(!said.is_cancelled(), "{said}");
        }
    }
}
