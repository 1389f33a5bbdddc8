//! What a client gets that follows the rules, over HTTP/1.1.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{chat, finish, get, limits, post, start, start_keeping, text};
use tidegate_api::{ApiKey, Limits};
use tidegate_types::{Caller, Class, Form, TenantId};

#[tokio::test]
async fn an_answer_in_one_piece() {
    let mut running = start(limits(), Vec::new(), None);
    let answered = running.ask(chat("m", r#","n":2"#)).await;
    assert_eq!((answered.status, answered.header("content-type")), (200, Some("application/json")));
    assert_eq!(answered.header("x-tidegate-model"), Some("m"));
    let body = answered.json();
    assert_eq!(body["choices"][0]["message"]["content"], "hello");
    assert_eq!(body["choices"][1]["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 3);
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-") && body["created"].as_u64().unwrap() > 1_700_000_000);
    let (asked, cx) = running.asked.recv().await.unwrap();
    assert_eq!((asked.form, asked.n), (Form::Chat, 2));
    assert_eq!(answered.header("x-request-id"), Some(cx.request_id.as_str()));
    assert_eq!(cx.caller.tenant, TenantId::new("local"));
}

/// An empty page would say that the list ends there.
#[tokio::test]
async fn a_page_behind_what_a_list_never_had_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_keeping(limits(), folder.path()).await;
    let new = r#"{"items":[{"role":"user","content":"One."},{"role":"user","content":"Two."}]}"#;
    let id = running.ask(post("/v1/conversations", new)).await.json()["id"].as_str().unwrap().to_owned();
    let asked = format!(r#"{{"model":"m","input":"Hello!","conversation":"{id}"}}"#);
    let response = running.ask(post("/v1/responses", asked)).await.json()["id"].as_str().unwrap().to_owned();
    let items = format!("/v1/conversations/{id}/items");
    for (list, deletes) in [
        (format!("/v1/responses/{response}/input_items?"), Some(&items)),
        (format!("{items}?"), Some(&items)),
        (format!("{items}?branch=all&"), Some(&items)),
        ("/v1/conversations?".to_owned(), None),
    ] {
        let refused = running.ask(get(&format!("{list}after=other"))).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"], &error["code"]), (400, &json!("after"), &json!("invalid_value")));
        let last = running.ask(get(&format!("{list}order=asc"))).await.json()["last_id"].as_str().unwrap().to_owned();
        let end = format!("{list}order=asc&after={last}");
        assert_eq!(running.ask(get(&end)).await.json()["data"], json!([]), "{list}");
        // What was deleted since is known.
        if let Some(of) = deletes {
            running.ask(get(&format!("{of}/{last}")).replacen("GET", "DELETE", 1)).await;
            assert_eq!(running.ask(get(&end)).await.json()["data"], json!([]), "{list}");
        }
    }
}

#[tokio::test]
async fn the_callers_request_id_is_kept_when_it_is_sane() {
    let running = start(limits(), Vec::new(), None);
    let with = |id: &str| get("/livez").replace("\r\n\r\n", &format!("\r\nx-request-id: {id}\r\n\r\n"));
    assert_eq!(running.ask(with("abc-1")).await.header("x-request-id"), Some("abc-1"));
    let made = running.ask(with("a b")).await;
    assert!(made.header("x-request-id").unwrap().starts_with("req_"));
}

#[tokio::test]
async fn a_streamed_answer() {
    let running = start(limits(), Vec::new(), None);
    let answered = running.ask(chat("m", r#","stream":true,"stream_options":{"include_usage":true}"#)).await;
    assert_eq!((answered.status, answered.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(
        (answered.header("cache-control"), answered.header("x-accel-buffering")),
        (Some("no-store"), Some("no"))
    );
    let events = answered.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let expected = [
        &json!({"role": "assistant", "content": ""}),
        &json!({"content": "hel"}),
        &json!({"content": "lo"}),
        &json!({}),
    ];
    assert_eq!(deltas[..4], expected);
    assert_eq!((&chunks[4]["choices"], &chunks[4]["usage"]["completion_tokens"]), (&json!([]), &json!(2)));
}

#[tokio::test]
async fn each_event_leaves_when_it_comes() {
    let running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    client.send(chat("gated", r#","stream":true"#)).await;
    for word in ["one", "two", "three"] {
        running.gate.send(text(word)).await.unwrap();
        // The next word is sent only after this one has arrived here.
        client.read_to(&format!("{{\"content\":\"{word}\"}}")).await;
    }
    running.gate.send(finish(0)).await.unwrap();
    client.read_to("\"finish_reason\":\"stop\"").await;
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let limits =
        Limits { keep_alive: Duration::from_millis(10), first_event_wait: Duration::from_millis(10), ..limits() };
    let running = start(limits, Vec::new(), None);
    let mut client = running.connect().await;
    client.send(chat("silent", r#","stream":true"#)).await;
    assert!(client.read_to("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    client.read_to(": keep-alive\n\n").await;
    client.read_to(": keep-alive\n\n").await;
}

#[tokio::test]
async fn the_older_endpoint_says_what_it_was_asked_to_repeat() {
    let mut running = start(limits(), Vec::new(), None);
    let answered = running.ask(post("/v1/completions", r#"{"model":"m","prompt":"say ","echo":true}"#)).await;
    let body = answered.json();
    assert_eq!((&body["choices"][0]["text"], &body["object"]), (&json!("hello"), &json!("text_completion")));
    assert_eq!(running.asked.recv().await.unwrap().0.form, Form::Completion { echo: true });
}

#[tokio::test]
async fn a_connection_serves_many_requests_and_pipelined_ones_in_order() {
    let running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    for _ in 0..3 {
        client.send(chat("m", "")).await;
        assert_eq!(client.answer().await.status, 200);
    }
    client
        .send([chat("a", ""), get("/livez").into_bytes(), chat("b", r#","stream":true"#), chat("c", "")].concat())
        .await;
    assert_eq!(client.answer().await.json()["model"], "a");
    assert_eq!(client.answer().await.body, "ok\n");
    assert!(client.answer().await.body.contains("\"model\":\"b\""));
    assert_eq!(client.answer().await.json()["model"], "c");
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let running = start(limits(), Vec::new(), None);
    let list = running.ask(get("/v1/models")).await.json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("org/one")));
    for path in ["/v1/models/org/one", "/v1/models/org%2Fone", "/v1/models/local"] {
        assert_eq!(running.ask(get(path)).await.status, 200, "{path}");
    }
    let missing = running.ask(get("/v1/models/two")).await;
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn probes_and_metrics() {
    let running = start(limits(), Vec::new(), None);
    assert_eq!(running.ask(get("/livez")).await.body, "ok\n");
    for path in ["/readyz", "/health"] {
        running.fake.ready.store(true, Ordering::SeqCst);
        assert_eq!(running.ask(get(path)).await.body, "ready\n");
        running.fake.ready.store(false, Ordering::SeqCst);
        let not_ready = running.ask(get(path)).await;
        assert_eq!((not_ready.status, not_ready.header("retry-after")), (503, Some("1")), "{path}");
        assert!(!not_ready.body.contains("secret"));
    }
    let metrics = running.ask(get("/metrics")).await;
    assert_eq!(
        (metrics.body.as_str(), metrics.header("content-type")),
        ("a_metric 1\n", Some("text/plain; version=0.0.4"))
    );
}

#[tokio::test]
async fn methods_and_paths_that_do_not_exist_are_said_so() {
    let running = start(limits(), Vec::new(), None);
    let request = |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let wrong = running.ask(get("/v1/chat/completions")).await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("post, options")));
    assert_eq!(wrong.json()["error"]["code"], "method_not_allowed");
    let nothing = running.ask(request("POST", "/v1/chat")).await;
    assert_eq!((nothing.status, &nothing.json()["error"]["type"]), (404, &json!("invalid_request_error")));
    let options = running.ask(request("OPTIONS", "/v1/models")).await;
    assert_eq!((options.status, options.header("allow")), (204, Some("get, head, options")));
    assert_eq!(running.ask(request("OPTIONS", "/nothing")).await.status, 404);
    let mut client = running.connect().await;
    for (path, body) in [("/livez", "ok\n"), ("/health", "ready\n")] {
        client.send(request("HEAD", path) + &get(path)).await;
        let head = client.read_to("\r\n\r\n").await;
        assert!(
            head.starts_with("HTTP/1.1 200") && head.contains(&format!("content-length: {}", body.len())),
            "{head}"
        );
        assert_eq!(client.answer().await.body, body);
    }
}

#[tokio::test]
async fn failures_have_their_status_and_openais_shape() {
    let running = start(limits(), Vec::new(), None);
    for stream in ["", r#","stream":true"#] {
        let missing = running.ask(chat("missing", stream)).await;
        assert_eq!((missing.status, &missing.json()["error"]["param"]), (404, &json!("model")));
        let full = running.ask(chat("full", stream)).await;
        assert_eq!((full.status, full.header("retry-after")), (503, Some("3")));
        let first = running.ask(chat("fails-first", stream)).await;
        assert_eq!((first.status, &first.json()["error"]["message"]), (502, &json!("it broke")));
    }
    assert_eq!(running.ask(chat("fails", "")).await.status, 502);
}

#[tokio::test]
async fn a_failure_within_a_stream_is_an_event_and_never_a_quiet_end() {
    let running = start(limits(), Vec::new(), None);
    let answered = running.ask(chat("fails", r#","stream":true"#)).await;
    assert_eq!(answered.status, 200);
    let last: Value = serde_json::from_str(answered.events().last().unwrap()).unwrap();
    assert_eq!(last["error"]["message"], "it broke");
    assert!(!answered.body.contains("[DONE]"));
}

#[tokio::test]
async fn keys_decide_who_asks() {
    let hash = format!("blake3:{}", blake3::hash(b"tg-1"));
    let (tenant, key_name) = (TenantId::new("acme"), "ann".into());
    let caller = Caller { tenant, key_name, class: Class::Batch, weight: 2, ..Caller::local() };
    let key = ApiKey { hash, caller, endpoints: None, expires: None };
    let mut running = start(limits(), vec![key], None);
    let with = |key: &str| {
        let head = format!("authorization: Bearer {key}\r\ncontent-type");
        String::from_utf8(chat("m", "")).unwrap().replacen("content-type", &head, 1)
    };
    assert_eq!(running.ask(with("tg-1")).await.status, 200);
    let caller = running.asked.recv().await.unwrap().1.caller;
    assert_eq!((caller.tenant.as_str(), &*caller.key_name, caller.class), ("acme", "ann", Class::Batch));
    for request in [with("tg-2"), String::from_utf8(chat("m", "")).unwrap(), get("/v1/models"), get("/metrics")] {
        let refused = running.ask(request).await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("bearer")));
        assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    }
    assert_eq!(running.ask(get("/livez")).await.status, 200);
    assert!(running.asked.try_recv().is_err());
}
