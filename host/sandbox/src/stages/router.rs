//! `router`: orders the candidates for a request. Checked: it names only what was offered, each once, and something.

use super::{Answer, StageCall};
use crate::bindings::exports::tidegate::plugin::router as guest;
use crate::bindings::tidegate::plugin::types as wit;
use crate::convert::{self, Made, Rows};
use crate::instance::Guests;
use crate::stage::{Candidate, Decision, Descriptor, RouteRequest, StageKind};
use crate::state::HostState;
use wasmtime::Store;

pub(crate) struct Route<'a> {
    pub(crate) request: RouteRequest<'a>,
    pub(crate) candidates: &'a [Candidate],
}

impl StageCall for Route<'_> {
    const STAGE: StageKind = StageKind::Router;
    type Raw = guest::Decision;
    type Out = Decision;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<guest::Decision> {
        let RouteRequest { messages, prompt_tokens, findings, attrs } = self.request;
        let made = Made::of_messages(messages);
        let rows = Rows::of(messages, &made);
        let request = guest::Request {
            messages: &rows.messages(messages),
            prompt_tokens,
            findings: &convert::findings(findings),
            attrs: &convert::attrs(attrs),
        };
        let notes: Vec<_> = self.candidates.iter().map(|candidate| convert::attrs(&candidate.attrs)).collect();
        let candidates: Vec<_> = self.candidates.iter().zip(&notes).map(|(c, attrs)| candidate(c, attrs)).collect();
        guests.router(store)?.call_route(store, context, request, &candidates).await
    }

    fn check(&self, raw: guest::Decision, _: &Descriptor) -> Result<Decision, String> {
        if raw.order.is_empty() {
            return Err("it names no candidate".into());
        }
        for (index, id) in raw.order.iter().enumerate() {
            if !self.candidates.iter().any(|candidate| candidate.id == *id) {
                return Err(format!("candidate `{}` was not offered", id.escape_debug()));
            }
            if raw.order[..index].contains(id) {
                return Err(format!("candidate `{}` is named twice", id.escape_debug()));
            }
        }
        Ok(Decision { order: raw.order, reason: raw.reason })
    }
}

fn candidate<'a>(candidate: &'a Candidate, attrs: &'a [(&'a str, &'a str)]) -> guest::Candidate<'a> {
    guest::Candidate {
        id: &candidate.id,
        model: &candidate.model,
        healthy: candidate.healthy,
        context_tokens: candidate.context_tokens,
        attrs,
    }
}
