//! Stream guards: every text of every choice goes through them in the config's order before it leaves.
//!
//! A guard is called when text is there. A guard that answers within [`SLOW_GUARD`] sees every event;
//! behind a slower one what arrives meanwhile is coalesced into the next window.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::holdback::{AtCap, Holdback, HoldbackError, Released};
use crate::stage::{OnError, Stage};
use metrics::counter;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{Channel, StageKind, Window, WindowAction};
use tidegate_types::{Fault, Finding, Reject, TextLogprob};

/// A guard that takes longer than this sees coalesced text.
const SLOW_GUARD: Duration = Duration::from_millis(2);

/// Text that waits for more when the client reads no stream: one window for many tokens costs less, and nobody
/// waits for the first byte.
const BUFFERED_WINDOW_BYTES: usize = 256;

/// What may leave of a text, and whether the answer ends with it.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) text: String,
    pub(super) logprobs: Vec<TextLogprob>,
    pub(super) halted: bool,
}

/// The guards' memory of one answer.
pub(super) struct OutputScreen {
    pipeline: Arc<Pipeline>,
    cx: RequestContext,
    streaming: bool,
    /// One holdback for each guard, by choice and channel.
    held: HashMap<(u32, Channel), Vec<Holdback>>,
    pub(super) findings: Vec<Finding>,
    slow: bool,
}

impl OutputScreen {
    pub(super) fn new(pipeline: &Arc<Pipeline>, cx: &RequestContext, streaming: bool) -> Self {
        Self {
            pipeline: Arc::clone(pipeline),
            cx: cx.clone(),
            streaming,
            held: HashMap::new(),
            findings: Vec::new(),
            slow: false,
        }
    }

    /// Whether no guard is configured: text passes untouched.
    pub(super) fn is_off(&self) -> bool {
        self.pipeline.stages.stream_guards.is_empty()
    }

    /// Whether text that is there already should be joined before it is judged.
    pub(super) fn coalesces(&self) -> bool {
        !self.is_off() && (self.slow || !self.streaming)
    }

    /// Judges new text of a channel; `ending` says that it is the last.
    pub(super) async fn judge(
        &mut self,
        choice: u32,
        channel: &Channel,
        text: String,
        logprobs: Vec<TextLogprob>,
        ending: Option<&str>,
    ) -> Result<Judged, Reject> {
        let mut judged = Judged { text, logprobs, halted: false };
        if self.is_off() {
            return Ok(judged);
        }
        let key = (choice, channel.clone());
        let mut chain = self.held.remove(&key).unwrap_or_default();
        let pipeline = Arc::clone(&self.pipeline);
        chain.resize_with(pipeline.stages.stream_guards.len(), Holdback::default);
        for (stage, held) in pipeline.stages.stream_guards.iter().zip(&mut chain) {
            judged = self.judge_one(stage, held, choice, channel, judged, ending).await?;
            if judged.halted {
                return Ok(judged);
            }
        }
        if ending.is_none() {
            self.held.insert(key, chain);
        }
        Ok(judged)
    }

    async fn judge_one(
        &mut self,
        stage: &Stage,
        held: &mut Holdback,
        choice: u32,
        channel: &Channel,
        new: Judged,
        ending: Option<&str>,
    ) -> Result<Judged, Reject> {
        held.push(&new.text, new.logprobs);
        if self.may_wait(held, new.text.is_empty(), ending) {
            return Ok(Judged::default());
        }
        let window = held.window();
        let call = self.cx.call(self.streaming, stage.wall);
        let started = Instant::now();
        let opinion = stage
            .call(StageKind::StreamGuard, &call, async |plugin| {
                let window =
                    Window { seq: held.seq(), choice, channel, text: &window.text, settled: window.settled, ending };
                plugin.inspect_window(&call, held.carry(), window).await
            })
            .await?;
        self.slow |= started.elapsed() > SLOW_GUARD;
        let Some(mut inspection) = opinion else {
            return Ok(released(stage, held.release_unjudged()));
        };
        self.findings.append(&mut inspection.findings);
        if let WindowAction::Halt { refusal, farewell } = inspection.action {
            tracing::info!(request = %self.cx.request_id, guard = %stage.name, code = refusal.code,
                reason = refusal.private_reason, "halted the answer");
            return Ok(halt(farewell));
        }
        self.follow(stage, held, inspection, ending.is_some())
    }

    fn follow(
        &self,
        stage: &Stage,
        held: &mut Holdback,
        inspection: tidegate_sandbox::stage::Inspection,
        last: bool,
    ) -> Result<Judged, Reject> {
        let at_cap = if stage.on_error == OnError::Closed { AtCap::Halt } else { AtCap::Release };
        match held.apply(inspection, last, stage.holdback_bytes, at_cap) {
            Ok(text) => Ok(released(stage, text)),
            Err(HoldbackError::OverCap { withheld, cap }) => {
                tracing::warn!(request = %self.cx.request_id, guard = %stage.name, withheld, cap,
                    "halted the answer: the guard withholds more than its cap");
                counter!("tidegate_holdback_halts_total", "plugin" => stage.name.to_string()).increment(1);
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

    fn may_wait(&self, held: &Holdback, nothing_new: bool, ending: Option<&str>) -> bool {
        if ending.is_some() {
            return held.is_empty() && held.seq() == 0;
        }
        held.is_empty() || nothing_new || (!self.streaming && held.pending_bytes() < BUFFERED_WINDOW_BYTES)
    }
}

fn released(stage: &Stage, released: Released) -> Judged {
    if released.unjudged_bytes > 0 {
        counter!("tidegate_unjudged_bytes_total", "plugin" => stage.name.to_string())
            .increment(released.unjudged_bytes as u64);
    }
    Judged { text: released.text, logprobs: released.logprobs, halted: false }
}

fn halt(farewell: Option<String>) -> Judged {
    Judged { text: farewell.unwrap_or_default(), logprobs: Vec::new(), halted: true }
}
