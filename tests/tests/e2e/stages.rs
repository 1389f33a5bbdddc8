//! Stages that come after generation, and plugins that keep failing, on the path of real requests.

use crate::failing::failures;
use crate::talk::until;
use http_body_util::BodyExt;
use serde_json::json;
use std::path::Path;
use tidegate::config::Config;
use tidegate_tests::{Gateway, ask, finish_reason, joined};
use tokio::net::TcpListener;

/// A stage of a guest from `tests/guests`, with patient limits and one instance.
fn stage(guest: &str, stages: &str, more: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{guest}\"\nfile = \"{}\"\nstages = {stages}\n{more}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\ninstances = 1\n",
        file.display()
    )
}

/// The same under a name of its own: counters are of the whole process.
fn stage_as(name: &str, guest: &str, stages: &str, more: &str) -> String {
    stage(guest, stages, more).replace(&format!("plugin = \"{guest}\""), &format!("plugin = \"{name}\""))
}

pub(crate) async fn metrics(gateway: &Gateway) -> String {
    String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap()
}

/// The count of a guard's refusals.
pub(crate) fn refusals(name: &str, kind: &str) -> String {
    format!("tidegate_plugin_verdicts_total{{plugin=\"{name}\",stage=\"{kind}\",verdict=\"refuse\"}}")
}

