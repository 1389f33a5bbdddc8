//! A message that is sent twice, at two gateways.

use super::{said, until};
use crate::conversations::{heard, items, names, texts};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::postgres::Database;
use tidegate_tests::redis::Redis;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Answer, Gateway, collect};
use tokio::sync::Semaphore;

/// A model that answers as often as the gate has permits.
async fn held() -> (StandIn, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let shut = Arc::clone(&gate);
    (StandIn::start(move |_, body| said(body, "At noon.").held(&shut)).await, gate)
}

/// Two gateways with nothing between them but the store, and the folders of their own.
async fn pair(database: &Database, config: &str) -> (Gateway, Gateway, [TempDir; 2]) {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) = (&folders[0], &folders[1]);
    (database.gateway(config, one.path()).await, database.gateway(config, two.path()).await, folders)
}

async fn stop(gateways: [Gateway; 2]) {
    for gateway in gateways {
        gateway.running.stop(Duration::from_secs(5)).await;
    }
}

/// A conversation, where its messages go, and the first of them.
async fn begun(gateway: &Gateway) -> (String, String, Value) {
    let id = gateway.post("/v1/conversations", &json!({})).await.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/conversations/{id}/messages");
    (id, path, json!({"message_id": "1", "content": "When?", "model": "chat"}))
}

/// The client that does not know whether it got through sends its message again, and the balancer to another gateway; there
/// is nothing between them but the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_to_two_gateways_is_answered_once_and_read_at_both() {
    let Some(database) = Database::new("message") else { return };
    let (upstream, gate) = held().await;
    let config = upstream.model("chat");
    let (one, two, _folders) = pair(&database, &config).await;
    let (id, path, message) = begun(&one).await;
    // What one gateway has acknowledged is read at the other at once.
    assert_eq!(two.get(&format!("/v1/conversations/{id}")).await.status, 200);
    let (here, there) = tokio::join!(one.post(&path, &message), two.post(&path, &message));
    assert_eq!((here.status, there.status), (200, 200), "{:?} {:?}", here.body, there.body);
    assert_eq!(here.json(), there.json());
    let items = async |gateway: &Gateway| gateway.get(&format!("/v1/conversations/{id}/items?order=asc")).await.json();
    assert_eq!(items(&one).await["data"][0]["message_id"], "1");
    assert_eq!(items(&one).await, items(&two).await);
    // Sent again while it is made, and once it is there.
    assert_eq!(two.post(&path, &message).await.json(), here.json());
    gate.add_permits(9);
    until("an answer", async || (items(&two).await["data"].as_array()?.len() == 2).then_some(())).await;
    for gateway in [&one, &two] {
        let again = gateway.post(&path, &message).await.json();
        assert_eq!((names(&again), &again["status"]), (names(&here.json()), &json!("completed")));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(upstream.asked("/v1/chat/completions").len(), 1);
    assert_eq!(items(&one).await["data"].as_array().unwrap().len(), 2);
    stop([one, two]).await;
}

/// What it makes while it stops is its own until that has ended, however long that takes: it goes on saying that it is there.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_gateway_that_stops_is_made_by_no_other() {
    let Some(database) = Database::new("stopping") else { return };
    let (upstream, gate) = held().await;
    let config = upstream.model("chat");
    let (one, two, _folders) = pair(&database, &config).await;
    let (id, path, message) = begun(&one).await;
    let accepted = one.post(&path, &message).await.json();
    until("it is made", async || (upstream.asked("/v1/chat/completions").len() == 1).then_some(())).await;
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        // As if it had said so some time ago; it does every five seconds.
        let soon = "(extract(epoch from clock_timestamp()) * 1000)::bigint + 8000";
        database.inside(&format!("UPDATE gateways SET until_ms = {soon}"));
        tokio::time::sleep(Duration::from_secs(9)).await;
        let again = two.post(&path, &message).await.json();
        tokio::time::sleep(Duration::from_millis(300)).await;
        gate.add_permits(9);
        again
    };
    let ((), again) = tokio::join!(one.running.stop(Duration::from_secs(60)), meanwhile);
    assert_eq!(again, accepted);
    assert_eq!(texts(&items(&two, &id, "").await), ["When?", "At noon."]);
    assert_eq!(upstream.asked("/v1/chat/completions").len(), 1);
    two.running.stop(Duration::from_secs(5)).await;
}

/// The first has not said for long enough that it is there, and goes on all the same: it ends its own log, not the one of
/// whoever took over.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_answer_was_taken_over_leaves_the_others_alone() {
    let Some(redis) = Redis::start() else { return };
    let Some(database) = Database::new("taken") else { return };
    // The first is answered once the second was asked, and the second when the first has long ended.
    let asked = AtomicUsize::new(0);
    let upstream = StandIn::holding(2, move |_, body| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => said(body, "Never mind."),
        _ => said(body, "At noon.").after(Duration::from_secs(3)),
    })
    .await;
    let config =
        format!("[shared]\nurl = \"{}\"\nlease_ms = 8000\ndeadline_ms = 2000\n{}", redis.url(), upstream.model("chat"));
    let (one, two, _folders) = pair(&database, &config).await;
    let (id, path, message) = begun(&one).await;
    let accepted = one.post(&path, &message).await.json();
    until("the first asks", async || (upstream.asked("/v1/chat/completions").len() == 1).then_some(())).await;
    database.inside("UPDATE responses SET gateway = 'gone'");
    assert_eq!(two.post(&path, &message).await.json(), accepted);
    let there = heard(&two, &accepted["stream_id"], 0).await;
    let done = &there.last().unwrap().1;
    assert_eq!((&done["finish_reason"], &done["stored"]), (&json!("stop"), &json!(true)), "{there:?}");
    assert_eq!(heard(&one, &accepted["stream_id"], 0).await, there, "the first reads what the second made");
    assert_eq!(texts(&items(&two, &id, "").await), ["When?", "At noon."]);
    stop([one, two]).await;
}

