//! One table for what is refused and why, one for what is accepted and becomes what.

mod completions;
mod returned;

use super::*;
use serde_json::{Value, json};
use tidegate_types::{Part, RejectKind, Role, ToolCall, ToolOutcome};

/// A small valid request with `key` set to `value`.
fn chat_with(key: &str, value: Value) -> Result<ParsedRequest, Reject> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body[key] = value;
    parse_chat(&serde_json::to_vec(&body).unwrap())
}

fn refused(result: Result<ParsedRequest, Reject>, param: &str, words: &str) {
    let reject = result.expect_err(param);
    assert_eq!(reject.kind, RejectKind::Invalid);
    assert_eq!(reject.param.as_deref(), Some(param), "{}", reject.message);
    assert!(reject.message.contains(words), "{param}: {:?} does not say {words:?}", reject.message);
    assert!(reject.code.is_some(), "{param} has no code");
}

fn messages(value: Value) -> Vec<Message> {
    chat_with("messages", value).unwrap().chat.messages
}

#[test]
fn a_plain_request_is_read() {
    let parsed = parse_chat(br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#).unwrap();
    assert!(!parsed.include_usage);
    assert_eq!(parsed.chat.model, "m");
    assert_eq!(parsed.chat.messages, [Message::text("m0", Role::User, "hi")]);
    assert_eq!((parsed.chat.n, parsed.chat.stream, parsed.chat.max_tokens), (1, false, None));
    assert!(parsed.chat.parallel_tool_calls.is_none() && parsed.chat.extra.is_empty());
}

#[test]
fn every_wrong_top_level_field_is_named() {
    let string = "a string, not the number 1";
    let cases: &[(&str, Value, &str)] = &[
        ("model", json!(1), string),
        ("model", json!(""), "must not be empty"),
        ("model", json!("x".repeat(257)), "at most 256 bytes"),
        ("messages", json!("hi"), "a list, not a string"),
        ("messages", json!([]), "at least one message"),
        ("messages", json!(vec![json!({"role": "user", "content": ""}); 4097]), "at most 4096 messages, not 4097"),
        ("temperature", json!("hot"), "a number, not a string"),
        ("temperature", json!(2.5), "between 0 and 2, not 2.5"),
        ("temperature", json!(-0.1), "between 0 and 2"),
        ("top_p", json!(-0.1), "between 0 and 1, not -0.1"),
        ("top_p", json!(1.1), "between 0 and 1, not 1.1"),
        ("top_k", json!(1.5), "an integer, not the number 1.5"),
        ("top_k", json!(-2), "between -1 and"),
        ("min_p", json!(2), "between 0 and 1"),
        ("repetition_penalty", json!(0), "between 0.001 and 1000, not 0"),
        ("repetition_penalty", json!(1e-38), "between 0.001 and 1000"),
        ("repetition_penalty", json!(1001), "between 0.001 and 1000"),
        ("presence_penalty", json!(3), "between -2 and 2"),
        ("frequency_penalty", json!([]), "a number, not a list"),
        ("seed", json!("1"), "an integer, not a string"),
        ("seed", json!(u64::MAX), "between -9223372036854775808 and 9223372036854775807"),
        ("n", json!(0), "between 1 and 16"),
        ("n", json!(17), "between 1 and 16"),
        ("stop", json!(5), "a string or a list of strings"),
        ("stop", json!(["a", "b", "c", "d", "e"]), "at most 4 strings, not 5"),
        ("stop", json!(""), "must not be empty"),
        ("max_tokens", json!(0), "between 1 and"),
        ("max_tokens", json!(-1), "between 1 and"),
        ("max_tokens", json!(1e12), "an integer"),
        ("max_completion_tokens", json!(5_000_000_000_u64), "between 1 and 4294967295"),
        ("stream", json!("true"), "true or false, not a string"),
        ("stream_options", json!(true), "an object, not the boolean true"),
        ("stream_options", json!({}), "needs `stream: true`"),
        ("logprobs", json!(1), "true or false, not the number 1"),
        ("top_logprobs", json!(21), "between 0 and 20"),
        ("top_logprobs", json!(2), "needs `logprobs: true`"),
        ("logit_bias", json!([]), "an object, not a list"),
        ("tools", json!({}), "a list, not an object"),
        ("tool_choice", json!("sometimes"), "auto, none, required"),
        ("tool_choice", json!(1), "a string or an object"),
        ("parallel_tool_calls", json!(0), "true or false"),
        ("response_format", json!("json"), "an object with a `type`"),
        ("user", json!({}), "a string, not an object"),
        ("user", json!("x".repeat(257)), "at most 256 bytes, not 257"),
        ("user", json!("a\u{0}b"), "control characters"),
        ("safety_identifier", json!("x".repeat(257)), "at most 256 bytes, not 257"),
        ("safety_identifier", json!("a\nb"), "control characters"),
        ("metadata", json!([]), "an object, not a list"),
        ("metadata", (0..17).map(|i| (i.to_string(), json!("v"))).collect(), "at most 16 entries, not 17; send fewer"),
        ("store", json!("no"), "true or false"),
        ("modalities", json!("text"), "a list"),
        ("functions", json!([]), "deprecated; send `tools`"),
        ("function_call", json!("auto"), "deprecated; send `tool_choice`"),
        ("prompt", json!("hi"), "/v1/completions"),
    ];
    for (key, value, words) in cases {
        refused(chat_with(key, value.clone()), key, words);
    }
}

#[test]
fn every_wrong_nested_field_is_named_by_its_path() {
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let long = "k".repeat(65);
    let cases: &[(&str, Value, &str, &str)] = &[
        ("stop", json!(["a", 1]), "stop[1]", "a string"),
        ("stream_options", json!({"include_usage": 1}), "stream_options.include_usage", "true or false"),
        ("stream_options", json!({"x": 1}), "stream_options.x", "only option"),
        ("logit_bias", json!({"x": 1}), "logit_bias.x", "a token id"),
        ("logit_bias", json!({"-1": 1}), "logit_bias.-1", "a token id"),
        ("logit_bias", json!({"1": 101}), "logit_bias.1", "between -100 and 100"),
        ("logit_bias", json!({"5": 1, "05": 2}), "logit_bias.05", "the token 5 a second bias"),
        ("metadata", json!({"a": 1}), "metadata.a", "a string"),
        (
            "metadata",
            json!({"a": "é".repeat(513)}),
            "metadata.a",
            "at most 512 characters, not 513; send a shorter one",
        ),
        ("metadata", json!({&long: "v"}), &format!("metadata.{}", &long[1..]), "at most 64 characters, not 65"),
        ("response_format", json!({}), "response_format.type", "required"),
        ("response_format", json!({"type": "xml"}), "response_format.type", "not \"xml\""),
        ("response_format", json!({"type": "json_schema"}), "response_format.json_schema", "required"),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {}}),
            "response_format.json_schema.name",
            "name",
        ),
        ("tools", json!([1]), "tools[0]", "an object"),
        ("tools", json!([{"function": {"name": "f"}}]), "tools[0].type", "required"),
        ("tools", json!([{"type": "web_search"}]), "tools[0].type", "one of function"),
        ("tools", json!([{"type": "custom", "custom": {"name": "f"}}]), "tools[0].custom", "not supported"),
        ("tools", json!([{"type": "function"}]), "tools[0].function", "required"),
        ("tools", json!([{"type": "function", "id": "x", "function": {"name": "f"}}]), "tools[0].id", "leave it out"),
        ("tools", function(json!({})), "tools[0].function.name", "required"),
        ("tools", function(json!({"name": "a b"})), "tools[0].function.name", "letters, digits"),
        ("tools", function(json!({"name": "f", "parameters": []})), "tools[0].function.parameters", "an object"),
        (
            "tools",
            function(json!({"name": "f", "parameters": {"type": "array"}})),
            "tools[0].function.parameters.type",
            "`object`",
        ),
        ("tools", function(json!({"name": "f", "strict": 1})), "tools[0].function.strict", "true or false"),
        ("tools", function(json!({"name": "f", "x": 1})), "tools[0].function.x", "not supported"),
        ("tool_choice", json!({"type": "function"}), "tool_choice.function", "required"),
        (
            "tool_choice",
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
            "tool_choice.allowed_tools",
            "not supported",
        ),
        ("tool_choice", json!({"type": "function", "function": {}}), "tool_choice.function.name", "required"),
    ];
    for (key, value, param, words) in cases {
        refused(chat_with(key, value.clone()), param, words);
    }
    let twice =
        json!([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}]);
    refused(chat_with("tools", twice), "tools[1]", "an earlier tool");
}

