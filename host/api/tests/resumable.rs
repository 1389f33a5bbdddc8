//! Streams that outlive their connections.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Answered, Running, chat, finish, get, limits, start, start_keeping, text};
use tidegate_api::{ApiKey, Limits, StreamLimits};
use tidegate_types::{Caller, TenantId};

fn with(request: impl AsRef<[u8]>, headers: &str) -> String {
    let request = String::from_utf8(request.as_ref().to_vec()).unwrap();
    request.replacen("\r\n", &format!("\r\n{headers}\r\n"), 1)
}

fn resumable(model: &str) -> String {
    with(chat(model, r#","stream":true"#), "x-tidegate-resumable: true")
}

/// The events with their ids.
fn events(body: &str) -> Vec<(u64, &str)> {
    body.split_terminator("\n\n")
        .map(|event| {
            let (id, data) = event.split_once('\n').unwrap();
            (id.strip_prefix("id: ").unwrap().parse().unwrap(), data.strip_prefix("data: ").unwrap())
        })
        .collect()
}

fn id_of(answered: &Answered) -> String {
    answered.header("x-tidegate-stream-id").unwrap().to_owned()
}

async fn read_after(running: &Running, id: &str, seen: u64) -> Answered {
    running.ask(with(get(&format!("/v1/streams/{id}")), &format!("last-event-id: {seen}"))).await
}

#[tokio::test]
async fn a_reader_that_comes_back_goes_on_behind_any_event() {
    let running = start(limits(), Vec::new(), None);
    let whole = running.ask(resumable("m")).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("text/event-stream")));
    let seen = events(&whole.body);
    assert_eq!(seen.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (1..=seen.len() as u64).collect::<Vec<_>>());
    assert_eq!(seen.last().unwrap().1, "[DONE]");
    let plain = running.ask(chat("m", r#","stream":true"#)).await;
    assert_eq!(seen.len(), plain.events().len(), "the same events, but for their ids");
    let id = id_of(&whole);
    for after in 0..=seen.len() {
        let rest = read_after(&running, &id, after as u64).await;
        assert_eq!((rest.status, events(&rest.body)), (200, seen[after..].to_vec()), "after {after}");
        let by_query = running.ask(get(&format!("/v1/streams/{id}?starting_after={after}"))).await;
        assert_eq!(by_query.body, rest.body);
    }
}

#[tokio::test]
async fn a_generation_goes_on_without_its_client() {
    let running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    client.send(resumable("gated")).await;
    running.gate.send(text("one")).await.unwrap();
    let head = client.read_to("\r\n\r\n").await.to_lowercase();
    let id = head.split("x-tidegate-stream-id: ").nth(1).unwrap().split("\r\n").next().unwrap().to_owned();
    client.read_to("\"one\"").await;
    drop(client);
    running.gate.send(text("two")).await.unwrap();
    let mut reader = running.connect().await;
    reader.send(with(get(&format!("/v1/streams/{id}")), "last-event-id: 2")).await;
    assert!(reader.read_to("\"two\"").await.contains("id: 3\n"), "what was said while nobody read");
    // Two readers at once, and one of them leaves.
    let mut other = running.connect().await;
    other.send(get(&format!("/v1/streams/{id}"))).await;
    other.read_to("\"two\"").await;
    drop(other);
    running.gate.send(text("three")).await.unwrap();
    reader.read_to("\"three\"").await;
    assert_eq!(running.fake.live.load(Ordering::SeqCst), 1);
    running.gate.send(finish(0)).await.unwrap();
    drop(running.gate);
    reader.read_to("[DONE]").await;
}

#[tokio::test]
async fn a_stream_is_its_tenants_alone() {
    let key = |name: &str| ApiKey {
        hash: format!("blake3:{}", blake3::hash(name.as_bytes())),
        caller: Caller { tenant: TenantId::new(name), key_name: name.into(), ..Caller::local() },
        endpoints: None,
        expires: None,
    };
    let running = start(limits(), vec![key("ann"), key("bob")], None);
    let made = running.ask(with(resumable("m"), "authorization: Bearer ann")).await;
    let id = id_of(&made);
    let ask = |path: String, key: &str| with(get(&path), &format!("authorization: Bearer {key}"));
    assert_eq!(running.ask(ask(format!("/v1/streams/{id}"), "ann")).await.status, 200);
    let theirs = running.ask(ask(format!("/v1/streams/{id}"), "bob")).await;
    let missing = running.ask(ask("/v1/streams/stream_00".into(), "bob")).await;
    assert_eq!((theirs.status, &theirs.body), (404, &missing.body), "as one that never was");
    assert_eq!(theirs.json()["error"]["code"], "stream_not_found");
    let cancel = String::from_utf8(support::post(&format!("/v1/streams/{id}/cancel"), "")).unwrap();
    assert_eq!(running.ask(with(cancel, "authorization: Bearer bob")).await.status, 404);
}

#[tokio::test]
async fn a_cancelled_stream_ends_with_an_error_and_frees_its_work() {
    let running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    client.send(resumable("hang")).await;
    let head = client.read_to("\r\n\r\n").await.to_lowercase();
    let id = head.split("x-tidegate-stream-id: ").nth(1).unwrap().split("\r\n").next().unwrap().to_owned();
    let cancel = support::post(&format!("/v1/streams/{id}/cancel"), "");
    let cancelled = running.ask(&cancel).await;
    assert_eq!((cancelled.status, cancelled.json()["status"].as_str()), (200, Some("cancelled")));
    let rest = client.read_to("\r\n0\r\n\r\n").await;
    assert!(rest.contains("\"code\":\"cancelled\"") && !rest.contains("[DONE]"), "{rest}");
    running.all_dropped().await;
    assert_eq!(running.ask(&cancel).await.json()["status"], "cancelled", "again is as once");
    let ended = running.ask(resumable("m")).await;
    let late = support::post(&format!("/v1/streams/{}/cancel", id_of(&ended)), "");
    assert_eq!(running.ask(late).await.json()["status"], "completed");
}

#[tokio::test]
async fn failures_keep_their_place() {
    let running = start(limits(), Vec::new(), None);
    for (model, status) in [("missing", 404), ("full", 503), ("fails-first", 502)] {
        assert_eq!(running.ask(resumable(model)).await.status, status, "{model}");
    }
    let broken = running.ask(resumable("fails")).await;
    assert_eq!(broken.status, 200);
    let again = read_after(&running, &id_of(&broken), 0).await;
    assert_eq!(again.body, broken.body);
    assert!(again.body.contains("\"error\"") && !again.body.contains("[DONE]"));
}

#[tokio::test]
async fn bad_requests_are_told_what_is_wrong() {
    let running = start(limits(), Vec::new(), None);
    for (request, param) in [
        (with(chat("m", ""), "x-tidegate-resumable: true"), "x-tidegate-resumable"),
        (with(chat("m", r#","stream":true"#), "x-tidegate-resumable: yes"), "x-tidegate-resumable"),
    ] {
        let answered = running.ask(request).await;
        assert_eq!((answered.status, answered.json()["error"]["param"].as_str()), (400, Some(param)));
    }
    let id = id_of(&running.ask(resumable("m")).await);
    for request in [
        with(get(&format!("/v1/streams/{id}")), "last-event-id: x"),
        get(&format!("/v1/streams/{id}?starting_after=-1")),
    ] {
        assert_eq!(running.ask(request).await.status, 400);
    }
    assert_eq!(running.ask(support::post(&format!("/v1/streams/{id}"), "")).await.status, 404);
}

#[tokio::test]
async fn a_reader_that_comes_too_late_is_told_what_is_left() {
    let streams = StreamLimits { log_bytes: 400, ..StreamLimits::default() };
    let running = start(Limits { streams, ..limits() }, Vec::new(), None);
    let id = id_of(&running.ask(resumable("m")).await);
    let answered = read_after(&running, &id, 0).await;
    assert_eq!((answered.status, answered.json()["error"]["code"].as_str()), (400, Some("events_gone")));
    let message = answered.json()["error"]["message"].as_str().unwrap().to_owned();
    let after: u64 = message.split("starting_after=").nth(1).unwrap().trim_end_matches('`').parse().unwrap();
    let rest = read_after(&running, &id, after).await;
    assert_eq!((rest.status, events(&rest.body).first().unwrap().0), (200, after + 1));
}

/// Events of a response say numbers from 0.
#[tokio::test]
async fn a_reader_of_a_response_that_comes_too_late_is_told_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_keeping(narrow(2000), folder.path()).await;
    let body = r#"{"model":"m","input":"Hello!","background":true}"#;
    let id = running.ask(support::post("/v1/responses", body)).await.json()["id"].as_str().unwrap().to_owned();
    while running.ask(get(&format!("/v1/responses/{id}"))).await.json()["status"] != "completed" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let read = async |after: &str| running.ask(get(&format!("/v1/responses/{id}?stream=true{after}"))).await;
    let answered = read("").await;
    assert_eq!((answered.status, answered.json()["error"]["code"].as_str()), (400, Some("events_gone")));
    let message = answered.json()["error"]["message"].as_str().unwrap().to_owned();
    let after: u64 = message.split("starting_after=").nth(1).unwrap().trim_end_matches('`').parse().unwrap();
    let rest = read(&format!("&starting_after={after}")).await;
    let first = rest.body.lines().find_map(|line| line.strip_prefix("id: "));
    assert_eq!((rest.status, first), (200, Some((after + 2).to_string().as_str())));
    assert!(rest.body.contains(&format!("\"sequence_number\":{}", after + 1)), "{}", rest.body);
    assert_eq!(read(&format!("&starting_after={}", after - 1)).await.status, 400, "no event is left out");
}

fn narrow(log_bytes: usize) -> Limits {
    Limits { streams: StreamLimits { log_bytes, ..StreamLimits::default() }, ..limits() }
}

#[tokio::test]
async fn a_response_whose_events_would_repeat_more_than_a_log_holds_is_refused_before_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start_keeping(narrow(3000), folder.path()).await;
    let instructions = "x".repeat(4000);
    let body = |more: &str| format!(r#"{{"model":"m","input":"Hello!","instructions":"{instructions}"{more}}}"#);
    let respond = |more: &str| String::from_utf8(support::post("/v1/responses", body(more))).unwrap();
    let keyed = |request: String| with(request, "idempotency-key: k");
    let (streamed, behind) = (respond(r#","stream":true"#), respond(r#","background":true"#));
    let both = respond(r#","stream":true,"background":true"#);
    for request in [keyed(streamed.clone()), streamed, keyed(behind.clone()), behind, both, keyed(respond(""))] {
        let refused = running.ask(&request).await;
        let code = refused.json()["error"]["code"].clone();
        assert_eq!((refused.status, code), (413, "event_too_large".into()), "{request}");
        assert!(running.asked.try_recv().is_err(), "nothing was asked of the model");
    }
    for whole in [respond(""), keyed(respond(r#","store":false"#))] {
        let answered = running.ask(&whole).await;
        assert_eq!(answered.status, 200, "{answered:?}");
    }
}

/// Its last event repeats all of it, log-probabilities included.
#[tokio::test]
async fn a_stream_of_an_answer_that_is_larger_than_its_log_has_its_end() {
    let running = start(narrow(6000), Vec::new(), None);
    let mut client = running.connect().await;
    let ask = r#"{"model":"gated","input":"Hello!","stream":true,"store":false}"#;
    client.send(support::post("/v1/responses", ask)).await;
    for n in 0..40 {
        running.gate.send(support::scored(&format!("word {n}"), 300)).await.unwrap();
        client.read_to(&format!("\"word {n}\"")).await;
    }
    running.gate.send(finish(0)).await.unwrap();
    drop(running.gate);
    let rest = client.read_to("\r\n0\r\n\r\n").await;
    // Every other line is the size of a chunk; events have no such ends of lines.
    let rest: String = rest.split("\r\n").step_by(2).collect();
    let event = |name: &str| {
        let start = rest.find(&format!("event: {name}\ndata: ")).unwrap_or_else(|| panic!("no {name}: {rest}"));
        let data = rest[start..].split_once("data: ").unwrap().1.split("\n\n").next().unwrap();
        serde_json::from_str::<serde_json::Value>(data).unwrap()
    };
    let done = event("response.output_text.done");
    assert!(done["text"].as_str().unwrap().ends_with("word 39"));
    assert_eq!(done["logprobs"], serde_json::json!([]), "the deltas have said them");
    let whole = &event("response.completed")["response"]["output"][0]["content"][0];
    assert_eq!((&whole["text"], whole["logprobs"].as_array().unwrap().len()), (&done["text"], 40));
}

/// The types of the typed events of a body.
fn types(body: &str) -> Vec<&str> {
    body.lines().filter_map(|line| line.strip_prefix("event: ")).collect()
}

/// Four events say a text or a call again, and each of them is more than a third of the log.
#[tokio::test]
async fn who_reads_promptly_has_the_end_of_a_long_text_and_of_a_long_call() {
    const END: [&str; 4] =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"];
    const CALL: [&str; 5] = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    let long = "x".repeat(25_000);
    for (key, is_call) in [("", false), ("", true), ("idempotency-key: k", false), ("idempotency-key: k", true)] {
        let running = start(narrow(64 << 10), Vec::new(), None);
        let mut client = running.connect().await;
        let ask = support::post("/v1/responses", r#"{"model":"gated","input":"Hello!","stream":true,"store":false}"#);
        client.send(if key.is_empty() { String::from_utf8(ask).unwrap() } else { with(ask, key) }).await;
        for n in 0..if is_call { 0 } else { 100 } {
            running.gate.send(text(&format!("{n:0250}"))).await.unwrap();
        }
        if is_call {
            running.gate.send(support::called(format!("{{\"a\":\"{long}\"}}"))).await.unwrap();
        }
        running.gate.send(finish(0)).await.unwrap();
        drop(running.gate);
        let answered = client.answer().await;
        let types = types(&answered.body);
        let end: &[&str] = if is_call { &CALL } else { &END };
        assert!(types.ends_with(end), "{key} {types:?}");
        assert!(answered.body.len() > 100_000 && !answered.body.contains("\"error\":{"), "{key}");
    }
}

/// What all logs hold is full: the stream says so, and the answer is there.
#[tokio::test]
async fn a_stream_that_has_no_room_for_its_end_says_so_and_its_answer_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let streams = StreamLimits { log_bytes: 8 << 10, total_bytes: 32 << 10, ..StreamLimits::default() };
    let mut running = start_keeping(Limits { streams, ..limits() }, folder.path()).await;
    let mut client = running.connect().await;
    client.send(support::post("/v1/responses", r#"{"model":"gated","input":"Hello!","stream":true}"#)).await;
    let gate = std::mem::replace(&mut running.gate, tokio::sync::mpsc::channel(1).0);
    gate.send(text(&"x".repeat(30_000))).await.unwrap();
    gate.send(finish(0)).await.unwrap();
    drop(gate);
    let answered = client.answer().await;
    assert!(answered.body.contains("\"code\":\"stream_cut\""), "{}", types(&answered.body).join(" "));
    assert!(!answered.body.contains("response.completed"));
    let id = answered.body.split("\"id\":\"resp_").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let mut found = running.ask(get(&format!("/v1/responses/resp_{id}"))).await.json();
    while found["status"] == "in_progress" || found["error"]["code"] == "response_not_found" {
        tokio::time::sleep(Duration::from_millis(10)).await;
        found = running.ask(get(&format!("/v1/responses/resp_{id}"))).await.json();
    }
    assert_eq!(found["status"], "completed", "{found}");
    assert_eq!(found["output"][0]["content"][0]["text"].as_str().unwrap().len(), 30_000);
}

/// The log is not what the answer is for.
#[tokio::test]
async fn an_answer_that_nobody_streams_is_made_to_its_end_whatever_its_log_holds() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start_keeping(narrow(3000), folder.path()).await;
    let respond = |more: &str| support::post("/v1/responses", format!(r#"{{"model":"long","input":"Hello!"{more}}}"#));
    let keyed = with(respond(""), "idempotency-key: k");
    let (made, again) = (running.ask(&keyed).await, running.ask(&keyed).await);
    let is_whole = |response: &serde_json::Value| {
        response["status"] == "completed" && response["output"].as_array().is_some_and(|output| output.len() == 2)
    };
    assert_eq!((made.status, &made.body), (200, &again.body));
    assert!(is_whole(&made.json()), "{made:?}");
    assert!(running.asked.try_recv().is_ok() && running.asked.try_recv().is_err(), "asked once");
    let begun = running.ask(respond(r#","background":true"#)).await.json();
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    let mut found = begun;
    while found["status"] == "in_progress" {
        tokio::time::sleep(Duration::from_millis(10)).await;
        found = running.ask(get(&path)).await.json();
    }
    assert!(is_whole(&found), "{found}");
}

/// Each refusal says to come back in a moment, and none of them is billed.
#[tokio::test]
async fn a_stream_that_finds_no_room_asks_nothing_of_the_model() {
    let streams = StreamLimits { per_tenant: 1, total_bytes: 1, ..StreamLimits::default() };
    let mut running = start(Limits { streams, ..limits() }, Vec::new(), None);
    let mut client = running.connect().await;
    client.send(resumable("hang")).await;
    client.read_to("data: ").await;
    assert!(running.asked.try_recv().is_ok());
    let response = String::from_utf8(support::post("/v1/responses", r#"{"model":"m","input":"Hello!","stream":true}"#));
    for (request, status) in [
        (resumable("m"), 503),
        (with(chat("m", r#","stream":true"#), "idempotency-key: a"), 503),
        (with(response.unwrap(), "idempotency-key: b"), 503),
        (with(chat("m", ""), "idempotency-key: c"), 200),
    ] {
        let answered = running.ask(&request).await;
        assert_eq!(answered.status, status, "{answered:?}");
        assert_eq!(running.asked.try_recv().is_ok(), status == 200, "{request}");
        assert!(status == 200 || answered.json()["error"]["code"] == "streams_full", "{answered:?}");
    }
}

/// What failed before it began left no log, which would have counted.
#[tokio::test]
async fn a_stream_that_the_model_refuses_leaves_its_room_to_the_next() {
    let streams = StreamLimits { per_tenant: 1, ..StreamLimits::default() };
    let running = start(Limits { streams, ..limits() }, Vec::new(), None);
    for (model, status) in [("full", 503), ("fails-first", 502), ("missing", 404), ("m", 200)] {
        assert_eq!(running.ask(resumable(model)).await.status, status, "{model}");
    }
}

#[tokio::test]
async fn a_server_that_stops_waits_for_generations_without_readers() {
    let running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    client.send(resumable("gated")).await;
    running.gate.send(text("one")).await.unwrap();
    client.read_to("\"one\"").await;
    drop(client);
    let gate = running.gate.clone();
    drop(running.gate);
    let stopping = tokio::spawn(running.server.stop(Duration::from_secs(20)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!stopping.is_finished() && running.fake.live.load(Ordering::SeqCst) == 1);
    gate.send(finish(0)).await.unwrap();
    drop(gate);
    stopping.await.unwrap();
    assert_eq!(running.fake.live.load(Ordering::SeqCst), 0);
}

/// Nobody could be told the rest, and a key is free for another request.
#[tokio::test]
async fn what_is_made_for_a_stream_alone_ends_with_it() {
    let streams = StreamLimits { log_bytes: 8 << 10, total_bytes: 32 << 10, ..StreamLimits::default() };
    let respond = support::post("/v1/responses", r#"{"model":"gated","input":"Hello!","stream":true,"store":false}"#);
    let keyed = |request: &[u8]| with(request, "idempotency-key: k");
    let plain = String::from_utf8(respond.clone()).unwrap();
    for request in [plain, keyed(&respond), keyed(&chat("gated", r#","stream":true"#))] {
        let running = start(Limits { streams: streams.clone(), ..limits() }, Vec::new(), None);
        let mut client = running.connect().await;
        client.send(&request).await;
        running.gate.send(text(&"x".repeat(70_000))).await.unwrap();
        client.read_to("\"code\":\"stream_cut\"").await;
        running.all_dropped().await;
        let other = request.replacen("gated", "other", 1);
        let is_free = async {
            while running.ask(&other).await.status != 200 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_free).await.expect("the key is taken");
    }
}
