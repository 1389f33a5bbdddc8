//! Which item and which of its parts is open, and what opening and closing them says.

use super::kind::Kind;
use super::{Item, ResponseEncoder, said};
use crate::items::item;
use crate::report;
use bytes::BytesMut;
use serde_json::json;
use tidegate_types::{FinishReason, Part, Reject};

impl ResponseEncoder {
    /// Adds text to the open part, or to a new one.
    pub(super) fn grow(&mut self, kind: Kind, text: &str, out: &mut BytesMut) -> Result<(), Reject> {
        self.count(text.len())?;
        self.open_for(kind, out);
        let part = self.items.last_mut().and_then(|item| item.message.parts.last_mut());
        if let Some(Part::Text(whole) | Part::Refusal(whole) | Part::Reasoning(whole)) = part {
            whole.push_str(text);
        }
        Ok(())
    }

    pub(super) fn open_for(&mut self, kind: Kind, out: &mut BytesMut) {
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

    pub(super) fn open_kind(&self) -> Option<Kind> {
        self.items.last().filter(|_| self.open)?.message.parts.last().and_then(Kind::of)
    }

    pub(super) fn close_part(&mut self, out: &mut BytesMut) {
        let Some(kind) = self.open_kind() else { return };
        let Some(Part::Text(text) | Part::Refusal(text) | Part::Reasoning(text)) =
            self.items.last().and_then(|item| item.message.parts.last())
        else {
            return;
        };
        let ((name, member), text) = (kind.words(), text.clone());
        let mut part = kind.part(&text);
        let (index, last) = self.place_of_last();
        let tokens = self.tokens.of(index, last, self.repeated_bytes);
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
    pub(super) fn annotates_here(&self) -> bool {
        let is_text = |part: &&Part| matches!(part, Part::Text(_));
        self.cited_item() == Some(self.items.len().saturating_sub(1))
            && self.items.last().is_some_and(|item| item.message.parts.iter().filter(is_text).count() == 1)
    }

    pub(super) fn close(&mut self, out: &mut BytesMut) {
        if !self.open {
            return;
        }
        self.close_part(out);
        self.open = false;
        let index = self.items.len() - 1;
        let cut = matches!(self.finish, Some(FinishReason::Length | FinishReason::ContentFilter));
        let done = self.shown(index, if cut { "incomplete" } else { "completed" }, self.repeated_bytes);
        self.event(out, "response.output_item.done", json!({"output_index": index, "item": done}));
    }
}
