//! The events of a response, and what they add up to. Each event has its number; what it says is said again, whole, by
//! the event that ends its part, its item and the response.
//!
//! Invariant: the items are what the deltas of the events say, whichever way the response is read.

mod kind;
mod parts;
mod simple;
mod tokens;
mod typed;

use self::kind::Kind;
use self::tokens::Tokens;
use super::object::{Ended, Head};
use crate::items::item;
use crate::padding::Padding;
use crate::report;
use bytes::BytesMut;
use serde_json::{Value, json};
use tidegate_types::{Delta, DeltaKind, Fault, FinishReason, Message, Part, Reject, RejectKind, Report, Role, Usage};

/// The shape of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skin {
    /// OpenAI's typed events.
    Typed,
    /// The simple pair's: `token` and `done`.
    Simple,
    /// None, where the response is read whole.
    Silent,
}

/// Writes the events of one response and gathers its items.
pub struct ResponseEncoder {
    head: Head,
    skin: Skin,
    /// Becomes part of the items' ids.
    unique: String,
    sequence: u64,
    items: Vec<Item>,
    tokens: Tokens,
    /// Whether the last item may still grow, or be cut off.
    open: bool,
    usage: Option<Usage>,
    /// What else is known; its citations from the beginning.
    report: Report,
    finish: Option<FinishReason>,
    bytes: usize,
    limit_bytes: usize,
    padding: Option<Padding>,
    /// Log-probabilities of a text that are said again by the events that end it, in bytes.
    repeated_bytes: usize,
}

struct Item {
    id: String,
    message: Message,
}

impl ResponseEncoder {
    /// For a response whose text may have `limit_bytes` in all.
    pub fn new(head: Head, unique: &str, skin: Skin, limit_bytes: usize) -> Self {
        Self {
            head,
            skin,
            unique: unique.to_owned(),
            sequence: 0,
            items: Vec::new(),
            tokens: Tokens::default(),
            open: false,
            usage: None,
            report: Report::default(),
            finish: None,
            bytes: 0,
            limit_bytes,
            padding: None,
            repeated_bytes: usize::MAX,
        }
    }

    /// Bounds what the events that end a text repeat of its log-probabilities: of a text with more than so many bytes of them
    /// only its deltas say them, and the whole response.
    pub fn repeating(mut self, bytes: usize) -> Self {
        self.repeated_bytes = bytes;
        self
    }

    /// Makes events alike in size, where `padded`.
    pub fn padded(mut self, padded: bool) -> Self {
        self.padding = padded.then(Padding::new);
        self
    }

    /// What is known of the response.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Notes who answers.
    pub fn answered_by(&mut self, model: &str) {
        model.clone_into(&mut self.head.model);
    }

    /// Notes what is known of the answer besides its words: before the first of them what it is made from, and all of it
    /// at the end.
    pub fn report(&mut self, report: Report) {
        // What a text was annotated with stays.
        let citations = std::mem::take(&mut self.report.citations);
        self.report = report;
        if !self.items.is_empty() {
            self.report.citations = citations;
        }
    }

    /// The passages were for another answer than the one that leaves.
    pub fn uncite(&mut self) {
        self.report.citations.clear();
    }

    /// What is known of the answer besides its words.
    pub fn known(&self) -> &Report {
        &self.report
    }

    /// Which item has the citations: the first with a text.
    pub fn cited_item(&self) -> Option<usize> {
        let cites = !self.report.citations.is_empty();
        self.items.iter().position(|item| cites && item.message.parts.iter().any(|part| matches!(part, Part::Text(_))))
    }

    /// Says that the response could not be kept, though it was to be.
    pub fn not_kept(&mut self, why: &str) {
        self.head.store = false;
        self.head.echo.insert("store_error".into(), why.into());
    }

    /// Writes the first events.
    pub fn begin(&mut self, out: &mut BytesMut) {
        if self.skin == Skin::Typed {
            let object = self.head.object("in_progress", None, Vec::new(), None, &self.report);
            self.event(out, "response.created", json!({"response": object.clone()}));
            self.event(out, "response.in_progress", json!({"response": object}));
        }
    }

    /// The object before anything was said.
    pub fn begun(&self) -> String {
        self.head.object("in_progress", None, Vec::new(), None, &self.report).to_string()
    }

