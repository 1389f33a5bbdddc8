//! Decides on a prompt before generation, or on text from outside before the model sees it.

use crate::plugin::{Error, Plugin};
use crate::types::{Attrs, Context, Finding, Message, Part, Refusal, Role, Span, ToolDef};

/// A guard on prompts.
pub trait PromptGuard: Plugin {
    /// Called once per request, or prompt of one that has several, and once for each retrieved passage, memory, tool result and
    /// summary of what was said before, which come alone: as the one message of a prompt without tools and parameters.
    ///
    /// # Errors
    /// When the guard cannot decide; the stage's `on_error` then does.
    fn inspect_prompt(&self, ctx: &Context, prompt: &Prompt) -> Result<Verdict, Error>;
}

/// A guard's first look at a prompt, which costs a server less than a call: named beside the guard,
/// `export!(MyPlugin: PromptGuard, PromptGlance)`. `testing::assert_prompt_glances_tell` compares both.
pub trait PromptGlance: PromptGuard {
    /// Whether there is nothing to say of a prompt whose messages have these roles and texts, and no parts but those: whoever asks, and
    /// whatever else the prompt has (names, attributes, tools, parameters), [`PromptGuard::inspect_prompt`] says [`Verdict::allow`].
    /// `false` where it says more, or where that cannot be told: then it is asked. Neither logs or counts anything for such a prompt.
    fn glance_prompt(&self, messages: &[(Role, String)]) -> bool;
}

/// A prompt to decide on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// Messages in order.
    pub messages: Vec<Message>,
    /// Tools on offer.
    pub tools: Vec<ToolDef>,
    /// Sampling parameters: name and JSON.
    pub params: Attrs,
    /// Always false: a prompt is handed over whole, or the call fails.
    pub truncated: bool,
}

/// What a guard decided, and what it saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The decision.
    pub action: Action,
    /// What it saw; findings with [`Action::Allow`] flag the request.
    pub findings: Vec<Finding>,
    /// Under the plugin's own name (`name/...`, JSON) for its own memory of the same request; others are read by nobody.
    pub attrs: Attrs,
}

/// A guard's decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Goes on.
    Allow,
    /// Goes on changed.
    Rewrite(Vec<Edit>),
    /// The guard answers in the model's place.
    Respond(Vec<Part>),
    /// Ends here.
    Refuse(Refusal),
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
        /// Which bytes.
        span: Span,
        /// The new text.
        text: String,
    },
    /// Puts a message behind another one, or first.
    PutMessage {
        /// Behind which.
        after: Option<String>,
        /// The message.
        message: Message,
    },
    /// Removes a message; one is left.
    DropMessage(String),
    /// Replaces a tool call's arguments: call id, JSON.
    SetArguments(String, String),
    /// Sets a sampling parameter: name, JSON. This host lets no plugin do that: it takes the verdict for a failure.
    SetParam(String, String),
}

impl Verdict {
    /// Goes on.
    pub fn allow() -> Self {
        Self::of(Action::Allow)
    }

    /// Goes on changed; without edits it is [`Verdict::allow`].
    pub fn rewrite(edits: Vec<Edit>) -> Self {
        Self::of(if edits.is_empty() { Action::Allow } else { Action::Rewrite(edits) })
    }

    /// The guard answers in the model's place.
    pub fn respond(text: impl Into<String>) -> Self {
        Self::of(Action::Respond(vec![Part::Text(text.into())]))
    }

    /// Ends here.
    pub fn refuse(refusal: Refusal) -> Self {
        Self::of(Action::Refuse(refusal))
    }

    /// Adds what was seen.
    pub fn with(mut self, findings: Vec<Finding>) -> Self {
        self.findings = findings;
        self
    }

    fn of(action: Action) -> Self {
        Self { action, findings: Vec::new(), attrs: Vec::new() }
    }
}
