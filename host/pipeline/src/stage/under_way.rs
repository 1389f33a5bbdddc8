//! A call of a plugin, and what is told of it however it ends: its time in the metrics, its outcome in its span. Invariant:
//! a call that was begun is told of once.

use super::Stage;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::StageKind;
use tracing::Span;

/// The case of a call that nobody waited for to its end: its client went away, or something else ended the request.
pub(crate) const CUT_OFF: &str = "cut-off";

/// A call of a plugin. Dropped without [`UnderWay::end`] it was cut off, and is told of all the same.
pub(super) struct UnderWay<'s> {
    stage: &'s Stage,
    kind: StageKind,
    started: Instant,
    span: Span,
    has_ended: bool,
}

impl<'s> UnderWay<'s> {
    pub(super) fn begin(stage: &'s Stage, kind: StageKind, started: Instant) -> Self {
        Self { stage, kind, started, span: stage.span(kind), has_ended: false }
    }

    /// As `instrument` does it, where the work is: what a call of a guard needs is large, and moving it costs more than the
    /// span.
    pub(super) async fn run<F: Future>(&self, mut work: Pin<&mut F>) -> F::Output {
        poll_fn(|cx| {
            let _entered = self.span.enter();
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Gives how long it took.
    pub(super) fn end(mut self, failure: Option<&'static str>) -> Duration {
        self.has_ended = true;
        self.tell(failure)
    }

    fn tell(&self, failure: Option<&'static str>) -> Duration {
        let Self { stage, kind, span, .. } = self;
        span.record("outcome", failure.unwrap_or("ok"));
        let took = self.started.elapsed();
        stage.figures.calls(&stage.name, *kind).record(took.as_secs_f64());
        // A span that nothing is said in is not seen in a log.
        span.in_scope(|| tracing::debug!(us = took.as_micros(), "called"));
        took
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tell(Some(CUT_OFF));
            self.stage.count_failure(self.kind, CUT_OFF);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::stage::tests::shipped;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use tidegate_sandbox::stage::CallContext;
    use tidegate_types::{Caller, RequestId, Retention};

    pub(crate) fn context() -> CallContext {
        CallContext {
            request_id: RequestId::new("r"),
            caller: Arc::new(Caller::local()),
            retention: Retention::Kept,
            deadline: Duration::from_secs(1),
            began: None,
            streaming: false,
            hops: 0,
        }
    }

    #[test]
    fn a_call_that_is_cut_off_is_timed_and_counted_and_is_no_failure_of_the_plugin() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let figures = recorder.handle();
        let (stage, kind) = (shipped(), StageKind::PromptGuard);
        let cx = context();
        metrics::with_local_recorder(&recorder, || {
            let mut call = Box::pin(stage.call(kind, &cx, async |_| std::future::pending::<Result<(), _>>().await));
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(!figures.render().contains("tidegate_plugin"), "it is not over");
            drop(call);
        });
        let figures = figures.render();
        let labels = "plugin=\"pii-guard\",stage=\"prompt-guard\"";
        let counted = format!("tidegate_plugin_failures_total{{{labels},case=\"cut-off\"}} 1");
        let timed = format!("tidegate_plugin_call_seconds_count{{{labels}}} 1");
        assert!(figures.contains(&counted) && figures.contains(&timed), "{figures}");
        assert!(!stage.breaker.has_failures(&cx.caller.tenant));
    }
}
