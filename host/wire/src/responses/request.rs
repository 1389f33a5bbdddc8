//! The body of `POST /v1/responses`.

mod functions;
mod references;

use crate::conversations::labels;
use crate::field::{boolean, list, missing, name, not_one_of, object, refuse, small_integer, string};
use crate::field::{unsupported, wrong_type};
use crate::items::{Given, joined, read_list};
use crate::json::{Node, parse_with_items};
use crate::path::Path;
use crate::request::ParsedRequest;
use crate::request::alike::{self, RESPONSE};
use crate::request::common::Common;
use crate::request::extra;
use functions::{read_choice, read_tools, written_tool};
pub use references::Reference;
use references::apart;
use serde_json::{Map, Value, json};
use tidegate_types::{Chat, FieldNames, Message, Part, Reject, Role, ToolChoice, ToolDef};

const MAX_ID_BYTES: usize = 128;
const MAX_TOP_LOGPROBS: u32 = 20;

/// What happens to a history that does not fit the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncation {
    /// The request is refused.
    #[default]
    Disabled,
    /// The oldest turns are left out, and the response says how many messages.
    Auto,
}

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseRequest {
    /// What was asked: the instructions and the input, without any history.
    pub chat: Chat,
    /// Whether the first message of `chat` is the instructions.
    pub instructed: bool,
    /// The input, one message for each item; where one is referred to, it has no parts until that is resolved.
    pub input: Vec<Message>,
    /// What the input refers to, which is to be resolved ([`ResponseRequest::resolve`]) before anything is asked.
    pub references: Vec<Reference>,
    /// Whether the response is to be kept; absent where the caller does not say.
    pub store: Option<bool>,
    /// Make it without anybody waiting.
    pub background: bool,
    /// The response that this one goes on from.
    pub previous: Option<String>,
    /// The conversation that this one is part of.
    pub conversation: Option<String>,
    /// What does not fit.
    pub truncation: Truncation,
    /// Whether events of a stream are to be made alike in size; absent where the caller does not say.
    pub include_obfuscation: Option<bool>,
    /// What the response repeats of the request.
    pub echo: Map<String, Value>,
}

#[derive(Default)]
struct Draft {
    common: Common,
    input: Option<Vec<Given>>,
    instructions: Option<String>,
    store: Option<bool>,
    background: bool,
    previous: Option<String>,
    conversation: Option<String>,
    truncation: Truncation,
    metadata: Option<Value>,
    tools: Vec<ToolDef>,
    tool_choice: ToolChoice,
    parallel: Option<bool>,
    max_output_tokens: Option<u32>,
    top_logprobs: Option<u8>,
    include_logprobs: bool,
    text: Option<Value>,
    reasoning: Option<Value>,
    demands: Vec<String>,
    /// Whether `response_format` is given, of which nothing travels on where it asks for plain text.
    formatted: bool,
    /// Fields that travel under chat's names, and where the caller wrote them.
    renamed: Vec<(&'static str, &'static str)>,
}

/// Reads the body of `POST /v1/responses`.
pub fn parse_response(body: &[u8]) -> Result<ResponseRequest, Reject> {
    let root = Path::ROOT;
    let mut draft = Draft::default();
    let whole = |_| refuse(&root, "invalid_type", |_| "the request body must be a JSON object".into());
    for (key, node) in object(parse_with_items(body)?, &root).map_err(whole)? {
        if !matches!(node, Node::Null) {
            draft.take(&key, node, &root.key(&key))?;
        }
    }
    draft.finish(&root)
}

impl Draft {
    fn take(&mut self, key: &str, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        match key {
            "input" => self.input = Some(read_input(node, at)?),
            "instructions" => self.instructions = Some(string(node, at)?),
            "store" => self.store = Some(boolean(&node, at)?),
            "background" => self.background = boolean(&node, at)?,
            "previous_response_id" => self.previous = Some(name(node, at, MAX_ID_BYTES)?),
            "conversation" => self.conversation = Some(read_conversation(node, at)?),
            "truncation" => self.truncation = read_truncation(node, at)?,
            "metadata" => self.metadata = Some(labels(node, at)?),
            "tools" => self.tools = read_tools(node, at)?,
            "tool_choice" => self.tool_choice = read_choice(node, at)?,
            "parallel_tool_calls" => self.parallel = Some(boolean(&node, at)?),
            "max_output_tokens" => self.max_output_tokens = Some(small_integer(&node, at, 1, u32::MAX)?),
            "top_logprobs" => self.top_logprobs = Some(small_integer(&node, at, 0, MAX_TOP_LOGPROBS)? as u8),
            "text" => self.read_text(node, at)?,
            "reasoning" => self.read_reasoning(node, at)?,
            "include" => self.include_logprobs = read_include(node, at)?,
            "messages" => return Err(unsupported(at, "send `input`, or use /v1/chat/completions")),
            "functions" => return Err(unsupported(at, "it is deprecated; send `tools`")),
            "function_call" => return Err(unsupported(at, "it is deprecated; send `tool_choice`")),
            "logprobs" => return Err(unsupported(at, "send `top_logprobs`, or name them in `include`")),
            "max_tokens" | "max_completion_tokens" => return Err(unsupported(at, "send `max_output_tokens`")),
            "n" | "prompt" | "max_tool_calls" | "context_management" => {
                return Err(unsupported(at, "this server does not have it; leave it out"));
            }
            _ => {
                if let Some(node) = self.common.take(key, node, at)? {
                    self.take_extra(key, node, at)?;
                }
            }
        }
        Ok(())
    }

