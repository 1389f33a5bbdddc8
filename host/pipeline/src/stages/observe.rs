//! Observers are told how a request ended, after its record was written and on nobody's path.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use std::sync::Arc;
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

impl Pipeline {
    /// Tells every observer, beside each other.
    pub(crate) fn tell(self: &Arc<Self>, cx: &RequestContext, request: &Span, ending: Ending) {
        if self.stages.observers.is_empty() {
            return;
        }
        let (pipeline, cx) = (Arc::clone(self), cx.clone());
        self.background.start("observer", request, async move {
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
                    // A failure was logged and counted; there is no request left that could fail.
                    let _ = stage
                        .call(StageKind::Observer, &call, async |plugin| plugin.on_complete(&call, summary).await)
                        .await;
                }
            };
            futures_util::future::join_all((0..pipeline.stages.observers.len()).map(tell)).await;
        });
    }

    /// Tells of a request that ended before there was a reply.
    pub(crate) fn tell_refused(self: &Arc<Self>, cx: &RequestContext, stream: bool, reject: &Reject, total: Duration) {
        let ending = Ending {
            outcome: outcome(reject),
            detail: reject.code.clone().unwrap_or_default(),
            model: String::new(),
            usage: Usage::default(),
            first: None,
            total,
            findings: Vec::new(),
            stream,
        };
        self.tell(cx, &Span::current(), ending);
    }
}

/// `refused` by a guard, a limit or for what it asked; `failed` otherwise.
pub(crate) fn outcome(reject: &Reject) -> &'static str {
    let limited = reject.kind == RejectKind::RateLimited || reject.code.as_deref() == Some("overloaded");
    if reject.fault == Fault::Client || limited { "refused" } else { "failed" }
}
