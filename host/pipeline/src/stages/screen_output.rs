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
    /// Texts of which more is to come. Few: a list is searched faster than a key is hashed.
    held: Vec<Held>,
    pub(super) findings: Vec<Finding>,
    slow: bool,
}

impl OutputScreen {
    pub(super) fn new(pipeline: &Arc<Pipeline>, cx: &RequestContext, streaming: bool) -> Self {
        Self {
            pipeline: Arc::clone(pipeline),
            cx: cx.clone(),
            streaming,
            held: Vec::new(),
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
        let guards = &self.pipeline.stages.stream_guards;
        let known = self.held.iter().position(|held| held.choice == choice && held.channel == *channel);
        let at = known.unwrap_or_else(|| {
            let chain = batches(guards).map(Link::new).collect();
            self.held.push(Held { choice, channel: channel.clone(), chain });
            self.held.len() - 1
        });
        let mut asking = Asking { cx: &self.cx, streaming: self.streaming, choice, channel, ending };
        for (batch, link) in batches(guards).zip(&mut self.held[at].chain) {
            let was_halted = judged.halted;
            let Asked { judged: next, mut findings, slow } = link.pass(batch, asking, judged).await?;
            self.findings.append(&mut findings);
            self.slow |= slow;
            judged = Judged { halted: next.halted || was_halted, ..next };
            // The farewell may have the model's words before it: the guards behind judge it, as the last of the text.
            if judged.halted {
                asking = asking.of_the_last();
            }
        }
        if judged.halted || ending.is_some() {
            self.held.swap_remove(at);
        }
        Ok(judged)
    }
}

/// Guards that do not mutate run beside each other; one that does sees what the ones before it let go.
fn batches(stages: &[Stage]) -> impl Iterator<Item = &[Stage]> {
    stages.chunk_by(|a, b| !a.mutates() && !b.mutates())
}

/// A text on its way past the guards.
struct Held {
    choice: u32,
    channel: Channel,
    chain: Vec<Link>,
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

    /// What the guards of this batch let go of what they hold and what is new.
    async fn pass(&mut self, stages: &[Stage], asking: Asking<'_>, new: Judged) -> Result<Asked, Reject> {
        match (self, stages) {
            (Self::Alone(held), [stage]) => {
                let nothing_new = new.text.is_empty();
                held.text.push(&new.text, new.logprobs);
                if asking.may_wait(&held.text, nothing_new) {
                    return Ok(Asked::default());
                }
                asking.ask(stage, held).await
            }
            (Self::Beside(several), stages) => several.judge(stages, asking, new).await,
            (Self::Alone(_), _) => Err(Reject::internal(Fault::Plugin, "a guard without a place")),
        }
    }
}
