//! How often and how much callers may ask, and what a key is for.

use crate::conversations::{Keeping, send};
use crate::talk::said;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidegate::config::Config;
use tidegate_tests::stalling::Stalling;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};

/// A key `tg-NAME`, with more lines of its entry.
fn key(name: &str, more: &str) -> String {
    let hash = blake3::hash(format!("tg-{name}").as_bytes());
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
}

async fn start(config: &str) -> Gateway {
    Gateway::start(&format!("{config}\n[pipeline]\n")).await
}

fn as_key(mut request: Request<Full<Bytes>>, name: &str) -> Request<Full<Bytes>> {
    request.headers_mut().insert("authorization", format!("Bearer tg-{name}").parse().unwrap());
    request
}

async fn chat(gateway: &Gateway, name: &str, more: Value) -> Answer {
    let mut body = with_model(ask("Hello!"));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    collect(gateway.send(as_key(gateway.json_request("/v1/chat/completions", &body), name)).await).await
}

async fn get(gateway: &Gateway, name: &str, path: &str) -> Answer {
    let request = Request::get(gateway.url(path)).body(Full::default()).unwrap();
    collect(gateway.send(as_key(request, name)).await).await
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).map_or("none", |value| value.to_str().unwrap())
}

fn number(answer: &Answer, name: &str) -> u64 {
    header(answer, name).parse().unwrap_or_else(|_| panic!("{name}: {}", header(answer, name)))
}

