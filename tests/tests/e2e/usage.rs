//! What is used is billed once, to whoever used it, and what a budget does not allow is refused before it is made.

use crate::talk::until;
use http_body_util::BodyExt;
use hyper::Request;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_tests::issuer::now_s;
use tidegate_tests::postgres::Database;
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

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
    until("the usage", async || {
        let answer = get(gateway, key, &path).await;
        assert!([200, 503].contains(&answer.status), "{:?}", answer.body);
        let result = answer.json()["data"][0]["results"][0].clone();
        (result["num_model_requests"] == requests).then_some(result)
    })
    .await
}

const DAY_S: u64 = 86_400;

/// When today began.
pub fn today_s() -> u64 {
    now_s() / DAY_S * DAY_S
}

/// Waits for tomorrow where it is near: for tests that look at one day's use, or use up a day's budget.
pub async fn clear_of_midnight() {
    const LONGEST_S: u64 = 180;
    let left = DAY_S - now_s() % DAY_S;
    if left < LONGEST_S {
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_answers_say_is_what_is_billed_and_each_sees_its_own() {
    clear_of_midnight().await;
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

    let told = get(&gateway, "alpha", &format!("{path}&group_by=user_id,kind&limit=180")).await.json();
    let sum = &told["data"][0]["results"][0];
    assert_eq!((&sum["user_id"], &sum["kind"]), (&json!("u1"), &json!("generation")));
    assert_eq!(sum["amount"], costs["data"][0]["results"][0]["amount"]);

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
    // OpenAI's costs have longer pages.
    for (path, limit, status) in [("usage/costs", 180, 200), ("usage/costs", 181, 400), ("usage", 32, 400)] {
        let answer = get(&gateway, "alpha", &format!("/v1/{path}?start_time=1&limit={limit}")).await;
        assert_eq!(answer.status, status, "{path} {limit}: {:?}", answer.body);
    }
    let foreign = get(&gateway, "alpha", "/v1/usage?start_time=1&project_ids=beta").await;
    assert_eq!(foreign.status, 403);
    let bare = Gateway::start("[pipeline]\n").await;
    let answer = bare.get("/v1/usage?start_time=1").await;
    assert_eq!((answer.status, answer.error().2), (404, json!("store_not_configured")));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_pays_for_what_was_made_and_a_restart_forgets_nothing() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let mut body = with_model(ask("Tell me a story about a lighthouse."));
    (body["stream"], body["max_tokens"], body["logit_bias"]) = (true.into(), 950.into(), json!({"2": -100}));
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
    assert!((events..950).contains(&billed), "{billed} tokens for {events} events");
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = Gateway::start(&config(folder.path(), "")).await;
    assert_eq!(used(&again, "alpha", 1, "").await, seen);
}

/// A server bills the prompt of an answer that nobody waits for, and one in one piece has no head before all of it is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_a_server_had_is_billed_though_its_answer_did_not_come() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = StandIn::start(|_, _| Said::raw(429, "{}")).await;
    let at_silent = |name: &str, more: &str| {
        let at = silent.local_addr().unwrap();
        format!(
            "[[models]]\nname = \"{name}\"\nupstream = \"http://{at}/v1\"\nretry = {{ whole_timeout_ms = 500 }}\n{more}"
        )
    };
    let model = format!(
        "{}{}retry = {{ retries = 0 }}\nfallbacks = [\"silent\"]\n{}{}",
        at_silent("silent", ""),
        refusing.model("refusing"),
        at_silent("refused-behind", "fallbacks = [\"never\"]\n"),
        StandIn::start(|_, _| Said::raw(400, "{}")).await.model("never")
    );
    let limited = format!(
        "[[keys]]\nname = \"gamma\"\nhash = \"blake3:{}\"\nlimits = {{ tokens_per_minute = 6000 }}\n",
        blake3::hash(b"tg-gamma")
    );
    let gateway = Gateway::start(&config(folder.path(), &(model + &limited))).await;
    let body = |model: &str| {
        let parts = [
            json!({"type": "text", "text": "What is it? ".repeat(1000)}),
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
        ];
        json!({"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 5})
    };
    let ask = |key: &'static str, model: &str| {
        let request = gateway.json_request("/v1/chat/completions", &body(model));
        send(&gateway, key, request)
    };
    // Its caller leaves, once the server has it.
    let mut asking = Box::pin(ask("gamma", "silent"));
    let (mut left, _) = tokio::select! {
        _ = &mut asking => panic!("nobody answers"),
        asked = silent.accept() => asked.unwrap(),
    };
    tokio::select! {
        _ = &mut asking => panic!("nobody answers"),
        asked = left.read_u8() => assert_eq!(asked.unwrap(), b'P'),
    }
    drop(asking);
    let prompt = 12 * 1000 / 4 + 1500;
    let seen = used(&gateway, "gamma", 1, "").await;
    assert_eq!((&seen["input_tokens"], &seen["output_tokens"]), (&json!(prompt), &json!(0)), "{seen}");
    let refused = ask("gamma", "silent").await;
    assert_eq!((refused.status, refused.error().2), (429, json!("rate_limit_exceeded")), "its tokens are used up");
    // The server takes too long. One that refused it before costs nothing, nor does one that refuses it behind.
    for (model, requests) in [("silent", 1), ("refusing", 2), ("refused-behind", 3)] {
        let late = ask("alpha", model).await;
        assert_eq!((late.status, late.headers.get("x-should-retry").unwrap().as_bytes()), (504, &b"false"[..]));
        let seen = used(&gateway, "alpha", requests, "").await;
        assert_eq!(seen["input_tokens"], json!(prompt * requests), "{seen}");
    }
}

/// They are told when the call is whole, and generated long before.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_tool_call_that_is_cut_the_pieces_are_billed_and_it_is_not_made_again() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let cuts = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = format!("[[models]]\nname = \"cuts\"\nupstream = \"http://{}/v1\"\n", cuts.local_addr().unwrap());
    let gateway = Gateway::start(&config(folder.path(), &model)).await;
    let asked = tokio::spawn(async move {
        let piece = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"x"}}]}}]}"#;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let answer = format!("{head}{}", format!("data: {piece}\n\n").repeat(3));
        let mut asked = 0;
        while let Ok(Ok((mut socket, _))) = tokio::time::timeout(Duration::from_secs(3), cuts.accept()).await {
            asked += 1;
            let _ = socket.read(&mut vec![0; 1 << 16]).await;
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
        asked
    });
    let mut body = ask("What is it?");
    (body["model"], body["stream"]) = ("cuts".into(), true.into());
    let cut = send(&gateway, "alpha", gateway.json_request("/v1/chat/completions", &body)).await;
    assert_eq!((cut.status, cut.error().2), (502, json!("upstream_cut")));
    let seen = used(&gateway, "alpha", 1, "").await;
    assert_eq!(seen["output_tokens"], json!(3), "{seen}");
    assert_eq!(asked.await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_refuses_what_it_cannot_pay_and_a_restart_does_not_fill_it() {
    clear_of_midnight().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn the_first_bucket_begins_where_it_was_asked_for_and_csv_has_all_of_them() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    chat(&gateway, "alpha", 5).await;
    used(&gateway, "alpha", 1, "").await;
    let moment = now_s() + 1;
    while now_s() < moment {
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

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_finds_what_somebody_changed() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let text = config(folder.path(), "")
        + "[[pipeline.stage]]\nplugin = \"calculator\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
    let gateway = Gateway::start(&text).await;
    chat(&gateway, "alpha", 8).await;
    used(&gateway, "alpha", 1, "").await;
    let config = tidegate::config::Config::parse(&text).unwrap();
    let audit = tidegate::audit::audit(&config).await.unwrap();
    assert_eq!((audit.num_rows, audit.num_compared, audit.num_open), (1, 1, 0), "{audit}");
    assert_eq!((audit.num_answers, audit.drift.len()), (0, 0), "{audit}");
    for tool_choice in ["none", "auto"] {
        let body = json!({"model": "tidegate-starter", "input": "What is 17*23?", "tool_choice": tool_choice});
        assert_eq!(send(&gateway, "alpha", gateway.json_request("/v1/responses", &body)).await.status, 200);
    }
    used(&gateway, "alpha", 3, "").await;
    let audit = tidegate::audit::audit(&config).await.unwrap();
    assert_eq!((audit.num_answers, audit.drift.len()), (2, 0), "{audit}");
    assert!(audit.tool_calls > 0, "an answer of several turns is one of them: {audit}");
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
        tidegate_skipped::skipped!("changes to the books, since python3 is missing");
        return;
    }
    let drifts = async |words: &str| {
        let audit = tidegate::audit::audit(&config).await.unwrap();
        audit.drift.iter().filter(|line| line.contains(words)).count()
    };
    assert_eq!(drifts("its tokens, calls and prices give").await, 3);
    assert_eq!(drifts("the journal says").await, 3);
    assert_eq!(drifts("its answer says").await, 2);
    assert!(change("DELETE FROM usage_entries"));
    assert_eq!(drifts("the journal was taken past its end, but it is not billed").await, 3);
    assert_eq!(drifts("its answer is kept, but it is not billed").await, 0, "it may be on its way");
    assert!(change("UPDATE responses SET created_ms = 1"));
    assert_eq!(drifts("its answer is kept, but it is not billed").await, 2);
}

/// A way to a server that can be closed: what goes through it is cut, and nobody else gets in.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    pub(crate) open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
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
        Self { address, open }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_stops_no_answer_and_gets_each_use_once() {
    let Some(database) = Database::new("usage_away") else { return };
    clear_of_midnight().await;
    let gate = Gate::to(database.address()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut config = tidegate::config::Config::parse(&config(folder.path(), "")).unwrap();
    config.store.as_mut().unwrap().postgres = Some(database.url_by(gate.address));
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
}
