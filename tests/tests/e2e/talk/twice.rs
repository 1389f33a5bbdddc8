//! A message that is sent twice, at two gateways.

use super::said;
use serde_json::json;
use std::time::{Duration, Instant};
use tidegate_tests::Gateway;
use tidegate_tests::postgres::Database;
use tidegate_tests::stand_in::StandIn;

/// The client that does not know whether it got through sends its message again, and the balancer to another gateway; there
/// is nothing between them but the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_to_two_gateways_is_answered_once_and_read_at_both() {
    let Some(database) = Database::new("message") else { return };
    let upstream = StandIn::start(|_, body| said(body, "At noon.").after(Duration::from_millis(800))).await;
    let config = upstream.model("chat");
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) =
        (database.gateway(&config, folders[0].path()).await, database.gateway(&config, folders[1].path()).await);
    let id = one.post("/v1/conversations", &json!({})).await.json()["id"].as_str().unwrap().to_owned();
    // What one gateway has acknowledged is read at the other at once.
    assert_eq!(two.get(&format!("/v1/conversations/{id}")).await.status, 200);
    let path = format!("/v1/conversations/{id}/messages");
    let message = json!({"message_id": "1", "content": "When?", "model": "chat"});
    let (here, there) = tokio::join!(one.post(&path, &message), two.post(&path, &message));
    assert_eq!((here.status, there.status), (200, 200), "{:?} {:?}", here.body, there.body);
    assert_eq!(here.json(), there.json());
    let items = async |gateway: &Gateway| gateway.get(&format!("/v1/conversations/{id}/items?order=asc")).await.json();
    assert_eq!(items(&one).await["data"][0]["message_id"], "1");
    assert_eq!(items(&one).await, items(&two).await);
    // Sent again while it is made, and once it is there.
    assert_eq!(two.post(&path, &message).await.json(), here.json());
    let started = Instant::now();
    while items(&two).await["data"].as_array().unwrap().len() < 2 {
        assert!(started.elapsed() < Duration::from_secs(30), "no answer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for gateway in [&one, &two] {
        assert_eq!(gateway.post(&path, &message).await.json(), here.json());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(upstream.asked("/v1/chat/completions").len(), 1);
    assert_eq!(items(&one).await["data"].as_array().unwrap().len(), 2);
    for gateway in [one, two] {
        gateway.running.stop(Duration::from_secs(5)).await;
    }
}
