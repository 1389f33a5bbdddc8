//! What fails at an upstream is sent again, or answered by another model: seen by the client, by the books and by the
//! upstream. `host/upstream/tests/replicas.rs` has the ways to fail.

use crate::usage::{clear_of_midnight, used};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate_tests::stand_in::{Said, StandIn, completion};
use tidegate_tests::{Answer, Gateway, ask, collect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const QUICK: &str = "retry = { backoff_ms = 5 }\n";

/// Fails the first `failures` requests.
async fn failing(failures: usize) -> StandIn {
    let count = AtomicUsize::new(0);
    StandIn::start(move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
        n if n < failures => Said::raw(503, "{}"),
        _ => completion("Here I am."),
    })
    .await
}

fn asked(model: &str, stream: bool) -> Value {
    let mut body = ask("Hello!");
    (body["model"], body["stream"]) = (model.into(), stream.into());
    body
}

async fn send(gateway: &Gateway, key: &str, body: &Value) -> Answer {
    let mut request = gateway.json_request(CHAT, body);
    request.headers_mut().insert("authorization", format!("Bearer tg-{key}").parse().unwrap());
    collect(gateway.send(request).await).await
}

async fn metric(gateway: &Gateway, line: &str) -> Option<String> {
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    metrics.lines().find_map(|found| found.strip_prefix(line).map(|value| value.trim().to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_sent_again_is_billed_once() {
    clear_of_midnight().await;
    let upstream = failing(2).await;
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{}{QUICK}price = {{ input = 1.0, output = 2.0 }}\n", upstream.model("again-billed"));
    let gateway = Gateway::start(&crate::usage::config(folder.path(), &model)).await;
    for stream in [false, true] {
        let answer = send(&gateway, "alpha", &asked("again-billed", stream)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }
    assert_eq!(upstream.asked(CHAT).len(), 4);
    let seen = used(&gateway, "alpha", 2, "&group_by=model").await;
    assert_eq!((&seen["input_tokens"], &seen["output_tokens"]), (&json!(14), &json!(10)), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_attempts_retries_the_budget_and_the_breaker() {
    let upstream = failing(usize::MAX).await;
    let model = |name: &str, more: &str| format!("{}{more}\n", upstream.model(name));
    let config = format!(
        "{}{}[pipeline]\n",
        model(
            "again-counted",
            "retry = { backoff_ms = 5, budget_min = 1, budget_percent = 0 }\nbreaker = { failures = 2, pause_ms = 60000 }"
        ),
        model("again-apart", "breaker = { failures = 0 }\nretry = { retries = 0 }")
    );
    let gateway = Gateway::start(&config).await;
    let failed = gateway.chat(asked("again-counted", false)).await;
    assert_eq!(failed.status, 502, "{:?}", failed.body);
    let refused = gateway.chat(asked("again-counted", false)).await;
    assert_eq!((refused.status, refused.error().2), (503, json!("upstream_unavailable")), "{:?}", refused.body);
    assert!(refused.headers.contains_key("retry-after"));
    let of = |name: &str, rest: &str| format!("{name}{{model=\"again-counted\"{rest}}}");
    let at = format!(",upstream=\"{}\"", upstream.origin());
    for (line, value) in [
        (of("tidegate_upstream_attempts_total", &format!("{at},outcome=\"overloaded\"")), "2"),
        (of("tidegate_upstream_outstanding", &at), "0"),
        (of("tidegate_upstream_breaker_state", &at), "1"),
        (of("tidegate_upstream_retries_total", ""), "1"),
    ] {
        assert_eq!(metric(&gateway, &line).await.as_deref(), Some(value), "{line}");
    }
    assert_eq!(gateway.get("/readyz").await.status, 200, "what is elsewhere makes no gateway unready");
    // A breaker is a model's at a server, not the server's.
    assert_eq!(gateway.chat(asked("again-apart", false)).await.status, 502);
    assert_eq!(upstream.asked(CHAT).len(), 3);
}

/// The whole answer of an upstream is there before a reply begins, and a pause goes before that.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_how_long_a_request_took_with_all_it_waited_for() {
    let upstream = StandIn::start(|_, _| completion("Here I am.").after(Duration::from_millis(400))).await;
    let gateway = Gateway::start(&(upstream.model("again-slow") + "[pipeline]\n")).await;
    let answer = gateway.chat(asked("again-slow", false)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    for name in ["tidegate_request_seconds", "tidegate_time_to_first_token_seconds"] {
        let line = format!("{name}_sum{{model=\"again-slow\"");
        let line = metric(&gateway, &line).await.unwrap();
        let seconds: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((0.4..30.0).contains(&seconds), "{name}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_used_up_is_counted() {
    let upstream = failing(usize::MAX).await;
    let model = upstream.model("again-spent") + "retry = { backoff_ms = 5, budget_min = 0, budget_percent = 0 }\n";
    let gateway = Gateway::start(&(model + "[pipeline]\n")).await;
    assert_eq!(gateway.chat(asked("again-spent", false)).await.status, 502);
    assert_eq!(upstream.asked(CHAT).len(), 1);
    let line = "tidegate_upstream_retry_budget_exhausted_total{model=\"again-spent\"}";
    assert_eq!(metric(&gateway, line).await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_model_stands_in_and_is_the_one_that_is_named_and_billed() {
    clear_of_midnight().await;
    let (sick, well) = (failing(usize::MAX).await, failing(0).await);
    let folder = tempfile::tempdir().unwrap();
    let hash = blake3::hash(b"tg-narrow");
    let models = format!(
        "{}{QUICK}fallbacks = [\"stand-in-well\"]\n{}price = {{ input = 1.0, output = 2.0 }}\n\
         [[keys]]\nname = \"narrow\"\nhash = \"blake3:{hash}\"\nmodels = [\"stand-in-sick\"]\n",
        sick.model("stand-in-sick"),
        well.model("stand-in-well")
    );
    let gateway = Gateway::start(&crate::usage::config(folder.path(), &models)).await;
    let answer = send(&gateway, "alpha", &asked("stand-in-sick", false)).await;
    assert_eq!((answer.text().as_str(), &answer.json()["model"]), ("Here I am.", &json!("stand-in-well")));
    assert_eq!((sick.asked(CHAT).len(), well.asked(CHAT).len()), (3, 1));
    let seen = used(&gateway, "alpha", 1, "&group_by=model").await;
    assert_eq!((&seen["model"], &seen["output_tokens"]), (&json!("stand-in-well"), &json!(5)), "{seen}");
    // Who may not name it gets no answer of it.
    let answer = send(&gateway, "narrow", &asked("stand-in-sick", false)).await;
    assert!(matches!(answer.status, 502 | 503), "{:?}", answer.body);
    assert_eq!(well.asked(CHAT).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_stands_in_whose_price_a_budget_has_room_for() {
    clear_of_midnight().await;
    let (dear, cheap) = (failing(0).await, failing(0).await);
    let folder = tempfile::tempdir().unwrap();
    let models = format!(
        "{}fallbacks = [\"paid-cheap\"]\nprice = {{ input = 1000.0, output = 1000.0 }}\n{}",
        dear.model("paid-dear"),
        cheap.model("paid-cheap")
    );
    let gateway = Gateway::start(&crate::usage::config(folder.path(), &models)).await;
    let answer = send(&gateway, "beta", &asked("paid-dear", false)).await;
    assert_eq!((answer.text().as_str(), &answer.json()["model"]), ("Here I am.", &json!("paid-cheap")));
    assert_eq!((dear.asked(CHAT).len(), cheap.asked(CHAT).len()), (0, 1));
}

/// From the first event on, not only in the last.
#[tokio::test(flavor = "multi_thread")]
async fn each_event_of_a_response_names_the_model_that_stands_in() {
    let (sick, well) = (failing(usize::MAX).await, failing(0).await);
    let config = format!(
        "{}{QUICK}fallbacks = [\"told-well\"]\n{}[pipeline]\n",
        sick.model("told-sick"),
        well.model("told-well")
    );
    let gateway = Gateway::start(&config).await;
    let body = json!({"model": "told-sick", "input": "Hello!", "stream": true});
    let answer = gateway.post("/v1/responses", &body).await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let named = |data: &str| serde_json::from_str::<Value>(data).unwrap()["response"].get("model").cloned();
    let named: Vec<Value> = text.lines().filter_map(|line| named(line.strip_prefix("data: ")?)).collect();
    assert_eq!(named, ["told-well"; 3], "{text}");
}

/// Who asked for one model is told of that one: the fallback's window, or what it cannot do, is not their mistake.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_fallback_refuses_is_no_news_to_who_asked_for_another_model() {
    let sick = failing(usize::MAX).await;
    let starter = tidegate::bundled::STARTER_NAME;
    let config = format!(
        "{}{QUICK}fallbacks = [{starter:?}]\n[[models]]\nname = {starter:?}\npath = \"bundled\"\n[pipeline]\n",
        sick.model("again-wide")
    );
    let gateway = Gateway::start(&config).await;
    assert_eq!(gateway.chat(asked("again-wide", false)).await.json()["model"], starter);
    let mut long = asked("again-wide", false);
    long["messages"][0]["content"] = json!("word ".repeat(20_000));
    let answer = gateway.chat(long).await;
    assert!(matches!(answer.status, 502 | 503), "{:?}", answer.body);
}

/// Of a server that moderates what it is asked: what it refuses is for nobody else, and it is told to whoever can change it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_refuses_for_its_content_goes_to_no_other() {
    let flagged = json!({"error": {"code": 403, "message": "flagged", "metadata": {"flagged_input": "x"}}}).to_string();
    let [moderating, closed] = [flagged, "{}".to_owned()].map(|body| Said::raw(403, body));
    let moderating = StandIn::start(move |_, _| moderating.clone()).await;
    let closed = StandIn::start(move |_, _| closed.clone()).await;
    let other = failing(0).await;
    let stands_in = "fallbacks = [\"again-other\"]\n";
    let config = format!(
        "{}{stands_in}{}{stands_in}{}{}[pipeline]\n",
        moderating.model("again-moderating"),
        closed.model("again-closed"),
        closed.model("again-alone"),
        other.model("again-other")
    );
    let gateway = Gateway::start(&config).await;
    for stream in [false, true] {
        let refused = gateway.chat(asked("again-moderating", stream)).await;
        let (message, _, code) = refused.error();
        assert_eq!((refused.status, code), (400, json!("content_filter")), "{message}");
        assert!(message.contains("rules for content") && !message.contains("flagged"), "{message}");
        assert!(other.asked(CHAT).is_empty());
        let refused = gateway.chat(asked("again-alone", stream)).await;
        assert_eq!((refused.status, refused.error().2), (502, json!("upstream_misconfigured")));
        assert_eq!(refused.headers["x-should-retry"], "false");
    }
    assert_eq!((moderating.asked(CHAT).len(), closed.asked(CHAT).len()), (2, 2));
    let answer = gateway.chat(asked("again-closed", false)).await;
    assert_eq!(answer.json()["model"], "again-other", "which may be open to this gateway");
}

/// Whoever comes again would bring it to the one that refuses it, as long as the first cannot answer.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_fallback_refuses_for_its_content_goes_to_no_other_either() {
    let says = |status: u16, body: Value| StandIn::start(move |_, _| Said::raw(status, body.to_string()));
    let filtered = json!({"error": {"message": "not this", "code": "content_filter"}});
    let moderated = json!({"error": {"message": "not this", "code": "moderation_blocked"}});
    for (name, moderating, said) in [
        ("again-filtered", says(400, filtered).await, "not this"),
        ("again-moderated", says(403, moderated).await, "rules for content"),
    ] {
        let (sick, other) = (failing(usize::MAX).await, failing(0).await);
        let (second, third) = (format!("{name}-second"), format!("{name}-third"));
        let config = format!(
            "{}{QUICK}fallbacks = [{second:?}, {third:?}]\n{}{}[pipeline]\n",
            sick.model(name),
            moderating.model(&second),
            other.model(&third)
        );
        let gateway = Gateway::start(&config).await;
        let refused = gateway.chat(asked(name, false)).await;
        let (message, _, code) = refused.error();
        assert_eq!((refused.status, code), (400, json!("content_filter")), "{name}: {message}");
        assert!(message.contains(said), "{name}: {message}");
        assert_eq!((moderating.asked(CHAT).len(), other.asked(CHAT).len()), (1, 0), "{name}");
    }
}

/// The others may be closed to this gateway for ever.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_be_answered_later_by_one_of_several_models_is_not_sent_away_for_good() {
    let closed = StandIn::start(|_, _| Said::raw(402, "{}")).await;
    let sick = failing(usize::MAX).await;
    let config = format!(
        "{}{QUICK}breaker = {{ failures = 0 }}\nfallbacks = [\"final-closed\"]\n{}fallbacks = [\"final-sick\"]\n\
         {}fallbacks = [\"final-closed\"]\n[pipeline]\n",
        sick.model("final-sick"),
        closed.model("final-closed"),
        closed.model("final-alike")
    );
    let gateway = Gateway::start(&config).await;
    for (name, is_final) in [("final-sick", false), ("final-closed", false), ("final-alike", true)] {
        let refused = gateway.chat(asked(name, false)).await;
        assert_eq!(refused.status, 502, "{name}: {:?}", refused.body);
        let told = refused.headers.get("x-should-retry").map(|value| value.to_str().unwrap());
        assert_eq!(told, is_final.then_some("false"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_during_a_pause_gives_everything_back() {
    let upstream = failing(usize::MAX).await;
    let pause = "retry = { backoff_ms = 100000, max_backoff_ms = 100000 }\n";
    let config = format!(
        "[server]\nmax_inflight = 1\n{}{pause}limits = {{ concurrency = 1 }}\n[pipeline]\n",
        upstream.model("again-left")
    );
    let gateway = Gateway::start(&config).await;
    let body = asked("again-left", true).to_string();
    let begun = Instant::now();
    for seen in 1..=2 {
        let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            gateway.addr,
            body.len()
        );
        // The second is let in when the first one's place is free again.
        socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        while upstream.asked(CHAT).len() < seen {
            let mut refused = [0; 512];
            if let Ok(Ok(n)) = tokio::time::timeout(Duration::from_millis(20), socket.read(&mut refused)).await {
                assert!(n > 0, "the connection was closed");
                let refused = String::from_utf8_lossy(&refused[..n]);
                assert!(refused.contains(" 503 ") || refused.contains(" 429 "), "{refused}");
                socket = TcpStream::connect(gateway.addr).await.unwrap();
                socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{seen} was not let in");
        }
    }
    assert_eq!(upstream.asked(CHAT).len(), 2);
}
