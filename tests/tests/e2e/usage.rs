//! What is used is billed once, to whoever used it, and what a budget does not allow is refused before it is made.

use http_body_util::BodyExt;
use hyper::Request;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};

/// A server with keys of two tenants and an administrator's, which keeps what is used in `folder`.
pub fn config(folder: &Path, more: &str) -> String {
    let key = |name: &str, rest: &str| {
        let hash = blake3::hash(format!("tg-{name}").as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{rest}\n")
    };
    format!(
        "{}{}{}[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\n\
         price = {{ input = 1.0, cached_input = 0.5, output = 2.0 }}\n[store]\npath = {:?}\n{more}\n[pipeline]\n",
        key("alpha", "tenant = \"a\""),
        key("beta", "budget = { daily = 0.0002 }"),
        key("root", "admin = true"),
        folder.display().to_string(),
    )
}

async fn send(gateway: &Gateway, key: &str, mut request: Request<http_body_util::Full<bytes::Bytes>>) -> Answer {
    request.headers_mut().insert("authorization", format!("Bearer tg-{key}").parse().unwrap());
    collect(gateway.send(request).await).await
}

async fn get(gateway: &Gateway, key: &str, path: &str) -> Answer {
    send(gateway, key, Request::get(gateway.url(path)).body(Default::default()).unwrap()).await
}

pub async fn chat(gateway: &Gateway, key: &str, max_tokens: u32) -> Answer {
    let mut body = with_model(ask("What is Tidegate?"));
    body["max_tokens"] = max_tokens.into();
    body["user"] = "u1".into();
    send(gateway, key, gateway.json_request("/v1/chat/completions", &body)).await
}

/// The first result of the usage that `key` sees, once there are `requests` of them.
pub async fn used(gateway: &Gateway, key: &str, requests: u64, query: &str) -> Value {
    let path = format!("/v1/usage?start_time={}{query}", today_s());
    let seen = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            let answer = get(gateway, key, &path).await;
            assert!([200, 503].contains(&answer.status), "{:?}", answer.body);
            let result = answer.json()["data"][0]["results"][0].clone();
            if result["num_model_requests"] == requests {
                return result;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    seen.await.expect("the usage was not seen")
}

/// When today began.
fn today_s() -> u64 {
    tidegate_tests::issuer::now_s() / 86_400 * 86_400
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_answers_say_is_what_is_billed_and_each_sees_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let usages: Vec<Value> = [chat(&gateway, "alpha", 12).await, chat(&gateway, "alpha", 20).await]
        .iter()
        .map(|answer| answer.json()["usage"].clone())
        .collect();
    let total = |field: &str| usages.iter().map(|usage| usage[field].as_u64().unwrap()).sum::<u64>();
    let cached: u64 =
        usages.iter().map(|usage| usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()).sum();
    let seen = used(&gateway, "alpha", 2, "&group_by=model,user_id").await;
    assert_eq!(seen["input_tokens"], total("prompt_tokens"));
    assert_eq!(seen["output_tokens"], total("completion_tokens"));
    assert_eq!(seen["input_cached_tokens"], cached);
    assert_eq!((&seen["model"], &seen["user_id"]), (&json!("tidegate-starter"), &json!("u1")));

    let path = format!("/v1/usage/costs?start_time={}", today_s());
    let costs = get(&gateway, "alpha", &path).await.json();
    let micros =
        (total("prompt_tokens") - cached) as f64 + cached as f64 * 0.5 + total("completion_tokens") as f64 * 2.0;
    let value = costs["data"][0]["results"][0]["amount"]["value"].as_f64().unwrap();
    assert!((value - micros / 1e6).abs() < 1e-9, "{value} and {micros}");

    let others = get(&gateway, "beta", &path).await.json();
    assert_eq!(others["data"][0]["results"], json!([]));
    let all = used(&gateway, "root", 2, "&group_by=project_id").await;
    assert_eq!(all["project_id"], "a");
    let csv = get(&gateway, "root", &format!("{path}&format=csv&group_by=project_id")).await;
    let csv = String::from_utf8(csv.body.to_vec()).unwrap();
    assert!(csv.lines().nth(1).unwrap().contains(",a,,,,2,"), "{csv}");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_about_usage_that_make_no_sense_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    for (query, param) in [
        ("", "start_time"),
        ("?start_time=x", "start_time"),
        ("?start_time=9&end_time=5", "end_time"),
        ("?start_time=1795262400000&end_time=1795262400001", "end_time"),
        ("?start_time=1&user_ids=%00", "user_ids"),
        ("?start_time=1&bucket_width=1y", "bucket_width"),
        ("?start_time=1&limit=0", "limit"),
        ("?start_time=1&limit=1000", "limit"),
        ("?start_time=1&group_by=moon", "group_by"),
        ("?start_time=1&format=xml", "format"),
        ("?start_time=1&bukket=1", "bukket"),
        ("?start_time=%zz", "query"),
    ] {
        let answer = get(&gateway, "alpha", &format!("/v1/usage{query}")).await;
        assert_eq!((answer.status, answer.error().1), (400, json!(param)), "{query}");
    }
    let foreign = get(&gateway, "alpha", "/v1/usage?start_time=1&project_ids=beta").await;
    assert_eq!(foreign.status, 403);
    let bare = Gateway::start("[pipeline]\n").await;
    let answer = bare.get("/v1/usage?start_time=1").await;
    assert_eq!((answer.status, answer.error().2), (404, json!("store_not_configured")));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_pays_for_what_was_made_and_a_restart_forgets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let mut body = with_model(ask("Tell me a story about a lighthouse."));
    (body["stream"], body["max_tokens"], body["logit_bias"]) = (true.into(), 300.into(), json!({"2": -100}));
    let mut request = gateway.json_request("/v1/chat/completions", &body);
    request.headers_mut().insert("authorization", "Bearer tg-alpha".parse().unwrap());
    let mut response = gateway.send(request).await;
    let mut events = 0;
    while events < 5 {
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        let text = String::from_utf8_lossy(frame.data_ref().unwrap()).into_owned();
        // The first event has a role and no text.
        events += (text.matches("\"content\":\"").count() - text.matches("\"content\":\"\"").count()) as u64;
    }
    drop(response);
    let seen = used(&gateway, "alpha", 1, "").await;
    let billed = seen["output_tokens"].as_u64().unwrap();
    assert!((events..300).contains(&billed), "{billed} tokens for {events} events");
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = Gateway::start(&config(folder.path(), "")).await;
    assert_eq!(used(&again, "alpha", 1, "").await, seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_refuses_what_it_cannot_pay_and_a_restart_does_not_fill_it() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    // 200 millionths: two for each token of an answer.
    let refused = chat(&gateway, "beta", 200).await;
    assert_eq!((refused.status, refused.error().2), (429, json!("insufficient_quota")), "{:?}", refused.body);
    assert!(refused.headers.contains_key("retry-after"));
    assert!(refused.error().0.contains("0.0002"), "{:?}", refused.error());
    let mut answered = 0;
    while chat(&gateway, "beta", 20).await.status == 200 {
        answered += 1;
        assert!(answered < 20, "the budget is never used up");
    }
    assert!(answered > 0, "a small answer was refused, too");
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = Gateway::start(&config(folder.path(), "")).await;
    assert_eq!(chat(&again, "beta", 20).await.status, 429);
    assert_eq!(chat(&again, "alpha", 20).await.status, 200);
}

/// A receiver that refuses the first `failures` events; what it took.
async fn receiver(failures: usize) -> (String, Arc<Mutex<Vec<(String, String)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events?from=tidegate", listener.local_addr().unwrap());
    let taken: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let kept = Arc::clone(&taken);
    tokio::spawn(async move {
        let mut failures = failures;
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut text = String::new();
            while !is_whole(&text) {
                let mut piece = [0; 4096];
                let read = socket.read(&mut piece).await.unwrap();
                text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
            }
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let status = if failures > 0 { "500 Not Now" } else { "204 No Content" };
            if failures == 0 {
                kept.lock().await.push((head.to_owned(), body.to_owned()));
            }
            failures = failures.saturating_sub(1);
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.unwrap();
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
    let events = tokio::time::timeout(Duration::from_secs(20), async {
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
    let events = tokio::time::timeout(Duration::from_secs(20), async {
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

fn alerts(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["type"] == "budget.reached").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_reached_is_told_of_once_though_the_server_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let (url, taken) = receiver(0).await;
    let text = config(folder.path(), &format!("events = {{ webhook = \"{url}\" }}"));
    let text = text.replace("{ daily = 0.0002 }", "{ daily = 0.0002, soft_percent = 1 }");
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
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = Gateway::start(&text).await;
    assert_eq!(chat(&again, "beta", 20).await.status, 429);
    let last = chat(&again, "alpha", 5).await.json()["id"].as_str().unwrap().to_owned();
    let events =
        taken_until(&taken, |events| events.iter().any(|event| last.ends_with(event["id"].as_str().unwrap()))).await;
    assert_eq!(alerts(&events).len(), 2, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_bucket_begins_where_it_was_asked_for_and_csv_has_all_of_them() {
    const DAY_S: u64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    chat(&gateway, "alpha", 5).await;
    used(&gateway, "alpha", 1, "").await;
    let moment = tidegate_tests::issuer::now_s() + 1;
    while tidegate_tests::issuer::now_s() < moment {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    chat(&gateway, "alpha", 5).await;
    used(&gateway, "alpha", 2, "").await;
    let page = get(&gateway, "alpha", &format!("/v1/usage?start_time={moment}")).await.json();
    let bucket = &page["data"][0];
    assert_eq!((&bucket["start_time"], &bucket["results"][0]["num_model_requests"]), (&json!(moment), &json!(1)));
    let long = format!("/v1/usage?format=csv&start_time={}", today_s() - 40 * DAY_S);
    let csv = get(&gateway, "alpha", &long).await;
    assert_eq!(String::from_utf8(csv.body.to_vec()).unwrap().lines().count(), 2, "{:?}", csv.body);
    assert!(!csv.headers.contains_key("x-next-page"));
    let part = get(&gateway, "alpha", &format!("{long}&limit=2")).await;
    assert_eq!(part.headers["x-next-page"], (today_s() - 38 * DAY_S).to_string());
    let minutes = get(&gateway, "alpha", "/v1/usage?format=csv&bucket_width=1m&start_time=1").await;
    assert_eq!((minutes.status, minutes.error().1), (400, json!("bucket_width")));
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

#[test]
fn events_need_a_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let refused = tidegate::config::Config::parse(&config(folder.path(), "events = { subject = \"a\" }"));
    let why = format!("{:#}", refused.unwrap_err());
    assert!(why.contains("store.events has no receiver"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_finds_what_somebody_changed() {
    let folder = tempfile::tempdir().unwrap();
    let text = config(folder.path(), "");
    let gateway = Gateway::start(&text).await;
    chat(&gateway, "alpha", 8).await;
    used(&gateway, "alpha", 1, "").await;
    let config = tidegate::config::Config::parse(&text).unwrap();
    let audit = tidegate::audit::audit(&config).await.unwrap();
    assert_eq!((audit.num_rows, audit.num_compared, audit.num_open), (1, 1, 0), "{audit}");
    assert_eq!(audit.drift, Vec::<String>::new());
    let change = |statement: &str| {
        let database = folder.path().join("tidegate.db");
        let connection = std::process::Command::new("python3")
            .args(["-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()"])
            .arg(database)
            .arg(statement)
            .status();
        connection.is_ok_and(|status| status.success())
    };
    if !change("UPDATE usage_entries SET output_tokens = output_tokens + 1") {
        eprintln!("NOT TESTED: changes to the books, since python3 is missing");
        return;
    }
    let changed = tidegate::audit::audit(&config).await.unwrap();
    assert_eq!(changed.drift.len(), 2, "{changed}");
    assert!(change("DELETE FROM usage_entries"));
    let missing = tidegate::audit::audit(&config).await.unwrap();
    assert!(missing.drift[0].contains("is not billed"), "{missing}");
}

/// A way to a server that can be closed: what goes through it is cut, and nobody else gets in.
struct Gate {
    port: u16,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (open, state) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mut state, server) = (state.clone(), server.clone());
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = state.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { port, open }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_stops_no_answer_and_gets_each_use_once() {
    let Ok(server) = std::env::var("TIDEGATE_TEST_POSTGRES") else {
        eprintln!("NOT TESTED: a database that is away, since TIDEGATE_TEST_POSTGRES names no server");
        return;
    };
    // scheme://user@host:port/database
    let (base, _) = server.rsplit_once('/').unwrap();
    let (login, host) = base.rsplit_once('@').unwrap();
    let gate = Gate::to(host.to_owned()).await;
    let database = format!("tidegate_e2e_{}", std::process::id());
    let psql = |statement: String| {
        std::process::Command::new("psql").arg(&server).args(["-qc", &statement]).status().unwrap().success()
    };
    assert!(psql(format!("CREATE DATABASE {database}")));
    let folder = tempfile::tempdir().unwrap();
    let mut config = tidegate::config::Config::parse(&config(folder.path(), "")).unwrap();
    config.store.as_mut().unwrap().postgres = Some(format!("{login}@127.0.0.1:{}/{database}", gate.port));
    let gateway = Gateway::start_with(config).await;
    assert_eq!(chat(&gateway, "alpha", 5).await.status, 200);
    used(&gateway, "alpha", 1, "").await;
    gate.open.send_replace(false);
    // Longer, where a person asks for it: `TIDEGATE_TEST_OUTAGE_S=60`.
    let outage = std::env::var("TIDEGATE_TEST_OUTAGE_S").map_or(0, |seconds| seconds.parse().unwrap());
    let (since, mut chats) = (Instant::now(), 0);
    while chats < 20 || since.elapsed() < Duration::from_secs(outage) {
        assert_eq!(chat(&gateway, "alpha", 5).await.status, 200);
        chats += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let away = get(&gateway, "alpha", &format!("/v1/usage?start_time={}", today_s())).await;
    assert_eq!((away.status, away.error().2), (503, json!("store_unavailable")));
    gate.open.send_replace(true);
    let seen = used(&gateway, "alpha", chats + 1, "").await;
    assert_eq!(seen["num_model_requests"], chats + 1);
    println!("{chats} answers in {:?} without the database, each billed once", since.elapsed());
    gateway.running.stop(Duration::from_secs(5)).await;
    assert!(psql(format!("DROP DATABASE {database} WITH (FORCE)")));
}
