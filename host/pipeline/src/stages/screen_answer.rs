//! Output guards: a whole answer is held until they have decided on it. Held is what would have left, event by event,
//! so that an answer that passes leaves exactly as it was made.

use crate::chat::Pipeline;
use crate::context::RequestContext;
use crate::estimate::messages_bytes;
use crate::stage::{Size, Stage, traced};
use crate::stages::edits;
use crate::stages::kept_back::{FirstWord, KeptBack};
use crate::stages::screen_input::heard;
use crate::states::Request;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Instant;
use std::vec::IntoIter;
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::{Action, Edit, Output, StageKind, Verdict};
use tidegate_types::{
    About, Delta, DeltaKind, Fault, Finding, FinishReason, Message, Part, Reject, RejectKind, Role, TextLogprob, Usage,
};

/// What an output guard does about an answer that the client reads as a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WhenStreamed {
    /// The stream is held until the guard has decided.
    #[default]
    Hold,
    /// The stream passes, and the guard is not asked.
    Pass,
}

/// An output guard, and when it is asked.
#[derive(Clone)]
pub struct OutputGuardStage {
    /// The plugin.
    pub stage: Stage,
    /// What it does about streams.
    pub streamed: WhenStreamed,
}

/// An answer that waits for its verdicts.
#[derive(Debug, Default)]
pub(super) struct HeldAnswer {
    events: Vec<Delta>,
    /// By which guards, in their order, where the client reads a stream.
    kept_back: Vec<KeptBack>,
    first_word: FirstWord,
    /// Bytes of the prompt in it, which its caller chose.
    echoed: usize,
    /// What its events weigh.
    bytes: usize,
}

/// What an answer that is held may weigh, as much as one that is made in one piece.
const MAX_HELD_BYTES: usize = 64 << 20;

/// What output guards are asked about.
#[derive(Clone, Copy)]
struct Asking<'a> {
    cx: &'a RequestContext,
    streaming: bool,
    model: &'a str,
    choices: &'a [Choice],
    usage: Option<Usage>,
    echoed: usize,
}

/// One choice of a held answer.
struct Choice {
    index: u32,
    message: Message,
    finish: Option<FinishReason>,
    /// A guard has changed it.
    is_rewritten: bool,
}

/// What may leave in the end.
pub(super) struct JudgedAnswer {
    pub(super) events: Vec<Delta>,
    /// A guard put something else in the answer's place.
    pub(super) replaced: bool,
    /// A guard changed something in it.
    pub(super) rewritten: bool,
    /// A guard had no verdict on it.
    pub(super) unjudged: bool,
}

impl HeldAnswer {
    pub(super) fn push(&mut self, delta: Delta) {
        if self.events.is_empty() {
            self.first_word.get_or_init(Instant::now);
        }
        self.bytes += size_of::<Delta>() + delta.kind.num_bytes();
        self.events.push(delta);
    }

    /// What ends it, where it is longer than an answer may be.
    pub(super) fn too_long(&self) -> Option<Reject> {
        let message = || {
            format!("the answer has more than the {MAX_HELD_BYTES} bytes that guards may hold; ask for fewer tokens")
        };
        let reject = || Reject::new(RejectKind::BadUpstream, Fault::Upstream, message()).code("answer_too_long");
        (self.bytes > MAX_HELD_BYTES).then(reject)
    }

    /// So many bytes of the prompt are repeated in it.
    pub(super) fn echoes(&mut self, num_bytes: usize) {
        self.echoed += num_bytes;
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices: BTreeMap<u32, Choice> = BTreeMap::new();
        for Delta { choice, kind } in &self.events {
            let id = format!("choice-{choice}");
            let of = choices.entry(*choice).or_insert_with(|| Choice {
                index: *choice,
                is_rewritten: false,
                message: Message { id, role: Role::Assistant, name: None, parts: Vec::new(), provenance: None },
                finish: None,
            });
            of.take(kind);
        }
        choices.into_values().collect()
    }
}

impl Choice {
    fn take(&mut self, kind: &DeltaKind) {
        match kind {
            DeltaKind::Finish(reason) => self.finish = Some(*reason),
            kind => add(&mut self.message.parts, kind),
        }
    }

