//! What is used, and what reaches a budget's bound, is an event for whoever asks for it, and arrives whatever is away.

use crate::usage::{chat, config};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::Gateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

/// A receiver that refuses the first `failures` events; what it took.
async fn receiver(failures: usize) -> (String, Arc<Mutex<Vec<(String, String)>>>) {
    receiver_saying(failures, "204 No Content", "content-length: 0\r\n\r\n").await
}

/// The same, which says so of those that it takes: the status, and what follows in the head and behind it.
async fn receiver_saying(
    failures: usize,
    taken_with: &'static str,
    more: impl Into<String>,
) -> (String, Arc<Mutex<Vec<(String, String)>>>) {
    let more = more.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events?from=tidegate", listener.local_addr().unwrap());
    let taken: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let kept = Arc::clone(&taken);
    tokio::spawn(async move {
        let mut failures = failures;
        'accept: while let Ok((mut socket, _)) = listener.accept().await {
            let mut text = String::new();
            while !is_whole(&text) {
                let mut piece = [0; 4096];
                // A sender that is stopped goes in the middle.
                let Ok(read @ 1..) = socket.read(&mut piece).await else { continue 'accept };
                text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
            }
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let (status, more) = match failures {
                0 => (taken_with, more.as_str()),
                _ => ("500 Not Now", "content-length: 0\r\n\r\n"),
            };
            if failures == 0 {
                kept.lock().await.push((head.to_owned(), body.to_owned()));
            }
            failures = failures.saturating_sub(1);
            let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\n{more}");
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    (url, taken)
}

fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    length.is_some_and(|length| body.len() >= length.parse::<usize>().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_use_is_an_event_that_arrives_though_its_receiver_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (url, taken) = receiver(2).await;
    let gateway = Gateway::start(&config(folder.path(), &format!("events = {{ webhook = \"{url}\" }}"))).await;
    let id = chat(&gateway, "alpha", 5).await.json()["id"].as_str().unwrap().to_owned();
    chat(&gateway, "alpha", 5).await;
    let events = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let events = taken.lock().await.clone();
            if events.len() >= 2 {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let events = events.await.expect("the events did not arrive");
    let (head, body) = &events[0];
    assert!(head.starts_with("POST /events?from=tidegate "), "{head}");
    let event: Value = serde_json::from_str(body).unwrap();
    let name = event["id"].as_str().unwrap();
    assert!(head.to_lowercase().contains(&format!("webhook-id: {name}")), "{head}");
    assert!(id.ends_with(name), "{id} has not {name}");
    assert_eq!((&event["type"], &event["data"]["tenant"]), (&json!("usage.recorded"), &json!("a")));
    assert_ne!(events[0].1, events[1].1);
}

/// What was taken, once it is `enough`.
async fn taken_until(taken: &Mutex<Vec<(String, String)>>, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let events = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let events: Vec<Value> =
                taken.lock().await.iter().map(|(_, body)| serde_json::from_str(body).unwrap()).collect();
            if enough(&events) {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    events.await.expect("the events did not arrive")
}

/// All events, once there is one of another answer: those that it sent before are noted as taken.
async fn told_of_another(gateway: &Gateway, taken: &Mutex<Vec<(String, String)>>) -> Vec<Value> {
    let last = chat(gateway, "alpha", 5).await.json()["id"].as_str().unwrap().to_owned();
    taken_until(taken, |events| events.iter().any(|event| last.ends_with(event["id"].as_str().unwrap()))).await
}

/// A page that says more than anybody would read, and an answer that breaks off: neither is sent the event again and again,
/// before all others.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_taken_by_its_status_whatever_else_the_receiver_says() {
    let long = format!("content-length: 200000\r\n\r\n{}", "x".repeat(200_000));
    for more in [long, "content-length: 9\r\n\r\nO".to_owned()] {
        let folder = tempfile::tempdir().unwrap();
        let (url, taken) = receiver_saying(0, "200 OK", more).await;
        let gateway = Gateway::start(&config(folder.path(), &format!("events = {{ webhook = \"{url}\" }}"))).await;
        chat(&gateway, "alpha", 5).await;
        let events = told_of_another(&gateway, &taken).await;
        assert_eq!(events.len(), 2, "{events:?}");
    }
}

fn alerts(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["type"] == "budget.reached").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_reached_is_told_of_once_though_the_server_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let (url, taken) = receiver(0).await;
    let text = config(folder.path(), &format!("events = {{ webhook = \"{url}\" }}"));
    // Of a month, which ends seldom while this runs.
    let text = text.replace("{ daily = 0.0002 }", "{ monthly = 0.0002, soft_percent = 1 }");
    let gateway = Gateway::start(&text).await;
    // What the whole budget could not pay says nothing of what is left.
    assert_eq!(chat(&gateway, "beta", 200).await.status, 429);
    assert_eq!(chat(&gateway, "beta", 20).await.status, 200);
    let events = taken_until(&taken, |events| !alerts(events).is_empty()).await;
    let soft = &alerts(&events)[0]["data"];
    assert_eq!((&soft["scope"], &soft["name"], &soft["bound"]), (&json!("key"), &json!("beta"), &json!("soft")));
    let mut answered = 0;
    while chat(&gateway, "beta", 20).await.status == 200 {
        answered += 1;
        assert!(answered < 20, "the budget is never used up");
    }
    let events = taken_until(&taken, |events| alerts(events).len() == 2).await;
    let hard = &alerts(&events)[1]["data"];
    let spent = hard["spent_nano"].as_u64().unwrap();
    assert_eq!((&hard["bound"], &hard["limit_nano"]), (&json!("hard"), &json!(200_000)));
    assert!(spent > 0 && spent < 200_000, "the first refusal comes before the last token: {spent}");
    // An event is sent again where the sender was stopped before it had noted that it was taken.
    told_of_another(&gateway, &taken).await;
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = Gateway::start(&text).await;
    assert_eq!(chat(&again, "beta", 20).await.status, 429);
    let events = told_of_another(&again, &taken).await;
    assert_eq!(alerts(&events).len(), 2, "{events:?}");
}

/// The messages of a stream, once there are `count` of them: ids and bodies.
async fn published(url: &str, count: u64) -> Vec<(String, Value)> {
    let jetstream = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "usage".into(),
        subjects: vec!["billing.>".into()],
        ..Default::default()
    };
    let mut stream = jetstream.get_or_create_stream(config).await.unwrap();
    let arrived = tokio::time::timeout(Duration::from_secs(60), async {
        while stream.info().await.unwrap().state.messages < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    arrived.await.expect("the events did not arrive");
    let mut messages = Vec::new();
    for number in 1..=stream.info().await.unwrap().state.messages {
        let message = stream.get_raw_message(number).await.unwrap();
        let id = message.headers.get("Nats-Msg-Id").unwrap().to_string();
        messages.push((id, serde_json::from_slice(&message.payload).unwrap()));
    }
    messages
}

#[tokio::test(flavor = "multi_thread")]
async fn each_use_is_a_message_of_nats_once_though_there_was_no_stream_and_then_no_server() {
    let Some(mut nats) = tidegate_tests::nats::Nats::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let events = format!("events = {{ nats = \"{}\", subject = \"billing.usage\" }}", nats.url());
    let gateway = Gateway::start(&config(folder.path(), &events)).await;
    let id = chat(&gateway, "alpha", 5).await.json()["id"].as_str().unwrap().to_owned();
    chat(&gateway, "alpha", 5).await;
    // Until somebody makes a stream they wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let messages = published(&nats.url(), 2).await;
    let (name, event) = &messages[0];
    assert!(id.ends_with(name.as_str()) && event["id"] == name.as_str(), "{id} {name} {event}");
    assert_eq!((&event["type"], &event["data"]["tenant"]), (&json!("usage.recorded"), &json!("a")));
    nats.kill();
    assert_eq!(chat(&gateway, "alpha", 5).await.status, 200);
    tokio::time::sleep(Duration::from_secs(1)).await;
    nats.revive();
    let messages = published(&nats.url(), 3).await;
    let ids: std::collections::BTreeSet<_> = messages.iter().map(|(id, _)| id).collect();
    assert_eq!((messages.len(), ids.len()), (3, 3), "{messages:?}");
}

/// One that is away does not have the others told of the same event at every try.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_has_taken_an_event_is_not_told_again_for_another() {
    let Some(nats) = tidegate_tests::nats::Nats::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (url, taken) = receiver(0).await;
    let events = format!("events = {{ webhook = \"{url}\", nats = \"{}\", subject = \"billing.usage\" }}", nats.url());
    let gateway = Gateway::start(&config(folder.path(), &events)).await;
    chat(&gateway, "alpha", 5).await;
    chat(&gateway, "alpha", 5).await;
    taken_until(&taken, |events| !events.is_empty()).await;
    // There is no stream yet, for as long as some tries.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(taken.lock().await.len(), 1, "and what is behind it waits");
    assert_eq!(published(&nats.url(), 2).await.len(), 2);
    let events = told_of_another(&gateway, &taken).await;
    assert_eq!(events.len(), 3, "{events:?}");
}

#[test]
fn events_need_a_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let refused = tidegate::config::Config::parse(&config(folder.path(), "events = { subject = \"a\" }"));
    let why = format!("{:#}", refused.unwrap_err());
    assert!(why.contains("store.events has no receiver"), "{why}");
}
