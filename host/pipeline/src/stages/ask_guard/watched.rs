//! What is counted and told of one text at its stream guard: how long that kept it back, and all calls about it as one span.

use crate::stage::{CUT_OFF, Stage, Timed};
use metrics::Histogram;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{Inspection, StageKind, WindowAction};
use tidegate_trace as trace;
use tracing::Span;
use tracing::field::Empty;

/// What is counted and told of one text at its guard.
#[derive(Debug)]
pub(super) struct Watched {
    holdback: Histogram,
    /// Where somebody sees spans of this level: else it would be a few lines of the cache more for each event.
    told: Option<Box<Told>>,
}

/// The calls about one text, as one span: a call for each token would fill any trace.
#[derive(Debug)]
pub(super) struct Told {
    span: Span,
    /// When the call under way began.
    asked: Option<Instant>,
    calls: u64,
    /// Windows that it was not asked about.
    pub(super) prefiltered: u64,
    /// The case of the first failure.
    failure: Option<&'static str>,
    /// The gravest so far.
    verdict: Option<&'static str>,
    took: Duration,
    /// For how long the guard kept text back.
    held: Duration,
}

impl Watched {
    pub(super) fn begin(stage: &Stage) -> Self {
        let (name, kind) = (&stage.name, StageKind::StreamGuard.as_str());
        let span = tracing::debug_span!(
            "plugin", %name, stage = kind, outcome = Empty, verdict = Empty,
            calls = Empty, prefiltered = Empty, us = Empty, held_ms = Empty
        );
        let told = (!span.is_disabled()).then(|| Box::new(Told::begin(span)));
        Self { holdback: stage.figures.holdback(&stage.name).clone(), told }
    }

    pub(super) fn held(&mut self, since: Instant) {
        let held = since.elapsed();
        self.holdback.record(held);
        self.tell(|told| told.held += held);
    }

    pub(super) fn tell(&mut self, what: impl FnOnce(&mut Told)) {
        if let Some(told) = &mut self.told {
            what(told);
        }
    }
}

impl Told {
    fn begin(span: Span) -> Self {
        let (took, held) = (Duration::ZERO, Duration::ZERO);
        Self { span, asked: None, calls: 0, prefiltered: 0, failure: None, verdict: None, took, held }
    }

    pub(super) fn ask(&mut self, now: Instant) {
        self.cut_off();
        self.asked = Some(now);
    }

    /// What was asked and not answered is a call too.
    fn cut_off(&mut self) {
        if let Some(since) = self.asked.take() {
            self.calls += 1;
            self.fail(CUT_OFF);
            self.took += since.elapsed();
        }
    }

    /// One behind another failure is not told.
    pub(super) fn fail(&mut self, case: &'static str) {
        self.failure.get_or_insert(case);
    }

    /// A call that was answered at a glance.
    pub(super) fn glance(&mut self, took: Duration) {
        self.calls += 1;
        self.verdict = self.verdict.or(Some("pass"));
        self.took += took;
    }

    pub(super) fn note(&mut self, call: &Timed<Inspection>) {
        self.asked = None;
        self.calls += u64::from(call.took.is_some());
        self.failure = self.failure.or(call.failure);
        match call.opinion.as_ref().ok().and_then(Option::as_ref).map(|said| &said.action) {
            Some(WindowAction::Halt { .. }) => self.verdict = Some("halt"),
            Some(WindowAction::Redact(_)) => self.verdict = Some("redact"),
            Some(WindowAction::Pass) => self.verdict = self.verdict.or(Some("pass")),
            None => {}
        }
        self.took += call.took.unwrap_or_default();
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.cut_off();
        self.span.record("outcome", self.failure.unwrap_or("ok"));
        if let Some(verdict) = self.verdict {
            self.span.record("verdict", verdict);
        }
        self.span.record("calls", trace::whole(self.calls));
        self.span.record("prefiltered", trace::whole(self.prefiltered));
        self.span.record("us", trace::whole(self.took.as_micros()));
        self.span.record("held_ms", trace::whole(self.held.as_millis()));
        // A span that nothing is said in is not seen in a log.
        self.span.in_scope(|| tracing::debug!("asked"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Keeps what is recorded of spans.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<Vec<String>>>);

    impl Visit for Recorded {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.lock().unwrap().push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for Recorded {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut self.clone());
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn the_calls_of_a_span_are_those_that_were_made_the_one_that_is_cut_off_too() {
        let call = |took, failure| Timed { opinion: Ok(None), took, failure };
        let (made, paused) = (call(Some(Duration::ZERO), None), call(None, Some("paused")));
        for (answered, is_cut_off, outcome, calls) in [
            (vec![&made, &made], false, "ok", 2),
            (vec![&paused, &made, &paused], false, "paused", 1),
            (vec![&made], true, "cut-off", 2),
            (vec![&paused], true, "paused", 1),
        ] {
            let recorded = Recorded::default();
            tracing::subscriber::with_default(recorded.clone(), || {
                let fields = tracing::debug_span!("plugin", outcome = Empty, calls = Empty);
                let mut told = Told::begin(fields);
                for call in answered {
                    told.ask(Instant::now());
                    told.note(call);
                }
                if is_cut_off {
                    told.ask(Instant::now());
                }
            });
            let recorded = recorded.0.lock().unwrap();
            assert_eq!(*recorded, [format!("outcome={outcome:?}"), format!("calls={calls}")]);
        }
    }
}
