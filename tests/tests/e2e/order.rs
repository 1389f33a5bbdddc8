//! Stages that change things do so in the config's order; those that change nothing are asked beside each other, and the first
//! verdict in the config's order counts, whichever is there first. And what verdicts are counted as.

use crate::conversations::send;
use crate::halts::stage;
use crate::stages::{counted, refusals};
use crate::talk::until;
use hyper::Method;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tidegate_tests::stand_in::{Said, StandIn, completion, last_text};
use tidegate_tests::{Gateway, ask, joined};
use tokio::sync::Semaphore;

const CHAT: &str = "/v1/chat/completions";

/// A guard of these stages that puts a word in another's place.
fn replaces(stages: &str, word: &str, with: &str) -> String {
    let config = format!("stages = [\"{stages}\"]\nconfig = {{ words = [\"{word}\"], replacement = \"{with}\" }}");
    stage("word-guard", &config)
}

/// Both orders of two guards, and what becomes of `alpha` in each.
fn both_orders(stages: &str) -> [(String, &'static str); 2] {
    let (first, second) = (replaces(stages, "alpha", "beta"), replaces(stages, "beta", "gamma"));
    [(format!("{first}{second}"), "gamma"), (format!("{second}{first}"), "beta")]
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_guards_rewrite_in_the_configs_order() {
    for (guards, expected) in both_orders("prompt-guard") {
        let server = StandIn::start(|_, _| completion("Yes.")).await;
        let gateway = Gateway::start(&format!("{}{guards}", server.model("tidegate-starter"))).await;
        assert_eq!(gateway.chat(ask("Say alpha twice")).await.status, 200);
        assert_eq!(last_text(&server.asked(CHAT)[0]), format!("Say {expected} twice"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_guards_redact_in_the_configs_order() {
    for (guards, expected) in both_orders("stream-guard") {
        let server = StandIn::start(|_, _| completion("It is alpha indeed.")).await;
        let gateway = Gateway::start(&format!("{}{guards}", server.model("tidegate-starter"))).await;
        let expected = format!("It is {expected} indeed.");
        assert_eq!(gateway.chat(ask("What is it?")).await.text(), expected);
        assert_eq!(joined(&gateway.stream(ask("What is it?")).await, 0), expected);
    }
}

/// A guest of `tests/guests` as an output guard.
fn guest(name: &str, output: &str) -> String {
    let config = format!("stages = [\"output-guard\"]\nconfig = {{ output = \"{output}\" }}");
    named(name, "guests/dist/honest.wasm", &config)
}

/// One makes capitals of the answer, the other answers with what it was shown.
#[tokio::test(flavor = "multi_thread")]
async fn output_guards_are_shown_what_those_before_them_left() {
    let (shouts, repeats) = (guest("shouts", "shout"), guest("repeats", "respond"));
    for (guards, shown) in
        [(format!("{shouts}{repeats}"), "Text(\"HELLO\")"), (format!("{repeats}{shouts}"), "Text(\"hello\")")]
    {
        let server = StandIn::start(|_, _| completion("hello")).await;
        let gateway = Gateway::start(&format!("{}{guards}", server.model("tidegate-starter"))).await;
        let said = gateway.chat(ask("What is it?")).await.text();
        assert!(said.contains(shown), "{shown} is not in {said}");
    }
}

/// Two guards that ask a classifier of their own each and refuse in their own words. The first one's classifier answers when
/// the second one has decided.
fn judges(server: &StandIn, stages: &str) -> String {
    let judge = |name: &str| {
        let config = format!("stages = [\"{stages}\"]\nconfig = {{ message = \"{name} says no\" }}");
        let guard = named(name, "../plugins/dist/moderation-guard.wasm", &config);
        format!("{guard}[pipeline.stage.grants]\nmodels = {{ moderation = \"{name}\" }}\n")
    };
    let models: String = ["tidegate-starter", "slow", "quick"].map(|name| server.model(name)).concat();
    format!("{models}{}{}", judge("slow"), judge("quick"))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_guards_beside_each_other_the_first_verdict_in_the_configs_order_counts() {
    for stages in ["prompt-guard", "output-guard"] {
        let slow = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&slow);
        let server = StandIn::start(move |path, body| {
            let results =
                json!({"id": "m", "model": "m", "results": [{"flagged": true, "category_scores": {"hate": 0.9}}]});
            match (path, body["model"].as_str()) {
                (CHAT, _) => completion("Hello."),
                (_, Some("slow")) => Said::json(&results).held(&held),
                _ => Said::json(&results),
            }
        })
        .await;
        let gateway = Arc::new(Gateway::start(&judges(&server, stages)).await);
        let asking = Arc::clone(&gateway);
        let answer = tokio::spawn(async move { asking.chat(ask("Hello!")).await });
        // Each is asked while the other has not answered, and the second has decided before the first one may.
        let quick = format!("tidegate_plugin_call_seconds_count{{plugin=\"quick\",stage=\"{stages}\"}}");
        counted(&gateway, &quick, 1).await;
        assert!(server.asked("/v1/moderations").len() == 2 && !answer.is_finished(), "{stages}");
        slow.add_permits(1);
        let answer = answer.await.unwrap();
        let said = match stages {
            "prompt-guard" => answer.error().0,
            _ => answer.json()["choices"][0]["message"]["refusal"].as_str().unwrap_or_default().to_owned(),
        };
        assert_eq!(said, "slow says no", "{stages}: {:?}", answer.body);
        for name in ["slow", "quick"] {
            counted(&gateway, &refusals(name, stages), 1).await;
        }
    }
}

/// A stage under a name of its own: counters are of the whole process.
fn named(name: &str, guard: &str, config: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(guard);
    stage(name, &format!("file = {file:?}\n{config}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_verdict_is_counted_by_its_name() {
    const WORDS: &str = "../plugins/dist/word-guard.wasm";
    let server = StandIn::start(|_, body| completion(&last_text(body))).await;
    let redacts =
        |stages: &str| format!("stages = [\"{stages}\"]\nconfig = {{ words = [\"heron\"], replacement = \"x\" }}");
    let blocks =
        |stages: &str| format!("stages = [\"{stages}\"]\nconfig = {{ words = [\"otter\"], action = \"block\" }}");
    let config = [
        named("counts-rewrite", WORDS, &redacts("prompt-guard")),
        named("counts-refuse", WORDS, &blocks("prompt-guard").replace("otter", "badger")),
        named("counts-respond", "guests/dist/tarries.wasm", "stages = [\"prompt-guard\"]"),
        named("counts-redact", WORDS, &redacts("stream-guard").replace("heron", "x")),
        named("counts-halt", WORDS, &blocks("stream-guard")),
    ];
    let gateway = Gateway::start(&format!("{}{}", server.model("tidegate-starter"), config.concat())).await;
    for (question, status) in
        [("a heron", 200), ("an otter", 200), ("a badger", 400), ("tarry 1 respond", 200), ("a fox", 200)]
    {
        assert_eq!(gateway.chat(ask(question)).await.status, status, "{question}");
    }
    for (stage, verdict) in [
        ("prompt-guard", "rewrite"),
        ("prompt-guard", "refuse"),
        ("prompt-guard", "respond"),
        ("stream-guard", "redact"),
        ("stream-guard", "halt"),
    ] {
        let figure = format!(
            "tidegate_plugin_verdicts_total{{plugin=\"counts-{verdict}\",stage=\"{stage}\",verdict=\"{verdict}\"}}"
        );
        counted(&gateway, &figure, 1).await;
    }
}

/// It keeps 16 MiB, and its memory is what an instance has had, not what it may have.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_that_an_instance_grew_to_is_its_peak() {
    let config = named("peaks", "guests/dist/hoards.wasm", "stages = [\"prompt-guard\"]");
    let gateway = Gateway::start(&config).await;
    let peak = async || {
        let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
        let figure = "tidegate_plugin_memory_peak_bytes{plugin=\"peaks\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(figure)?.parse::<f64>().ok()).unwrap_or(0.0) as u64 >> 20
    };
    assert_eq!(gateway.chat(ask("0")).await.status, 200);
    assert!(peak().await < 16, "{} MiB", peak().await);
    assert_eq!(gateway.chat(ask("16")).await.status, 200);
    assert!((16..=64).contains(&peak().await), "{} MiB", peak().await);
    assert_eq!(gateway.chat(ask("1")).await.status, 200);
    assert!(peak().await >= 16, "a peak does not go down");
}

/// Projects have instances of their own; what they count is their tenant's, in one series.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_counts_is_told_by_tenant_and_not_by_project() {
    let key = |name: &str, project: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\ntenant = \"sums\"\n{project}\n")
    };
    let keys = [key("none", "admin = true"), key("web", "project = \"web\""), key("shop", "project = \"shop\"")];
    let projects = "[tenants.sums.projects.web]\n[tenants.sums.projects.shop]\n";
    let observer = named("sums", "guests/dist/honest.wasm", "stages = [\"observer\"]");
    let gateway = Gateway::start(&format!("{}{projects}{observer}", keys.concat())).await;
    let mut body = ask("Hello!");
    body["model"] = "tidegate-starter".into();
    for key in ["none", "web", "shop"] {
        assert_eq!(send(&gateway, Method::POST, CHAT, key, Some(&body)).await.status, 200, "{key}");
    }
    let told = "tidegate_plugin_events_total{plugin=\"sums\"";
    let counted = async || {
        let metrics = send(&gateway, Method::GET, "/metrics", "none", None).await;
        let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
        let lines: Vec<String> = metrics.lines().filter(|line| line.starts_with(told)).map(str::to_owned).collect();
        lines.iter().any(|line| line.ends_with(" 3")).then_some(lines)
    };
    let lines = until("all are told of, in one series", counted).await;
    assert_eq!(lines, [format!("{told},tenant=\"sums\",name=\"told\"}} 3")]);
}
