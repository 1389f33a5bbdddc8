//! What was asked: a [`Chat`] is the parsed request, free of any wire format.

use crate::sampling::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who wrote a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The operator's instructions.
    System,
    /// OpenAI's newer name for the application's instructions; templates see `system`.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The name on the wire.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A tool call that a model made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique within the conversation; the outcome names it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// JSON text of the arguments, as the model wrote it.
    pub arguments: String,
}

impl ToolCall {
    /// The longest id: some gateways put the signature of a thought there, which has kilobytes.
    pub const MAX_ID_BYTES: usize = 64 << 10;
    /// The longest name. Tools that are offered have shorter ones, of fewer characters; a model may call others.
    pub const MAX_NAME_BYTES: usize = 256;
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The call it answers.
    pub call_id: String,
    /// Text for the model.
    pub content: String,
    /// The same as JSON text, where the tool has it. Guards read it, and no model does.
    pub structured: Option<String>,
    /// The tool failed; the text says how.
    pub is_error: bool,
}

/// One piece of a message's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// Text.
    Text(String),
    /// The model's reasoning.
    Reasoning(String),
    /// The model declined.
    Refusal(String),
    /// The model called a tool.
    ToolCall(ToolCall),
    /// A tool answered.
    ToolOutcome(ToolOutcome),
    /// Anything else (images, audio, files), as the wire had it. Passed on to upstreams; the own engine
    /// refuses it by name.
    Opaque {
        /// The wire's `type`, such as `image_url`.
        kind: String,
        /// The whole part as JSON.
        body: Value,
    },
}

/// Where text from outside came from: retrieved passages, tool results, memories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The plugin or server that brought it.
    pub source: String,
    /// A citation, where there is one.
    pub uri: Option<String>,
    /// Place within the source.
    pub span: Option<crate::finding::Span>,
}

/// What stands between two texts of a message that guards judge each alone, wherever a model reads them in one: a paragraph each, so
/// that no word or number is half in one of them and half in the next.
pub const BETWEEN_PARTS: &str = "\n\n";

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Given by the host, stable over the whole pipeline: `m0`, `m1`, ...
    pub id: String,
    /// Who wrote it.
    pub role: Role,
    /// The author's name, where given.
    pub name: Option<String>,
    /// Content, in order.
    pub parts: Vec<Part>,
    /// Set on text from outside.
    pub provenance: Option<Provenance>,
}

impl Message {
    /// A message of one text part.
    pub fn text(id: impl Into<String>, role: Role, text: impl Into<String>) -> Self {
        Self { id: id.into(), role, name: None, parts: vec![Part::Text(text.into())], provenance: None }
    }

    /// All text parts, joined without a separator.
    pub fn joined_text(&self) -> String {
        self.parts.iter().filter_map(|p| if let Part::Text(t) = p { Some(t.as_str()) } else { None }).collect()
    }

    /// Makes refusals that follow each other one part, and reasoning likewise: to the model they are one text, so guards, who judge
    /// each of these parts alone, shall see one.
    pub fn join_neighbours(&mut self) {
        self.parts.dedup_by(|next, last| match (last, next) {
            (Part::Refusal(all), Part::Refusal(more)) | (Part::Reasoning(all), Part::Reasoning(more)) => {
                all.push_str(more);
                true
            }
            _ => false,
        });
    }
}

/// MCP's hints, with pessimistic defaults; untrusted when they come from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolHints {
    /// Changes nothing.
    pub read_only: bool,
    /// May destroy something.
    pub destructive: bool,
    /// Calling twice is as good as once.
    pub idempotent: bool,
    /// Reaches out of the machine.
    pub open_world: bool,
}

impl Default for ToolHints {
    fn default() -> Self {
        Self { read_only: false, destructive: true, idempotent: false, open_world: true }
    }
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDef {
    /// Name, unique within a request: `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// The caller asked that arguments conform to the schema exactly (OpenAI's `strict`).
    #[serde(default)]
    pub strict: bool,
    /// Promises about its effects.
    pub hints: ToolHints,
}

/// Whether the model must, may or must not call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool call.
    None,
    /// Some tool call.
    Required,
    /// A call of this tool.
    Named(String),
}

/// Which endpoint's semantics the request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// Messages through the model's chat template.
    Chat,
    /// Raw prompts (each message's text is one), no template, no tools.
    Completion {
        /// Repeat the prompt before the completion.
        echo: bool,
    },
}

/// A parsed and validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// Endpoint semantics.
    pub form: Form,
    /// The model as the caller named it.
    pub model: String,
    /// The conversation, oldest first; never empty.
    pub messages: Vec<Message>,
    /// Tools of the caller.
    pub tools: Vec<ToolDef>,
    /// Whether a tool must be called.
    pub tool_choice: ToolChoice,
    /// Whether one turn may hold several calls, where the caller says; it may, where nobody does.
    pub parallel_tool_calls: Option<bool>,
    /// How to draw tokens; what is absent takes the model's default.
    pub sampling: Sampling,
    /// Strings that end the answer; not part of it. At most 4 (OpenAI) of 256 bytes.
    pub stop: Vec<String>,
    /// Bound on generated tokens.
    pub max_tokens: Option<u32>,
    /// Number of answers to each prompt; 1..=16 to all of them.
    pub n: u32,
    /// Stream the answer.
    pub stream: bool,
    /// Fields of the wire that are not read into others; sent on to upstreams.
    pub extra: serde_json::Map<String, Value>,
    /// Names of those in `extra` that change the answer: who does not know them must refuse the request.
    pub demands: Vec<String>,
    /// What a refusal calls what is not in `extra`.
    pub fields: FieldNames,
}

/// Fields as the caller's endpoint has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldNames {
    /// What `messages` were made of.
    pub messages: &'static str,
    /// The bound on generated tokens.
    pub max_tokens: &'static str,
    /// The name of a tool, within that.
    pub tool_name: &'static str,
}

impl Default for FieldNames {
    fn default() -> Self {
        Self { messages: "messages", max_tokens: "max_tokens", tool_name: "function.name" }
    }
}

impl Chat {
    /// What a request that says nothing else asks for: one whole answer of `model` by its chat template.
    pub fn new(model: impl Into<String>, messages: Vec<Message>) -> Self {
        Self {
            form: Form::Chat,
            model: model.into(),
            messages,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: None,
            sampling: Sampling::default(),
            stop: Vec::new(),
            max_tokens: None,
            n: 1,
            stream: false,
            extra: serde_json::Map::new(),
            demands: Vec::new(),
            fields: FieldNames::default(),
        }
    }

    /// How many prompts its caller sent: a completion may have several.
    pub fn num_prompts(&self) -> usize {
        if self.form == Form::Chat { 1 } else { self.messages.len() }
    }

    /// The text that a completion goes on from: a guard may have put some of its own beside the caller's.
    pub fn prompt(&self) -> String {
        self.messages.iter().map(Message::joined_text).collect()
    }

    /// How many choices its answer has.
    pub fn num_choices(&self) -> u32 {
        self.n.saturating_mul(u32::try_from(self.num_prompts()).unwrap_or(u32::MAX))
    }
}
