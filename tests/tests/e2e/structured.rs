//! Answers of the own engine that are held to a schema, and calls that are forced, over HTTP.

use serde_json::{Value, json};
use tidegate_tests::scripted::Scripted;
use tidegate_tests::{Answer, BARE, Gateway, ask, finish_reason, joined, with_model};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const NAME: &str = "tidegate-starter";

fn with(mut request: Value, more: Value) -> Value {
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// Short enough for any model to come to its end.
fn port() -> Value {
    json!({"type": "object", "required": ["name", "kind", "berths"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "maxLength": 20}, "kind": {"$ref": "#/$defs/kind"},
        "berths": {"type": "integer", "minimum": 1, "maximum": 99}},
        "$defs": {"kind": {"enum": ["river", "sea"]}}})
}

fn is_port(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let members: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    members == ["name", "kind", "berths"]
        && value["name"].as_str().unwrap().chars().count() <= 20
        && ["river", "sea"].contains(&value["kind"].as_str().unwrap())
        && (1..=99).contains(&value["berths"].as_i64().unwrap())
}

fn format(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "port", "strict": true, "schema": schema}}})
}

fn tool(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "Registers a port.", "strict": strict, "parameters": port()}})
}

/// The names and arguments of the calls in an answer.
fn calls(answer: &Answer) -> Vec<(String, String)> {
    let answer = answer.json();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    calls.iter().map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_fits_its_schema_whole_and_streamed_with_and_without_stages() {
    for config in [BARE, "", "[engine]\nahead = \"always\"\n[pipeline]\n"] {
        let gateway = Gateway::start(config).await;
        for (temperature, seed) in [(0.0, 1), (1.0, 2), (1.8, 3)] {
            let request =
                with(with(ask("Describe a port."), format(port())), json!({"temperature": temperature, "seed": seed}));
            let answer = gateway.chat(request.clone()).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            assert!(is_port(&answer.text()), "{}", answer.text());
            assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
            let events = gateway.stream(request).await;
            assert_eq!((joined(&events, 0), finish_reason(&events, 0)), (answer.text(), json!("stop")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_else_is_asked_of_an_answer_holds_beside_its_schema() {
    let gateway = Gateway::start(BARE).await;
    let ask = || with(ask("Describe a port."), format(port()));
    let several = gateway.chat(with(ask(), json!({"n": 3, "temperature": 1.5, "seed": 7}))).await.json();
    let texts: Vec<&str> = several["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap())
        .collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| is_port(text)), "{texts:?}");
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
    let cut = gateway.chat(with(ask(), json!({"max_tokens": 4}))).await.json();
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], &cut["usage"]["completion_tokens"]),
        (&json!("length"), &json!(4))
    );
    let stopped = gateway.chat(with(ask(), json!({"stop": "kind"}))).await;
    assert!(
        stopped.text().ends_with('"') && stopped.json()["choices"][0]["finish_reason"] == "stop",
        "{}",
        stopped.text()
    );
    let told = gateway.chat(with(ask(), json!({"logprobs": true, "top_logprobs": 2}))).await.json();
    let tokens = told["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(told["choices"][0]["message"]["content"], json!(text));
    // Of what the model wanted, and not of what it was allowed: that sums to less than all.
    let first = tokens[0]["logprob"].as_f64().unwrap();
    assert!(
        first < -0.01
            && tokens[0]["top_logprobs"]
                .as_array()
                .unwrap()
                .iter()
                .all(|top| top["logprob"].as_f64().unwrap() >= first)
    );
    let object =
        gateway.chat(with(ask(), json!({"response_format": {"type": "json_object"}, "max_tokens": 200}))).await;
    assert!(object.text().trim_start().starts_with('{'), "{}", object.text());
    if object.json()["choices"][0]["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(&object.text()).unwrap().is_object());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_called_where_it_must_be_with_arguments_that_fit() {
    let gateway = Gateway::start(BARE).await;
    let named = json!({"type": "function", "function": {"name": "second"}});
    for (choice, parallel, expected) in [
        (json!("required"), true, vec!["first", "second"]),
        (json!("required"), false, vec!["first", "second"]),
        (named, true, vec!["second"]),
    ] {
        for strict in [false, true] {
            let request = with(
                ask("Hello!"),
                json!({"tools": [tool("first", strict), tool("second", false)],
                "tool_choice": choice, "parallel_tool_calls": parallel, "max_tokens": 400}),
            );
            let answer = gateway.chat(request).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            let made = calls(&answer);
            assert!(!made.is_empty() && (parallel || made.len() == 1), "{made:?}");
            assert!(made.iter().all(|(name, arguments)| expected.contains(&&**name) && is_port(arguments)), "{made:?}");
            assert_eq!(answer.json()["choices"][0]["message"]["content"], Value::Null);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_the_server_that_must_be_called_is_and_the_answer_is_held_after_it() {
    let gateway = Gateway::start("").await;
    let choice = json!({"tool_choice": {"type": "function", "function": {"name": "calculator"}}});
    let answer = gateway.chat(with(ask("What is 17*23?"), choice.clone())).await;
    assert!(answer.text().contains("391"), "{:?}", answer.body);
    let answer = gateway.chat(with(with(ask("What is 17*23?"), choice), format(port()))).await;
    assert!(is_port(&answer.text()), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_tool_is_called_rightly_where_the_model_may_answer_as_well() {
    let gateway = Gateway::start(BARE).await;
    let asked = |question: &str| with(ask(question), json!({"tools": [tool("register", true)], "max_tokens": 400}));
    let answer = gateway.chat(asked("Hello!")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let message = &answer.json()["choices"][0]["message"];
    match message["tool_calls"].as_array() {
        Some(_) => assert!(calls(&answer).iter().all(|(_, arguments)| is_port(arguments)), "{message}"),
        None => assert!(!message["content"].as_str().unwrap().is_empty(), "{message}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_held_and_forced_as_chats_are() {
    let gateway = Gateway::start(BARE).await;
    let held = json!({"input": "Describe a port.", "text": {"format": {"type": "json_schema", "name": "port", "schema": port()}}});
    let answer = gateway.post(RESPONSES, &with_model(held)).await.json();
    assert!(is_port(answer["output"][0]["content"][0]["text"].as_str().unwrap()), "{answer}");
    let tool = json!({"type": "function", "name": "register", "parameters": port(), "strict": true});
    let forced = json!({"input": "Hello!", "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    let answer = gateway.post(RESPONSES, &with_model(forced)).await.json();
    assert_eq!(
        (&answer["output"][0]["type"], &answer["output"][0]["name"]),
        (&json!("function_call"), &json!("register")),
        "{answer}"
    );
    assert!(is_port(answer["output"][0]["arguments"].as_str().unwrap()), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_held_is_refused_by_its_name_and_nothing_else_suffers() {
    let gateway = Gateway::start(BARE).await;
    let unique = json!({"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true}}});
    let overlapping =
        json!({"type": "object", "properties": {"n": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}});
    let bad_tool = |schema: &Value, strict| json!([tool("good", true), {"type": "function", "function": {"name": "bad", "parameters": schema, "strict": strict}}]);
    let flat_tool = json!([{"type": "function", "name": "bad", "parameters": unique, "strict": true}]);
    for (path, more, param, word) in [
        (CHAT, format(unique.clone()), "response_format.json_schema.schema", "`uniqueItems` at `#/properties/tags`"),
        (CHAT, format(overlapping.clone()), "response_format.json_schema.schema", "oneOf"),
        (
            CHAT,
            format(json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}})),
            "response_format.json_schema.schema",
            "response_format",
        ),
        (CHAT, json!({"tools": bad_tool(&unique, true)}), "tools[1].function.parameters", "uniqueItems"),
        (
            CHAT,
            json!({"tools": bad_tool(&overlapping, true), "tool_choice": "required"}),
            "tools[1].function.parameters",
            "oneOf",
        ),
        (CHAT, json!({"tool_choice": "required"}), "tool_choice", "`tools`"),
        (
            CHAT,
            json!({"tools": [tool("t", false)], "tool_choice": {"type": "function", "function": {"name": "u"}}}),
            "tool_choice",
            "`u`",
        ),
        (
            RESPONSES,
            json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": unique}}}),
            "text.format.schema",
            "uniqueItems",
        ),
        (RESPONSES, json!({"tools": flat_tool, "tool_choice": "required"}), "tools[0].parameters", "uniqueItems"),
    ] {
        let question = if path == CHAT { ask("Hello!") } else { json!({"input": "Hello!"}) };
        let answer = gateway.post(path, &with_model(with(question, more))).await;
        let (message, at, _) = answer.error();
        assert_eq!((answer.status, at), (400, json!(param)), "{message}");
        assert!(message.contains(word), "{message}");
    }
    // Nobody asked to hold these.
    let let_go = json!({"tools": bad_tool(&overlapping, false), "tool_choice": {"type": "function", "function": {"name": "bad"}}, "max_tokens": 20});
    assert_eq!(gateway.chat(with(ask("Hello!"), let_go)).await.status, 200);
    assert!(is_port(&gateway.chat(with(ask("Hello!"), format(port()))).await.text()));
}

fn marker() -> Value {
    let parameters = json!({"type": "object", "properties": {"side": {"enum": ["port", "starboard"]}}, "required": ["side"], "additionalProperties": false});
    json!({"type": "function", "function": {"name": "turn-to", "parameters": parameters, "strict": true}})
}

/// Models that want to say something else, by their families' templates.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_forced_in_the_format_of_each_family() {
    for (model, strict_beside_words) in [
        (Scripted::new("mistral", &[("[/INST]", "No.")]), true),
        (Scripted::new("llama", &[("\u{10a}", "No.")]), false),
        (Scripted::new("qwen2", &[("\u{10a}", "No.")]), true),
    ] {
        let gateway = Gateway::start(&format!("{}{BARE}", model.model(NAME))).await;
        let asked =
            json!({"tools": [marker()], "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 400});
        let answer = gateway.chat(with(ask("Hello!"), asked)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let made = calls(&answer);
        assert!(made.len() == 1 && made[0].0 == "turn-to", "{made:?}");
        let arguments: Value = serde_json::from_str(&made[0].1).unwrap();
        assert!(["port", "starboard"].contains(&arguments["side"].as_str().unwrap()), "{arguments}");
        let answer = gateway.chat(with(ask("Hello!"), json!({"tools": [marker()]}))).await;
        if strict_beside_words {
            assert_eq!((answer.status, answer.text()), (200, "No.".to_owned()));
        } else {
            let (message, param, _) = answer.error();
            assert_eq!((answer.status, param), (400, json!("tools[0].function.strict")), "{message}");
        }
        let answer = gateway.chat(with(ask("Hello!"), format(json!({"type": "object", "properties": {"x": {"const": "y"}}, "required": ["x"], "additionalProperties": false})))).await;
        assert_eq!(serde_json::from_str::<Value>(&answer.text()).unwrap(), json!({"x": "y"}));
    }
}

/// Arguments that are no object are no call to whoever reads it.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_an_object_where_the_schema_does_not_say_so() {
    for (model, said) in [
        (Scripted::new("mistral", &[("[/INST]", "No.")]), "mistral"),
        (Scripted::new("llama", &[("\u{10a}", "No.")]), "llama"),
        (Scripted::new("qwen2", &[("\u{10a}", "No.")]), "qwen2"),
    ] {
        let gateway = Gateway::start(&format!("{}{BARE}", model.model(NAME))).await;
        let mut tool = marker();
        tool["function"]["parameters"].as_object_mut().unwrap().remove("type");
        for strict in [false, true] {
            tool["function"]["strict"] = json!(strict);
            let asked =
                json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 400});
            let made = calls(&gateway.chat(with(ask("Hello!"), asked)).await);
            let arguments: Value = serde_json::from_str(&made[0].1).unwrap();
            assert!(["port", "starboard"].contains(&arguments["side"].as_str().unwrap()), "{said}: {arguments}");
        }
    }
}

const CALCULATOR: &str =
    "[[pipeline.stage]]\nplugin = \"calculator\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";

/// Behind a call of the server's tools nothing is forced. What could not be held then is found out before one runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_turn_behind_a_tool_of_the_server_cannot_hold_is_no_matter_of_that_turn() {
    let sum = r#"{"name": "calculator", "parameters": {"expression": "2+2"}}"#;
    let model = Scripted::new("llama", &[("\u{10a}", sum)]);
    let gateway = Gateway::start(&format!("{}{CALCULATOR}", model.model(NAME))).await;
    let json = format(
        json!({"type": "object", "properties": {"x": {"const": "y"}}, "required": ["x"], "additionalProperties": false}),
    );
    let unheld =
        format(json!({"type": "object", "properties": {"n": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}));
    let mut loose = marker();
    loose["function"]["strict"] = json!(false);
    let ours = json!({"type": "function", "function": {"name": "calculator"}});
    for more in [json!({"tools": [marker()]}), with(json.clone(), json!({"tools": [loose]}))] {
        let asked = with(with(ask("Hello!"), more), json!({"max_tokens": 400, "parallel_tool_calls": false}));
        let answer = gateway.chat(with(asked.clone(), json!({"tool_choice": "required"}))).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        assert_eq!(calls(&answer)[0].0, "turn-to", "the server's tool is not offered");
        let answer = gateway.chat(with(asked, json!({"tool_choice": ours}))).await;
        let (message, param, _) = answer.error();
        assert_eq!((answer.status, param), (400, json!("tool_choice")), "{message}");
        assert!(message.contains("`calculator`") && message.contains("leave `tools` out"), "{message}");
    }
    // A stream whose first turn has begun has a status that is no refusal.
    for choice in [json!("required"), ours] {
        let answer = gateway
            .chat(with(with(ask("Hello!"), unheld.clone()), json!({"tool_choice": choice, "stream": true})))
            .await;
        let (message, param, _) = answer.error();
        assert_eq!((answer.status, param), (400, json!("response_format.json_schema.schema")), "{message}");
    }
    let answer = gateway.chat(with(with(ask("Hello!"), json), json!({"tool_choice": "required"}))).await;
    assert_eq!(serde_json::from_str::<Value>(&answer.text()).unwrap(), json!({"x": "y"}));
}

/// Whoever reads an answer sees text: marks that are spelled in plain tokens would be calls that nothing has held.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_cannot_be_spelled_in_plain_tokens() {
    let hermes = r#"call>{"name": "turn-to", "arguments": {"side": "left"}}</tool_call>"#;
    let mistral = r#"CALLS][{"name": "turn-to", "arguments": {"side": "left"}}]"#;
    let thought = format!("think><tool_{hermes}");
    for model in [
        Scripted::new("qwen2", &[("\u{10a}", "<tool_"), ("<tool_", hermes)]),
        Scripted::new("mistral", &[("[/INST]", "[TOOL_"), ("[TOOL_", mistral)]),
        Scripted::new("qwen3", &[("\u{10a}", "<think>"), ("<think>", "Hm.</"), ("Hm.</", &thought)]),
    ] {
        let gateway = Gateway::start(&format!("{}{BARE}", model.model(NAME))).await;
        let asked = |strict: bool| {
            let mut tool = marker();
            tool["function"]["strict"] = json!(strict);
            with(ask("Hello!"), json!({"tools": [tool], "max_tokens": 40}))
        };
        let made = calls(&gateway.chat(asked(false)).await);
        assert_eq!(made, [("turn-to".to_owned(), r#"{"side": "left"}"#.to_owned())], "nothing holds this one");
        let answer = gateway.chat(asked(true)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let message = &answer.json()["choices"][0]["message"];
        assert!(
            message["tool_calls"].is_null() || calls(&answer).iter().all(|(_, made)| !made.contains("left")),
            "{message}"
        );
    }
}

/// Mistral's calls need no quotes, so a string may be written like one.
#[tokio::test(flavor = "multi_thread")]
async fn a_string_of_the_answer_is_no_call() {
    let said = r#"{"x":"[TOOL_CALLS]turn-to[ARGS]{}"}"#;
    let model = Scripted::new("mistral", &[("[/INST]", said)]);
    let gateway = Gateway::start(&format!("{}{BARE}", model.model(NAME))).await;
    let asked = json!({"tools": [marker()], "response_format": {"type": "json_object"}});
    let answer = gateway.chat(with(ask("Hello!"), asked)).await;
    assert_eq!((answer.status, answer.text()), (200, said.to_owned()), "{:?}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_reasons_may_do_so_before_its_json() {
    let script = [("\u{10a}", "<think>"), ("<think>", "Hm."), ("Hm.", "</think>"), ("</think>", "No.")];
    let model = Scripted::new("qwen3", &script);
    let gateway = Gateway::start(&format!("{}{BARE}", model.model(NAME))).await;
    let schema = json!({"type": "object", "properties": {"x": {"const": "y"}}, "required": ["x"], "additionalProperties": false});
    let answer = gateway.chat(with(ask("Hello!"), format(schema))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Hm.", "{answer}");
    assert_eq!(serde_json::from_str::<Value>(message["content"].as_str().unwrap()).unwrap(), json!({"x": "y"}));
}
