//! Prompt guards, in the config's order; each sees what those before it left.

use crate::account::Record;
use crate::chat::{Pipeline, Stages};
use crate::context::RequestContext;
use crate::reply::{Emitter, Reply, ReplyEvent};
use crate::stage::{Opinion, Stage};
use crate::stages::ask_prompt_guard::{Read, inspect, inspect_outside};
use crate::stages::edits;
use crate::stages::fit::check_template_args;
use crate::states::{Ended, Loaded, Notes, Request, Screened};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_sandbox::stage::{Action, Refusal, StageKind, Verdict};
use tidegate_types::{About, Chat, Delta, DeltaKind, Fault, Finding, FinishReason, Message, Part, Reject, RejectKind};

/// The response header that names the guard that answered in the model's place.
pub(crate) const ANSWERED_BY: &str = "x-tidegate-answered-by";

/// Messages from outside that guards are asked about at once, where they have the instances for it.
const SCREENED_AT_ONCE: usize = 8;

/// What guards may make of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rewrites {
    /// Other texts, and other messages.
    All,
    /// Other texts. Which messages there are is the request's.
    Texts,
}

/// What becomes of a verdict that is followed in chats alone, and how to mend that.
const MOVES_TEXTS: &str = "puts or drops messages, but of a request for vectors each text stays one; have the guard replace \
    what is in them (`replace-text`), or refuse, where `form` is \"completion\" and `max_tokens` is 0";

impl Pipeline {
    pub(crate) async fn screen_input(self: &Arc<Self>, loaded: Loaded) -> Result<Screened, Ended> {
        self.screen(loaded, Rewrites::All).await
    }

    /// As [`Self::screen_input`], of messages that each stay what they are: for a guard that puts or drops some, its stage
    /// has failed.
    pub(crate) async fn screen_texts(self: &Arc<Self>, loaded: Loaded) -> Result<Screened, Ended> {
        self.screen(loaded, Rewrites::Texts).await
    }

    async fn screen(self: &Arc<Self>, loaded: Loaded, rewrites: Rewrites) -> Result<Screened, Ended> {
        let Loaded(mut request) = loaded;
        if self.stages.guards().next().is_some() {
            check_template_args(&request.chat)?;
        }
        // Guards that follow each other and change nothing are asked beside each other.
        for batch in self.stages.prompt_guards.chunk_by(|a, b| !a.mutates() && !b.mutates()) {
            let ask = async |stage: &Stage| {
                followed(stage, rewrites, inspect(&self.stages, stage, &request.cx, &request.chat, None).await?)
            };
            let verdicts = match batch {
                // What is asked alone needs no box.
                [stage] => vec![ask(stage).await],
                _ => join_all(batch.iter().map(&ask)).await,
            };
            let said = batch.iter().zip(&verdicts);
            request.findings.extend(heard(&request.cx, StageKind::PromptGuard, About::Prompt, said));
            for (stage, verdict) in batch.iter().zip(verdicts) {
                let Some(verdict) = verdict? else { continue };
                request.take(stage, verdict.notes);
                match verdict.action {
                    Action::Allow => {}
                    Action::Rewrite(list) => {
                        let messages = &mut Arc::make_mut(&mut request.chat).messages;
                        edits::apply(&request.cx, stage, messages, list)?;
                    }
                    Action::Respond(parts) => {
                        // Nothing leaves before every guard has decided, whoever says it.
                        request.pending = self.ask_late(&request);
                        let request = self.settled(request).await?;
                        return Err(Ended::Answered(Box::new(respond(self, stage, *request, parts))));
                    }
                    Action::Refuse(refusal) => return Err(refused(&request.cx, &request.chat, stage, refusal).into()),
                }
            }
        }
        request.pending = self.ask_late(&request);
        Ok(Screened(request))
    }

    /// Screens text from outside before the model sees it: what a guard rewrites is rewritten, what it drops or refuses
    /// is dropped and named in the log. Messages are screened beside each other, and nothing depends on which is first.
    /// Gives what is left of each. Once one fails no more are begun, and those that were are judged to their ends: what
    /// guards saw in them counts.
    pub(crate) async fn screen_outside(
        &self,
        cx: &RequestContext,
        messages: Vec<Message>,
        findings: &mut Vec<Finding>,
    ) -> Result<Vec<Option<Message>>, Reject> {
        let (at_once, failed) = (self.stages.screened_at_once(), AtomicBool::new(false));
        let begun = messages.into_iter().take_while(|_| !failed.load(Ordering::Relaxed));
        let screened = stream::iter(begun).map(|message| self.screen_one(cx, message, &failed)).buffered(at_once);
        let mut screened = screened.boxed();
        let (mut left, mut refused) = (Vec::new(), None);
        while let Some((message, mut found)) = screened.next().await {
            findings.append(&mut found);
            match message {
                Ok(message) => left.push(message),
                Err(reject) => refused = refused.or(Some(reject)),
            }
        }
        refused.map_or(Ok(left), Err)
    }

    /// What is left of a message, if anything is, and what guards saw in it.
    async fn screen_one(
        &self,
        cx: &RequestContext,
        message: Message,
        failed: &AtomicBool,
    ) -> (Result<Option<Message>, Reject>, Vec<Finding>) {
        let mut findings = Vec::new();
        let left = self.left_of(cx, message, &mut findings).await;
        failed.fetch_or(left.is_err(), Ordering::Relaxed);
        (left, findings)
    }

