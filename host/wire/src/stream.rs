//! Server-sent events of one answer. The frame around an event is prepared once per request; an event then is
//! three copies and one escaped string into a buffer of the connection.
//!
//! Invariant: what is written is valid JSON in OpenAI's shape for any text, and each choice says its role first.
//! The same answer in one piece: `answer.rs`.

use crate::error::error_body;
use crate::head::Head;
use crate::logprobs::{self, Before};
use crate::padding::Padding;
use crate::report;
use crate::write::{raw, string, uint, usage};
use bytes::BytesMut;
use tidegate_types::{Citation, Delta, DeltaKind, Form, Reject, TextLogprob, ToolCall, Usage};

/// Whether chunks carry `usage`, as `stream_options.include_usage` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageChunk {
    /// A last chunk with the usage; all others say `"usage": null`.
    Include,
    /// None.
    Omit,
}

/// Writes the events of one answer.
pub struct StreamEncoder {
    head: Head,
    /// `data: {..., "choices":[`
    frame: String,
    usage_chunk: UsageChunk,
    padding: Option<Padding>,
    choices: Vec<ChoiceState>,
}

/// What a choice has said so far.
#[derive(Clone, Copy, Default)]
struct ChoiceState {
    opened: bool,
    /// Whether it has a text that passages may be cited for.
    spoke: bool,
    /// What it has said, for `text_offset`.
    said: Before,
}

