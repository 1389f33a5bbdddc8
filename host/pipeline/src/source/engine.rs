//! Jobs of the own engine as one stream of deltas, with what they cost.

use super::SourceEvent;
use super::choice::ChoiceText;
use crate::models::EngineModel;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_engine::JobStream;
use tidegate_ledger::Tally;
use tidegate_trace as trace;
use tidegate_types::{Caller, Delta, DeltaKind, Fault, FinishReason, Job, JobEvent, Reject, SamplingParams, Usage};
use tracing::Span;

/// What one turn asks of the engine: one job for each entry of `sampling`.
pub(crate) struct EngineTurn {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: Vec<SamplingParams>,
    pub(crate) max_tokens: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) reading: Reading,
    /// End the turn after its first tool call.
    pub(crate) single_call: bool,
    /// What the answers are held to.
    pub(crate) grammar: Option<Arc<str>>,
}

/// How the generated text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As it is.
    Verbatim,
    /// As an answer, with reasoning, and with tool calls where tools were offered.
    Chat { tools: bool },
    /// The same of an answer that is calls from its beginning on or has none, as what it is held to says.
    CallsAlone,
}

/// The jobs of one turn.
pub(crate) struct EngineSource {
    choices: Vec<Choice>,
    /// Which choice is polled first next time, so that none waits behind another.
    turn: usize,
    ready: VecDeque<Result<SourceEvent, Reject>>,
    usage: Usage,
    single_call: bool,
    tally: Option<Arc<Tally>>,
    /// From the queue to the last token.
    _span: Span,
}

struct Choice {
    /// `None` once it has ended.
    stream: Option<JobStream>,
    text: ChoiceText,
    cached_tokens: u64,
    output_tokens: u64,
}

impl Choice {
    /// Takes its stream, and counts what the engine has made of it that nobody has read: so many tokens.
    fn end(&mut self) -> u64 {
        let Some(mut stream) = self.stream.take() else { return 0 };
        let read = self.output_tokens;
        for event in std::iter::from_fn(|| stream.try_next()) {
            match event {
                JobEvent::Token(_) => self.output_tokens += 1,
                JobEvent::Finished { usage, .. } => self.output_tokens = usage.output_tokens,
                JobEvent::Started { .. } | JobEvent::Vector(_) | JobEvent::Failed(_) => {}
            }
        }
        self.output_tokens.saturating_sub(read)
    }
}

impl EngineSource {
    /// Submits the jobs; all or none.
    pub(crate) fn start(
        engine: &EngineModel,
        turn: EngineTurn,
        caller: &Caller,
        tally: Option<Arc<Tally>>,
    ) -> Result<Self, Reject> {
        let usage = Usage { input_tokens: turn.prompt.len() as u64, ..Usage::default() };
        let mut choices = Vec::with_capacity(turn.sampling.len());
        for sampling in &turn.sampling {
            let text = ChoiceText::new(Arc::clone(&engine.text), &turn)?;
            let job = Job {
                sampling: sampling.clone(),
                max_tokens: turn.max_tokens,
                stop_token_ids: engine.stop_token_ids.clone(),
                grammar: turn.grammar.clone(),
                ..Job::of(caller, engine.handle.next_job_id(), turn.prompt.clone())
            };
            let stream = Some(engine.handle.submit(job)?);
            choices.push(Choice { stream, text, cached_tokens: 0, output_tokens: 0 });
        }
        if let Some(tally) = &tally {
            tally.add_input(usage.input_tokens);
        }
        let (prompt_tokens, num_choices) = (trace::whole(usage.input_tokens), trace::whole(choices.len()));
        let span = tracing::debug_span!("engine", prompt_tokens, choices = num_choices);
        Ok(Self { choices, turn: 0, ready: VecDeque::new(), usage, single_call: turn.single_call, tally, _span: span })
    }

