//! `POST /v1/embeddings`, of a model of the own engine and of one elsewhere: the vectors, what they cost, who may ask, and
//! what guards see of it.

use crate::talk::until;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_pipeline::ModelBackend;
use tidegate_tests::stand_in::{Said, StandIn, embeddings};
use tidegate_tests::{Answer, BARE, Gateway, collect};

const PATH: &str = "/v1/embeddings";

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models")
}

/// `[[models]]` of the fixture that makes vectors.
pub fn model(more: &str) -> String {
    format!("[[models]]\nname = \"embedding\"\npath = {:?}\n{more}\n", fixtures().join("embedding"))
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(fixtures().join("expected/embedding.json")).unwrap()).unwrap()
}

fn numbers(vector: &Value) -> Vec<f32> {
    serde_json::from_value(vector.clone()).unwrap()
}

fn assert_near(found: &[f32], expected: &Value, what: &str) {
    let expected = numbers(expected);
    assert_eq!(found.len(), expected.len(), "{what}");
    // The best instructions of any processor round activations to bf16 where weights are; these are f32.
    let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{what}: {worst}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_the_own_engine_are_those_of_transformers_however_they_are_asked_for() {
    let gateway = Gateway::start(&format!("{}[engine]\nmax_batch_tokens = 100\nmax_seqs = 8\n{BARE}", model(""))).await;
    let expected = expected();
    let texts: Vec<&str> = expected["texts"].as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    let tokens: Vec<&Value> = expected["texts"].as_array().unwrap().iter().map(|text| &text["tokens"]).collect();
    let num_tokens: usize = tokens.iter().map(|tokens| tokens.as_array().unwrap().len()).sum();
    for (input, name) in [(json!(texts), "texts"), (json!(tokens), "tokens")] {
        let answer = gateway.post(PATH, &json!({"model": "embedding", "input": input})).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let body = answer.json();
        assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("embedding")));
        assert_eq!(
            (&body["usage"]["prompt_tokens"], &body["usage"]["total_tokens"]),
            (&json!(num_tokens), &json!(num_tokens))
        );
        for (i, (entry, text)) in
            body["data"].as_array().unwrap().iter().zip(expected["texts"].as_array().unwrap()).enumerate()
        {
            assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(i)));
            assert_near(&numbers(&entry["embedding"]), &text["lasttoken"], name);
        }
    }
    // One alone, as text and as tokens; shortened; in base64.
    let (text, tokens) = (texts[1], tokens[1]);
    for input in [json!(text), json!([text]), json!(tokens)] {
        let dimensions = &expected["dimensions"];
        let body = json!({"model": "embedding", "input": input, "dimensions": dimensions, "encoding_format": "base64"});
        let body = gateway.post(PATH, &body).await.json();
        let bytes = STANDARD.decode(body["data"][0]["embedding"].as_str().unwrap()).unwrap();
        let found: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_near(&found, &expected["texts"][1]["truncated"], "truncated");
    }
    let card = gateway.get("/v1/models/embedding").await.json();
    assert_eq!((&card["capabilities"], &card["max_model_len"]), (&json!(["embeddings"]), &json!(512)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_by_name() {
    let starter = "[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\n";
    let gateway = Gateway::start(&format!("{}{starter}{BARE}", model(""))).await;
    let long = vec![1; 513];
    for (more, status, param, code) in [
        (json!({"model": "nobody"}), 404, "model", "model_not_found"),
        (json!({"model": "tidegate-starter"}), 400, "model", "unsupported_model"),
        (json!({"dimensions": 33}), 400, "dimensions", "invalid_value"),
        (json!({"input": ["x", long]}), 400, "input[1]", "context_length_exceeded"),
        (json!({"input": long}), 400, "input", "context_length_exceeded"),
        (json!({"input": [384]}), 400, "input", "invalid_request"),
        (json!({"input": ""}), 400, "input", "empty_string"),
        (json!({"stream": true}), 400, "stream", "unsupported_parameter"),
    ] {
        let mut body = json!({"model": "embedding", "input": "x"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = gateway.post(PATH, &body).await;
        let (message, at, said) = refused.error();
        assert_eq!((refused.status, &at, &said), (status, &json!(param), &json!(code)), "{body}: {message}");
    }
    let chat = json!({"model": "embedding", "messages": [{"role": "user", "content": "Hello!"}]});
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/completions", json!({"model": "embedding", "prompt": "Once"})),
        ("/v1/responses", json!({"model": "embedding", "input": "Hello!", "store": false})),
    ] {
        let refused = gateway.post(path, &body).await;
        let (message, ..) = refused.error();
        assert_eq!(refused.status, 400, "{path}: {message}");
        assert!(message.contains("makes vectors and no answers; ask it at POST /v1/embeddings"), "{path}: {message}");
    }
}

async fn ask(gateway: &Gateway, key: &str, body: &Value) -> Answer {
    let mut request = gateway.json_request(PATH, body);
    request.headers_mut().insert("authorization", format!("Bearer tg-{key}").parse().unwrap());
    collect(gateway.send(request).await).await
}

fn key(name: &str, more: &str) -> String {
    let hash = blake3::hash(format!("tg-{name}").as_bytes());
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
}

/// Vectors by each text's length, and the tokens that each text is said to have: three.
fn server(path: &str, body: &Value) -> Said {
    assert_eq!(path, PATH);
    let inputs = body["input"].as_array().unwrap();
    let vector = |(index, input): (usize, &Value)| {
        let size = input.as_str().map_or(0, str::len) as f32;
        json!({"object": "embedding", "index": index, "embedding": [size, 1.0]})
    };
    let data: Vec<Value> = inputs.iter().enumerate().map(vector).collect();
    let tokens = 3 * inputs.len();
    Said::json(&json!({"object": "list", "model": "far", "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_billed_once_and_a_key_has_its_endpoints_models_limits_and_budget() {
    crate::usage::clear_of_midnight().await;
    let (folder, upstream) = (tempfile::tempdir().unwrap(), StandIn::start(server).await);
    let price = "price = { input = 1000000.0, cached_input = 500000.0, output = 9.0 }";
    let keys = [
        key("one", "tenant = \"t\"\nendpoints = [\"embeddings\", \"usage\"]"),
        key("chats", "tenant = \"t\"\nendpoints = [\"chat\"]"),
        key("far", "tenant = \"t\"\nmodels = [\"far\"]"),
        key("slow", "tenant = \"slow\"\nlimits = { requests_per_minute = 1, tokens_per_minute = 5000 }"),
        key("poor", "tenant = \"poor\"\nbudget = { daily = 4.5 }"),
        key("short", "tenant = \"short\"\nlimits = { max_context_tokens = 5 }"),
    ];
    let config = format!(
        "{}{}{}{price}\n[store]\npath = {:?}\n{BARE}",
        keys.concat(),
        model(price),
        upstream.model("far"),
        folder.path().display().to_string()
    );
    let gateway = Gateway::start(&config).await;
    let near = json!({"model": "embedding", "input": ["The tide turns.", "x"], "user": "u1"});
    let far = json!({"model": "far", "input": ["abc", "de"], "user": "u1"});
    let answer = ask(&gateway, "one", &near).await;
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 7, "{:?}", answer.body);
    let answer = ask(&gateway, "one", &far).await;
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 6, "{:?}", answer.body);
    assert_eq!(answer.json()["data"][1]["embedding"], json!([2.0, 1.0]));
    let asked = upstream.asked(PATH);
    assert_eq!(asked, [json!({"model": "far", "input": ["abc", "de"], "encoding_format": "base64", "user": "u1"})]);
    let used = super::usage::used(&gateway, "one", 2, "&group_by=user_id").await;
    assert_eq!((&used["input_tokens"], &used["output_tokens"]), (&json!(13), &json!(0)));
    assert_eq!((&used["input_cached_tokens"], &used["user_id"]), (&json!(0), &json!("u1")));
    // Who may not.
    assert_eq!(ask(&gateway, "chats", &near).await.status, 403);
    assert_eq!(ask(&gateway, "far", &near).await.error().2, json!("model_not_found"));
    assert_eq!(ask(&gateway, "far", &far).await.status, 200);
    // A limit, with what is left of it.
    let first = ask(&gateway, "slow", &near).await;
    assert_eq!((first.status, &first.headers["x-ratelimit-remaining-requests"]), (200, &"0".parse().unwrap()));
    assert_eq!(ask(&gateway, "slow", &near).await.status, 429);
    // A million for each token: of five that it would cost, four and a half may be spent.
    let refused = ask(&gateway, "poor", &json!({"model": "embedding", "input": "The tide turns."})).await;
    assert_eq!((refused.status, refused.error().2), (429, json!("insufficient_quota")));
    assert_eq!(ask(&gateway, "poor", &json!({"model": "embedding", "input": "x"})).await.status, 200);
    let refused = ask(&gateway, "short", &json!({"model": "embedding", "input": "The tide turns. It does."})).await;
    assert_eq!((refused.status, refused.error().2), (400, json!("context_length_exceeded")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_servers_failure_is_told_and_what_it_passes_over_too() {
    let fails = StandIn::start(|_, _| Said::raw(500, "{}")).await;
    let fixed = StandIn::start(server).await;
    let config = format!("{}{}{BARE}", fails.model("fails"), fixed.model("far"));
    let gateway = Gateway::start(&config).await;
    let body = |model: &str, more: Value| {
        let mut body = json!({"model": model, "input": "abc"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let refused = gateway.post(PATH, &body("fails", json!({}))).await;
    assert_eq!(refused.status, 502, "{:?}", refused.body);
    let refused = gateway.post(PATH, &body("far", json!({"dimensions": 1}))).await;
    assert_eq!((refused.status, refused.error().1), (400, json!("dimensions")));
    assert_eq!(gateway.post(PATH, &body("far", json!({"dimensions": 2}))).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_leaves_past_a_guard() {
    let upstream = StandIn::start(|_, body| embeddings(body)).await;
    let guards = "[[pipeline.stage]]\nplugin = \"word-guard\"\nconfig = { words = [\"harbour\"], action = \"block\" }\n\
        [[pipeline.stage]]\nplugin = \"pii-guard\"\n";
    let gateway = Gateway::start(&format!("{}{}{guards}", model(""), upstream.model("far"))).await;
    for name in ["far", "embedding"] {
        let ask = |input: Value| json!({"model": name, "input": input});
        let refused = gateway.post(PATH, &ask(json!(["fine", "the harbour"]))).await;
        assert_eq!(
            (refused.status, refused.error().1, refused.error().2),
            (400, json!("input"), json!("content_filter"))
        );
        let refused = gateway.post(PATH, &ask(json!([1, 2]))).await;
        assert_eq!((refused.status, refused.error().1), (400, json!("input")));
        let rewritten = gateway.post(PATH, &ask(json!(["fine", "write to ann@example.com"]))).await;
        assert_eq!(rewritten.status, 200, "{:?}", rewritten.body);
    }
    let asked = upstream.asked(PATH);
    assert_eq!(asked.len(), 1, "what was refused has not left");
    let left = asked[0]["input"].to_string();
    assert!(left.contains("fine") && !left.contains("ann@example.com"), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_frees_what_its_vectors_take() {
    let config = format!("{}[engine]\nmax_batch_tokens = 16\nmax_seqs = 4\n{BARE}", model(""));
    let gateway = Gateway::start(&config).await;
    let many: Vec<String> = (0..2000).map(|n| format!("The keeper of gate {n} counts boats. ").repeat(10)).collect();
    let stats = || match &gateway.running.pipeline().models().get("embedding").unwrap().backend {
        ModelBackend::Engine(engine) => engine.handle.stats(),
        ModelBackend::Upstream(_) => panic!("it is the engine's"),
    };
    let body = json!({"model": "embedding", "input": many});
    // Whoever is slow to leave has all of them made, and tries again.
    for _ in 0..5 {
        let finished = stats().snapshot.counters.finished;
        let mut asking = Box::pin(gateway.send(gateway.json_request(PATH, &body)));
        while stats().live_jobs == 0 {
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(1), &mut asking).await {
                assert_eq!(answer.status(), 200);
                break;
            }
        }
        drop(asking);
        until("its jobs are gone", async || (stats().live_jobs == 0).then_some(())).await;
        if stats().snapshot.counters.finished - finished < many.len() as u64 / 2 {
            return;
        }
    }
    panic!("vectors were made though nobody waited for them");
}

/// What a server made was made: it bills that, whoever can read it.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_texts_a_long_answer_is_read_and_one_that_is_too_long_is_billed() {
    crate::usage::clear_of_midnight().await;
    let (folder, far) = (tempfile::tempdir().unwrap(), |path: &str, body: &Value| {
        let Said { body: said, .. } = server(path, body);
        let padding = if body["input"].as_array().unwrap().len() > 1 { 65 << 20 } else { 2 << 20 };
        Said::raw(200, [vec![b' '; padding], said].concat())
    });
    let upstream = StandIn::start(far).await;
    let config = format!(
        "{}{}price = {{ input = 1.0, output = 1.0 }}\n[store]\npath = {:?}\n{BARE}",
        key("one", "tenant = \"t\"\nendpoints = [\"embeddings\", \"usage\"]"),
        upstream.model("far"),
        folder.path().display().to_string()
    );
    let gateway = Gateway::start(&config).await;
    let read = ask(&gateway, "one", &json!({"model": "far", "input": vec!["abc"; 700]})).await;
    assert_eq!((read.status, read.json()["data"].as_array().unwrap().len()), (200, 700));
    let refused = ask(&gateway, "one", &json!({"model": "far", "input": "a text of some tokens"})).await;
    assert_eq!((refused.status, refused.error().2), (502, json!("upstream_answer_too_long")));
    let used = super::usage::used(&gateway, "one", 2, "").await;
    let input = used["input_tokens"].as_u64().unwrap();
    assert!((2101..2150).contains(&input), "700 times three, and an estimate: {used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_too_long_is_refused_before_anything_is_made() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), StandIn::start(server).await);
    let config = format!(
        "{}{}{}[store]\npath = {:?}\n{BARE}",
        key("one", "tenant = \"t\"\nendpoints = [\"embeddings\", \"usage\"]\nbudget = { daily = 0.001 }"),
        model("price = { input = 1.0, output = 1.0 }"),
        upstream.model("far"),
        folder.path().display().to_string()
    );
    let gateway = Gateway::start(&config).await;
    for (most, format) in [(4 << 20, "float"), (12 << 20, "base64")] {
        for (input, dimensions, status) in [
            (json!(["a", "b"]), most / 2 + 1, 400),
            (json!("a"), u32::MAX, 400),
            // The server passes that over, and is told of.
            (json!(["a", "b"]), most / 2, 400),
        ] {
            let body = json!({"model": "far", "input": input, "dimensions": dimensions, "encoding_format": format});
            let refused = ask(&gateway, "one", &body).await;
            let (message, param, code) = refused.error();
            assert_eq!(refused.status, status, "{message}");
            let (expected, fits) = (json!("answer_too_long"), dimensions == most / 2);
            assert_eq!((code == expected, &param == "dimensions"), (!fits, fits), "{message}");
        }
    }
    assert_eq!(upstream.asked(PATH).len(), 2, "what was refused was not asked");
}

/// Two that hang have three quarters of all numbers.
#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_all_requests_have_a_bound_together() {
    let slow = |path: &str, body: &Value| match body["input"][0].as_str() {
        Some("hang") => server(path, body).after(Duration::from_secs(600)),
        _ => server(path, body),
    };
    let upstream = StandIn::start(slow).await;
    let keys = [key("one", "tenant = \"t\""), key("other", "tenant = \"u\"")].concat();
    let gateway = Arc::new(Gateway::start(&format!("{keys}{}{BARE}", upstream.model("far"))).await);
    let body = |text: &str, dimensions: u32| json!({"model": "far", "input": text, "dimensions": dimensions, "encoding_format": "base64"});
    let hanging = [(), ()].map(|()| {
        let (gateway, body) = (Arc::clone(&gateway), body("hang", 12 << 20));
        tokio::spawn(async move { ask(&gateway, "one", &body).await.status })
    });
    while upstream.asked(PATH).len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let full = ask(&gateway, "one", &body("x", 12 << 20)).await;
    assert_eq!((full.status, full.error().2), (503, json!("overloaded")));
    assert!(full.headers.contains_key("retry-after"));
    assert_eq!(ask(&gateway, "one", &body("x", 2)).await.status, 200, "a small one has room");
    let told = ask(&gateway, "other", &body("x", 12 << 20)).await;
    assert_eq!((told.status, told.error().1), (400, json!("dimensions")), "another tenant has its share");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
    until("what went away gives its room back", async || {
        (ask(&gateway, "one", &body("x", 12 << 20)).await.status == 400).then_some(())
    })
    .await;
}

/// A queue of four has no room for all texts at once: they make room for each other.
#[tokio::test(flavor = "multi_thread")]
async fn more_texts_than_the_queue_has_room_for_are_all_answered() {
    let config = format!("{}[engine]\nmax_batch_tokens = 16\nmax_seqs = 1\nmax_queued_jobs = 4\n{BARE}", model(""));
    let gateway = Gateway::start(&config).await;
    let many: Vec<String> = (0..100).map(|n| format!("boat {n}")).collect();
    let answer = gateway.post(PATH, &json!({"model": "embedding", "input": many})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.json()["data"].as_array().unwrap().len(), 100);
}

/// A guard that answers has a record of its own, which tells the observers.
#[tokio::test(flavor = "multi_thread")]
async fn observers_are_told_once_of_what_a_guard_answers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let stage = format!(
        "[[pipeline.stage]]\nplugin = \"honest\"\nfile = {file:?}\nstages = [\"prompt-guard\", \"observer\"]\n\
         limits = {{ wall_ms = 20000 }}\n"
    );
    let keys = key("one", "tenant = \"watched\"");
    let gateway = Gateway::start(&format!("{keys}admin = true\n{}{stage}", model(""))).await;
    for (text, status, told) in [("respond", 400, 1), ("refuse", 400, 2), ("a harbour", 200, 3)] {
        let answer = ask(&gateway, "one", &json!({"model": "embedding", "input": text})).await;
        assert_eq!(answer.status, status, "{text}: {:?}", answer.body);
        until(text, async || (times_told(&gateway).await >= told).then_some(())).await;
        // Whoever was to be told beside that has been by now.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(times_told(&gateway).await, told, "{text}");
    }
}

async fn times_told(gateway: &Gateway) -> u64 {
    let told = "tidegate_plugin_events_total{plugin=\"honest\",tenant=\"watched\",name=\"told\"} ";
    let mut request = Request::get(gateway.url("/metrics")).body(Full::<Bytes>::default()).unwrap();
    request.headers_mut().insert("authorization", "Bearer tg-one".parse().unwrap());
    let metrics = String::from_utf8(collect(gateway.send(request).await).await.body.to_vec()).unwrap();
    metrics.lines().find_map(|line| line.strip_prefix(told)).map_or(0, |count| count.parse().unwrap())
}

/// A server that has the texts bills them, whoever waits for it and whatever it says; one that refuses them does not.
#[tokio::test(flavor = "multi_thread")]
async fn texts_that_a_server_has_are_billed_whatever_comes_of_them() {
    crate::usage::clear_of_midnight().await;
    let far = |path: &str, body: &Value| match body["input"][0].as_str() {
        Some("hang") => server(path, body).after(Duration::from_secs(600)),
        Some("confuse") => Said::raw(200, "{}"),
        _ => Said::raw(400, "{}"),
    };
    let (folder, upstream) = (tempfile::tempdir().unwrap(), StandIn::start(far).await);
    let config = format!(
        "{}{}price = {{ input = 1.0, output = 1.0 }}\n[store]\npath = {:?}\n{BARE}",
        key("one", "tenant = \"t\"\nendpoints = [\"embeddings\", \"usage\"]"),
        upstream.model("far"),
        folder.path().display().to_string()
    );
    let gateway = Arc::new(Gateway::start(&config).await);
    let body = |text: &str| json!({"model": "far", "input": text});
    assert_eq!(ask(&gateway, "one", &body("refuse")).await.status, 400);
    assert_eq!(ask(&gateway, "one", &body("confuse")).await.status, 502);
    assert_eq!(super::usage::used(&gateway, "one", 1, "").await["input_tokens"], 2, "four bytes are taken for a token");
    let (asking, hanging) = (Arc::clone(&gateway), body("hang"));
    let left = tokio::spawn(async move { ask(&asking, "one", &hanging).await.status });
    while upstream.asked(PATH).len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    left.abort();
    assert_eq!(super::usage::used(&gateway, "one", 2, "").await["input_tokens"], 3);
}
