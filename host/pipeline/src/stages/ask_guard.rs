//! Asks one stream guard about what waits for it, and follows its answer. What is counted and told of that:
//! `ask_guard/watched.rs`. What it says at a glance: `ask_guard/glanced.rs`.

mod glanced;
mod watched;

use crate::context::RequestContext;
use crate::holdback::{AtCap, Holdback, Released};
use crate::stage::{Failures, HOLDBACK_CAP, OnError, Size, Stage};
use crate::stages::run_tools::is_json;
use crate::stages::screen_output::Judged;
use metrics::counter;
use std::time::{Duration, Instant};
use tidegate_sandbox::StreamPool;
use tidegate_sandbox::stage::{
    CallContext, CallError, Channel, Inspection, Redaction, StageKind, Window, WindowAction,
};
use tidegate_types::{About, Fault, Finding, FinishReason, GuardAction, Reject};
use watched::Watched;

/// A guard that takes longer than this sees coalesced text.
const SLOW_GUARD: Duration = Duration::from_millis(2);

/// Text that waits for more when the client reads no stream: one window for many tokens costs less, and nobody
/// waits for the first byte.
const BUFFERED_WINDOW_BYTES: usize = 256;

/// What redactions may put into one text.
const MAX_INSERTED_BYTES: usize = 4 << 20;

/// What a window is of.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) cx: &'a RequestContext,
    pub(super) streaming: bool,
    pub(super) choice: u32,
    pub(super) channel: &'a Channel,
    /// On the last window: the finish reason.
    pub(super) ending: Option<&'a str>,
    /// More may come, and not before the server has done what has to wait for a verdict on this.
    pub(super) pauses: bool,
}

/// Text that waits for one guard.
#[derive(Debug)]
pub(super) struct Withheld {
    pub(super) text: Holdback,
    /// Bytes that redactions have put into it.
    inserted: usize,
    /// Since when the guard keeps some of it back, while it does.
    waiting: Option<Instant>,
    /// What every call about it carries, made once: what it counts references of, other threads count too.
    call: Option<CallContext>,
    /// Whose instances judge it.
    pool: StreamPool,
    /// When the guard was asked for a glance that had no answer: then the call in full began.
    asked: Option<Instant>,
    /// A glance took long.
    slow: bool,
    watched: Option<Watched>,
    failures: Failures,
}

/// A guard's answer, followed.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) judged: Judged,
    pub(super) findings: Vec<Finding>,
    pub(super) slow: bool,
    /// It says something else than the model.
    pub(super) redacted: bool,
}