    /// The choice as events again. Log-probabilities went with the text that was changed.
    fn events(self) -> Vec<Delta> {
        let (choice, mut calls) = (self.index, 0);
        let mut kinds: Vec<DeltaKind> =
            self.message.parts.into_iter().filter_map(|part| said(part, &mut calls)).collect();
        kinds.push(DeltaKind::Finish(self.finish.unwrap_or(FinishReason::Stop)));
        kinds.into_iter().map(|kind| Delta { choice, kind }).collect()
    }
}

/// Adds what was said to the parts of its message.
pub(super) fn add(parts: &mut Vec<Part>, kind: &DeltaKind) {
    match (kind, parts.last_mut()) {
        (DeltaKind::Text { text, .. }, _) => add_text(parts, text),
        (DeltaKind::Reasoning(text), Some(Part::Reasoning(all)))
        | (DeltaKind::Refusal(text), Some(Part::Refusal(all))) => all.push_str(text),
        (DeltaKind::Reasoning(text), _) => parts.push(Part::Reasoning(text.clone())),
        (DeltaKind::Refusal(text), _) => parts.push(Part::Refusal(text.clone())),
        (DeltaKind::ToolCall { call, .. }, _) => parts.push(Part::ToolCall(call.clone())),
        (DeltaKind::Finish(_), _) => {}
    }
}

/// The same of text.
pub(super) fn add_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Text(all)) => all.push_str(text),
        _ => parts.push(Part::Text(text.to_owned())),
    }
}

fn said(part: Part, calls: &mut u32) -> Option<DeltaKind> {
    let text = |text: String| DeltaKind::Text { text, logprobs: Vec::<TextLogprob>::new() };
    match part {
        Part::Text(said) | Part::Reasoning(said) | Part::Refusal(said) if said.is_empty() => None,
        Part::Text(said) => Some(text(said)),
        Part::Reasoning(said) => Some(DeltaKind::Reasoning(said)),
        Part::Refusal(said) => Some(DeltaKind::Refusal(said)),
        Part::ToolCall(call) => {
            *calls += 1;
            Some(DeltaKind::ToolCall { index: *calls - 1, call })
        }
        Part::ToolOutcome(_) | Part::Opaque { .. } => None,
    }
}

impl Pipeline {
    /// Whether an output guard lets a stream pass that it would be asked about otherwise.
    pub(super) fn lets_pass(&self, streaming: bool) -> bool {
        self.stages.output_guards.iter().any(|guard| !asks(guard, streaming))
    }

    /// Whether an answer has to be held for its output guards. One that did not load and is not closed fails whatever it is.
    pub(super) fn holds_answers(&self, streaming: bool) -> bool {
        self.asked_of_answers(streaming).any(Stage::has_a_say)
    }

    /// Whether there are output guards for an answer, be it that it is not held for them.
    pub(super) fn screens_answers(&self, streaming: bool) -> bool {
        self.asked_of_answers(streaming).next().is_some()
    }

    /// Those that are asked about answers that are read so.
    pub(super) fn asked_of_answers(&self, streaming: bool) -> impl Iterator<Item = &Stage> {
        self.stages.output_guards.iter().filter(move |guard| asks(guard, streaming)).map(|guard| &guard.stage)
    }

    /// None of an answer yet, for its output guards. Who reads no stream waits for their calls alone.
    pub(super) fn hold_answer(&self, streaming: bool) -> HeldAnswer {
        let first_word = FirstWord::default();
        let by = |stage| KeptBack::by(stage, &first_word);
        let kept_back = if streaming { self.asked_of_answers(streaming).map(by).collect() } else { Vec::new() };
        HeldAnswer { kept_back, first_word, ..HeldAnswer::default() }
    }

    /// Asks the output guards in order; those that follow each other and do not mutate, beside each other.
    pub(super) async fn screen_answer(
        &self,
        request: &Request,
        model: &str,
        mut held: HeldAnswer,
        usage: Option<Usage>,
        findings: &mut Vec<Finding>,
    ) -> Result<JudgedAnswer, Reject> {
        let mut kept_back = std::mem::take(&mut held.kept_back).into_iter();
        let judged = self.judge_answer(request, model, held, usage, findings, &mut kept_back).await;
        // Of those behind one that has ended the answer.
        kept_back.for_each(KeptBack::not_asked);
        judged
    }

