//! Several gateways that share one Redis: limits that hold for all of them together, also while it is away, and streams
//! that any of them goes on with.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_tests::postgres::Database;
use tidegate_tests::redis::Redis;
use tidegate_tests::stalling::Stalling;
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Gateways with a key `tg-ann` of these limits, and `tg-bob`. Redis has far more time than an answer takes.
async fn gateways<const N: usize>(redis: &Redis, limits: &str) -> [Arc<Gateway>; N] {
    gateways_with(redis, limits, 5000, "").await
}

/// The same, with so many milliseconds for Redis, and more in their config.
async fn gateways_with<const N: usize>(redis: &Redis, limits: &str, deadline_ms: u32, more: &str) -> [Arc<Gateway>; N] {
    let [hash, other] = [&b"tg-ann"[..], b"tg-bob"].map(blake3::hash);
    let config = format!(
        "[shared]\nurl = \"{}\"\ngateways = {N}\nlease_ms = {}\ndeadline_ms = {deadline_ms}\n\
         [limits]\nreserve_output_tokens = 100\n[engine]\nkv_cache_mib = 16\n[pipeline]\n\
         [[keys]]\nname = \"ann\"\nhash = \"blake3:{hash}\"\nlimits = {limits}\n\
         [[keys]]\nname = \"bob\"\nhash = \"blake3:{other}\"\n[[keys]]\nname = \"prometheus\"\nhash = \"blake3:{}\"\n\
         endpoints = [\"metrics\"]\n{more}",
        redis.url(),
        4 * deadline_ms,
        blake3::hash(b"tg-prometheus"),
    );
    let mut all = Vec::new();
    for _ in 0..N {
        let gateway = Gateway::start(&config).await;
        all.push(Arc::new(gateway));
    }
    all.try_into().ok().unwrap()
}

async fn chat(gateway: &Gateway) -> Answer {
    let mut body = with_model(ask("Hello!"));
    body["max_tokens"] = 1.into();
    collect(gateway.send(as_ann(gateway.json_request("/v1/chat/completions", &body))).await).await
}

fn as_ann(request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    with_key(request, "tg-ann")
}