impl Asking<'_> {
    /// About what is left of an answer that a guard has halted: no more follows.
    pub(super) fn of_the_last(self) -> Self {
        Self { ending: Some(FinishReason::ContentFilter.as_str()), ..self }
    }

    /// The same where a guard has halted the answer. Its farewell may have the model's words before it: the guards behind judge
    /// it, as the last of the text.
    pub(super) fn or_of_the_last(self, is_halted: bool) -> Self {
        if is_halted { self.of_the_last() } else { self }
    }

    /// Whether the guard need not be asked yet.
    pub(super) fn may_wait(self, held: &Holdback, nothing_new: bool) -> bool {
        if self.ending.is_some() {
            return held.is_empty() && held.seq() == 0;
        }
        if self.pauses {
            return held.is_empty();
        }
        held.is_empty() || nothing_new || (!self.streaming && held.pending_bytes() < BUFFERED_WINDOW_BYTES)
    }

    /// Asks `stage` about what waits in `held`, but where it need not be asked.
    pub(super) async fn ask(self, stage: &Stage, held: &mut Withheld) -> Result<Asked, Reject> {
        match self.without_asking(stage, held)? {
            Some(judged) => Ok(Asked { judged, slow: held.was_slow(), ..Asked::default() }),
            None => self.call(stage, held).await,
        }
    }

    /// What leaves of what waits in `held`, where the descriptor of `stage` has the answer, or a glance.
    pub(super) fn without_asking(self, stage: &Stage, held: &mut Withheld) -> Result<Option<Judged>, Reject> {
        let Some(passed) = self.prefiltered(stage, held).or_else(|| self.glanced(stage, held)) else { return Ok(None) };
        let judged = self.follow(stage, held, passed)?;
        held.note_waiting(Instant::now);
        Ok(Some(judged))
    }

    /// Asks `stage` about what waits in `held`.
    pub(super) async fn call(self, stage: &Stage, held: &mut Withheld) -> Result<Asked, Reject> {
        let Self { cx, streaming, choice, channel, ending, .. } = self;
        let Withheld { text, inserted, call, pool, watched, failures, asked, .. } = &mut *held;
        let window = text.window();
        let call = call.get_or_insert_with(|| cx.call(streaming, stage.wall));
        let watched = watched.get_or_insert_with(|| Watched::begin(stage));
        let started = asked.take().unwrap_or_else(Instant::now);
        watched.tell(|told| told.ask(started));
        call.began = Some(started);
        let call = &*call;
        let asked = stage
            // How much a model says at once, its caller may have a say in: of tool calls, or a text that is held back, as much
            // as it likes.
            .timed(Size::Said(window.text.len()), StageKind::StreamGuard, call, failures, async |plugin| {
                let window =
                    Window { seq: text.seq(), choice, channel, text: window.text, settled: window.settled, ending };
                let said = plugin.inspect_window_in(pool, call, text.carry(), window.clone()).await?;
                check_arguments(&stage.name, &window, &said)?;
                *inserted = with_inserted(&stage.name, *inserted, &said)?;
                Ok(said)
            })
            .await;
        watched.tell(|told| told.note(&asked));
        let (opinion, slow) = (asked.opinion?, asked.took.is_some_and(|took| took > SLOW_GUARD));
        cx.inspected(stage, opinion.as_ref());
        let Some(mut inspection) = opinion else {
            held.let_go();
            // Its last word may have been about text that it has let go.
            let judged = Judged { unjudged: true, ..released(stage, held.text.release_unjudged()) };
            return Ok(Asked { judged, slow, ..Asked::default() });
        };
        let findings = std::mem::take(&mut inspection.findings);
        if let WindowAction::Halt { refusal, farewell } = inspection.action {
            stage.count_verdict(StageKind::StreamGuard, "halt");
            tracing::info!(request = %cx.request_id, guard = %stage.name, code = cx.for_log(Some(refusal.code)),
                reason = cx.for_log(refusal.private_reason), "halted the answer");
            return Ok(Asked { judged: halt(farewell), findings, slow, redacted: false });
        }
        let redacted = matches!(inspection.action, WindowAction::Redact(_));
        if redacted {
            stage.count_verdict(StageKind::StreamGuard, "redact");
        }
        let judged = self.follow(stage, held, inspection)?;
        held.note_waiting(|| started);
        Ok(Asked { judged, findings, slow, redacted })
    }

    /// What the guard has declared that it says. It is asked about the last window, and about all where it has failed.
    fn prefiltered(self, stage: &Stage, held: &mut Withheld) -> Option<Inspection> {
        let prefilter = stage.prefilter(&self.cx.caller.tenant).filter(|_| self.ending.is_none())?;
        let passed = held.text.prefiltered(prefilter, stage.holdback_bytes)?;
        held.watched.get_or_insert_with(|| Watched::begin(stage)).tell(|told| told.prefiltered += 1);
        self.cx.inspected(stage, Some(&passed));
        stage.figures.prefiltered(&stage.name).increment(1);
        Some(passed)
    }

    fn follow(self, stage: &Stage, held: &mut Withheld, inspection: Inspection) -> Result<Judged, Reject> {
        let at_cap = if stage.on_error == OnError::Closed { AtCap::Halt } else { AtCap::Release };
        match held.text.apply(inspection, self.ending.is_some(), stage.holdback_bytes, at_cap) {
            Ok(text) => {
                if let Some(withheld) = text.over_cap {
                    self.note_cap(stage, withheld);
                }
                if text.unjudged_bytes > 0 {
                    stage.withholds_too_much(StageKind::StreamGuard, &self.cx.request_id, &mut held.failures);
                }
                if let Some(watched) = held.watched.as_mut().filter(|_| text.is_at_cap()) {
                    watched.tell(|told| told.fail(HOLDBACK_CAP));
                }
                Ok(released(stage, text))
            }
            // The sandbox has refused what cannot be followed, and the stage failed.
            Err(error) => Err(Reject::internal(Fault::Plugin, format!("stream guard `{}`: {error}", stage.name))),
        }
    }

    fn note_cap(self, stage: &Stage, withheld: usize) {
        let (request, guard) = (&self.cx.request_id, &stage.name);
        if self.ending.is_some() {
            tracing::warn!(%request, %guard, withheld, "halted the answer: the guard keeps back text at its end, where it has to decide");
        } else {
            let cap = stage.holdback_bytes;
            tracing::warn!(%request, %guard, withheld, cap, "halted the answer: the guard withholds more than its cap");
        }
        counter!("tidegate_holdback_halts_total", "plugin" => stage.name.clone()).increment(1);
        let (about, action) = (About::Answer, GuardAction::Refuse);
        self.cx.note(|report| report.judged(&stage.name, about, action, Some("holdback_cap"), &[]));
    }
}

impl Withheld {
    /// None yet, for the guard of `stage`.
    pub(super) fn by(stage: &Stage) -> Self {
        Self {
            text: stage.holdback(),
            inserted: 0,
            waiting: None,
            call: None,
            pool: StreamPool::default(),
            asked: None,
            slow: false,
            watched: None,
            failures: Failures::default(),
        }
    }

    /// Whether a glance took long since this was asked last.
    pub(super) fn was_slow(&mut self) -> bool {
        std::mem::take(&mut self.slow)
    }

    /// None of it waits any more, or not for the guard.
    pub(super) fn let_go(&mut self) {
        if let (Some(since), Some(watched)) = (self.waiting.take(), &mut self.watched) {
            watched.held(since);
        }
    }