#[test]
fn every_wrong_message_is_named_by_its_path() {
    let call = |function: Value| json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]});
    let cases: &[(Value, &str, &str)] = &[
        (json!("hi"), "", "an object"),
        (json!({"content": "hi"}), ".role", "required"),
        (json!({"role": 1, "content": "hi"}), ".role", "a string"),
        (json!({"role": "robot", "content": "hi"}), ".role", "not \"robot\""),
        (json!({"role": "function", "content": "hi"}), ".role", "deprecated"),
        (json!({"role": "user"}), ".content", "required"),
        (json!({"role": "user", "content": null}), ".content", "required"),
        (json!({"role": "assistant"}), ".content", "required"),
        (json!({"role": "user", "content": 1}), ".content", "a string or a list of parts, not the number 1"),
        (json!({"role": "user", "content": {}}), ".content", "not an object"),
        (json!({"role": "user", "content": []}), ".content", "at least one part"),
        (json!({"role": "user", "content": ["hi"]}), ".content[0]", "an object"),
        (json!({"role": "user", "content": [{"text": "hi"}]}), ".content[0].type", "required"),
        (json!({"role": "user", "content": [{"type": "text"}]}), ".content[0].text", "required"),
        (json!({"role": "user", "content": [{"type": "text", "text": 1}]}), ".content[0].text", "a string"),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"a": 1}}]}),
            ".content[0].cache_control",
            "no such field",
        ),
        (json!({"role": "user", "content": [{"type": "hologram"}]}), ".content[0].type", "image_url"),
        (
            json!({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}),
            ".content[0].image_url",
            "an object",
        ),
        (json!({"role": "user", "content": [{"type": "image_url"}]}), ".content[0].image_url", "required"),
        (
            json!({"role": "system", "content": [{"type": "image_url", "image_url": {}}]}),
            ".content[0].type",
            "one of text",
        ),
        (json!({"role": "user", "content": "x", "name": "a b"}), ".name", "white space"),
        (json!({"role": "user", "content": "x", "name": 1}), ".name", "a string"),
        (json!({"role": "user", "content": "x", "mood": "good"}), ".mood", "no message has such a field"),
        (json!({"role": "user", "content": "x", "refusal": "no"}), ".refusal", "`assistant`, not `user`"),
        (json!({"role": "user", "content": "x", "tool_call_id": "c"}), ".tool_call_id", "`tool`, not `user`"),
        (json!({"role": "tool", "content": "x"}), ".tool_call_id", "required"),
        (json!({"role": "tool", "content": "x", "tool_call_id": 1}), ".tool_call_id", "a string"),
        (json!({"role": "tool", "tool_call_id": "c"}), ".content", "required"),
        (json!({"role": "assistant", "content": "x", "function_call": {"a": 1}}), ".function_call", "deprecated"),
        (json!({"role": "assistant", "tool_calls": {"a": 1}}), ".tool_calls", "a list"),
        (
            json!({"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]}),
            ".tool_calls[0].id",
            "required",
        ),
        (call(json!({"arguments": "{}"})), ".tool_calls[0].function.name", "required"),
        (call(json!({"name": "f"})), ".tool_calls[0].function.arguments", "required"),
        (call(json!({"name": "f", "arguments": {}})), ".tool_calls[0].function.arguments", "a string, not an object"),
    ];
    for (message, path, words) in cases {
        let list = json!([{"role": "user", "content": "hi"}, message]);
        refused(chat_with("messages", list), &format!("messages[1]{path}"), words);
    }
}

