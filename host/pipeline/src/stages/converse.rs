//! The conversation with the model: generate, screen, run tools, again, until a turn answers.

mod calls;
mod pieces;
mod speech;

use crate::account::{Findings, Record};
use crate::chat::Pipeline;
use crate::reply::{Emitter, Reply, ReplyEvent};
use crate::source::{Source, SourceEvent};
use crate::stage::Stage;
use crate::stages::Started;
use crate::stages::echo::Echo;
use crate::stages::reads::Reads;
use crate::stages::remember::Said;
use crate::stages::screen_answer::HeldAnswer;
use crate::stages::screen_output::OutputScreen;
use crate::stages::start::TurnPlan;
use calls::SeenIds;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use tidegate_types::{Delta, DeltaKind, Fault, FinishReason, Part, Reject, RejectKind, ToolCall, Usage};

/// Says how many messages of a history the model did not see.
const LEFT_OUT: &str = "x-tidegate-left-out";
/// Says for how many of them it saw a summary.
const SUMMARIZED: &str = "x-tidegate-summarized";

impl Pipeline {
    pub(crate) fn converse(self: &Arc<Self>, started: Started) -> Reply {
        let Started { mut turn, source } = started;
        let citations = std::mem::take(&mut turn.request.citations);
        let request = &turn.request;
        let model = turn.model.name.clone();
        let mut record = Record::new(&request.cx, model.clone(), request.chat.stream, &request.tally);
        let findings = record.observe(self, &request.findings);
        record.bill(request.charge.clone());
        record.count_attempts(&request.attempts);
        let (left_out, summarized) = (request.left_out.total(), request.summarized.total());
        let unseen = request.left_out.long.saturating_sub(request.summarized.long);
        request.cx.note(|report| (report.left_out, report.summarized, report.unseen) = (left_out, summarized, unseen));
        let allowances = request.held.allowances();
        let emitter = Emitter::default();
        let is_held = self.holds_answers(request.chat.stream);
        let conversation = Conversation {
            screen: OutputScreen::new(is_held),
            held: is_held.then(|| self.hold_answer(request.chat.stream)),
            said: request.question.is_some().then(String::new),
            is_changed: false,
            is_unjudged: false,
            finish: None,
            echo: Echo::of(&request.chat),
            spoken: (!turn.tools.is_empty()).then(Vec::new),
            waiting: String::new(),
            heard_bytes: 0,
            seen_ids: SeenIds::default(),
            pipeline: Arc::clone(self),
            turn,
            out: emitter.clone(),
            usage: None,
            is_counted: true,
            findings,
        };
        let mut reply = Reply::new(model, record, emitter, allowances, conversation.run(source));
        reply.citations = citations;
        if left_out > 0 {
            reply.headers.push((LEFT_OUT, left_out.to_string()));
        }
        if summarized > 0 {
            reply.headers.push((SUMMARIZED, summarized.to_string()));
        }
        reply
    }
}

/// What was heard of a turn.
#[derive(Default)]
struct Heard {
    /// Of each choice that has not ended.
    calls: BTreeMap<u32, Vec<ToolCall>>,
    /// Those that the server shall run.
    own_calls: Vec<ToolCall>,
    /// Choices that a guard has ended.
    halted: Vec<u32>,
    /// Of those, how many the source may still be making.
    unheard: u32,
    /// Choices that have not ended.
    open: u32,
    usage: Option<Usage>,
}

impl Heard {
    /// Whether it is of a choice that a guard has ended: nobody wants more of that.
    fn passes_over(&mut self, delta: &Delta) -> bool {
        let is_halted = self.halted.contains(&delta.choice);
        if is_halted && matches!(delta.kind, DeltaKind::Finish(_)) {
            self.unheard = self.unheard.saturating_sub(1);
        }
        is_halted
    }

