//! Prompt guards that only veto may think while the model reads the prompt already (`when = "during-prefill"`): what
//! they cost is then hidden behind the prefill. Their verdicts are awaited before the first word leaves, before a tool
//! runs, before a plugin may keep anything of the request, and before anything of it leaves the machine.

use crate::chat::Pipeline;
use crate::source::Source;
use crate::stage::{Opinion, Stage};
use crate::stages::ask_prompt_guard::inspect;
use crate::stages::kept_back::{FirstWord, KeptBack};
use crate::stages::screen_input::{heard, refused, respond};
use crate::states::{Ended, Request};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Instant;
use tidegate_sandbox::stage::{Action, StageKind, Verdict};
use tidegate_types::{About, Fault, Reject};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

/// What the late guards will say, in the config's order. Dropping it stops them.
pub(crate) struct PendingVerdicts {
    asking: AbortOnDropHandle<Vec<Opinion<Verdict>>>,
    /// Which the guards keep back until each has decided.
    first_word: FirstWord,
}

impl Pipeline {
    /// Asks the late guards and does not wait for them.
    pub(super) fn ask_late(self: &Arc<Self>, request: &Request) -> Option<PendingVerdicts> {
        if self.stages.late_guards.is_empty() {
            return None;
        }
        let (pipeline, cx, chat) = (Arc::clone(self), request.cx.clone(), Arc::clone(&request.chat));
        let first_word = FirstWord::default();
        let noted = Arc::clone(&first_word);
        let asking = async move {
            let stages = &pipeline.stages;
            let asked = stages.late_guards.iter().map(|stage| {
                let kept_back = KeptBack::by(stage, &noted);
                inspect(stages, stage, &cx, &chat, Some(kept_back))
            });
            join_all(asked).await
        };
        let asking = AbortOnDropHandle::new(tokio::spawn(asking.in_current_span()));
        Some(PendingVerdicts { asking, first_word })
    }

    /// Waits for the late verdicts, where some are pending.
    pub(crate) async fn settled(self: &Arc<Self>, mut request: Box<Request>) -> Result<Box<Request>, Ended> {
        let Some(PendingVerdicts { asking, .. }) = request.pending.take() else { return Ok(request) };
        let verdicts = asking.await.map_err(stopped)?;
        self.follow_late(request, verdicts)
    }

    /// As [`Self::settled`], while the model works. The guards hold the first word of a stream back from when it is there.
    pub(super) async fn settled_beside(
        self: &Arc<Self>,
        mut request: Box<Request>,
        source: &mut Source,
    ) -> Result<Box<Request>, Ended> {
        let Some(PendingVerdicts { mut asking, first_word }) = request.pending.take() else { return Ok(request) };
        let is_stream = request.chat.stream;
        let verdicts = std::future::poll_fn(|cx| {
            if is_stream && first_word.get().is_none() && source.poll_ready(cx).is_ready() {
                first_word.get_or_init(Instant::now);
            }
            asking.poll_unpin(cx)
        });
        let verdicts = verdicts.await.map_err(stopped)?;
        self.follow_late(request, verdicts)
    }

    fn follow_late(
        self: &Arc<Self>,
        mut request: Box<Request>,
        verdicts: Vec<Opinion<Verdict>>,
    ) -> Result<Box<Request>, Ended> {
        let said = self.stages.late_guards.iter().zip(&verdicts);
        request.findings.extend(heard(&request.cx, StageKind::PromptGuard, About::Prompt, said));
        for (stage, verdict) in self.stages.late_guards.iter().zip(verdicts) {
            let Some(verdict) = verdict? else { continue };
            request.take(stage, verdict.notes);
            match verdict.action {
                Action::Allow => {}
                Action::Respond(parts) => return Err(Ended::Answered(Box::new(respond(self, stage, *request, parts)))),
                Action::Refuse(refusal) => return Err(refused(&request.cx, &request.chat, stage, refusal).into()),
                Action::Rewrite(_) => {
                    let cause = format!("`{}` rewrites a prompt that the model has read already", stage.name);
                    return Err(Reject::internal(Fault::Plugin, cause).into());
                }
            }
        }
        Ok(request)
    }

    /// As [`Self::settled`], where one of the `stages` may tell others what it sees, or keep it.
    pub(super) async fn settled_before<'a>(
        self: &Arc<Self>,
        request: Box<Request>,
        mut stages: impl Iterator<Item = &'a Stage>,
    ) -> Result<Box<Request>, Ended> {
        if request.pending.is_some() && stages.any(Stage::may_pass_on) {
            return self.settled(request).await;
        }
        Ok(request)
    }
}

fn stopped(error: JoinError) -> Reject {
    Reject::internal(Fault::Operator, error.to_string())
}
