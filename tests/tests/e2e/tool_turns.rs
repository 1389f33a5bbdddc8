//! Answers in which the model calls the server's tools, in turns: each knows of the one before, and what a request asks
//! for holds for all of them together.

mod guarded;
mod room;

use crate::stages::metrics;
use crate::talk::until;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, BARE, Gateway, ask, collect, finish_reason, with_model};
use tokio::sync::Semaphore;

const CHAT: &str = "/v1/chat/completions";
const SUM: &str = "{\"expression\": \"17*23\"}";

const STAGES: &str =
    "[[pipeline.stage]]\nplugin = \"calculator\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
const GUARD: &str =
    "[[pipeline.stage]]\nplugin = \"pii-guard\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";

pub(crate) fn whole(message: &Value, finish: &str, prompt_tokens: u64, completion_tokens: u64) -> Said {
    Said::json(&json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens},
    }))
}

pub(crate) fn calls(tool: &str, arguments: &str) -> Value {
    let function = json!({"name": tool, "arguments": arguments});
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": function}]})
}

/// What the chat is asked with so that a call of `find` is its caller's.
pub(crate) fn find() -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]})
}

pub(crate) fn says(text: &str) -> Said {
    whole(&json!({"role": "assistant", "content": text}), "stop", 10, 2)
}

/// Whether a tool has answered already.
pub(crate) fn is_told(body: &Value) -> bool {
    body["messages"].as_array().unwrap().iter().any(|message| message["role"] == "tool")
}

/// Calls the calculator with these arguments, and says that once it was told what comes of it.
async fn calculates(arguments: &'static str, said: &'static str) -> StandIn {
    StandIn::start(move |_, body| match is_told(body) {
        true => says(said),
        false => whole(&calls("calculator", arguments), "tool_calls", 10, 8),
    })
    .await
}

async fn gateway(upstream: &StandIn, more: &str) -> Gateway {
    Gateway::start(&format!("{}{more}", upstream.model("tidegate-starter"))).await
}