    async fn left_of(
        &self,
        cx: &RequestContext,
        message: Message,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<Message>, Reject> {
        let mut messages = vec![message];
        let guards: Vec<&Stage> = self.stages.guards().collect();
        for batch in guards.chunk_by(|a, b| !a.mutates() && !b.mutates()) {
            let Some(message) = messages.first() else { break };
            let asked = join_all(batch.iter().map(|stage| inspect_outside(stage, cx, message))).await;
            let (verdicts, read): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
            let said = batch.iter().copied().zip(&verdicts);
            findings.extend(heard(cx, StageKind::PromptGuard, About::Context, said));
            for ((stage, verdict), read) in batch.iter().zip(verdicts).zip(read) {
                match verdict?.map(|verdict| verdict.action) {
                    _ if read == Read::TooLong => messages.clear(),
                    None | Some(Action::Allow) => {}
                    // Also where it drops the message.
                    Some(Action::Rewrite(list)) => edits::apply(cx, stage, &mut messages, list)?,
                    Some(Action::Respond(_) | Action::Refuse(_)) => messages.clear(),
                }
                if messages.is_empty() {
                    tracing::warn!(request = %cx.request_id, guard = %stage.name, "dropped text from outside");
                    return Ok(None);
                }
            }
        }
        Ok(messages.pop())
    }
}

impl Stages {
    /// Those that see text from outside.
    fn guards(&self) -> impl Iterator<Item = &Stage> {
        self.prompt_guards.iter().chain(&self.late_guards)
    }

    /// Half of each guard's instances at most: the time of a call runs while it waits for one, so that more would make each
    /// other late, and take all of them from other requests.
    pub(crate) fn screened_at_once(&self) -> usize {
        let instances = self.guards().filter_map(|stage| Some(stage.plugin.as_ref().ok()?.max_instances()));
        instances.map(|most| most / 2).min().unwrap_or(SCREENED_AT_ONCE).clamp(1, SCREENED_AT_ONCE)
    }
}

impl Request {
    /// Keeps what a guard noted for its plugin's memory.
    pub(super) fn take(&mut self, stage: &Stage, notes: Vec<(String, String)>) {
        if !notes.is_empty() {
            self.notes.push(Notes { plugin: Arc::clone(&stage.name), attrs: notes });
        }
    }
}

/// Counts and notes what guards said that were asked beside each other, before any of it is followed: one that ends the request
/// takes nothing from those behind it. Gives what they saw.
pub(super) fn heard<'a>(
    cx: &RequestContext,
    kind: StageKind,
    about: About,
    said: impl Iterator<Item = (&'a Stage, &'a Result<Option<Verdict>, Reject>)>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (stage, verdict) in said {
        let Ok(verdict) = verdict else { continue };
        cx.judged(stage, about, verdict.as_ref());
        let Some(verdict) = verdict else { continue };
        stage.count_action(kind, &verdict.action);
        findings.extend_from_slice(&verdict.findings);
    }
    findings
}

/// A verdict, where it can be followed; else what the stage's failure means.
fn followed(stage: &Stage, rewrites: Rewrites, verdict: Option<Verdict>) -> Opinion<Verdict> {
    match &verdict {
        Some(Verdict { action: Action::Rewrite(list), .. }) if rewrites == Rewrites::Texts && edits::moves(list) => {
            stage.unfit(StageKind::PromptGuard, MOVES_TEXTS)
        }
        _ => Ok(verdict),
    }
}

pub(super) fn refused(cx: &RequestContext, chat: &Chat, stage: &Stage, refusal: Refusal) -> Reject {
    let [code, cause] = [Some(refusal.code), refusal.private_reason].map(|said| cx.for_log(said).unwrap_or_default());
    Reject::new(RejectKind::ContentFilter, Fault::Client, refusal.public_message)
        .at(chat.fields.messages)
        .code("content_filter")
        .because(format!("prompt guard `{}` refused ({code}): {cause}", stage.name))
}

/// The guard's answer, in the model's place. Billed is what was used until then: for a guard that is asked before all
/// else, nothing.
pub(super) fn respond(pipeline: &Arc<Pipeline>, stage: &Stage, request: Request, parts: Vec<Part>) -> Reply {
    let Request { chat, cx, held, findings, charge, tally, .. } = request;
    // Passages may have been found beside a guard that is asked during prefill: this answer is not made from them.
    cx.note(|report| report.citations.clear());
    let mut record = Record::new(&cx, chat.model.clone(), chat.stream, &tally);
    record.observe(pipeline, &findings);
    record.answered_by_guard();
    record.bill(charge);
    let emitter = Emitter::default();
    let out = emitter.clone();
    let allowances = held.allowances();
    let mut reply = Reply::new(chat.model.clone(), record, emitter, allowances, async move {
        let _held = held;
        for choice in 0..chat.n {
            for part in &parts {
                let kind = match part {
                    Part::Text(text) => DeltaKind::Text { text: text.clone(), logprobs: Vec::new() },
                    Part::Refusal(text) => DeltaKind::Refusal(text.clone()),
                    // The sandbox lets nothing else through.
                    _ => continue,
                };
                out.emit(ReplyEvent::Delta(Delta { choice, kind })).await;
            }
            let kind = DeltaKind::Finish(FinishReason::Stop);
            out.emit(ReplyEvent::Delta(Delta { choice, kind })).await;
        }
        out.emit(ReplyEvent::Usage(tally.tokens().into())).await;
        Ok(())
    });
    reply.headers.push((ANSWERED_BY, stage.name.to_string()));
    reply
}