/// Waits until the metrics hold a line that begins with `start` and ends in ` value`.
pub(crate) async fn counted(gateway: &Gateway, start: &str, value: u64) {
    let ends = format!(" {value}");
    until(&format!("{start}... {value}"), async || {
        let metrics = metrics(gateway).await;
        metrics.lines().any(|line| line.starts_with(start) && line.ends_with(&ends)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_guard_decides_on_the_whole_answer_streamed_or_not() {
    for (config, expected, finish) in
        [("respond", Some("hello"), "stop"), ("refuse", None, "content_filter"), ("allow", None, "stop")]
    {
        let config = format!("config = {{ output = \"{config}\" }}");
        let gateway = Gateway::start(&stage("honest", "[\"output-guard\"]", &config)).await;
        let whole = gateway.chat(ask("Hello!")).await;
        assert_eq!(whole.status, 200, "{:?}", whole.body);
        let body = whole.json();
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], finish);
        let events = gateway.stream(ask("Hello!")).await;
        assert_eq!(finish_reason(&events, 0), finish);
        assert_eq!(joined(&events, 0), whole.text());
        match expected {
            Some(_) => assert!(whole.text().contains("tidegate-starter"), "{}", whole.text()),
            None if finish == "content_filter" => {
                assert_eq!(choice["message"]["refusal"], "no");
                assert_eq!(whole.text(), "");
            }
            None => assert!(!whole.text().is_empty()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_guard_changes_the_answer_and_may_let_streams_pass() {
    let shout = "streamed = \"pass\"\nconfig = { output = \"shout\" }";
    let gateway = Gateway::start(&stage("honest", "[\"output-guard\"]", shout)).await;
    let streamed = joined(&gateway.stream(ask("Hello!")).await, 0);
    assert_ne!(streamed, streamed.to_uppercase());
    assert_eq!(gateway.chat(ask("Hello!")).await.text(), streamed.to_uppercase());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_guard_that_traps_withholds_the_answer_unless_it_is_open() {
    for (on_error, status) in [("closed", 503), ("open", 200), ("skip", 200)] {
        let more = format!("on_error = \"{on_error}\"\nconfig = {{ trap = \"output-guard\" }}");
        let gateway = Gateway::start(&stage("honest", "[\"output-guard\"]", &more)).await;
        assert_eq!(gateway.chat(ask("Hello!")).await.status, status, "{on_error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_recalls_in_the_next_conversation_what_was_said_in_this_one() {
    let config = stage_as("recalls", "remembers", "[\"memory\"]", "[pipeline.stage.grants]\nkv_kib = 64");
    let gateway = Gateway::start(&config).await;
    let calls = "tidegate_plugin_call_seconds_count{plugin=\"recalls\",stage=\"memory\"}";
    let said = gateway.chat(ask("The harbour of Kelso opens at nine.")).await;
    assert_eq!(said.status, 200);
    counted(&gateway, calls, 2).await;
    let before = said.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let again = gateway.chat(ask("The harbour of Kelso opens at nine.")).await;
    let after = again.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(after > before, "the memory stands in front of the question: {before} and then {after} tokens");
    counted(&gateway, calls, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_told_of_every_end_and_delays_none() {
    let told = "tidegate_plugin_events_total{plugin=\"is-told\",tenant=\"local\",name=\"told\"}";
    let gateway = Gateway::start(&stage_as("is-told", "honest", "[\"observer\"]", "")).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    gateway.stream(ask("Hello!")).await;
    let mut unknown = ask("Hello!");
    unknown["model"] = "no-such-model".into();
    assert_eq!(gateway.chat(unknown).await.status, 404);
    counted(&gateway, told, 3).await;
}

/// Its upstream was asked and has said nothing, so that there is no reply yet, which would tell.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_told_of_a_client_that_leaves_before_it_has_a_reply() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("[[models]]\nname = \"m\"\nupstream = \"http://{}/v1\"\n", upstream.local_addr().unwrap());
    let observer = stage_as("of-leavers", "honest", "[\"observer\"]", "");
    let gateway = Gateway::start(&format!("{silent}{observer}")).await;
    let told = "tidegate_plugin_events_total{plugin=\"of-leavers\",tenant=\"local\",name=\"told\"}";
    let mut chat = ask("Hello!");
    chat["model"] = "m".into();
    let two = json!({"model": "m", "prompt": ["Hello!", "Goodbye!"]});
    for (path, body, count) in [("/v1/chat/completions", chat, 1), ("/v1/completions", two, 3)] {
        let asking = gateway.send(gateway.json_request(path, &body));
        let _asked = tokio::select! {
            answer = asking => panic!("{path} was answered: {answer:?}"),
            asked = upstream.accept() => asked.unwrap(),
        };
        counted(&gateway, told, count).await;
    }
}

/// Neither function ends before its limit, which is seen to be met after the answer.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_an_observer_nor_for_what_a_memory_makes_of_an_answer() {
    for (kind, function) in [("observer", "observer"), ("memory", "remember")] {
        let name = format!("lingers-{function}");
        let more = format!("config = {{ linger = \"{function}\" }}");
        let config = stage_as(&name, "honest", &format!("[\"{kind}\"]"), &more)
            .replace("wall_ms = 20000", "wall_ms = 60000\ncpu_ms = 4000");
        let gateway = Gateway::start(&config).await;
        let events = gateway.stream(ask("Hello!")).await;
        assert_eq!(finish_reason(&events, 0), "stop", "{events:?}");
        let failed = format!("tidegate_plugin_failures_total{{plugin=\"{name}\",stage=\"{kind}\"");
        assert!(!metrics(&gateway).await.contains(&failed), "{name}: it goes on behind the answer");
        counted(&gateway, &failed, 1).await;
    }
}

/// The client leaves; what it asks then is the one thing that is remembered.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_not_read_to_its_end_is_not_remembered() {
    let models = "[[models]]\nname = \"leaves\"\npath = \"bundled\"\n";
    let memory = stage_as("of-readers", "remembers", "[\"memory\"]", "[pipeline.stage.grants]\nkv_kib = 64");
    let gateway = Gateway::start(&format!("{models}{memory}")).await;
    let mut request = ask("The harbour of Leith opens at ten.");
    (request["model"], request["stream"]) = ("leaves".into(), true.into());
    let mut long = request.clone();
    (long["max_tokens"], long["logit_bias"]) = (900.into(), json!({"2": -100}));
    let mut left = gateway.send(gateway.json_request("/v1/chat/completions", &long)).await.into_body();
    assert!(left.frame().await.is_some_and(|frame| frame.is_ok()));
    drop(left);
    let gone = "tidegate_requests_total{model=\"leaves\"";
    until("it is recorded that the client left", async || {
        let metrics = metrics(&gateway).await;
        metrics
            .lines()
            .any(|line| line.starts_with(gone) && line.contains("client-gone") && line.ends_with(" 1"))
            .then_some(())
    })
    .await;
    let known = async || gateway.get("/v1/memories?q=When+does+the+harbour+open").await.json()["data"].clone();
    request["messages"][0]["content"] = "The harbour of Kelso opens at nine.".into();
    gateway.stream(request).await;
    let found = until("it is remembered", async || Some(known().await).filter(|found| found[0].is_object())).await;
    let texts: Vec<&str> = found.as_array().unwrap().iter().filter_map(|item| item["text"].as_str()).collect();
    assert_eq!(texts[0], "The harbour of Kelso opens at nine.", "it has nothing of who left: {texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_traps_changes_no_answer() {
    let gateway = Gateway::start(&stage("honest", "[\"observer\"]", "config = { trap = \"observer\" }")).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    let failed = "tidegate_plugin_failures_total{plugin=\"honest\",stage=\"observer\",case=\"trap\"}";
    until("the trap is counted", async || metrics(&gateway).await.contains(failed).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_that_traps_is_passed_over_unless_it_is_closed() {
    for (on_error, status) in [("closed", 503), ("open", 200)] {
        let more = format!("on_error = \"{on_error}\"\nconfig = {{ trap = \"memory\" }}");
        let gateway = Gateway::start(&stage("honest", "[\"memory\"]", &more)).await;
        assert_eq!(gateway.chat(ask("Hello!")).await.status, status, "{on_error}");
    }
}

/// It would trap in each of the others, which would end the request: guards, tools, retriever and memory are closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_runs_only_in_the_stages_that_the_config_names() {
    let others = ["prompt-guard", "stream-guard", "router", "tool-list", "retriever", "output-guard", "memory"];
    for other in others {
        let more = format!("on_error = \"closed\"\nconfig = {{ trap = \"{other}\" }}");
        let gateway = Gateway::start(&stage("honest", "[\"observer\"]", &more)).await;
        assert_eq!(gateway.chat(ask("refuse")).await.status, 200, "{other}");
        // Without a router this is a name as any other.
        let mut routed = ask("Hello!");
        routed["model"] = "auto".into();
        assert_eq!(gateway.chat(routed).await.status, 404, "{other}");
    }
    for named in others.into_iter().filter(|kind| *kind != "router") {
        let kind = if named == "tool-list" { "tool-provider" } else { named };
        let more = format!("on_error = \"closed\"\nconfig = {{ trap = \"{named}\" }}");
        let gateway = Gateway::start(&stage("honest", &format!("[\"{kind}\"]"), &more)).await;
        assert_eq!(gateway.chat(ask("Hello!")).await.status, 503, "{named}");
    }
}

/// Three failures, as its breaker says, then the guard is not asked for a while, not even about what it would allow.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_keeps_failing_is_left_out_and_comes_back() {
    let breaker = "[pipeline.stage.breaker]\nfailures = 3\nwithin_ms = 60000\npause_ms = 10000";
    let config = stage_as("tired", "panics", "[\"prompt-guard\"]", breaker);
    let gateway = Gateway::start(&config).await;
    for _ in 0..3 {
        assert_eq!(gateway.chat(ask("panic")).await.status, 503);
    }
    counted(&gateway, "tidegate_plugin_pauses_total{plugin=\"tired\"}", 1).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 503);
    assert!(metrics(&gateway).await.contains("case=\"paused\""));
    until("it comes back", async || (gateway.chat(ask("Hello!")).await.status == 200).then_some(())).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
}

/// As an output guard it works all the time: it withholds what it is asked about.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_keeps_failing_in_one_of_its_stages_is_left_out_of_all() {
    let more = "on_error = \"open\"\nconfig = { output = \"refuse\" }\n\
                [pipeline.stage.breaker]\nfailures = 2\nwithin_ms = 600000\npause_ms = 600000";
    let config = stage_as("tired-in-one", "honest", "[\"prompt-guard\", \"output-guard\"]", more);
    let gateway = Gateway::start(&config).await;
    for (text, is_withheld) in [("trap", true), ("trap", false), ("Hello!", false)] {
        let body = gateway.chat(ask(text)).await.json();
        let finish = &body["choices"][0]["finish_reason"];
        assert_eq!(finish == "content_filter", is_withheld, "{text}: {body}");
    }
    for (kind, case, count) in
        [("prompt-guard", "trap", 2), ("prompt-guard", "paused", 1), ("output-guard", "paused", 2)]
    {
        counted(&gateway, &failures("tired-in-one", kind, case), count).await;
    }
    counted(&gateway, "tidegate_plugin_pauses_total{plugin=\"tired-in-one\"}", 1).await;
}

/// Whoever writes prompts that a plugin says too much about takes it from nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_large_is_a_failure_and_leaves_nothing_out() {
    let config = stage_as("wordy", "bloats", "[\"prompt-guard\"]", "");
    let gateway = Gateway::start(&config).await;
    for _ in 0..6 {
        let refused = gateway.chat(ask("2")).await;
        assert_eq!((refused.status, refused.error().2.as_str()), (503, Some("plugin_failed")));
    }
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    assert!(metrics(&gateway).await.contains("plugin=\"wordy\",stage=\"prompt-guard\",case=\"too-large\"} 6"));
}

/// Nobody would know why nothing is found.
#[test]
fn a_number_that_asks_for_nothing_is_refused_by_its_key() {
    for (line, said) in [("top_k = 0", "top_k is 0"), ("min_score = nan", "min_score is no number")] {
        let text = format!("[[pipeline.stage]]\nplugin = \"folder-retriever\"\n{line}\n");
        let why = format!("{:#}", Config::parse(&text).unwrap_err());
        assert!(why.contains("`folder-retriever`") && why.contains(said), "{why}");
    }
}