#[test]
fn a_body_that_is_no_object_or_lacks_what_is_required_is_refused() {
    for body in ["[]", "1", "null", "\"x\""] {
        let reject = parse_chat(body.as_bytes()).unwrap_err();
        assert!(reject.message.contains("must be a JSON object"), "{}", reject.message);
    }
    refused(parse_chat(b"{}"), "messages", "required");
    refused(parse_chat(br#"{"messages":[{"role":"user","content":"x"}]}"#), "model", "required");
    refused(parse_completion(br#"{"model":"m"}"#), "prompt", "required");
}

#[test]
fn sampling_is_read() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0, "top_p": 1,
        "top_k": 40, "min_p": 0.5, "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5,
        "seed": -1, "logit_bias": {"7": -100, "8": 1.5}, "logprobs": true, "top_logprobs": 20, "n": 16,
        "stop": ["a", "b"], "max_tokens": 5, "max_completion_tokens": 5, "stream": true,
        "stream_options": {"include_usage": true, "include_obfuscation": false}});
    let parsed = parse_chat(&serde_json::to_vec(&body).unwrap()).unwrap();
    let sampling = parsed.chat.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.0), Some(1.0), Some(40)));
    assert_eq!(chat_with("top_p", json!(0)).unwrap().chat.sampling.top_p, Some(0.0));
    assert_eq!((sampling.seed, sampling.logprobs), (Some(u64::MAX), Some(20)));
    assert_eq!(sampling.logit_bias, [(7, -100.0), (8, 1.5)]);
    assert_eq!((parsed.chat.n, parsed.chat.max_tokens, parsed.chat.stream), (16, Some(5), true));
    assert_eq!(parsed.chat.stop, ["a", "b"]);
    assert!(parsed.include_usage);
    let logprobs = |value: Value| chat_with("logprobs", value).unwrap().chat.sampling.logprobs;
    assert_eq!((logprobs(json!(true)), logprobs(json!(false))), (Some(0), None));
    assert_eq!(chat_with("top_k", json!(-1)).unwrap().chat.sampling.top_k, Some(-1));
}