/// A response that is asked for with a key.
async fn respond(gateway: &Gateway, key: &str, more: &Value) -> Answer {
    let mut body = json!({"model": "chat", "input": "When?"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut request = gateway.json_request("/v1/responses", &body);
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    collect(gateway.send(request).await).await
}

/// There is nothing between the two but the store, which has nothing of a response before its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_another_gateway_makes_for_a_key_is_not_said_to_be_gone() {
    let Some(database) = Database::new("claimed") else { return };
    let (upstream, gate) = held().await;
    let config = upstream.model("chat");
    let (one, two, _folders) = pair(&database, &config).await;
    let ends = [
        ("whole", json!({}), 200),
        ("streamed", json!({"stream": true}), 409),
        ("unkept", json!({"store": false}), 409),
    ];
    for (n, (key, more, end)) in ends.into_iter().enumerate() {
        let meanwhile = async {
            until("it is made", async || (upstream.asked("/v1/chat/completions").len() > n).then_some(())).await;
            let early = respond(&two, key, &more).await;
            gate.add_permits(1);
            early
        };
        let (made, early) = tokio::join!(respond(&one, key, &more), meanwhile);
        assert_eq!((made.status, early.status), (200, 409), "{key}: {:?}", early.body);
        assert_eq!(early.error().2, "idempotency_in_progress", "{key}");
        assert!(early.headers.contains_key("retry-after"), "{key}");
        let late = until("it is done", async || {
            let late = respond(&two, key, &more).await;
            (late.status != 409 || late.error().2 != "idempotency_in_progress").then_some(late)
        })
        .await;
        assert_eq!(late.status, end, "{key}: {:?}", late.body);
        match key {
            "whole" => assert_eq!(late.json()["id"], made.json()["id"]),
            "streamed" => assert_eq!(late.error().2, "events_gone"),
            _ => assert_eq!(late.error().2, "idempotency_answer_gone"),
        }
    }
    assert_eq!(upstream.asked("/v1/chat/completions").len(), 3);
    stop([one, two]).await;
}

/// Nobody is to ask again and again for what nobody makes: the response is named, and read by its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_response_whose_gateway_was_killed_is_not_said_to_be_made() {
    let Some(database) = Database::new("killed") else { return };
    let (upstream, gate) = held().await;
    let config = upstream.model("chat");
    let (one, two, _folders) = pair(&database, &config).await;
    let more = json!({"background": true, "stream": true});
    let meanwhile = async {
        until("it is made", async || (upstream.asked("/v1/chat/completions").len() == 1).then_some(())).await;
        let running = respond(&two, "k", &more).await;
        // As if nothing had been heard of it for too long.
        database.inside("UPDATE idempotency SET gateway = 'gone'");
        // It is in the store once its model has been waited for long enough.
        let gone = until("it is named", async || {
            Some(respond(&two, "k", &more).await).filter(|gone| gone.error().2 == "events_gone")
        })
        .await;
        gate.add_permits(1);
        (running, gone)
    };
    let (made, (running, gone)) = tokio::join!(respond(&one, "k", &more), meanwhile);
    assert_eq!((made.status, running.status, running.error().2), (200, 409, json!("idempotency_in_progress")));
    assert_eq!((gone.status, gone.error().2), (409, json!("events_gone")), "{:?}", gone.body);
    let text = String::from_utf8_lossy(&made.body).into_owned();
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(gone.error().0.contains(&format!("`{id}`, in_progress")), "{id}: {}", gone.error().0);
    stop([one, two]).await;
}

/// The log that the other finds has lost most of it, which is nothing to who asks for the whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_larger_than_its_log_is_found_whole_by_its_key_at_another_gateway() {
    let Some(redis) = Redis::start() else { return };
    let Some(database) = Database::new("larger") else { return };
    let upstream = StandIn::start(|_, body| said(body, &"At noon. ".repeat(500))).await;
    let config = format!(
        "[server.streams]\nlog_kib = 1\n[shared]\nurl = \"{}\"\nlease_ms = 8000\ndeadline_ms = 2000\n{}",
        redis.url(),
        upstream.model("chat")
    );
    let (one, two, _folders) = pair(&database, &config).await;
    let made = respond(&one, "k", &json!({})).await;
    assert_eq!(made.status, 200, "{:?}", made.body);
    let found = until("the log is there", async || {
        let found = respond(&two, "k", &json!({})).await;
        (found.status != 503).then_some(found)
    })
    .await;
    assert_eq!((found.status, found.json()["id"].clone()), (200, made.json()["id"].clone()), "{:?}", found.body);
    assert_eq!(found.json()["status"], "completed");
    assert_eq!(upstream.asked("/v1/chat/completions").len(), 1);
    stop([one, two]).await;
}
