//! Large bodies: what cannot be read is refused without the work of reading it, and is in nobody's way.

use crate::failing::failures as failed;
use crate::stages::{counted, metrics};
use crate::tool_turns::{calls, find, is_told, says, whole};
use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_tests::stand_in::{Said, StandIn, last_text};
use tidegate_tests::{Answer, BARE, Gateway, ask, collect, joined, with_model};

const CHAT: &str = "/v1/chat/completions";

/// Text of which no two words are alike, so that it has many tokens.
fn noise(num_bytes: usize) -> String {
    let mut state = 1_u64;
    let mut text = String::with_capacity(num_bytes + 16);
    while text.len() < num_bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(&format!("{state:x}"));
    }
    text
}

/// Counted is as far as it has to be, and not all.
fn is_too_long(what: &str, answer: &Answer) {
    let (message, _, code) = answer.error();
    assert_eq!((answer.status, code), (400, json!("context_length_exceeded")), "{what}: {message}");
    assert!(message.contains("prompt has at least "), "{what}: {message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_far_beyond_the_context_is_refused_before_it_is_encoded() {
    let gateway = Gateway::start(BARE).await;
    let text = noise(2 << 20);
    is_too_long("chat", &gateway.chat(ask(&text)).await);
    let prompt = with_model(json!({"prompt": text, "max_tokens": 1}));
    is_too_long("completion", &gateway.post("/v1/completions", &prompt).await);
    let words: Vec<String> = (0..50_000).map(|i| format!("v{i}")).collect();
    let schema = json!({"type": "object", "properties": {"a": {"enum": words}}});
    let mut request = ask("Hello!");
    request["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    is_too_long("tools", &gateway.chat(request).await);
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_sends_long_prompts_waits_behind_its_own() {
    const MANY: usize = 48;
    let key = |name: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\ntenant = \"{name}\"\n")
    };
    let gateway = Gateway::start(&[key("many"), key("few"), BARE.to_owned()].concat()).await;
    let (prompt, ended) = (with_model(ask(&noise(128 << 10))), AtomicUsize::new(0));
    let send = async |name: &str| {
        let mut request = gateway.json_request(CHAT, &prompt);
        request.headers_mut().insert("authorization", format!("Bearer {name}").parse().unwrap());
        is_too_long(name, &collect(gateway.send(request).await).await);
        ended.fetch_add(1, Ordering::SeqCst)
    };
    let few = async {
        // By the first answer all of them wait.
        while ended.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        send("few").await
    };
    let (_, before) = join(join_all((0..MANY).map(|_| send("many"))), few).await;
    assert!(before < MANY / 2, "{before} of {MANY} were answered before another tenant's one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_more_values_than_are_read_is_refused_by_their_number() {
    let gateway = Gateway::start(BARE).await;
    let body = |count: usize| {
        let mut body = with_model(ask("Hello!"));
        body["messages"] = Value::Null;
        let zeros = "0,".repeat(count);
        body.to_string().replace("\"messages\":null", &format!("\"x\":[{zeros}0]"))
    };
    for (path, most) in [(CHAT, 100_000), ("/v1/responses", 100_000), ("/v1/embeddings", 1_200_000)] {
        let (message, _, code) = gateway.post_raw(path, body(most)).await.error();
        assert_eq!(code, "too_many_values", "{path}: {message}");
        assert!(message.contains(&most.to_string()), "{path}: {message}");
        let (message, _, code) = gateway.post_raw(path, body(most - 1_000)).await.error();
        assert_ne!(code, "too_many_values", "{path}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_too_long_for_a_guard_takes_it_away_from_nobody() {
    for (on_error, code) in [("closed", "too_long_to_check"), ("open", "context_length_exceeded")] {
        let stage = format!(
            "[[pipeline.stage]]\nplugin = \"pii-guard\"\non_error = \"{on_error}\"\n\
             [pipeline.stage.limits]\ncpu_ms = 50\nwall_ms = 60000\n"
        );
        let gateway = Gateway::start(&stage).await;
        let long = "1 2 3 ".repeat(400_000);
        for _ in 0..6 {
            let answer = gateway.chat(ask(&long)).await;
            let (message, _, said) = answer.error();
            assert_eq!((answer.status, said), (400, json!(code)), "{message}");
            assert!(on_error == "open" || message.contains("limits.cpu_ms"), "{message}");
        }
        assert_eq!(gateway.chat(ask("Hello!")).await.status, 200, "{on_error}");
    }
}

/// Guards with too little memory for what follows, which two failures would take out for the rest of the test.
fn honest(kind: &str, limits: &str) -> String {
    honest_as(&format!("honest-{kind}"), kind, limits)
        + "breaker = { failures = 2, within_ms = 600000, pause_ms = 600000 }\n"
}

fn honest_as(name: &str, kind: &str, limits: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = {file:?}\nstages = [\"{kind}\"]\non_error = \"closed\"\n\
         limits = {{ wall_ms = 60000, cpu_ms = 10000, {limits} }}\n"
    )
}

/// How long it is, its caller chose.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_repeated_and_too_long_for_an_output_guard_takes_it_away_from_nobody() {
    let upstream = StandIn::start(|_, _| {
        Said::json(&json!({"id": "x", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": "end", "finish_reason": "stop"}]}))
    })
    .await;
    let guard = honest("output-guard", "memory_mib = 2");
    let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guard)).await;
    let asked = |prompt: &str| json!({"model": "tidegate-starter", "echo": true, "prompt": prompt, "max_tokens": 4});
    for _ in 0..3 {
        let (message, _, code) = gateway.post("/v1/completions", &asked(&noise(2 << 20))).await.error();
        assert_eq!(code, "too_long_to_check", "{message}");
        assert!(message.contains("limits.memory_mib"), "{message}");
    }
    assert_eq!(gateway.post("/v1/completions", &asked("Hello, ")).await.text(), "Hello, end");
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_are_too_long_for_a_tool_take_it_away_from_nobody() {
    let arguments = json!(noise(1200 << 10)).to_string();
    let upstream = StandIn::start(move |_, body| match (is_told(body), last_text(body) == LONG) {
        (true, _) => says("It is told."),
        (false, is_long) => whole(&calls("echo", if is_long { &arguments } else { "{}" }), "tool_calls", 10, 8),
    })
    .await;
    let tool = honest("tool-provider", "memory_mib = 2").replace("honest-tool-provider", "honest-called");
    let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &tool)).await;
    for _ in 0..3 {
        let answer = gateway.chat(ask(LONG)).await;
        let (message, _, code) = answer.error();
        assert_eq!((answer.status, code), (400, json!("too_long_to_check")), "{message}");
        assert!(message.contains("that the model wrote within its limits.memory_mib"), "{message}");
    }
    assert_eq!(gateway.chat(ask("Hello!")).await.text(), "It is told.");
}

/// The caller has not sent it, and can send nothing shorter. The guard has given no verdict on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_long_for_a_guard_is_withheld_and_ends_no_request() {
    let arguments = json!(noise(1200 << 10)).to_string();
    let upstream = StandIn::start(move |_, body| match is_told(body) {
        true => says("It is too long."),
        false => whole(&calls("echo", &arguments), "tool_calls", 10, 8),
    })
    .await;
    let stages = honest("tool-provider", "output_bytes = 8388608") + &honest("prompt-guard", "memory_mib = 2");
    let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &stages)).await;
    for _ in 0..3 {
        assert_eq!(gateway.chat(ask("Hello!")).await.text(), "It is too long.");
        let told = upstream.asked(CHAT).pop().unwrap()["messages"][2].clone();
        assert_eq!(told["content"], "the result was withheld by a filter of this server");
    }
    counted(&gateway, &failed("honest-prompt-guard", "prompt-guard", "memory"), 3).await;
    assert!(!metrics(&gateway).await.contains("tidegate_plugin_verdicts_total{plugin=\"honest-prompt-guard\""));
}