impl StreamEncoder {
    /// An encoder for `n` choices.
    pub fn new(head: Head, n: u32, usage_chunk: UsageChunk) -> Self {
        let mut frame = BytesMut::with_capacity(160);
        raw(&mut frame, r#"data: {"id":"#);
        string(&mut frame, &head.id);
        raw(&mut frame, r#","object":""#);
        raw(&mut frame, head.object(true));
        raw(&mut frame, r#"","created":"#);
        uint(&mut frame, head.created);
        raw(&mut frame, r#","model":"#);
        string(&mut frame, &head.model);
        raw(&mut frame, r#","choices":["#);
        let frame = String::from_utf8_lossy(&frame).into_owned();
        Self { head, frame, usage_chunk, padding: None, choices: vec![ChoiceState::default(); n as usize] }
    }

    /// Makes events alike in size, where `padded`.
    pub fn padded(mut self, padded: bool) -> Self {
        self.padding = padded.then(Padding::new);
        self
    }

    /// The passages were for another answer than the one that leaves.
    pub fn uncite(&mut self) {
        self.head.citations.clear();
    }

    /// Writes the event of a delta, preceded by the choice's first event where none was written yet.
    pub fn delta(&mut self, delta: &Delta, out: &mut BytesMut) -> Result<(), Reject> {
        let opened = match self.choices.get_mut(delta.choice as usize) {
            Some(state) => std::mem::replace(&mut state.opened, true),
            None => return Err(unknown_choice(delta.choice)),
        };
        match self.head.form {
            Form::Chat => {
                if !opened {
                    self.role(delta, out);
                }
                self.chat_delta(delta, out);
                Ok(())
            }
            Form::Completion { .. } => self.completion_delta(delta, out),
        }
    }

    /// Writes the last chunk, where the caller asked for it; `None` says that nobody counted.
    pub fn usage(&self, counted: Option<&Usage>, out: &mut BytesMut) {
        if self.usage_chunk == UsageChunk::Omit {
            return;
        }
        raw(out, &self.frame);
        raw(out, r#"],"usage":"#);
        usage(out, counted);
        raw(out, "}\n\n");
    }

    /// Writes the end of a complete stream.
    pub fn done(&self, out: &mut BytesMut) {
        raw(out, "data: [DONE]\n\n");
    }

    fn begin(&self, choice: u32, out: &mut BytesMut) {
        raw(out, &self.frame);
        raw(out, r#"{"index":"#);
        uint(out, u64::from(choice));
    }

    /// Closes a chunk after its choice, of which so many bytes differ from chunk to chunk.
    fn close(&mut self, bytes: usize, out: &mut BytesMut) {
        raw(out, "}]");
        if self.usage_chunk == UsageChunk::Include {
            raw(out, r#","usage":null"#);
        }
        if let Some(padding) = &mut self.padding {
            padding.write(bytes, out);
        }
        raw(out, "}\n\n");
    }

    /// OpenAI says `content: null` before a tool call and an empty string before text.
    fn role(&mut self, first: &Delta, out: &mut BytesMut) {
        self.begin(first.choice, out);
        let content = if matches!(first.kind, DeltaKind::ToolCall { .. }) { "null" } else { r#""""# };
        raw(out, r#","delta":{"role":"assistant","content":"#);
        raw(out, content);
        raw(out, r#"},"logprobs":null,"finish_reason":null"#);
        self.close(0, out);
    }

    fn chat_delta(&mut self, delta: &Delta, out: &mut BytesMut) {
        self.begin(delta.choice, out);
        raw(out, r#","delta":{"#);
        let (mut start, mut tokens): (usize, &[TextLogprob]) = (out.len(), &[]);
        match &delta.kind {
            DeltaKind::Text { text, logprobs } => {
                tokens = logprobs;
                start = member(out, r#""content":"#, text);
                self.note_text(delta.choice, text);
            }
            DeltaKind::Reasoning(text) => start = member(out, r#""reasoning_content":"#, text),
            DeltaKind::Refusal(text) => start = member(out, r#""refusal":"#, text),
            DeltaKind::ToolCall { index, call } => {
                raw(out, r#""tool_calls":[{"index":"#);
                uint(out, u64::from(*index));
                raw(out, ",");
                tool_call(out, call);
                raw(out, "]");
            }
            DeltaKind::Finish(_) if self.cites(delta.choice) => citations(out, &self.head.citations),
            DeltaKind::Finish(_) => {}
        }
        let said = out.len() - start;
        raw(out, r#"},"logprobs":"#);
        let start = out.len();
        logprobs::chat(out, tokens);
        let bytes = said + out.len() - start;
        self.finish_reason(delta, bytes, out);
    }

    fn note_text(&mut self, choice: u32, text: &str) {
        if let Some(state) = self.choices.get_mut(choice as usize) {
            state.spoke |= !text.is_empty();
        }
    }

    fn cites(&self, choice: u32) -> bool {
        !self.head.citations.is_empty() && self.choices.get(choice as usize).is_some_and(|state| state.spoke)
    }

    fn completion_delta(&mut self, delta: &Delta, out: &mut BytesMut) -> Result<(), Reject> {
        match &delta.kind {
            DeltaKind::Text { text, logprobs } => {
                self.completion_text(delta.choice, text, logprobs, Before::add, out);
            }
            DeltaKind::Reasoning(text) | DeltaKind::Refusal(text) => {
                self.completion_text(delta.choice, text, &[], Before::add_without_tokens, out);
            }
            DeltaKind::ToolCall { .. } => return Err(tool_call_in_completion()),
            DeltaKind::Finish(_) => {
                self.begin(delta.choice, out);
                raw(out, r#","text":"","logprobs":null"#);
                self.finish_reason(delta, 0, out);
            }
        }
        Ok(())
    }

    fn completion_text(
        &mut self,
        choice: u32,
        text: &str,
        tokens: &[TextLogprob],
        add: fn(&mut Before, &str),
        out: &mut BytesMut,
    ) {
        self.begin(choice, out);
        raw(out, r#","text":"#);
        let start = out.len();
        string(out, text);
        let said = out.len() - start;
        raw(out, r#","logprobs":"#);
        let start = out.len();
        if let Some(state) = self.choices.get_mut(choice as usize) {
            logprobs::completion(out, tokens, text, state.said);
            add(&mut state.said, text);
        }
        let bytes = said + out.len() - start;
        raw(out, r#","finish_reason":null"#);
        self.close(bytes, out);
    }

    fn finish_reason(&mut self, delta: &Delta, bytes: usize, out: &mut BytesMut) {
        match &delta.kind {
            DeltaKind::Finish(reason) => {
                raw(out, r#","finish_reason":""#);
                raw(out, reason.as_str());
                raw(out, "\"");
            }
            _ => raw(out, r#","finish_reason":null"#),
        }
        self.close(bytes, out);
    }
}

/// Writes the error that ends a broken stream. No `[DONE]` follows, so that no client takes it for complete.
pub fn error_event(reject: &Reject, out: &mut BytesMut) {
    raw(out, "data: ");
    out.extend_from_slice(&error_body(reject));
    raw(out, "\n\n");
}

/// Writes the id of the event that follows, which a reader that comes back repeats in `Last-Event-ID`.
pub fn event_id(number: u64, out: &mut BytesMut) {
    raw(out, "id: ");
    uint(out, number);
    raw(out, "\n");
}

/// What has become of a stream, as JSON.
pub fn stream_body(id: &str, status: &str) -> String {
    serde_json::json!({"id": id, "object": "stream", "status": status}).to_string()
}

/// Writes a comment, which keeps proxies from closing a connection that is silent for long.
pub fn keep_alive(out: &mut BytesMut) {
    raw(out, ": keep-alive\n\n");
}

/// Gives where the text begins.
fn member(out: &mut BytesMut, name: &str, text: &str) -> usize {
    raw(out, name);
    let start = out.len();
    string(out, text);
    start
}

/// The member of a message that says what its text was made from, as the annotations of responses do. It has a name of its
/// own: what OpenAI's chats call annotations are pages of the web, and its clients read nothing else there.
pub(crate) fn citations(out: &mut BytesMut, citations: &[Citation]) {
    raw(out, r#""citations":"#);
    raw(out, &serde_json::Value::from(report::annotations(citations)).to_string());
}

/// The members of a call, from `id` to the closing brace.
pub(crate) fn tool_call(out: &mut BytesMut, call: &ToolCall) {
    raw(out, r#""id":"#);
    string(out, &call.id);
    raw(out, r#","type":"function","function":{"name":"#);
    string(out, &call.name);
    raw(out, r#","arguments":"#);
    string(out, &call.arguments);
    raw(out, "}}");
}

pub(crate) fn unknown_choice(choice: u32) -> Reject {
    Reject::internal(tidegate_types::Fault::Engine, format!("a delta names choice {choice}, which was not asked for"))
}

pub(crate) fn tool_call_in_completion() -> Reject {
    Reject::internal(tidegate_types::Fault::Engine, "a tool call in an answer of /v1/completions")
}

#[cfg(test)]
mod tests;
