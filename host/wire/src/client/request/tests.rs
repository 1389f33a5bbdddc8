//! What we ask an upstream reads back, through our own parser, as the chat that was asked.

use super::*;
use crate::request::{parse_chat, parse_completion};
use serde_json::{Value, json};
use tidegate_types::Role;

fn check_round_trip(body: Value) {
    let chat = parse_chat(&serde_json::to_vec(&body).unwrap()).unwrap().chat;
    for token_bound in [TokenBound::MaxTokens, TokenBound::MaxCompletionTokens] {
        let options = RequestOptions { token_bound, ..RequestOptions::default() };
        let written = request_body(&chat, "upstream-name", options);
        let parsed = parse_chat(&written).unwrap();
        assert_eq!(parsed.include_usage, chat.stream);
        let fields = parsed.chat.fields;
        let expected = Chat { model: "upstream-name".into(), fields, ..chat.clone() };
        assert_eq!(parsed.chat, expected);
    }
}

#[test]
fn a_full_request_survives() {
    check_round_trip(json!({"model": "m", "messages": [
            {"role": "system", "content": "be \"kind\"\n"},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm",
             "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                            {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "name": "f", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "assistant", "content": "", "refusal": "no"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": true,
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "seed": -3, "n": 2, "stop": ["\n", "x"],
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "max_tokens": 9,
        "logit_bias": {"5": -1.5, "6": 100}, "logprobs": true, "top_logprobs": 3,
        "user": "u", "response_format": {"type": "json_object"}, "x_vendor": [1, {"a": null}]}));
}

#[test]
fn a_small_request_stays_small() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    check_round_trip(body.clone());
    let chat = parse_chat(&serde_json::to_vec(&body).unwrap()).unwrap().chat;
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
    assert_eq!(written, body);
    let streamed = Chat { stream: true, ..chat };
    let written: Value = serde_json::from_slice(&request_body(&streamed, "m", RequestOptions::default())).unwrap();
    let expected = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true,
        "stream_options": {"include_usage": true}});
    assert_eq!(written, expected);
}