fn with(mut request: Value, more: Value) -> Value {
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// Of a server that puts the signature of a thought into the id, and of a model that calls what nobody has offered.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_taken_back_as_it_was_handed_out() {
    let mut message = calls("functions.find", "{}");
    let id = format!("call_1__thought__{}", "Es4B+/=".repeat(1000));
    message["tool_calls"][0]["id"] = id.as_str().into();
    let upstream = StandIn::start(move |_, body| match is_told(body) {
        true => says("Found."),
        false => whole(&message, "tool_calls", 10, 8),
    })
    .await;
    let gateway = gateway(&upstream, BARE).await;
    let mut request = with_model(with(ask("Find it."), find()));
    let called = gateway.chat(request.clone()).await.json()["choices"][0]["message"].clone();
    let outcome = json!({"role": "tool", "tool_call_id": id, "name": "functions.find", "content": "x"});
    request["messages"].as_array_mut().unwrap().extend([called, outcome]);
    let answer = gateway.chat(request).await;
    assert_eq!((answer.status, &*answer.text()), (200, "Found."), "{:?}", answer.body);
    let tools = json!([{"type": "function", "name": "find"}]);
    let asked = |input: &[Value]| with_model(json!({"input": input, "tools": tools}));
    let mut input = vec![json!({"role": "user", "content": "Find it."})];
    let called = gateway.post("/v1/responses", &asked(&input)).await.json();
    input.extend(called["output"].as_array().unwrap().iter().cloned());
    input.push(json!({"type": "function_call_output", "call_id": id, "output": "x"}));
    let answer = gateway.post("/v1/responses", &asked(&input)).await;
    assert_eq!(answer.json()["output"][0]["content"][0]["text"], "Found.", "{:?}", answer.body);
    let seen = upstream.asked(CHAT);
    for told in [&seen[1]["messages"], &seen[3]["messages"]] {
        let call = &told[1]["tool_calls"][0];
        let names = [&call["id"], &told[2]["tool_call_id"], &call["function"]["name"]];
        assert_eq!(names, [&json!(id), &json!(id), &json!("functions.find")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_knows_what_the_model_said_and_thought_before_its_call() {
    let upstream = StandIn::start(|_, body| {
        if is_told(body) {
            return says("It is 391.");
        }
        let said = json!({"content": "Let me work that out.", "reasoning_content": "A product."});
        whole(&with(calls("calculator", SUM), said), "tool_calls", 10, 8)
    })
    .await;
    let gateway = gateway(&upstream, STAGES).await;
    assert_eq!(gateway.chat(ask("What is 17*23?")).await.text(), "Let me work that out.It is 391.");
    let asked = upstream.asked(CHAT);
    let [_, called, told] = asked[1]["messages"].as_array().unwrap().as_slice() else { panic!("{:?}", asked[1]) };
    assert_eq!(
        (&called["content"], &called["reasoning_content"]),
        (&json!("Let me work that out."), &json!("A product."))
    );
    assert_eq!(called["tool_calls"][0]["function"]["arguments"], SUM);
    assert_eq!((&told["role"], &told["content"]), (&json!("tool"), &json!("391")));
}

/// A model that must call a tool does, and can answer then.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_must_be_called_is_called_once() {
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "calculator"}})] {
        let upstream = StandIn::start(|_, body| match &body["tool_choice"] {
            Value::Null => says("It is 391."),
            _ => whole(&calls("calculator", SUM), "tool_calls", 10, 8),
        })
        .await;
        let gateway = gateway(&upstream, STAGES).await;
        let answer = gateway.chat(with(ask("What is 17*23?"), json!({"tool_choice": choice}))).await;
        assert_eq!(answer.text(), "It is 391.", "{choice}");
        let asked = upstream.asked(CHAT);
        assert_eq!((asked.len(), &asked[0]["tool_choice"]), (2, &choice));
        let called = &asked[1]["messages"][1];
        assert!(
            called["tool_calls"].is_array() && called["content"].is_null(),
            "what has no words says none: {called}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_never_stops_calling_is_asked_no_oftener_than_it_may_call() {
    let upstream = StandIn::start(|_, _| whole(&calls("calculator", SUM), "tool_calls", 10, 8)).await;
    let gateway = gateway(&upstream, &format!("[pipeline]\nmax_tool_turns = 2\n{STAGES}")).await;
    let answer = gateway.chat(ask("What is 17*23?")).await;
    assert_eq!((answer.status, answer.error().2), (500, json!("tool_loop")));
    assert_eq!(upstream.asked(CHAT).len(), 3);
}

/// With none to call there is no call that would end the answer.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_turn_may_call_tools_none_are_offered() {
    let upstream = StandIn::start(|_, _| says("About 400.")).await;
    let gateway = gateway(&upstream, &format!("[pipeline]\nmax_tool_turns = 0\n{STAGES}")).await;
    assert_eq!(gateway.chat(ask("What is 17*23?")).await.text(), "About 400.");
    assert!(upstream.asked(CHAT)[0]["tools"].is_null());
}

