//! A conversation to token ids: lay out, veil, render, encode.
//!
//! Read next: `conversation.rs` (lay out), `chat/probes.rs` (what a template takes), `veil.rs`, `template.rs` (render),
//! `encoder.rs`.

mod probes;

use crate::call_ids::CallIdForm;
use crate::conversation::{Conventions, Layout};
use crate::dialect::Dialect;
use crate::error::TextError;
use crate::files::TemplateSource;
use crate::model::TextModel;
use crate::template::{ChatTemplate, Room};
use crate::veil::Veil;
use crate::within::Within;
use serde_json::{Map, Value};
use std::path::Path;
use std::time::SystemTime;
use tidegate_types::{Message, Role, ToolDef};

/// Names that a caller's template arguments may not have.
const RESERVED: [&str; 7] =
    ["messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception", "chat_template"];

/// How to render a conversation.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Ask for an answer: the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// More variables for the template, from the caller, such as `enable_thinking`.
    pub template_args: Map<String, Value>,
    /// The time that templates may print.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    /// An answer, asked for now.
    fn default() -> Self {
        Self { add_generation_prompt: true, template_args: Map::new(), now: SystemTime::now() }
    }
}

/// A template, and what is known of it.
pub(crate) struct ChatRenderer {
    template: ChatTemplate,
    conventions: Conventions,
    named_tokens: Map<String, Value>,
}

impl ChatRenderer {
    pub fn new(
        default: TemplateSource,
        tool_use: Option<TemplateSource>,
        named_tokens: Map<String, Value>,
        dialect: &Dialect,
    ) -> Result<Self, TextError> {
        let template = ChatTemplate::compile(default, tool_use)?;
        let conventions = Conventions::of(&template.source(), dialect);
        let mut renderer = Self { template, conventions, named_tokens };
        renderer.probe_all();
        Ok(renderer)
    }

    /// The rendered conversation, callers' marks veiled.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        options: &ChatOptions,
        dialect: &Dialect,
        veil: &mut Veil<'_>,
        room: &Room<'_>,
    ) -> Result<String, TextError> {
        let mut context = self.named_tokens.clone();
        for (name, value) in &options.template_args {
            if RESERVED.contains(&name.as_str()) || context.contains_key(name) {
                return Err(TextError::ReservedArgument(name.clone()));
            }
            context.insert(name.clone(), veil.json(value, "a template argument")?);
        }
        let mut layout = Layout { conventions: &self.conventions, dialect, veil };
        context.insert("messages".to_owned(), layout.messages(messages)?);
        context.insert("tools".to_owned(), layout.tools(tools)?);
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        let rendered = self.template.render(&Value::Object(context), !tools.is_empty(), options.now, room);
        rendered.map_err(|error| unveil(error, veil))
    }

    /// Where its template is from.
    fn path(&self) -> &Path {
        self.template.path()
    }

    /// The ids that this template takes of calls in this dialect.
    pub fn call_id_form(&self, dialect: &Dialect) -> CallIdForm {
        self.conventions.call_ids(dialect)
    }
}

/// A template's refusal may quote the caller; the quote is given back as it was written.
fn unveil(error: TextError, veil: &Veil<'_>) -> TextError {
    let original = |message: String| message.chars().map(|c| veil.original(c)).collect();
    match error {
        TextError::Template(message) => TextError::Template(original(message)),
        TextError::TemplateFailed(message) => TextError::TemplateFailed(original(message)),
        other => other,
    }
}

impl TextModel {
    /// The prompts of the plainest conversations. A template that fails on all of them is broken: it would fail on every
    /// one, as if its caller had sent a wrong one. Refusing one in its own words (`raise_exception`) is its right.
    pub fn plainest_prompts(&self) -> Result<Vec<Vec<u32>>, TextError> {
        let Ok(renderer) = self.renderer() else { return Ok(Vec::new()) };
        let messages = [Message::text("m0", Role::System, "a"), Message::text("m1", Role::User, "a")];
        let mut prompts = Vec::new();
        let mut failed = None;
        for conversation in [&messages[1..], &messages] {
            match self.encode_chat(conversation, &[], &ChatOptions::default()) {
                Ok(prompt) => prompts.push(prompt),
                Err(TextError::Template(_)) => return Ok(prompts),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if prompts.is_empty() => {
                let cause = format!("it cannot render a conversation of one short message: {error}");
                Err(TextError::Malformed { path: renderer.path().to_owned(), cause })
            }
            _ => Ok(prompts),
        }
    }

    /// The prompt for an answer to this conversation.
    ///
    /// Marks that callers wrote (in messages, tool definitions, tool results, template arguments) are plain text;
    /// the control tokens of the prompt are those that the template wrote.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, TextError> {
        self.encode_chat_within(messages, tools, options, &Within::ALL)
    }

    /// As [`Self::encode_chat`], for a conversation that may be far too long.
    pub fn encode_chat_within(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        options: &ChatOptions,
        within: &Within<'_>,
    ) -> Result<Vec<u32>, TextError> {
        within.check_gone()?;
        let mut veil = Veil::new(self.encoder().controls());
        let room = Room { within, measure: self.measure() };
        let rendered = self.renderer()?.render(messages, tools, options, self.dialect(), &mut veil, &room)?;
        self.encode_veiled(&rendered, &mut veil, within)
    }

    /// The prompt as text, for people to read: encoding it again would make callers' marks real.
    pub fn render_chat(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        options: &ChatOptions,
    ) -> Result<String, TextError> {
        let mut veil = Veil::new(self.encoder().controls());
        let rendered = self.renderer()?.render(messages, tools, options, self.dialect(), &mut veil, &Room::ALL)?;
        Ok(rendered.chars().map(|c| veil.original(c)).collect())
    }
}
