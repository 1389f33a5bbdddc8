use super::*;

fn read(body: &Value) -> Result<ResponseRequest, Reject> {
    parse_response(body.to_string().as_bytes())
}

#[test]
fn a_request_becomes_a_chat() {
    let read = read(&json!({"model": "m", "input": "hi", "instructions": "be short", "temperature": 0.7,
        "max_output_tokens": 9, "stream": true, "metadata": {"a": "b"}, "store": false, "seed": 3,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": false}],
        "tool_choice": {"type": "function", "name": "f"}, "truncation": "auto"}))
    .unwrap();
    let chat = &read.chat;
    let said: Vec<_> = chat.messages.iter().map(|m| (m.id.as_str(), m.role.as_str(), m.joined_text())).collect();
    assert_eq!(said, [("instructions", "system", "be short".to_owned()), ("m0", "user", "hi".to_owned())]);
    assert_eq!((chat.max_tokens, chat.stream, chat.sampling.seed), (Some(9), true, Some(3)));
    assert_eq!((chat.fields.messages, chat.fields.max_tokens), ("input", "max_output_tokens"));
    assert_eq!(chat.tool_choice, ToolChoice::Named("f".into()));
    assert!(read.instructed && read.store == Some(false) && read.truncation == Truncation::Auto);
    assert_eq!((&read.echo["temperature"], &read.echo["tools"][0]["name"]), (&json!(0.7), &json!("f")));
    assert_eq!((&read.echo["metadata"]["a"], &read.echo["truncation"]), (&json!("b"), &json!("auto")));
    assert_eq!(read.input.len(), 1);
}

/// As a client sends it that goes on by itself: `input += response.output`.
#[test]
fn a_long_answer_comes_back_with_its_log_probabilities() {
    let top: Vec<Value> = (0..20).map(|n| json!({"token": "ab", "logprob": -n, "bytes": [97, 98]})).collect();
    let token = json!({"token": "ab", "logprob": -0.5, "bytes": [97, 98], "top_logprobs": top});
    let logprobs: Vec<Value> = std::iter::repeat_n(token, 2000).collect();
    let answer = |logprobs: Vec<Value>| {
        let part = json!({"type": "output_text", "text": "ab", "annotations": [], "logprobs": logprobs});
        json!([{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]},
            {"role": "user", "content": "go on"}])
    };
    let [with, without] = [answer(logprobs), answer(Vec::new())];
    let asked = |input: &Value| read(&json!({"model": "m", "input": input})).unwrap();
    assert_eq!(asked(&with), asked(&without));
    let body = |items: &Value| json!({"items": items}).to_string();
    let items = |items: &Value| crate::conversations::parse_items(body(items).as_bytes()).unwrap();
    assert_eq!(items(&with), items(&without));
    let begun = |items: &Value| crate::conversations::parse_conversation(body(items).as_bytes(), true).unwrap().items;
    assert_eq!(begun(&with), begun(&without));
}

