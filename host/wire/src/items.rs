//! Items: what OpenAI's Responses and Conversations call messages, calls, their outputs and reasoning. Here each is one
//! [`Message`]; several that a model said in one turn are [`joined`] for its template.

mod joined;

pub(crate) use joined::unanswered;
pub use joined::{joined, uncalled, unreturned};

use crate::called;
use crate::field::{list, missing, name, not_one_of, object, refuse, string, unsupported, wrong_type};
use crate::json::{Entries, Node};
use crate::path::Path;
use crate::report;
use serde_json::{Value, json};
use tidegate_types::{Message, Part, Reject, Report, Role, ToolCall, ToolOutcome, Usage};

const MAX_ID_BYTES: usize = 128;
/// More than fit into any context; messages of a chat are bounded alike.
pub(crate) const MAX_ITEMS: usize = 4096;

/// An item as a caller gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Given {
    /// What it says.
    Whole(Message),
    /// The id of one that is kept and says it.
    Reference(String),
}

/// Reads a list of items none of which is a reference.
pub(crate) fn read_whole(node: Node<'_>, at: &Path<'_>) -> Result<Vec<Message>, Reject> {
    let whole = |(i, given)| match given {
        Given::Whole(message) => Ok(message),
        Given::Reference(_) => Err(unsupported(
            &at.index(i),
            "only the `input` of /v1/responses may refer to an item by its id; send the item whole",
        )),
    };
    read_list(node, at)?.into_iter().enumerate().map(whole).collect()
}

/// Reads a list of items.
pub(crate) fn read_list(node: Node<'_>, at: &Path<'_>) -> Result<Vec<Given>, Reject> {
    let items = list(node, at)?;
    if items.len() > MAX_ITEMS {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_ITEMS} items, not {}", items.len())
        }));
    }
    items.into_iter().enumerate().map(|(i, item)| read(item, &at.index(i))).collect()
}

fn read(node: Node<'_>, at: &Path<'_>) -> Result<Given, Reject> {
    const ALLOWED: &str = "message, function_call, function_call_output, reasoning, item_reference";
    let entries = object(node, at)?;
    let kind = match entries.iter().find(|(key, _)| key == "type") {
        None | Some((_, Node::Null)) => if is_id_alone(&entries) { "item_reference" } else { "message" }.into(),
        Some((_, Node::Str(kind))) => kind.clone(),
        Some((_, other)) => return Err(wrong_type(&at.key("type"), "a string", other)),
    };
    match kind.as_ref() {
        "message" => read_message(entries, at),
        "function_call" => read_call(entries, at),
        "function_call_output" => read_outcome(entries, at),
        "reasoning" => read_reasoning(entries, at),
        "item_reference" => return read_reference(entries, at).map(Given::Reference),
        other => Err(not_one_of(&at.key("type"), ALLOWED, other)),
    }
    .map(Given::Whole)
}

/// Whether an item says no more than its id: a message would have a role.
fn is_id_alone(entries: &Entries<'_>) -> bool {
    let mut said = entries.iter().filter(|(_, node)| !matches!(node, Node::Null));
    said.next().is_some_and(|(key, _)| key == "id") && said.next().is_none()
}

fn read_reference(entries: Entries<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let mut id = None;
    for (key, node) in entries {
        let at = at.key(&key);
        match key.as_ref() {
            _ if matches!(node, Node::Null) => {}
            "type" => {}
            "id" => id = Some(name(node, &at, MAX_ID_BYTES)?),
            _ => return Err(unsupported(&at, "a reference has an `id` alone; leave it out, or send the item whole")),
        }
    }
    id.ok_or_else(|| missing(&at.key("id"), "the id of an item that is kept"))
}

/// Gives each member but `type`, and but those of an item that comes back: it gets a new id, and what was known of it is
/// not taken from a caller.
fn members<'a>(
    entries: Entries<'a>,
    at: &Path<'_>,
    mut take: impl FnMut(&str, Node<'a>, &Path<'_>) -> Result<bool, Reject>,
) -> Result<(), Reject> {
    for (key, node) in entries {
        let at = at.key(&key);
        if matches!(node, Node::Null) || is_told(&key, &node) {
            continue;
        }
        if !take(&key, node, &at)? {
            return Err(unsupported(&at, "no such item has such a field; leave it out"));
        }
    }
    Ok(())
}