    /// As [`Self::screen_answer`]; `kept_back` has one for each guard, where the client reads a stream.
    async fn judge_answer(
        &self,
        request: &Request,
        model: &str,
        held: HeldAnswer,
        usage: Option<Usage>,
        findings: &mut Vec<Finding>,
        kept_back: &mut IntoIter<KeptBack>,
    ) -> Result<JudgedAnswer, Reject> {
        let (cx, streaming) = (&request.cx, request.chat.stream);
        let guards: Vec<&Stage> = self.asked_of_answers(streaming).collect();
        let mut choices = held.choices();
        let mut unjudged = false;
        for batch in guards.chunk_by(|a, b| !a.mutates() && !b.mutates()) {
            let about = Asking { cx, streaming, model, choices: &choices, usage, echoed: held.echoed };
            let asked = batch.iter().map(|stage| about.inspect(stage, kept_back.next()));
            let verdicts = futures_util::future::join_all(asked).await;
            let said = batch.iter().copied().zip(&verdicts);
            findings.extend(heard(cx, StageKind::OutputGuard, About::Answer, said));
            for (stage, verdict) in batch.iter().zip(verdicts) {
                let Some(verdict) = verdict? else {
                    unjudged = true;
                    continue;
                };
                match verdict.action {
                    Action::Allow => {}
                    Action::Rewrite(list) => rewrite(cx, stage, &mut choices, list)?,
                    Action::Respond(parts) => return Ok(instead(&choices, parts, FinishReason::Stop)),
                    Action::Refuse(refusal) => {
                        tracing::info!(request = %cx.request_id, guard = %stage.name, code = cx.for_log(Some(refusal.code)),
                            reason = cx.for_log(refusal.private_reason), "withheld the answer");
                        let parts = vec![Part::Refusal(refusal.public_message)];
                        return Ok(instead(&choices, parts, FinishReason::ContentFilter));
                    }
                }
            }
        }
        // Edits may be none, or put a text in its own place.
        let rewritten = choices.iter().any(|choice| choice.is_rewritten);
        let events = if rewritten { left(held.events, choices) } else { held.events };
        Ok(JudgedAnswer { events, replaced: false, rewritten, unjudged })
    }
}

/// What is left of an answer: a choice that no guard has changed, as it was made.
fn left(held: Vec<Delta>, choices: Vec<Choice>) -> Vec<Delta> {
    let is_rewritten = |delta: &Delta| choices.iter().any(|of| of.index == delta.choice && of.is_rewritten);
    let mut events: Vec<Delta> = held.into_iter().filter(|delta| !is_rewritten(delta)).collect();
    events.extend(choices.into_iter().filter(|choice| choice.is_rewritten).flat_map(Choice::events));
    events
}

fn asks(guard: &OutputGuardStage, streaming: bool) -> bool {
    !streaming || guard.streamed == WhenStreamed::Hold
}

impl Asking<'_> {
    async fn inspect(self, stage: &Stage, mut kept_back: Option<KeptBack>) -> Result<Option<Verdict>, Reject> {
        let Self { cx, streaming, model, choices, usage, echoed } = self;
        let messages: Vec<Message> = choices.iter().map(|choice| choice.message.clone()).collect();
        let reasons: Vec<&str> =
            choices.iter().map(|choice| choice.finish.unwrap_or(FinishReason::Stop).as_str()).collect();
        let attrs = [("model".to_owned(), serde_json::Value::from(model).to_string())];
        let call = cx.call(streaming, stage.wall);
        let output = Output { choices: &messages, finish_reasons: &reasons, usage, attrs: &attrs };
        let asking = async |plugin: &Plugin| {
            let _kept_back = kept_back.take().map(KeptBack::told_here);
            traced(plugin.inspect_output(&call, output).await)
        };
        let verdict = stage.call_about(size(&messages, echoed), StageKind::OutputGuard, &call, asking).await;
        if let Some(kept_back) = kept_back {
            kept_back.not_asked();
        }
        verdict
    }
}

/// With a prompt that is repeated: where most of the answer is that, a shorter prompt helps.
fn size(messages: &[Message], echoed: usize) -> Size {
    let num_bytes = messages_bytes(messages);
    if echoed > num_bytes / 2 { Size::Sent(num_bytes) } else { Size::Said(num_bytes) }
}

