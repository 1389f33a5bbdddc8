//! Bearer tokens of others: what is taken from them, and that no forged one is.

use crate::talk::until;
use hyper::Request;
use ring::hmac;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_tests::issuer::{Signer, TestIssuer, encoded, now_s};
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};

async fn get(gateway: &Gateway, path: &str, token: &str) -> Answer {
    let request = Request::get(gateway.url(path)).header("authorization", format!("Bearer {token}"));
    collect(gateway.send(request.body(Default::default()).unwrap()).await).await
}

async fn models(gateway: &Gateway, token: &str) -> Answer {
    get(gateway, "/v1/models", token).await
}

fn with(claims: &Value, more: Value) -> Value {
    let mut claims = claims.clone();
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

fn without(claims: &Value, name: &str) -> Value {
    let mut claims = claims.clone();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

/// A key of a program beside an issuer of `tenant`.
async fn gateway(issuer: &TestIssuer, more: &str) -> Gateway {
    let key = |name: &str, secret: &str| {
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(secret.as_bytes()))
    };
    let key = key("shop", "tg-shop") + &key("prometheus", "tg-prometheus") + "endpoints = [\"metrics\"]\n";
    let pipeline = if more.contains("[pipeline]") { "" } else { "[pipeline]\n" };
    Gateway::start(&format!("{key}{}{pipeline}", issuer.entry("corp", more))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_names_its_user_and_keys_go_on_beside_it() {
    let signer = Signer::new("one");
    let issuer = TestIssuer::start(&[&signer]).await;
    let gateway =
        gateway(&issuer, "tenant = \"acme\"\n[tenants.acme]\nuser_limits = { requests_per_minute = 1 }").await;
    assert_eq!(models(&gateway, "tg-shop").await.status, 200);
    let chat = async |user: &str, said: &str| {
        let mut body = with_model(ask("Hello!"));
        body["max_tokens"] = 1.into();
        body["user"] = said.into();
        let mut request = gateway.json_request("/v1/chat/completions", &body);
        let token = signer.token(&issuer.claims(user));
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        collect(gateway.send(request).await).await.status
    };
    // The limit is the token's user's, whatever name the request gives.
    assert_eq!((chat("ann", "a").await, chat("ann", "b").await, chat("bob", "a").await), (200, 429, 200));
    let metrics = get(&gateway, "/metrics", "tg-prometheus").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("tenant=\"acme\""));
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_say_the_tenant_and_narrow_the_models() {
    let signer = Signer::new("one");
    let issuer = TestIssuer::start(&[&signer]).await;
    let terms = "tenants = [\"acme-*\"]\nclaims = { tenant = \"/org/id\", models = \"may\", user = \"email\" }\n\
                 models = [\"a\", \"b\"]\n\
                 [[models]]\nname = \"a\"\nupstream = \"http://127.0.0.1:9/v1\"\n\
                 [[models]]\nname = \"b\"\nupstream = \"http://127.0.0.1:9/v1\"\n\
                 [[models]]\nname = \"c\"\nupstream = \"http://127.0.0.1:9/v1\"\n";
    let gateway = gateway(&issuer, terms).await;
    let claims = with(&issuer.claims("1"), json!({"org": {"id": "acme-eu"}, "may": ["b", "c"], "email": "ann@acme"}));
    let seen = models(&gateway, &signer.token(&claims)).await.json();
    let names: BTreeSet<&str> =
        seen["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["b"]));
    for bad in [
        with(&claims, json!({"org": {"id": "other"}})),
        with(&claims, json!({"org": "acme-eu"})),
        without(&claims, "may"),
        without(&claims, "email"),
    ] {
        let refused = models(&gateway, &signer.token(&bad)).await;
        assert_eq!((refused.status, refused.error().2), (401, json!("invalid_token")), "{bad}");
    }
    assert_eq!(get(&gateway, "/admin/keys", &signer.token(&claims)).await.status, 403);
}

/// Each forgery or mistake with what it is; none may be taken.
fn hostile(issuer: &TestIssuer, good: &Signer, other: &Signer) -> Vec<(&'static str, String)> {
    let claims = issuer.claims("mallory");
    let header = json!({"alg": "ES256", "kid": good.kid});
    let token = good.token(&claims);
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (head, body) = message.split_once('.').unwrap();
    let with_header = |more: Value| good.signed(&with(&header, more).to_string(), &claims.to_string());
    let by_other = |more: Value| other.signed(&with(&header, more).to_string(), &claims.to_string());
    let with_claims = |more: Value| good.token(&with(&claims, more));
    let raw = |claims: &str| good.signed(&header.to_string(), claims);
    let hmac_by = |secret: &[u8]| {
        let message = format!("{}.{body}", encoded(json!({"alg": "HS256", "kid": good.kid}).to_string()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", encoded(tag))
    };
    let unsigned = |alg: &str| format!("{}.{body}.", encoded(json!({"alg": alg}).to_string()));
    let text = claims.to_string();
    let twice = |name: &str, value: &Value| format!("{},\"{name}\":{value}}}", &text[..text.len() - 1]);
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    vec![
        ("no algorithm", unsigned("none")),
        ("no algorithm, other case", unsigned("nOnE")),
        ("no algorithm, signed", format!("{}.{body}.{signature}", encoded("{\"alg\":\"none\"}"))),
        ("alg missing", good.signed(&json!({"kid": good.kid}).to_string(), &text)),
        ("alg no text", with_header(json!({"alg": ["ES256"]}))),
        ("HMAC with the public point", hmac_by(good.public())),
        ("HMAC with the published key", hmac_by(good.jwk().to_string().as_bytes())),
        ("HMAC with nothing", hmac_by(b"")),
        ("another algorithm's name", with_header(json!({"alg": "ES384"}))),
        ("RSA's name", with_header(json!({"alg": "RS256"}))),
        ("signed by another key", by_other(json!({}))),
        ("its own key in the header", by_other(json!({"jwk": other.jwk()}))),
        ("a key elsewhere", by_other(json!({"jku": format!("{}/theirs", issuer.server.origin())}))),
        ("a certificate elsewhere", by_other(json!({"x5u": format!("{}/theirs", issuer.server.origin())}))),
        ("a certificate within", by_other(json!({"x5c": ["MIIB"]}))),
        ("an unknown key", with_header(json!({"kid": "nobody"}))),
        ("a path for a key", with_header(json!({"kid": "../../../../dev/null"}))),
        ("a statement for a key", with_header(json!({"kid": "x' UNION SELECT 'k"}))),
        ("a key's name that is none", with_header(json!({"kid": 1}))),
        ("a critical extension", with_header(json!({"crit": ["exp"]}))),
        ("no signature", format!("{message}.")),
        ("a signature cut short", format!("{message}.{}", &signature[..40])),
        ("a signature of zeros", format!("{message}.{}", encoded([0; 64]))),
        ("a signature in another alphabet", format!("{message}.{}+/", &signature[..84])),
        (
            "claims changed",
            format!("{head}.{}.{signature}", encoded(with(&claims, json!({"sub": "root"})).to_string())),
        ),
        ("four parts", format!("{token}.{signature}")),
        ("two parts", message.to_owned()),
        ("padding", format!("{head}=.{body}.{signature}")),
        ("another issuer", with_claims(json!({"iss": "https://evil.example"}))),
        ("an issuer with a slash more", with_claims(json!({"iss": format!("{}/", issuer.server.origin())}))),
        ("a list of issuers", with_claims(json!({"iss": [issuer.server.origin()]}))),
        ("no issuer", good.token(&without(&claims, "iss"))),
        ("another audience", with_claims(json!({"aud": "shop"}))),
        ("audience in another case", with_claims(json!({"aud": "Tidegate"}))),
        ("no audience", good.token(&without(&claims, "aud"))),
        ("an audience that is a map", with_claims(json!({"aud": {"tidegate": true}}))),
        ("nested audiences", with_claims(json!({"aud": [["tidegate"]]}))),
        ("expired", with_claims(json!({"exp": now_s() - 61}))),
        ("no end", good.token(&without(&claims, "exp"))),
        ("an end that is text", with_claims(json!({"exp": (now_s() + 600).to_string()}))),
        ("an end beyond numbers", raw(&text.replace(&claims["exp"].to_string(), "1e999"))),
        ("not begun", with_claims(json!({"nbf": now_s() + 120}))),
        ("made in the future", with_claims(json!({"iat": now_s() + 120}))),
        ("no user", good.token(&without(&claims, "sub"))),
        ("an empty user", with_claims(json!({"sub": ""}))),
        ("a user twice", raw(&twice("sub", &json!("root")))),
        ("an issuer twice", raw(&twice("iss", &claims["iss"]))),
        ("an end twice", raw(&twice("exp", &json!(now_s() + 9)))),
        ("alg twice", good.signed("{\"alg\":\"none\",\"alg\":\"ES256\",\"kid\":\"one\"}", &text)),
        ("no object", raw("[]")),
        ("no JSON", raw("{\"iss\":")),
        ("more behind the JSON", raw(&format!("{text}{{}}"))),
        ("deep lists", raw(&twice("x", &serde_json::from_str(&deep(100)).unwrap()).replace(&deep(100), &deep(3000)))),
        ("huge", with_claims(json!({"x": "y".repeat(20 << 10)}))),
        ("bytes that are no text", format!("{head}.{}.{signature}", encoded([0xff, 0xfe, 0x7b]))),
        ("another token's first part", format!("{}.{signature}", &token[..token.len() - 90])),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_hostile_tokens_none_is_taken_and_none_is_repeated() {
    let (good, other) = (Signer::new("one"), Signer::new("two"));
    let issuer = TestIssuer::start(&[&good]).await;
    let gateway = gateway(&issuer, "tenant = \"acme\"\njwks_pause_s = 600").await;
    let token = good.token(&issuer.claims("ann"));
    assert_eq!(models(&gateway, &token).await.status, 200);
    let corpus = hostile(&issuer, &good, &other);
    for (what, token) in &corpus {
        let refused = models(&gateway, token).await;
        assert_eq!(refused.status, 401, "{what}: {:?}", refused.body);
        let (message, _, code) = refused.error();
        assert!(
            ["invalid_token", "expired_token", "invalid_api_key"].map(Value::from).contains(&code),
            "{what}: {code}"
        );
        let told = String::from_utf8_lossy(&refused.body).into_owned();
        let parts = token.split('.').filter(|part| part.len() > 8);
        let secret = parts.chain(["mallory", "evil.example", "nobody"]).find(|part| told.contains(part));
        assert!(secret.is_none(), "{what} repeats {secret:?}");
        println!("{what}: {message}");
    }
    println!("{} tokens, none taken", corpus.len());
    // What was refused has asked the issuer for its keys once more at most, and nobody for anything else.
    assert!(issuer.fetches() <= 2, "{}", issuer.fetches());
    assert!(issuer.server.asked("/theirs").is_empty());
    assert_eq!(models(&gateway, &token).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_known_by_its_whole_and_its_time_is_checked_each_time() {
    let signer = Signer::new("one");
    let issuer = TestIssuer::start(&[&signer]).await;
    let gateway = gateway(&issuer, "tenant = \"acme\"\nclock_skew_s = 0").await;
    let end = now_s() + 10;
    let token = signer.token(&with(&issuer.claims("ann"), json!({"exp": end})));
    assert_eq!(models(&gateway, &token).await.status, 200);
    // All but the last characters are those of a token that was taken.
    for cut in [1, 20, 85] {
        let letter = if token.ends_with('A') { "Q" } else { "A" };
        let forged = format!("{}{}", &token[..token.len() - cut], letter.repeat(cut));
        assert_eq!(models(&gateway, &forged).await.status, 401, "{cut}");
    }
    let over = until("it is over", async || {
        let asked = now_s();
        let answer = models(&gateway, &token).await;
        assert!(answer.status != 200 || asked <= end, "{asked} is after {end}");
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!((over.status, over.error().2), (401, json!("expired_token")));
    assert!(now_s() >= end, "it was over too early");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_unknown_keys_reaches_the_issuer_once() {
    let signer = Signer::new("one");
    let issuer = TestIssuer::start(&[&signer]).await;
    let gateway = gateway(&issuer, "tenant = \"acme\"\njwks_pause_s = 600").await;
    let claims = issuer.claims("ann");
    assert_eq!(models(&gateway, &signer.token(&claims)).await.status, 200);
    let storm = (0..200).map(|i| {
        let header = json!({"alg": "ES256", "kid": format!("k{i}")}).to_string();
        let token = signer.signed(&header, &claims.to_string());
        let gateway = &gateway;
        async move { models(gateway, &token).await.status }
    });
    let refused = futures_util::future::join_all(storm).await;
    assert!(refused.iter().all(|status| *status == 401), "{refused:?}");
    assert!(issuer.fetches() <= 2, "{}", issuer.fetches());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_keys_are_looked_for_old_ones_end_and_last_ones_go_on_while_the_issuer_is_away() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let issuer = TestIssuer::start(&[&old]).await;
    let terms = "tenant = \"acme\"\njwks_pause_s = 0\njwks_refresh_s = 1\njwks_stale_s = 25";
    let gateway = gateway(&issuer, terms).await;
    issuer.set_away(true);
    let token = old.token(&issuer.claims("ann"));
    let away = models(&gateway, &token).await;
    assert_eq!((away.status, away.error().2), (503, json!("issuer_away")));
    issuer.set_away(false);
    assert_eq!(models(&gateway, &token).await.status, 200);
    issuer.publish(&[&new]);
    assert_eq!(models(&gateway, &new.token(&issuer.claims("ann"))).await.status, 200);
    // The set that it was verified by has changed, so that even a token that was taken before is looked at again.
    let ended = models(&gateway, &token).await;
    assert_eq!((ended.status, ended.error().2), (401, json!("invalid_token")));
    issuer.set_away(true);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let fresh = new.token(&issuer.claims("bob"));
    assert_eq!(models(&gateway, &fresh).await.status, 200);
    until("its keys are over", async || match models(&gateway, &fresh).await.status {
        200 => None,
        status => {
            assert_eq!(status, 503);
            Some(())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn issuers_are_taken_by_a_reload() {
    let signer = Signer::new("one");
    let issuer = TestIssuer::start(&[&signer]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    let key = format!("[[keys]]\nname = \"root\"\nhash = \"blake3:{}\"\nadmin = true\n", blake3::hash(b"tg-root"));
    let write = |issuers: &str| std::fs::write(&file, format!("{key}{issuers}[pipeline]\n")).unwrap();
    write("");
    let gateway = Gateway::start_with(tidegate::config::Config::load(&file).unwrap()).await;
    let token = signer.token(&issuer.claims("ann"));
    assert_eq!(models(&gateway, &token).await.status, 401);
    write(&issuer.entry("corp", "tenant = \"acme\""));
    let facts = gateway.running.reload().await.unwrap();
    assert!(facts.iter().any(|fact| fact.contains("corp")), "{facts:?}");
    assert_eq!(models(&gateway, &token).await.status, 200);
    gateway.running.reload().await.unwrap();
    assert_eq!(models(&gateway, &token).await.status, 200);
    assert_eq!(issuer.fetches(), 1, "an issuer that did not change keeps its keys");
    write(&issuer.entry("corp", "tenant = \"acme\"\njwks_stale_s = 200000"));
    gateway.running.reload().await.unwrap();
    assert_eq!(models(&gateway, &token).await.status, 200);
    assert_eq!(issuer.fetches(), 1, "nor does one need others that is believed in another way");
    write("");
    gateway.running.reload().await.unwrap();
    assert_eq!(models(&gateway, &token).await.status, 401);
}