/// Some models begin anew with their ids in each turn: what is redacted of one call must not stand in another.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_redacts_each_of_several_calls_with_one_id_and_their_ids_stay() {
    let upstream = StandIn::start(|_, _| says("Done.")).await;
    let gateway = gateway(&upstream, GUARD).await;
    let turn = |to: &str| {
        let said = json!({"role": "tool", "tool_call_id": "a", "content": format!("sent to {to}")});
        [calls("send", &json!({ "to": to }).to_string()), said]
    };
    let mut messages = vec![json!({"role": "user", "content": "Write to both."})];
    messages.extend(turn("ann@example.com").into_iter().chain(turn("nobody")).chain(turn("bob@example.com")));
    assert_eq!(gateway.chat(json!({ "messages": messages })).await.text(), "Done.");
    let asked = upstream.asked(CHAT)[0]["messages"].clone();
    let seen: Vec<&Value> = asked.as_array().unwrap().iter().collect();
    for (i, to) in [(1, "[email]"), (3, "nobody"), (5, "[email]")] {
        let (call, outcome) = (&seen[i]["tool_calls"][0], seen[i + 1]);
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!((&arguments["to"], &call["id"]), (&json!(to), &json!("a")), "{asked}");
        let told = (json!(format!("sent to {to}")), json!("a"));
        assert_eq!((&outcome["content"], &outcome["tool_call_id"]), (&told.0, &told.1), "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_tools_with_one_name_the_first_is_offered() {
    let upstream = calculates(SUM, "It is 391.").await;
    let gateway = gateway(&upstream, &format!("{STAGES}{STAGES}")).await;
    assert_eq!(gateway.chat(ask("What is 17*23?")).await.text(), "It is 391.");
    let asked = upstream.asked(CHAT);
    assert_eq!(asked[0]["tools"].as_array().unwrap().len(), 1, "{:?}", asked[0]);
}

/// What a tool says is text from outside: the guards of prompts judge it before the model reads it.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_redacts_what_a_tool_of_the_server_says_or_withholds_it() {
    for (action, verdict, told) in
        [("redact", "rewrite", "[redacted]"), ("block", "refuse", "the result was withheld by a filter of this server")]
    {
        let upstream = StandIn::start(|_, body| match is_told(body) {
            true => says("Done."),
            false => whole(&calls("calculator", SUM), "tool_calls", 10, 8),
        })
        .await;
        let guard = format!(
            "[[pipeline.stage]]\nplugin = \"judges-{action}\"\nfile = {:?}\nconfig = {{ words = [\"391\"], action = \"{action}\" }}\n\
             [pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist/word-guard.wasm")
        );
        let gateway = gateway(&upstream, &format!("{STAGES}{guard}")).await;
        assert_eq!(gateway.chat(ask("What is 17*23?")).await.text(), "Done.", "{action}");
        let messages = upstream.asked(CHAT)[1]["messages"].clone();
        let [_, called, outcome] = messages.as_array().unwrap().as_slice() else { panic!("{messages}") };
        assert_eq!(called["tool_calls"][0]["function"]["arguments"], SUM);
        assert_eq!(
            (&outcome["role"], &outcome["content"], &outcome["tool_call_id"]),
            (&json!("tool"), &json!(told), &called["tool_calls"][0]["id"]),
            "{action}"
        );
        let counted = format!(
            "tidegate_plugin_verdicts_total{{plugin=\"judges-{action}\",stage=\"prompt-guard\",verdict=\"{verdict}\"}} 1"
        );
        let metrics = metrics(&gateway).await;
        assert!(metrics.lines().any(|line| line == counted), "{action}: {metrics}");
    }
}

/// What the caller's tool says may be what ours is to be asked; so all calls of the next turn are the model's to make again.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_calls_a_tool_of_the_caller_ends_the_answer_and_runs_none_of_the_servers() {
    let mut both = calls("calculator", SUM);
    both["tool_calls"].as_array_mut().unwrap().push(json!({"id": "b", "type": "function",
        "function": {"name": "find", "arguments": "{}"}}));
    let upstream = StandIn::start(move |_, _| whole(&both, "tool_calls", 10, 8)).await;
    let gateway = gateway(&upstream, STAGES).await;
    let answer = gateway.chat(with(ask("What is 17*23?"), find())).await.json();
    let choice = &answer["choices"][0];
    let returned = choice["message"]["tool_calls"].as_array().unwrap();
    let names: Vec<&Value> = returned.iter().map(|call| &call["function"]["name"]).collect();
    assert_eq!((names, &choice["finish_reason"]), (vec![&json!("find")], &json!("tool_calls")));
    assert_eq!(upstream.asked(CHAT).len(), 1, "the calculator was run and the model asked again");

    let events = gateway.stream(with(ask("What is 17*23?"), find())).await;
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    let names: Vec<&Value> = deltas.map(|call| &call["function"]["name"]).collect();
    assert_eq!((names, finish_reason(&events, 0)), (vec![&json!("find")], json!("tool_calls")));
    assert_eq!(upstream.asked(CHAT).len(), 2);
}

