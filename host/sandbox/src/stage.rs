//! What the host says to a plugin and hears from it, in the host's own types: `pipeline` never sees wasmtime
//! nor generated bindings. The meaning of each type is the contract's: see `wit/`.

mod answer;
mod error;
mod grants;
mod kind;
mod window;

pub use answer::{Exchange, MemoryItem, Output, Question, Summary};
pub use error::CallError;
pub use grants::{Grants, HttpGrant, ModelGrant, Secret, SecretGrant, VectorAccess};
pub use kind::StageKind;
pub use window::{Channel, Inspection, Redaction, Window, WindowAction};

use crate::prefilter::Prefilter;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::{Caller, Finding, Message, Part, RequestId, Retention, Span, ToolDef};

/// What every call carries.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// For the plugin's logs.
    pub request_id: RequestId,
    /// Selects the pool; the guest sees a pseudonym only.
    pub caller: Arc<Caller>,
    /// Gateways that the request has come through: what a plugin asks of a model goes on from there.
    pub hops: u8,
    /// Whether the plugin may keep something of what it sees.
    pub retention: Retention,
    /// Wall time that this call may take; the stage's own limit still holds.
    pub deadline: Duration,
    /// When it began, where somebody has looked at the clock; else when the plugin is asked.
    pub began: Option<Instant>,
    /// The client reads a stream.
    pub streaming: bool,
}

/// A prompt to decide on.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Messages in order.
    pub messages: &'a [Message],
    /// Tools on offer.
    pub tools: &'a [ToolDef],
    /// Sampling parameters as (name, JSON).
    pub params: &'a [(String, String)],
}

/// A refusal of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// A word for programs.
    pub code: String,
    /// May be shown to the client.
    pub public_message: String,
    /// For the server's log only.
    pub private_reason: Option<String>,
}

/// One change to a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Replaces bytes of a text part.
    ReplaceText {
        /// Which message.
        message_id: String,
        /// Which part of it.
        part: u32,
        /// Which bytes of the part.
        span: Span,
        /// The new text.
        text: String,
    },
    /// Puts a message behind `after`, or first.
    PutMessage {
        /// Behind which message.
        after: Option<String>,
        /// The message.
        message: Message,
    },
    /// Removes a message.
    DropMessage(String),
    /// Replaces a tool call's arguments.
    SetArguments {
        /// In which message.
        message_id: String,
        /// Which part of it.
        part: u32,
        /// JSON, which the sandbox has read once.
        arguments: String,
    },
}

/// What a prompt guard decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Goes on.
    Allow,
    /// Goes on changed. Each edit can be made once those before it are, and a message is left.
    Rewrite(Vec<Edit>),
    /// The guard answers in the model's place.
    Respond(Vec<Part>),
    /// Ends here.
    Refuse(Refusal),
}

/// A prompt guard's decision and what it saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The decision.
    pub action: Action,
    /// What it saw.
    pub findings: Vec<Finding>,
    /// What the plugin's own later stages want to know, as (key, JSON); the host does not read it.
    pub notes: Vec<(String, String)>,
}

/// A model that could serve the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Named in the decision.
    pub id: String,
    /// The model's name.
    pub model: String,
    /// Answers at present.
    pub healthy: bool,
    /// Its window, in tokens.
    pub context_tokens: u32,
    /// Load, queue, tags, as (key, JSON).
    pub attrs: Vec<(String, String)>,
}

/// What a router decides on.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Estimated prompt tokens.
    pub prompt_tokens: u32,
    /// What the guards saw.
    pub findings: &'a [Finding],
    /// Class, tier, needs, as (key, JSON).
    pub attrs: &'a [(String, String)],
}

/// A router's order: first is primary, the rest are fallbacks. The sandbox has checked that each id was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Candidate ids.
    pub order: Vec<String>,
    /// For the log.
    pub reason: String,
}

/// A question to a retriever.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The question.
    pub text: String,
    /// At most this many passages.
    pub top_k: u32,
}

/// A passage that a retriever found.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Unique within the retriever.
    pub id: String,
    /// The passage.
    pub text: String,
    /// Where it is from.
    pub uri: Option<String>,
    /// For people.
    pub title: Option<String>,
    /// Higher is better.
    pub score: Option<f32>,
    /// Bytes within the source.
    pub origin: Option<Span>,
}

/// What a plugin may use up. Defaults hold for a guard; see `Default`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Linear memory of one instance.
    pub memory_bytes: usize,
    /// CPU time of one call, in stages that `stage_cpu` does not name.
    pub cpu: Duration,
    /// CPU time of one call, by stage.
    pub stage_cpu: BTreeMap<StageKind, Duration>,
    /// Wall time of one call, waiting included.
    pub wall: Duration,
    /// Bytes of one result.
    pub output_bytes: usize,
    /// Log bytes of one call.
    pub log_bytes: usize,
    /// Live instances of one project, or tenant.
    pub instances: usize,
    /// The same for a plugin that waits for others (`http`, `models`, `documents`, a store of `kv` or `vectors` that waits): an
    /// instance that waits costs memory, no CPU.
    pub waiting_instances: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            cpu: Duration::from_millis(100),
            stage_cpu: BTreeMap::new(),
            wall: Duration::from_secs(1),
            output_bytes: 1 << 20,
            log_bytes: 16 << 10,
            instances: 8,
            waiting_instances: 512,
        }
    }
}

/// What a plugin says of itself: `describe()`, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Descriptor {
    /// Its own name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One line.
    pub summary: String,
    /// JSON Schema of its config.
    pub config_schema: Value,
    /// Rewrites prompts or redacts streams; guards that do not may run beside each other.
    pub mutates: bool,
    /// Same input, same output, no memory between calls.
    pub deterministic: bool,
    /// The granted capabilities that it uses, and why.
    pub capabilities: BTreeMap<String, String>,
    /// Its metrics by name, and what each says.
    pub metrics: BTreeMap<String, String>,
    /// Bytes that its stream guard would like to withhold at most; the config decides.
    pub holdback_bytes: Option<u32>,
    /// Bytes of text that has left that its stream guard sees again at most, its last character aside.
    pub look_behind_bytes: Option<u32>,
    /// Text of a stream that it need not be asked about.
    pub prefilter: Option<Prefilter>,
    /// Keys, as paths, that this host does not know: a misspelt one is seldom what a newer plugin has.
    pub unknown_keys: Vec<String>,
}
