//! How long a prompt is, where no tokenizer is at hand.

use serde_json::Value;
use tidegate_types::{Chat, Message, Part, ToolDef};

/// Bytes of text for a token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// What a template writes around a message, a part or a tool, and takes the time for.
const MARKUP_BYTES: usize = 32;

/// Bytes of all text in a request.
pub(crate) fn text_bytes(chat: &Chat) -> usize {
    messages_bytes(&chat.messages)
}

/// The same of some messages.
pub(crate) fn messages_bytes(messages: &[Message]) -> usize {
    let parts = messages.iter().flat_map(|message| &message.parts);
    parts
        .map(|part| match part {
            Part::Text(text) | Part::Reasoning(text) | Part::Refusal(text) => text.len(),
            Part::ToolOutcome(outcome) => outcome.content.len(),
            Part::ToolCall(call) => call.arguments.len(),
            Part::Opaque { .. } => 0,
        })
        .sum()
}

/// Of what tells calls apart, which may be longer than what they say: ids and names.
fn label_bytes(messages: &[Message]) -> usize {
    let parts = messages.iter().flat_map(|message| &message.parts);
    parts
        .map(|part| match part {
            Part::ToolCall(call) => call.id.len() + call.name.len(),
            Part::ToolOutcome(outcome) => outcome.call_id.len(),
            _ => 0,
        })
        .sum()
}

/// Of what is neither text nor about calls: images and the like, and what tools say for programs. No template writes it.
fn unwritten_bytes(messages: &[Message]) -> usize {
    let parts = messages.iter().flat_map(|message| &message.parts);
    parts
        .map(|part| match part {
            Part::Opaque { body, .. } => json_bytes(body),
            Part::ToolOutcome(outcome) => outcome.structured.as_ref().map_or(0, String::len),
            _ => 0,
        })
        .sum()
}

/// Bytes of messages as a plugin is given them: with what is in them beside text.
pub(crate) fn given_bytes(messages: &[Message]) -> usize {
    messages_bytes(messages) + label_bytes(messages) + unwritten_bytes(messages)
}

/// About how many bytes a plugin is given of a request: its messages, its tools and its parameters.
pub(crate) fn told_bytes(chat: &Chat) -> usize {
    let unwritten = unwritten_bytes(&chat.messages);
    let params = chat.extra.iter().map(|(name, value)| name.len() + json_bytes(value));
    rendered_bytes(chat, &[]) + unwritten + params.sum::<usize>()
}

/// About how many bytes a template makes of a request and the server's tools `defs`.
pub(crate) fn rendered_bytes(chat: &Chat, defs: &[ToolDef]) -> usize {
    let pieces: usize = chat.messages.iter().map(|message| 1 + message.parts.len()).sum();
    let in_messages = text_bytes(chat) + label_bytes(&chat.messages) + MARKUP_BYTES * pieces;
    in_messages + tool_bytes(chat.tools.iter().chain(defs))
}

/// About how many bytes it makes of definitions of tools.
pub(crate) fn tool_bytes<'a>(tools: impl IntoIterator<Item = &'a ToolDef>) -> usize {
    let bytes = |tool: &ToolDef| tool.name.len() + tool.description.len() + json_bytes(&tool.input_schema);
    tools.into_iter().map(|tool| MARKUP_BYTES + bytes(tool)).sum()
}

/// About what `value` takes as JSON.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_bytes(item) + 2).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(key, field)| key.len() + json_bytes(field) + 6).sum::<usize>() + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}

/// About how many tokens the text of the prompt has, with the server's tools `defs` beside the caller's.
pub(crate) fn estimated_text<'a>(chat: &'a Chat, defs: impl IntoIterator<Item = &'a ToolDef>) -> u64 {
    (text_bytes(chat) + tool_bytes(chat.tools.iter().chain(defs))).div_ceil(BYTES_PER_TOKEN) as u64
}

/// The same of all that is in the prompt, for what is set aside and counted. Nobody is refused a context by it: what images weigh
/// differs too much.
pub(crate) fn estimated_input<'a>(chat: &'a Chat, defs: impl IntoIterator<Item = &'a ToolDef>) -> u64 {
    estimated_text(chat, defs) + chat.messages.iter().flat_map(|message| &message.parts).map(media_tokens).sum::<u64>()
}

/// Of an image of a thousand pixels and more each way, at most models of today.
const IMAGE_TOKENS: u64 = 1500;
/// The same where it is to be looked at roughly.
const ROUGH_IMAGE_TOKENS: u64 = 100;
/// Of a sound or a file that is sent along, as base64, for a token: a page of a PDF has some 50 KiB, a second of MP3 20 KiB.
const MEDIA_BYTES_PER_TOKEN: usize = 1 << 10;