    /// Ends a choice; its job is cancelled by dropping the stream. What was made of it by then counts.
    pub(crate) fn stop(&mut self, choice: u32) {
        let unread = self.choices.get_mut(choice as usize).map_or(0, Choice::end);
        if let Some(tally) = &self.tally {
            tally.add_output(unread);
        }
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SourceEvent, Reject>>> {
        self.poll_ready(cx).map(|()| self.ready.pop_front().or_else(|| self.final_usage().map(Ok)))
    }

    /// Waits until an event is there, or nothing is generated any more; takes none.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ready.is_empty() && self.choices.iter().any(|choice| choice.stream.is_some()) {
            if let Err(reject) = ready!(self.poll_choices(cx)) {
                self.choices.clear();
                self.ready.push_back(Err(reject));
            }
        }
        Poll::Ready(())
    }

    /// Takes one event from the first choice that has one.
    fn poll_choices(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reject>> {
        let count = self.choices.len();
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let Some(stream) = &mut self.choices[index].stream else { continue };
            if let Poll::Ready(event) = stream.poll_next(cx) {
                self.turn = (index + 1) % count;
                return Poll::Ready(self.take(index, event));
            }
        }
        Poll::Pending
    }

    fn take(&mut self, index: usize, event: Option<JobEvent>) -> Result<(), Reject> {
        let choice = &mut self.choices[index];
        let mut kinds = Vec::new();
        let mut finish = None;
        match event {
            None => return Err(Reject::internal(Fault::Engine, "the engine dropped a job without a word")),
            Some(JobEvent::Vector(_)) => return Err(Reject::internal(Fault::Engine, "a vector instead of a token")),
            Some(JobEvent::Failed(reject)) => return Err(reject),
            Some(JobEvent::Started { cached_tokens }) => {
                choice.cached_tokens = u64::from(cached_tokens);
                // As in the usage: the prompt counts once, as the first answer found it.
                if let (0, Some(tally)) = (index, &self.tally) {
                    tally.add_cached(choice.cached_tokens);
                }
            }
            Some(JobEvent::Token(token)) => {
                choice.output_tokens += 1;
                if let Some(tally) = &self.tally {
                    tally.add_output(1);
                }
                if choice.text.push(&token, &mut kinds) {
                    finish = Some(FinishReason::Stop);
                }
            }
            Some(JobEvent::Finished { reason, usage }) => {
                if let Some(tally) = &self.tally {
                    // The token that ends an answer comes without an event of its own.
                    tally.add_output(usage.output_tokens.saturating_sub(choice.output_tokens));
                }
                choice.output_tokens = usage.output_tokens;
                let stopped = choice.text.finish(reason == FinishReason::Length, &mut kinds);
                finish = Some(if stopped { FinishReason::Stop } else { reason });
            }
        }
        // One token may end several calls: those of a list.
        let first_call = kinds.iter().position(|kind| matches!(kind, DeltaKind::ToolCall { .. }));
        if let Some(at) = first_call.filter(|_| self.single_call) {
            kinds.truncate(at + 1);
            finish = finish.or(Some(FinishReason::ToolCalls));
        }
        self.queue(index, kinds, finish);
        Ok(())
    }

    fn queue(&mut self, index: usize, kinds: Vec<DeltaKind>, finish: Option<FinishReason>) {
        let number = index as u32;
        self.ready.extend(kinds.into_iter().map(|kind| Ok(SourceEvent::Delta(Delta { choice: number, kind }))));
        if let Some(reason) = finish {
            let choice = &mut self.choices[index];
            choice.stream = None;
            let calls = choice.text.num_calls() > 0;
            let reason = if calls && reason == FinishReason::Stop { FinishReason::ToolCalls } else { reason };
            self.ready.push_back(Ok(SourceEvent::Delta(Delta { choice: number, kind: DeltaKind::Finish(reason) })));
        }
    }

    /// Once: the prompt is counted once however many answers it got, as OpenAI counts it.
    fn final_usage(&mut self) -> Option<SourceEvent> {
        let choices = std::mem::take(&mut self.choices);
        self.usage.cached_tokens = choices.first()?.cached_tokens;
        self.usage.output_tokens = choices.iter().map(|choice| choice.output_tokens).sum();
        self.usage.reasoning_tokens = choices.iter().map(|choice| choice.text.reasoning_tokens()).sum();
        Some(SourceEvent::Usage(self.usage))
    }
}

impl Drop for EngineSource {
    /// Whoever leaves an answer pays for what the engine had made of it by then.
    fn drop(&mut self) {
        let Some(tally) = &self.tally else { return };
        tally.add_output(self.choices.iter_mut().map(Choice::end).sum());
    }
}

#[cfg(test)]
mod tests;