    /// A field of chats whose place is elsewhere here is taken where it is the only one.
    fn take_extra(&mut self, key: &str, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        if let Some((_, path)) = self.renamed.iter().find(|(name, _)| *name == key) {
            return Err(twice(at, path));
        }
        self.formatted |= key == "response_format";
        extra::take(&mut self.common.extra, RESPONSE, key, node, at)
    }

    /// `format` travels as chat's `response_format`.
    fn read_text(&mut self, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        for (key, node) in object(node.clone(), at)? {
            let at = at.key(&key);
            match key.as_ref() {
                _ if matches!(node, Node::Null) => {}
                "format" => self.read_format(node, &at)?,
                "verbosity" => self.rename("verbosity", "text.verbosity", node, &at)?,
                _ => return Err(unsupported(&at, "`text` has `format` and `verbosity`")),
            }
        }
        self.text = Some(node.into_value());
        Ok(())
    }

    fn read_format(&mut self, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        if self.formatted {
            return Err(twice(at, "response_format"));
        }
        self.renamed.push(("response_format", "text.format"));
        let entries = object(node, at)?;
        alike::check_members(&entries, at, alike::FORMAT)?;
        let kind = match entries.iter().find(|(key, _)| key == "type") {
            Some((_, Node::Str(kind))) => kind.clone().into_owned(),
            Some((_, other)) => return Err(wrong_type(&at.key("type"), "a string", other)),
            None => return Err(missing(&at.key("type"), "text, json_object or json_schema")),
        };
        let node = Node::Map(entries);
        let whole = match kind.as_str() {
            "text" => return Ok(()),
            "json_object" => json!({"type": "json_object"}),
            "json_schema" => {
                extra::check_schema(Some(&node), at)?;
                let mut format = node.into_value();
                if let Value::Object(members) = &mut format {
                    members.shift_remove("type");
                }
                json!({"type": "json_schema", "json_schema": format})
            }
            other => return Err(not_one_of(&at.key("type"), "text, json_object, json_schema", other)),
        };
        self.common.extra.insert("response_format".into(), whole);
        Ok(())
    }

    /// Takes what the caller wrote at `path` under chat's `name`.
    fn rename(&mut self, name: &'static str, path: &'static str, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        if self.common.extra.contains_key(name) {
            return Err(twice(at, name));
        }
        self.renamed.push((name, path));
        extra::take(&mut self.common.extra, RESPONSE, name, node, at)
    }

    /// `effort` travels as chat's `reasoning_effort`.
    fn read_reasoning(&mut self, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        for (key, node) in object(node.clone(), at)? {
            let at = at.key(&key);
            match key.as_ref() {
                _ if matches!(node, Node::Null) => {}
                "effort" => self.rename("reasoning_effort", "reasoning.effort", node, &at)?,
                // A wish for an extract of the reasoning, which is given whole here.
                "summary" | "generate_summary" => drop(string(node, &at)?),
                _ => return Err(unsupported(&at, "`reasoning` has `effort` and `summary`")),
            }
        }
        self.reasoning = Some(node.into_value());
        Ok(())
    }

    fn finish(mut self, root: &Path<'_>) -> Result<ResponseRequest, Reject> {
        if self.previous.is_some() && self.conversation.is_some() {
            return Err(refuse(&root.key("previous_response_id"), "invalid_value", |_| {
                "`previous_response_id` and `conversation` exclude each other; send one of them".into()
            }));
        }
        if self.background && self.store == Some(false) {
            return Err(refuse(&root.key("background"), "invalid_value", |_| {
                "a response in the background must be stored, or nobody could read it; send `store`: true".into()
            }));
        }
        let input = self.input.take();
        if input.is_none() && self.previous.is_none() && self.conversation.is_none() {
            return Err(missing(&root.key("input"), "a string or a list of items"));
        }
        let (input, references) = apart(input.unwrap_or_default());
        let instructions = self.instructions.take();
        let mut messages: Vec<Message> =
            instructions.iter().map(|text| Message::text(INSTRUCTIONS, Role::System, text.as_str())).collect();
        let instructed = !messages.is_empty();
        // Before items are joined, so that a refusal can say which one it is of.
        let mut asked = input.clone();
        number(&mut asked);
        // With a history, an outcome's call may be there; and it may be what is referred to.
        let alone = self.previous.is_none() && self.conversation.is_none();
        messages.extend(if alone && references.is_empty() { joined(asked)? } else { asked });
        let echo = self.echo(instructions);
        let mut sampling = self.common.sampling.clone();
        sampling.logprobs = self.top_logprobs.or(self.include_logprobs.then_some(0));
        let rest = Chat {
            demands: self.demands,
            tools: self.tools,
            tool_choice: self.tool_choice,
            parallel_tool_calls: self.parallel,
            sampling,
            max_tokens: self.max_output_tokens,
            fields: FieldNames { messages: "input", max_tokens: "max_output_tokens", tool_name: "name" },
            ..Chat::new("", messages)
        };
        let ParsedRequest { mut chat, include_obfuscation, .. } = self.common.finish(rest, root)?;
        for demand in &mut chat.demands {
            if let Some((_, path)) = self.renamed.iter().find(|(name, _)| demand.as_str() == *name) {
                *demand = (*path).to_owned();
            }
        }
        Ok(ResponseRequest {
            chat,
            instructed,
            input,
            references,
            store: self.store,
            background: self.background,
            previous: self.previous,
            conversation: self.conversation,
            truncation: self.truncation,
            include_obfuscation,
            echo,
        })
    }

