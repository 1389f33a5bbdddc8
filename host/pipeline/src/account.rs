//! Every accepted request ends in exactly one record: answered, failed, ended by the server, or the client went away.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::figures::{self, Outcome};
use crate::reply::ReplyEvent;
use crate::stages::Ending;
use crate::states::Seen;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_ledger::{Charge, Tally};
use tidegate_trace as trace;
use tidegate_types::{DeltaKind, Finding, FinishReason, Reject, Usage};
use tidegate_upstream::Attempts;
use tracing::Span;

/// Why a request ended whose client has left.
pub(crate) const DROPPED: &str = "dropped";

/// Watches one reply and writes its record when it ends, or is dropped before.
pub(crate) struct Record {
    cx: RequestContext,
    model: String,
    /// What was counted as it came: all there is to say where an answer has no usage, or no end.
    tally: Arc<Tally>,
    first: Option<Duration>,
    usage: Option<Usage>,
    finish: Option<FinishReason>,
    written: bool,
    stream: bool,
    observed: Option<(Arc<Pipeline>, Findings)>,
    /// A guard answers, and no model: observers are told of none.
    is_guards: bool,
    charge: Option<Arc<Charge>>,
    attempts: Attempts,
    /// Of the request in a trace, or of its prompt, which nobody is in while its answer is made.
    span: trace::Lasting,
}

/// What the guards of one answer saw, left where its record finds it.
pub(crate) type Findings = Arc<Mutex<Vec<Finding>>>;

impl Record {
    pub(crate) fn new(cx: &RequestContext, model: String, stream: bool, tally: &Arc<Tally>) -> Self {
        tracing::debug!(request = %cx.request_id, model, stream, "accepted");
        Self {
            cx: cx.clone(),
            model,
            tally: Arc::clone(tally),
            first: None,
            usage: None,
            finish: None,
            written: false,
            stream,
            observed: None,
            is_guards: false,
            charge: None,
            attempts: Attempts::default(),
            span: trace::Lasting::of(Span::current()),
        }
    }

    /// Has what was used billed with the record.
    pub(crate) fn bill(&mut self, charge: Option<Arc<Charge>>) {
        self.charge = charge;
    }

    /// Says that no model answers.
    pub(crate) fn answered_by_guard(&mut self) {
        self.is_guards = true;
    }

    /// Says how often upstreams were asked.
    pub(crate) fn count_attempts(&mut self, attempts: &Attempts) {
        self.attempts = attempts.clone();
    }

    /// Has the observers told, where there are some; gives the place for what guards saw.
    pub(crate) fn observe(&mut self, pipeline: &Arc<Pipeline>, seen: &Seen) -> Option<Findings> {
        if pipeline.stages.observers.is_empty() {
            return None;
        }
        seen.has_record();
        let findings = Arc::new(Mutex::new(seen.to_vec()));
        self.observed = Some((Arc::clone(pipeline), Arc::clone(&findings)));
        Some(findings)
    }

    pub(crate) fn note(&mut self, event: &ReplyEvent) {
        if self.first.is_none() {
            self.first = Some(self.cx.began.elapsed());
        }
        match event {
            ReplyEvent::Usage(usage) => self.usage = Some(*usage),
            ReplyEvent::Uncited => {}
            ReplyEvent::Delta(delta) => {
                if let DeltaKind::Finish(reason) = delta.kind {
                    self.finish = Some(reason);
                }
            }
        }
    }

    /// What it cost, of a request that nothing streams back from.
    pub(crate) fn used(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    pub(crate) fn ended(&mut self) {
        let reason = self.finish.map_or("none", FinishReason::as_str);
        self.write(Outcome::Answered, reason);
    }

    pub(crate) fn failed(&mut self, reject: &Reject) {
        self.write(Outcome::of(reject), reject.code.as_deref().unwrap_or("error"));
    }

    fn write(&mut self, outcome: Outcome, detail: &str) {
        if std::mem::replace(&mut self.written, true) {
            return;
        }
        if let Some(charge) = &self.charge {
            charge.settle(outcome.as_str());
            self.cx.note(|report| report.cost = charge.billed());
        }
        let usage = self.usage.unwrap_or_else(|| self.tally.tokens().into());
        let total = self.cx.began.elapsed();
        self.count(outcome, usage, total);
        tracing::info!(
            request = %self.cx.request_id,
            tenant = %self.cx.caller.tenant,
            project = %self.cx.caller.owner(),
            key = %self.cx.caller.key_name,
            class = self.cx.caller.class.as_str(),
            weight = self.cx.caller.weight,
            model = %self.model,
            outcome = outcome.as_str(),
            detail,
            input_tokens = usage.input_tokens,
            cached_tokens = usage.cached_tokens,
            output_tokens = usage.output_tokens,
            first_ms = self.first.unwrap_or(total).as_millis() as u64,
            total_ms = total.as_millis() as u64,
            upstream_attempts = self.attempts.count(),
            "request"
        );
        self.trace(detail, usage);
        self.tell(outcome.as_str(), detail, usage, total);
    }

    /// What was asked and what it used, by the names of OpenTelemetry's conventions for generative models.
    fn trace(&self, detail: &str, usage: Usage) {
        if self.span.is_disabled() {
            return;
        }
        trace::note(&self.span, "gen_ai.provider.name", "tidegate");
        trace::note(&self.span, "gen_ai.request.model", self.model.clone());
        trace::note(&self.span, "gen_ai.usage.input_tokens", trace::whole(usage.input_tokens));
        trace::note(&self.span, "gen_ai.usage.output_tokens", trace::whole(usage.output_tokens));
        trace::note(&self.span, "tidegate.finish", detail.to_owned());
        if let Some(first) = self.first {
            trace::note(&self.span, "tidegate.first_ms", first.as_secs_f64() * 1e3);
        }
    }

    fn tell(&mut self, outcome: &'static str, detail: &str, usage: Usage, total: Duration) {
        let Some((pipeline, findings)) = self.observed.take() else { return };
        let findings = std::mem::take(&mut *findings.lock().unwrap_or_else(PoisonError::into_inner));
        let ending = Ending {
            outcome,
            detail: detail.to_owned(),
            model: if self.is_guards { String::new() } else { self.model.clone() },
            usage,
            first: self.first,
            total,
            findings,
            stream: self.stream,
        };
        pipeline.tell(&self.cx, &self.span, ending);
    }

    fn count(&self, outcome: Outcome, usage: Usage, total: Duration) {
        let figures = figures::of_requests(&self.model, &self.cx.caller);
        figures.ended(outcome).increment(1);
        figures.input_tokens.increment(usage.input_tokens);
        figures.output_tokens.increment(usage.output_tokens);
        figures.seconds.record(total.as_secs_f64());
        if let Some(first) = self.first {
            figures.to_first_token.record(first.as_secs_f64());
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        match self.cx.aborted.get().cloned() {
            Some(reject) => self.failed(&reject),
            None => self.write(Outcome::ClientGone, DROPPED),
        }
    }
}
