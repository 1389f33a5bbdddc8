//! What a refusal names is what the caller sent. Fitting, the engine and upstreams know chats: callers of other endpoints
//! sent the same under other names, and of a list to which the pipeline adds its own a place in it says nothing to them.

use tidegate_types::{Chat, FieldNames, Reject};

/// Fitting and the engine know messages; callers of other endpoints sent them under another name.
pub(super) fn rename_param(reject: Reject, fields: FieldNames) -> Reject {
    let place = reject.param.as_deref().and_then(|param| param.strip_prefix(FieldNames::default().messages));
    let renamed = place.filter(|place| place.is_empty() || place.starts_with('['));
    match renamed.map(|place| format!("{}{place}", fields.messages)) {
        Some(param) => reject.at(param),
        None => reject,
    }
}

/// What an upstream refuses of `chat`, as the caller has it.
pub(super) fn rename_upstreams_param(reject: Reject, chat: &Chat) -> Reject {
    match reject.param.as_deref().map(|param| sent_as(param, chat)) {
        Some(param) => reject.at(param),
        None => reject,
    }
}

fn sent_as(param: &str, chat: &Chat) -> String {
    let (fields, is_response) = (chat.fields, chat.fields.max_tokens == RESPONSES_BOUND);
    let (name, place) = param.split_at(param.find(['[', '.']).unwrap_or(param.len()));
    match name {
        "messages" if fields.messages == name && are_callers(chat) => param.to_owned(),
        "messages" => fields.messages.to_owned(),
        "tools" => format!("tools{}", tools_place(place, chat)),
        "max_tokens" | "max_completion_tokens" => fields.max_tokens.to_owned(),
        "reasoning_effort" if is_response => "reasoning.effort".to_owned(),
        "response_format" if is_response => "text.format".to_owned(),
        _ => param.to_owned(),
    }
}

/// What `/v1/responses` calls the bound on generated tokens.
const RESPONSES_BOUND: &str = "max_output_tokens";

/// Whether the messages stand as their caller sent them, as far as can be seen: what is added says where it is from.
fn are_callers(chat: &Chat) -> bool {
    chat.messages.iter().all(|message| message.provenance.is_none())
}

/// `place` in the list of tools, of which the caller's are the first.
fn tools_place(place: &str, chat: &Chat) -> String {
    let index = place.strip_prefix('[').and_then(|rest| rest.split(']').next()?.parse::<usize>().ok());
    match index {
        Some(index) if index >= chat.tools.len() => String::new(),
        // There a tool's members are its own, not of a `function` in it.
        _ if chat.fields.tool_name == "name" => place.replacen(".function", "", 1),
        _ => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Message, Provenance, Role, ToolDef, ToolHints};

    #[test]
    fn a_refusal_names_what_the_caller_sent() {
        for (name, param, expected) in [
            ("messages", "messages[1].content[0]", "messages[1].content[0]"),
            ("input", "messages[1].content[0]", "input[1].content[0]"),
            ("prompt", "messages", "prompt"),
            ("input", "stop", "stop"),
        ] {
            let fields = FieldNames { messages: name, ..FieldNames::default() };
            let renamed = rename_param(Reject::invalid(param, "no"), fields);
            assert_eq!(renamed.param.as_deref(), Some(expected), "{name}: {param}");
        }
    }

    #[test]
    fn an_upstreams_refusal_names_what_the_caller_sent() {
        let response = FieldNames { messages: "input", max_tokens: RESPONSES_BOUND, tool_name: "name" };
        let newer = FieldNames { max_tokens: "max_completion_tokens", ..FieldNames::default() };
        let mut chat = Chat::new("m", vec![Message::text("m0", Role::User, "x")]);
        let (name, description, input_schema) = ("f".into(), String::new(), serde_json::json!({}));
        chat.tools = vec![ToolDef { name, description, input_schema, strict: false, hints: ToolHints::default() }];
        for (fields, param, expected) in [
            (response, "messages[7].content", "input"),
            (response, "max_tokens", "max_output_tokens"),
            (response, "max_completion_tokens", "max_output_tokens"),
            (response, "reasoning_effort", "reasoning.effort"),
            (response, "response_format.json_schema.schema", "text.format"),
            (response, "tools[0].function.parameters", "tools[0].parameters"),
            (response, "tools[1].function.parameters", "tools"),
            (response, "temperature", "temperature"),
            (newer, "max_tokens", "max_completion_tokens"),
            (newer, "messages[0].content", "messages[0].content"),
            (newer, "messages_x", "messages_x"),
            (newer, "tools[0].function.name", "tools[0].function.name"),
            (newer, "response_format", "response_format"),
        ] {
            chat.fields = fields;
            let renamed = rename_upstreams_param(Reject::invalid(param, "no"), &chat);
            assert_eq!(renamed.param.as_deref(), Some(expected), "{param}");
        }
        chat.messages[0].provenance = Some(Provenance { source: "p".into(), uri: None, span: None });
        let renamed = rename_upstreams_param(Reject::invalid("messages[0].content", "no"), &chat);
        assert_eq!(renamed.param.as_deref(), Some("messages"));
    }
}
