//! Streams that outlive their connections.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Answered, Running, chat, finish, get, limits, start, text};
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

#[tokio::test]
async fn an_event_that_no_log_holds_is_refused_before_the_answer_or_within_it() {
    let streams = |log_bytes: usize| StreamLimits { log_bytes, ..StreamLimits::default() };
    let mut running = start(Limits { streams: streams(3000), ..limits() }, Vec::new(), None);
    let instructions = "x".repeat(4000);
    let body = |more: &str| format!(r#"{{"model":"m","input":"Hello!","instructions":"{instructions}"{more}}}"#);
    let refused = running.ask(support::post("/v1/responses", body(r#","stream":true"#))).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (413, Some("event_too_large")));
    assert!(running.asked.try_recv().is_err(), "nothing was asked of the model");
    assert_eq!(running.ask(support::post("/v1/responses", body(""))).await.status, 200);
    let running = start(Limits { streams: streams(50), ..limits() }, Vec::new(), None);
    let broken = running.ask(resumable("m")).await;
    assert!(broken.body.contains("\"code\":\"event_too_large\"") && !broken.body.contains("[DONE]"), "{}", broken.body);
    running.all_dropped().await;
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
