//! What every stage of one request knows.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::for_line;
use tidegate_sandbox::stage::CallContext;
use tidegate_types::{Caller, Message, Notebook, Reject, RequestId, Retention, Transcript};
use tidegate_upstream::Sending;

/// Who asks, under which id. Given by `api`.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Names the request everywhere.
    pub request_id: RequestId,
    /// Names what is generated for it, in the answer's own id and in the books. No other request has it.
    pub generation: Arc<str>,
    /// When it was read and let in: what its times count from.
    pub began: Instant,
    /// The authenticated caller.
    pub caller: Arc<Caller>,
    /// Whether something of its content may be kept.
    pub retention: Retention,
    /// Gateways of this kind that the request came through before.
    pub hops: u8,
    /// What gives the request's messages once it was let in: with what was said before, where it is part of a conversation that is
    /// kept.
    pub history: Option<History>,
    /// Where what is known of the answer is noted, where somebody keeps it.
    pub notebook: Option<Notebook>,
    /// Why the server itself ends the request, said before that is dropped. One that is dropped without has lost its client.
    pub aborted: Arc<OnceLock<Reject>>,
}

/// Puts what was said before in front of what is asked now, when the request has been let in.
#[derive(Clone)]
pub struct History(pub LoadHistory);

/// Takes the messages of a request and gives them with those before.
pub type LoadHistory = Arc<dyn Fn(Vec<Message>) -> Loading + Send + Sync>;

/// A history being read.
pub type Loading = Pin<Box<dyn Future<Output = Result<Transcript, Reject>> + Send>>;

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("History")
    }
}

impl RequestContext {
    /// What a plugin or a template said for the operator, where that may be kept.
    pub(crate) fn for_log(&self, said: Option<String>) -> Option<String> {
        said.filter(|_| self.retention == Retention::Kept).map(|said| for_line(&said).into_owned())
    }

    /// How the request is sent to another server.
    pub(crate) fn sending(&self) -> Sending {
        Sending { request_id: self.request_id.clone(), hops: self.hops + 1, retention: self.retention }
    }

    /// The context of a plugin's call that begins now and may take `wall`.
    pub(crate) fn call(&self, streaming: bool, wall: Duration) -> CallContext {
        CallContext {
            request_id: self.request_id.clone(),
            caller: Arc::clone(&self.caller),
            hops: self.hops,
            retention: self.retention,
            deadline: wall,
            began: Some(Instant::now()),
            streaming,
        }
    }
}
