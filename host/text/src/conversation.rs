//! A conversation as chat templates expect it: the names and shapes of transformers' `apply_chat_template`.
//!
//! Invariant: every text that a caller wrote goes through the [`Veil`]; roles and field names are the host's.
//!
//! - `content` is a text, never a list of parts; what a text model cannot read is refused by name.
//! - `tools` are OpenAI function objects, or none.
//! - Past tool calls have `function.arguments` as an object (transformers' rule), or as JSON text where the
//!   template fails on objects or prints them as Python would ([`ArgumentsForm`]).
//! - Their ids, and those of their outcomes, are what callers sent, or nine letters where the template takes no other
//!   ([`CallIds`]).
//! - A message has all calls of a turn, or one each where the template takes no more ([`CallsForm`]).
//! - `reasoning_content` holds past reasoning; the template decides whether the model sees it again.
//! - `developer` becomes `system` unless the template knows that role.
//!
//! Read next: `conversation/steps.rs` (which messages there are), `chat.rs`, which renders them.

mod steps;

use crate::call_ids::{CallIdForm, CallIds};
use crate::dialect::{Dialect, ToolFormat};
use crate::error::TextError;
use crate::veil::Veil;
use serde_json::{Map, Value, json};
use steps::{Step, one_call_each, steps};
use tidegate_types::{BETWEEN_PARTS, Message, Part, Role, ToolCall, ToolDef, ToolOutcome};

/// How a template wants the arguments of past tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsForm {
    /// As a JSON object.
    Object,
    /// As JSON text.
    Text,
}

/// How a template wants several calls of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallsForm {
    /// In one message, their outcomes behind it.
    Together,
    /// In a message each, with its outcome behind it (Llama 3).
    OneEach,
}

/// What is known of a template and its model.
#[derive(Clone, Debug)]
pub(crate) struct Conventions {
    /// The template names the role `developer`.
    pub knows_developer: bool,
    /// The template reads `reasoning_content`.
    pub reads_reasoning: bool,
    /// The template itself cuts reasoning out of an assistant's content.
    pub cuts_reasoning: bool,
    /// See [`ArgumentsForm`].
    pub arguments: ArgumentsForm,
    /// The ids that the template takes.
    pub call_ids: CallIdForm,
    /// See [`CallsForm`].
    pub calls: CallsForm,
}

impl Conventions {
    /// What the template's text shows.
    pub fn of(template: &str, dialect: &Dialect) -> Self {
        let close = dialect.reasoning.as_ref().map(|tags| tags.close.as_str());
        let cuts = |quote: &str| close.is_some_and(|close| template.contains(&format!("split({quote}{close}{quote})")));
        Self {
            knows_developer: template.contains("developer"),
            reads_reasoning: template.contains("reasoning_content"),
            cuts_reasoning: cuts("'") || cuts("\""),
            arguments: ArgumentsForm::Object,
            call_ids: CallIdForm::Any,
            calls: CallsForm::Together,
        }
    }

    /// The ids that model and template want: a template of Mistral that takes any was trained on short ones all the same.
    pub fn call_ids(&self, dialect: &Dialect) -> CallIdForm {
        if dialect.tools == ToolFormat::Mistral { CallIdForm::Short } else { self.call_ids }
    }
}

/// Lays out messages and tools.
pub(crate) struct Layout<'a, 'v> {
    pub conventions: &'a Conventions,
    pub dialect: &'a Dialect,
    pub veil: &'a mut Veil<'v>,
}

