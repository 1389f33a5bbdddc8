//! What a part of an answer is called in the events of a response.

use serde_json::{Value, json};
use tidegate_types::Part;

/// What an open item is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Refusal,
    Reasoning,
}

impl Kind {
    pub(super) fn of(part: &Part) -> Option<Self> {
        match part {
            Part::Text(_) => Some(Self::Text),
            Part::Refusal(_) => Some(Self::Refusal),
            Part::Reasoning(_) => Some(Self::Reasoning),
            Part::ToolCall(_) | Part::ToolOutcome(_) | Part::Opaque { .. } => None,
        }
    }

    /// Its events' name, and the member with the whole of it.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Text => ("response.output_text", "text"),
            Self::Refusal => ("response.refusal", "refusal"),
            Self::Reasoning => ("response.reasoning_text", "text"),
        }
    }

    pub(super) fn empty(self) -> Part {
        match self {
            Self::Text => Part::Text(String::new()),
            Self::Refusal => Part::Refusal(String::new()),
            Self::Reasoning => Part::Reasoning(String::new()),
        }
    }

    pub(super) fn part(self, text: &str) -> Value {
        match self {
            Self::Text => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
            Self::Refusal => json!({"type": "refusal", "refusal": text}),
            Self::Reasoning => json!({"type": "reasoning_text", "text": text}),
        }
    }
}
