//! What streams back to the caller.

use crate::chat::ToolCall;
use serde::{Deserialize, Serialize};

/// Tokens used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Of those, found in the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Of those, reasoning; `None` where nobody tells it from the rest.
    pub reasoning_tokens: Option<u64>,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.cached_tokens += other.cached_tokens;
        self.output_tokens += other.output_tokens;
        self.reasoning_tokens = match (self.reasoning_tokens, other.reasoning_tokens) {
            (Some(known), Some(more)) => Some(known + more),
            (known, more) => known.or(more),
        };
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens`, or the model's context is full.
    Length,
    /// The caller shall run the tools it offered.
    ToolCalls,
    /// A guard halted it.
    ContentFilter,
}

impl FinishReason {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}

impl DeltaKind {
    /// Bytes of what it says, tokens' alternatives roughly as they are written.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Text { text, logprobs } => {
                text.len() + logprobs.iter().map(|token| (1 + token.top.len()) * 64).sum::<usize>()
            }
            Self::Reasoning(text) | Self::Refusal(text) => text.len(),
            Self::ToolCall { call, .. } => call.id.len() + call.name.len() + call.arguments.len(),
            Self::Finish(_) => 0,
        }
    }
}

/// One alternative for a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// The token's text, lossy where it is part of a character.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The token's bytes.
    pub bytes: Vec<u8>,
}

/// Log-probability of a token of the answer; travels with its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextLogprob {
    /// The chosen token.
    pub chosen: TopLogprob,
    /// The most likely ones, best first.
    pub top: Vec<TopLogprob>,
    /// Where the token's text ends: bytes of its choice's text in this turn. `None` where the token has none, or nobody
    /// knows which it is; past guards it then does not go.
    pub end: Option<u64>,
}

impl TextLogprob {
    /// Calls the token and its alternatives what their bytes say: some servers call them by their names in the vocabulary
    /// (`Ġhello`). A client looks for the one among the others by its name.
    pub fn name_by_bytes(&mut self) {
        std::iter::once(&mut self.chosen).chain(&mut self.top).for_each(TopLogprob::name_by_bytes);
    }
}

impl TopLogprob {
    fn name_by_bytes(&mut self) {
        let said = String::from_utf8_lossy(&self.bytes);
        if said != self.token {
            self.token = said.into_owned();
        }
    }
}

/// One event of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Which of the `n` answers.
    pub choice: u32,
    /// What happened.
    pub kind: DeltaKind,
}

/// What happened in one choice. `Finish` is the last of its choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DeltaKind {
    /// Text of the answer, whole characters.
    Text {
        /// The text; empty only where log-probabilities come behind it.
        text: String,
        /// Of the tokens that end in this text, when asked for.
        logprobs: Vec<TextLogprob>,
    },
    /// The model's reasoning, whole characters.
    Reasoning(String),
    /// The model declined (or a guard speaks in its place).
    Refusal(String),
    /// A whole tool call of one of the caller's tools.
    ToolCall {
        /// Position among the calls of this choice.
        index: u32,
        /// The call.
        call: ToolCall,
    },
    /// The choice ended.
    Finish(FinishReason),
}
