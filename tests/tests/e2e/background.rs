//! Responses in the background, beside a store that somebody else holds: when their models are asked.

use crate::conversations::Keeping;
use crate::talk::{said, until};
use serde_json::json;
use sqlx::AnyConnection;
use sqlx::Connection;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, Gateway};

const CHAT: &str = "/v1/chat/completions";

/// A gateway with this model, and somebody else at its store.
async fn start(model: &str) -> (Keeping, AnyConnection) {
    let keeping = Keeping::start(&format!("{model}[pipeline]\n")).await;
    sqlx::any::install_default_drivers();
    let url = format!("sqlite://{}", keeping.folder.path().join("tidegate.db").display());
    let other = AnyConnection::connect(&url).await.unwrap();
    (keeping, other)
}

async fn begin(gateway: &Gateway) -> Answer {
    gateway.post("/v1/responses", &json!({"model": "chat", "input": "Hello!", "background": true})).await
}

/// Nobody could come back to an answer that is not kept, and its tenant would pay for it.
#[tokio::test(flavor = "multi_thread")]
async fn no_model_is_asked_for_what_the_store_does_not_take() {
    let upstream = StandIn::start(|_, body| said(body, "Hello.")).await;
    let (keeping, mut other) = start(&upstream.model("chat")).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let refused = begin(&keeping.gateway).await;
    assert_eq!((refused.status, refused.error().2), (503, json!("store_unavailable")), "{:?}", refused.body);
    assert!(upstream.asked(CHAT).is_empty());
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(begin(&keeping.gateway).await.status, 200);
    assert_eq!(upstream.asked(CHAT).len(), 1);
}

/// What this gateway knows by itself needs no store, and asks none for anything.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_over_a_limit_is_told_so_whether_the_store_takes_anything_or_not() {
    let upstream = StandIn::start(|_, body| said(body, "Hello.")).await;
    let limits = "[tenants.local.limits]\nrequests_per_minute = 1\n";
    let (keeping, mut other) = start(&format!("{}{limits}", upstream.model("chat"))).await;
    let begun = begin(&keeping.gateway).await.json();
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    let is_kept = async || (keeping.gateway.get(&path).await.json()["status"] == "completed").then_some(());
    until("it is kept", is_kept).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let refused = begin(&keeping.gateway).await;
    assert_eq!((refused.status, refused.error().2), (429, json!("rate_limit_exceeded")), "{:?}", refused.body);
    assert_eq!(upstream.asked(CHAT).len(), 1);
}

/// It may hold what the store waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_on_while_it_is_written_that_it_is_made() {
    let count = AtomicUsize::new(0);
    let upstream = StandIn::start(move |_, body| match count.fetch_add(1, Ordering::SeqCst) {
        // It is not let in within the second that its caller waits.
        0 => Said::raw(503, "{}").after(Duration::from_millis(1500)),
        _ => said(body, "Hello."),
    })
    .await;
    let model = format!("{}retry = {{ backoff_ms = 5 }}\n", upstream.model("chat"));
    let (keeping, mut other) = start(&model).await;
    let gateway = keeping.gateway;
    let beginning = begin(&gateway);
    let held = async {
        until("it is asked", async || (upstream.asked(CHAT).len() == 1).then_some(())).await;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
        until("it is asked again", async || (upstream.asked(CHAT).len() == 2).then_some(())).await;
        sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    };
    let (begun, ()) = tokio::join!(beginning, held);
    assert_eq!((begun.status, &begun.json()["status"]), (200, &json!("in_progress")), "{:?}", begun.body);
}