    /// Whether nothing more is to be heard: no choice is left, the source goes on with one that was halted, and what was used
    /// is known. Where each has ended there too, it is about to say what it has counted.
    fn is_over(&mut self, source: &mut Source) -> bool {
        let counted = if self.open == 0 && self.unheard > 0 { source.counted() } else { None };
        self.usage = counted.or(self.usage);
        counted.is_some()
    }
}

/// One answer in the making.
struct Conversation {
    pipeline: Arc<Pipeline>,
    turn: TurnPlan,
    screen: OutputScreen,
    out: Emitter,
    /// Of all turns; `None` while nobody has counted any.
    usage: Option<Usage>,
    /// Whether each turn so far said what it used.
    is_counted: bool,
    /// What waits for the output guards, where there are some.
    held: Option<HeldAnswer>,
    /// Text of the first choice as it left, where a memory wants it; `None` once it is no answer to remember.
    said: Option<String>,
    /// An output guard has rewritten it.
    is_changed: bool,
    /// An output guard had no verdict on it.
    is_unjudged: bool,
    /// What stands before each choice, where the caller wants it.
    echo: Option<Echo>,
    /// Why the first choice ended.
    finish: Option<FinishReason>,
    /// What the model said and thought in this turn, as it left, where a turn may follow that has to know it.
    spoken: Option<Vec<Part>>,
    /// Of it, what waits at the guards: it is in the message of a turn before.
    waiting: String,
    /// Text of the first choice that the model has said.
    heard_bytes: u64,
    /// What the calls of all turns are called for the guards.
    seen_ids: SeenIds,
    /// Where observers look for what guards saw.
    findings: Option<Findings>,
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(findings) = &self.findings {
            findings.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.screen.findings);
        }
    }
}

fn too_many_turns(limit: u32) -> Reject {
    let message = format!("the model called tools in more than {limit} turns, this server's limit");
    Reject::new(RejectKind::Internal, Fault::Operator, message).code("tool_loop")
}

/// What a turn left to do.
enum TurnEnd {
    /// The answer is complete.
    Answered,
    /// The model called these tools of the server.
    Calls(Vec<ToolCall>),
}

impl Conversation {
    async fn run(mut self, mut source: Source) -> Result<(), Reject> {
        let most = self.pipeline.limits.tools.max_turns;
        let mut turns = 0;
        loop {
            match self.listen(source).await? {
                TurnEnd::Answered => return self.end().await,
                // Whatever the tools say, the model could not tell.
                TurnEnd::Calls(_) if self.turn.tokens_left() == Some(0) => {
                    Box::pin(self.end_choice(0, FinishReason::Length)).await?;
                    return self.end().await;
                }
                TurnEnd::Calls(_) if turns == most => return Err(too_many_turns(most)),
                TurnEnd::Calls(calls) => self.run_tools(calls).await?,
            }
            turns += 1;
            source = Box::pin(self.turn.go_on(&self.pipeline, &mut self.screen.findings)).await?;
        }
    }

    async fn end(&mut self) -> Result<(), Reject> {
        // A sum of some turns would be too little.
        self.usage = self.usage.filter(|_| self.is_counted);
        self.let_go().await?;
        if let Some(usage) = self.usage {
            self.out.emit(ReplyEvent::Usage(usage)).await;
        }
        if let Some(answer) = self.said.take() {
            let is_unjudged = self.is_unjudged || self.pipeline.lets_pass(self.turn.request.chat.stream);
            let said = Said {
                answer,
                model: self.turn.model.name.clone(),
                finish: self.finish.unwrap_or(FinishReason::Stop),
                is_changed: self.is_changed || self.screen.redacted,
                is_unjudged: is_unjudged || self.screen.unjudged,
            };
            self.pipeline.remember(&self.turn.request, said);
        }
        Ok(())
    }

