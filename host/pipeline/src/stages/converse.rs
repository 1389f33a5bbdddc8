//! The conversation with the model: generate, screen, run tools, again, until a turn answers.

use crate::account::{Findings, Record};
use crate::chat::Pipeline;
use crate::reply::{Emitter, Reply, ReplyEvent};
use crate::source::{Source, SourceEvent};
use crate::stages::Started;
use crate::stages::reads::Reads;
use crate::stages::run_tools::is_json;
use crate::stages::screen_answer::{self, HeldAnswer};
use crate::stages::screen_output::{OutputScreen, Piece};
use crate::stages::start::TurnPlan;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use tidegate_sandbox::stage::Channel;
use tidegate_types::{Delta, DeltaKind, Fault, FinishReason, Part, Reject, RejectKind, TextLogprob, ToolCall, Usage};

/// Says how many messages of a history the model did not see.
const LEFT_OUT: &str = "x-tidegate-left-out";
/// Says for how many of them it saw a summary.
const SUMMARIZED: &str = "x-tidegate-summarized";

impl Pipeline {
    pub(crate) fn converse(self: &Arc<Self>, started: Started) -> Reply {
        let Started { turn, source } = started;
        let request = &turn.request;
        let model = turn.model.name.clone();
        let mut record = Record::new(&request.cx, model.clone(), request.chat.stream);
        let findings = record.observe(self, &request.findings);
        record.bill(request.charge.clone());
        record.count_attempts(&request.attempts);
        let (left_out, summarized) = (request.left_out, request.summarized);
        request.cx.note(|report| (report.left_out, report.summarized) = (left_out, summarized));
        let allowances = request.held.allowances();
        let emitter = Emitter::default();
        let conversation = Conversation {
            screen: OutputScreen::new(self, &request.cx, request.chat.stream),
            held: self.holds_answers(request.chat.stream).then(HeldAnswer::default),
            said: request.question.is_some().then(String::new),
            finish: None,
            spoken: (!turn.tools.is_empty()).then(Vec::new),
            pipeline: Arc::clone(self),
            turn,
            out: emitter.clone(),
            usage: None,
            is_counted: true,
            findings,
        };
        let mut reply = Reply::new(model, record, emitter, allowances, conversation.run(source));
        if left_out > 0 {
            reply.headers.push((LEFT_OUT, left_out.to_string()));
        }
        if summarized > 0 {
            reply.headers.push((SUMMARIZED, summarized.to_string()));
        }
        reply
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
    /// Why the first choice ended.
    finish: Option<FinishReason>,
    /// What the model said and thought in this turn, as it left, where a turn may follow that has to know it.
    spoken: Option<Vec<Part>>,
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
        let most = self.pipeline.limits.max_tool_turns;
        let mut turns = 0;
        loop {
            match self.listen(source).await? {
                TurnEnd::Answered => return self.end().await,
                // Whatever the tools say, the model could not tell.
                TurnEnd::Calls(_) if self.turn.tokens_left() == Some(0) => {
                    self.emit(0, DeltaKind::Finish(FinishReason::Length)).await;
                    return self.end().await;
                }
                TurnEnd::Calls(_) if turns == most => return Err(too_many_turns(most)),
                TurnEnd::Calls(calls) => self.run_tools(calls).await?,
            }
            turns += 1;
            source = Box::pin(self.turn.go_on()).await?;
        }
    }

    async fn end(&mut self) -> Result<(), Reject> {
        self.let_go().await?;
        if let Some(usage) = self.usage.filter(|_| self.is_counted) {
            self.out.emit(ReplyEvent::Usage(usage)).await;
        }
        if let Some(said) = self.said.take() {
            let finish = self.finish.unwrap_or(FinishReason::Stop);
            self.pipeline.remember(&self.turn.request, said, finish);
        }
        Ok(())
    }