#[test]
fn bounds_that_differ_are_refused() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":5,"max_completion_tokens":6}"#;
    refused(parse_chat(body), "max_tokens", "differ");
}

#[test]
fn null_means_absent() {
    let mut body =
        json!({"model": "m", "messages": [{"role": "user", "content": "hi", "name": null, "tool_calls": null}]});
    for key in ["temperature", "stop", "tools", "functions", "stream_options", "response_format", "x_vendor", "n"] {
        body[key] = Value::Null;
    }
    let plain = chat_with("temperature", Value::Null).unwrap();
    assert_eq!(parse_chat(&serde_json::to_vec(&body).unwrap()).unwrap(), plain);
}

#[test]
fn what_only_some_servers_can_promise_is_demanded() {
    let demands = |key: &str, value: Value| chat_with(key, value).unwrap().chat.demands;
    let tool = |name: &str, strict: bool| json!({"type": "function", "function": {"name": name, "strict": strict}});
    assert_eq!(demands("tools", json!([tool("a", false), tool("b", true)])), ["tools[1].function.strict"]);
    assert_eq!(demands("service_tier", json!("flex")), ["service_tier"]);
    assert!(demands("service_tier", json!("auto")).is_empty() && demands("user", json!("u")).is_empty());
}

#[test]
fn messages_become_parts() {
    let list = messages(json!([
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "name": "Ann", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": null, "refusal": null, "annotations": [{"x": 1}], "citations": [{}], "audio": null,
         "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"role": "assistant", "reasoning_content": "hm", "content": "z", "refusal": "no"},
    ]));
    assert_eq!(list[0].role, Role::Developer);
    assert_eq!(list[0].parts, [Part::Text("a".into()), Part::Text("b".into())]);
    assert_eq!(list[1].name.as_deref(), Some("Ann"));
    let body = json!({"type": "image_url", "image_url": {"url": "u"}});
    assert_eq!(list[1].parts, [Part::Opaque { kind: "image_url".into(), body }]);
    assert!(matches!(&list[2].parts[..], [Part::ToolCall(call)] if call.arguments == "{"));
    let outcome = ToolOutcome { call_id: "c".into(), content: "xy".into(), structured: None, is_error: false };
    assert_eq!(list[3].parts, [Part::ToolOutcome(outcome)]);
    let expected = [Part::Reasoning("hm".into()), Part::Text("z".into()), Part::Refusal("no".into())];
    assert_eq!(list[4].parts, expected);
    assert_eq!(list.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["m0", "m1", "m2", "m3", "m4"]);
}

/// A model reads them as one text, so that is what guards judge.
#[test]
fn refusals_beside_each_other_are_one_part() {
    let refusal = |text: &str| json!({"type": "refusal", "refusal": text});
    let text = json!({"type": "text", "text": "b"});
    let read = messages(json!([
        {"role": "assistant", "content": [refusal("jane@exa"), refusal("mple.com"), text, text, refusal("c")],
            "refusal": "d", "reasoning_content": "hm"},
    ]));
    let [b, both] = [Part::Text("b".into()), Part::Refusal("jane@example.com".into())];
    assert_eq!(read[0].parts, [Part::Reasoning("hm".into()), both, b.clone(), b, Part::Refusal("cd".into())]);
}

