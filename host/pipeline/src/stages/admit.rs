//! Lets a request in, or says when to come back.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::states::{Admitted, Request};
use tidegate_types::{Chat, Fault, Reject};

impl Pipeline {
    pub(crate) fn admit(&self, chat: Chat, cx: RequestContext) -> Result<Admitted, Reject> {
        let Ok(permit) = self.admission.clone().try_acquire_owned() else {
            let message = format!("the server has {} requests in work, its limit; try again", self.limits.max_inflight);
            return Err(Reject::unavailable(Fault::Operator, message, 1).code("overloaded"));
        };
        Ok(Admitted(Request { chat, cx, findings: Vec::new(), permit }))
    }
}