#[test]
fn a_message_has_the_number_of_its_first_item() {
    let said = |role: &str| json!({"role": role, "content": role});
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let outcome = json!({"type": "function_call_output", "call_id": "c", "output": "1"});
    let input = json!([said("user"), said("assistant"), call, outcome, said("user")]);
    for (more, expected) in [
        (json!({}), &["m0", "m1", "m3", "m4"][..]),
        (json!({"instructions": "x"}), &["instructions", "m0", "m1", "m3", "m4"]),
    ] {
        let mut body = more;
        (body["model"], body["input"]) = ("m".into(), input.clone());
        let chat = read(&body).unwrap().chat;
        assert_eq!(chat.messages.iter().map(|message| &*message.id).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn wrong_requests_are_refused_by_their_field() {
    let with = |key: &str, value: Value| {
        let mut body = json!({"model": "m", "input": "hi"});
        body[key] = value;
        body
    };
    for (body, param) in [
        (json!({"model": "m"}), "input"),
        (json!({"input": "hi"}), "model"),
        (with("input", json!([])), "input"),
        (with("input", json!(3)), "input"),
        (with("max_tokens", json!(3)), "max_tokens"),
        (with("messages", json!([])), "messages"),
        (with("tools", json!([{"type": "web_search"}])), "tools[0].type"),
        (with("tools", json!([{"type": "function", "function": {}}])), "tools[0].function"),
        (with("truncation", json!("some")), "truncation"),
        (with("include", json!(["file_search_call.results"])), "include[0]"),
        (with("text", json!({"format": {"type": "yaml"}})), "text.format.type"),
        (with("conversation", json!({"name": "x"})), "conversation.name"),
        (json!({"model": "m", "input": "x", "previous_response_id": "a", "conversation": "b"}), "previous_response_id"),
        (json!({"model": "m", "input": "x", "background": true, "store": false}), "background"),
        (json!({"model": "m", "input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}), "input"),
    ] {
        assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
    }
}

#[test]
fn log_probabilities_are_asked_for_by_their_number_or_by_including_them() {
    let include = json!(["message.output_text.logprobs"]);
    for (more, wanted) in [
        (json!({}), None),
        (json!({"include": ["reasoning.encrypted_content"]}), None),
        (json!({"include": include}), Some(0)),
        (json!({"top_logprobs": 2}), Some(2)),
        (json!({"top_logprobs": 2, "include": include}), Some(2)),
    ] {
        let mut body = json!({"model": "m", "input": "hi"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(read(&body).unwrap().chat.sampling.logprobs, wanted, "{body}");
    }
}

#[test]
fn what_changes_the_answer_travels_under_chats_names() {
    let body = json!({"model": "m", "input": "hi", "user": "u", "reasoning": {"effort": "low"},
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}}});
    let read = read(&body).unwrap();
    let format = &read.chat.extra["response_format"];
    assert_eq!(format["json_schema"], json!({"name": "n", "schema": {"type": "object"}, "strict": true}));
    let mut demands = read.chat.demands.clone();
    demands.sort();
    assert_eq!(demands, ["reasoning.effort", "text.format", "text.verbosity"], "refusals name what the caller wrote");
}

/// As Vercel's AI SDK sends its second step.
#[test]
fn a_request_whose_references_are_resolved_is_as_one_with_the_items_whole() {
    let kept = json!([
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I will look."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]);
    let question = json!({"role": "user", "content": "how many?"});
    let outcome = json!({"type": "function_call_output", "call_id": "c", "output": "1"});
    let reference = |id: &str| json!({"type": "item_reference", "id": id});
    let referring = json!([question, reference("rs_1"), reference("msg_1"), {"id": "fc_1"}, outcome]);
    let spelled = json!([question, kept[0], kept[1], kept[2], outcome]);
    for more in [json!({}), json!({"instructions": "x"}), json!({"conversation": "conv_1"})] {
        let body = |input: &Value| {
            let mut body = more.clone();
            (body["model"], body["input"]) = ("m".into(), input.clone());
            body
        };
        let mut asked = read(&body(&referring)).unwrap();
        let named: Vec<_> = asked.references.iter().map(|reference| (reference.place, reference.id.as_str())).collect();
        assert_eq!(named, [(1, "rs_1"), (2, "msg_1"), (3, "fc_1")]);
        let whole = read(&body(&spelled)).unwrap();
        let items = whole.input[1..4].iter().map(|item| Message { id: "kept".into(), ..item.clone() }).collect();
        asked.resolve(items).unwrap();
        assert_eq!(asked, whole, "{more}");
    }
    let mut lonely = read(&json!({"model": "m", "input": [{"id": "msg_1"}, outcome]})).unwrap();
    let said = Message::text("msg_1", Role::Assistant, "hm");
    assert_eq!(lonely.resolve(vec![said]).unwrap_err().param.as_deref(), Some("input"));
}
