//! Asks one stream guard about what waits for it, and follows its answer.

use crate::context::RequestContext;
use crate::figures::CallTimes;
use crate::holdback::{AtCap, Holdback, HoldbackError, Released};
use crate::stage::{OnError, Stage};
use crate::stages::screen_output::Judged;
use metrics::counter;
use std::time::{Duration, Instant};
use tidegate_sandbox::StreamPool;
use tidegate_sandbox::stage::{CallContext, Channel, Inspection, StageKind, Window, WindowAction};
use tidegate_types::{About, Fault, Finding, FinishReason, GuardAction, Reject};
use tracing::Span;
use tracing::field::Empty;

/// A guard that takes longer than this sees coalesced text.
const SLOW_GUARD: Duration = Duration::from_millis(2);

/// Text that waits for more when the client reads no stream: one window for many tokens costs less, and nobody
/// waits for the first byte.
const BUFFERED_WINDOW_BYTES: usize = 256;

/// What a window is of.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) cx: &'a RequestContext,
    pub(super) streaming: bool,
    pub(super) choice: u32,
    pub(super) channel: &'a Channel,
    /// On the last window: the finish reason.
    pub(super) ending: Option<&'a str>,
}

/// Text that waits for one guard.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    pub(super) text: Holdback,
    /// Since when the guard has kept some of it back.
    since: Option<Instant>,
    /// What every call about it carries, made once: what it counts references of, other threads count too.
    call: Option<CallContext>,
    /// Whose instances judge it.
    pool: StreamPool,
    watched: Option<Watched>,
}

/// The calls about one text, as one span: a call for each token would fill any trace.
#[derive(Debug)]
struct Watched {
    span: Span,
    calls: u64,
    failed: bool,
    took: Duration,
    times: CallTimes,
}

impl Watched {
    fn begin(stage: &Stage) -> Self {
        let (name, kind) = (&stage.name, StageKind::StreamGuard.as_str());
        let span = tracing::debug_span!("plugin", %name, stage = kind, outcome = Empty, calls = Empty, us = Empty);
        let times = CallTimes::of(stage.figures.calls(&stage.name, StageKind::StreamGuard));
        Self { span, calls: 0, failed: false, took: Duration::ZERO, times }
    }

    /// Of a call that began then; `took` is `None` where none was made.
    fn note(&mut self, failed: bool, began: Instant, took: Option<Duration>) {
        self.calls += 1;
        self.failed |= failed;
        if let Some(took) = took {
            self.took += took;
            self.times.note(began, took);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.span.is_disabled() {
            return;
        }
        self.span.record("outcome", if self.failed { "failed" } else { "ok" });
        self.span.record("calls", self.calls);
        self.span.record("us", self.took.as_micros() as u64);
        // A span that nothing is said in is not seen in a log.
        self.span.in_scope(|| tracing::debug!("asked"));
    }
}

/// A guard's answer, followed.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) judged: Judged,
    pub(super) findings: Vec<Finding>,
    pub(super) slow: bool,
}