    /// Text waits since the guard was asked about it, until it lets all of it go.
    fn note_waiting(&mut self, asked: impl FnOnce() -> Instant) {
        if self.text.is_empty() {
            self.let_go();
        } else {
            self.waiting.get_or_insert_with(asked);
        }
    }
}

/// What waits when the answer ends, as where its guard halts it, has waited until then.
impl Drop for Withheld {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Refuses what a guard says of a tool call's arguments where its redactions leave no JSON of what was JSON.
pub fn check_arguments(plugin: &str, window: &Window<'_>, said: &Inspection) -> Result<(), CallError> {
    if spoils_arguments(window, said) {
        let message = "its redactions leave no JSON of a tool call's arguments".into();
        return Err(CallError::BadResult { plugin: plugin.to_owned(), message });
    }
    Ok(())
}

/// Bytes put into a text, with what the guard says of one more window.
fn with_inserted(plugin: &str, so_far: usize, said: &Inspection) -> Result<usize, CallError> {
    let WindowAction::Redact(redactions) = &said.action else { return Ok(so_far) };
    let inserted = redactions.iter().fold(so_far, |sum, redaction| sum + redaction.text.len());
    if inserted > MAX_INSERTED_BYTES {
        let message = format!("its redactions put {inserted} bytes into one text; at most {MAX_INSERTED_BYTES}");
        return Err(CallError::BadResult { plugin: plugin.to_owned(), message });
    }
    Ok(inserted)
}

/// Whether a guard makes no JSON of arguments that are JSON. Those are one window, the last of their text. What a model wrote
/// may be no JSON, or cut off: whoever offered the tool is told to check.
fn spoils_arguments(window: &Window<'_>, said: &Inspection) -> bool {
    match (window.channel, &said.action) {
        (Channel::ToolArguments(_), WindowAction::Redact(redactions)) => {
            is_json(window.text) && !is_json(&redacted(window.text, redactions))
        }
        _ => false,
    }
}

/// The text with its redactions, which are sorted and apart.
fn redacted(text: &str, redactions: &[Redaction]) -> String {
    let (mut left, mut from) = (String::with_capacity(text.len()), 0);
    for Redaction { span, text: instead } in redactions {
        left.push_str(text.get(from..span.start as usize).unwrap_or_default());
        left.push_str(instead);
        from = span.end as usize;
    }
    left.push_str(text.get(from..).unwrap_or_default());
    left
}

fn released(stage: &Stage, released: Released) -> Judged {
    if released.unjudged_bytes > 0 {
        counter!("tidegate_unjudged_bytes_total", "plugin" => stage.name.clone())
            .increment(released.unjudged_bytes as u64);
    }
    let Released { text, logprobs, borders, over_cap, unjudged_bytes } = released;
    Judged { text, logprobs, halted: over_cap.is_some(), borders, unjudged: unjudged_bytes > 0 }
}

fn halt(farewell: Option<String>) -> Judged {
    Judged { text: farewell.unwrap_or_default(), halted: true, ..Judged::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::Span as Bytes;

    #[test]
    fn what_redactions_put_into_one_text_is_bounded() {
        let said = |text: &str| {
            let redaction = Redaction { span: Bytes { start: 0, end: 1 }, text: text.into() };
            let action = WindowAction::Redact(vec![redaction.clone(), redaction]);
            Inspection { action, safe_through: 1, carry: vec![], findings: vec![] }
        };
        assert_eq!(with_inserted("p", 3, &Inspection::pass(1)), Ok(3));
        assert_eq!(with_inserted("p", 3, &said("four")), Ok(11));
        assert_eq!(with_inserted("p", MAX_INSERTED_BYTES - 2, &said("x")), Ok(MAX_INSERTED_BYTES));
        let error = with_inserted("p", MAX_INSERTED_BYTES - 1, &said("x")).unwrap_err();
        assert!(error.to_string().contains("4194305 bytes into one text"), "{error}");
    }

    #[test]
    fn a_redaction_that_leaves_no_json_of_arguments_that_were_is_found() {
        let spoils = |channel: &Channel, text: &str, cuts: &[(u32, u32, &str)]| {
            let redaction =
                |&(start, end, text): &(u32, u32, &str)| Redaction { span: Bytes { start, end }, text: text.into() };
            let action = WindowAction::Redact(cuts.iter().map(redaction).collect());
            let said = Inspection { action, safe_through: text.len() as u32, carry: vec![], findings: vec![] };
            spoils_arguments(&Window { seq: 0, choice: 0, channel, text, settled: 0, ending: Some("stop") }, &said)
        };
        let arguments = Channel::ToolArguments("c1".into());
        let json = r#"{"a":1234,"b":"x y"}"#;
        assert!(spoils(&arguments, json, &[(5, 9, "[card]")]));
        assert!(!spoils(&arguments, json, &[(5, 9, r#""[card]""#), (15, 16, "[x]")]), "it is JSON still");
        assert!(!spoils(&arguments, &json[1..], &[(4, 8, "[card]")]), "it was none");
        assert!(!spoils(&Channel::Text, json, &[(5, 9, "[card]")]));
    }
}