    /// Writes the events of a delta.
    pub fn delta(&mut self, delta: &Delta, out: &mut BytesMut) -> Result<(), Reject> {
        match &delta.kind {
            DeltaKind::Text { text, logprobs } => {
                self.grow(Kind::Text, text, out)?;
                let (item, part) = self.place_of_last();
                let bytes = self.tokens.add(item, part, logprobs);
                self.count(bytes)?;
                self.text_delta(Kind::Text, text, logprobs, out);
            }
            DeltaKind::Reasoning(text) => {
                self.grow(Kind::Reasoning, text, out)?;
                self.text_delta(Kind::Reasoning, text, &[], out);
            }
            DeltaKind::Refusal(text) => {
                self.grow(Kind::Refusal, text, out)?;
                self.text_delta(Kind::Refusal, text, &[], out);
            }
            DeltaKind::ToolCall { call, .. } => {
                self.close(out);
                self.count(call.name.len() + call.arguments.len())?;
                let message = said(Part::ToolCall(call.clone()));
                let id = self.next_id("fc");
                let index = self.items.len();
                self.call_events(&id, index, &message, out);
                self.items.push(Item { id, message });
                self.open = true;
            }
            DeltaKind::Finish(reason) => self.finish = Some(*reason),
        }
        Ok(())
    }

    /// Notes what the response cost.
    pub fn usage(&mut self, counted: Usage) {
        self.usage = Some(counted);
    }

    /// Ends what is open; `outcome` says how the answer went. Gives how the response ended.
    pub fn end(&mut self, outcome: Result<(), Reject>, out: &mut BytesMut) -> Ended {
        let ended = match (outcome, self.finish) {
            (Err(reject), _) if reject.is_cancelled() => Ended::Cancelled,
            (Err(reject), _) => Ended::Failed(reject),
            (Ok(()), Some(reason)) => Ended::Finished(reason),
            (Ok(()), None) => Ended::Failed(Reject::internal(Fault::Engine, "the answer has no end")),
        };
        // What is open was cut off.
        match &ended {
            Ended::Finished(_) => self.close(out),
            Ended::Failed(_) | Ended::Cancelled => {}
        }
        ended
    }

    /// The whole object.
    pub fn object(&self, ended: &Ended, now: u64) -> String {
        self.whole(ended, now).to_string()
    }

    /// Writes the last event.
    pub fn terminal(&mut self, ended: &Ended, now: u64, out: &mut BytesMut) {
        match self.skin {
            Skin::Typed => {
                let object = self.whole(ended, now);
                self.event(out, ended.event(), json!({"response": object}));
            }
            Skin::Simple => self.simple_end(ended, out),
            Skin::Silent => {}
        }
    }

    /// What was said: each item's id, what it says, and whether it is whole.
    pub fn output(&self) -> impl Iterator<Item = (&str, &Message, bool)> {
        let last = self.items.len();
        let whole = move |i| !(self.open && i + 1 == last);
        self.items.iter().enumerate().map(move |(i, item)| (item.id.as_str(), &item.message, whole(i)))
    }

    /// What it cost, where somebody counted.
    pub fn counted(&self) -> Option<Usage> {
        self.usage
    }

    fn whole(&self, ended: &Ended, now: u64) -> Value {
        let cut = matches!(ended, Ended::Finished(FinishReason::Length | FinishReason::ContentFilter));
        let last = self.items.len();
        let output = self.output().enumerate().map(|(i, (_, _, whole))| {
            let status = if whole && !(cut && i + 1 == last) { "completed" } else { "incomplete" };
            self.shown(i, status, usize::MAX)
        });
        self.head.object(ended.status(), Some((ended, now)), output.collect(), self.usage, &self.report)
    }

    /// An item as callers see it; without log-probabilities of texts that have more than `most_bytes` of them.
    fn shown(&self, index: usize, status: &str, most_bytes: usize) -> Value {
        let Some(Item { id, message }) = self.items.get(index) else { return Value::Null };
        let mut shown = item(id, message, status);
        self.tokens.show(index, most_bytes, &mut shown);
        if self.cited_item() == Some(index) {
            report::annotate(&mut shown, &self.report.citations);
        }
        shown
    }

    /// Of the last part of all: which item, and which of its parts.
    fn place_of_last(&self) -> (usize, usize) {
        let parts = self.items.last().map_or(0, |item| item.message.parts.len());
        (self.items.len().saturating_sub(1), parts.saturating_sub(1))
    }

    fn next_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}{:02x}", self.unique, self.items.len())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Reject> {
        self.bytes += bytes;
        if self.bytes <= self.limit_bytes {
            return Ok(());
        }
        let message = format!("the answer is longer than {} bytes; ask for fewer tokens", self.limit_bytes);
        Err(Reject::new(RejectKind::BadUpstream, Fault::Upstream, message).code("answer_too_long"))
    }
}

fn said(part: Part) -> Message {
    Message { id: String::new(), role: Role::Assistant, name: None, parts: vec![part], provenance: None }
}

#[cfg(test)]
mod tests;