    /// Asks the output guards, where the answer was held for them, and lets out what they leave of it.
    async fn let_go(&mut self) -> Result<(), Reject> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let request = &self.turn.request;
        let (cx, stream, model) = (&request.cx, request.chat.stream, &self.turn.model.name);
        let findings = &mut self.screen.findings;
        let judged = Box::pin(self.pipeline.screen_answer(cx, stream, model, held, self.usage, findings)).await?;
        for Delta { choice, kind } in judged.events {
            self.emit(choice, kind).await;
        }
        if judged.replaced {
            self.said = None;
        }
        Ok(())
    }

    async fn run_tools(&mut self, calls: Vec<ToolCall>) -> Result<(), Reject> {
        let spoken = self.spoken.as_mut().map(std::mem::take).unwrap_or_default();
        Box::pin(self.pipeline.run_tools(&mut self.turn, spoken, calls, &mut self.screen.findings)).await
    }

    /// Reads one turn to its end.
    async fn listen(&mut self, mut source: Source) -> Result<TurnEnd, Reject> {
        let mut calls: BTreeMap<u32, Vec<ToolCall>> = BTreeMap::new();
        let mut own_calls = Vec::new();
        let mut halted: Vec<u32> = Vec::new();
        let mut usage = None;
        let mut reads = Reads::default();
        let mut next = reads.next(&mut source).await;
        // Whoever answers has said its name with its first word.
        self.turn.request.cx.note(|report| {
            report.model_version = source.version().or(self.turn.model.version()).unwrap_or_default().to_owned();
        });
        while let Some(event) = next {
            match event? {
                SourceEvent::Usage(latest) => usage = Some(latest),
                SourceEvent::Delta(delta) if halted.contains(&delta.choice) => {}
                SourceEvent::Delta(Delta { choice, kind }) => match kind {
                    DeltaKind::ToolCall { call, .. } => calls.entry(choice).or_default().push(call),
                    DeltaKind::Finish(reason) => {
                        let calls = calls.remove(&choice).unwrap_or_default();
                        own_calls = Box::pin(self.finish(choice, reason, calls)).await?;
                    }
                    mut kind => {
                        let more = reads.gather(self.screen.joining(), choice, &mut kind, &mut source);
                        if self.say(choice, kind, more, None).await? {
                            self.emit(choice, DeltaKind::Finish(FinishReason::ContentFilter)).await;
                            source.stop(choice);
                            halted.push(choice);
                        }
                    }
                },
            }
            next = reads.next(&mut source).await;
        }
        match usage {
            Some(usage) => *self.usage.get_or_insert_default() += usage,
            // A sum of the others would be too little.
            None => self.is_counted = false,
        }
        Ok(if own_calls.is_empty() { TurnEnd::Answered } else { TurnEnd::Calls(own_calls) })
    }

    /// Judges text, with `more` that came together with it, and lets it out; true when a guard halts the answer.
    async fn say(
        &mut self,
        choice: u32,
        kind: DeltaKind,
        more: Vec<Piece>,
        ending: Option<&str>,
    ) -> Result<bool, Reject> {
        let (channel, text, logprobs) = match kind {
            DeltaKind::Text { text, logprobs } => (Channel::Text, text, logprobs),
            DeltaKind::Reasoning(text) => (Channel::Reasoning, text, Vec::new()),
            DeltaKind::Refusal(text) => (Channel::Refusal, text, Vec::new()),
            DeltaKind::ToolCall { .. } | DeltaKind::Finish(_) => return Ok(false),
        };
        let judged = self.screen.judge(choice, &channel, Piece { text, logprobs }, more, ending).await?;
        let halted = judged.halted;
        for Piece { text, logprobs } in judged.pieces() {
            self.emit_text(choice, &channel, text, logprobs).await;
        }
        Ok(halted)
    }

    /// Ends a choice: lets the guards judge what they hold, then its tool calls. Gives the calls that the
    /// server shall run.
    async fn finish(
        &mut self,
        choice: u32,
        reason: FinishReason,
        calls: Vec<ToolCall>,
    ) -> Result<Vec<ToolCall>, Reject> {
        let ending = Some(reason.as_str());
        for kind in [
            DeltaKind::Reasoning(String::new()),
            DeltaKind::Text { text: String::new(), logprobs: Vec::new() },
            DeltaKind::Refusal(String::new()),
        ] {
            if !self.screen.is_off() && self.say(choice, kind, Vec::new(), ending).await? {
                self.emit(choice, DeltaKind::Finish(FinishReason::ContentFilter)).await;
                return Ok(Vec::new());
            }
        }
        let Some(calls) = self.judge_calls(choice, calls, ending).await? else {
            self.emit(choice, DeltaKind::Finish(FinishReason::ContentFilter)).await;
            return Ok(Vec::new());
        };
        let (ours, theirs): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| self.is_ours(&call.name));
        // A turn that was cut off has ended the answer, whatever it called before.
        let is_whole = matches!(reason, FinishReason::Stop | FinishReason::ToolCalls);
        if theirs.is_empty() && !ours.is_empty() && is_whole {
            return Ok(ours);
        }
        if !ours.is_empty() {
            tracing::info!(request = %self.turn.request.cx.request_id, tool = ours[0].name, finish = reason.as_str(),
                "not run: the turn was cut off, or calls a tool of the caller too");
        }
        for (index, call) in theirs.into_iter().enumerate() {
            self.emit(choice, DeltaKind::ToolCall { index: index as u32, call }).await;
        }
        self.emit(choice, DeltaKind::Finish(reason)).await;
        Ok(Vec::new())
    }

    /// Arguments are held until the guards have judged them; `None` when one halts.
    async fn judge_calls(
        &mut self,
        choice: u32,
        calls: Vec<ToolCall>,
        ending: Option<&str>,
    ) -> Result<Option<Vec<ToolCall>>, Reject> {
        let mut judged = Vec::with_capacity(calls.len());
        for mut call in calls {
            let channel = Channel::ToolArguments(call.id.clone());
            let was_json = !self.screen.is_off() && is_json(&call.arguments);
            let arguments = Piece { text: call.arguments, logprobs: Vec::new() };
            let verdict = self.screen.judge(choice, &channel, arguments, Vec::new(), ending).await?;
            if verdict.halted {
                return Ok(None);
            }
            // What a model wrote may be no JSON, or cut off: whoever offered the tool is told to check.
            if was_json && !is_json(&verdict.text) {
                let cause = format!("a stream guard left no JSON in the arguments of a call of `{}`", call.name);
                return Err(Reject::internal(Fault::Plugin, cause));
            }
            call.arguments = verdict.text;
            judged.push(call);
        }
        Ok(Some(judged))
    }

    /// A tool of the server, or one that nobody offered while the server has tools: then the model is told.
    fn is_ours(&self, name: &str) -> bool {
        let ours = &self.turn.tools;
        let theirs = &self.turn.request.chat.tools;
        !theirs.iter().any(|tool| tool.name == name)
            && (theirs.is_empty() && !ours.is_empty() || ours.iter().any(|tool| tool.def.name == name))
    }

    async fn emit_text(&mut self, choice: u32, channel: &Channel, text: String, logprobs: Vec<TextLogprob>) {
        let kind = match channel {
            Channel::Reasoning => DeltaKind::Reasoning(text),
            Channel::Refusal => DeltaKind::Refusal(text),
            Channel::Text | Channel::ToolArguments(_) => DeltaKind::Text { text, logprobs },
        };
        self.emit(choice, kind).await;
    }

    async fn emit(&mut self, choice: u32, kind: DeltaKind) {
        if let Some(spoken) = self.spoken.as_mut().filter(|_| choice == 0) {
            screen_answer::add(spoken, &kind);
        }
        if let Some(held) = &mut self.held {
            held.push(Delta { choice, kind });
            return;
        }
        match &kind {
            DeltaKind::Finish(FinishReason::ContentFilter) => self.said = None,
            DeltaKind::Finish(reason) if choice == 0 => self.finish = Some(*reason),
            DeltaKind::Text { text, .. } if choice == 0 => self.said.iter_mut().for_each(|said| said.push_str(text)),
            _ => {}
        }
        self.out.emit(ReplyEvent::Delta(Delta { choice, kind })).await;
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