/// Of a text that it could not read nobody knows what it would have said.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_too_long_ends_no_pause_of_a_guard_that_keeps_failing() {
    let guard = honest_as("failing-and-small", "prompt-guard", "memory_mib = 2");
    let breaker = "breaker = { failures = 2, within_ms = 600000, pause_ms = 1 }\n";
    let gateway = Gateway::start(&(guard + breaker)).await;
    let said = async |text: &str| {
        // The pause is over.
        tokio::time::sleep(Duration::from_millis(10)).await;
        gateway.chat(ask(text)).await.error().2
    };
    for _ in 0..2 {
        assert_eq!(said("trap").await, "plugin_failed");
    }
    assert_eq!(said(&noise(2 << 20)).await, "too_long_to_check");
    // Of one that had begun anew one failure would be none too many.
    assert_eq!(said("trap").await, "plugin_failed");
    counted(&gateway, "tidegate_plugin_pauses_total{plugin=\"failing-and-small\"}", 2).await;
}

/// A question to which [`talkative`] has a long answer.
const LONG: &str = "Tell me all.";

/// Has this to say to [`LONG`], and little to anything else.
async fn talkative(long: Said) -> StandIn {
    StandIn::start(move |_, body| if last_text(body) == LONG { long.clone() } else { says("Hello.") }).await
}