impl Layout<'_, '_> {
    /// The template's `messages`.
    pub fn messages(&mut self, messages: &[Message]) -> Result<Value, TextError> {
        let mut ids = CallIds::new(self.conventions.call_ids(self.dialect));
        let steps = match self.conventions.calls {
            CallsForm::Together => steps(messages),
            CallsForm::OneEach => one_call_each(steps(messages)),
        };
        let lay_out = |step| match step {
            Step::Said { message, parts } => self.message(message, &parts, &mut ids),
            Step::Outcome { outcome, name } => self.outcome(outcome, name, &mut ids),
        };
        steps.into_iter().map(lay_out).collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    /// The template's `tools`; none rather than an empty list.
    pub fn tools(&mut self, tools: &[ToolDef]) -> Result<Value, TextError> {
        if tools.is_empty() {
            return Ok(Value::Null);
        }
        tools.iter().map(|tool| self.tool(tool)).collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    fn tool(&mut self, tool: &ToolDef) -> Result<Value, TextError> {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.veil.text(&tool.name)?.into());
        if !tool.description.is_empty() {
            function.insert("description".to_owned(), self.veil.text(&tool.description)?.into());
        }
        if !tool.input_schema.is_null() {
            let schema = self.veil.json(&tool.input_schema, "a tool's parameters")?;
            function.insert("parameters".to_owned(), schema);
        }
        Ok(json!({"type": "function", "function": function}))
    }

    fn message<'m>(
        &mut self,
        message: &Message,
        parts: &[&'m Part],
        ids: &mut CallIds<'m>,
    ) -> Result<Value, TextError> {
        let (mut content, mut reasoning) = (Written::default(), Written::default());
        let mut calls = Vec::new();
        for &part in parts {
            match part {
                Part::Text(text) => content.go_on(text),
                Part::Refusal(text) => content.add(text),
                Part::Reasoning(text) => reasoning.add(text),
                Part::ToolCall(call) => calls.push(self.call(call, ids)?),
                Part::ToolOutcome(_) => {}
                Part::Opaque { kind, .. } => {
                    return Err(TextError::UnsupportedPart { message: message.id.clone(), kind: kind.clone() });
                }
            }
        }
        let (mut content, mut reasoning) = (content.text, reasoning.text);
        if message.role == Role::Assistant && reasoning.is_empty() {
            (reasoning, content) = self.split_reasoning(content);
        }
        let mut out = Map::new();
        out.insert("role".to_owned(), self.role(&message.role).into());
        out.insert("content".to_owned(), self.veil.text(&content)?.into());
        if !reasoning.is_empty() {
            out.insert("reasoning_content".to_owned(), self.veil.text(&reasoning)?.into());
        }
        if !calls.is_empty() {
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        if let Some(name) = &message.name {
            out.insert("name".to_owned(), self.veil.text(name)?.into());
        }
        Ok(Value::Object(out))
    }

    fn outcome<'m>(
        &mut self,
        outcome: &'m ToolOutcome,
        name: Option<&str>,
        ids: &mut CallIds<'m>,
    ) -> Result<Value, TextError> {
        let mut out = Map::new();
        out.insert("role".to_owned(), Role::Tool.as_str().into());
        out.insert("content".to_owned(), self.veil.text(&outcome.content)?.into());
        out.insert("tool_call_id".to_owned(), ids.veiled(&outcome.call_id, self.veil)?.into());
        if let Some(name) = name {
            out.insert("name".to_owned(), self.veil.text(name)?.into());
        }
        Ok(Value::Object(out))
    }

    fn call<'m>(&mut self, call: &'m ToolCall, ids: &mut CallIds<'m>) -> Result<Value, TextError> {
        let object = match self.conventions.arguments {
            ArgumentsForm::Object => serde_json::from_str::<Map<String, Value>>(&call.arguments).ok(),
            ArgumentsForm::Text => None,
        };
        let arguments = match object {
            Some(object) => self.veil.json(&Value::Object(object), "a tool call's arguments")?,
            None => self.veil.text(&call.arguments)?.into(),
        };
        let name = self.veil.text(&call.name)?;
        let id = ids.veiled(&call.id, self.veil)?;
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    }

    /// Callers may send reasoning back inside the content. Templates that know of it look for the closing
    /// tag, which the veil would hide from them, so the cut is made here, by their own rule.
    fn split_reasoning(&self, content: String) -> (String, String) {
        let Some(tags) = self.dialect.reasoning.as_ref().filter(|_| self.conventions.cuts_reasoning) else {
            return (String::new(), content);
        };
        let (Some((before, _)), Some((_, after))) = (content.split_once(&tags.close), content.rsplit_once(&tags.close))
        else {
            return (String::new(), content);
        };
        if !self.conventions.reads_reasoning {
            return (String::new(), after.to_owned());
        }
        let reasoning = before.rsplit_once(&tags.open).map_or(before, |(_, inside)| inside);
        (reasoning.trim_matches('\n').to_owned(), after.trim_start_matches('\n').to_owned())
    }

    fn role(&self, role: &Role) -> &'static str {
        match role {
            Role::Developer if !self.conventions.knows_developer => Role::System.as_str(),
            role => role.as_str(),
        }
    }
}

/// A text of several parts. What guards judged as one text is read as one, and what they judged apart stands apart.
#[derive(Default)]
struct Written {
    text: String,
    /// The last part that said something is one that stands alone.
    is_alone: bool,
}

impl Written {
    /// Adds a part that goes on from those of its kind before it.
    fn go_on(&mut self, text: &str) {
        if self.is_alone && !text.is_empty() {
            self.text.push_str(BETWEEN_PARTS);
        }
        self.push(text, false);
    }

    /// Adds a part that stands alone.
    fn add(&mut self, text: &str) {
        if !self.text.is_empty() && !text.is_empty() {
            self.text.push_str(BETWEEN_PARTS);
        }
        self.push(text, true);
    }

    fn push(&mut self, text: &str, is_alone: bool) {
        self.text.push_str(text);
        self.is_alone = if text.is_empty() { self.is_alone } else { is_alone };
    }
}
