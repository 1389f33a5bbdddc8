//! The body of `POST /v1/responses`.

use crate::conversations::labels;
use crate::field::{boolean, list, missing, not_one_of, object, refuse, short_string, small_integer, string};
use crate::field::{unsupported, wrong_type};
use crate::items::{joined, read_list};
use crate::json::{Node, parse};
use crate::path::Path;
use crate::request::common::Common;
use crate::request::{extra, tools};
use serde_json::{Map, Value, json};
use tidegate_types::{Chat, Form, Message, Part, Reject, Role, ToolChoice, ToolDef, ToolHints};

const MAX_ID_BYTES: usize = 128;
const MAX_TOOLS: usize = 128;
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
    /// The input, one message for each item.
    pub input: Vec<Message>,
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
    /// What the response repeats of the request.
    pub echo: Map<String, Value>,
}

#[derive(Default)]
struct Draft {
    common: Common,
    input: Option<Vec<Message>>,
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
    text: Option<Value>,
    reasoning: Option<Value>,
    demands: Vec<String>,
}

/// Reads the body of `POST /v1/responses`.
pub fn parse_response(body: &[u8]) -> Result<ResponseRequest, Reject> {
    let root = Path::ROOT;
    let mut draft = Draft::default();
    let whole = |_| refuse(&root, "invalid_type", |_| "the request body must be a JSON object".into());
    for (key, node) in object(parse(body)?, &root).map_err(whole)? {
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
            "previous_response_id" => self.previous = Some(short_string(node, at, MAX_ID_BYTES)?),
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
            "include" => read_include(node, at)?,
            "messages" => return Err(unsupported(at, "send `input`, or use /v1/chat/completions")),
            "max_tokens" | "max_completion_tokens" => return Err(unsupported(at, "send `max_output_tokens`")),
            "n" | "prompt" | "max_tool_calls" | "context_management" => {
                return Err(unsupported(at, "this server does not have it; leave it out"));
            }
            _ => {
                if let Some(node) = self.common.take(key, node, at)? {
                    extra::take(&mut self.common.extra, key, node, at)?;
                }
            }
        }
        Ok(())
    }

    /// `format` travels as chat's `response_format`.
    fn read_text(&mut self, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        for (key, node) in object(node.clone(), at)? {
            let at = at.key(&key);
            match key.as_ref() {
                _ if matches!(node, Node::Null) => {}
                "format" => self.read_format(node, &at)?,
                "verbosity" => extra::take(&mut self.common.extra, "verbosity", node, &at)?,
                _ => return Err(unsupported(&at, "`text` has `format` and `verbosity`")),
            }
        }
        self.text = Some(node.into_value());
        Ok(())
    }

    fn read_format(&mut self, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        let mut format = match object(node, at)? {
            entries if entries.is_empty() => return Err(missing(&at.key("type"), "text, json_object or json_schema")),
            entries => Node::Map(entries).into_value(),
        };
        let kind = format["type"].as_str().unwrap_or_default().to_owned();
        let whole = match kind.as_str() {
            "text" => return Ok(()),
            "json_object" => json!({"type": "json_object"}),
            "json_schema" => {
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

    /// `effort` travels as chat's `reasoning_effort`.
    fn read_reasoning(&mut self, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        for (key, node) in object(node.clone(), at)? {
            let at = at.key(&key);
            match key.as_ref() {
                _ if matches!(node, Node::Null) => {}
                "effort" => extra::take(&mut self.common.extra, "reasoning_effort", node, &at)?,
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
        let input = input.unwrap_or_default();
        let instructions = self.instructions.take();
        let mut messages: Vec<Message> =
            instructions.iter().map(|text| Message::text("", Role::System, text.as_str())).collect();
        let instructed = !messages.is_empty();
        // With a history, an outcome's call may be there.
        let alone = self.previous.is_none() && self.conversation.is_none();
        messages.extend(if alone { joined(input.clone())? } else { input.clone() });
        number(&mut messages);
        let echo = self.echo(instructions);
        let mut sampling = self.common.sampling.clone();
        sampling.logprobs = self.top_logprobs;
        let rest = Chat {
            form: Form::Chat,
            model: String::new(),
            messages,
            demands: self.demands,
            tools: self.tools,
            tool_choice: self.tool_choice,
            parallel_tool_calls: self.parallel.unwrap_or(true),
            sampling,
            stop: Vec::new(),
            max_tokens: self.max_output_tokens,
            n: 1,
            stream: false,
            extra: Map::new(),
        };
        let chat = self.common.finish(rest, root)?.chat;
        Ok(ResponseRequest {
            chat,
            instructed,
            input,
            store: self.store,
            background: self.background,
            previous: self.previous,
            conversation: self.conversation,
            truncation: self.truncation,
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

/// Names messages by their place.
pub(crate) fn number(messages: &mut [Message]) {
    for (i, message) in messages.iter_mut().enumerate() {
        message.id = format!("m{i}");
    }
}

fn read_input(node: Node<'_>, at: &Path<'_>) -> Result<Vec<Message>, Reject> {
    match node {
        Node::Str(text) => {
            let (role, parts) = (Role::User, vec![Part::Text(text.into_owned())]);
            Ok(vec![Message { id: String::new(), role, name: None, parts, provenance: None }])
        }
        Node::List(items) if items.is_empty() => {
            Err(refuse(at, "empty_array", |param| format!("`{param}` must have at least one item")))
        }
        node @ Node::List(_) => read_list(node, at),
        other => Err(wrong_type(at, "a string or a list of items", &other)),
    }
}

fn read_conversation(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let Node::Map(entries) = node else { return short_string(node, at, MAX_ID_BYTES) };
    let mut id = None;
    for (key, node) in entries {
        match key.as_ref() {
            "id" => id = Some(short_string(node, &at.key("id"), MAX_ID_BYTES)?),
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

/// What could be included is included anyway, or there is none of it here.
fn read_include(node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
    for (i, each) in list(node, at)?.into_iter().enumerate() {
        let at = at.index(i);
        match string(each, &at)?.as_str() {
            "message.output_text.logprobs" | "message.input_image.image_url" | "reasoning.encrypted_content" => {}
            _ => return Err(unsupported(&at, "this server has nothing of the kind to include; leave it out")),
        }
    }
    Ok(())
}

fn read_tools(node: Node<'_>, at: &Path<'_>) -> Result<Vec<ToolDef>, Reject> {
    let items = list(node, at)?;
    if items.len() > MAX_TOOLS {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_TOOLS} tools, not {}", items.len())
        }));
    }
    let read: Vec<ToolDef> =
        items.into_iter().enumerate().map(|(i, item)| read_tool(item, &at.index(i))).collect::<Result<_, _>>()?;
    let again = (1..read.len()).find(|i| read[..*i].iter().any(|known| known.name == read[*i].name));
    match again {
        None => Ok(read),
        Some(i) => Err(refuse(&at.index(i), "invalid_value", |param| {
            format!("`{param}` has the name `{}`, which an earlier tool has too", read[i].name)
        })),
    }
}

/// A function; here its members are the tool's own.
fn read_tool(node: Node<'_>, at: &Path<'_>) -> Result<ToolDef, Reject> {
    let (mut kind, mut name, mut description, mut schema, mut strict) = (None, None, String::new(), None, false);
    for (key, node) in object(node, at)? {
        let at = at.key(&key);
        match key.as_ref() {
            _ if matches!(node, Node::Null) => {}
            "type" => kind = Some(string(node, &at)?),
            "name" => name = Some(tools::read_name(node, &at)?),
            "description" => description = string(node, &at)?,
            "parameters" => schema = Some(tools::read_schema(node, &at)?),
            "strict" => strict = boolean(&node, &at)?,
            // A built-in tool has members of its own: its type is what is wrong.
            _ if kind.as_deref().is_some_and(|kind| kind != "function") => {}
            _ => return Err(unsupported(&at, "a function has type, name, description, parameters and strict")),
        }
    }
    match kind.as_deref() {
        Some("function") => {}
        None => return Err(missing(&at.key("type"), "`function`")),
        Some(other) => return Err(not_one_of(&at.key("type"), "function", other)),
    }
    let name = name.ok_or_else(|| missing(&at.key("name"), "the tool's name"))?;
    let input_schema = schema.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    Ok(ToolDef { name, description, input_schema, strict, hints: ToolHints::default() })
}

fn written_tool(tool: &ToolDef) -> Value {
    json!({"type": "function", "name": tool.name, "description": tool.description,
        "parameters": tool.input_schema, "strict": tool.strict})
}

fn read_choice(node: Node<'_>, at: &Path<'_>) -> Result<ToolChoice, Reject> {
    let Node::Map(entries) = node else { return tools::read_choice(node, at) };
    let (mut kind, mut name) = (None, None);
    for (key, node) in entries {
        let at = at.key(&key);
        match key.as_ref() {
            "type" => kind = Some(string(node, &at)?),
            "name" => name = Some(tools::read_name(node, &at)?),
            _ => return Err(unsupported(&at, "a choice has `type` and `name`")),
        }
    }
    match kind.as_deref() {
        Some("function") => name.map(ToolChoice::Named).ok_or_else(|| missing(&at.key("name"), "the tool's name")),
        _ => Err(not_one_of(&at.key("type"), "function", kind.as_deref().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ResponseRequest, Reject> {
        parse_response(body.to_string().as_bytes())
    }

    #[test]
    fn a_request_becomes_a_chat() {
        let read = read(&json!({"model": "m", "input": "hi", "instructions": "be short", "temperature": 0.7,
            "max_output_tokens": 9, "stream": true, "metadata": {"a": "b"}, "store": false, "seed": 3,
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": false}],
            "tool_choice": {"type": "function", "name": "f"}, "truncation": "auto"}))
        .unwrap();
        let chat = &read.chat;
        let said: Vec<_> = chat.messages.iter().map(|m| (m.id.as_str(), m.role.as_str(), m.joined_text())).collect();
        assert_eq!(said, [("m0", "system", "be short".to_owned()), ("m1", "user", "hi".to_owned())]);
        assert_eq!((chat.max_tokens, chat.stream, chat.sampling.seed), (Some(9), true, Some(3)));
        assert_eq!(chat.tool_choice, ToolChoice::Named("f".into()));
        assert!(read.instructed && read.store == Some(false) && read.truncation == Truncation::Auto);
        assert_eq!((&read.echo["temperature"], &read.echo["tools"][0]["name"]), (&json!(0.7), &json!("f")));
        assert_eq!((&read.echo["metadata"]["a"], &read.echo["truncation"]), (&json!("b"), &json!("auto")));
        assert_eq!(read.input.len(), 1);
    }

    #[test]
    fn wrong_requests_are_refused_by_their_field() {
        let with = |key: &str, value: Value| {
            let mut body = json!({"model": "m", "input": "hi"});
            body[key] = value;
            body
        };
        for (body, param) in [
            (json!({"model": "m"}), "input"),
            (json!({"input": "hi"}), "model"),
            (with("input", json!([])), "input"),
            (with("input", json!(3)), "input"),
            (with("max_tokens", json!(3)), "max_tokens"),
            (with("messages", json!([])), "messages"),
            (with("tools", json!([{"type": "web_search"}])), "tools[0].type"),
            (with("tools", json!([{"type": "function", "function": {}}])), "tools[0].function"),
            (with("truncation", json!("some")), "truncation"),
            (with("include", json!(["file_search_call.results"])), "include[0]"),
            (with("text", json!({"format": {"type": "yaml"}})), "text.format.type"),
            (with("conversation", json!({"name": "x"})), "conversation.name"),
            (
                json!({"model": "m", "input": "x", "previous_response_id": "a", "conversation": "b"}),
                "previous_response_id",
            ),
            (json!({"model": "m", "input": "x", "background": true, "store": false}), "background"),
            (
                json!({"model": "m", "input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}),
                "input",
            ),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn what_changes_the_answer_travels_under_chats_names() {
        let read = read(&json!({"model": "m", "input": "hi", "user": "u", "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}}}))
        .unwrap();
        let format = &read.chat.extra["response_format"];
        assert_eq!(format["json_schema"], json!({"name": "n", "schema": {"type": "object"}, "strict": true}));
        let mut demands = read.chat.demands.clone();
        demands.sort();
        assert_eq!(demands, ["reasoning_effort", "response_format"]);
    }
}
