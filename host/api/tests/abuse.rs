//! What becomes of clients that send nonsense, too much, too slowly, or go away.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use support::{Answered, VECTOR, chat, chat_body, get, limits, post, start};
use tidegate_api::{ApiKey, Limits};
use tidegate_types::{Caller, TenantId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const PATH: &str = "/v1/chat/completions";

/// Whatever is refused has OpenAI's shape and an id, also where no request came of it.
fn refused(answered: &Answered, status: u16, code: &str) {
    assert_eq!((answered.status, &answered.json()["error"]["code"]), (status, &json!(code)), "{answered:?}");
    assert!(answered.json()["error"]["message"].is_string() && answered.header("x-request-id").is_some());
}

#[tokio::test]
async fn bodies_that_are_no_request_are_refused_and_the_connection_goes_on() {
    let mut running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    let deep = format!(r#"{{"model":{}1{}}}"#, "[".repeat(5000), "]".repeat(5000));
    let messages = |n: usize| format!(r#"{{"model":"m","messages":[{}]}}"#, vec!["{}"; n].join(","));
    let (many, too_many) = (messages(4_000), messages(50_000));
    let cases: &[(&[u8], &str)] = &[
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{\"model\":\"m\",}", "invalid_json"),
        (b"{\"model\":\"\xff\xfe\"}", "invalid_json"),
        (b"\x00\x01\x02", "invalid_json"),
        (deep.as_bytes(), "invalid_json"),
        (br#"{"model":"m","model":"n"}"#, "invalid_json"),
        (many.as_bytes(), "missing_required_parameter"),
        (too_many.as_bytes(), "array_above_max_length"),
        (b"[]", "invalid_type"),
        (br#"{"model":7,"messages":[]}"#, "invalid_type"),
        (br#"{"model":"m","messages":"hi"}"#, "invalid_type"),
    ];
    for (body, code) in cases {
        client.send(post(PATH, body)).await;
        let answered = client.answer().await;
        assert_eq!((answered.status, &answered.json()["error"]["code"]), (400, &json!(code)));
    }
    client.send(chat("m", "")).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(running.asked.recv().await.unwrap().0.model, "m");
    assert!(running.asked.try_recv().is_err(), "nothing else reached the service");
}

#[tokio::test]
async fn a_wrong_type_at_any_field_is_named() {
    let running = start(limits(), Vec::new(), None);
    for (more, param) in [
        (r#","temperature":"hot""#, "temperature"),
        (r#","stop":[1]"#, "stop[0]"),
        (r#","logit_bias":{"a":1}"#, "logit_bias.a"),
        (r#","tools":[{"type":"function","function":{"name":1}}]"#, "tools[0].function.name"),
    ] {
        let answered = running.ask(chat("m", more)).await;
        assert_eq!((answered.status, &answered.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[tokio::test]
async fn a_body_must_be_json_and_plain() {
    let running = start(limits(), Vec::new(), None);
    let with = |from: &str, to: &str| String::from_utf8(chat("m", "")).unwrap().replacen(from, to, 1);
    for (to, status) in [
        ("content-type: text/plain\r\n", 415),
        ("", 415),
        ("content-type: application/json\r\ncontent-encoding: gzip\r\n", 415),
        ("content-type: Application/JSON; charset=utf-8\r\n", 200),
        ("content-type: application/vnd.x+json\r\n", 200),
    ] {
        assert_eq!(running.ask(with("content-type: application/json\r\n", to)).await.status, status, "{to}");
    }
}

#[tokio::test]
async fn a_body_announced_as_two_gigabytes_is_refused_before_it_is_sent() {
    let running = start(limits(), Vec::new(), None);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2147483648\r\n\r\n"
    );
    let answered = running.ask(&head).await;
    assert_eq!((answered.status, &answered.json()["error"]["code"]), (413, &json!("request_too_large")));
    let expecting = head.replacen("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n", 1);
    assert_eq!(running.ask(expecting).await.status, 413, "no 100 Continue before the refusal");
}

/// Some lengths never reach a handler: HTTP itself takes no such number.
#[tokio::test]
async fn a_body_of_any_length_over_the_limit_is_too_large() {
    let running = start(limits(), Vec::new(), None);
    for length in [
        "2147483648",
        "18446744073709551613",
        "18446744073709551614",
        "18446744073709551615",
        "99999999999999999999999",
    ] {
        let head = "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        let answered = running.ask(format!("{}content-length: {length}\r\n\r\n", head.replace("{PATH}", PATH))).await;
        let error = &answered.json()["error"];
        assert_eq!((answered.status, &error["code"]), (413, &json!("request_too_large")), "{length}");
        assert!(error["message"].as_str().unwrap().contains("bytes that this server takes"), "{error}");
    }
}

#[tokio::test]
async fn a_client_that_sends_on_and_on_still_reads_why_it_is_refused() {
    let running = start(limits(), Vec::new(), None);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let mut client = running.connect().await;
    client.send(&head).await;
    let (mut read, mut write) = client.stream.into_split();
    let sender = tokio::spawn(async move {
        let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
        while write.write_all(&chunk).await.is_ok() {}
    });
    let mut answer = Vec::new();
    while !answer.ends_with(b"}}") {
        assert_ne!(read.read_buf(&mut answer).await.unwrap(), 0, "closed without a word");
    }
    assert!(answer.starts_with(b"HTTP/1.1 413"));
    drop(read);
    sender.abort();
}

#[tokio::test]
async fn bodies_together_are_bounded_and_who_sends_too_many_is_refused_alone() {
    let limits = Limits { max_receiving_bytes: 1000, ..limits() };
    let key = |tenant: &str| ApiKey {
        hash: format!("blake3:{}", blake3::hash(tenant.as_bytes())),
        caller: Caller { tenant: TenantId::new(tenant), ..Caller::local() },
        endpoints: None,
        expires: None,
    };
    let running = start(limits, vec![key("many"), key("few")], None);
    let of = |tenant: &str, num_bytes: usize| {
        let body = format!("{:num_bytes$}", chat_body("m", ""));
        let line = format!("\r\nauthorization: Bearer {tenant}\r\n");
        String::from_utf8(post(PATH, body)).unwrap().replacen("\r\n", &line, 1)
    };
    let held = of("many", 990);
    let mut slow = running.connect().await;
    slow.send(&held[..held.len() - 1]).await;
    let refused = loop {
        // Until what was sent of the first has arrived.
        let answered = running.ask(of("many", 100)).await;
        if answered.status != 200 {
            break answered;
        }
    };
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(running.ask(of("few", 100)).await.status, 200, "another tenant is let in");
    slow.send(&held[held.len() - 1..]).await;
    assert_eq!(slow.answer().await.status, 200);
    assert_eq!(running.ask(of("many", 100)).await.status, 200, "what was held is given back");
}

/// Who logs out shows no credential that was checked, and its body says nothing.
#[tokio::test]
async fn without_a_credential_no_large_body_is_held() {
    let key = ApiKey {
        hash: format!("blake3:{}", blake3::hash(b"t")),
        caller: Caller { tenant: TenantId::new("t"), ..Caller::local() },
        endpoints: None,
        expires: None,
    };
    let running = start(limits(), vec![key], None);
    let ask = async |headers: &str, body: &str| {
        let head = "POST /auth/logout HTTP/1.1\r\nhost: localhost\r\nidempotency-key: k\r\n";
        running.ask(format!("{head}{headers}\r\n\r\n{body}")).await
    };
    // Nothing of it is waited for.
    refused(&ask("content-length: 1025", "").await, 413, "request_too_large");
    let chunk = format!("401\r\n{}\r\n", " ".repeat(0x401));
    refused(&ask("transfer-encoding: chunked", &chunk).await, 413, "request_too_large");
    // Nobody logs in here.
    let small = ask("content-length: 1024", &" ".repeat(1024)).await;
    assert_eq!(small.status, 404, "{small:?}");
}

#[tokio::test]
async fn slow_headers_and_slow_bodies_are_cut() {
    let short = Duration::from_secs(3);
    let limits = Limits { header_timeout: short, body_timeout: short, ..limits() };
    let running = start(limits, Vec::new(), None);
    let mut silent = running.connect().await;
    let mut slow_head = running.connect().await;
    slow_head.send("GET /livez HTTP/1.1\r\nhost: loc").await;
    // HTTP/2 begins so, and other methods than `GET` do.
    let mut slow_preface = running.connect().await;
    slow_preface.send("PR").await;
    let mut slow_body = running.connect().await;
    let request = chat("m", "");
    slow_body.send(&request[..request.len() - 5]).await;
    let mut second_head = running.connect().await;
    second_head.send(get("/livez") + "GET /li").await;
    assert_eq!(second_head.answer().await.body, "ok\n");
    second_head.send("v").await;
    let answered = slow_body.answer().await;
    assert_eq!((answered.status, &answered.json()["error"]["code"]), (408, &json!("request_timeout")));
    for client in [&mut slow_head, &mut second_head, &mut slow_preface] {
        refused(&client.answer().await, 408, "request_timeout");
        assert!(client.is_closed().await);
    }
    assert!(silent.is_closed().await);
    assert_eq!(running.ask(chat("m", "")).await.status, 200);
}

/// What of it still comes would be taken for the head of the next request, and that never ends.
#[tokio::test]
async fn a_request_that_is_refused_with_its_body_unread_ends_its_connection() {
    let key = ApiKey {
        hash: format!("blake3:{}", blake3::hash(b"old")),
        caller: Caller::local(),
        endpoints: None,
        expires: Some(SystemTime::UNIX_EPOCH),
    };
    let running = start(Limits { header_timeout: Duration::from_secs(3), ..limits() }, vec![key], None);
    let body = format!("{{\"model\":\"{}\"}}", "m".repeat(12_000));
    let whole = String::from_utf8(post(PATH, &body)).unwrap();
    let with = |line: &str| whole.replacen("\r\n", &format!("\r\n{line}\r\n"), 1);
    let chunked = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n");
    let cases = [
        (with("authorization: Bearer old"), 401),
        (with("x-none: 1"), 401),
        (whole.replacen(PATH, "/v1/nothing", 1), 404),
        (whole.replacen(PATH, "/livez", 1), 405),
        (chunked, 401),
    ];
    for (request, status) in &cases {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        // The body comes with the head, or behind the answer.
        for (first, second) in [(request.clone(), ""), (format!("{head}\r\n\r\n"), body)] {
            let mut client = running.connect().await;
            client.send(first).await;
            let answered = client.answer().await;
            assert_eq!((answered.status, answered.header("connection")), (*status, Some("close")), "{answered:?}");
            // The server may be gone by now.
            let _ = client.stream.write_all(second.as_bytes()).await;
            assert!(client.is_closed().await, "{status}: more than one answer");
        }
    }
}

/// Its body is there, and what comes next is another.
#[tokio::test]
async fn a_connection_outlives_a_request_that_is_refused_once_its_body_was_read() {
    let short = Duration::from_secs(1);
    let running = start(Limits { header_timeout: short, ..limits() }, Vec::new(), None);
    let refused = String::from_utf8(post(PATH, format!("{{{}", " ".repeat(12_000)))).unwrap();
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    let mut client = running.connect().await;
    for _ in 0..3 {
        client.send(format!("{head}\r\n\r\n")).await;
        tokio::time::sleep(short / 8).await;
        client.send(body).await;
        let answered = client.answer().await;
        assert_eq!((answered.status, answered.header("connection")), (400, None));
        // For longer than a head may take.
        tokio::time::sleep(short * 3 / 2).await;
    }
    client.send(chat("m", "")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_has_a_longer_bound_than_a_slow_head() {
    let limits = Limits { header_timeout: Duration::from_secs(1), idle_timeout: Duration::from_secs(6), ..limits() };
    let running = start(limits, Vec::new(), None);
    let mut client = running.connect().await;
    for _ in 0..2 {
        client.send(get("/livez")).await;
        assert_eq!(client.answer().await.status, 200);
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_client_that_vanishes_takes_its_work_with_it() {
    let mut running = start(limits(), Vec::new(), None);
    // In the middle of a stream, before the first event of one, and while an answer is gathered.
    for (model, more) in [("hang", r#","stream":true"#), ("silent", r#","stream":true"#), ("hang", ""), ("never", "")] {
        let mut client = running.connect().await;
        client.send(chat(model, more)).await;
        running.asked.recv().await.unwrap();
        if model == "hang" && !more.is_empty() {
            client.read_to("\"content\":\"lo\"").await;
        }
        drop(client);
        running.all_dropped().await;
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up() {
    let limits = Limits { write_timeout: Duration::from_millis(100), ..limits() };
    let mut running = start(limits, Vec::new(), None);
    let mut client = running.connect().await;
    client.send(chat("flood", r#","stream":true"#)).await;
    running.asked.recv().await.unwrap();
    running.all_dropped().await;
    drop(client);
}

/// Two million numbers are more than any buffer on the way takes.
#[tokio::test]
async fn what_is_held_for_vectors_is_held_until_they_have_left_or_their_client() {
    let running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    let inputs = vec!["x"; 2000];
    client.send(post("/v1/embeddings", json!({"model": "m", "input": inputs}).to_string())).await;
    let head = client.read_to("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(running.fake.live.load(Ordering::SeqCst), 1);
    drop(client);
    running.all_dropped().await;
    let few = json!({"model": "m", "input": ["x", "y"]}).to_string();
    let answered = running.ask(post("/v1/embeddings", few)).await;
    assert_eq!(answered.json()["data"][1]["embedding"].as_array().map(Vec::len), Some(VECTOR));
    running.all_dropped().await;
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let running = start(Limits { max_connections: 1, ..limits() }, Vec::new(), None);
    let mut first = running.connect().await;
    first.send(get("/livez")).await;
    assert_eq!(first.answer().await.status, 200);
    let mut second = running.connect().await;
    let answered = second.answer().await;
    assert_eq!(answered.header("retry-after"), Some("1"));
    refused(&answered, 503, "too_many_connections");
}

#[tokio::test]
async fn heads_that_servers_read_differently_are_refused() {
    let running = start(limits(), Vec::new(), None);
    for head in [
        "GET /livez HTTP/1.1\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        "GET http://evil.example/livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\ncontent_length: 5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: xchunked\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: identity\r\n\
         transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: many\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\nx: a\r\n b\r\n\r\n",
    ] {
        refused(&running.ask(head).await, 400, "invalid_http");
    }
    let long = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    refused(&running.ask(long).await, 431, "request_too_large");
    // Behind an answer on the same connection, too.
    let mut client = running.connect().await;
    client.send(get("/livez") + "GET /livez HTTP/1.1\r\nx: a\r\n b\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    refused(&client.answer().await, 400, "invalid_http");
}

#[tokio::test]
async fn a_page_in_a_browser_cannot_reach_a_server_without_keys() {
    let running = start(limits(), Vec::new(), None);
    let rebound = String::from_utf8(chat("m", "")).unwrap().replacen("host: localhost", "host: evil.example", 1);
    let refused = running.ask(rebound).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (403, &json!("local_only")));
    // Nor by the name that it has, where a form may be sent without being asked first.
    let from =
        |origin: &str| format!("POST /admin/reload HTTP/1.1\r\nhost: localhost\r\n{origin}content-length: 0\r\n\r\n");
    let refused = running.ask(from("origin: https://evil.example\r\n")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (403, &json!("cross_site")));
    for own in ["", "origin: http://localhost\r\n"] {
        assert_ne!(running.ask(from(own)).await.status, 403, "{own}");
    }
}

#[tokio::test]
async fn before_it_stops_a_server_says_so_and_answers_on() {
    let running = start(limits(), Vec::new(), None);
    let mut open = running.connect().await;
    open.send(get("/readyz")).await;
    assert_eq!(open.answer().await.status, 200);
    let settling = async {
        running.server.settle(Duration::from_secs(60)).await;
        panic!("asking takes longer than a minute");
    };
    let asking = async {
        while running.ask(get("/readyz")).await.status != 503 {}
        for (request, status) in [(get("/health"), 503), (get("/livez"), 200)] {
            open.send(request).await;
            assert_eq!(open.answer().await.status, status);
        }
        open.send(chat("m", "")).await;
        assert_eq!(open.answer().await.status, 200);
        assert_eq!(running.ask(chat("m", "")).await.status, 200, "a new connection, too");
    };
    tokio::select! {
        () = settling => {}
        () = asking => {}
    }
    running.server.stop(Duration::from_secs(20)).await;
    assert!(open.is_closed().await && tokio::net::TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn stopping_lets_answers_end_and_takes_no_more() {
    let mut running = start(limits(), Vec::new(), None);
    let mut client = running.connect().await;
    client.send(chat("gated", r#","stream":true"#)).await;
    running.asked.recv().await.unwrap();
    let mut silent = running.connect().await;
    let mut idle = running.connect().await;
    idle.send(get("/livez")).await;
    idle.answer().await;
    let (gate, address) = (running.gate, running.address);
    let stop = tokio::spawn(running.server.stop(Duration::from_secs(20)));
    let at_once = Duration::from_secs(5);
    assert!(timeout(at_once, idle.is_closed()).await.unwrap(), "an idle connection ends at once");
    assert!(timeout(at_once, silent.is_closed()).await.unwrap(), "and so does one that has said nothing");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    gate.send(support::text("last words")).await.unwrap();
    gate.send(support::finish(0)).await.unwrap();
    drop(gate);
    assert!(client.answer().await.body.ends_with("data: [DONE]\n\n"));
    stop.await.unwrap();
}

#[tokio::test]
async fn what_does_not_end_in_time_ends_with_an_error() {
    let mut running = start(limits(), Vec::new(), None);
    let mut streamed = running.connect().await;
    streamed.send(chat("hang", r#","stream":true"#)).await;
    let mut whole = running.connect().await;
    whole.send(post(PATH, chat_body("hang", ""))).await;
    running.asked.recv().await.unwrap();
    running.asked.recv().await.unwrap();
    streamed.read_to("\"content\":\"lo\"").await;
    running.server.stop(Duration::ZERO).await;
    let end = streamed.read_to("\"code\":\"stopping\"}}\n\n").await;
    assert!(!end.contains("[DONE]"));
    let answered = whole.answer().await;
    assert_eq!((answered.status, answered.header("retry-after")), (503, Some("1")));
}

/// An upstream says nothing before a whole answer is made, and the headers of a stream wait for its first event.
#[tokio::test]
async fn what_has_not_begun_in_time_ends_with_an_error() {
    let mut running = start(limits(), Vec::new(), None);
    let mut clients = Vec::new();
    let response = |model: &str, more: &str| format!(r#"{{"model":"{model}","input":"x"{more}}}"#);
    let streamed = r#","stream":true"#;
    for (path, body) in [
        (PATH, chat_body("never", "")),
        ("/v1/responses", response("never", "")),
        (PATH, chat_body("silent", streamed)),
        ("/v1/responses", response("silent", streamed)),
    ] {
        let mut client = running.connect().await;
        client.send(post(path, body)).await;
        running.asked.recv().await.unwrap();
        clients.push(client);
    }
    running.server.stop(Duration::ZERO).await;
    for mut client in clients {
        let answered = client.answer().await;
        refused(&answered, 503, "stopping");
        assert_eq!(answered.header("retry-after"), Some("1"));
    }
}
