//! Completions of several prompts: each is answered as it would be alone, and all are one request.

use crate::stages::counted;
use crate::usage;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate_tests::stalling::Stalling;
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, BARE, Gateway, collect, events, finish_reason, joined};

const COMPLETIONS: &str = "/v1/completions";
const PROMPTS: [&str; 3] = ["Once upon a time", "The harbour of Kelso", "Twice two is"];

fn request(more: Value) -> Value {
    // Outside of a dialogue the model may end at once: its end mark (2) is ruled out.
    let mut request = json!({"model": "tidegate-starter", "max_tokens": 5, "seed": 7, "logit_bias": {"2": -100}});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn texts(answer: &Value) -> Vec<(u64, String)> {
    let text = |choice: &Value| (choice["index"].as_u64().unwrap(), choice["text"].as_str().unwrap().to_owned());
    answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_prompt_is_answered_as_alone_in_the_order_of_the_list() {
    let gateway = Gateway::start(BARE).await;
    let more = |prompt: Value| request(json!({"prompt": prompt, "n": 2, "echo": true, "temperature": 2}));
    let (mut expected, mut cost) = (Vec::new(), [0, 0]);
    for prompt in PROMPTS {
        let alone = gateway.post(COMPLETIONS, &more(prompt.into())).await.json();
        expected.extend(texts(&alone).into_iter().map(|(_, text)| text));
        for (sum, field) in cost.iter_mut().zip(["prompt_tokens", "completion_tokens"]) {
            *sum += alone["usage"][field].as_u64().unwrap();
        }
    }
    let expected: Vec<(u64, String)> = (0..).zip(expected).collect();
    assert!(expected[0].1 != expected[1].1, "two answers to one prompt have seeds of their own");
    let costs = |usage: &Value| [&usage["prompt_tokens"], &usage["completion_tokens"]].map(|n| n.as_u64().unwrap());

    let whole = gateway.post(COMPLETIONS, &more(json!(PROMPTS))).await.json();
    assert_eq!(texts(&whole), expected);
    assert_eq!(costs(&whole["usage"]), cost);

    let mut streamed = more(json!(PROMPTS));
    (streamed["stream"], streamed["stream_options"]) = (true.into(), json!({"include_usage": true}));
    let answer = gateway.post(COMPLETIONS, &streamed).await;
    let streamed = events(&answer.body);
    for (choice, text) in expected {
        assert_eq!(joined(&streamed, choice), text);
        assert_eq!(finish_reason(&streamed, choice), "length");
    }
    assert_eq!(costs(&streamed.last().unwrap()["usage"]), cost);
    assert!(answer.body.ends_with(b"data: [DONE]\n\n"));
}

/// An upstream that answers each prompt with its capitals, as often as is asked; one of `broken` it fails at.
async fn capitals() -> StandIn {
    StandIn::start(|_, asked| {
        let prompt = asked["prompt"].as_str().unwrap_or("no string").to_uppercase();
        if prompt == "BROKEN" {
            return Said::raw(400, r#"{"error":{"message":"no","type":"invalid_request_error"}}"#);
        }
        let choice = |index: u64| json!({"index": index, "text": prompt, "finish_reason": "stop"});
        let choices: Vec<Value> = (0..asked["n"].as_u64().unwrap_or(1)).map(choice).collect();
        Said::json(&json!({"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": choices,
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}))
    })
    .await
}

fn guard(name: &str, file: &str, config: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\n{config}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n",
        file.display()
    )
}

fn words(name: &str, word: &str, action: &str) -> String {
    let config = format!("config = {{ words = [\"{word}\"], action = \"{action}\" }}");
    guard(name, "../plugins/dist/word-guard.wasm", &config)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_gets_a_request_for_each_prompt_as_guards_left_it() {
    let service = capitals().await;
    let guards = words("redacts-prompts", "falcon", "redact");
    let gateway = Gateway::start(&format!("{}{guards}", service.model("tidegate-starter"))).await;
    let asked = request(json!({"prompt": ["a falcon", "b"], "n": 2}));
    let answer = gateway.post(COMPLETIONS, &asked).await.json();
    let expected = ["A [REDACTED]", "A [REDACTED]", "B", "B"].map(str::to_owned);
    assert_eq!(texts(&answer), (0..).zip(expected).collect::<Vec<_>>());
    assert_eq!(answer["usage"]["total_tokens"], 24);
    let mut sent: Vec<String> = service.asked(COMPLETIONS).iter().map(|asked| asked["prompt"].to_string()).collect();
    sent.sort();
    assert_eq!(sent, ["\"a [redacted]\"", "\"b\""]);
    let failed = gateway.post(COMPLETIONS, &request(json!({"prompt": ["fine", "broken"]}))).await;
    assert_eq!(failed.status, 400, "{:?}", failed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_refused_prompt_refuses_all_by_its_place_before_anything_is_generated() {
    let service = capitals().await;
    let late = guard("tarries", "guests/dist/tarries.wasm", "when = \"during-prefill\"");
    let guards = words("blocks-prompts", "falcon", "block") + &late;
    let gateway = Gateway::start(&format!("{}{guards}", service.model("tidegate-starter"))).await;
    for stream in [false, true] {
        for refused in ["a falcon", "tarry 50 refuse"] {
            let asked = request(json!({"prompt": ["fine", "well", refused], "stream": stream}));
            let answer = gateway.post(COMPLETIONS, &asked).await;
            let (_, param, code) = answer.error();
            assert_eq!((answer.status, param, code), (400, json!("prompt[2]"), json!("content_filter")), "{refused}");
        }
    }
    assert!(service.asked(COMPLETIONS).is_empty(), "{:?}", service.asked(COMPLETIONS));

    // One that a guard answers itself is answered beside the others.
    let asked = request(json!({"prompt": ["fine", "tarry 50 respond"]}));
    let answer = gateway.post(COMPLETIONS, &asked).await;
    assert_eq!(answer.headers["x-tidegate-answered-by"], "tarries");
    let said = ["FINE", "from the guard"].map(str::to_owned);
    assert_eq!(texts(&answer.json()), (0..).zip(said).collect::<Vec<_>>());
}

/// Its guard is asked about some of them at once, and one of these calls is the trial.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_behind_a_guards_pause_are_answered_together() {
    let service = capitals().await;
    let breaker = "[pipeline.stage.breaker]\nfailures = 1\npause_ms = 1\n";
    let guards = guard("tries-prompts", "guests/dist/tarries.wasm", "") + breaker;
    let gateway = Gateway::start(&format!("{}{guards}", service.model("tidegate-starter"))).await;
    assert_eq!(gateway.post(COMPLETIONS, &request(json!({"prompt": "tarry 1 panic"}))).await.status, 503);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let prompts = ["a", "b", "c", "d"].map(|word| format!("tarry 300 {word}"));
    let answer = gateway.post(COMPLETIONS, &request(json!({"prompt": prompts}))).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    counted(&gateway, "tidegate_plugin_pauses_total{plugin=\"tries-prompts\"}", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_is_named_by_its_place_and_too_many_by_their_bound() {
    let gateway = Gateway::start(BARE).await;
    let long = gateway.post(COMPLETIONS, &request(json!({"prompt": ["x", "word ".repeat(5000)]}))).await;
    let (_, param, code) = long.error();
    assert_eq!((long.status, param, code), (400, json!("prompt[1]"), json!("context_length_exceeded")));
    for (num_prompts, n, most) in [(17, 1, 16), (9, 2, 8)] {
        let asked = request(json!({"prompt": vec!["x"; num_prompts], "n": n}));
        let answer = gateway.post(COMPLETIONS, &asked).await;
        let (message, param, code) = answer.error();
        assert_eq!((answer.status, param, code), (400, json!("prompt"), json!("array_above_max_length")));
        assert!(message.contains(&format!("at most {most} prompts")), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_prompts_than_a_model_ever_takes_are_refused_for_good_and_ask_it_nothing() {
    for (limits, most) in [("requests_per_minute = 3", 3), ("requests_per_minute = 9, concurrency = 2", 2)] {
        let service = capitals().await;
        let gateway = Gateway::start(&format!("{}limits = {{ {limits} }}\n", service.model("tidegate-starter"))).await;
        let asked = request(json!({"prompt": vec!["x"; most + 1]}));
        let answer = gateway.post(COMPLETIONS, &asked).await;
        let (message, param, code) = answer.error();
        assert_eq!((answer.status, param, code), (400, json!("prompt"), json!("array_above_max_length")));
        assert!(message.contains(&format!("send at most {most} prompts")), "{message}");
        assert!(service.asked(COMPLETIONS).is_empty());
        // None of its turns were taken.
        let fits = gateway.post(COMPLETIONS, &request(json!({"prompt": vec!["x"; most]}))).await;
        assert_eq!(fits.status, 200, "{:?}", fits.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_tokens_than_a_model_ever_takes_are_refused_for_good_and_one_prompt_of_them_as_alone() {
    let service = capitals().await;
    let model = service.model("tidegate-starter");
    let gateway = Gateway::start(&format!("{model}limits = {{ tokens_per_minute = 2000 }}\n")).await;
    let asked =
        |prompts: usize, max_tokens: u32| request(json!({"prompt": vec!["x"; prompts], "max_tokens": max_tokens}));
    let answer = gateway.post(COMPLETIONS, &asked(3, 700)).await;
    let (message, param, code) = answer.error();
    assert_eq!((answer.status, param, code), (400, json!("prompt"), json!("array_above_max_length")));
    assert!(message.contains("are 2103 tokens, and its limit is 2000 tokens per minute"), "{message}");
    let alone = gateway.post(COMPLETIONS, &asked(2, 2000)).await;
    assert_eq!((alone.status, alone.headers.get("retry-after")), (429, None), "{}", alone.error().0);
    assert!(service.asked(COMPLETIONS).is_empty());
    let fits = gateway.post(COMPLETIONS, &asked(2, 700)).await;
    assert_eq!(fits.status, 200, "{:?}", fits.body);
}

async fn as_key(gateway: &Gateway, key: &str, body: &Value) -> Answer {
    let mut request = gateway.json_request(COMPLETIONS, body);
    request.headers_mut().insert("authorization", format!("Bearer tg-{key}").parse().unwrap());
    collect(gateway.send(request).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn to_their_callers_limits_they_are_one_request_of_all_their_tokens() {
    let key = |name: &str, limits: &str| {
        let hash = blake3::hash(format!("tg-{name}").as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\nlimits = {{ {limits} }}\n")
    };
    let keys = key("ann", "requests_per_minute = 2, concurrency = 1") + &key("ben", "tokens_per_minute = 120");
    let gateway = Gateway::start(&format!("[limits]\nreserve_output_tokens = 64\n{keys}{BARE}")).await;
    let answer = as_key(&gateway, "ann", &request(json!({"prompt": PROMPTS}))).await;
    assert_eq!((answer.status, &answer.headers["x-ratelimit-remaining-requests"]), (200, &"1".parse().unwrap()));
    // Each alone would fit.
    let large = request(json!({"prompt": PROMPTS, "max_tokens": 50}));
    let large = as_key(&gateway, "ben", &large).await;
    assert_eq!((large.status, &large.json()["error"]["type"]), (429, &json!("tokens")));
    // What was set aside is given back: what the three have really used is less.
    for _ in 0..2 {
        let fits = as_key(&gateway, "ben", &request(json!({"prompt": PROMPTS, "max_tokens": 1}))).await;
        assert_eq!(fits.status, 200, "{:?}", fits.body);
        let used = fits.json()["usage"]["total_tokens"].as_u64().unwrap();
        assert!(used < 40, "{used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_prompt_is_billed_and_together_what_the_answer_says() {
    usage::clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&usage::config(folder.path(), "")).await;
    let said = as_key(&gateway, "alpha", &request(json!({"prompt": PROMPTS, "n": 2}))).await.json()["usage"].clone();
    let seen = usage::used(&gateway, "alpha", 3, "").await;
    assert_eq!([&seen["input_tokens"], &seen["output_tokens"]], [&said["prompt_tokens"], &said["completion_tokens"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_too_long_is_found_before_another_is_begun_and_billed() {
    usage::clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&usage::config(folder.path(), "")).await;
    for long in ["word ".repeat(5000), "word ".repeat(1200)] {
        let asked = request(json!({"prompt": ["Once upon a time ".repeat(50), long, "There was"]}));
        let (_, param, code) = as_key(&gateway, "alpha", &asked).await.error();
        assert_eq!((param, code), (json!("prompt[1]"), json!("context_length_exceeded")));
    }
    let said = as_key(&gateway, "alpha", &request(json!({"prompt": "There was"}))).await.json()["usage"].clone();
    let seen = usage::used(&gateway, "alpha", 1, "").await;
    assert_eq!([&seen["input_tokens"], &seen["output_tokens"]], [&said["prompt_tokens"], &said["completion_tokens"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_all_of_them() {
    let mut slow = Stalling::start().await;
    let gateway = Gateway::start(&format!("{}{BARE}", slow.model.replace("\"slow\"", "\"slow-prompts\""))).await;
    let asked = request(json!({"model": "slow-prompts", "prompt": PROMPTS}));
    let asking = gateway.send(gateway.json_request(COMPLETIONS, &asked));
    assert!(tokio::time::timeout(Duration::from_secs(2), asking).await.is_err(), "it does not answer");
    for _ in PROMPTS {
        tokio::time::timeout(Duration::from_secs(30), slow.gone.recv()).await.expect("it is left").unwrap();
    }
    counted(&gateway, "tidegate_requests_total{model=\"slow-prompts\"", 3).await;
}