impl Asking<'_> {
    /// About what is left of an answer that a guard has halted: no more follows.
    pub(super) fn of_the_last(self) -> Self {
        Self { ending: Some(FinishReason::ContentFilter.as_str()), ..self }
    }

    /// Whether the guard need not be asked yet.
    pub(super) fn may_wait(self, held: &Holdback, nothing_new: bool) -> bool {
        if self.ending.is_some() {
            return held.is_empty() && held.seq() == 0;
        }
        held.is_empty() || nothing_new || (!self.streaming && held.pending_bytes() < BUFFERED_WINDOW_BYTES)
    }

    /// Asks `stage` about what waits in `held`.
    pub(super) async fn ask(self, stage: &Stage, held: &mut Withheld) -> Result<Asked, Reject> {
        let Self { cx, streaming, choice, channel, ending } = self;
        let Withheld { text, call, pool, watched, .. } = &mut *held;
        let window = text.window();
        let call = call.get_or_insert_with(|| cx.call(streaming, stage.wall));
        let watched = watched.get_or_insert_with(|| Watched::begin(stage));
        let started = Instant::now();
        call.began = Some(started);
        let call = &*call;
        let (opinion, took) = stage
            .timed(StageKind::StreamGuard, call, async |plugin| {
                let window =
                    Window { seq: text.seq(), choice, channel, text: window.text, settled: window.settled, ending };
                plugin.inspect_window_in(pool, call, text.carry(), window).await
            })
            .await;
        watched.note(!matches!(opinion, Ok(Some(_))), started, took);
        let (opinion, slow) = (opinion?, took.is_some_and(|took| took > SLOW_GUARD));
        cx.inspected(stage, opinion.as_ref());
        let Some(mut inspection) = opinion else {
            return Ok(Asked { judged: released(stage, held.text.release_unjudged()), findings: Vec::new(), slow });
        };
        let findings = std::mem::take(&mut inspection.findings);
        if let WindowAction::Halt { refusal, farewell } = inspection.action {
            stage.count_verdict(StageKind::StreamGuard, "halt");
            tracing::info!(request = %cx.request_id, guard = %stage.name, code = refusal.code,
                reason = cx.for_log(refusal.private_reason), "halted the answer");
            return Ok(Asked { judged: halt(farewell), findings, slow });
        }
        if matches!(inspection.action, WindowAction::Redact(_)) {
            stage.count_verdict(StageKind::StreamGuard, "redact");
        }
        let judged = self.follow(stage, &mut held.text, inspection)?;
        held.note_waiting(stage, started);
        Ok(Asked { judged, findings, slow })
    }

    fn follow(self, stage: &Stage, held: &mut Holdback, inspection: Inspection) -> Result<Judged, Reject> {
        let at_cap = if stage.on_error == OnError::Closed { AtCap::Halt } else { AtCap::Release };
        match held.apply(inspection, self.ending.is_some(), stage.holdback_bytes, at_cap) {
            Ok(text) => Ok(released(stage, text)),
            Err(HoldbackError::OverCap { withheld, cap }) => {
                tracing::warn!(request = %self.cx.request_id, guard = %stage.name, withheld, cap,
                    "halted the answer: the guard withholds more than its cap");
                counter!("tidegate_holdback_halts_total", "plugin" => stage.name.clone()).increment(1);
                let (about, action) = (About::Answer, GuardAction::Refuse);
                self.cx.note(|report| report.judged(&stage.name, about, action, Some("holdback_cap"), &[]));
                Ok(halt(None))
            }
            Err(error @ HoldbackError::BadInspection(_)) => match stage.on_error {
                OnError::Closed => {
                    Err(Reject::internal(Fault::Plugin, format!("stream guard `{}`: {error}", stage.name)))
                }
                OnError::Open | OnError::Skip => Ok(released(stage, held.release_unjudged())),
            },
        }
    }
}

impl Withheld {
    /// Records for how long the guard kept text back, once it lets all of it go.
    fn note_waiting(&mut self, stage: &Stage, asked: Instant) {
        if !self.text.is_empty() {
            self.since.get_or_insert(asked);
        } else if let Some(since) = self.since.take() {
            stage.figures.holdback(&stage.name).record(since.elapsed().as_secs_f64());
        }
    }
}

fn released(stage: &Stage, released: Released) -> Judged {
    if released.unjudged_bytes > 0 {
        counter!("tidegate_unjudged_bytes_total", "plugin" => stage.name.clone())
            .increment(released.unjudged_bytes as u64);
    }
    let Released { text, logprobs, borders, .. } = released;
    Judged { text, logprobs, halted: false, borders }
}

fn halt(farewell: Option<String>) -> Judged {
    Judged { text: farewell.unwrap_or_default(), halted: true, ..Judged::default() }
}