/// As an upstream says it that is not asked for a stream, or has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_that_comes_at_once_is_judged_in_pieces_and_takes_a_guard_away_from_nobody() {
    let text = "\"[".repeat(512 << 10);
    let upstream = talkative(says(&text)).await;
    let guard = honest_as("honest-of-pieces", "stream-guard", "memory_mib = 2");
    let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guard)).await;
    for _ in 0..3 {
        let whole = gateway.chat(ask(LONG)).await;
        assert_eq!(whole.status, 200, "{:?}", whole.error());
        assert!(whole.text() == text, "{} of {} bytes", whole.text().len(), text.len());
        let streamed = joined(&gateway.stream(ask(LONG)).await, 0);
        assert!(streamed == text, "{} of {} bytes", streamed.len(), text.len());
    }
    assert_eq!(gateway.chat(ask("Hello!")).await.text(), "Hello.");
    let metrics = gateway.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body);
    let said =
        |counter: &str| metrics.lines().any(|line| line.starts_with(counter) && line.contains("honest-of-pieces"));
    assert!(said("tidegate_plugin_call_seconds"));
    assert!(!said("tidegate_plugin_failures_total") && !said("tidegate_plugin_pauses_total"), "{metrics}");
}

/// Arguments and whole answers are judged at once, whatever their length.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_says_that_is_too_long_for_a_guard_takes_it_away_from_nobody() {
    let call = whole(&calls("find", &json!(noise(2 << 20)).to_string()), "tool_calls", 10, 8);
    for (kind, long) in [("stream-guard", call), ("output-guard", says(&noise(2 << 20)))] {
        let upstream = talkative(long).await;
        let guard = honest_as(&format!("honest-said-{kind}"), kind, "memory_mib = 2")
            + "breaker = { failures = 2, within_ms = 600000, pause_ms = 600000 }\n";
        let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guard)).await;
        for _ in 0..3 {
            let mut request = ask(LONG);
            request["tools"] = find()["tools"].clone();
            let answer = gateway.chat(request).await;
            let (message, _, code) = answer.error();
            assert_eq!((answer.status, code), (400, json!("too_long_to_check")), "{kind}: {message}");
            assert!(message.contains("that the model wrote within its limits.memory_mib"), "{kind}: {message}");
        }
        assert_eq!(gateway.chat(ask("Hello!")).await.text(), "Hello.", "{kind}");
    }
}
