//! Requests that say which they are: done once, whoever asks how often, and whoever goes away meanwhile.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{Running, chat, finish, get, limits, start, start_gateway, start_keeping, text};
use tidegate_api::{ApiKey, IdempotencyLimits, Limits, StreamLimits};
use tidegate_types::{Caller, TenantId};

fn with(request: impl AsRef<[u8]>, headers: &str) -> String {
    let request = String::from_utf8(request.as_ref().to_vec()).unwrap();
    request.replacen("\r\n", &format!("\r\n{headers}\r\n"), 1)
}

fn once(key: &str, request: impl AsRef<[u8]>) -> String {
    with(request, &format!("idempotency-key: {key}"))
}

/// How often the service was asked since the last look.
fn asked(running: &mut Running) -> usize {
    std::iter::from_fn(|| running.asked.try_recv().ok()).count()
}

fn code(answered: &support::Answered) -> String {
    answered.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_same_request_is_done_once_and_answered_alike() {
    let key = |name: &str| ApiKey {
        hash: format!("blake3:{}", blake3::hash(name.as_bytes())),
        caller: Caller { tenant: TenantId::new("t"), key_name: name.into(), ..Caller::local() },
        endpoints: None,
        expires: None,
    };
    let mut running = start(limits(), vec![key("ann"), key("bob")], None);
    let of = |name: &str, request: String| with(request, &format!("authorization: Bearer {name}"));
    for more in ["", r#","stream":true"#] {
        let request = once(&format!("k{}", more.len()), chat("m", more));
        let first = running.ask(of("ann", request.clone())).await;
        let again = running.ask(of("ann", request.clone())).await;
        assert_eq!((first.status, again.status, &first.body), (200, 200, &again.body));
        assert_eq!((first.header("idempotent-replayed"), again.header("idempotent-replayed")), (None, Some("true")));
        assert_eq!(first.header("content-type"), again.header("content-type"));
        assert_ne!(first.header("x-request-id"), again.header("x-request-id"));
        assert_eq!(asked(&mut running), 1);
        // Another caller's key of the same name is another key.
        assert_ne!(running.ask(of("bob", request)).await.body, first.body);
        assert_eq!(asked(&mut running), 1);
        let other = once(&format!("k{}", more.len()), chat("m2", more));
        let refused = running.ask(of("ann", other)).await;
        assert_eq!((refused.status, code(&refused).as_str()), (409, "idempotency_key_reused"));
        assert_eq!(asked(&mut running), 0);
    }
}

#[tokio::test]
async fn who_asks_again_meanwhile_reads_along_and_nobodys_leaving_stops_it() {
    let mut running = start(limits(), Vec::new(), None);
    let request = once("k", chat("gated", r#","stream":true"#));
    let (mut first, mut second) = (running.connect().await, running.connect().await);
    first.send(&request).await;
    running.gate.send(text("one")).await.unwrap();
    first.read_to("\"one\"").await;
    second.send(&request).await;
    second.read_to("\"one\"").await;
    drop(first);
    running.gate.send(text("two")).await.unwrap();
    second.read_to("\"two\"").await;
    drop(second);
    running.gate.send(text("three")).await.unwrap();
    running.gate.send(finish(0)).await.unwrap();
    let (gate, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut running.gate, gate));
    let whole = running.ask(&request).await;
    assert!(["one", "two", "three", "[DONE]"].iter().all(|word| whole.body.contains(word)), "{}", whole.body);
    assert_eq!(asked(&mut running), 1);
    running.all_dropped().await;
}

#[tokio::test]
async fn an_answer_in_one_piece_is_waited_for_by_all_who_ask() {
    let mut running = start(limits(), Vec::new(), None);
    let request = once("k", chat("gated", ""));
    let mut gone = running.connect().await;
    gone.send(&request).await;
    running.fake.begun.notified().await;
    drop(gone);
    let mut waiting = running.connect().await;
    waiting.send(&request).await;
    running.gate.send(text("one")).await.unwrap();
    running.gate.send(finish(0)).await.unwrap();
    let (gate, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut running.gate, gate));
    let answer = waiting.answer().await;
    assert_eq!((answer.status, answer.json()["choices"][0]["message"]["content"].as_str()), (200, Some("one")));
    assert_eq!((asked(&mut running), running.ask(&request).await.body), (1, answer.body));
}

#[tokio::test]
async fn what_failed_is_free_to_be_tried_again() {
    let mut running = start(limits(), Vec::new(), None);
    for (model, more, status) in [
        ("full", "", 503),
        ("missing", "", 404),
        ("fails", "", 502),
        ("fails-first", r#","stream":true"#, 502),
        ("fails", r#","stream":true"#, 200),
        // An upstream says so of its own accord.
        ("says-cancelled", "", 400),
        ("says-cancelled", r#","stream":true"#, 400),
        ("breaks-cancelled", "", 400),
        ("breaks-cancelled", r#","stream":true"#, 200),
    ] {
        let request = once(&format!("{model}{}", more.len()), chat(model, more));
        for _ in 0..2 {
            assert_eq!(running.ask(&request).await.status, status, "{model}{more}");
            running.all_dropped().await;
        }
        assert_eq!(asked(&mut running), 2, "{model}{more}");
    }
    assert_eq!(running.fake.live.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_key_has_a_length_and_is_alone() {
    let running = start(limits(), Vec::new(), None);
    for headers in [
        "idempotency-key: ".to_owned(),
        format!("idempotency-key: {}", "k".repeat(257)),
        "idempotency-key: a\r\nidempotency-key: b".to_owned(),
    ] {
        let refused = running.ask(with(chat("m", ""), &headers)).await;
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("idempotency-key")));
    }
    let longest = format!("idempotency-key: {}", "k".repeat(256));
    assert_eq!(running.ask(with(chat("m", ""), &longest)).await.status, 200);
    // What reads only takes no notice.
    assert_eq!(running.ask(with(support::get("/v1/models"), "idempotency-key: k")).await.status, 200);
}

/// As long as a stream can be come back to, which is not at all here; anything else for a day.
#[tokio::test]
async fn an_answer_of_which_nothing_is_to_be_kept_is_not_given_again_for_a_day() {
    let streams = StreamLimits { keep: Duration::ZERO, ..StreamLimits::default() };
    let mut running = start(Limits { streams, ..limits() }, Vec::new(), None);
    let response = |more: &str| support::post("/v1/responses", format!(r#"{{"model":"m","input":"Hello!"{more}}}"#));
    for (key, request, again) in [
        ("a", chat("m", ""), 200),
        ("b", chat("m", r#","store":false"#), 409),
        ("c", chat("m", r#","store":false,"stream":true"#), 409),
        ("d", response(""), 200),
        ("e", response(r#","store":false"#), 409),
    ] {
        let request = once(key, request);
        assert_eq!(running.ask(&request).await.status, 200, "{key}");
        assert_eq!(asked(&mut running), 1);
        running.all_dropped().await;
        let answer = running.ask(&request).await;
        assert_eq!((answer.status, asked(&mut running)), (again, 0), "{key}: {}", answer.body);
        assert!(again == 200 || code(&answer) == "idempotency_answer_gone");
    }
}

#[tokio::test]
async fn an_answer_that_is_kept_no_more_is_not_made_twice() {
    let idempotency = IdempotencyLimits { keys: 10, bytes: 500 };
    let mut running = start(Limits { idempotency, ..limits() }, Vec::new(), None);
    for key in ["a", "b", "c"] {
        assert_eq!(running.ask(once(key, chat("m", ""))).await.status, 200);
    }
    assert_eq!(asked(&mut running), 3);
    let mut again = Vec::new();
    for key in ["a", "b", "c"] {
        again.push(running.ask(once(key, chat("m", ""))).await);
    }
    assert_eq!(again.iter().map(|answer| answer.status).collect::<Vec<_>>(), [409, 409, 200]);
    assert_eq!((code(&again[0]).as_str(), asked(&mut running)), ("idempotency_answer_gone", 0));
}

/// They stay for a day, and those that others read are not to wait for that.
#[tokio::test]
async fn streams_that_are_kept_for_keys_leave_room_for_others() {
    let streams = StreamLimits { log_bytes: 8 << 10, total_bytes: 64 << 10, ..StreamLimits::default() };
    let mut running = start(Limits { streams, ..limits() }, Vec::new(), None);
    let request = |key: usize| once(&format!("k{key}"), chat("long", r#","stream":true"#));
    for key in 0..30 {
        let answer = running.ask(request(key)).await;
        assert_eq!(answer.status, 200, "{key}: {answer:?}");
    }
    assert_eq!(asked(&mut running), 30);
    let [first, last] = [running.ask(request(0)).await, running.ask(request(29)).await];
    assert_eq!((code(&first).as_str(), last.header("idempotent-replayed")), ("idempotency_answer_gone", Some("true")));
    assert_eq!(asked(&mut running), 0);
}

/// It goes on, and is kept: to make it again would be to make it twice.
#[tokio::test]
async fn a_kept_response_whose_stream_is_cut_keeps_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let streams = StreamLimits { log_bytes: 8 << 10, total_bytes: 32 << 10, ..StreamLimits::default() };
    for background in [false, true] {
        let folder = folder.path().join(background.to_string());
        let mut running = start_keeping(Limits { streams: streams.clone(), ..limits() }, &folder).await;
        let body = format!(r#"{{"model":"gated","input":"Hello!","stream":true,"background":{background}}}"#);
        let request = once("k", support::post("/v1/responses", body));
        let mut client = running.connect().await;
        client.send(&request).await;
        running.gate.send(text(&"x".repeat(70_000))).await.unwrap();
        let cut = client.answer().await;
        assert!(cut.body.contains("\"code\":\"stream_cut\""), "{cut:?}");
        let again = running.ask(&request).await;
        assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &cut.body));
        running.gate.send(finish(0)).await.unwrap();
        drop(std::mem::replace(&mut running.gate, tokio::sync::mpsc::channel(1).0));
        let (found, _) = ended(&running, &cut.body).await;
        assert_eq!(found["status"], "completed", "{found}");
        assert_eq!(found["output"][0]["content"][0]["text"].as_str().map(str::len), Some(70_000));
        assert_eq!(running.ask(&request).await.body, cut.body);
        assert_eq!(asked(&mut running), 1);
    }
}

/// The word for a stream that ended before its answer did, of an upstream whose answer did end.
#[tokio::test]
async fn a_kept_response_that_failed_is_free_to_be_tried_again_whatever_the_failure_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start_keeping(limits(), folder.path()).await;
    let body = r#"{"model":"breaks-cut","input":"Hello!","stream":true}"#;
    let request = once("k", support::post("/v1/responses", body));
    for _ in 0..2 {
        let failed = running.ask(&request).await;
        assert!(failed.body.contains("\"code\":\"stream_cut\""), "{failed:?}");
        assert_eq!(failed.header("idempotent-replayed"), None);
        running.all_dropped().await;
    }
    assert_eq!(asked(&mut running), 2);
}

/// The response whose stream was cut, once it has ended; and its path.
async fn ended(running: &Running, cut: &str) -> (serde_json::Value, String) {
    let id = cut.split("\"id\":\"resp_").nth(1).unwrap().split('"').next().unwrap();
    let path = format!("/v1/responses/resp_{id}");
    let mut found = running.ask(get(&path)).await.json();
    let until = Instant::now() + Duration::from_secs(60);
    while found["status"] == "in_progress" || found["error"]["code"] == "response_not_found" {
        assert!(Instant::now() < until, "{found}");
        tokio::time::sleep(Duration::from_millis(10)).await;
        found = running.ask(get(&path)).await.json();
    }
    (found, path)
}

/// Else who asks there would be told to wait for a day.
#[tokio::test]
async fn another_gateway_hears_when_a_response_whose_stream_was_cut_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let streams = StreamLimits { log_bytes: 8 << 10, total_bytes: 32 << 10, ..StreamLimits::default() };
    let limits = Limits { streams, ..limits() };
    let mut one = start_gateway(limits.clone(), folder.path(), "one").await;
    let two = start_gateway(limits, folder.path(), "two").await;
    let request = once("k", support::post("/v1/responses", r#"{"model":"gated","input":"Hello!","stream":true}"#));
    let mut client = one.connect().await;
    client.send(&request).await;
    one.gate.send(text(&"x".repeat(70_000))).await.unwrap();
    let cut = client.answer().await;
    assert!(cut.body.contains("\"code\":\"stream_cut\""), "{cut:?}");
    assert_eq!(code(&two.ask(&request).await), "idempotency_in_progress");
    one.gate.send(finish(0)).await.unwrap();
    drop(std::mem::replace(&mut one.gate, tokio::sync::mpsc::channel(1).0));
    let (found, path) = ended(&one, &cut.body).await;
    assert_eq!(found["status"], "completed", "{found}");
    let deleted = one.ask(get(&path).replacen("GET", "DELETE", 1)).await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let until = Instant::now() + Duration::from_secs(60);
    while code(&two.ask(&request).await) != "idempotency_answer_gone" {
        assert!(Instant::now() < until, "it is still said to be made");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