fn usage(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["usage"]["total_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limit_are_told_which_limit_and_when_to_come_back() {
    let gateway =
        start(&(key("ann", "limits = { requests_per_minute = 2 }") + &key("prometheus", "endpoints = [\"metrics\"]")))
            .await;
    let begun = Instant::now();
    let first = chat(&gateway, "ann", json!({})).await;
    assert_eq!(first.status, 200);
    assert_eq!(header(&first, "x-ratelimit-limit-requests"), "2");
    assert_eq!(header(&first, "x-ratelimit-remaining-requests"), "1");
    assert_eq!(header(&first, "x-ratelimit-reset-requests"), "30s");
    assert_eq!(header(&first, "x-ratelimit-limit-tokens"), "none");
    let mut stream = with_model(ask("Hello!"));
    stream["stream"] = true.into();
    let second = as_key(gateway.json_request("/v1/chat/completions", &stream), "ann");
    let second = collect(gateway.send(second).await).await;
    assert_eq!((second.status, header(&second, "x-ratelimit-remaining-requests")), (200, "0"));
    let third = chat(&gateway, "ann", json!({})).await;
    assert_eq!(third.status, 429);
    assert_eq!(third.json()["error"]["type"], "requests");
    let (message, _, code) = third.error();
    assert_eq!(code, "rate_limit_exceeded");
    assert!(message.contains("key `ann` on requests per minute (RPM): limit 2, used 2, requested 1"), "{message}");
    let (seconds, milliseconds) = (number(&third, "retry-after"), number(&third, "retry-after-ms"));
    // Half a minute since the first, and up to a quarter of it more, so that not all come back at once.
    let least = 29_u64.saturating_sub(begun.elapsed().as_secs());
    assert!((least..=38).contains(&seconds) && seconds == milliseconds.div_ceil(1000), "{seconds} {milliseconds}");
    assert_eq!(header(&third, "x-ratelimit-remaining-requests"), "0");
    let metrics = get(&gateway, "prometheus", "/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body);
    assert!(metrics.contains("tidegate_limit_denials_total{reason=\"requests\",limit=\"key\"}"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_reserved_and_given_back_when_the_answer_has_ended_whatever_way() {
    let limits = "limits = { tokens_per_minute = 2000 }";
    let gateway = start(&format!("[limits]\nreserve_output_tokens = 900\n{}", key("ann", limits))).await;
    let first = chat(&gateway, "ann", json!({})).await;
    let mut used = usage(&first);
    assert!(number(&first, "x-ratelimit-remaining-tokens") < 1100, "the answer's bound was reserved");
    assert_eq!(header(&first, "x-ratelimit-limit-tokens"), "2000");
    // The next sees what the first cost, not what was reserved for it. A second gives back 33.
    let second = chat(&gateway, "ann", json!({"max_tokens": 1})).await;
    let left = number(&second, "x-ratelimit-remaining-tokens");
    assert!((2000 - used - 20..=2000).contains(&left), "{left} after {used}");
    used += usage(&second);
    // One that fails costs nothing but its place among the requests.
    let too_long = ask(&"word ".repeat(1500))["messages"].clone();
    let failed = chat(&gateway, "ann", json!({"messages": too_long, "max_tokens": 1})).await;
    assert_eq!((failed.status, failed.error().2.as_str()), (400, Some("context_length_exceeded")));
    assert!(number(&failed, "x-ratelimit-remaining-tokens") < 500);
    let after = chat(&gateway, "ann", json!({"max_tokens": 1})).await;
    assert!(number(&after, "x-ratelimit-remaining-tokens") >= 2000 - used - 20);
    let large = chat(&gateway, "ann", json!({"max_tokens": 3000})).await;
    assert_eq!((large.status, &large.json()["error"]["type"]), (429, &json!("tokens")));
    assert_eq!((header(&large, "retry-after"), header(&large, "x-should-retry")), ("none", "false"));
    assert!(large.error().0.contains("Request too large for key `ann` on tokens per minute (TPM): limit 2000"));
}

/// Begins a stream of the stalling upstream and reads its first word.
async fn begin(gateway: &Gateway, name: &str) -> (u16, hyper::body::Incoming) {
    let mut body = ask("Hello!");
    body["model"] = "slow".into();
    body["stream"] = true.into();
    body["max_tokens"] = 1000.into();
    let response = gateway.send(as_key(gateway.json_request("/v1/chat/completions", &body), name)).await;
    let (parts, mut body) = response.into_parts();
    body.frame().await.unwrap().unwrap();
    (parts.status.as_u16(), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_are_limited_and_a_client_that_is_gone_counts_no_more() {
    let slow = Stalling::start().await.model;
    let limits = "limits = { concurrency = 2, tokens_per_minute = 5000 }";
    let gateway = start(&format!("{slow}{}", key("ann", limits))).await;
    let begun = Instant::now();
    let (one, two) = (begin(&gateway, "ann").await, begin(&gateway, "ann").await);
    assert_eq!((one.0, two.0), (200, 200));
    let third = chat(&gateway, "ann", json!({"model": "slow"})).await;
    assert_eq!((third.status, &third.json()["error"]["type"]), (429, &json!("requests")));
    assert!(third.error().0.contains("key `ann` at once: limit 2, running 2"), "{:?}", third.error());
    assert_eq!(header(&third, "retry-after"), "1");
    // Time alone gives back 84 a second.
    let most = 3050 + 84 * (begun.elapsed().as_secs() + 1);
    assert!(number(&third, "x-ratelimit-remaining-tokens") < most, "two answers are reserved");
    drop((one, two));
    // Later than that, time alone could have given back what was reserved.
    let in_time = || begun.elapsed() < Duration::from_secs(18);
    loop {
        let (status, stream) = begin(&gateway, "ann").await;
        if status == 200 {
            drop(stream);
            break;
        }
        assert!(in_time(), "clients that are gone count for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Each has cost its prompt and one word; what was reserved came back.
    loop {
        let third = chat(&gateway, "ann", json!({"model": "slow", "max_tokens": 6000})).await;
        assert_eq!(third.status, 429);
        assert!(in_time(), "tokens of clients that are gone were never given back");
        if number(&third, "x-ratelimit-remaining-tokens") > 4900 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_one_tenant_share_its_limits_and_users_have_their_own() {
    let tenant = "[tenants.acme]\nlimits = { requests_per_minute = 5 }\nuser_limits = { requests_per_minute = 1 }\n";
    let keys = ["ann", "bob"].map(|name| key(name, "tenant = \"acme\"")).concat();
    let gateway = start(&format!("{keys}{tenant}")).await;
    // One token each: in twelve seconds a request comes back.
    let chat = async |name: &str, mut more: Value| {
        more["max_tokens"] = 1.into();
        chat(&gateway, name, more).await
    };
    let status = async |name: &str, more: Value| chat(name, more).await.status;
    assert_eq!(status("ann", json!({"user": "u1"})).await, 200);
    let again = chat("bob", json!({"user": "u1"})).await;
    assert_eq!((again.status, again.error().0.contains("for this user on requests")), (429, true));
    assert_eq!(header(&again, "x-ratelimit-limit-requests"), "1", "the tightest counts");
    assert_eq!(status("bob", json!({"safety_identifier": "u2", "user": "u1"})).await, 200);
    assert_eq!(status("ann", json!({"user": "u2"})).await, 429);
    // A refused request has cost nothing: three are left.
    for left in ["2", "1", "0"] {
        assert_eq!(header(&chat("ann", json!({})).await, "x-ratelimit-remaining-requests"), left);
    }
    let over = chat("bob", json!({})).await;
    assert!(over.status == 429 && over.error().0.contains("tenant `acme`"), "{:?}", over.body);
}

const SMALL: &str = "[engine]\nkv_cache_mib = 16\n";

fn models(names: &[&str], more: &str) -> String {
    names.iter().map(|name| format!("[[models]]\nname = \"{name}\"\npath = \"bundled\"\n{more}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_limits_are_of_all_its_callers() {
    let limits = "limits = { requests_per_minute = 1, max_output_tokens = 3 }";
    let models = format!("{}{}", models(&["free"], ""), models(&["few"], limits));
    let gateway = start(&format!("{SMALL}{models}{}{}", key("ann", ""), key("bob", ""))).await;
    let first = chat(&gateway, "ann", json!({"model": "few"})).await;
    assert_eq!((first.status, header(&first, "x-ratelimit-limit-requests")), (200, "1"));
    assert_eq!(first.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(first.json()["usage"]["completion_tokens"], 3);
    let second = chat(&gateway, "bob", json!({"model": "few"})).await;
    assert!(second.status == 429 && second.error().0.contains("model `few`"), "{:?}", second.body);
    assert_eq!(chat(&gateway, "bob", json!({"model": "free"})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_longer_than_a_caller_may_ask_for_are_refused_by_name() {
    let ann = key("ann", "limits = { max_context_tokens = 40, max_output_tokens = 8 }");
    let gateway = start(&format!("{ann}{}", Stalling::start().await.model.replace("slow", "remote"))).await;
    let model = json!({"model": "remote"});
    let refused = chat(&gateway, "ann", json!({"model": "remote", "max_tokens": 9})).await;
    let (_, param, code) = refused.error();
    assert_eq!((refused.status, param, code), (400, json!("max_tokens"), json!("max_tokens_exceeded")));
    assert!(refused.error().0.contains("the limit of this key is 8"), "{:?}", refused.error());
    let long = ask(&"word ".repeat(60))["messages"].clone();
    let refused = chat(&gateway, "ann", json!({"model": "remote", "messages": long})).await;
    assert_eq!((refused.status, refused.error().2), (400, json!("context_length_exceeded")), "{model}");
    let gateway = start(&ann).await;
    let long = ask(&"word ".repeat(60))["messages"].clone();
    let refused = chat(&gateway, "ann", json!({"messages": long})).await;
    assert_eq!((refused.status, refused.error().2), (400, json!("context_length_exceeded")));
    let short = chat(&gateway, "ann", json!({"messages": ask("Tell me a story about a fox.")["messages"]})).await;
    assert_eq!(short.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(short.json()["usage"]["completion_tokens"], 8);
}

/// Nobody has to look later for what could be said at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_in_the_background_is_refused_as_one_that_is_waited_for() {
    let models = "[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\nprice = { input = 1.0, output = 2.0 }\n";
    let keys = [
        key("ann", "limits = { requests_per_minute = 1 }"),
        key("bob", "limits = { max_context_tokens = 40 }"),
        key("eve", "budget = { daily = 0.000002 }"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let store = format!("[store]\npath = {:?}\n", folder.path());
    let mut config = Config::parse(&format!("{store}{models}{}[pipeline]\n", keys.concat())).unwrap();
    // A machine that is busy refuses nothing too late.
    config.server.let_in_within = Duration::from_secs(60);
    let gateway = Gateway::start_with(config).await;
    let begin = async |name: &str, model: &str, input: &str| {
        let body = json!({"model": model, "input": input, "background": true, "max_output_tokens": 5});
        send(&gateway, Method::POST, "/v1/responses", &format!("tg-{name}"), Some(&body)).await
    };
    let begun = begin("ann", "tidegate-starter", "Hello!").await;
    assert_eq!((begun.status, header(&begun, "x-ratelimit-remaining-requests")), (200, "0"), "{:?}", begun.body);
    let long = "word ".repeat(60);
    for (name, model, input, status, code) in [
        ("ann", "tidegate-starter", "Hello!", 429, "rate_limit_exceeded"),
        ("bob", "nobody", "Hello!", 404, "model_not_found"),
        ("bob", "tidegate-starter", long.as_str(), 400, "context_length_exceeded"),
        ("eve", "tidegate-starter", "Hello!", 429, "insufficient_quota"),
    ] {
        let refused = begin(name, model, input).await;
        assert_eq!((refused.status, refused.error().2), (status, json!(code)), "{:?}", refused.body);
        assert_eq!(refused.headers.contains_key("retry-after"), status == 429, "{code}");
    }
}

/// What a history is shortened to is the smaller of what its caller may ask and what the model takes, which an upstream may not
/// say.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_shortened_to_what_its_caller_may_ask() {
    let remote = StandIn::start(|_, body| said(body, "Yes.")).await;
    let models = format!("{SMALL}{}{}", models(&["own"], ""), remote.model("remote"));
    let ann = key("ann", "limits = { max_context_tokens = 300, max_output_tokens = 20 }");
    let keeping = Keeping::start(&format!("{models}{ann}[pipeline]\n")).await;
    let post = async |path: &str, body: Value| {
        let answer = send(&keeping.gateway, Method::POST, path, "tg-ann", Some(&body)).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    };
    let id = post("/v1/conversations", json!({})).await["id"].as_str().unwrap().to_owned();
    let filler = "one two three four five six seven eight nine ten. ".repeat(4);
    for _ in 0..10 {
        let pair = json!([{"role": "user", "content": filler}, {"role": "assistant", "content": filler}]);
        post(&format!("/v1/conversations/{id}/items"), json!({"items": pair})).await;
    }
    for model in ["own", "remote"] {
        let asked =
            json!({"model": model, "input": "Is it?", "conversation": id, "truncation": "auto", "store": false});
        let answer = post("/v1/responses", asked).await;
        let left_out = answer["context"]["left_out"].as_u64().unwrap();
        // Of 300 tokens 20 are the answer's, at most; a message has about 50.
        assert!((12..20).contains(&left_out), "{model}: {left_out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_a_key_may_not_use_looks_as_one_that_does_not_exist() {
    let ann = key("ann", "models = [\"open\"]");
    let gateway = start(&format!("{SMALL}{}{ann}{}", models(&["open", "closed"], ""), key("bob", ""))).await;
    let body = async |name: &str, model: &str| {
        let answer = chat(&gateway, name, json!({"model": model})).await;
        (answer.status, String::from_utf8_lossy(&answer.body).replace(model, "MODEL"))
    };
    let (status, closed) = body("ann", "closed").await;
    assert_eq!((status, &closed), (404, &body("ann", "no-such").await.1));
    assert!(closed.contains("model_not_found") && closed.contains("this server has: open\""), "{closed}");
    assert_eq!(body("ann", "open").await.0, 200);
    assert_eq!(body("bob", "closed").await.0, 200);
    let listed = async |name: &str| {
        let cards = get(&gateway, name, "/v1/models").await.json();
        cards["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed("ann").await, ["open"]);
    assert_eq!(listed("bob").await, ["open", "closed"], "the config's order");
    let [closed, missing] =
        [get(&gateway, "ann", "/v1/models/closed").await, get(&gateway, "ann", "/v1/models/missing").await];
    let missing_text = String::from_utf8_lossy(&missing.body).replace("missing", "closed");
    assert_eq!((closed.status, String::from_utf8_lossy(&closed.body)), (404, missing_text.into()));
}

/// The tier router sends a short question to the first of its models, and may choose only from those of the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_chooses_from_the_keys_models_only() {
    let router = "[[pipeline.stage]]\nplugin = \"tier-router\"\nconfig = { default = [\"closed\", \"open\"] }\n";
    let keys = [key("ann", "models = [\"open\", \"auto\"]"), key("bob", "models = [\"open\"]"), key("cid", "")];
    let config = format!("{SMALL}{}{}{router}", models(&["open", "closed"], ""), keys.concat());
    let gateway = Gateway::start(&config).await;
    let answered = async |name: &str| {
        let answer = chat(&gateway, name, json!({"model": "auto"})).await;
        (answer.status, answer.json()["model"].as_str().map(str::to_owned))
    };
    assert_eq!(answered("ann").await, (200, Some("open".into())));
    assert_eq!(answered("bob").await, (404, None));
    assert_eq!(answered("cid").await, (200, Some("closed".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_reaches_its_endpoints_until_it_expires() {
    let keys = [
        key("ann", "endpoints = [\"models\"]"),
        key("old", "expires = 2020-01-01"),
        key("new", "expires = \"2200-01-01T00:00:00Z\""),
    ];
    let gateway = start(&keys.concat()).await;
    assert_eq!(get(&gateway, "ann", "/v1/models").await.status, 200);
    let refused = chat(&gateway, "ann", json!({})).await;
    assert_eq!((refused.status, refused.error().2), (403, json!("insufficient_permissions")));
    assert_eq!(refused.json()["error"]["type"], "permission_error");
    assert_eq!(get(&gateway, "ann", "/metrics").await.status, 403);
    let expired = get(&gateway, "old", "/v1/models").await;
    assert_eq!((expired.status, expired.error().2), (401, json!("expired_api_key")));
    assert_eq!(get(&gateway, "new", "/v1/models").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_read_from_one_place() {
    let gateway = start(&format!("{}{}", key("ann", ""), key("bob", ""))).await;
    let ask = async |query: &str, headers: &[(&'static str, &str)]| {
        let mut request = Request::get(gateway.url(&format!("/v1/models{query}"))).body(Full::default()).unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let answer = collect(gateway.send(request).await).await;
        let code = (answer.status != 200).then(|| answer.error().2.as_str().unwrap().to_owned());
        (answer.status, code)
    };
    let bearer = ("authorization", "Bearer tg-ann");
    assert_eq!(ask("", &[("x-api-key", "tg-ann")]).await, (200, None));
    assert_eq!(ask("", &[("api-key", "tg-ann"), bearer]).await, (200, None));
    for other in ["x-api-key", "api-key"] {
        assert_eq!(ask("", &[bearer, (other, "tg-bob")]).await, (400, Some("conflicting_credentials".into())));
    }
    assert_eq!(ask("?api_key=tg-ann", &[bearer]).await, (400, Some("key_in_url".into())));
    assert_eq!(ask("?api_key=tg-ann", &[]).await, (400, Some("key_in_url".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_limits_are_taken_by_a_reload_and_counts_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    let slow = Stalling::start().await.model;
    let write = |keys: &str, model: &str| std::fs::write(&path, format!("{slow}{model}\n{keys}[pipeline]\n")).unwrap();
    let root = key("root", "admin = true");
    write(&format!("{root}{}", key("ann", "limits = { requests_per_minute = 4 }")), "");
    let mut config = Config::load(&path).unwrap();
    config.cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache"));
    let gateway = Gateway::start_with(config).await;
    let reload = async || {
        let request = Request::post(gateway.url("/admin/reload")).body(Full::default()).unwrap();
        let answer = collect(gateway.send(as_key(request, "root")).await).await;
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    };
    let (status, mut running) = begin(&gateway, "ann").await;
    assert_eq!(status, 200);
    // Of the four one is used; of two then one is left. A new key is known, and the model is limited.
    write(
        &format!("{root}{}{}", key("ann", "limits = { requests_per_minute = 2 }"), key("new", "")),
        "limits = { concurrency = 2 }",
    );
    let (taken, facts) = reload().await;
    assert!(taken == 200 && facts.contains("keys      root, ann, new"), "{facts}");
    let second = begin(&gateway, "ann").await;
    assert_eq!(second.0, 200);
    assert_eq!(chat(&gateway, "ann", json!({"model": "slow"})).await.status, 429);
    assert_eq!(get(&gateway, "new", "/v1/models").await.status, 200);
    // A key that is gone is refused; what it began runs on.
    write(&root, "limits = { concurrency = 2 }");
    assert_eq!(reload().await.0, 200);
    assert_eq!(get(&gateway, "ann", "/v1/models").await.status, 401);
    let more = async {
        // Comments keep the connection alive.
        while running.frame().await.unwrap().unwrap().into_data().unwrap().starts_with(b":") {}
    };
    assert!(tokio::time::timeout(Duration::from_millis(50), more).await.is_err(), "neither ended nor cut");
    // What cannot be used changes nothing.
    write(&format!("{root}{}", key("ann", "models = [\"no-such\"]")), "");
    let (refused, why) = reload().await;
    assert!(refused == 400 && why.contains("no-such"), "{why}");
    assert_eq!(get(&gateway, "root", "/v1/models").await.status, 200);
}