fn rewrite(cx: &RequestContext, stage: &Stage, choices: &mut [Choice], list: Vec<Edit>) -> Result<(), Reject> {
    let mut messages: Vec<Message> = choices.iter().map(|choice| choice.message.clone()).collect();
    edits::apply(cx, stage, &mut messages, list)?;
    for (choice, message) in choices.iter_mut().zip(messages) {
        choice.is_rewritten |= choice.message != message;
        choice.message = message;
    }
    Ok(())
}

/// The guard's words in every choice's place.
fn instead(choices: &[Choice], parts: Vec<Part>, finish: FinishReason) -> JudgedAnswer {
    let events = choices.iter().flat_map(|choice| {
        let message = Message { parts: parts.clone(), ..choice.message.clone() };
        Choice { index: choice.index, message, finish: Some(finish), is_rewritten: true }.events()
    });
    JudgedAnswer { events: events.collect(), replaced: true, rewritten: false, unjudged: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{ToolCall, TopLogprob};

    fn text(choice: u32, text: &str) -> Delta {
        Delta { choice, kind: DeltaKind::Text { text: text.into(), logprobs: Vec::new() } }
    }

    #[test]
    fn events_of_a_choice_are_joined_and_taken_apart_again() {
        let call = ToolCall { id: "c".into(), name: "add".into(), arguments: "{}".into() };
        let mut held = HeldAnswer::default();
        for delta in [
            Delta { choice: 0, kind: DeltaKind::Reasoning("hm".into()) },
            text(0, "a"),
            text(1, "x"),
            text(0, "b"),
            Delta { choice: 0, kind: DeltaKind::ToolCall { index: 0, call: call.clone() } },
            Delta { choice: 0, kind: DeltaKind::Finish(FinishReason::ToolCalls) },
            Delta { choice: 1, kind: DeltaKind::Finish(FinishReason::Length) },
        ] {
            held.push(delta);
        }
        let choices = held.choices();
        assert_eq!(choices.len(), 2);
        assert_eq!(choices[0].message.joined_text(), "ab");
        let events: Vec<Delta> = choices.into_iter().flat_map(Choice::events).collect();
        let expected = [
            Delta { choice: 0, kind: DeltaKind::Reasoning("hm".into()) },
            text(0, "ab"),
            Delta { choice: 0, kind: DeltaKind::ToolCall { index: 0, call } },
            Delta { choice: 0, kind: DeltaKind::Finish(FinishReason::ToolCalls) },
            text(1, "x"),
            Delta { choice: 1, kind: DeltaKind::Finish(FinishReason::Length) },
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn an_answer_that_is_held_is_bounded_by_its_text_and_what_comes_with_it() {
        let most = |delta: Delta| {
            let mut held = HeldAnswer::default();
            let pushed = (0_usize..).find(|_| {
                held.push(delta.clone());
                held.too_long().is_some()
            });
            pushed.unwrap_or_default()
        };
        let other = TopLogprob { token: "a".into(), logprob: -0.5, bytes: "a".into() };
        let logprobs = vec![TextLogprob { chosen: other.clone(), top: vec![other; 20], end: Some(1) }];
        assert_eq!(most(text(0, &"x".repeat(1 << 20))), 63);
        assert!(most(Delta { choice: 0, kind: DeltaKind::Text { text: "a".into(), logprobs } }) < 50_000);
        assert!(most(text(0, "a")) < MAX_HELD_BYTES / size_of::<Delta>());
    }

    #[test]
    fn a_choice_that_no_guard_has_changed_leaves_as_it_was_made() {
        let token = |choice: u32| {
            let chosen = TopLogprob { token: "a".into(), logprob: -0.5, bytes: "a".into() };
            let logprobs = vec![TextLogprob { chosen, top: Vec::new(), end: Some(1) }];
            Delta { choice, kind: DeltaKind::Text { text: "a".into(), logprobs } }
        };
        let end = |choice: u32| Delta { choice, kind: DeltaKind::Finish(FinishReason::Stop) };
        let mut held = HeldAnswer::default();
        [token(0), token(1), token(0), end(1), end(0)].into_iter().for_each(|delta| held.push(delta));
        let mut choices = held.choices();
        choices[1].message.parts = vec![Part::Text("b".into())];
        choices[1].is_rewritten = true;
        assert_eq!(left(held.events, choices), [token(0), token(0), end(0), text(1, "b"), end(1)]);
    }
}
