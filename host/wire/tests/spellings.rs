//! A field that another server may read as one that this server interprets is refused, and the error names both: in every
//! spelling of every field of the schemas, and of all that is written to upstreams.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use tidegate_types::{Chat, Reject, RejectKind};
use tidegate_wire::client::{RequestOptions, TokenBound, request_body};
use tidegate_wire::responses::parse_response;
use tidegate_wire::{parse_chat, parse_completion, parse_embeddings, schemas};

struct Endpoint {
    schema: &'static str,
    plain: Value,
    parse: fn(&[u8]) -> Result<Option<Chat>, Reject>,
}

fn endpoints() -> [Endpoint; 4] {
    [
        Endpoint {
            schema: "ChatRequest",
            plain: json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
            parse: |body| parse_chat(body).map(|parsed| Some(parsed.chat)),
        },
        Endpoint {
            schema: "CompletionRequest",
            plain: json!({"model": "m", "prompt": "hi"}),
            parse: |body| parse_completion(body).map(|parsed| Some(parsed.chat)),
        },
        Endpoint {
            schema: "ResponseRequest",
            plain: json!({"model": "m", "input": "hi"}),
            parse: |body| parse_response(body).map(|parsed| Some(parsed.chat)),
        },
        Endpoint {
            schema: "EmbeddingRequest",
            plain: json!({"model": "m", "input": "hi"}),
            parse: |body| parse_embeddings(body).map(|_| None),
        },
    ]
}

/// `body` with one field more, behind all others: where two are one, most readers take the last.
fn with(body: &Value, name: &str, value: Value) -> Vec<u8> {
    let mut body = body.clone();
    body[name] = value;
    body.to_string().into_bytes()
}

fn fields(all: &Map<String, Value>, schema: &Value) -> BTreeSet<String> {
    let named = schema["$ref"].as_str().map(|reference| &all[reference.rsplit('/').next().unwrap()]);
    let parts = named.into_iter().chain(schema["allOf"].as_array().into_iter().flatten());
    let own = schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned();
    parts.flat_map(|part| fields(all, part)).chain(own).collect()
}

/// What some server takes for `name`.
fn spellings(name: &str) -> BTreeSet<String> {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let camel = words.fold(first, |camel, word| camel + &capital(word));
    let all = [
        name.to_uppercase(),
        capital(name),
        capital(&camel),
        camel,
        name.replace('_', "-"),
        name.replace('s', "\u{17f}"),
        name.replace('k', "\u{212a}"),
        name.replace('i', "\u{131}"),
        format!("{}{}", &name[..name.len() - 1], name[name.len() - 1..].to_uppercase()),
    ];
    all.into_iter().filter(|spelling| spelling != name).collect()
}

/// Nobody decides by it.
const CACHE_HINT: &str = "prompt_cache_key";

#[test]
fn a_hint_by_which_nobody_decides_travels_on_in_any_spelling() {
    let [chat, completion, response, _] = endpoints();
    for Endpoint { schema, plain, parse } in [chat, completion, response] {
        for spelling in spellings(CACHE_HINT) {
            let chat = parse(&with(&plain, &spelling, json!("x"))).unwrap().unwrap();
            assert_eq!(chat.extra[&spelling], "x", "{schema}: {spelling}");
            assert!(chat.demands.is_empty(), "{schema}: no engine refuses {spelling}");
        }
    }
}

#[test]
fn no_field_is_taken_in_another_spelling() {
    let schemas = schemas().unwrap();
    for Endpoint { schema, plain, parse } in endpoints() {
        let mut fields = fields(&schemas, &schemas[schema]);
        fields.remove(CACHE_HINT);
        assert!(fields.len() >= 5, "{schema}: {fields:?}");
        for (field, spelling) in fields.iter().flat_map(|field| spellings(field).into_iter().map(move |s| (field, s))) {
            let reject = parse(&with(&plain, &spelling, json!("x"))).expect_err(&spelling);
            assert_eq!((reject.kind, reject.param.as_deref()), (RejectKind::Invalid, Some(spelling.as_str())));
            // Of vectors nothing is passed on: a name is known, or it is not.
            let says_both = schema == "EmbeddingRequest" || reject.message.contains(&format!("`{field}`"));
            assert!(says_both && reject.message.contains(&spelling), "{schema}: {}", reject.message);
        }
    }
}

