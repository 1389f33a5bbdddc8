//! Fields that this server does not interpret: their type is checked where OpenAI defines one, and they travel
//! on in `Chat::extra`, in the order of the body.

use crate::conversations::check_labels;
use crate::field::{boolean, check_name, missing, not_one_of, unsupported, wrong_type};
use crate::json::Node;
use crate::path::Path;
use crate::request::alike::{self, Names};
use serde_json::{Map, Value};
use tidegate_types::Reject;

#[derive(Clone, Copy)]
enum Shape {
    Text,
    Name,
    Flag,
    List,
    Object,
    Labels,
}

/// As the end users of tokens: usage and limits are counted by it.
const MAX_NAME_BYTES: usize = 256;

/// Fields of OpenAI's API and of common servers: name, type, and whether the answer's text depends on it.
const KNOWN: &[(&str, Shape, bool)] = &[
    ("user", Shape::Name, false),
    ("safety_identifier", Shape::Name, false),
    (CACHE_HINT, Shape::Text, false),
    ("prompt_cache_retention", Shape::Text, false),
    ("service_tier", Shape::Text, false),
    ("metadata", Shape::Labels, false),
    ("store", Shape::Flag, false),
    ("reasoning_effort", Shape::Text, true),
    ("verbosity", Shape::Text, true),
    (MODALITIES, Shape::List, true),
    ("audio", Shape::Object, true),
    ("prediction", Shape::Object, false),
    ("web_search_options", Shape::Object, true),
    ("moderation", Shape::Object, true),
    (TEMPLATE_ARGS, Shape::Object, true),
    ("parse_special", Shape::Flag, true),
];

/// Whether an engine that does not know the field `name` would answer differently from what was asked, so that
/// it must refuse it. `user`, `metadata`, `store: false` and their like are for accounting; `prediction` is a hint
/// that never changes the text.
pub fn changes_answer(name: &str, value: &Value) -> bool {
    match (name, value) {
        // The caller expects to find a stored answer later.
        ("store", Value::Bool(true)) => true,
        // As it is anyway.
        ("parse_special", Value::Bool(false)) => false,
        // Other tiers are another service: slower, faster, at another price.
        ("service_tier", Value::String(tier)) => !matches!(tier.as_str(), "auto" | "default"),
        (MODALITIES, Value::Array(kinds)) => kinds.iter().any(|kind| kind != "text"),
        _ if alike::is_read_as(name, CACHE_HINT) => false,
        _ => KNOWN.iter().find(|(known, _, _)| *known == name).is_none_or(|(_, _, changes)| *changes),
    }
}

/// The fields of which one spelling is taken. Somebody decides by each: who is counted (`user`), what is kept (`store`,
/// `prompt_cache_retention`) or said of it later (`metadata`), at what price (`service_tier`), what is answered. In another
/// spelling this server and its guards would decide by nothing, and the server behind them by what they have not seen. The
/// hint decides nothing for anybody, and clients send it as `promptCacheKey`: that is one more vendor's field.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, _, _)| *name).filter(|name| *name != CACHE_HINT).chain([FORMAT])
}

/// Which prompts of an account are likely to share a beginning. Nobody reads it here.
const CACHE_HINT: &str = "prompt_cache_key";

const FORMAT: &str = "response_format";
const MODALITIES: &str = "modalities";
const TEMPLATE_ARGS: &str = "chat_template_kwargs";

/// Takes a field that is none of the `names` that its endpoint interprets.
pub(crate) fn take(
    extra: &mut Map<String, Value>,
    names: Names,
    key: &str,
    node: Node<'_>,
    at: &Path<'_>,
) -> Result<(), Reject> {
    if key == FORMAT {
        if !is_plain_text(&node, at)? {
            extra.insert(key.to_owned(), node.into_value());
        }
        return Ok(());
    }
    match KNOWN.iter().find(|(known, _, _)| *known == key) {
        Some((_, shape, _)) => check(*shape, &node, at)?,
        None => alike::check_field(key, at, names)?,
    }
    if key == MODALITIES {
        check_modalities(&node, at)?;
    }
    if key == TEMPLATE_ARGS {
        alike::check_template_args(&node, at)?;
    }
    extra.insert(key.to_owned(), node.into_value());
    Ok(())
}

fn check(shape: Shape, node: &Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
    match (shape, node) {
        (Shape::Text, Node::Str(_)) | (Shape::List, Node::List(_)) | (Shape::Object, Node::Map(_)) => Ok(()),
        (Shape::Name, Node::Str(text)) => check_name(text, at, MAX_NAME_BYTES),
        (Shape::Flag, node) => boolean(node, at).map(drop),
        (Shape::Labels, node) => check_labels(node, at),
        (Shape::Text | Shape::Name, other) => Err(wrong_type(at, "a string", other)),
        (Shape::List, other) => Err(wrong_type(at, "a list", other)),
        (Shape::Object, other) => Err(wrong_type(at, "an object", other)),
    }
}

/// What else an upstream may answer with is read by nobody here: it would be paid for, and not sent on.
fn check_modalities(node: &Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
    let Node::List(kinds) = node else { return Ok(()) };
    match kinds.iter().position(|kind| !matches!(kind, Node::Str(kind) if kind == "text")) {
        Some(i) => Err(unsupported(&at.index(i), "answers are text here; leave it out, or say [\"text\"]")),
        None => Ok(()),
    }
}

/// `{"type": "text"}` is the default and needs no passing on; the JSON kinds do.
fn is_plain_text(node: &Node<'_>, at: &Path<'_>) -> Result<bool, Reject> {
    let Node::Map(entries) = node else { return Err(wrong_type(at, "an object with a `type`", node)) };
    alike::check_members(entries, at, alike::FORMAT)?;
    let field = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, node)| node);
    let kind = match field("type") {
        Some(Node::Str(kind)) => kind.as_ref(),
        Some(other) => return Err(wrong_type(&at.key("type"), "a string", other)),
        None => return Err(missing(&at.key("type"), "text, json_object or json_schema")),
    };
    match kind {
        "text" => Ok(true),
        "json_object" => Ok(false),
        "json_schema" => check_schema(field("json_schema"), &at.key("json_schema")).map(|()| false),
        other => Err(not_one_of(&at.key("type"), "text, json_object, json_schema", other)),
    }
}

pub(crate) fn check_schema(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<(), Reject> {
    let Some(node) = node else { return Err(missing(at, "an object with `name` and `schema`")) };
    let Node::Map(entries) = node else { return Err(wrong_type(at, "an object", node)) };
    alike::check_members(entries, at, alike::FORMAT)?;
    let mut named = false;
    for (key, node) in entries {
        let at = at.key(key);
        match (key.as_ref(), node) {
            ("name", Node::Str(_)) => named = true,
            ("name", other) => return Err(wrong_type(&at, "a string", other)),
            ("schema", Node::Map(_)) | (_, Node::Null) => {}
            ("schema", other) => return Err(wrong_type(&at, "an object", other)),
            ("strict", node) => boolean(node, &at).map(drop)?,
            _ => {}
        }
    }
    if named { Ok(()) } else { Err(missing(&at.key("name"), "a name for the schema")) }
}