    /// The members of a response that say what was asked.
    fn echo(&mut self, instructions: Option<String>) -> Map<String, Value> {
        let tools: Vec<Value> = self.tools.iter().map(written_tool).collect();
        self.demands =
            self.tools.iter().position(|tool| tool.strict).map(|i| format!("tools[{i}].strict")).into_iter().collect();
        let choice = match &self.tool_choice {
            ToolChoice::Auto => json!("auto"),
            ToolChoice::None => json!("none"),
            ToolChoice::Required => json!("required"),
            ToolChoice::Named(name) => json!({"type": "function", "name": name}),
        };
        let truncation = if self.truncation == Truncation::Auto { "auto" } else { "disabled" };
        let sampling = &self.common.sampling;
        let conversation = self.conversation.as_ref().map(|id| json!({"id": id}));
        let echo = json!({
            "background": self.background,
            "conversation": conversation,
            "instructions": instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.take().unwrap_or_else(|| json!({})),
            "parallel_tool_calls": self.parallel.unwrap_or(true),
            "previous_response_id": self.previous,
            "reasoning": self.reasoning.take(),
            "temperature": sampling.temperature.map(rounded),
            "text": self.text.take().unwrap_or_else(|| json!({"format": {"type": "text"}})),
            "tool_choice": choice,
            "tools": tools,
            "top_p": sampling.top_p.map(rounded),
            "truncation": truncation,
        });
        if let Value::Object(echo) = echo { echo } else { Map::new() }
    }
}

/// As the caller wrote it: 0.7 is not 0.699999988079071.
fn rounded(value: f32) -> f64 {
    (f64::from(value) * 1e6).round() / 1e6
}

/// The id of the message that the instructions are: of no item.
const INSTRUCTIONS: &str = "instructions";

/// Names items by their place.
fn number(messages: &mut [Message]) {
    for (i, message) in messages.iter_mut().enumerate() {
        message.id = format!("m{i}");
    }
}

fn read_input(node: Node<'_>, at: &Path<'_>) -> Result<Vec<Given>, Reject> {
    match node {
        Node::Str(text) => {
            let (role, parts) = (Role::User, vec![Part::Text(text.into_owned())]);
            Ok(vec![Given::Whole(Message { id: String::new(), role, name: None, parts, provenance: None })])
        }
        Node::List(items) if items.is_empty() => {
            Err(refuse(at, "empty_array", |param| format!("`{param}` must have at least one item")))
        }
        node @ Node::List(_) => read_list(node, at),
        other => Err(wrong_type(at, "a string or a list of items", &other)),
    }
}

/// Which of the two was meant, nobody knows.
fn twice(at: &Path<'_>, other: &str) -> Reject {
    refuse(at, "invalid_value", |param| format!("`{param}` and `{other}` are one field; send one of them"))
}

fn read_conversation(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let Node::Map(entries) = node else { return name(node, at, MAX_ID_BYTES) };
    let mut id = None;
    for (key, node) in entries {
        match key.as_ref() {
            "id" => id = Some(name(node, &at.key("id"), MAX_ID_BYTES)?),
            _ => return Err(unsupported(&at.key(&key), "a conversation is named by its `id`")),
        }
    }
    id.ok_or_else(|| missing(&at.key("id"), "the conversation's id"))
}

fn read_truncation(node: Node<'_>, at: &Path<'_>) -> Result<Truncation, Reject> {
    match string(node, at)?.as_str() {
        "auto" => Ok(Truncation::Auto),
        "disabled" => Ok(Truncation::Disabled),
        other => Err(not_one_of(at, "auto, disabled", other)),
    }
}

/// Whether log-probabilities are asked for. What else could be included is included anyway, or there is none of it here.
fn read_include(node: Node<'_>, at: &Path<'_>) -> Result<bool, Reject> {
    let mut logprobs = false;
    for (i, each) in list(node, at)?.into_iter().enumerate() {
        let at = at.index(i);
        match string(each, &at)?.as_str() {
            "message.output_text.logprobs" => logprobs = true,
            "message.input_image.image_url" | "reasoning.encrypted_content" => {}
            _ => return Err(unsupported(&at, "this server has nothing of the kind to include; leave it out")),
        }
    }
    Ok(logprobs)
}

#[cfg(test)]
mod tests;
