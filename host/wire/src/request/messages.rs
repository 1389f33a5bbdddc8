//! The conversation. A message's fields depend on its role; a field that a role does not have is refused rather
//! than dropped, except `annotations` and `citations`, which only ever come back from an answer that the caller repeats, and
//! `parsed`, which a client has put to it.

use crate::called;
use crate::field::{list, missing, not_one_of, object, refuse, short_string, string, unsupported, wrong_type};
use crate::items::{MAX_ITEMS, unanswered};
use crate::json::{Entries, Node};
use crate::path::Path;
use crate::request::alike;
use crate::request::tools::read_calls;
use std::borrow::Cow;
use tidegate_types::{Message, Part, Reject, Role, ToolOutcome};

const MAX_NAME_BYTES: usize = 64;

/// Parts that are not text: OpenAI's, and the two that vLLM and SGLang add.
const OPAQUE: &[&str] = &["image_url", "input_audio", "file", "video_url", "audio_url"];

pub(super) fn read(node: Node<'_>, at: &Path<'_>) -> Result<Vec<Message>, Reject> {
    let items = list(node, at)?;
    if items.is_empty() {
        return Err(refuse(at, "empty_array", |param| format!("`{param}` must have at least one message")));
    }
    if items.len() > MAX_ITEMS {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_ITEMS} messages, not {}", items.len())
        }));
    }
    let messages: Vec<Message> =
        items.into_iter().enumerate().map(|(i, item)| read_message(i, item, &at.index(i))).collect::<Result<_, _>>()?;
    outcomes_have_calls(&messages, at)?;
    Ok(messages)
}

/// A tool's result stands behind the assistant's message that called it: models are trained on nothing else.
fn outcomes_have_calls(messages: &[Message], at: &Path<'_>) -> Result<(), Reject> {
    let Some((i, _)) = unanswered(messages) else { return Ok(()) };
    Err(refuse(&at.index(i).key("tool_call_id"), "invalid_value", |param| {
        format!("`{param}` must be the id of a call in `tool_calls` of the assistant's message before it")
    }))
}

/// The fields of one message that are present.
#[derive(Default)]
struct Fields<'a> {
    role: Option<Node<'a>>,
    content: Option<Node<'a>>,
    name: Option<Node<'a>>,
    refusal: Option<Node<'a>>,
    reasoning: Option<Node<'a>>,
    tool_calls: Option<Node<'a>>,
    tool_call_id: Option<Node<'a>>,
}

impl<'a> Fields<'a> {
    fn split(entries: Entries<'a>, at: &Path<'_>) -> Result<Self, Reject> {
        let mut fields = Self::default();
        for (key, node) in entries {
            let at = at.key(&key);
            match key.as_ref() {
                _ if matches!(node, Node::Null) => {}
                "role" => fields.role = Some(node),
                "content" => fields.content = Some(node),
                _ if is_nothing(&node) => {}
                "name" => fields.name = Some(node),
                "refusal" => fields.refusal = Some(node),
                "reasoning_content" | "reasoning" => fields.reasoning = Some(node),
                "tool_calls" => fields.tool_calls = Some(node),
                "tool_call_id" => fields.tool_call_id = Some(node),
                // What OpenAI's clients read in an answer, `parsed` by their `parse()`, is said by its text.
                "annotations" | "citations" | "parsed" => {}
                "function_call" => return Err(unsupported(&at, "it is deprecated; send `tool_calls`")),
                _ => return Err(unsupported(&at, "no message has such a field; leave it out")),
            }
        }
        Ok(fields)
    }

    /// Refuses what only other roles have.
    fn refuse_rest(&self, at: &Path<'_>, role: &Role) -> Result<(), Reject> {
        let rest = [
            (self.refusal.is_some(), "refusal", "assistant"),
            (self.reasoning.is_some(), "reasoning_content", "assistant"),
            (self.tool_calls.is_some(), "tool_calls", "assistant"),
            (self.tool_call_id.is_some(), "tool_call_id", "tool"),
        ];
        match rest.iter().find(|(present, _, _)| *present) {
            None => Ok(()),
            Some((_, key, owner)) => Err(refuse(&at.key(key), "invalid_value", |param| {
                format!("`{param}` belongs to messages of the role `{owner}`, not `{}`", role.as_str())
            })),
        }
    }
}