#[test]
fn tools_are_read() {
    let tools = json!([{"type": "function", "function": {"name": "a-1", "description": "d", "strict": true,
        "parameters": {"type": "object", "properties": {"x": {}}}}}, {"type": "function", "function": {"name": "b"}}]);
    let tools = chat_with("tools", tools).unwrap().chat.tools;
    assert_eq!((tools[0].name.as_str(), tools[0].strict), ("a-1", true));
    assert_eq!(tools[1].input_schema, json!({"type": "object", "properties": {}}));
    let choice = json!({"type": "function", "function": {"name": "server_tool"}});
    let choice = chat_with("tool_choice", choice).unwrap().chat.tool_choice;
    assert_eq!(choice, ToolChoice::Named("server_tool".into()));
}

#[test]
fn what_is_not_interpreted_travels_on() {
    let extra = |key: &str, value: Value| chat_with(key, value).unwrap().chat.extra;
    assert_eq!(extra("x_vendor", json!({"a": [1]}))["x_vendor"], json!({"a": [1]}));
    assert_eq!(extra("user", json!("u"))["user"], "u");
    assert_eq!(extra("response_format", json!({"type": "json_object"}))["response_format"]["type"], "json_object");
    assert!(extra("response_format", json!({"type": "text"})).is_empty());
    let most: Value = (10..26).map(|i| ("é".repeat(62) + &i.to_string(), json!("é".repeat(512)))).collect();
    assert_eq!(extra("metadata", most.clone())["metadata"], most);
}

#[test]
fn answers_that_are_no_text_are_not_asked_for() {
    assert!(chat_with("modalities", json!(["text"])).is_ok());
    let reject = chat_with("modalities", json!(["text", "audio"])).unwrap_err();
    assert_eq!(
        (reject.param.as_deref(), reject.code.as_deref()),
        (Some("modalities[1]"), Some("unsupported_parameter"))
    );
}

#[test]
fn what_an_engine_must_refuse_is_known() {
    let changes = |name: &str, value: Value| changes_answer(name, &value);
    assert!(changes("response_format", json!({"type": "json_object"})));
    assert!(changes("x_vendor", json!(1)) && changes("store", json!(true)) && changes("modalities", json!(["audio"])));
    assert!(!changes("store", json!(false)) && !changes("user", json!("u")) && !changes("modalities", json!(["text"])));
}

mod any_bytes {
    use super::super::*;
    use proptest::prelude::*;

    fn json_text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|b| b.to_string()),
            any::<i64>().prop_map(|n| n.to_string()),
            any::<f32>().prop_filter("finite", |f| f.is_finite()).prop_map(|f| f.to_string()),
            "[a-z]{0,8}".prop_map(|s| format!("{s:?}")),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let keys = "(role|content|type|function|name|id|arguments|text|parameters|url|image_url)";
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
                prop::collection::btree_map(keys, inner, 0..4).prop_map(|entries| {
                    let entries: Vec<String> = entries.iter().map(|(k, v)| format!("{k:?}:{v}")).collect();
                    format!("{{{}}}", entries.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_chat(&body);
            let _ = parse_completion(&body);
        }

        #[test]
        fn any_value_of_any_field_is_accepted_or_refused_at_that_field(
            key in "(messages|tools|tool_choice|stop|temperature|top_p|n|seed|logit_bias|response_format|metadata|stream_options|user|top_logprobs|echo|prompt|suffix|model)",
            value in json_text(),
        ) {
            let chat = ("messages", r#"[{"role":"user","content":"x"}]"#);
            type Parse = fn(&[u8]) -> Result<ParsedRequest, Reject>;
            for (parse, asked) in [(parse_chat as Parse, chat), (parse_completion, ("prompt", "\"p\""))] {
                let fields = [("model", "\"m\""), asked];
                let fields = fields.iter().filter(|(name, _)| *name != key);
                let mut body: Vec<String> = fields.map(|(name, value)| format!("{name:?}:{value}")).collect();
                body.insert(0, format!("{key:?}:{value}"));
                if let Err(reject) = parse(format!("{{{}}}", body.join(",")).as_bytes()) {
                    prop_assert_eq!(reject.kind, tidegate_types::RejectKind::Invalid);
                    let param = reject.param.unwrap_or_default();
                    let within = param.strip_prefix(&key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
                    prop_assert!(within && !reject.message.is_empty(), "{} is refused at {}", key, param);
                }
            }
        }
    }
}
