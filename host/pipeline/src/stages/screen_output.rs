//! Stream guards: every text of every choice goes through them in the config's order before it leaves.
//!
//! A guard is called when text is there. A guard that answers within 2 ms sees every event; behind a slower one what
//! arrives meanwhile is coalesced into the next window. Read next: `ask_guard.rs` for one guard, `beside.rs` for
//! several at once.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::stage::Stage;
use crate::stages::ask_guard::{Asked, Asking, Withheld};
use crate::stages::beside::Beside;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_sandbox::stage::Channel;
use tidegate_types::{Fault, Finding, Reject, TextLogprob};

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
    /// Text at each batch of guards, by choice and channel.
    held: HashMap<(u32, Channel), Vec<Link>>,
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
        let pipeline = Arc::clone(&self.pipeline);
        let guards = &pipeline.stages.stream_guards;
        let mut chain = self.held.remove(&key).unwrap_or_else(|| batches(guards).map(Link::new).collect());
        let cx = self.cx.clone();
        let asking = Asking { cx: &cx, streaming: self.streaming, choice, channel, ending };
        for (batch, link) in batches(guards).zip(&mut chain) {
            judged = self.pass(link, batch, asking, judged).await?;
            if judged.halted {
                return Ok(judged);
            }
        }
        if ending.is_none() {
            self.held.insert(key, chain);
        }
        Ok(judged)
    }

    async fn pass(
        &mut self,
        link: &mut Link,
        stages: &[Stage],
        asking: Asking<'_>,
        new: Judged,
    ) -> Result<Judged, Reject> {
        let asked = match (link, stages) {
            (Link::Alone(held), [stage]) => {
                let nothing_new = new.text.is_empty();
                held.text.push(&new.text, new.logprobs);
                if asking.may_wait(&held.text, nothing_new) {
                    return Ok(Judged::default());
                }
                asking.ask(stage, held).await?
            }
            (Link::Beside(several), stages) => several.judge(stages, asking, new).await?,
            (Link::Alone(_), _) => return Err(Reject::internal(Fault::Plugin, "a guard without a place")),
        };
        let Asked { judged, mut findings, slow } = asked;
        self.findings.append(&mut findings);
        self.slow |= slow;
        Ok(judged)
    }
}

/// Guards that do not mutate run beside each other; one that does sees what the ones before it let go.
fn batches(stages: &[Stage]) -> impl Iterator<Item = &[Stage]> {
    stages.chunk_by(|a, b| !a.mutates() && !b.mutates())
}

/// The text of one channel at one batch of guards.
enum Link {
    Alone(Withheld),
    Beside(Beside),
}

impl Link {
    fn new(batch: &[Stage]) -> Self {
        if batch.len() == 1 { Self::Alone(Withheld::default()) } else { Self::Beside(Beside::default()) }
    }
}