/// Whether a member says something of an item, and nothing to a model.
fn is_told(key: &str, node: &Node<'_>) -> bool {
    if key == "tool_calls" && has_functions(node) {
        return false;
    }
    matches!(key, "type" | "id" | "status" | "phase") || DETAILS.contains(&key) || report::MEMBERS.contains(&key)
}

/// Whether these are calls as chats have them, which nothing here takes, and not those of a report.
fn has_functions(node: &Node<'_>) -> bool {
    let is_call =
        |call: &Node<'_>| matches!(call, Node::Map(entries) if entries.iter().any(|(key, _)| key == "function"));
    matches!(node, Node::List(calls) if calls.iter().any(is_call))
}

fn read_message(entries: Entries<'_>, at: &Path<'_>) -> Result<Message, Reject> {
    const ROLES: &str = "user, assistant, system, developer";
    let (mut role, mut content) = (None, None);
    members(entries, at, |key, node, at| {
        match key {
            "role" => role = Some(string(node, at)?),
            "content" => content = Some(node),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let at_role = at.key("role");
    let role = match role.ok_or_else(|| missing(&at_role, ROLES))?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        "developer" => Role::Developer,
        other => return Err(not_one_of(&at_role, ROLES, other)),
    };
    let at = at.key("content");
    let content = content.ok_or_else(|| missing(&at, "a string or a list of parts"))?;
    let parts = read_content(content, &at, &role)?;
    Ok(Message { id: String::new(), role, name: None, parts, provenance: None })
}

pub(crate) fn read_content(node: Node<'_>, at: &Path<'_>, role: &Role) -> Result<Vec<Part>, Reject> {
    match node {
        Node::Str(text) => Ok(vec![Part::Text(text.into_owned())]),
        Node::List(items) if items.is_empty() => {
            Err(refuse(at, "empty_array", |param| format!("`{param}` must have at least one part")))
        }
        Node::List(items) => {
            items.into_iter().enumerate().map(|(i, item)| read_part(item, &at.index(i), role)).collect()
        }
        other => Err(wrong_type(at, "a string or a list of parts", &other)),
    }
}

/// The kinds of parts that have a text, a refusal, an image.
const TEXTS: &[&str] = &["input_text", "output_text", "text"];
const REFUSALS: &[&str] = &["refusal"];
const IMAGES: &[&str] = &["input_image"];

/// The kinds that a role has.
fn allowed_parts(role: &Role) -> &'static str {
    match role {
        Role::User => "input_text, output_text, text, input_image",
        Role::Assistant => "input_text, output_text, text, refusal",
        Role::System | Role::Developer => "input_text, output_text, text",
        Role::Tool => "input_text, output_text, text (tools answer in text)",
    }
}

fn read_part(node: Node<'_>, at: &Path<'_>, role: &Role) -> Result<Part, Reject> {
    let (mut kind, mut text, mut refusal, mut url, mut detail) = (None, None, None, None, None);
    for (key, node) in object(node, at)? {
        let at = at.key(&key);
        match key.as_ref() {
            _ if matches!(node, Node::Null) => {}
            "type" => kind = Some(string(node, &at)?),
            "text" => text = Some(string(node, &at)?),
            "refusal" => refusal = Some(string(node, &at)?),
            "image_url" => url = Some(string(node, &at)?),
            "detail" => detail = Some(string(node, &at)?),
            // An answer that comes back has them, of a client's `parse()` the last; they say nothing more to a model.
            "annotations" | "logprobs" | "parsed" => {}
            _ => return Err(unsupported(&at, "such a part has no such field; leave it out")),
        }
    }
    let at_kind = at.key("type");
    let kind = kind.ok_or_else(|| missing(&at_kind, allowed_parts(role)))?;
    let of_kinds = [
        ("text", &text, TEXTS),
        ("refusal", &refusal, REFUSALS),
        ("image_url", &url, IMAGES),
        ("detail", &detail, IMAGES),
    ];
    // What is no kind of a part has no members to be wrong.
    let is_kind = of_kinds.iter().any(|(_, _, kinds)| kinds.contains(&kind.as_str()));
    for (member, said, kinds) in of_kinds.into_iter().filter(|_| is_kind) {
        if said.as_ref().is_some_and(|said| !said.is_empty()) && !kinds.contains(&kind.as_str()) {
            return Err(unsupported(
                &at.key(member),
                "a part of this `type` has no such field; send it as a part of its own",
            ));
        }
    }
    match (kind.as_str(), role) {
        ("input_text" | "output_text" | "text", _) => {
            text.map(Part::Text).ok_or_else(|| missing(&at.key("text"), "a string"))
        }
        ("refusal", Role::Assistant) => {
            refusal.map(Part::Refusal).ok_or_else(|| missing(&at.key("refusal"), "a string"))
        }
        ("input_image", Role::User) => {
            let url = url.ok_or_else(|| missing(&at.key("image_url"), "a URL; files are not kept here"))?;
            let mut image = json!({"url": url});
            if let Some(detail) = detail {
                image["detail"] = detail.into();
            }
            Ok(Part::Opaque { kind: "image_url".into(), body: json!({"type": "image_url", "image_url": image}) })
        }
        (other, role) => Err(not_one_of(&at_kind, allowed_parts(role), other)),
    }
}

fn read_call(entries: Entries<'_>, at: &Path<'_>) -> Result<Message, Reject> {
    let (mut id, mut name, mut arguments) = (None, None, None);
    members(entries, at, |key, node, at| {
        match key {
            "call_id" => id = Some(called::id(node, at)?),
            "name" => name = Some(called::name(node, at)?),
            "arguments" => arguments = Some(string(node, at)?),
            // The same, as a client has read it.
            "parsed_arguments" => {}
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let id = id.ok_or_else(|| missing(&at.key("call_id"), "the call's id"))?;
    let name = name.ok_or_else(|| missing(&at.key("name"), "the tool's name"))?;
    let arguments = arguments.ok_or_else(|| missing(&at.key("arguments"), "JSON as a string"))?;
    Ok(one(Role::Assistant, Part::ToolCall(ToolCall { id, name, arguments })))
}

fn read_outcome(entries: Entries<'_>, at: &Path<'_>) -> Result<Message, Reject> {
    let (mut call_id, mut output) = (None, None);
    members(entries, at, |key, node, at| {
        match key {
            "call_id" => call_id = Some(called::id(node, at)?),
            "output" => output = Some(read_content(node, at, &Role::Tool)?),
            // OpenAI lets callers repeat the tool's name here.
            "name" => drop(called::name(node, at)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let call_id = call_id.ok_or_else(|| missing(&at.key("call_id"), "the id of the call that this answers"))?;
    let parts = output.ok_or_else(|| missing(&at.key("output"), "what the tool said, as a string"))?;
    let content =
        parts.into_iter().map(|part| if let Part::Text(text) = part { text } else { String::new() }).collect();
    Ok(one(Role::Tool, Part::ToolOutcome(ToolOutcome { call_id, content, structured: None, is_error: false })))
}

fn read_reasoning(entries: Entries<'_>, at: &Path<'_>) -> Result<Message, Reject> {
    let (mut text, mut summary) = (String::new(), String::new());
    members(entries, at, |key, node, at| {
        let into = match key {
            "content" => &mut text,
            "summary" => &mut summary,
            _ => return Ok(false),
        };
        for (i, part) in list(node, at)?.into_iter().enumerate() {
            let at = at.index(i);
            for (key, node) in object(part, &at)? {
                if key == "text" {
                    into.push_str(&string(node, &at.key("text"))?);
                }
            }
        }
        Ok(true)
    })?;
    Ok(one(Role::Assistant, Part::Reasoning(if text.is_empty() { summary } else { text })))
}

fn one(role: Role, part: Part) -> Message {
    Message { id: String::new(), role, name: None, parts: vec![part], provenance: None }
}

/// One item, as OpenAI writes it.
pub fn item(id: &str, message: &Message, status: &str) -> Value {
    match message.parts.as_slice() {
        [Part::ToolCall(call)] => json!({"id": id, "type": "function_call", "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": status}),
        [Part::ToolOutcome(outcome)] => json!({"id": id, "type": "function_call_output", "call_id": outcome.call_id,
            "output": outcome.content, "status": status}),
        [Part::Reasoning(text)] => json!({"id": id, "type": "reasoning", "summary": [],
            "content": [{"type": "reasoning_text", "text": text}], "status": status}),
        parts => json!({"id": id, "type": "message", "role": message.role.as_str(), "status": status,
            "content": parts.iter().map(|written| part(written, &message.role)).collect::<Vec<_>>()}),
    }
}

/// What is known of an item besides what it says; not in OpenAI's API.
#[derive(Clone, Copy, Debug, Default)]
pub struct Details<'a> {
    /// The item that it follows; empty for the first.
    pub parent_id: &'a str,
    /// Which of those that follow the same one.
    pub sibling: i64,
    /// The caller's own name for it; empty for none.
    pub message_id: &'a str,
    /// The response that it belongs to; empty for none.
    pub response_id: &'a str,
    /// Always part of the context.
    pub pinned: bool,
    /// Who said it; empty where no model did.
    pub model: &'a str,
    /// Why it ended; empty where no model said it.
    pub finish_reason: &'a str,
    /// What the whole answer used, with its last item.
    pub usage: Option<Usage>,
    /// What else is known of it.
    pub report: Option<&'a Report>,
    /// What amounts are in.
    pub currency: &'a str,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// The members that tell the details but for the report. Clients send items back as they were listed, so reading skips
/// what is written under these names.
const DETAILS: [&str; 9] =
    ["parent_id", "sibling", "pinned", "created_at", "message_id", "response_id", "model", "finish_reason", "usage"];

/// An item with all that is known of it.
pub fn detailed(mut item: Value, details: Details<'_>) -> Value {
    let some = |text: &str| (!text.is_empty()).then(|| Value::from(text));
    let values = [
        some(details.parent_id),
        Some(details.sibling.into()),
        Some(details.pinned.into()),
        Some((details.created_ms / 1000).into()),
        some(details.message_id),
        some(details.response_id),
        some(details.model),
        some(details.finish_reason),
        details.usage.map(usage),
    ];
    if let Value::Object(item) = &mut item {
        item.extend(DETAILS.into_iter().zip(values).filter_map(|(name, value)| Some((name.to_owned(), value?))));
        item.extend(details.report.map(|report| report::members(report, details.currency)).unwrap_or_default());
    }
    if let Some(report) = details.report.filter(|report| !report.citations.is_empty()) {
        report::annotate(&mut item, &report.citations);
    }
    item
}

/// What an answer cost, as the newer endpoints say it. Reasoning is counted with the output; its own count is required,
/// and 0 where nobody told it from the rest.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({"input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens.unwrap_or(0)},
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens)})
}

fn part(part: &Part, role: &Role) -> Value {
    match part {
        Part::Text(text) | Part::Reasoning(text) if *role == Role::Assistant => {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
        }
        Part::Text(text) | Part::Reasoning(text) => json!({"type": "input_text", "text": text}),
        Part::Refusal(text) => json!({"type": "refusal", "refusal": text}),
        Part::Opaque { kind, body } if kind == "image_url" => {
            let image = &body["image_url"];
            json!({"type": "input_image", "image_url": image["url"],
                "detail": image.get("detail").cloned().unwrap_or_else(|| "auto".into())})
        }
        Part::Opaque { body, .. } => body.clone(),
        // Stands alone in its item.
        Part::ToolCall(call) => json!({"type": "output_text", "text": call.arguments, "annotations": []}),
        Part::ToolOutcome(outcome) => json!({"type": "input_text", "text": outcome.content}),
    }
}

#[cfg(test)]
mod tests;
