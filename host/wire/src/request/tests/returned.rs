//! What a model has said and its client sends back: calls, their outcomes, and what the client has read in them.

use super::*;

#[test]
fn a_tool_message_answers_a_call_of_the_message_before_it() {
    let call = |id: &str| {
        json!({"role": "assistant", "tool_calls":
        [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
    };
    let outcome = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "x"});
    let user = json!({"role": "user", "content": "hi"});
    for (list, param) in [
        (json!([user, outcome("a")]), "messages[1].tool_call_id"),
        (json!([user, call("a"), outcome("b")]), "messages[2].tool_call_id"),
        (json!([call("a"), outcome("a"), user, outcome("a")]), "messages[3].tool_call_id"),
        (json!([call("a"), outcome("a"), call("b"), outcome("a")]), "messages[3].tool_call_id"),
    ] {
        refused(chat_with("messages", list), param, "the id of a call");
    }
    assert_eq!(messages(json!([call("a"), outcome("a"), outcome("a"), call("b"), outcome("b")])).len(), 5);
}

/// Servers write ids of kilobytes, and models names that nobody has offered.
#[test]
fn a_call_comes_back_as_it_was_handed_out() {
    let pair = |id: &str, name: &str| {
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let outcome = json!({"role": "tool", "tool_call_id": id, "name": name, "content": "x"});
        json!([{"role": "assistant", "tool_calls": [call]}, outcome])
    };
    let (longest, long_name) = ("s".repeat(ToolCall::MAX_ID_BYTES), "n".repeat(ToolCall::MAX_NAME_BYTES));
    for (id, name) in [("c", "functions.search"), ("c", "<find> me"), (longest.as_str(), long_name.as_str())] {
        let list = messages(pair(id, name));
        assert!(matches!(&list[0].parts[..], [Part::ToolCall(call)] if call.id == id && call.name == name));
        assert_eq!(list[1].name.as_deref(), Some(name));
    }
    let refuses = |id: &str, name: &str, param: &str, words: &str| {
        refused(chat_with("messages", pair(id, name)), &format!("messages[0].tool_calls[0].{param}"), words);
    };
    refuses(&(longest + "s"), "f", "id", "at most 65536 bytes, not 65537");
    refuses("c", &(long_name + "n"), "function.name", "at most 256 bytes, not 257");
    refuses("", "f", "id", "must not be empty");
    let offered = json!([{"type": "function", "function": {"name": "functions.search"}}]);
    refused(chat_with("tools", offered), "tools[0].function.name", "letters, digits");
}

#[test]
fn a_chat_of_nothing_but_calls_and_outcomes_has_room() {
    let said = json!([{"type": "text", "text": "x"}]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let pair = [
        json!({"role": "assistant", "content": said, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c", "content": said}),
    ];
    assert_eq!(messages((0..2048).flat_map(|_| pair.clone()).collect()).len(), 4096);
}

/// OpenAI's clients send what their `parse()` has read with the message that it is of.
#[test]
fn what_a_client_has_read_in_an_answer_is_passed_over() {
    let said = |content: Value, function: Value| {
        let mut message = json!({"role": "assistant", "content": "{}", "tool_calls":
            [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
        message.as_object_mut().unwrap().extend(content.as_object().cloned().unwrap_or_default());
        let into = message["tool_calls"][0]["function"].as_object_mut().unwrap();
        into.extend(function.as_object().cloned().unwrap_or_default());
        messages(json!([message]))
    };
    let plain = said(json!({}), json!({}));
    for read in [json!({"name": "x", "berths": 3}), json!([1]), json!("x"), json!(false), json!(null)] {
        assert_eq!(said(json!({"parsed": read}), json!({"parsed_arguments": read})), plain, "{read}");
    }
}
