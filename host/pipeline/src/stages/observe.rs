//! Observers are told how a request ended, after its record was written and on nobody's path.

use crate::account::DROPPED;
use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::figures::Outcome;
use crate::stage::Size;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_sandbox::stage::{StageKind, Summary};
use tidegate_types::{Finding, Reject, Usage};
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

/// A request without a record, of which observers are told if it never gets one: once it is refused, or by whoever drops it
/// last, as where its client has left.
pub(crate) struct Unanswered {
    pipeline: Arc<Pipeline>,
    cx: RequestContext,
    stream: bool,
    /// Of the request, in a trace.
    span: Span,
    /// What guards saw, once the request is over.
    findings: Mutex<Vec<Finding>>,
    /// Or its record tells.
    is_told: AtomicBool,
}

impl Unanswered {
    pub(crate) fn has_record(&self) {
        self.is_told.store(true, Ordering::Relaxed);
    }

    pub(crate) fn saw(&self, findings: &mut Vec<Finding>) {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).append(findings);
    }

    pub(crate) fn refused(&self, reject: &Reject) {
        self.tell(Outcome::of(reject).as_str(), reject.code.as_deref().unwrap_or_default());
    }

    fn tell(&self, outcome: &'static str, detail: &str) {
        if self.is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let ending = Ending {
            outcome,
            detail: detail.to_owned(),
            model: String::new(),
            usage: Usage::default(),
            first: None,
            total: self.cx.began.elapsed(),
            findings: std::mem::take(&mut *self.findings.lock().unwrap_or_else(PoisonError::into_inner)),
            stream: self.stream,
        };
        self.pipeline.tell(&self.cx, &self.span, ending);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        match self.cx.aborted.get().cloned() {
            Some(reject) => self.refused(&reject),
            None => self.tell(Outcome::ClientGone.as_str(), DROPPED),
        }
    }
}

impl Pipeline {
    /// Nothing where nobody is told.
    pub(crate) fn unanswered(self: &Arc<Self>, cx: &RequestContext, stream: bool) -> Option<Arc<Unanswered>> {
        let is_told = !self.stages.observers.is_empty();
        is_told.then(|| {
            let (pipeline, cx, span) = (Arc::clone(self), cx.clone(), Span::current());
            Arc::new(Unanswered {
                pipeline,
                cx,
                stream,
                span,
                findings: Mutex::default(),
                is_told: AtomicBool::new(false),
            })
        })
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
                        .call_after(Size::Sent(0), StageKind::Observer, &call, async |plugin| {
                            plugin.on_complete(&call, summary).await
                        })
                        .await;
                }
            };
            futures_util::future::join_all((0..pipeline.stages.observers.len()).map(tell)).await;
        });
    }
}