/// Eight tokens of the ten are the first turn's. What was used is the sum of the turns, the prompt of each too.
#[tokio::test(flavor = "multi_thread")]
async fn max_tokens_are_of_the_whole_answer() {
    for (first, expected, prompts) in [(8, json!([10, 2]), 20), (10, json!([10]), 10)] {
        let upstream = StandIn::start(move |_, body| match is_told(body) {
            true => whole(&json!({"role": "assistant", "content": "It is"}), "length", 10, 2),
            false => whole(&with(calls("calculator", SUM), json!({"content": "Well."})), "tool_calls", 10, first),
        })
        .await;
        let gateway = gateway(&upstream, STAGES).await;
        let request = with(ask("What is 17*23?"), json!({"max_tokens": 10}));
        let answer = gateway.chat(request.clone()).await;
        assert_eq!(answer.text(), if first == 8 { "Well.It is" } else { "Well." });
        let answer = answer.json();
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("length"), &json!(10))
        );
        assert_eq!(answer["usage"]["prompt_tokens"], prompts);
        let bounds: Vec<Value> = upstream.asked(CHAT).iter().map(|body| body["max_tokens"].clone()).collect();
        assert_eq!(Value::Array(bounds), expected);
        let events = gateway.stream(with(request, json!({"stream_options": {"include_usage": true}}))).await;
        assert_eq!(events.last().unwrap()["usage"], answer["usage"]);
    }
}

/// The second turn says nothing of what it used: no sum is told, to an output guard as little as to the caller. The figures
/// have what was counted as it came.
#[tokio::test(flavor = "multi_thread")]
async fn a_sum_that_lacks_a_turn_is_told_to_nobody() {
    let honest = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let shows = format!(
        "[[pipeline.stage]]\nplugin = \"shows\"\nfile = \"{}\"\nstages = [\"output-guard\"]\n\
         config = {{ output = \"respond\" }}\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n",
        honest.display()
    );
    for is_counted in [true, false] {
        let upstream = StandIn::start(move |_, body| match is_told(body) {
            true if is_counted => says("It is 391."),
            true => Said::json(&json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices":
                [{"index": 0, "message": {"role": "assistant", "content": "It is 391."}, "finish_reason": "stop"}]})),
            false => whole(&calls("calculator", SUM), "tool_calls", 10, 8),
        })
        .await;
        let name = format!("counted-{is_counted}");
        let gateway = Gateway::start(&format!("{}{STAGES}{shows}", upstream.model(&name))).await;
        let answer = gateway.chat(with(ask("What is 17*23?"), json!({"model": name}))).await;
        let told = answer.json()["usage"]["prompt_tokens"].as_u64();
        let shown = answer.text();
        assert_eq!(
            (told.filter(|told| *told > 0), shown.contains("None")),
            (is_counted.then_some(20), !is_counted),
            "{shown}"
        );
        let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
        let mut lines = metrics.lines().filter(|line| line.starts_with("tidegate_output_tokens_total{"));
        let line = lines.find(|line| line.contains(&name)).unwrap();
        let counted: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(counted >= 8, "{line}");
    }
}

/// What a caller's tool is called with is the caller's to check, a call that was cut off included.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_are_no_json_leave_as_the_model_wrote_them() {
    for (arguments, finish) in [("{\"a\": ", "length"), ("{'a': 1}", "tool_calls")] {
        for stages in ["[pipeline]\n", GUARD] {
            let upstream = StandIn::start(move |_, _| whole(&calls("find", arguments), finish, 10, 8)).await;
            let gateway = gateway(&upstream, stages).await;
            let answer = gateway.chat(with(ask("Find it."), find())).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            let choice = &answer.json()["choices"][0];
            assert_eq!(choice["finish_reason"], finish);
            assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], arguments);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_models_mistakes_in_calls_of_the_servers_tools_are_told_to_it() {
    let upstream = calculates("{'expression': ", "I cannot.").await;
    let gateway = gateway(&upstream, &format!("{STAGES}{GUARD}")).await;
    assert_eq!(gateway.chat(ask("What is 17*23?")).await.text(), "I cannot.");
    let messages = upstream.asked(CHAT)[1]["messages"].clone();
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{}", "other servers read it");
    assert!(messages[2]["content"].as_str().unwrap().contains("the arguments are no JSON"), "{messages}");
}

