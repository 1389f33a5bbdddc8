//! The simple pair's events: tokens as they come, then `done` or `error`.

use super::{Ended, ResponseEncoder, Skin};
use crate::report;
use crate::write::{raw, string};
use bytes::BytesMut;
use serde_json::{Value, json};
use tidegate_types::{Message, Part};

impl ResponseEncoder {
    /// What a token says, without a tree: it is the event that comes most.
    pub(super) fn simple_token(&mut self, name: &str, text: &str, out: &mut BytesMut) {
        raw(out, r#"data: {"type":""#);
        raw(out, name);
        raw(out, r#"","text":"#);
        let start = out.len();
        string(out, text);
        let bytes = out.len() - start;
        self.pad(bytes, out);
        raw(out, "}\n\n");
    }

    pub(super) fn simple_call(&mut self, message: &Message, out: &mut BytesMut) {
        let [Part::ToolCall(call)] = message.parts.as_slice() else { return };
        if self.skin == Skin::Simple {
            let body = json!({"type": "tool_call", "call_id": call.id, "name": call.name, "arguments": call.arguments});
            raw(out, &format!("data: {body}\n\n"));
        }
    }

    pub(super) fn simple_end(&mut self, ended: &Ended, out: &mut BytesMut) {
        let item_id = self.items.last().map(|item| item.id.clone());
        let mut body = match ended {
            Ended::Finished(reason) => json!({"type": "done", "item_id": item_id, "finish_reason": reason.as_str(),
                "response_id": self.head.id, "usage": self.usage.map(crate::items::usage),
                "stored": self.head.store, "left_out": self.report.left_out, "summarized": self.report.summarized}),
            Ended::Cancelled => json!({"type": "done", "item_id": item_id, "finish_reason": "cancelled",
                "response_id": self.head.id, "stored": self.head.store}),
            Ended::Failed(reject) => json!({"type": "error", "message": reject.message,
                "code": reject.code.as_deref().unwrap_or("server_error"), "stored": self.head.store}),
        };
        if let Value::Object(body) = &mut body {
            body.extend(report::members(&self.report, &self.head.currency));
            if self.cited_item().is_some() {
                body.insert("annotations".into(), report::annotations(&self.report.citations).into());
            }
        }
        raw(out, &format!("data: {body}\n\n"));
    }
}
