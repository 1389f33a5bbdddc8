//! A configured stage: a plugin (or the reason why it did not load) and what its failure means. What is told of a call whatever
//! becomes of it: `stage/under_way.rs`. What it means how much it was about: `stage/size.rs`.

mod size;
mod under_way;

pub(crate) use size::{Size, TOO_LONG};
pub(crate) use under_way::CUT_OFF;

use crate::breaker::{Breaker, Outcome};
use crate::figures::StageFigures;
use crate::holdback::Holdback;
use metrics::counter;
use serde::Deserialize;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::for_line;
use tidegate_sandbox::stage::{Action, CallContext, CallError, StageKind, Verdict};
use tidegate_sandbox::{Plugin, Prefilter};
use tidegate_types::{Fault, Reject, RejectKind, RequestId, TenantId};
use tracing::Span;
use tracing::field::Empty;
use under_way::UnderWay;

/// The case of a stream guard that keeps back more than it may.
pub(crate) const HOLDBACK_CAP: &str = "holdback-cap";

/// What a failure of the plugin means for the request; load failure included.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The request ends with an error. Default of guards.
    Closed,
    /// The request goes on as if the stage had no opinion; logged and counted. Default of all others.
    Open,
    /// As open, but expected: counted, not logged.
    Skip,
}

/// One `[[pipeline.stage]]` for one kind of stage.
#[derive(Clone)]
pub struct Stage {
    /// The stage's name in logs, metrics and provenance: the plugin's name in the config.
    pub name: Arc<str>,
    /// The loaded plugin, or why it could not be loaded.
    pub plugin: Result<Arc<Plugin>, Arc<str>>,
    /// What a failure means.
    pub on_error: OnError,
    /// Wall time of one call.
    pub wall: Duration,
    /// Bytes that a stream guard may withhold.
    pub holdback_bytes: usize,
    /// Takes the plugin out while it keeps failing; shared by all its stages.
    pub breaker: Arc<Breaker>,
    /// What is counted of it.
    pub figures: StageFigures,
}

/// What a stage has to say: a result, or nothing because it failed and is not closed.
pub(crate) type Opinion<T> = Result<Option<T>, Reject>;

/// What failed of a text, which has many windows.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Of which failure the log has been told, the last: one line for each window that is not judged would fill any log. They are
    /// counted all the same.
    last: Option<&'static str>,
    /// How often the plugin was out of order. Of a request that is once for other requests, so the text has to see for itself when
    /// it is enough.
    num_failed: usize,
}

/// A stage's opinion, and how it came to it.
pub(crate) struct Timed<T> {
    pub(crate) opinion: Opinion<T>,
    /// How long the call took, where one was made.
    pub(crate) took: Option<Duration>,
    /// The case of the failure, as it is counted.
    pub(crate) failure: Option<&'static str>,
}

