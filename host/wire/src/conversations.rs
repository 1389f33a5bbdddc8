//! `/v1/conversations` and its items, in OpenAI's shape, and the simple pair beside it.

use crate::field::{
    at_most, boolean, check_name, integer, missing, name, object, refuse, short_string, string, unsupported, wrong_type,
};
use crate::items::{read_content, read_whole};
use crate::json::{Entries, Node, parse, parse_with_items};
use crate::path::Path;
use serde_json::{Value, json};
use tidegate_types::{Message, Reject, Role};

/// OpenAI's bounds of `metadata`, in characters.
const MAX_LABELS: usize = 16;
const MAX_LABEL_KEY: usize = 64;
const MAX_LABEL_VALUE: usize = 512;
/// OpenAI's bound of items that are added together.
const MAX_ADDED: usize = 20;
const MAX_TITLE_BYTES: usize = 512;
const MAX_NAME_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 4096;

/// The body of `POST /v1/conversations`, and of `POST /v1/conversations/{id}`, which has no items.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConversationBody {
    /// What there is to be said of it, as a JSON object.
    pub metadata: Option<String>,
    /// Its first items.
    pub items: Vec<Message>,
    /// A title for people; not in OpenAI's API.
    pub title: Option<String>,
}

/// Reads a conversation that is to be made or changed.
pub fn parse_conversation(body: &[u8], with_items: bool) -> Result<ConversationBody, Reject> {
    let mut read = ConversationBody::default();
    for_each(parse_with_items(body)?, &Path::ROOT, |key, node, at| {
        match key {
            "metadata" => read.metadata = Some(labels(node, at)?.to_string()),
            "items" if with_items => read.items = few_items(node, at)?,
            "title" => read.title = Some(bounded(node, at, MAX_TITLE_BYTES)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(read)
}

/// Reads the items of `POST /v1/conversations/{id}/items`.
pub fn parse_items(body: &[u8]) -> Result<Vec<Message>, Reject> {
    let mut items = None;
    for_each(parse_with_items(body)?, &Path::ROOT, |key, node, at| {
        match key {
            "items" => items = Some(few_items(node, at)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    items.ok_or_else(|| missing(&Path::ROOT.key("items"), "the items to add"))
}

fn few_items(node: Node<'_>, at: &Path<'_>) -> Result<Vec<Message>, Reject> {
    let items = read_whole(node, at)?;
    if items.len() > MAX_ADDED {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_ADDED} items at a time, not {}", items.len())
        }));
    }
    Ok(items)
}

/// The body of `POST /v1/conversations/{id}/messages`.
#[derive(Clone, Debug, PartialEq)]
pub struct SimpleMessage {
    /// The caller's own name for it; sent again, it is the same message.
    pub message_id: String,
    /// What it says.
    pub message: Message,
    /// Who shall answer; absent for the server's first.
    pub model: Option<String>,
    /// The message that this one follows, where that is not the last: `""` for a new beginning.
    pub parent_id: Option<String>,
}

/// Reads the body of `POST /v1/conversations/{id}/items/{item}/regenerate`: the model that shall answer, where one is
/// named.
pub fn parse_regenerate(body: &[u8]) -> Result<Option<String>, Reject> {
    let mut model = None;
    for_each(parse(body)?, &Path::ROOT, |key, node, at| {
        match key {
            "model" => model = Some(short_string(node, at, MAX_NAME_BYTES * 2)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(model)
}

/// Reads a message of the simple pair.
pub fn parse_simple(body: &[u8]) -> Result<SimpleMessage, Reject> {
    let (mut message_id, mut role, mut content, mut model, mut parent_id) = (None, None, None, None, None);
    for_each(parse(body)?, &Path::ROOT, |key, node, at| {
        match key {
            "message_id" => message_id = Some(name(node, at, MAX_NAME_BYTES)?),
            "role" => role = Some(string(node, at)?),
            "content" => content = Some(node),
            "model" => model = Some(short_string(node, at, MAX_NAME_BYTES * 2)?),
            "parent_id" => parent_id = Some(parent(node, at)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let root = Path::ROOT;
    let message_id = message_id.ok_or_else(|| missing(&root.key("message_id"), "a name of your own for it"))?;
    match role.as_deref() {
        None | Some("user") => {}
        Some(_) => {
            return Err(refuse(&root.key("role"), "invalid_value", |_| {
                "`role` must be user; messages of others are added by POST /v1/conversations/{id}/items".into()
            }));
        }
    }
    let at = root.key("content");
    let content = content.ok_or_else(|| missing(&at, "what the message says, as a string"))?;
    let parts = read_content(content, &at, &Role::User)?;
    let message = Message { id: String::new(), role: Role::User, name: None, parts, provenance: None };
    Ok(SimpleMessage { message_id, message, model, parent_id })
}

/// The body of `POST /v1/conversations/{id}/items/{item}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemChange {
    /// Keep it in the context, or no longer.
    pub pinned: Option<bool>,
    /// Make the branch that ends here the current one.
    pub select: bool,
}

/// Reads a change of an item.
pub fn parse_item_change(body: &[u8]) -> Result<ItemChange, Reject> {
    let mut change = ItemChange::default();
    for_each(parse(body)?, &Path::ROOT, |key, node, at| {
        match key {
            "pinned" => change.pinned = Some(boolean(&node, at)?),
            "current" => change.select = boolean(&node, at)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(change)
}

/// The body of `POST /v1/conversations/{id}/items/{item}/feedback`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opinion {
    /// From -1, bad, to 1, good.
    pub rating: i64,
    /// Why.
    pub reason: String,
    /// The item on another branch that its reader went to instead; empty for none.
    pub swipe: String,
}

/// Reads an opinion of a message.
pub fn parse_opinion(body: &[u8]) -> Result<Opinion, Reject> {
    let (mut rating, mut reason, mut swipe) = (None, String::new(), String::new());
    for_each(parse(body)?, &Path::ROOT, |key, node, at| {
        match key {
            "rating" => rating = Some(integer(&node, at, -1, 1)?),
            "reason" => reason = bounded(node, at, MAX_REASON_BYTES)?,
            "swipe" => swipe = name(node, at, MAX_NAME_BYTES)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let rating = rating.ok_or_else(|| missing(&Path::ROOT.key("rating"), "-1, 0 or 1"))?;
    Ok(Opinion { rating, reason, swipe })
}

/// Gives each member of a body that is not `null`; `take` says whether it knows it.
pub(crate) fn for_each<'a>(
    node: Node<'a>,
    root: &Path<'_>,
    mut take: impl FnMut(&str, Node<'a>, &Path<'_>) -> Result<bool, Reject>,
) -> Result<(), Reject> {
    let entries: Entries<'a> = object(node, root)
        .map_err(|_| refuse(root, "invalid_type", |_| "the request body must be a JSON object".into()))?;
    for (key, node) in entries {
        let at = root.key(&key);
        if !matches!(node, Node::Null) && !take(&key, node, &at)? {
            return Err(unsupported(&at, "there is no such field here; leave it out"));
        }
    }
    Ok(())
}

fn bounded(node: Node<'_>, at: &Path<'_>, max: usize) -> Result<String, Reject> {
    let text = string(node, at)?;
    at_most(&text, at, max)?;
    Ok(text)
}

/// The message that another follows; empty where it begins a branch of its own.
fn parent(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let id = string(node, at)?;
    check_name(&id, at, MAX_NAME_BYTES)?;
    Ok(id)
}

/// `metadata`: a few short texts.
pub(crate) fn labels(node: Node<'_>, at: &Path<'_>) -> Result<Value, Reject> {
    check_labels(&node, at)?;
    Ok(node.into_value())
}

pub(crate) fn check_labels(node: &Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
    let Node::Map(entries) = node else { return Err(wrong_type(at, "an object", node)) };
    if entries.len() > MAX_LABELS {
        return Err(refuse(at, "object_above_max_properties", |param| {
            format!("`{param}` must have at most {MAX_LABELS} entries, not {}; send fewer", entries.len())
        }));
    }
    for (key, node) in entries {
        let at = at.key(key);
        let Node::Str(text) = node else { return Err(wrong_type(&at, "a string", node)) };
        for (what, text, most) in [("key", key, MAX_LABEL_KEY), ("value", text, MAX_LABEL_VALUE)] {
            let found = text.chars().count();
            if found > most {
                return Err(refuse(&at, "string_above_max_length", |param| {
                    format!(
                        "the {what} of `{param}` must have at most {most} characters, not {found}; send a shorter one"
                    )
                }));
            }
        }
    }
    Ok(())
}

/// A conversation, as OpenAI writes it, with a title.
pub fn conversation(id: &str, created_ms: i64, metadata: &str, title: &str) -> Value {
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_else(|_| json!({}));
    json!({"id": id, "object": "conversation", "created_at": created_ms / 1000, "metadata": metadata, "title": title})
}

/// A list of things that have an `id` each.
pub fn page(data: Vec<Value>, has_more: bool) -> Value {
    let id = |one: Option<&Value>| one.map_or(Value::Null, |one| one["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more})
}

/// That something is deleted; `object` is OpenAI's word for it.
pub fn deleted(id: &str, object: &str) -> Value {
    json!({"id": id, "object": object, "deleted": true})
}

/// That a message was taken, where its answer streams, and how far that is; `response_id` names both.
pub fn accepted(message_id: &str, item_id: &str, response_id: &str, status: &str) -> Value {
    let stream_id = format!("stream_{}", response_id.trim_start_matches("resp_"));
    json!({"accepted": true, "message_id": message_id, "item_id": item_id, "stream_id": stream_id,
        "response_id": response_id, "status": status})
}

/// A summary, as it is kept, of what was said up to `message`.
pub fn summary(message: &str, covers: u64, text: &str, model: &str, created_ms: i64) -> Value {
    json!({"object": "summary", "item_id": message, "covers": covers, "text": text, "model": model,
        "created_at": created_ms / 1000})
}

/// An opinion of a message, as it is kept.
pub fn opinion(message: &str, given: &Opinion, created_ms: i64) -> Value {
    let Opinion { rating, reason, swipe } = given;
    let swipe = Some(swipe).filter(|swipe| !swipe.is_empty());
    json!({"object": "feedback", "item_id": message, "rating": rating, "reason": reason, "swipe": swipe,
        "created_at": created_ms / 1000})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_or_refused_by_their_field() {
        let body =
            parse_conversation(br#"{"metadata":{"a":"b"},"title":"T","items":[{"role":"user","content":"hi"}]}"#, true);
        let body = body.unwrap();
        assert_eq!(
            (body.metadata.as_deref(), body.title.as_deref(), body.items.len()),
            (Some(r#"{"a":"b"}"#), Some("T"), 1)
        );
        let long = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(513));
        for (body, param) in [
            (r#"{"metadata":{"a":1}}"#, "metadata.a"),
            (&long, "metadata.a"),
            (r#"{"metadata":[]}"#, "metadata"),
            (r#"{"foo":1}"#, "foo"),
            (r#"{"items":{}}"#, "items"),
        ] {
            let reject = parse_conversation(body.as_bytes(), true).unwrap_err();
            assert_eq!(reject.param.as_deref(), Some(param), "{body}");
        }
        assert_eq!(parse_conversation(br#"{"items":[]}"#, false).unwrap_err().param.as_deref(), Some("items"));
        assert_eq!(parse_items(b"{}").unwrap_err().param.as_deref(), Some("items"));
    }

    #[test]
    fn a_simple_message_has_a_name_and_a_text() {
        let read = parse_simple(br#"{"message_id":"m-1","role":"user","content":"hi","parent_id":""}"#).unwrap();
        assert_eq!((read.message_id.as_str(), read.message.joined_text().as_str()), ("m-1", "hi"));
        assert_eq!(read.parent_id.as_deref(), Some(""));
        for (body, param) in [
            (r#"{"content":"hi"}"#, "message_id"),
            (r#"{"message_id":"a"}"#, "content"),
            (r#"{"message_id":"a\u0000","content":"hi"}"#, "message_id"),
            (r#"{"message_id":"a","content":"hi","parent_id":"a\u0000"}"#, "parent_id"),
            (r#"{"message_id":"a","content":"hi","role":"assistant"}"#, "role"),
        ] {
            assert_eq!(parse_simple(body.as_bytes()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        assert_eq!(parse_opinion(br#"{"rating":2}"#).unwrap_err().param.as_deref(), Some("rating"));
    }

    #[test]
    fn a_page_names_its_ends() {
        let listed = page(vec![conversation("a", 1999, "{}", ""), conversation("b", 0, r#"{"k":"v"}"#, "T")], true);
        assert_eq!((&listed["first_id"], &listed["last_id"]), (&json!("a"), &json!("b")));
        assert_eq!((&listed["data"][0]["created_at"], &listed["data"][1]["metadata"]["k"]), (&json!(1), &json!("v")));
        assert_eq!(page(Vec::new(), false)["first_id"], Value::Null);
        assert_eq!(deleted("a", "conversation.deleted")["object"], "conversation.deleted");
    }
}
