//! The events of a response, and what they add up to. Each event has its number; what it says is said again, whole, by
//! the event that ends its part, its item and the response.
//!
//! Invariant: the items are what the deltas of the events say, whichever way the response is read.

mod kind;
mod simple;
mod tokens;

use self::kind::Kind;
use self::tokens::Tokens;
use super::object::{Ended, Head};
use crate::items::item;
use crate::logprobs;
use crate::padding::Padding;
use crate::report;
use crate::write::{raw, string, uint};
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
    /// Whether the last item may still grow.
    open: bool,
    usage: Option<Usage>,
    /// What else is known; its citations from the beginning.
    report: Report,
    finish: Option<FinishReason>,
    bytes: usize,
    limit_bytes: usize,
    padding: Option<Padding>,
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
        }
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
            (Err(reject), _) if reject.code.as_deref() == Some("cancelled") => Ended::Cancelled,
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
            self.shown(i, status)
        });
        self.head.object(ended.status(), Some((ended, now)), output.collect(), self.usage, &self.report)
    }

    /// An item as callers see it.
    fn shown(&self, index: usize, status: &str) -> Value {
        let Some(Item { id, message }) = self.items.get(index) else { return Value::Null };
        let mut shown = item(id, message, status);
        self.tokens.show(index, &mut shown);
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

    /// Adds text to the open part, or to a new one.
    fn grow(&mut self, kind: Kind, text: &str, out: &mut BytesMut) -> Result<(), Reject> {
        self.count(text.len())?;
        self.open_for(kind, out);
        let part = self.items.last_mut().and_then(|item| item.message.parts.last_mut());
        if let Some(Part::Text(whole) | Part::Refusal(whole) | Part::Reasoning(whole)) = part {
            whole.push_str(text);
        }
        Ok(())
    }

    fn open_for(&mut self, kind: Kind, out: &mut BytesMut) {
        let now = self.open_kind();
        if now == Some(kind) {
            return;
        }
        let same_item = matches!((now, kind), (Some(Kind::Text | Kind::Refusal), Kind::Text | Kind::Refusal));
        if same_item {
            self.close_part(out);
        } else {
            self.close(out);
            let id = self.next_id(if kind == Kind::Reasoning { "rs" } else { "msg" });
            let mut message = said(kind.empty());
            message.parts.clear();
            let mut added = item(&id, &message, "in_progress");
            if kind == Kind::Reasoning {
                added = json!({"id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"});
            }
            let index = self.items.len();
            self.event(out, "response.output_item.added", json!({"output_index": index, "item": added}));
            self.items.push(Item { id, message });
            self.open = true;
        }
        if let Some(item) = self.items.last_mut() {
            item.message.parts.push(kind.empty());
        }
        let part = kind.part("");
        self.place(out, "response.content_part.added", |body| body["part"] = part);
    }

    fn open_kind(&self) -> Option<Kind> {
        self.items.last().filter(|_| self.open)?.message.parts.last().and_then(Kind::of)
    }

    fn close_part(&mut self, out: &mut BytesMut) {
        let Some(kind) = self.open_kind() else { return };
        let Some(Part::Text(text) | Part::Refusal(text) | Part::Reasoning(text)) =
            self.items.last().and_then(|item| item.message.parts.last())
        else {
            return;
        };
        let ((name, member), text) = (kind.words(), text.clone());
        let mut part = kind.part(&text);
        let (index, last) = self.place_of_last();
        let tokens = self.tokens.of(index, last);
        if kind == Kind::Text {
            part["logprobs"] = tokens.clone();
        }
        if kind == Kind::Text && self.annotates_here() {
            let notes = report::annotations(&self.report.citations);
            for (n, note) in notes.iter().enumerate() {
                self.place(out, "response.output_text.annotation.added", |body| {
                    (body["annotation_index"], body["annotation"]) = (n.into(), note.clone());
                });
            }
            part["annotations"] = notes.into();
        }
        self.place(out, &format!("{name}.done"), |body| {
            body[member] = text.into();
            if kind == Kind::Text {
                body["logprobs"] = tokens;
            }
        });
        self.place(out, "response.content_part.done", |body| body["part"] = part);
    }

    /// Whether the last part of all is the first text.
    fn annotates_here(&self) -> bool {
        let is_text = |part: &&Part| matches!(part, Part::Text(_));
        self.cited_item() == Some(self.items.len().saturating_sub(1))
            && self.items.last().is_some_and(|item| item.message.parts.iter().filter(is_text).count() == 1)
    }

    fn close(&mut self, out: &mut BytesMut) {
        if !self.open {
            return;
        }
        self.close_part(out);
        self.open = false;
        let index = self.items.len() - 1;
        let cut = matches!(self.finish, Some(FinishReason::Length | FinishReason::ContentFilter));
        let done = self.shown(index, if cut { "incomplete" } else { "completed" });
        self.event(out, "response.output_item.done", json!({"output_index": index, "item": done}));
    }

    /// An event that says where it belongs.
    fn place(&mut self, out: &mut BytesMut, name: &str, fill: impl FnOnce(&mut Value)) {
        let Some(id) = self.items.last().map(|item| item.id.clone()) else { return };
        let (index, part) = self.place_of_last();
        let mut body = json!({"item_id": id, "output_index": index, "content_index": part});
        fill(&mut body);
        self.event(out, name, body);
    }

    fn call_events(&mut self, id: &str, index: usize, message: &Message, out: &mut BytesMut) {
        if self.skin != Skin::Typed {
            return self.simple_call(message, out);
        }
        let whole = item(id, message, "completed");
        let mut added = whole.clone();
        added["arguments"] = "".into();
        added["status"] = "in_progress".into();
        let arguments = whole["arguments"].clone();
        self.event(out, "response.output_item.added", json!({"output_index": index, "item": added}));
        let name = "response.function_call_arguments.delta";
        self.event(out, name, json!({"item_id": id, "output_index": index, "delta": arguments}));
        let name = "response.function_call_arguments.done";
        let called = whole["name"].clone();
        self.event(out, name, json!({"item_id": id, "output_index": index, "name": called, "arguments": arguments}));
        self.event(out, "response.output_item.done", json!({"output_index": index, "item": whole}));
    }

    fn event(&mut self, out: &mut BytesMut, name: &str, body: Value) {
        if self.skin != Skin::Typed {
            return;
        }
        let mut whole = json!({"type": name, "sequence_number": self.sequence});
        if let (Value::Object(whole), Value::Object(body)) = (&mut whole, body) {
            whole.extend(body);
        }
        self.sequence += 1;
        raw(out, "event: ");
        raw(out, name);
        raw(out, "\ndata: ");
        crate::write::value(out, &whole);
        raw(out, "\n\n");
    }

    /// The event that comes for every token, written without a tree.
    fn text_delta(&mut self, kind: Kind, text: &str, tokens: &[tidegate_types::TextLogprob], out: &mut BytesMut) {
        match self.skin {
            Skin::Silent => return,
            Skin::Simple => {
                let name = match kind {
                    Kind::Text | Kind::Refusal => "token",
                    Kind::Reasoning => "reasoning",
                };
                return self.simple_token(name, text, out);
            }
            Skin::Typed => {}
        }
        let Some(item) = self.items.last() else { return };
        let (name, _) = kind.words();
        raw(out, "event: ");
        raw(out, name);
        raw(out, ".delta\ndata: {\"type\":\"");
        raw(out, name);
        raw(out, r#".delta","sequence_number":"#);
        uint(out, self.sequence);
        raw(out, r#","item_id":"#);
        string(out, &item.id);
        raw(out, r#","output_index":"#);
        uint(out, self.items.len() as u64 - 1);
        raw(out, r#","content_index":"#);
        uint(out, item.message.parts.len() as u64 - 1);
        raw(out, r#","delta":"#);
        let start = out.len();
        string(out, text);
        let mut bytes = out.len() - start;
        if kind == Kind::Text {
            raw(out, r#","logprobs":"#);
            let start = out.len();
            logprobs::tokens(out, tokens);
            bytes += out.len() - start;
        }
        self.pad(bytes, out);
        raw(out, "}\n\n");
        self.sequence += 1;
    }

    /// Behind what differs from event to event, so many bytes.
    fn pad(&mut self, bytes: usize, out: &mut BytesMut) {
        if let Some(padding) = &mut self.padding {
            padding.write(bytes, out);
        }
    }
}

fn said(part: Part) -> Message {
    Message { id: String::new(), role: Role::Assistant, name: None, parts: vec![part], provenance: None }
}

#[cfg(test)]
mod tests;
