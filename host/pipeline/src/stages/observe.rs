//! Observers are told how a request ended, after its record was written and on nobody's path.

use crate::account::Findings;
use crate::chat::Pipeline;
use crate::context::RequestContext;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tidegate_sandbox::stage::{StageKind, Summary};
use tidegate_types::{Fault, Finding, Reject, RejectKind, Usage};
use tracing::Span;

/// How a request ended, kept until observers have been told.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) outcome: &'static str,
    pub(crate) detail: String,
    pub(crate) model: String,
    pub(crate) usage: Usage,
    pub(crate) first: Option<Duration>,
    pub(crate) total: Duration,
    pub(crate) findings: Vec<Finding>,
    pub(crate) stream: bool,
}

/// A request that has no reply yet, of which observers are told if it never gets one.
pub(crate) struct Unanswered {
    cx: RequestContext,
    /// What guards saw, once the request is over.
    findings: Findings,
}

impl Unanswered {
    pub(crate) fn findings(&self) -> Findings {
        Arc::clone(&self.findings)
    }
}

impl Pipeline {
    /// Nothing where nobody is told.
    pub(crate) fn unanswered(&self, cx: &RequestContext) -> Option<Unanswered> {
        let is_told = !self.stages.observers.is_empty();
        is_told.then(|| Unanswered { cx: cx.clone(), findings: Findings::default() })
    }

    /// Tells every observer, beside each other.
    pub(crate) fn tell(self: &Arc<Self>, cx: &RequestContext, request: &Span, ending: Ending) {
        if self.stages.observers.is_empty() {
            return;
        }
        let (pipeline, cx, caller) = (Arc::clone(self), cx.clone(), Arc::clone(&cx.caller));
        self.background.start("observer", &caller, request, async move {
            let attrs = [("stream".to_owned(), ending.stream.to_string())];
            let tell = |stage: usize| {
                let (stage, ending, cx, attrs) = (&pipeline.stages.observers[stage], &ending, &cx, &attrs[..]);
                async move {
                    let call = cx.call(ending.stream, stage.wall);
                    let summary = Summary {
                        outcome: ending.outcome,
                        detail: &ending.detail,
                        model: &ending.model,
                        usage: ending.usage,
                        first: ending.first,
                        total: ending.total,
                        findings: &ending.findings,
                        attrs,
                    };
                    stage
                        .call_after(0, StageKind::Observer, &call, async |plugin| {
                            plugin.on_complete(&call, summary).await
                        })
                        .await;
                }
            };
            futures_util::future::join_all((0..pipeline.stages.observers.len()).map(tell)).await;
        });
    }

    /// Tells of a request that ended before there was a reply.
    pub(crate) fn tell_refused(self: &Arc<Self>, request: Option<Unanswered>, stream: bool, reject: &Reject) {
        let Some(Unanswered { cx, findings }) = request else { return };
        let findings = std::mem::take(&mut *findings.lock().unwrap_or_else(PoisonError::into_inner));
        let ending = Ending {
            outcome: outcome(reject),
            detail: reject.code.clone().unwrap_or_default(),
            model: String::new(),
            usage: Usage::default(),
            first: None,
            total: cx.began.elapsed(),
            findings,
            stream,
        };
        self.tell(&cx, &Span::current(), ending);
    }
}

/// `refused` by a guard, a limit or for what it asked; `failed` otherwise.
pub(crate) fn outcome(reject: &Reject) -> &'static str {
    let limited = reject.kind == RejectKind::RateLimited || reject.code.as_deref() == Some("overloaded");
    if reject.fault == Fault::Client || limited { "refused" } else { "failed" }
}
