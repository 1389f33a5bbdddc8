//! The vocabulary of the contract, as plain Rust: what `wit/types.wit` says, without generated code. In a component most of it is
//! made by generated code (`with` in `wasm/bindings.rs`), so names of fields and cases are the contract's.

/// Open bag: key and JSON value. Keys of a plugin's own start with its name and a slash.
pub type Attrs = Vec<(String, String)>;

/// What every stage call carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// For logs.
    pub request_id: String,
    /// A pseudonym, of its own for each plugin and tenant. Where the server has a store, it is the same after a restart and
    /// at each gateway with that store.
    pub caller: String,
    /// Time left for this call.
    pub deadline_ms: u32,
    /// The client reads a stream.
    pub streaming: bool,
    /// More about the request, as far as the host tells.
    pub attrs: Attrs,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator or application.
    System,
    /// The application's developer.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
    /// Another one, by name.
    Other(String),
}

/// One message of a conversation. `id` is the host's and stable over the whole pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Names the message in edits and findings.
    pub id: String,
    /// Who speaks.
    pub role: Role,
    /// The speaker's name, where given.
    pub name: Option<String>,
    /// What is said.
    pub parts: Vec<Part>,
    /// Provenance of text from outside.
    pub attrs: Attrs,
}

impl Message {
    /// A message of one text part.
    pub fn text(id: &str, role: Role, text: &str) -> Self {
        Self { id: id.into(), role, name: None, parts: vec![Part::Text(text.into())], attrs: Vec::new() }
    }

    /// Every part that is text which an edit may replace, with its index.
    pub fn texts(&self) -> impl Iterator<Item = (usize, &str)> {
        self.parts.iter().enumerate().filter_map(|(idx, part)| Some((idx, part.as_text()?)))
    }
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// The model's reasoning.
    Reasoning(String),
    /// The model's refusal.
    Refusal(String),
    /// An image.
    Image(Media),
    /// Sound.
    Audio(Media),
    /// A file.
    File(Media),
    /// The model calls a tool.
    ToolCall(ToolCall),
    /// What a tool answered.
    ToolOutcome(ToolOutcome),
    /// A kind of part that the contract has no name for, as JSON.
    Opaque {
        /// Its name in the client's dialect.
        kind: String,
        /// JSON.
        body: String,
    },
}

impl Part {
    /// The text of a part that has one: text, reasoning, refusal, and a tool's content.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::Refusal(text) => Some(text),
            Self::ToolOutcome(outcome) => Some(&outcome.content),
            _ => None,
        }
    }
}

/// An image, sound or file.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// Its MIME type.
    pub mime: String,
    /// Where it is.
    pub source: MediaSource,
}

/// Where media is.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaSource {
    /// Elsewhere.
    Url(String),
    /// Here.
    Inline(Vec<u8>),
    /// Not shown to this plugin.
    Withheld,
}

/// The model calls a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Names the call in its outcome.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON as the model wrote it. In a prompt or an answer it may be malformed; in
    /// [`call_tool`](crate::ToolProvider::call_tool) it is JSON, of whatever shape: the host does not hold it to the tool's
    /// `input_schema`.
    pub arguments: String,
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutcome {
    /// Which call.
    pub call_id: String,
    /// For the model.
    pub content: String,
    /// The same as JSON, where the tool has it.
    pub structured: Option<String>,
    /// The content says what went wrong; the model may try again.
    pub is_error: bool,
}

impl ToolOutcome {
    /// An answer.
    pub fn text(call: &ToolCall, content: impl Into<String>) -> Self {
        Self { call_id: call.id.clone(), content: content.into(), structured: None, is_error: false }
    }

    /// Why there is no answer, in words that the model can act on.
    pub fn error(call: &ToolCall, content: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(call, content) }
    }
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDef {
    /// The name that the model writes.
    pub name: String,
    /// What the model reads.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: String,
    /// What a call may do.
    pub hints: ToolHints,
    /// More about it.
    pub attrs: Attrs,
}

/// MCP's hints; the default is the pessimistic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolHints {
    /// Changes nothing.
    pub read_only: bool,
    /// May destroy something.
    pub destructive: bool,
    /// Twice is the same as once.
    pub idempotent: bool,
    /// Reaches things outside.
    pub open_world: bool,
}

impl ToolHints {
    /// A pure computation.
    pub const PURE: Self = Self { read_only: true, destructive: false, idempotent: true, open_world: false };
}

impl Default for ToolHints {
    fn default() -> Self {
        Self { read_only: false, destructive: true, idempotent: false, open_world: true }
    }
}

/// Half-open byte range of UTF-8 text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span of a range of a text that the host capped: its borders fit.
    pub fn of(range: std::ops::Range<usize>) -> Self {
        let border = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self { start: border(range.start), end: border(range.end) }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// For statistics.
    Info,
    /// Worth a look.
    Low,
    /// Suspicious.
    Medium,
    /// Should not pass.
    High,
    /// Must not pass.
    Critical,
}

/// One thing that a guard saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Namespaced: `pii:email`, `openai:hate`, `x-acme:...`.
    pub category: String,
    /// How bad it is.
    pub severity: Severity,
    /// Confidence between 0 and 1, where the plugin has one.
    pub score: Option<f32>,
    /// The message it is in, for prompts.
    pub message_id: Option<String>,
    /// Where in the text.
    pub span: Option<Span>,
    /// More about it.
    pub attrs: Attrs,
}

impl Finding {
    /// A finding without a place.
    pub fn new(category: impl Into<String>, severity: Severity) -> Self {
        Self { category: category.into(), severity, score: None, message_id: None, span: None, attrs: Vec::new() }
    }

    /// The same in a message.
    pub fn in_message(mut self, id: &str) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// The same at a place.
    pub fn at(mut self, span: Span) -> Self {
        self.span = Some(span);
        self
    }
}

/// What a generation cost, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub input: u64,
    /// Of those, found in a prefix cache.
    pub input_cached: u64,
    /// Of the answer.
    pub output: u64,
    /// More about it.
    pub attrs: Attrs,
}

/// Why something does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A word for programs.
    pub code: String,
    /// May be shown to the client.
    pub public_message: String,
    /// For the server's log only; not of a request of which nothing is to be kept.
    pub private_reason: Option<String>,
}

impl Refusal {
    /// A refusal that the client may read.
    pub fn new(code: &str, public_message: impl Into<String>) -> Self {
        Self { code: code.into(), public_message: public_message.into(), private_reason: None }
    }

    /// Adds what only the server's log may say.
    pub fn because(mut self, private_reason: impl Into<String>) -> Self {
        self.private_reason = Some(private_reason.into());
        self
    }
}
