//! Tools that the caller offers, calls that the model made in earlier turns, and `tool_choice`.
//!
//! Whether a named tool exists is not decided here: the pipeline may add tools of its own.

use crate::called;
use crate::field::{boolean, list, missing, not_one_of, object, refuse, short_string, string, unsupported, wrong_type};
use crate::json::Node;
use crate::path::Path;
use crate::request::alike;
use tidegate_types::{Reject, ToolCall, ToolChoice, ToolDef, ToolHints};

const MAX_TOOLS: usize = 128;
const MAX_NAME_BYTES: usize = 64;

pub(super) fn read(node: Node<'_>, at: &Path<'_>) -> Result<Vec<ToolDef>, Reject> {
    let items = list(node, at)?;
    if items.len() > MAX_TOOLS {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_TOOLS} tools, not {}", items.len())
        }));
    }
    let mut tools: Vec<ToolDef> = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let at = at.index(i);
        let tool = read_tool(item, &at)?;
        if tools.iter().any(|known| known.name == tool.name) {
            return Err(refuse(&at, "invalid_value", |param| {
                format!("`{param}` has the name `{}`, which an earlier tool has too", tool.name)
            }));
        }
        tools.push(tool);
    }
    Ok(tools)
}

/// The `function` of a `{"type": "function", "function": ...}`, as tools and choices have it.
fn function<'a>(node: Node<'a>, at: &Path<'_>) -> Result<Node<'a>, Reject> {
    let (id, function) = call(node, at)?;
    match id {
        Some(_) => Err(unsupported(&at.key("id"), "only calls have ids; leave it out")),
        None => Ok(function),
    }
}

/// As [`function`], with the `id` of a call.
fn call<'a>(node: Node<'a>, at: &Path<'_>) -> Result<(Option<Node<'a>>, Node<'a>), Reject> {
    let (mut id, mut kind, mut function) = (None, None, None);
    for (key, node) in object(node, at)? {
        let at = at.key(&key);
        match key.as_ref() {
            _ if matches!(node, Node::Null) => {}
            "type" => kind = Some(string(node, &at)?),
            "function" => function = Some(node),
            "id" => id = Some(node),
            // Clients that assemble calls from a stream repeat its `index`.
            "index" if matches!(node, Node::Int(_)) => {}
            _ => return Err(unsupported(&at, "leave it out")),
        }
    }
    match kind.as_deref() {
        Some("function") => {}
        None => return Err(missing(&at.key("type"), "`function`")),
        Some(other) => return Err(not_one_of(&at.key("type"), "function", other)),
    }
    Ok((id, function.ok_or_else(|| missing(&at.key("function"), "an object"))?))
}

fn read_tool(node: Node<'_>, at: &Path<'_>) -> Result<ToolDef, Reject> {
    let node = function(node, at)?;
    let at = at.key("function");
    let (mut name, mut description, mut schema, mut strict) = (None, String::new(), None, false);
    for (key, node) in object(node, &at)? {
        let at = at.key(&key);
        match key.as_ref() {
            _ if matches!(node, Node::Null) => {}
            "name" => name = Some(read_name(node, &at)?),
            "description" => description = string(node, &at)?,
            "parameters" => schema = Some(read_schema(node, &at)?),
            "strict" => strict = boolean(&node, &at)?,
            _ => return Err(unsupported(&at, "a function has name, description, parameters and strict")),
        }
    }
    let name = name.ok_or_else(|| missing(&at.key("name"), "the tool's name"))?;
    let input_schema = schema.unwrap_or_else(|| serde_json::json!({"type": "object", "properties": {}}));
    Ok(ToolDef { name, description, input_schema, strict, hints: ToolHints::default() })
}

pub(crate) fn read_name(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let name = short_string(node, at, MAX_NAME_BYTES)?;
    if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
        return Ok(name);
    }
    Err(refuse(at, "invalid_value", |param| format!("`{param}` must consist of letters, digits, `_` and `-`")))
}

pub(crate) fn read_schema(node: Node<'_>, at: &Path<'_>) -> Result<serde_json::Value, Reject> {
    let entries = object(node, at)?;
    alike::check_members(&entries, at, alike::PARAMETERS)?;
    match entries.iter().find(|(key, _)| key == "type") {
        None => {}
        Some((_, Node::Str(kind))) if kind == "object" => {}
        Some((_, other)) => return Err(wrong_type(&at.key("type"), "`object`", other)),
    }
    Ok(Node::Map(entries).into_value())
}

pub(crate) fn read_choice(node: Node<'_>, at: &Path<'_>) -> Result<ToolChoice, Reject> {
    match node {
        Node::Str(word) => match word.as_ref() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(not_one_of(at, "auto, none, required or an object that names a function", other)),
        },
        Node::Map(_) => {
            let node = function(node, at)?;
            let at = at.key("function");
            let mut name = None;
            for (key, node) in object(node, &at)? {
                match key.as_ref() {
                    "name" => name = Some(read_name(node, &at.key("name"))?),
                    _ => return Err(unsupported(&at.key(&key), "only the function's name is given here")),
                }
            }
            name.map(ToolChoice::Named).ok_or_else(|| missing(&at.key("name"), "the tool's name"))
        }
        other => Err(wrong_type(at, "a string or an object", &other)),
    }
}

/// Calls of an earlier turn, as the caller repeats them.
pub(super) fn read_calls(node: Node<'_>, at: &Path<'_>) -> Result<Vec<ToolCall>, Reject> {
    let items = list(node, at)?;
    if items.len() > MAX_TOOLS {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_TOOLS} calls, not {}", items.len())
        }));
    }
    items.into_iter().enumerate().map(|(i, item)| read_call(item, &at.index(i))).collect()
}

fn read_call(node: Node<'_>, at: &Path<'_>) -> Result<ToolCall, Reject> {
    let (id, node) = call(node, at)?;
    let id_at = at.key("id");
    let id = called::id(id.ok_or_else(|| missing(&id_at, "the call's id"))?, &id_at)?;
    let at = at.key("function");
    let (mut name, mut arguments) = (None, None);
    for (key, node) in object(node, &at)? {
        let at = at.key(&key);
        match key.as_ref() {
            "name" => name = Some(called::name(node, &at)?),
            "arguments" => arguments = Some(string(node, &at)?),
            // The same, as a client has read it.
            "parsed_arguments" => {}
            _ if matches!(node, Node::Null) => {}
            _ => return Err(unsupported(&at, "a call has a name and arguments")),
        }
    }
    let name = name.ok_or_else(|| missing(&at.key("name"), "the tool's name"))?;
    let arguments = arguments.ok_or_else(|| missing(&at.key("arguments"), "JSON as a string"))?;
    Ok(ToolCall { id, name, arguments })
}