/// All that the writer of requests to upstreams can write of its own.
fn written() -> BTreeSet<String> {
    let all = json!({"model": "m", "max_tokens": 7, "n": 2, "stop": ["."], "stream": true, "temperature": 1, "top_p": 1,
        "top_k": 1, "min_p": 0.5, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1, "seed": 1,
        "logit_bias": {"1": 1}});
    let mut chat = all.clone();
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let more = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 1,
        "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    chat.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let completion = with(&with_prompt(&all), "logprobs", json!(1));
    let chats = [parse_chat(chat.to_string().as_bytes()).unwrap().chat, parse_completion(&completion).unwrap().chat];
    let bounds = [TokenBound::MaxTokens, TokenBound::MaxCompletionTokens];
    let options = bounds.map(|token_bound| RequestOptions { token_bound, ..RequestOptions::default() });
    let bodies = chats.iter().flat_map(|chat| options.map(|options| request_body(chat, "m", options)));
    bodies.flat_map(|body| names(&body)).collect()
}

fn with_prompt(body: &Value) -> Value {
    let mut body = body.clone();
    body["prompt"] = json!("hi");
    body
}

fn names(body: &[u8]) -> Vec<String> {
    serde_json::from_slice::<Map<String, Value>>(body).unwrap().keys().cloned().collect()
}

/// The parser of ours takes a name twice in no body: what is written is read by it.
#[test]
fn nothing_that_is_written_to_an_upstream_is_written_twice_or_in_another_spelling() {
    let written = written();
    assert!(written.len() >= 20, "{written:?}");
    for Endpoint { schema, plain, parse } in endpoints() {
        for name in &written {
            for value in
                [json!(true), json!(1), json!("x"), json!([]), json!({}), json!([{"role": "user", "content": "no"}])]
            {
                let Ok(Some(chat)) = parse(&with(&plain, name, value)) else { continue };
                assert!(!chat.extra.contains_key(name), "{schema}: `{name}` travels on");
            }
            for spelling in spellings(name) {
                assert!(parse(&with(&plain, &spelling, json!("x"))).is_err(), "{schema}: {spelling}");
            }
        }
    }
    let asked = br#"{"model":"m","input":"hi","top_logprobs":1,"stream":true,"seed":3,"stop":"."}"#;
    let body = request_body(&parse_response(asked).unwrap().chat, "m", RequestOptions::default());
    let text = str::from_utf8(&body).unwrap();
    assert_eq!(text.matches("\"logprobs\":").count(), 1, "{text}");
}

#[test]
fn names_that_servers_have_for_a_field_of_openais_are_refused() {
    let [chat, completion, response, _] = endpoints();
    for endpoint in [&chat, &completion, &response] {
        for name in [
            "n_predict",
            "N_Predict",
            "num_predict",
            "max_new_tokens",
            "maxNewTokens",
            "prompt_embeds",
            "prompt_token_ids",
            "input_ids",
            "inputIds",
            "documents",
            "n_cmpl",
            "use_beam_search",
            "models",
            "fallbacks",
            "lora",
            "lora_path",
            "lora_request",
            "extra_body",
        ] {
            let reject = (endpoint.parse)(&with(&endpoint.plain, name, json!(9))).expect_err(name);
            assert!(reject.message.contains("some servers read it as `"), "{}", reject.message);
        }
    }
    for (endpoint, names) in [
        (&chat, &["best_of", "echo", "prompt"][..]),
        (
            &response,
            &["best_of", "echo", "functions", "function_call", "logprobs", "messages", "prompt", "n", "max_tokens"],
        ),
        (&completion, &["top_logprobs", "function_call", "parallel_tool_calls", "messages"]),
    ] {
        for name in names {
            let reject = (endpoint.parse)(&with(&endpoint.plain, name, json!(true))).expect_err(name);
            assert_eq!(reject.param.as_deref(), Some(*name), "{}: {}", endpoint.schema, reject.message);
        }
    }
}