/// The answer ends where it was cut: what the tool says could not be told any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_the_server_is_not_run_for_a_turn_that_was_cut_off() {
    let cut = with(calls("calculator", "{\"expression\": \"17"), json!({"content": "Let me see."}));
    let upstream = StandIn::start(move |_, _| whole(&cut, "length", 10, 8)).await;
    let gateway = gateway(&upstream, STAGES).await;
    let answer = gateway.chat(ask("What is 17*23?")).await;
    assert_eq!(
        (answer.text().as_str(), &answer.json()["choices"][0]["finish_reason"]),
        ("Let me see.", &json!("length"))
    );
    assert_eq!(upstream.asked(CHAT).len(), 1);
}

/// A key `tg-ann`.
fn key(limits: &str) -> String {
    format!("[[keys]]\nname = \"ann\"\nhash = \"blake3:{}\"\nlimits = {{ {limits} }}\n", blake3::hash(b"tg-ann"))
}

async fn by_ann(gateway: &Gateway, request: Value) -> Answer {
    let mut request = gateway.json_request(CHAT, &with_model(request));
    request.headers_mut().insert("authorization", "Bearer tg-ann".parse().unwrap());
    collect(gateway.send(request).await).await
}

/// A tool with a description of so many bytes.
fn tool(bytes: usize) -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "find", "description": "x".repeat(bytes)}}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_tools_take_of_a_prompt_counts_before_it_is_sent() {
    let upstream = StandIn::start(|_, _| says("Hi.")).await;
    let long = with(ask("Hello!"), with(tool(40_000), json!({"max_tokens": 1})));
    let short = with(ask("Hello!"), with(tool(400), json!({"max_tokens": 1})));
    for (limits, status, code) in [
        ("tokens_per_minute = 5000", 429, "rate_limit_exceeded"),
        ("max_context_tokens = 5000", 400, "context_length_exceeded"),
    ] {
        let gateway = gateway(&upstream, &format!("{}[pipeline]\n", key(limits))).await;
        let refused = by_ann(&gateway, long.clone()).await;
        assert_eq!((refused.status, refused.error().2), (status, json!(code)), "{limits}");
        assert_eq!(by_ann(&gateway, short.clone()).await.status, 200, "{limits}");
    }
    assert_eq!(upstream.asked(CHAT).len(), 2);
}

/// While a second turn is generated, its prompt counts already.
#[tokio::test(flavor = "multi_thread")]
async fn a_further_turn_counts_when_it_begins() {
    let gate = Arc::new(Semaphore::new(0));
    let shut = Arc::clone(&gate);
    let upstream = StandIn::start(move |_, body| match (is_told(body), body["messages"][0]["content"].as_str()) {
        (true, _) => says("It is 391.").held(&shut),
        (_, Some("Hello!")) => says("Hi."),
        _ => whole(&calls("calculator", SUM), "tool_calls", 2000, 8),
    })
    .await;
    let gateway = gateway(&upstream, &format!("{}{STAGES}", key("tokens_per_minute = 10000"))).await;
    let long = format!("What is 17*23? {}", "x".repeat(8000));
    let meanwhile = async {
        until("the second turn", async || (upstream.asked(CHAT).len() == 2).then_some(())).await;
        let meanwhile = by_ann(&gateway, with(ask("Hello!"), json!({"max_tokens": 1}))).await;
        gate.add_permits(1);
        meanwhile
    };
    let answer = by_ann(&gateway, with(ask(&long), json!({"max_tokens": 20})));
    let (answer, meanwhile) = tokio::join!(answer, meanwhile);
    assert_eq!(answer.text(), "It is 391.");
    let left: u64 = meanwhile.headers["x-ratelimit-remaining-tokens"].to_str().unwrap().parse().unwrap();
    // With one of them it would be 7,900, and 167 more for each second that it has taken.
    assert!((5000..7500).contains(&left), "{left}: two turns of 2000 tokens are counted");
}