#[test]
fn a_choice_of_no_tool_is_sent_only_beside_tools_and_several_calls_only_where_the_caller_says() {
    let written = |more: &str| -> Value {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{more}}}"#);
        let chat = parse_chat(body.as_bytes()).unwrap().chat;
        serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap()
    };
    let tools = r#","tools":[{"type":"function","function":{"name":"f"}}]"#;
    assert_eq!(written(r#","tool_choice":"none""#)["tool_choice"], Value::Null, "OpenAI refuses it");
    assert_eq!(written(&format!(r#"{tools},"tool_choice":"none""#))["tool_choice"], "none");
    for (said, sent) in [("", Value::Null), (r#","parallel_tool_calls":true"#, true.into())] {
        assert_eq!(written(&format!("{tools}{said}"))["parallel_tool_calls"], sent);
    }
}

#[test]
fn a_completion_goes_on_from_all_that_guards_left_of_its_prompt() {
    let mut chat = parse_completion(br#"{"model":"m","prompt":"p"}"#).unwrap().chat;
    chat.messages.insert(0, Message::text("guard/0", Role::System, "Be kind. "));
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
    assert_eq!(written["prompt"], "Be kind. p");
}

#[test]
fn outcomes_of_one_message_become_messages_of_their_own() {
    let mut chat = parse_chat(br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#).unwrap().chat;
    let outcome = |id: &str| {
        Part::ToolOutcome(ToolOutcome { call_id: id.into(), content: id.into(), structured: None, is_error: false })
    };
    let parts = vec![outcome("a"), outcome("b")];
    chat.messages.push(Message { id: "m1".into(), role: Role::Tool, name: None, parts, provenance: None });
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
    let expected = json!([{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "a", "content": "a"},
        {"role": "tool", "tool_call_id": "b", "content": "b"}]);
    assert_eq!(written["messages"], expected);
}

#[test]
fn a_completion_never_asks_the_upstream_to_echo() {
    let body = br#"{"model":"m","prompt":"p\"","echo":true,"max_tokens":3}"#;
    let chat = parse_completion(body).unwrap().chat;
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
    let expected = json!({"model": "m", "prompt": "p\"", "max_tokens": 3});
    assert_eq!(written, expected);
    assert_eq!(endpoint_path(chat.form), "/completions");
}

#[test]
fn the_bound_has_the_name_that_the_server_knows() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7}"#;
    let chat = parse_chat(body).unwrap().chat;
    let options = RequestOptions { token_bound: TokenBound::MaxCompletionTokens, ..RequestOptions::default() };
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", options)).unwrap();
    assert_eq!((&written["max_completion_tokens"], written.get("max_tokens")), (&json!(7), None));
    // This endpoint has no other name for it.
    let chat = parse_completion(br#"{"model":"m","prompt":"p","max_tokens":7}"#).unwrap().chat;
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", options)).unwrap();
    assert_eq!((&written["max_tokens"], written.get("max_completion_tokens")), (&json!(7), None));
}

#[test]
fn reasoning_stays_here_where_the_server_refuses_it() {
    let said = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
        {"role": "assistant", "content": "", "reasoning_content": "cut"}]);
    let body = json!({"model": "m", "messages": said});
    let mut chat = parse_chat(body.to_string().as_bytes()).unwrap().chat;
    // As an item of its own, reasoning has no text beside it.
    chat.messages[2].parts.retain(|part| matches!(part, Part::Reasoning(_)));
    let messages = |send_reasoning| {
        let options = RequestOptions { send_reasoning, ..RequestOptions::default() };
        let written: Value = serde_json::from_slice(&request_body(&chat, "m", options)).unwrap();
        written["messages"].clone()
    };
    assert_eq!(messages(true), said);
    let without = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"},
        {"role": "assistant", "content": ""}]);
    assert_eq!(messages(false), without);
}

/// Such as a caller sends with text between, or a plugin puts.
#[test]
fn what_guards_judged_apart_is_written_apart() {
    let mut chat = parse_chat(br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#).unwrap().chat;
    let thought = |text: &str| Part::Reasoning(text.into());
    let refused = |text: &str| Part::Refusal(text.into());
    let parts = vec![
        thought("a"),
        refused("john.roe@exa"),
        Part::Text("b".into()),
        thought(""),
        refused("mple.com"),
        thought("c"),
    ];
    chat.messages.push(Message { id: "m1".into(), role: Role::Assistant, name: None, parts, provenance: None });
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
    let expected = json!({"role": "assistant", "content": "b", "reasoning_content": "a\n\nc",
        "refusal": "john.roe@exa\n\nmple.com"});
    assert_eq!(written["messages"][1], expected);
}

/// Servers differ in how they are told that something is off, and an absent field is their own default.
#[test]
fn what_turns_a_limit_off_arrives_as_its_caller_wrote_it() {
    for (field, value) in [("top_k", json!(-1)), ("top_k", json!(0)), ("min_p", json!(0.0))] {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body[field] = value;
        check_round_trip(body.clone());
        let chat = parse_chat(body.to_string().as_bytes()).unwrap().chat;
        let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
        assert_eq!(written, body);
    }
}

/// Servers that refuse 0 take the smallest number above it, which leaves the same one token.
#[test]
fn a_top_p_of_0_is_written_as_all_servers_take_it() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "top_p": 0});
    let chat = parse_chat(body.to_string().as_bytes()).unwrap().chat;
    assert_eq!(chat.sampling.top_p, Some(0.0), "guards see what the caller wrote");
    let written: Value = serde_json::from_slice(&request_body(&chat, "m", RequestOptions::default())).unwrap();
    let top_p = written["top_p"].as_f64().unwrap();
    assert!(0.0 < top_p && top_p < 1e-30, "{top_p}");
}
