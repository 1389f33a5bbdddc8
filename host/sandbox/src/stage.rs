//! What the host says to a plugin and hears from it, in the host's own types: `pipeline` never sees wasmtime
//! nor generated bindings. The meaning of each type is the contract's: see `wit/`.

mod answer;
mod grants;

pub use answer::{Exchange, MemoryItem, Output, Question, Summary};
pub use grants::{Grants, HttpGrant, ModelGrant, Secret, VectorAccess};

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::{Caller, Finding, Message, Part, RequestId, Retention, Span, ToolDef};

/// The kinds of stage that a component may export, by their names in the contract and in the config.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum StageKind {
    /// Decides on prompts, retrieved text and tool results.
    PromptGuard,
    /// Decides on generated text.
    StreamGuard,
    /// Orders the models for a request that asks for `auto`.
    Router,
    /// Brings tools.
    ToolProvider,
    /// Brings passages.
    Retriever,
    /// Decides on whole answers.
    OutputGuard,
    /// Remembers callers between conversations.
    Memory,
    /// Is told how requests ended.
    Observer,
}

impl StageKind {
    /// All kinds, in the order of the path.
    pub const ALL: [Self; 8] = [
        Self::PromptGuard,
        Self::Retriever,
        Self::Memory,
        Self::ToolProvider,
        Self::Router,
        Self::StreamGuard,
        Self::OutputGuard,
        Self::Observer,
    ];

    /// The interface's name in the contract and in the config.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PromptGuard => "prompt-guard",
            Self::StreamGuard => "stream-guard",
            Self::Router => "router",
            Self::ToolProvider => "tool-provider",
            Self::Retriever => "retriever",
            Self::OutputGuard => "output-guard",
            Self::Memory => "memory",
            Self::Observer => "observer",
        }
    }

    /// Whether it is shown what callers write or models answer.
    pub fn sees_content(self) -> bool {
        self != Self::Observer
    }
}

/// What every call carries.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// For the plugin's logs.
    pub request_id: RequestId,
    /// Selects the pool; the guest sees a pseudonym only.
    pub caller: Arc<Caller>,
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
    /// For the audit log only.
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
    /// Replaces a tool call's arguments (call id, JSON).
    SetArguments(String, String),
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

/// Which text of a choice a window is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// The answer.
    Text,
    /// The reasoning.
    Reasoning,
    /// The refusal.
    Refusal,
    /// Arguments of the tool call with this id.
    ToolArguments(String),
}

/// A stretch of generated text: look-behind that the client has, then text that waits.
#[derive(Clone, Debug)]
pub struct Window<'a> {
    /// Counts the windows of this choice and channel from 0.
    pub seq: u32,
    /// Which answer.
    pub choice: u32,
    /// Which text.
    pub channel: &'a Channel,
    /// Look-behind and pending text.
    pub text: &'a str,
    /// Bytes of look-behind.
    pub settled: u32,
    /// On the last window: the finish reason.
    pub ending: Option<&'a str>,
}

/// A replacement within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redaction {
    /// Starts at or after `settled`.
    pub span: Span,
    /// The new text.
    pub text: String,
}

/// What a stream guard decided about a window.
#[derive(Clone, Debug, PartialEq)]
pub enum WindowAction {
    /// Text is fine as it is.
    Pass,
    /// Text is fine with these changes; sorted, not overlapping.
    Redact(Vec<Redaction>),
    /// The answer ends here, with a farewell where one is given.
    Halt {
        /// Why.
        refusal: Refusal,
        /// Said to the client in the model's place.
        farewell: Option<String>,
    },
}

/// A stream guard's answer. The sandbox has checked it: spans in bounds and on characters, `carry` in its cap.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The decision.
    pub action: WindowAction,
    /// Bytes of the window (before redaction) that may leave now; between `settled` and the text's length.
    pub safe_through: u32,
    /// Comes back with the next window of this choice and channel.
    pub carry: Vec<u8>,
    /// What it saw.
    pub findings: Vec<Finding>,
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
    /// For the log and the answer's headers.
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
    /// Live instances of one tenant.
    pub instances: usize,
    /// The same for a plugin that waits for others (`http`, `models`): an instance that waits costs memory, no CPU.
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
    /// The names of its metrics.
    pub metrics: Vec<String>,
    /// Bytes that its stream guard would like to withhold at most; the config decides.
    pub holdback_bytes: Option<u32>,
}

