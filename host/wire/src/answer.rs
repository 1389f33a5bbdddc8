//! The whole answer in one piece: deltas are gathered, then written once.

use crate::head::Head;
use crate::logprobs::{self, Before};
use crate::stream::{citations, tool_call, tool_call_in_completion, unknown_choice};
use crate::write::{list, optional_string, raw, string, uint, usage};
use bytes::{Bytes, BytesMut};
use tidegate_types::{Delta, DeltaKind, Fault, FinishReason, Form, Reject, RejectKind, TextLogprob, ToolCall, Usage};

/// Gathers the deltas of an answer.
pub struct Answer {
    choices: Vec<Choice>,
    bytes: usize,
    limit_bytes: usize,
}

#[derive(Clone, Default)]
struct Choice {
    text: String,
    reasoning: String,
    refusal: String,
    tool_calls: Vec<ToolCall>,
    logprobs: Vec<TextLogprob>,
    finish: Option<FinishReason>,
}

impl Answer {
    /// An answer of `n` choices whose text may have `limit_bytes` in all.
    pub fn new(n: u32, limit_bytes: usize) -> Self {
        Self { choices: vec![Choice::default(); n as usize], bytes: 0, limit_bytes }
    }

    /// Adds a delta.
    pub fn push(&mut self, delta: Delta) -> Result<(), Reject> {
        let Some(choice) = self.choices.get_mut(delta.choice as usize) else {
            return Err(unknown_choice(delta.choice));
        };
        self.bytes += delta.kind.num_bytes();
        match delta.kind {
            DeltaKind::Text { text, mut logprobs } => {
                add(&mut choice.text, text);
                choice.logprobs.append(&mut logprobs);
            }
            DeltaKind::Reasoning(text) => add(&mut choice.reasoning, text),
            DeltaKind::Refusal(text) => add(&mut choice.refusal, text),
            DeltaKind::ToolCall { call, .. } => choice.tool_calls.push(call),
            DeltaKind::Finish(reason) => choice.finish = Some(reason),
        }
        if self.bytes > self.limit_bytes { Err(too_long(self.limit_bytes)) } else { Ok(()) }
    }

    /// Writes the body. Every choice must have ended.
    pub fn render(&self, head: &Head, counted: Option<&Usage>) -> Result<Bytes, Reject> {
        let mut out = BytesMut::with_capacity(self.bytes + self.bytes / 8 + 512);
        raw(&mut out, r#"{"id":"#);
        string(&mut out, &head.id);
        raw(&mut out, r#","object":""#);
        raw(&mut out, head.object(false));
        raw(&mut out, r#"","created":"#);
        uint(&mut out, head.created);
        raw(&mut out, r#","model":"#);
        string(&mut out, &head.model);
        raw(&mut out, r#","choices":["#);
        for (index, choice) in self.choices.iter().enumerate() {
            if index > 0 {
                raw(&mut out, ",");
            }
            choice.render(head, index, &mut out)?;
        }
        raw(&mut out, r#"],"usage":"#);
        usage(&mut out, counted);
        raw(&mut out, "}");
        Ok(out.freeze())
    }
}

/// An answer that comes in one piece is not copied.
fn add(to: &mut String, text: String) {
    if to.is_empty() {
        *to = text;
    } else {
        to.push_str(&text);
    }
}

fn too_long(limit_bytes: usize) -> Reject {
    let message = format!("the answer is longer than {limit_bytes} bytes; ask for fewer tokens, or stream it");
    Reject::new(RejectKind::BadUpstream, Fault::Upstream, message).code("answer_too_long")
}

impl Choice {
    fn render(&self, head: &Head, index: usize, out: &mut BytesMut) -> Result<(), Reject> {
        let Some(finish) = self.finish else {
            return Err(Reject::internal(Fault::Engine, format!("choice {index} did not end")));
        };
        raw(out, r#"{"index":"#);
        uint(out, index as u64);
        match head.form {
            Form::Chat => self.message(head, out),
            Form::Completion { .. } => self.text(out)?,
        }
        raw(out, r#","finish_reason":""#);
        raw(out, finish.as_str());
        raw(out, r#""}"#);
        Ok(())
    }

    fn message(&self, head: &Head, out: &mut BytesMut) {
        let silent = self.text.is_empty() && !(self.tool_calls.is_empty() && self.refusal.is_empty());
        raw(out, r#","message":{"role":"assistant","content":"#);
        optional_string(out, (!silent).then_some(&self.text));
        raw(out, r#","refusal":"#);
        optional_string(out, (!self.refusal.is_empty()).then_some(&self.refusal));
        if !self.reasoning.is_empty() {
            raw(out, r#","reasoning_content":"#);
            string(out, &self.reasoning);
        }
        if !self.tool_calls.is_empty() {
            raw(out, r#","tool_calls":"#);
            list(out, &self.tool_calls, |out, call| {
                raw(out, "{");
                tool_call(out, call);
            });
        }
        if !(self.text.is_empty() || head.citations.is_empty()) {
            raw(out, ",");
            citations(out, &head.citations);
        }
        raw(out, r#"},"logprobs":"#);
        logprobs::chat(out, &self.logprobs);
    }

    fn text(&self, out: &mut BytesMut) -> Result<(), Reject> {
        if !self.tool_calls.is_empty() {
            return Err(tool_call_in_completion());
        }
        raw(out, r#","text":"#);
        string(out, &[self.reasoning.as_str(), &self.text, &self.refusal].concat());
        raw(out, r#","logprobs":"#);
        let mut before = Before::default();
        before.add_without_tokens(&self.reasoning);
        logprobs::completion(out, &self.logprobs, &self.text, before);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
