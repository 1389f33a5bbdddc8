//! What is owed to a request until it has a reply: its bill, its place among the figures, and word to observers.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::figures::{self, Outcome};
use crate::stages::Unanswered;
use crate::states::Request;
use std::sync::Arc;
use tidegate_ledger::{Charge, Tally};
use tidegate_types::Reject;

/// A request without a record. Dropped, it is one whose client has left, unless the server has ended it. It is dropped behind
/// the request, which has counted all then.
pub(crate) struct Owed {
    unanswered: Option<Arc<Unanswered>>,
    let_in: Option<LetIn>,
}

/// Of a request that was let in: others are no generations.
struct LetIn {
    charge: Option<Arc<Charge>>,
    tally: Arc<Tally>,
    /// What was asked for: there may be no route yet.
    model: String,
    cx: RequestContext,
}

impl Owed {
    /// To a request that is not let in yet.
    pub(crate) fn to(pipeline: &Arc<Pipeline>, cx: &RequestContext, stream: bool) -> Self {
        Self { unanswered: pipeline.unanswered(cx, stream), let_in: None }
    }

    /// Where guards leave what they saw, from now on.
    pub(crate) fn let_in(&mut self, request: &mut Request) {
        request.findings.by(self.unanswered.clone());
        self.let_in = Some(LetIn {
            charge: request.charge.clone(),
            tally: Arc::clone(&request.tally),
            model: request.chat.model.clone(),
            cx: request.cx.clone(),
        });
    }

    /// Its record says the rest.
    pub(crate) fn has_record(&mut self) {
        self.let_in = None;
    }

    /// Bills what was used until then.
    pub(crate) fn refused(mut self, reject: &Reject) {
        if let Some(let_in) = self.let_in.take() {
            let_in.end(Outcome::of(reject));
        }
        self.unanswered.iter().for_each(|unanswered| unanswered.refused(reject));
    }
}

impl LetIn {
    fn end(&self, outcome: Outcome) {
        self.bill(outcome);
        self.count(outcome);
    }

    fn bill(&self, outcome: Outcome) {
        let Some(charge) = &self.charge else { return };
        charge.settle(outcome.as_str());
        self.cx.note(|report| report.cost = charge.billed());
    }

    fn count(&self, outcome: Outcome) {
        let (figures, tokens) = (figures::of_requests(&self.model, &self.cx.caller), self.tally.tokens());
        figures.ended(outcome).increment(1);
        figures.input_tokens.increment(tokens.input);
        figures.output_tokens.increment(tokens.output);
        figures.seconds.record(self.cx.began.elapsed().as_secs_f64());
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        // Observers are told by who is `unanswered`.
        let Some(let_in) = &self.let_in else { return };
        let_in.end(let_in.cx.aborted.get().map_or(Outcome::ClientGone, Outcome::of));
    }
}