/// Clients repeat an answer with all its fields, the empty ones included.
fn is_nothing(node: &Node<'_>) -> bool {
    match node {
        Node::Null => true,
        Node::List(items) => items.is_empty(),
        Node::Map(entries) => entries.is_empty(),
        _ => false,
    }
}

/// Clients that have one class for parts of all kinds send what it has for the others empty.
fn is_blank(node: &Node<'_>) -> bool {
    is_nothing(node) || matches!(node, Node::Str(text) if text.is_empty())
}

fn read_message(index: usize, node: Node<'_>, at: &Path<'_>) -> Result<Message, Reject> {
    let mut fields = Fields::split(object(node, at)?, at)?;
    let role = read_role(fields.role.take(), &at.key("role"))?;
    let name = fields.name.take().map(|node| read_name(node, &at.key("name"), &role)).transpose()?;
    let parts = match role {
        Role::Assistant => read_assistant(&mut fields, at)?,
        Role::Tool => vec![read_outcome(&mut fields, at)?],
        _ => read_content(fields.content.take(), &at.key("content"), &role)?,
    };
    fields.refuse_rest(at, &role)?;
    let mut message = Message { id: message_id(index), role, name, parts, provenance: None };
    message.join_neighbours();
    Ok(message)
}

/// `m0`, `m1`, ...; the first few without formatting.
fn message_id(index: usize) -> String {
    const FIRST: [&str; 8] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];
    FIRST.get(index).map_or_else(|| format!("m{index}"), |id| (*id).to_owned())
}

fn read_role(node: Option<Node<'_>>, at: &Path<'_>) -> Result<Role, Reject> {
    const ALLOWED: &str = "system, developer, user, assistant, tool";
    let node = node.ok_or_else(|| missing(at, ALLOWED))?;
    let Node::Str(role) = &node else { return Err(wrong_type(at, "a string", &node)) };
    match role.as_ref() {
        "system" => Ok(Role::System),
        "developer" => Ok(Role::Developer),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" => Ok(Role::Tool),
        "function" => Err(unsupported(at, "the role `function` is deprecated; use `tool` with `tool_call_id`")),
        other => Err(not_one_of(at, ALLOWED, other)),
    }
}

/// OpenAI's rule; it also keeps a name from closing a template's tag. A tool has the name that it was called by.
fn read_name(node: Node<'_>, at: &Path<'_>, role: &Role) -> Result<String, Reject> {
    if *role == Role::Tool {
        return called::name(node, at);
    }
    let name = short_string(node, at, MAX_NAME_BYTES)?;
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '<' | '|' | '\\' | '/' | '>');
    if name.contains(forbidden) {
        return Err(refuse(at, "invalid_value", |param| {
            format!("`{param}` must not contain white space or any of < | \\ / >")
        }));
    }
    Ok(name)
}

fn read_assistant(fields: &mut Fields<'_>, at: &Path<'_>) -> Result<Vec<Part>, Reject> {
    let mut parts = Vec::new();
    if let Some(node) = fields.reasoning.take() {
        parts.push(Part::Reasoning(string(node, &at.key("reasoning_content"))?));
    }
    let content = fields.content.take();
    if content.is_some() || (fields.tool_calls.is_none() && fields.refusal.is_none()) {
        parts.append(&mut read_content(content, &at.key("content"), &Role::Assistant)?);
    }
    if let Some(node) = fields.refusal.take() {
        parts.push(Part::Refusal(string(node, &at.key("refusal"))?));
    }
    if let Some(node) = fields.tool_calls.take() {
        parts.extend(read_calls(node, &at.key("tool_calls"))?.into_iter().map(Part::ToolCall));
    }
    Ok(parts)
}