impl Stage {
    /// Calls the plugin, counts and times the call, and turns a failure into what `on_error` says.
    pub(crate) async fn call<'a, T, F, Fut>(&'a self, kind: StageKind, cx: &CallContext, call: F) -> Opinion<T>
    where
        F: FnOnce(&'a Plugin) -> Fut,
        Fut: Future<Output = Result<T, CallError>>,
    {
        self.call_about(Size::Sent(0), kind, cx, call).await
    }

    /// As [`Self::call`], about so many bytes that somebody else chose. Where it is their number that the plugin's limits do not
    /// allow, the request is refused for it ([`TOO_LONG`]), and the plugin stays: else who sends much, or asks for much, would
    /// take it away from others.
    pub(crate) async fn call_about<'a, T, F, Fut>(
        &'a self,
        size: Size,
        kind: StageKind,
        cx: &CallContext,
        call: F,
    ) -> Opinion<T>
    where
        F: FnOnce(&'a Plugin) -> Fut,
        Fut: Future<Output = Result<T, CallError>>,
    {
        self.timed(size, kind, cx, &mut Failures::default(), call).await.opinion
    }

    /// As [`Self::call_about`], where the answer has left: what would end the request of a closed stage is logged, as it is of an
    /// open one.
    pub(crate) async fn call_after<'a, T, F, Fut>(&'a self, size: Size, kind: StageKind, cx: &CallContext, call: F)
    where
        F: FnOnce(&'a Plugin) -> Fut,
        Fut: Future<Output = Result<T, CallError>>,
    {
        if let Err(reject) = self.call_about(size, kind, cx, call).await {
            tracing::warn!(plugin = %self.name, stage = kind.as_str(), "{reject:#}; the request is over");
        }
    }

    /// As [`Self::call_about`], for one who asks how long it took, and about one text more often.
    pub(crate) async fn timed<'a, T, F, Fut>(
        &'a self,
        size: Size,
        kind: StageKind,
        cx: &CallContext,
        failures: &mut Failures,
        call: F,
    ) -> Timed<T>
    where
        F: FnOnce(&'a Plugin) -> Fut,
        Fut: Future<Output = Result<T, CallError>>,
    {
        let plugin = match &self.plugin {
            Ok(plugin) => plugin.as_ref(),
            Err(why) => return self.not_called(kind, "load", why, cx, failures),
        };
        let started = cx.began.unwrap_or_else(Instant::now);
        let tenant = &cx.caller.tenant;
        if self.breaker.is_enough(failures.num_failed) {
            return self.not_called(
                kind,
                "paused",
                "it failed too often, and the text goes on without it",
                cx,
                failures,
            );
        }
        // Held across the call: where its caller goes away, that is noted.
        let Some(attempt) = self.breaker.begin(tenant, &cx.request_id, started) else {
            return self.not_called(kind, "paused", "it failed too often and is left out for a while", cx, failures);
        };
        let under_way = UnderWay::begin(self, kind, started);
        let outcome = under_way.run(pin!(call(plugin))).await;
        let failure = outcome.as_ref().err().map(case);
        let took = under_way.end(failure);
        let opinion = match outcome {
            Ok(result) => {
                attempt.end(Outcome::Fine, started);
                Ok(Some(result))
            }
            Err(error) => {
                let outgrown = size::outgrown(&error).filter(|_| size.is_large());
                // Who waits for others may be late by their doing, and is no use then.
                let is_late = !self.waits() && is_late(&error, size, plugin.call_cpu(kind));
                let outcome = if outgrown.is_some() || is_late { Outcome::Unknown } else { health(&error) };
                failures.num_failed += usize::from(outcome == Outcome::Failed);
                let said = error.to_string();
                let why = for_line(&said);
                if attempt.end(outcome, Instant::now()) {
                    counter!("tidegate_plugin_pauses_total", "plugin" => self.name.clone()).increment(1);
                    let last = "it fails too often: left out for a while; the last time";
                    tracing::warn!(request = %cx.request_id, plugin = %self.name, %tenant, "{last} {why}");
                }
                let failed = self.failed_again(kind, case(&error), &why, Some(&cx.request_id), failures);
                match outgrown {
                    Some(limit) => failed.map_err(|reject| size.too_long(limit, reject)),
                    None => failed,
                }
            }
        };
        Timed { opinion, took: Some(took), failure }
    }

    fn not_called<T>(
        &self,
        kind: StageKind,
        case: &'static str,
        why: &str,
        cx: &CallContext,
        failures: &mut Failures,
    ) -> Timed<T> {
        let opinion = self.failed_again(kind, case, &for_line(why), Some(&cx.request_id), failures);
        Timed { opinion, took: None, failure: Some(case) }
    }

    /// Of one call; those about a stream's windows are too many to be exported, and have one for each text
    /// (`ask_guard.rs`).
    fn span(&self, kind: StageKind) -> Span {
        let (name, stage) = (&self.name, kind.as_str());
        match kind {
            StageKind::StreamGuard => tracing::trace_span!("window", %name, stage, outcome = Empty),
            _ => tracing::debug_span!("plugin", %name, stage, outcome = Empty, verdict = Empty, held_ms = Empty),
        }
    }

    /// Counts what a guard decided, other than to let things be.
    pub(crate) fn count_verdict(&self, kind: StageKind, verdict: &'static str) {
        counter!("tidegate_plugin_verdicts_total",
            "plugin" => self.name.clone(), "stage" => kind.as_str(), "verdict" => verdict)
        .increment(1);
    }

    /// Counts a verdict on a prompt or an answer.
    pub(crate) fn count_action(&self, kind: StageKind, action: &Action) {
        if !matches!(action, Action::Allow) {
            self.count_verdict(kind, name_of(action));
        }
    }

    /// Whether it changes what it sees, so that others must wait for it.
    pub(crate) fn mutates(&self) -> bool {
        self.plugin.as_ref().is_ok_and(|plugin| plugin.descriptor().mutates)
    }

    /// Text of a tenant's streams that it need not be asked about; none where it has failed of late, so that a pause is
    /// seen at once.
    pub(crate) fn prefilter(&self, tenant: &TenantId) -> Option<&Prefilter> {
        let declared = self.plugin.as_ref().ok()?.descriptor().prefilter.as_ref()?;
        (!self.breaker.has_failures(tenant)).then_some(declared)
    }

    /// For text that waits for it: with as much of what has left as it wants to see again.
    pub(crate) fn holdback(&self) -> Holdback {
        Holdback::with_look_behind(self.plugin.as_ref().ok().and_then(|plugin| plugin.descriptor().look_behind_bytes))
    }

    /// Why it refuses whoever meets it: its plugin did not load, and must have its say.
    pub(crate) fn refuses_all(&self) -> Option<Arc<str>> {
        self.plugin.as_ref().err().filter(|_| self.on_error == OnError::Closed).cloned()
    }

    /// Whether it matters to a request what it would say: else nobody waits for it.
    pub(crate) fn has_a_say(&self) -> bool {
        self.plugin.is_ok() || self.on_error == OnError::Closed
    }

    /// Its failure, where it refuses whoever meets it.
    pub(crate) fn check_loaded(&self, kind: StageKind) -> Result<(), Reject> {
        match self.refuses_all() {
            Some(why) => self.failed::<()>(kind, "load", &for_line(&why)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Whether its calls may wait for others.
    fn waits(&self) -> bool {
        self.plugin.as_ref().is_ok_and(|plugin| plugin.waits())
    }

    /// Whether what it sees may leave the machine, or be kept.
    pub(crate) fn may_pass_on(&self) -> bool {
        self.plugin.as_ref().is_ok_and(|plugin| plugin.may_pass_on())
    }

    /// As a failure, where the plugin has done what it may and this request has no place for it. It is no failure of the
    /// plugin's, which stays, and trying again does not help: so the client too is told whose verdict it is, and `why` says
    /// what to do.
    pub(crate) fn unfit<T>(&self, kind: StageKind, why: &str) -> Opinion<T> {
        self.failed(kind, "unfit", why).map_err(|failure| {
            let message = format!("the {} `{}` of this server {why}", kind.as_str(), self.name);
            Reject { message, ..failure }
        })
    }

    /// As a failure to decide, where a guard keeps back more than it may and the text leaves for all that.
    pub(crate) fn withholds_too_much(&self, kind: StageKind, request: &RequestId, failures: &mut Failures) {
        let why = "keeps back more text than it may, which leaves unjudged";
        // A closed stage lets nothing leave: it is not asked for here.
        let _ = self.failed_again::<()>(kind, HOLDBACK_CAP, why, Some(request), failures);
    }

    fn count_failure(&self, kind: StageKind, case: &'static str) {
        counter!("tidegate_plugin_failures_total",
            "plugin" => self.name.clone(), "stage" => kind.as_str(), "case" => case)
        .increment(1);
    }

    fn failed<T>(&self, kind: StageKind, case: &'static str, why: &str) -> Opinion<T> {
        self.failed_again(kind, case, why, None, &mut Failures::default())
    }

    /// As [`Self::failed`], where `failures` says of what the log has a line already. `request` is named in that line: what is told of
    /// a stream is in no request's span.
    fn failed_again<T>(
        &self,
        kind: StageKind,
        case: &'static str,
        why: &str,
        request: Option<&RequestId>,
        failures: &mut Failures,
    ) -> Opinion<T> {
        self.count_failure(kind, case);
        match self.on_error {
            OnError::Closed => {
                let message = "a required check of this server could not be made; try again later";
                Err(Reject::unavailable(Fault::Plugin, message, 1).code("plugin_failed").because(format!(
                    "{} `{}`: {why}",
                    kind.as_str(),
                    self.name
                )))
            }
            OnError::Open if failures.last == Some(case) => Ok(None),
            OnError::Open => {
                failures.last = Some(case);
                let request = request.map(tracing::field::display);
                tracing::warn!(request, plugin = %self.name, stage = kind.as_str(), "{why}; going on without it");
                Ok(None)
            }
            OnError::Skip => Ok(None),
        }
    }
}

fn name_of(action: &Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Rewrite(_) => "rewrite",
        Action::Respond(_) => "respond",
        Action::Refuse(_) => "refuse",
    }
}

/// Says in the span of the call that is made what the guard answers.
pub(crate) fn traced(answer: Result<Verdict, CallError>) -> Result<Verdict, CallError> {
    if let Ok(verdict) = &answer {
        Span::current().record("verdict", name_of(&verdict.action));
    }
    answer
}

/// Refuses what a request names of a plugin that is not for its caller.
pub(crate) fn withheld(param: &str, message: String) -> Reject {
    counter!("tidegate_scope_denials_total", "reason" => "plugin").increment(1);
    let message = format!("{message}; name the plugin among the `plugins` of its entry");
    Reject::new(RejectKind::Forbidden, Fault::Client, message).at(param).code("insufficient_permissions")
}

/// Whether others kept a plugin from its work that waits for nobody and has so much CPU time. Many large texts at once wait for each
/// other. And where CPU time is less than wall time, as it is for all to start, a loop ends by that: who did not lacked a processor.
fn is_late(error: &CallError, size: Size, cpu: Duration) -> bool {
    match error {
        CallError::Deadline { clock: "wall", limit, .. } => size.is_large() || cpu < *limit,
        CallError::Start { clock: "wall", .. } => true,
        _ => false,
    }
}

/// Whether the plugin is out of order, or the request, its limits or other plugins are the reason.
fn health(error: &CallError) -> Outcome {
    match error {
        CallError::Plugin { case: "invalid-input" | "denied" | "unsupported", .. } | CallError::TooLarge { .. } => {
            Outcome::Fine
        }
        CallError::Full { .. } | CallError::Busy { .. } => Outcome::Unknown,
        _ => Outcome::Failed,
    }
}

fn case(error: &CallError) -> &'static str {
    match error {
        CallError::Plugin { .. } => "error",
        CallError::Trap { .. } => "trap",
        CallError::Deadline { .. } | CallError::Start { .. } => "deadline",
        CallError::Memory { .. } => "memory",
        CallError::BadResult { .. } => "bad-result",
        CallError::TooLarge { .. } => "too-large",
        CallError::Full { .. } => "full",
        CallError::Busy { .. } => "busy",
    }
}

#[cfg(test)]
pub(crate) mod tests;
