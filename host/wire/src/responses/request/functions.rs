//! The functions that a caller offers; here their members are the tool's own.

use crate::field::{boolean, list, missing, not_one_of, object, refuse, string, unsupported};
use crate::json::Node;
use crate::path::Path;
use crate::request::tools;
use serde_json::{Value, json};
use tidegate_types::{Reject, ToolChoice, ToolDef, ToolHints};

const MAX_TOOLS: usize = 128;

pub(super) fn read_tools(node: Node<'_>, at: &Path<'_>) -> Result<Vec<ToolDef>, Reject> {
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

pub(super) fn written_tool(tool: &ToolDef) -> Value {
    json!({"type": "function", "name": tool.name, "description": tool.description,
        "parameters": tool.input_schema, "strict": tool.strict})
}

pub(super) fn read_choice(node: Node<'_>, at: &Path<'_>) -> Result<ToolChoice, Reject> {
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
