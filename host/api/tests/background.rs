//! Responses in the background: what their callers hear at once, and what later.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Running, get, limits, start_keeping};

fn request(model: &str, more: &str) -> Vec<u8> {
    support::post("/v1/responses", format!(r#"{{"model":"{model}","input":"Hello!","background":true{more}}}"#))
}

/// How many names of responses are in the files of a store.
fn num_named(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let named = files.filter(|path| path.is_file()).map(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(5).filter(|bytes| bytes == b"resp_").count()
    });
    named.sum()
}

async fn found(running: &Running, id: &str) -> (u16, Value) {
    let answered = running.ask(get(&format!("/v1/responses/{id}"))).await;
    (answered.status, answered.json())
}

/// As one that is waited for.
#[tokio::test]
async fn what_is_not_let_in_is_refused_at_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_keeping(limits(), folder.path()).await;
    for (model, status, retry_after) in [("missing", 404, None), ("full", 503, Some("3"))] {
        for more in ["", r#","stream":true"#] {
            let refused = running.ask(request(model, more)).await;
            assert_eq!((refused.status, refused.header("retry-after")), (status, retry_after), "{refused:?}");
            assert_eq!(num_named(folder.path()), 0, "{model}{more}");
        }
    }
    let begun = running.ask(request("m", "")).await;
    assert_eq!((begun.status, begun.header("x-tidegate-model")), (200, Some("m")), "{begun:?}");
    assert_eq!(begun.json()["status"], "in_progress");
    assert!(num_named(folder.path()) > 0);
}

/// It is there before its model has answered, and what that says then is its end.
#[tokio::test]
async fn who_is_not_let_in_soon_is_answered_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_keeping(limits(), folder.path()).await;
    let asked = Instant::now();
    let begun = running.ask(request("never", "")).await;
    assert_eq!((begun.status, begun.json()["status"].as_str()), (200, Some("in_progress")), "{begun:?}");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(found(&running, &id).await.1["status"], "in_progress");
    let cancelled = running.ask(support::post(&format!("/v1/responses/{id}/cancel"), "")).await;
    assert_eq!((cancelled.status, cancelled.json()["status"].as_str()), (200, Some("cancelled")), "{cancelled:?}");
    running.all_dropped().await;
}

/// Nothing was promised yet.
#[tokio::test]
async fn who_goes_away_before_it_was_answered_leaves_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start_keeping(limits(), folder.path()).await;
    let mut client = running.connect().await;
    client.send(request("never", "")).await;
    running.asked.recv().await.unwrap();
    drop(client);
    running.all_dropped().await;
    assert_eq!(num_named(folder.path()), 0);
}
