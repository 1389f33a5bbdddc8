//! Lets a request in, or says when to come back.

use crate::admission::Place;
use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::gate::Metered;
use crate::states::{Admitted, HeldLimits, Request, Seen};
use metrics::counter;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidegate_ledger::{Charge, Ledger, Tally, Who};
use tidegate_types::{Caller, Chat, Fault, LeftOut, ROUTED_MODEL, Reject, RejectKind, Scope};
use tidegate_upstream::Attempts;

/// Gateways that a request may come through before this one: more are a loop.
const MAX_HOPS: u8 = 4;

impl Pipeline {
    pub(crate) async fn admit(&self, chat: Chat, cx: RequestContext) -> Result<Admitted, Reject> {
        let place = Arc::new(self.enter(&chat.model, &cx)?);
        let books = Books::open(self.ledger.as_ref(), &chat, &cx);
        let caller = self.gate.admit(&cx.caller, &[books.metered(&chat)]).await?;
        Ok(admitted(chat, cx, books, HeldLimits::new(place, caller)))
    }

    /// As [`Self::admit`], of prompts of one request: they are one to the limits of their caller, and have one place.
    pub(crate) async fn admit_together(&self, asked: Vec<(Chat, RequestContext)>) -> Result<Vec<Admitted>, Reject> {
        let Some((chat, cx)) = asked.first() else { return Ok(Vec::new()) };
        let place = Arc::new(self.enter(&chat.model, cx)?);
        let books: Vec<Books> = asked.iter().map(|(chat, cx)| Books::open(self.ledger.as_ref(), chat, cx)).collect();
        let metered: Vec<Metered<'_>> =
            books.iter().zip(&asked).map(|(books, (chat, _))| books.metered(chat)).collect();
        let caller = self.gate.admit(&cx.caller, &metered).await?;
        let held = || HeldLimits::new(Arc::clone(&place), caller.clone());
        Ok(asked.into_iter().zip(books).map(|((chat, cx), books)| admitted(chat, cx, books, held())).collect())
    }

    /// Lets in a request that is for no model: it has its place, and counts as one of no tokens, until this is dropped.
    pub(super) async fn admit_alone(&self, cx: &RequestContext) -> Result<HeldLimits, Reject> {
        let place = Arc::new(self.place(&cx.caller)?);
        Ok(HeldLimits::new(place, self.gate.admit(&cx.caller, &[]).await?))
    }

    /// A place for a request for `model`.
    fn enter(&self, model: &str, cx: &RequestContext) -> Result<Place, Reject> {
        if cx.hops > MAX_HOPS {
            let message = format!("the request came through {} gateways; one of them is its own upstream", cx.hops);
            return Err(Reject::new(RejectKind::BadUpstream, Fault::Operator, message).code("gateway_loop"));
        }
        self.check_model(model, &cx.caller.scope)?;
        self.place(&cx.caller)
    }

    fn place(&self, caller: &Caller) -> Result<Place, Reject> {
        self.admission.enter(caller).ok_or_else(|| {
            let message = format!("the server has {} requests in work, its limit; try again", self.limits.max_inflight);
            Reject::unavailable(Fault::Operator, message, 1).code("overloaded")
        })
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

/// Where what is used is counted, and written down where somebody wants that.
struct Books {
    charge: Option<Arc<Charge>>,
    tally: Arc<Tally>,
}

impl Books {
    fn open(ledger: Option<&Arc<Ledger>>, chat: &Chat, cx: &RequestContext) -> Self {
        let charge = ledger.map(|ledger| Arc::new(ledger.follow(who(chat, cx))));
        let tally = charge.as_ref().map_or_else(Arc::<Tally>::default, |charge| Arc::clone(charge.tally()));
        Self { charge, tally }
    }

    fn metered<'a>(&'a self, chat: &'a Chat) -> Metered<'a> {
        Metered { chat, tally: &self.tally }
    }
}

fn admitted(chat: Chat, cx: RequestContext, Books { charge, tally }: Books, held: HeldLimits) -> Admitted {
    Admitted(Box::new(Request {
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
        left_out: LeftOut::default(),
        summarized: LeftOut::default(),
        may_shorten: false,
        summary: None,
        summary_through: 0,
        lacks: AtomicBool::new(false),
        seat: None,
        held,
    }))
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