    /// Asks the output guards, where the answer was held for them, and lets out what they leave of it.
    async fn let_go(&mut self) -> Result<(), Reject> {
        let request = &self.turn.request;
        let held = match self.held.take() {
            Some(held) => held,
            // It has left, and what did not load has failed of it all the same.
            None if self.pipeline.screens_answers(request.chat.stream) => HeldAnswer::default(),
            None => return Ok(()),
        };
        let (model, findings) = (&self.turn.model.name, &mut self.screen.findings);
        let judged = Box::pin(self.pipeline.screen_answer(request, model, held, self.usage, findings)).await?;
        if judged.replaced {
            request.cx.note(|report| report.citations.clear());
            self.out.emit(ReplyEvent::Uncited).await;
        }
        for Delta { choice, kind } in judged.events {
            self.emit(choice, kind).await;
        }
        (self.is_changed, self.is_unjudged) = (judged.rewritten, judged.unjudged);
        if judged.replaced {
            self.said = None;
        }
        Ok(())
    }

    /// Those of its text; without any it passes untouched.
    fn guards(&self) -> &[Stage] {
        &self.pipeline.stages.stream_guards
    }

    async fn run_tools(&mut self, calls: Vec<ToolCall>) -> Result<(), Reject> {
        let spoken = self.spoken.as_mut().map(std::mem::take).unwrap_or_default();
        Box::pin(self.pipeline.run_tools(&mut self.turn, spoken, calls, &mut self.screen.findings)).await
    }

    /// Reads one turn to its end.
    async fn listen(&mut self, mut source: Source) -> Result<TurnEnd, Reject> {
        let mut heard = Heard { open: self.turn.request.chat.n, ..Heard::default() };
        let (mut reads, before) = (Reads::default(), self.heard_bytes);
        let mut next = reads.next(&mut source).await;
        // Whoever answers has said its name with its first word.
        self.turn.request.cx.note(|report| {
            report.model_version = source.version().or(self.turn.model.version()).unwrap_or_default().to_owned();
        });
        let is_upstream = matches!(source, Source::Upstream(_));
        while let Some(event) = next {
            let event = match event {
                Ok(event) => event,
                Err(reject) if is_upstream => return Err(Box::pin(self.refusal(reject)).await),
                Err(reject) => return Err(reject),
            };
            match event {
                SourceEvent::Usage(latest) => heard.usage = Some(latest),
                SourceEvent::Delta(delta) if heard.passes_over(&delta) => {}
                SourceEvent::Delta(Delta { choice, kind }) => match kind {
                    DeltaKind::ToolCall { call, .. } => heard.calls.entry(choice).or_default().push(call),
                    DeltaKind::Finish(reason) => {
                        heard.open = heard.open.saturating_sub(1);
                        let calls = heard.calls.remove(&choice).unwrap_or_default();
                        heard.own_calls = Box::pin(self.finish(choice, reason, calls)).await?;
                    }
                    mut kind => {
                        let joining = self.screen.joining(self.guards(), self.turn.request.chat.stream);
                        let mut more = reads.gather(joining, choice, &mut kind, &mut source);
                        self.place_behind(before, choice, &mut kind, &mut more);
                        let is_halted = self.echo.is_some() && Box::pin(self.repeat(choice)).await?
                            || self.ends_reasoning(choice, &kind) && Box::pin(self.end_reasoning(choice)).await?
                            || match self.is_cut(&kind) {
                                true => Box::pin(self.say_in_pieces(choice, kind)).await?,
                                false => self.say(choice, kind, more, None).await?,
                            };
                        if is_halted {
                            self.halt(choice, &mut source, &mut heard).await;
                        }
                    }
                },
            }
            if heard.is_over(&mut source) {
                break;
            }
            if let Some(reject) = self.held.as_ref().and_then(HeldAnswer::too_long) {
                return Err(reject);
            }
            next = reads.next(&mut source).await;
        }
        match heard.usage {
            Some(usage) => *self.usage.get_or_insert_default() += usage,
            None => self.is_counted = false,
        }
        Ok(if heard.own_calls.is_empty() { TurnEnd::Answered } else { TurnEnd::Calls(heard.own_calls) })
    }

