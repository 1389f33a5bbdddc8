//! OpenAI's typed events, as they are written.

use super::kind::Kind;
use super::{ResponseEncoder, Skin};
use crate::items::item;
use crate::logprobs;
use crate::write::{raw, string, uint};
use bytes::BytesMut;
use serde_json::{Value, json};
use tidegate_types::{Message, TextLogprob};

impl ResponseEncoder {
    /// An event that says where it belongs.
    pub(super) fn place(&mut self, out: &mut BytesMut, name: &str, fill: impl FnOnce(&mut Value)) {
        let Some(id) = self.items.last().map(|item| item.id.clone()) else { return };
        let (index, part) = self.place_of_last();
        let mut body = json!({"item_id": id, "output_index": index, "content_index": part});
        fill(&mut body);
        self.event(out, name, body);
    }

    /// All of a call's but the last, which says whether it was cut off: that is known once something follows.
    pub(super) fn call_events(&mut self, id: &str, index: usize, message: &Message, out: &mut BytesMut) {
        if self.skin != Skin::Typed {
            return self.simple_call(message, out);
        }
        let mut added = item(id, message, "in_progress");
        let (called, arguments) = (added["name"].clone(), added["arguments"].clone());
        added["arguments"] = "".into();
        self.event(out, "response.output_item.added", json!({"output_index": index, "item": added}));
        let name = "response.function_call_arguments.delta";
        self.event(out, name, json!({"item_id": id, "output_index": index, "delta": arguments}));
        let name = "response.function_call_arguments.done";
        self.event(out, name, json!({"item_id": id, "output_index": index, "name": called, "arguments": arguments}));
    }

    pub(super) fn event(&mut self, out: &mut BytesMut, name: &str, body: Value) {
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
    pub(super) fn text_delta(&mut self, kind: Kind, text: &str, tokens: &[TextLogprob], out: &mut BytesMut) {
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
    pub(super) fn pad(&mut self, bytes: usize, out: &mut BytesMut) {
        if let Some(padding) = &mut self.padding {
            padding.write(bytes, out);
        }
    }
}
