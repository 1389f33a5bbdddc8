//! What every stage of one request knows.

use std::sync::Arc;
use std::time::Duration;
use tidegate_sandbox::stage::CallContext;
use tidegate_types::{Caller, RequestId};

/// Who asks, under which id. Given by `api`.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Names the request everywhere.
    pub request_id: RequestId,
    /// Names what is generated for it, in the answer's own id and in the books. No other request has it.
    pub generation: Arc<str>,
    /// The authenticated caller.
    pub caller: Arc<Caller>,
    /// Gateways of this kind that the request came through before.
    pub hops: u8,
}

impl RequestContext {
    /// The context of a plugin's call that may take `wall`.
    pub(crate) fn call(&self, streaming: bool, wall: Duration) -> CallContext {
        CallContext {
            request_id: self.request_id.clone(),
            caller: self.caller.as_ref().clone(),
            deadline: wall,
            streaming,
        }
    }
}