fn with_key(mut request: Request<Full<Bytes>>, key: &str) -> Request<Full<Bytes>> {
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

/// A metric without labels, which all gateways of this process share.
async fn metric(gateway: &Gateway, name: &str) -> f64 {
    let request = Request::get(gateway.url("/metrics")).body(Full::default()).unwrap();
    let request = with_key(request, "tg-prometheus");
    let answer = collect(gateway.send(request).await).await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

fn remaining(answer: &Answer) -> u64 {
    answer.headers["x-ratelimit-remaining-requests"].to_str().unwrap().parse().unwrap()
}

/// Waits until every gateway counts with the others: two limits apart, whoever answers sees what the others let in. Whoever
/// counts with them runs a script when a request comes, and one when it ends.
async fn together(redis: &Redis, gateways: &[Arc<Gateway>]) {
    let started = Instant::now();
    let mut num_together = 0;
    while num_together < gateways.len() {
        num_together = 0;
        for gateway in gateways {
            let before = redis.num_scripts();
            assert_eq!(chat(gateway).await.status, 200);
            let answered = Instant::now();
            while redis.num_scripts() < before + 2 && answered.elapsed() < Duration::from_secs(2) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            num_together += usize::from(redis.num_scripts() >= before + 2);
        }
        assert!(started.elapsed() < Duration::from_secs(60), "Redis is not found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_for_all_gateways_together_and_for_parts_of_it_while_redis_is_away() {
    let Some(mut redis) = Redis::start() else { return };
    let gateways: [_; 3] = gateways(&redis, "{ requests_per_minute = 120 }").await;
    together(&redis, &gateways).await;
    let started = Instant::now();
    let first = remaining(&chat(&gateways[0]).await);
    let second = remaining(&chat(&gateways[1]).await);
    // Two a second are refilled.
    let most = (first - 1) + (2.0 * started.elapsed().as_secs_f64()).ceil() as u64;
    assert!((first.saturating_sub(2)..=most).contains(&second), "the second knows of the first: {first}, {second}");
    let let_in = async || {
        let mut asking = tokio::task::JoinSet::new();
        for n in 0..180 {
            let gateway = Arc::clone(&gateways[n % 3]);
            asking.spawn(async move { chat(&gateway).await.status });
        }
        let statuses = asking.join_all().await;
        assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count() as u64
    };
    let burst = let_in().await;
    let refilled = 2 * (started.elapsed().as_secs() + 1);
    assert!((second..=second + refilled).contains(&burst), "{burst} of {second} and {refilled}");

    redis.kill();
    let started = Instant::now();
    let alone = let_in().await;
    // A third of 120 for each, and what that refills.
    let refilled = 2 * (started.elapsed().as_secs() + 2);
    assert!((118..=120 + refilled).contains(&alone), "{alone} alone, {refilled} refilled");
    assert!(metric(&gateways[0], "tidegate_limits_alone_total").await >= 120.0);
    assert!(metric(&gateways[0], "tidegate_shared_losses_total").await >= 1.0);

    redis.revive();
    let started = Instant::now();
    while chat(&gateways[2]).await.status == 429 {
        assert!(started.elapsed() < Duration::from_secs(60), "not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A server that has forgotten everything: within one burst.
    let burst = let_in().await;
    assert!(burst <= 120 + 2 * (started.elapsed().as_secs() + 1), "{burst}");
}

/// The engine, and whoever asks, wait no longer than the deadline, once; then nobody does.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_answers_nothing_holds_nobody_up() {
    let Some(redis) = Redis::start() else { return };
    let limits = "{ requests_per_minute = 10000, tokens_per_minute = 1000000 }";
    let gateways: [_; 2] = gateways_with(&redis, limits, 2000, "").await;
    together(&redis, &gateways).await;
    redis.stall();
    let slowest = async || {
        let mut slowest = Duration::ZERO;
        for n in 0..10 {
            let started = Instant::now();
            assert_eq!(chat(&gateways[n % 2]).await.status, 200);
            slowest = slowest.max(started.elapsed());
        }
        slowest
    };
    let _ = slowest().await;
    let before = metric(&gateways[0], "tidegate_limits_alone_total").await;
    let _ = slowest().await;
    assert!(metric(&gateways[0], "tidegate_limits_alone_total").await >= before + 10.0);
    redis.go_on();
    together(&redis, &gateways).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_costs_one_script_and_its_end_another() {
    let Some(redis) = Redis::start() else { return };
    let gateways: [_; 1] = gateways(&redis, "{ requests_per_minute = 10000, tokens_per_minute = 1000000 }").await;
    together(&redis, &gateways).await;
    // What ends late, too.
    let (mut before, mut quiet) = (redis.num_scripts(), Instant::now());
    while quiet.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = redis.num_scripts();
        if now != before {
            (before, quiet) = (now, Instant::now());
        }
    }
    for _ in 0..20 {
        assert_eq!(chat(&gateways[0]).await.status, 200);
    }
    let started = Instant::now();
    while redis.num_scripts() < before + 40 && started.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(redis.num_scripts() - before, 40);
}

/// Sends a request and reads until `enough` or the end; gives everything.
async fn hear(addr: std::net::SocketAddr, request: &str, enough: impl Fn(&str) -> bool) -> String {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let (mut heard, mut piece) = (Vec::new(), vec![0; 4096]);
    let reading = async {
        loop {
            let read = socket.read(&mut piece).await.unwrap();
            heard.extend_from_slice(&piece[..read]);
            if read == 0 || enough(&String::from_utf8_lossy(&heard)) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("an end");
    String::from_utf8_lossy(&heard).into_owned()
}

fn begin(max_tokens: u32) -> String {
    begin_with(with_model(ask("Tell me a story about a lighthouse.")), max_tokens)
}

fn begin_with(mut request: serde_json::Value, max_tokens: u32) -> String {
    request["stream"] = true.into();
    request["max_tokens"] = max_tokens.into();
    request["logit_bias"] = serde_json::json!({"2": -100});
    let body = request.to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer tg-ann\r\n\
         content-type: application/json\r\nx-tidegate-resumable: true\r\nconnection: close\r\ncontent-length: {}\r\n\r\n\
         {body}",
        body.len()
    )
}

fn go_on(stream: &str, seen: u64, key: &str) -> String {
    format!(
        "GET /v1/streams/{stream} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer tg-{key}\r\n\
         last-event-id: {seen}\r\nconnection: close\r\n\r\n"
    )
}

fn stream_of(heard: &str) -> String {
    let line = heard.lines().find_map(|line| line.strip_prefix("x-tidegate-stream-id: "));
    line.unwrap_or_else(|| panic!("{heard}")).to_owned()
}

/// The bytes of a chunked body.
fn body(heard: &str) -> String {
    let (_, mut rest) = heard.split_once("\r\n\r\n").unwrap();
    let mut out = String::new();
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&more[..size]);
        rest = &more[size + 2..];
        if size == 0 {
            break;
        }
    }
    out
}

/// The numbers of the events, those that came whole.
fn numbers(heard: &str) -> Vec<u64> {
    let events: Vec<&str> = heard.split("\n\n").collect();
    let whole = &events[..events.len() - 1];
    whole.iter().filter_map(|event| event.lines().find_map(|line| line.strip_prefix("id: "))?.parse().ok()).collect()
}

/// Begins a stream at one gateway, leaves it after some events, and goes on at the next, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_one_gateway_makes_is_gone_on_with_at_any_other() {
    let Some(redis) = Redis::start() else { return };
    let gateways: [_; 3] = gateways(&redis, "{ requests_per_minute = 10000 }").await;
    together(&redis, &gateways).await;
    let mut heard = hear(gateways[0].addr, &begin(120), |heard| numbers(heard).len() >= 3).await;
    let stream = stream_of(&heard);
    let mut seen = numbers(&heard);
    for n in 1..60 {
        let (last, more) = (*seen.last().unwrap(), 1 + n % 5);
        heard = hear(gateways[n % 3].addr, &go_on(&stream, last, "ann"), |heard| numbers(heard).len() >= more).await;
        seen.extend(numbers(&heard));
        if heard.contains("[DONE]") {
            break;
        }
    }
    let last = *seen.last().unwrap();
    assert_eq!(seen, (1..=last).collect::<Vec<_>>(), "nothing is lost, nothing comes twice");
    let rest = hear(gateways[2].addr, &go_on(&stream, 0, "ann"), |_| false).await;
    assert!(rest.contains("data: [DONE]") && numbers(&rest)[..seen.len()] == seen[..], "{rest}");
    let here = hear(gateways[0].addr, &go_on(&stream, 0, "ann"), |_| false).await;
    assert_eq!(body(&here), body(&rest), "the same bytes anywhere");
    let theirs = hear(gateways[1].addr, &go_on(&stream, 0, "bob"), |_| false).await;
    let none = hear(gateways[1].addr, &go_on("stream_none", 0, "bob"), |_| false).await;
    assert!(theirs.starts_with("HTTP/1.1 404") && theirs.lines().last() == none.lines().last(), "{theirs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_cancelled_from_another_gateway() {
    let Some(redis) = Redis::start() else { return };
    // Its answer is not over before it is cancelled.
    let (slow, starter) = (Stalling::start().await.model, tidegate::bundled::STARTER_NAME);
    let models = format!("{slow}[[models]]\nname = \"{starter}\"\npath = \"bundled\"\n");
    let gateways: [_; 2] = gateways_with(&redis, "{ requests_per_minute = 10000 }", 5000, &models).await;
    together(&redis, &gateways).await;
    let (one, two) = (gateways[0].addr, gateways[1].addr);
    let mut request = ask("Tell me a story about a lighthouse.");
    request["model"] = "slow".into();
    let reading = tokio::spawn(async move { hear(one, &begin_with(request, 900), |_| false).await });
    // The id is in the head, which another connection does not see: what runs is in the server.
    let started = Instant::now();
    let stream = loop {
        let keys = redis.ask("KEYS *:stream:*");
        if let Some((_, rest)) = keys.split_once(":stream:") {
            break rest.lines().next().unwrap().to_owned();
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{keys}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let cancel = format!(
        "POST /v1/streams/{stream}/cancel HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer tg-ann\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    let answer = hear(two, &cancel, |_| false).await;
    assert!(answer.contains("\"cancelled\""), "{answer}");
    let rest = reading.await.unwrap();
    assert!(rest.contains("\"code\":\"cancelled\"") && !rest.contains("[DONE]"), "{rest}");
    let there = hear(two, &go_on(&stream, 0, "ann"), |_| false).await;
    assert!(there.contains("\"code\":\"cancelled\""), "{there}");
}

/// Neither the engine nor the gateway's own client notices; who reads elsewhere goes on when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_cut_within_a_stream_costs_its_reader_nothing() {
    let Some(mut redis) = Redis::start() else { return };
    let gateways: [_; 2] = gateways(&redis, "{ requests_per_minute = 10000 }").await;
    together(&redis, &gateways).await;
    let first = hear(gateways[0].addr, &begin(300), |heard| numbers(heard).len() >= 3).await;
    let stream = stream_of(&first);
    redis.kill();
    let last = *numbers(&first).last().unwrap();
    let here = hear(gateways[0].addr, &go_on(&stream, last, "ann"), |_| false).await;
    assert!(here.contains("[DONE]"), "{here}");
    let away = hear(gateways[1].addr, &go_on(&stream, last, "ann"), |_| false).await;
    assert!(away.starts_with("HTTP/1.1 503") && away.contains("shared_unavailable"), "{away}");
    redis.revive();
    let started = Instant::now();
    let there = loop {
        let there = hear(gateways[1].addr, &go_on(&stream, last, "ann"), |_| false).await;
        if there.starts_with("HTTP/1.1 200") {
            break there;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{there}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(numbers(&here), numbers(&there));
    assert!(there.contains("[DONE]"), "{there}");
}

/// Money that one gateway has set aside for an answer that runs is not there for another.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_one_for_gateways_with_one_store() {
    let Some(redis) = Redis::start() else { return };
    let Some(database) = Database::new("budget") else { return };
    let slow = Stalling::start().await.model;
    let config = format!(
        "{slow}price = {{ input = 0.0, output = 1.0 }}\n[shared]\nurl = \"{}\"\n\
         [[keys]]\nname = \"ann\"\nhash = \"blake3:{}\"\nbudget = {{ daily = 0.0012 }}\n",
        redis.url(),
        blake3::hash(b"tg-ann")
    );
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) =
        (database.gateway(&config, folders[0].path()).await, database.gateway(&config, folders[1].path()).await);
    // Of 1200 millionths each answer may take 1000.
    let begin = async |gateway: &Gateway| {
        let mut body = ask("Hello!");
        (body["model"], body["stream"], body["max_tokens"]) = ("slow".into(), true.into(), 1000.into());
        gateway.send(as_ann(gateway.json_request("/v1/chat/completions", &body))).await
    };
    let until = async |gateway: &Gateway, status: u16| {
        let started = Instant::now();
        loop {
            let answer = begin(gateway).await;
            if answer.status() == status {
                return answer;
            }
            drop(answer);
            assert!(started.elapsed() < Duration::from_secs(60), "never {status}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let running = until(&one, 200).await;
    let refused = collect(until(&two, 429).await).await;
    assert_eq!(refused.error().2, "insufficient_quota");
    drop(running);
    drop(until(&two, 200).await);
    for gateway in [one, two] {
        gateway.running.stop(Duration::from_secs(5)).await;
    }
}

/// Made in the background at one gateway; its events and its end are another's to give.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_read_and_cancelled_at_any_gateway_with_the_same_store() {
    let Some(redis) = Redis::start() else { return };
    let Some(database) = Database::new("responses") else { return };
    let (slow, starter) = (Stalling::start().await.model, tidegate::bundled::STARTER_NAME);
    let config = format!(
        "[shared]\nurl = \"{}\"\nlease_ms = 8000\ndeadline_ms = 2000\n{slow}\
         [[models]]\nname = \"{starter}\"\npath = \"bundled\"\n",
        redis.url()
    );
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) =
        (database.gateway(&config, folders[0].path()).await, database.gateway(&config, folders[1].path()).await);
    let make = async |model: &str| {
        let body = serde_json::json!({"model": model, "input": "What is Tidegate?", "background": true});
        one.post("/v1/responses", &body).await.json()["id"].as_str().unwrap().to_owned()
    };
    let until = async |gateway: &Gateway, path: String, done: fn(&Answer) -> bool| {
        let started = Instant::now();
        loop {
            let answer = gateway.get(&path).await;
            if done(&answer) {
                return answer;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{path}: {:?}", answer.body);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let id = make(starter).await;
    let streamed = until(&two, format!("/v1/responses/{id}?stream=true&starting_after=1"), |a| a.status == 200).await;
    let text = String::from_utf8_lossy(&streamed.body).into_owned();
    let sequence: Vec<u64> = text
        .split("\"sequence_number\":")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(sequence, (2..2 + sequence.len() as u64).collect::<Vec<_>>(), "{text}");
    assert!(text.contains("response.completed") && sequence.len() > 5, "{text}");

    let id = make("slow").await;
    let started = Instant::now();
    let cancelled = loop {
        let cancelled = two.post(&format!("/v1/responses/{id}/cancel"), &serde_json::json!({})).await;
        if cancelled.json()["status"] == "cancelled" {
            break cancelled;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", cancelled.body);
    };
    assert_eq!(cancelled.status, 200);
    assert_eq!(one.get(&format!("/v1/responses/{id}")).await.json()["status"], "cancelled");
    for gateway in [one, two] {
        gateway.running.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_know_a_caller_by_one_pseudonym_at_all_gateways() {
    let Some(database) = Database::new("pseudonyms") else { return };
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let config = format!("[[pipeline.stage]]\nplugin = \"honest\"\nfile = {file:?}\nstages = [\"prompt-guard\"]\n");
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) =
        tokio::join!(database.gateway(&config, folders[0].path()), database.gateway(&config, folders[1].path()));
    let known = async |gateway: &Gateway| {
        let seen = gateway.chat(ask("context")).await.text();
        seen.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(known(&one).await, known(&two).await);
}