/// About how many tokens a model reads of what is no text. Nothing here can look into it: who sets aside too little lets in
/// more than there is room for, and the server says in the end how many there were.
fn media_tokens(part: &Part) -> u64 {
    let Part::Opaque { kind, body } = part else { return 0 };
    match kind.as_str() {
        "image_url" if body["image_url"]["detail"] == "low" => ROUGH_IMAGE_TOKENS,
        "image_url" => IMAGE_TOKENS,
        // One that is named only, by an id or a URL, has no size here.
        _ => IMAGE_TOKENS.max(json_bytes(body).div_ceil(MEDIA_BYTES_PER_TOKEN) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_types::{Role, ToolCall, ToolHints, ToolOutcome};

    fn chat(num_messages: usize, tools: Vec<ToolDef>) -> Chat {
        let messages = (0..num_messages).map(|i| Message::text(format!("m{i}"), Role::User, "x")).collect();
        Chat { tools, ..Chat::new("m", messages) }
    }

    fn tool(description: &str, input_schema: Value) -> ToolDef {
        let (name, description) = ("f".to_owned(), description.to_owned());
        ToolDef { name, description, input_schema, strict: false, hints: ToolHints::default() }
    }

    #[test]
    fn what_a_plugin_is_given_beside_text_counts_for_it_alone() {
        let mut chat = chat(1, Vec::new());
        let body = json!({"image_url": {"url": "x".repeat(1 << 20)}});
        chat.messages[0].parts.push(tidegate_types::Part::Opaque { kind: "image_url".into(), body });
        chat.extra.insert("more".into(), json!("x".repeat(1 << 20)));
        assert!(given_bytes(&chat.messages) > 1 << 20 && told_bytes(&chat) > 2 << 20);
        assert!(messages_bytes(&chat.messages) == 1 && rendered_bytes(&chat, &[]) < 1 << 10);
    }

    #[test]
    fn what_a_tool_says_for_programs_counts_for_guards_and_for_no_template() {
        let mut chat = chat(1, Vec::new());
        let structured = Some(format!("[{}0]", "0,".repeat(1 << 19)));
        let outcome = ToolOutcome { call_id: "c".into(), content: "y".into(), structured, is_error: false };
        chat.messages[0].parts.push(Part::ToolOutcome(outcome));
        assert!(given_bytes(&chat.messages) > 1 << 20 && told_bytes(&chat) > 1 << 20);
        assert!(messages_bytes(&chat.messages) == 2 && rendered_bytes(&chat, &[]) < 1 << 10);
    }

    /// A template may write them.
    #[test]
    fn ids_of_calls_count_for_plugins_and_templates() {
        let mut chat = chat(1, Vec::new());
        let id = "x".repeat(1 << 20);
        let outcome = ToolOutcome { call_id: id.clone(), content: "y".into(), structured: None, is_error: false };
        let call = ToolCall { id, name: "f".into(), arguments: "{}".into() };
        chat.messages[0].parts = vec![Part::ToolCall(call), Part::ToolOutcome(outcome)];
        let bytes = [given_bytes(&chat.messages), told_bytes(&chat), rendered_bytes(&chat, &[])];
        assert!(bytes.iter().all(|bytes| (2 << 20..3 << 20).contains(bytes)), "{bytes:?}");
        assert_eq!(messages_bytes(&chat.messages), 3);
    }

    #[test]
    fn images_sounds_and_files_weigh_about_what_they_do_at_a_model() {
        let weight = |kind: &str, body: Value| {
            let mut chat = chat(1, Vec::new());
            chat.messages[0].parts.push(Part::Opaque { kind: kind.into(), body });
            estimated_input(&chat, []) - 1
        };
        let image = |detail: &str| json!({"image_url": {"url": "x".repeat(1 << 20), "detail": detail}});
        assert_eq!((weight("image_url", image("auto")), weight("image_url", image("low"))), (1500, 100));
        assert_eq!(weight("file", json!({"file": {"file_id": "file-1"}})), 1500);
        let sound = json!({"input_audio": {"data": "x".repeat(4 << 20), "format": "mp3"}});
        assert_eq!(weight("input_audio", sound), 4097);
    }

    #[test]
    fn what_a_template_writes_of_tools_and_of_many_messages_counts() {
        let long = "x".repeat(1 << 20);
        let in_schema = json!({"type": "object", "properties": {"a": {"enum": [1, [long.clone()]]}, long.clone(): {}}});
        assert!(rendered_bytes(&chat(1, vec![tool(&long, json!({}))]), &[]) > 1 << 20);
        assert!(rendered_bytes(&chat(1, vec![tool("", in_schema)]), &[]) > 2 << 20);
        assert!(rendered_bytes(&chat(1, Vec::new()), &[tool(&long, json!({}))]) > 1 << 20);
        assert!(rendered_bytes(&chat(4096, Vec::new()), &[]) > 128 << 10);
        assert!(rendered_bytes(&chat(20, vec![tool("Adds.", json!({"type": "object"}))]), &[]) < 4 << 10);
    }
}