/// Why a call has no result. The stage's `on_error` says what happens then.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The plugin said that it cannot: the contract's `error`.
    #[error("plugin `{plugin}` answered {case}: {message}")]
    Plugin {
        /// The stage's plugin.
        plugin: String,
        /// The error's case: `invalid-input`, `unavailable`, ...
        case: &'static str,
        /// For logs.
        message: String,
    },
    /// It trapped; its instance is gone.
    #[error("plugin `{plugin}` trapped: {message}")]
    Trap {
        /// The stage's plugin.
        plugin: String,
        /// For logs.
        message: String,
    },
    /// It used up CPU or wall time; its instance is gone.
    #[error("plugin `{plugin}` did not finish within {limit:?} of {clock} time (limits.{clock}_ms)")]
    Deadline {
        /// The stage's plugin.
        plugin: String,
        /// `"cpu"` or `"wall"`.
        clock: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// Its `describe` or `configure` used up what all plugins have for that; its instance is gone.
    #[error(
        "plugin `{plugin}` did not start within {limit:?} of {clock} time, which all plugins have and no setting changes"
    )]
    Start {
        /// The stage's plugin.
        plugin: String,
        /// `"cpu"` or `"wall"`.
        clock: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// It asked for more memory than it may have; its instance is gone.
    #[error("plugin `{plugin}` asked for {asked} bytes of memory; its limit is {limit} (limits.memory_mib)")]
    Memory {
        /// The stage's plugin.
        plugin: String,
        /// What it asked for.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// Its result breaks the contract.
    #[error("plugin `{plugin}` broke the contract: {message}")]
    BadResult {
        /// The stage's plugin.
        plugin: String,
        /// How.
        message: String,
    },
    /// Its result is larger than it may be, as that of a plugin in order is where what it was asked about makes it so.
    #[error("plugin `{plugin}` passed more than output_bytes = {limit} bytes to the host at once")]
    TooLarge {
        /// The stage's plugin.
        plugin: String,
        /// The limit.
        limit: usize,
    },
    /// All plugins together are at a limit of the sandbox, and no idle instance is left to drop.
    #[error("plugin `{plugin}` cannot run: all plugins together use the sandbox's {limit} {what} ({key})")]
    Full {
        /// The stage's plugin.
        plugin: String,
        /// `"instances"` or `"bytes of memory"`.
        what: &'static str,
        /// The key of the config that says how many.
        key: &'static str,
        /// The limit.
        limit: usize,
    },
    /// All instances are busy for too long.
    #[error("plugin `{plugin}` is busy: all {instances} instances of the tenant are in use (limits.instances)")]
    Busy {
        /// The stage's plugin.
        plugin: String,
        /// The limit.
        instances: usize,
    },
    /// A new instance was not configured within the call's time. That is finished in the background.
    #[error(
        "plugin `{plugin}` is still being configured, longer than a call may take (limits.wall_ms); once that is done, \
         calls are served"
    )]
    Configuring {
        /// The stage's plugin.
        plugin: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_meets_a_limit_reads_the_key_that_raises_it() {
        let (plugin, limit) = ("p".to_owned(), Duration::from_millis(50));
        let full = |what, key| CallError::Full { plugin: "p".into(), what, key, limit: 7 };
        for (error, key) in [
            (CallError::Deadline { plugin: plugin.clone(), clock: "cpu", limit }, "50ms of cpu time (limits.cpu_ms)"),
            (
                CallError::Deadline { plugin: plugin.clone(), clock: "wall", limit },
                "50ms of wall time (limits.wall_ms)",
            ),
            (CallError::Start { plugin: plugin.clone(), clock: "cpu", limit }, "no setting changes"),
            (CallError::Memory { plugin: plugin.clone(), asked: 9, limit: 8 }, "limit is 8 (limits.memory_mib)"),
            (CallError::TooLarge { plugin: plugin.clone(), limit: 8 }, "output_bytes = 8"),
            (CallError::Busy { plugin, instances: 3 }, "all 3 instances of the tenant are in use (limits.instances)"),
            (CallError::Configuring { plugin: "p".into() }, "longer than a call may take (limits.wall_ms)"),
            (full("instances", "plugins.waiting_instances"), "7 instances (plugins.waiting_instances)"),
        ] {
            let said = error.to_string();
            assert!(said.contains(key), "{key} is not in {said}");
        }
    }

    #[test]
    fn a_kind_is_read_by_the_name_that_it_is_shown_by() {
        for kind in StageKind::ALL {
            assert_eq!(serde_json::from_value::<StageKind>(kind.as_str().into()).unwrap(), kind);
        }
    }
}
