//! Lets a request in, or says when to come back.

use crate::chat::{Pipeline, ROUTED_MODEL};
use crate::context::RequestContext;
use crate::gate::Hold;
use crate::states::{Admitted, HeldLimits, Request, Seen};
use metrics::counter;
use serde_json::Value;
use std::sync::Arc;
use tidegate_ledger::{Tally, Who};
use tidegate_types::{Caller, Chat, Fault, Reject, RejectKind, Scope};
use tidegate_upstream::Attempts;

/// Gateways that a request may come through before this one: more are a loop.
const MAX_HOPS: u8 = 4;

impl Pipeline {
    pub(crate) async fn admit(&self, chat: Chat, cx: RequestContext) -> Result<Admitted, Reject> {
        if cx.hops > MAX_HOPS {
            let message = format!("the request came through {} gateways; one of them is its own upstream", cx.hops);
            return Err(Reject::new(RejectKind::BadUpstream, Fault::Operator, message).code("gateway_loop"));
        }
        self.check_model(&chat.model, &cx.caller.scope)?;
        let Some(place) = self.admission.enter(&cx.caller) else {
            let message = format!("the server has {} requests in work, its limit; try again", self.limits.max_inflight);
            return Err(Reject::unavailable(Fault::Operator, message, 1).code("overloaded"));
        };
        let charge = self.ledger.as_ref().map(|ledger| Arc::new(ledger.follow(who(&chat, &cx))));
        let tally = charge.as_ref().map_or_else(Arc::<Tally>::default, |charge| Arc::clone(charge.tally()));
        let caller = self.gate.admit(&cx.caller, &chat, &tally).await?;
        let held = HeldLimits { place: Arc::new(place), caller, model: Hold::default() };
        Ok(Admitted(Box::new(Request {
            chat: Arc::new(chat),
            cx,
            findings: Seen::default(),
            pending: None,
            question: None,
            notes: Vec::new(),
            charge,
            tally,
            attempts: Attempts::default(),
            citations: Vec::new(),
            left_out: 0,
            summarized: 0,
            may_shorten: false,
            summary: None,
            summary_through: 0,
            held,
        })))
    }

    /// Before anything is counted or asked, so that a model that the caller may not use and one that does not exist
    /// cost the same and look the same.
    fn check_model(&self, name: &str, scope: &Scope) -> Result<(), Reject> {
        let routed = name == ROUTED_MODEL && self.routes();
        if routed && scope.allows(name) {
            return Ok(());
        }
        self.models.allowed(name, scope).map(drop).inspect_err(|_| {
            if self.models.get(name).is_ok() {
                counter!("tidegate_scope_denials_total", "reason" => "model").increment(1);
            }
        })
    }
}

/// For the books.
pub(crate) fn who(chat: &Chat, cx: &RequestContext) -> Who {
    Who {
        generation: cx.generation.to_string(),
        request_id: cx.request_id.to_string(),
        tenant: cx.caller.tenant.to_string(),
        project: cx.caller.project.as_ref().map(ToString::to_string),
        key_name: cx.caller.key_name.to_string(),
        end_user: end_user(&cx.caller, chat).map(str::to_owned),
    }
}

/// The person who asks, where that is known: whom a token names, or on whose behalf a program says that it asks. OpenAI
/// calls that `user`, and newly `safety_identifier`.
pub(crate) fn end_user<'a>(caller: &'a Caller, chat: &'a Chat) -> Option<&'a str> {
    let said = || ["safety_identifier", "user"].iter().find_map(|field| chat.extra.get(*field).and_then(Value::as_str));
    caller.user.as_deref().or_else(said)
}
