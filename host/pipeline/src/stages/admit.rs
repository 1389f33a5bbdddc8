//! Lets a request in, or says when to come back.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::states::{Admitted, Request};
use serde_json::Value;
use std::sync::Arc;
use tidegate_ledger::Who;
use tidegate_types::{Chat, Fault, Reject, RejectKind};

/// Gateways that a request may come through before this one: more are a loop.
const MAX_HOPS: u8 = 4;

impl Pipeline {
    pub(crate) fn admit(&self, chat: Chat, cx: RequestContext) -> Result<Admitted, Reject> {
        if cx.hops > MAX_HOPS {
            let message = format!("the request came through {} gateways; one of them is its own upstream", cx.hops);
            return Err(Reject::new(RejectKind::BadUpstream, Fault::Operator, message).code("gateway_loop"));
        }
        let Ok(permit) = self.admission.clone().try_acquire_owned() else {
            let message = format!("the server has {} requests in work, its limit; try again", self.limits.max_inflight);
            return Err(Reject::unavailable(Fault::Operator, message, 1).code("overloaded"));
        };
        let charge = self.ledger.as_ref().map(|ledger| Arc::new(ledger.follow(who(&chat, &cx))));
        Ok(Admitted(Request {
            chat,
            cx,
            findings: Vec::new(),
            pending: None,
            question: None,
            charge,
            left_out: 0,
            may_shorten: false,
            permit,
        }))
    }
}

/// For the books. OpenAI calls the end user `user`, and newly `safety_identifier`.
pub(crate) fn who(chat: &Chat, cx: &RequestContext) -> Who {
    let named = ["safety_identifier", "user"].iter().find_map(|field| chat.extra.get(*field).and_then(Value::as_str));
    Who {
        generation: cx.generation.to_string(),
        request_id: cx.request_id.to_string(),
        tenant: cx.caller.tenant.to_string(),
        key_name: cx.caller.key_name.to_string(),
        end_user: named.map(str::to_owned),
    }
}