#[test]
fn a_field_of_chats_and_its_place_in_a_response_are_not_both_taken() {
    let format = json!({"format": {"type": "json_object"}, "verbosity": "low"});
    let plain = json!({"type": "text"});
    let place = [
        ("response_format", json!({"type": "json_object"}), "text", format.clone()),
        ("response_format", json!({"type": "json_object"}), "text", json!({"format": plain})),
        ("response_format", plain.clone(), "text", format.clone()),
        ("verbosity", json!("high"), "text", format),
        ("reasoning_effort", json!("high"), "reasoning", json!({"effort": "low"})),
    ];
    for (name, value, other, there) in place {
        for first in [true, false] {
            let (a, b) = (format!("\"{name}\":{value}"), format!("\"{other}\":{there}"));
            let (a, b) = if first { (a, b) } else { (b, a) };
            let body = format!("{{\"model\":\"m\",\"input\":\"hi\",{a},{b}}}");
            let reject = parse_response(body.as_bytes()).unwrap_err();
            assert!(reject.message.contains(name) && reject.message.contains("are one field"), "{}", reject.message);
        }
        let body = json!({"model": "m", "input": "hi", name: value});
        let chat = parse_response(body.to_string().as_bytes()).unwrap().chat;
        assert_eq!(chat.extra.contains_key(name), value != plain, "what is plain text is no wish");
    }
}

#[test]
fn what_is_passed_on_within_a_body_is_in_one_spelling_too() {
    let [chat, ..] = endpoints();
    let image = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let tool =
        |schema: Value| json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]});
    let schema = |more: &str| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {}, more: {}}});
    let url = json!({"url": "u"});
    for (more, param) in [
        (image(json!({"type": "image_url", "image_url": url, "Type": "text"})), "messages[0].content[0].Type"),
        (image(json!({"type": "image_url", "image_url": url, "TEXT": "x"})), "messages[0].content[0].TEXT"),
        (image(json!({"type": "image_url", "image_url": url, "text": "x"})), "messages[0].content[0].text"),
        (image(json!({"type": "image_url", "image_url": url, "imageUrl": url})), "messages[0].content[0].imageUrl"),
        (
            image(json!({"type": "image_url", "image_url": {"url": "u", "URL": "v"}})),
            "messages[0].content[0].image_url.URL",
        ),
        (tool(json!({"type": "object", "Type": "array"})), "tools[0].function.parameters.Type"),
        (json!({"response_format": {"type": "json_object", "Type": "text"}}), "response_format.Type"),
        (json!({"response_format": schema("Schema")}), "response_format.json_schema.Schema"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"Tools": []}}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"custom_tools": []}}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"documents": []}}), "chat_template_kwargs"),
    ] {
        let mut body = chat.plain.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reject = (chat.parse)(body.to_string().as_bytes()).expect_err(param);
        assert_eq!(reject.param.as_deref(), Some(param), "{}", reject.message);
    }
    let format = json!({"format": {"type": "json_schema", "name": "n", "schema": {}, "Schema": {}}});
    let body = json!({"model": "m", "input": "hi", "text": format});
    let reject = parse_response(body.to_string().as_bytes()).unwrap_err();
    assert_eq!(reject.param.as_deref(), Some("text.format.Schema"));
}

/// What looks like no field of ours is the vendors' own.
#[test]
fn other_fields_travel_on() {
    let [chat, completion, response, _] = endpoints();
    for endpoint in [chat, completion, response] {
        for name in ["guided_regex", "ignore_eos", "Top", "streams", "modelX", "min_tokens", "x", "_", "\u{fffd}"] {
            let chat = (endpoint.parse)(&with(&endpoint.plain, name, json!("x"))).unwrap().unwrap();
            assert_eq!(chat.extra[name], "x", "{name}");
        }
    }
    // Whose names are the caller's.
    let body = json!({"model": "m", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}, "cache_control": {"type": "x"}, "text": ""},
            {"type": "text", "text": "x", "image_url": null, "refusal": ""}]}],
        "metadata": {"Model": "a", "model": "b"}, "chat_template_kwargs": {"enable_thinking": true},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"Type": {}, "type": {}}}}}]});
    parse_chat(body.to_string().as_bytes()).unwrap();
}