fn read_outcome(fields: &mut Fields<'_>, at: &Path<'_>) -> Result<Part, Reject> {
    let id_at = at.key("tool_call_id");
    let id = fields.tool_call_id.take().ok_or_else(|| missing(&id_at, "the id of the call that this answers"))?;
    let call_id = called::id(id, &id_at)?;
    let parts = read_content(fields.content.take(), &at.key("content"), &Role::Tool)?;
    let text = |part| if let Part::Text(text) = part { text } else { String::new() };
    let content = parts.into_iter().map(text).collect();
    Ok(Part::ToolOutcome(ToolOutcome { call_id, content, structured: None, is_error: false }))
}

fn read_content(node: Option<Node<'_>>, at: &Path<'_>, role: &Role) -> Result<Vec<Part>, Reject> {
    let items = match node {
        Some(Node::Str(text)) => return Ok(vec![Part::Text(text.into_owned())]),
        Some(Node::List(items)) => items,
        None => return Err(missing(at, "a string or a list of parts")),
        Some(other) => return Err(wrong_type(at, "a string or a list of parts", &other)),
    };
    if items.is_empty() {
        return Err(refuse(at, "empty_array", |param| format!("`{param}` must have at least one part")));
    }
    items.into_iter().enumerate().map(|(i, item)| read_part(item, &at.index(i), role)).collect()
}

fn read_part(node: Node<'_>, at: &Path<'_>, role: &Role) -> Result<Part, Reject> {
    let entries = object(node, at)?;
    let kind = match entries.iter().find(|(key, _)| key == "type") {
        Some((_, Node::Str(kind))) => kind.clone(),
        Some((_, other)) => return Err(wrong_type(&at.key("type"), "a string", other)),
        None => return Err(missing(&at.key("type"), "the kind of the part, such as `text`")),
    };
    match (kind.as_ref(), role) {
        ("text", _) => Ok(Part::Text(only_member(entries, "text", at)?)),
        ("refusal", Role::Assistant) => Ok(Part::Refusal(only_member(entries, "refusal", at)?)),
        (kind, Role::User) if OPAQUE.contains(&kind) => read_opaque(kind.to_owned(), entries, at),
        (kind, role) => Err(not_one_of(&at.key("type"), allowed_parts(role), kind)),
    }
}

fn allowed_parts(role: &Role) -> &'static str {
    match role {
        Role::User => "text, image_url, input_audio, file, video_url, audio_url",
        Role::Assistant => "text, refusal",
        Role::System | Role::Developer | Role::Tool => "text",
    }
}

/// The string under `member`; anything besides it and `type` is refused, since it would be lost.
fn only_member(entries: Entries<'_>, member: &str, at: &Path<'_>) -> Result<String, Reject> {
    let mut text = None;
    for (key, node) in entries {
        let at = at.key(&key);
        match key.as_ref() {
            "type" => {}
            key if key == member => text = Some(string(node, &at)?),
            _ if is_blank(&node) => {}
            _ => return Err(unsupported(&at, "such a part has no such field; leave it out")),
        }
    }
    text.ok_or_else(|| missing(&at.key(member), "a string"))
}

/// Passed on with all that it has, but for what another server may read as a part of another kind.
fn read_opaque(kind: String, entries: Entries<'_>, at: &Path<'_>) -> Result<Part, Reject> {
    alike::check_members(&entries, at, alike::PART)?;
    let foreign = |(key, node): &&(Cow<'_, str>, Node<'_>)| !is_blank(node) && alike::is_foreign(key, &kind);
    if let Some((key, _)) = entries.iter().find(foreign) {
        return Err(unsupported(&at.key(key), "it belongs to a part of another kind; send it as one"));
    }
    match entries.iter().find(|(key, _)| *key == kind) {
        Some((_, Node::Map(body))) => {
            alike::check_members(body, &at.key(&kind), alike::PART_BODY)?;
            Ok(Part::Opaque { kind, body: Node::Map(entries).into_value() })
        }
        Some((_, other)) => Err(wrong_type(&at.key(&kind), "an object", other)),
        None => Err(missing(&at.key(&kind), "an object")),
    }
}
