//! Bad input: the right status, a message that says what to do, and a server that goes on.

use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::{BARE, Gateway, ask, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bodies_are_refused_in_openais_shape() {
    let gateway = Gateway::start(BARE).await;
    let deep = "[".repeat(200_000);
    let nested = format!("{{\"model\":\"m\",\"messages\":{}", "[".repeat(5000));
    for body in ["", "{", "null", "[]", "\"x\"", "{\"model\":}", &deep, &nested, "{} {}"] {
        let answer = gateway.post_raw(CHAT, body.to_owned()).await;
        assert_eq!(answer.status, 400, "{:?}", &body[..body.len().min(40)]);
        answer.error();
    }
    let invalid_utf8 = b"{\"model\":\"\xff\xfe\",\"messages\":[]}".to_vec();
    assert_eq!(gateway.post_raw(CHAT, invalid_utf8).await.status, 400);
    assert!(gateway.chat(ask("Hello!")).await.status == 200, "the server goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_type_or_range_names_its_field() {
    let gateway = Gateway::start(BARE).await;
    let cases: &[(&str, Value)] = &[
        ("model", json!(7)),
        ("messages", json!("hello")),
        ("messages", json!([])),
        ("messages[0].role", json!([{"role": "wizard", "content": "x"}])),
        ("messages[0].content", json!([{"role": "user", "content": 7}])),
        ("messages[0].content[0].text", json!([{"role": "user", "content": [{"type": "text", "text": 7}]}])),
        ("temperature", json!("hot")),
        ("temperature", json!(9)),
        ("top_p", json!(-1)),
        ("n", json!(0)),
        ("n", json!(1000)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("seed", json!("x")),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!("x")),
        ("logit_bias.x", json!({"x": 1})),
        ("logit_bias", json!({"5708": 1})),
        ("top_logprobs", json!(99)),
        ("stream", json!("yes")),
        ("tools", json!("x")),
        ("tools[0].function.name", json!([{"type": "function", "function": {"name": "a b"}}])),
        ("top_k", json!("x")),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e-38)),
    ];
    for (param, value) in cases {
        let field = param.split(['[', '.']).next().unwrap();
        let mut request = with_model(ask("Hello!"));
        request[field] = value.clone();
        let answer = gateway.post(CHAT, &request).await;
        assert_eq!(answer.status, 400, "{field} = {value}: {:?}", answer.body);
        let (message, found, _) = answer.error();
        assert_eq!(found, *param, "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_model_cannot_do_is_refused_by_name() {
    let gateway = Gateway::start(BARE).await;
    for (field, value) in [
        ("reasoning_effort", json!("high")),
        ("verbosity", json!("low")),
        ("service_tier", json!("flex")),
        ("store", json!(true)),
        ("some_new_field", json!(1)),
    ] {
        let mut request = ask("Hello!");
        request["tools"] = json!([{"type": "function", "function": {"name": "t", "parameters": {}}}]);
        request[field] = value;
        let answer = gateway.chat(request).await;
        assert_eq!(answer.status, 400, "{field}: {:?}", answer.body);
        assert!(answer.error().0.contains(field), "{field}: {}", answer.error().0);
    }
    let image = json!({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]});
    let (message, param, _) = gateway.chat(image).await.error();
    assert!(message.contains("image_url"), "{message}");
    assert_eq!(param, "messages[0].content[0]");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_response_cannot_have_is_refused_by_the_name_that_it_has_there() {
    let model = "[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\nlimits = { max_output_tokens = 9 }\n";
    let gateway = Gateway::start(&format!("{model}{BARE}")).await;
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/b.png"}]}]);
    for (field, value, param) in [
        ("text", json!({"verbosity": "low"}), "text.verbosity"),
        ("reasoning", json!({"effort": "high"}), "reasoning.effort"),
        ("max_output_tokens", json!(10), "max_output_tokens"),
        ("input", image, "input[0].content[0]"),
        ("input", json!("word ".repeat(5000)), "input"),
    ] {
        let mut request = with_model(json!({"input": "Hello!"}));
        request[field] = value;
        let answer = gateway.post("/v1/responses", &request).await;
        assert_eq!((answer.status, answer.error().1), (400, json!(param)), "{:?}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_switches_reach_the_template_and_texts_do_not() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/qwen3");
    let gateway = Gateway::start(&format!("[[models]]\nname = \"q\"\npath = {model:?}\n[pipeline]\n")).await;
    let ask = |args: Value| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        json!({"model": "q", "max_tokens": 1, "messages": messages, "chat_template_kwargs": args})
    };
    let mut prompts = Vec::new();
    for args in [Value::Null, json!({"enable_thinking": true}), json!({"enable_thinking": false})] {
        let answer = gateway.post(CHAT, &ask(args)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        prompts.push(answer.json()["usage"]["prompt_tokens"].as_u64().unwrap());
    }
    assert!(prompts[0] == prompts[1] && prompts[1] < prompts[2], "the template closes the reasoning: {prompts:?}");
    let many: serde_json::Map<String, Value> = (0..17).map(|n| (format!("x{n}"), json!(n))).collect();
    for args in [json!(1), json!({"date": "today"}), json!({"tools": false}), json!(many)] {
        let (_, param, _) = gateway.post(CHAT, &ask(args.clone())).await.error();
        assert_eq!(param, "chat_template_kwargs", "{args}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_over_the_context_says_both_numbers() {
    let gateway = Gateway::start(BARE).await;
    let answer = gateway.chat(ask(&"word ".repeat(5000))).await;
    assert_eq!(answer.status, 400);
    let (message, _, code) = answer.error();
    assert_eq!(code, "context_length_exceeded");
    assert!(message.contains("1024"), "{message}");
    let answer = gateway.post("/v1/completions", &with_model(json!({"prompt": "word ".repeat(5000)}))).await;
    let (message, param, code) = answer.error();
    assert_eq!((answer.status, param, code), (400, json!("prompt"), json!("context_length_exceeded")));
    assert!(message.contains("1024"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_models_paths_and_methods_are_told_apart() {
    let gateway = Gateway::start(BARE).await;
    let mut request = ask("Hello!");
    request["model"] = "no-such-model".into();
    let answer = gateway.chat(request).await;
    assert_eq!((answer.status, answer.error().2), (404, json!("model_not_found")));
    assert_eq!(gateway.get("/v1/nothing").await.status, 404);
    let wrong_method = gateway.get(CHAT).await;
    assert_eq!(wrong_method.status, 405);
    assert_eq!(wrong_method.headers["allow"], "POST, OPTIONS");
    wrong_method.error();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_body_is_refused_before_it_is_read() {
    let gateway = Gateway::start(BARE).await;
    let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{{",
        2_u64 << 30
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut seen = vec![0; 64];
    let read = socket.read(&mut seen).await.unwrap();
    assert!(seen[..read].starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&seen));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_headers_and_slow_bodies_are_cut_off() {
    // Whose first bytes come later than the first of these gets no answer at all.
    let gateway = Gateway::start("[server]\nheader_timeout_ms = 2000\nbody_timeout_ms = 200\n[pipeline]\n").await;
    for start in [
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n".to_owned(),
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
        ),
    ] {
        let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
        socket.write_all(start.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection stays open after {start:?}");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\r\nx-request-id: "), "{answer}");
        assert!(answer.ends_with("\"code\":\"request_timeout\"}}"), "{answer}");
    }
}

/// The client goes away in the middle of a stream: its sequence is cancelled and its blocks are free. Metrics are of the
/// whole process, and no other test has this model.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_frees_its_blocks() {
    let gateway = Gateway::start("[[models]]\nname = \"left\"\npath = \"bundled\"\n[pipeline]\n").await;
    // Of a stream that was over before the client left, or before its blocks were seen, this says nothing.
    for attempt in 1..=10 {
        let mut socket = begin_a_long_story(&gateway).await;
        let mut seen = vec![0; 4096];
        assert!(socket.read(&mut seen).await.unwrap() > 0);
        let held = blocks_are_held(&gateway).await;
        drop(socket);
        until(&gateway, "blocks are free", |metrics| value(metrics, "tidegate_engine_kv_usage") == Some(0.0)).await;
        until(&gateway, "it is recorded", |metrics| ended(metrics, "") == f64::from(attempt)).await;
        let told = metrics(&gateway).await;
        if held && ended(&told, "client-gone") > 0.0 && cancelled(&told) > 0.0 {
            return;
        }
    }
    panic!("no client left in the middle of a stream");
}

async fn begin_a_long_story(gateway: &Gateway) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
    let mut request = ask("Tell me a long story.");
    request["model"] = "left".into();
    request["stream"] = true.into();
    (request["max_tokens"], request["n"]) = (900.into(), 4.into());
    request["logit_bias"] = json!({"2": -100});
    let body = request.to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

/// Whether that is seen within two seconds.
async fn blocks_are_held(gateway: &Gateway) -> bool {
    for _ in 0..200 {
        if value(&metrics(gateway).await, "tidegate_engine_kv_usage").is_some_and(|usage| usage > 0.0) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

async fn metrics(gateway: &Gateway) -> String {
    String::from_utf8_lossy(&gateway.get("/metrics").await.body).into_owned()
}

/// Waits until the metrics say so.
async fn until(gateway: &Gateway, what: &str, holds: impl Fn(&str) -> bool) {
    let mut said = String::new();
    for _ in 0..1000 {
        said = metrics(gateway).await;
        if holds(&said) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it is not so that {what}:\n{said}");
}

/// Requests to the model `left` that have ended, with `outcome` where that is not empty.
fn ended(metrics: &str, outcome: &str) -> f64 {
    let of_it = metrics.lines().filter(|line| line.starts_with("tidegate_requests_total{model=\"left\""));
    of_it
        .filter(|line| line.contains(outcome))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum()
}

/// Sequences of the model `left` that the engine let go before their end.
fn cancelled(metrics: &str) -> f64 {
    let line = "tidegate_engine_jobs_total{model=\"left\",outcome=\"cancelled\"} ";
    metrics.lines().find_map(|found| found.strip_prefix(line)?.parse().ok()).unwrap_or_default()
}

/// The value of a metric of the model `left`.
fn value(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{model=\"left\"}} ")));
    line?.rsplit(' ').next()?.parse().ok()
}

/// A cache that holds less than the model could read is said at the start, and asked-for text that is longer is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_context_that_the_cache_cuts_short_is_said() {
    let gateway = Gateway::start("[engine]\nkv_cache_mib = 1\n[pipeline]\n").await;
    let fact = gateway.running.facts.iter().find(|fact| fact.starts_with("context"));
    assert!(fact.is_some_and(|fact| fact.contains("kv_cache_mib = 1")), "{:?}", gateway.running.facts);
    let answer = gateway.chat(ask(&"word ".repeat(900))).await;
    assert_eq!((answer.status, answer.error().2), (400, json!("context_length_exceeded")));
    let whole = Gateway::start(BARE).await;
    assert!(!whole.running.facts.iter().any(|fact| fact.starts_with("context")));
}