    /// A failure of the upstream in the middle of a turn, as the caller may read it.
    async fn refusal(&mut self, reject: Reject) -> Reject {
        let (request, model, findings) = (&self.turn.request, &self.turn.model.name, &mut self.screen.findings);
        self.pipeline.screen_refusal(request, model, reject, findings).await
    }

    /// Ends a choice that a guard has halted, and lets no more of it be made.
    async fn halt(&mut self, choice: u32, source: &mut Source, heard: &mut Heard) {
        self.emit(choice, DeltaKind::Finish(FinishReason::ContentFilter)).await;
        source.stop(choice);
        heard.halted.push(choice);
        heard.unheard += 1;
        heard.open = heard.open.saturating_sub(1);
    }

    /// Ends a choice: lets the guards judge what they hold, then its tool calls. Gives the calls that the
    /// server shall run.
    async fn finish(
        &mut self,
        choice: u32,
        reason: FinishReason,
        calls: Vec<ToolCall>,
    ) -> Result<Vec<ToolCall>, Reject> {
        if self.echo.is_some() && self.repeat(choice).await? {
            self.emit(choice, DeltaKind::Finish(FinishReason::ContentFilter)).await;
            return Ok(Vec::new());
        }
        // A turn that was cut off has ended the answer, whatever it called before.
        let is_whole = matches!(reason, FinishReason::Stop | FinishReason::ToolCalls);
        let goes_on = is_whole && !calls.is_empty() && calls.iter().all(|call| self.is_ours(&call.name));
        let is_halted = match goes_on {
            true => self.pause(choice, reason).await?,
            false => self.end_texts(choice, reason).await?,
        };
        let calls = if is_halted { None } else { self.judge_calls(choice, calls, Some(reason.as_str())).await? };
        let Some(calls) = calls else {
            if goes_on && !is_halted {
                // What waits was said before the call that a guard has stopped.
                self.end_texts(choice, FinishReason::ContentFilter).await?;
            }
            self.emit(choice, DeltaKind::Finish(FinishReason::ContentFilter)).await;
            return Ok(Vec::new());
        };
        if goes_on {
            return Ok(calls);
        }
        let (ours, theirs): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| self.is_ours(&call.name));
        if !ours.is_empty() {
            self.leave_out(&ours, reason);
        }
        for (index, call) in theirs.into_iter().enumerate() {
            self.emit(choice, DeltaKind::ToolCall { index: index as u32, call }).await;
        }
        self.emit(choice, DeltaKind::Finish(reason)).await;
        Ok(Vec::new())
    }

    /// Has the guards judge what they hold, as the last of it; true when one halts the answer.
    async fn end_texts(&mut self, choice: u32, reason: FinishReason) -> Result<bool, Reject> {
        for kind in [
            DeltaKind::Reasoning(String::new()),
            DeltaKind::Text { text: String::new(), logprobs: Vec::new() },
            DeltaKind::Refusal(String::new()),
        ] {
            if !self.screen.is_open(self.guards()) && self.say(choice, kind, Vec::new(), Some(reason.as_str())).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends a choice that calls nothing.
    async fn end_choice(&mut self, choice: u32, reason: FinishReason) -> Result<(), Reject> {
        let is_halted = self.end_texts(choice, reason).await?;
        let reason = if is_halted { FinishReason::ContentFilter } else { reason };
        self.emit(choice, DeltaKind::Finish(reason)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, F>(_: impl FnOnce(A) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    /// Each answer that is being made holds one for as long as it takes.
    #[test]
    fn the_future_of_an_answer_is_small() {
        let size = size_of_future(|(conversation, source): (Conversation, _)| conversation.run(source));
        assert!(size <= 6 << 10, "{size} bytes");
    }
}
