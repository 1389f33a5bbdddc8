//! `Idempotency-Key` on every path that takes a `POST`, from the route table, so that a new one without a case fails here;
//! and what the store knows of keys when the server has begun anew.

use crate::contract::good::{Server, chat};
use crate::conversations::{Keeping, items};
use crate::talk::until;
use hyper::{Method, Request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_tests::postgres::Database;
use tidegate_tests::{Answer, Gateway, collect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request that can be sent again.
struct Case {
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    /// Another body that the path takes.
    other: String,
}

impl Case {
    fn new(path: impl Into<String>, body: &Value, other: &Value) -> Self {
        Self { path: path.into(), headers: Vec::new(), body: body.to_string(), other: other.to_string() }
    }

    /// To a path that reads no body.
    fn empty(path: impl Into<String>) -> Self {
        Self { body: String::new(), ..Self::new(path, &json!({}), &json!({})) }
    }

    async fn send(&self, gateway: &Gateway, key: &str, body: &str) -> Answer {
        let mut request = Request::post(gateway.url(&self.path)).header("content-type", "application/json");
        request = request.header("authorization", "Bearer root");
        if !key.is_empty() {
            request = request.header("idempotency-key", key);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        collect(gateway.send(request.body(body.to_owned().into()).unwrap()).await).await
    }

    /// Its answer, without a key.
    async fn plain(self, gateway: &Gateway) -> Answer {
        let answer = self.send(gateway, "", &self.body).await;
        assert_eq!(answer.status, 200, "{}: {:?}", self.path, answer.body);
        answer
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// A conversation with an item.
async fn conversation(gateway: &Gateway) -> (String, String) {
    let body = json!({"items": [{"role": "user", "content": "Hello!"}]});
    let made = Case::new("/v1/conversations", &body, &body).plain(gateway).await;
    let id = text(&made.json()["id"]);
    let listed = collect(
        gateway
            .send(
                Request::get(gateway.url(&format!("/v1/conversations/{id}/items")))
                    .header("authorization", "Bearer root")
                    .body(Default::default())
                    .unwrap(),
            )
            .await,
    )
    .await;
    (id, text(&listed.json()["data"][0]["id"]))
}

async fn resumable(gateway: &Gateway) -> String {
    let body = chat("Hello!", json!({"stream": true}));
    let case = Case {
        headers: vec![("x-tidegate-resumable", "true".into())],
        ..Case::new("/v1/chat/completions", &body, &body)
    };
    case.plain(gateway).await.headers["x-tidegate-stream-id"].to_str().unwrap().to_owned()
}

async fn remembered(gateway: &Gateway) -> Value {
    let said = chat("The harbour of Kelso opens at nine.", json!({"max_tokens": 2}));
    Case::new("/v1/chat/completions", &said, &said).plain(gateway).await;
    until("it is remembered", async || {
        let request =
            Request::get(gateway.url("/v1/memories?q=harbour+of+Kelso")).header("authorization", "Bearer root");
        let found = collect(gateway.send(request.body(Default::default()).unwrap()).await).await;
        Some(found.json()["data"][0]["id"].clone()).filter(Value::is_string)
    })
    .await
}

async fn session(server: &Server) -> String {
    let cookies = |answer: &Answer| {
        let lines = answer.headers.get_all("set-cookie").iter();
        lines.map(|line| line.to_str().unwrap().split(';').next().unwrap()).collect::<Vec<_>>().join("; ")
    };
    let begun = server.gateway.get("/auth/login").await;
    let query = server.provider.log_in(begun.headers["location"].to_str().unwrap(), "ann", json!({}));
    let back = Request::get(server.gateway.url(&format!("/auth/callback?{query}"))).header("cookie", cookies(&begun));
    cookies(&collect(server.gateway.send(back.body(Default::default()).unwrap()).await).await)
}

/// The case of a path of the table.
async fn case(pattern: &str, server: &Server) -> Case {
    let gateway = &server.gateway;
    let response = |more: Value| {
        let mut body = json!({"model": "tidegate-starter", "input": "Hello!"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let one = json!({"items": [{"role": "user", "content": "x"}]});
    let two = json!({"items": [{"role": "user", "content": "y"}]});
    match pattern {
        "/v1/chat/completions" => Case::new(pattern, &chat("Hello!", json!({})), &chat("Who are you?", json!({}))),
        "/v1/completions" => {
            let body = |prompt: &str| json!({"model": "tidegate-starter", "prompt": prompt, "max_tokens": 3});
            Case::new(pattern, &body("Once"), &body("Twice"))
        }
        "/v1/embeddings" => {
            let body = |input: &str| json!({"model": "embedding", "input": input});
            Case::new(pattern, &body("Once"), &body("Twice"))
        }
        "/v1/responses" => Case::new(pattern, &response(json!({})), &response(json!({"input": "Who are you?"}))),
        "/v1/responses/{}/cancel" => {
            let body = response(json!({"background": true}));
            let made = Case::new("/v1/responses", &body, &body).plain(gateway).await;
            Case::empty(format!("/v1/responses/{}/cancel", text(&made.json()["id"])))
        }
        "/v1/streams/*" => Case::empty(format!("/v1/streams/{}/cancel", resumable(gateway).await)),
        "/v1/conversations" => Case::new(pattern, &json!({"title": "a"}), &json!({"title": "b"})),
        _ if pattern.starts_with("/v1/conversations/{}") => {
            let (id, item) = conversation(gateway).await;
            let path = pattern.replacen("{}", &id, 1).replacen("{}", &item, 1);
            let message = |content: &str| json!({"message_id": "1", "content": content});
            let model = json!({"model": "tidegate-starter"});
            match pattern.strip_prefix("/v1/conversations/{}").unwrap() {
                "" => Case::new(path, &json!({"title": "a"}), &json!({"title": "b"})),
                "/items" => Case::new(path, &one, &two),
                "/items/{}" => Case::new(path, &json!({"pinned": true}), &json!({"pinned": false})),
                "/items/{}/feedback" => Case::new(path, &json!({"rating": 1}), &json!({"rating": -1})),
                "/items/{}/regenerate" => Case::new(path, &json!({}), &model),
                "/messages" => Case::new(path, &message("Hello!"), &message("Bye!")),
                other => panic!("this test has no case for {other}"),
            }
        }
        "/v1/memories/forget" => {
            Case::new(pattern, &json!({"ids": [remembered(gateway).await]}), &json!({"ids": ["x/y"]}))
        }
        "/admin/keys" => Case::new(pattern, &json!({"name": "once"}), &json!({"name": "twice"})),
        "/admin/keys/*" => {
            let body = json!({"name": "turned"});
            Case::new("/admin/keys", &body, &body).plain(gateway).await;
            Case::empty("/admin/keys/turned/rotate")
        }
        "/v1/organization/projects" => Case::new(pattern, &json!({"name": "One"}), &json!({"name": "Two"})),
        _ if pattern.starts_with("/v1/organization/projects/{}") => {
            // Of the tenant that ann could come from.
            let body = json!({"name": "Some", "tenant": "acme"});
            let made = Case::new("/v1/organization/projects", &body, &body).plain(gateway).await;
            let path = pattern.replacen("{}", &text(&made.json()["id"]), 1);
            let person = |role: &str| json!({"user_id": "corp/ann", "role": role});
            match pattern.rsplit('/').next().unwrap() {
                "archive" => Case::empty(path),
                "users" => Case::new(path, &person("member"), &person("admin")),
                "*" => {
                    let users = path.strip_suffix("/*").unwrap();
                    Case::new(users, &person("member"), &person("admin")).plain(gateway).await;
                    let role = |role: &str| json!({"role": role});
                    Case::new(format!("{users}/corp/ann"), &role("member"), &role("admin"))
                }
                _ => Case::new(path, &json!({"name": "One"}), &json!({"name": "Two"})),
            }
        }
        "/admin/reload" => Case::empty(pattern),
        "/auth/logout" => {
            let headers = vec![("cookie", session(server).await), ("origin", "https://ai.example".into())];
            Case { headers, ..Case::empty(pattern) }
        }
        other => panic!("POST {other} takes an Idempotency-Key, and this test has no case for it"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_post_is_done_once_for_a_key() {
    let server = Server::start().await;
    let gateway = &server.gateway;
    let posts: Vec<&str> =
        tidegate_api::routes().filter(|(method, ..)| **method == Method::POST).map(|(_, path, _)| path).collect();
    let mut checked = 0;
    for pattern in &posts {
        let case = case(pattern, &server).await;
        // At once, and later.
        let (first, beside) = tokio::join!(case.send(gateway, "k", &case.body), case.send(gateway, "k", &case.body));
        let again = case.send(gateway, "k", &case.body).await;
        assert!([200, 204].contains(&first.status), "{pattern}: {first:?}");
        for other in [&beside, &again] {
            assert_eq!((other.status, &other.body), (first.status, &first.body), "{pattern}");
        }
        let replayed = [&first, &beside, &again].map(|answer| answer.headers.contains_key("idempotent-replayed"));
        assert_eq!(replayed.iter().filter(|replayed| **replayed).count(), 2, "{pattern}");
        let other = case.send(gateway, "k", &case.other).await;
        assert_eq!((other.status, other.error().2), (409, json!("idempotency_key_reused")), "{pattern}");
        checked += 1;
    }
    println!("{checked} of {} paths with POST take an Idempotency-Key: {} %", posts.len(), 100 * checked / posts.len());
    assert!(checked == posts.len() && checked >= 18, "{checked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_made_once_for_a_key_too() {
    let server = Server::start().await;
    for (path, body) in [
        ("/v1/chat/completions", chat("Tell me a story.", json!({"stream": true, "max_tokens": 20}))),
        ("/v1/completions", json!({"model": "tidegate-starter", "prompt": "Once", "stream": true})),
        ("/v1/responses", json!({"model": "tidegate-starter", "input": "Hello!", "stream": true})),
    ] {
        let case = Case::new(path, &body, &body);
        let ask = || case.send(&server.gateway, "k", &case.body);
        let (one, two, three) = tokio::join!(ask(), ask(), ask());
        assert_eq!((one.status, &one.headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
        assert!(one.body == two.body && two.body == three.body && one.body == ask().await.body, "{path}");
    }
}

/// What was made in the store is known there by its key.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_begins_anew_makes_nothing_twice() {
    let keeping = Keeping::start("[pipeline]\n").await;
    let post = async |keeping: &Keeping, path: &str, body: Value| {
        Case::new(path, &body, &body).send(&keeping.gateway, "k", &body.to_string()).await
    };
    let bodies = || {
        [
            ("/v1/conversations", json!({"title": "a"})),
            ("/v1/responses", json!({"model": "tidegate-starter", "input": "Hello!"})),
        ]
    };
    let mut made = Vec::new();
    for (path, body) in bodies() {
        made.push(post(&keeping, path, body).await.json());
    }
    let id = text(&made[0]["id"]);
    let (path, item) = (format!("/v1/conversations/{id}/items"), json!({"items": [{"role": "user", "content": "x"}]}));
    assert_eq!(post(&keeping, &path, item.clone()).await.status, 200);
    let keeping = keeping.again().await;
    for ((path, body), made) in bodies().into_iter().zip(&made) {
        let again = post(&keeping, path, body).await;
        assert_eq!((again.status, &again.json()["id"]), (200, &made["id"]), "{path}");
        let other = post(&keeping, path, json!({"model": "x", "input": "y"})).await;
        assert_eq!((other.status, other.error().2), (409, json!("idempotency_key_reused")), "{path}");
    }
    let again = post(&keeping, &path, item).await;
    assert_eq!((again.status, again.error().2), (409, json!("idempotency_answer_gone")));
    assert_eq!(items(&keeping.gateway, &id, "").await.len(), 1);
}

/// Listens before a database, and breaks the connection that claims the first key when its commit was done, before that is said.
async fn losing_a_claim(server: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, loses) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(true)));
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(pass(near, far, Arc::clone(&loses)));
        }
    });
    address
}

async fn pass(mut near: TcpStream, mut far: TcpStream, loses: Arc<AtomicBool>) {
    let has = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).any(|found| found == word);
    let (mut asked, mut said, mut claims, mut is_lost) = ([0; 16384], [0; 16384], false, false);
    loop {
        tokio::select! {
            read = near.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                claims |= has(&asked[..read], b"INSERT INTO idempotency");
                is_lost |= claims && has(&asked[..read], b"COMMIT") && loses.swap(false, Ordering::SeqCst);
                if far.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = far.read(&mut said) => {
                let Ok(read @ 1..) = read else { return };
                if is_lost || near.write_all(&said[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Its claim is there, and nothing was made for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_claim_was_not_acknowledged_can_be_tried_again() {
    let Some(database) = Database::new("unacknowledged") else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string());
    let mut config = tidegate::config::Config::parse(&config).unwrap();
    let address = losing_a_claim(database.address()).await;
    config.store.as_mut().unwrap().postgres = Some(format!("{}?sslmode=disable", database.url_by(address)));
    let gateway = Gateway::start_with(config).await;
    let id = text(&gateway.post("/v1/conversations", &json!({})).await.json()["id"]);
    let item = json!({"items": [{"role": "user", "content": "x"}]});
    let case = Case::new(format!("/v1/conversations/{id}/items"), &item, &item);
    let send = async || case.send(&gateway, "k", &case.body).await;
    let lost = send().await;
    assert_eq!((lost.status, lost.error().2), (503, json!("store_unavailable")));
    let made = send().await;
    assert_eq!(made.status, 200, "{:?}", made.body);
    assert_eq!(send().await.json(), made.json());
    assert_eq!(items(&gateway, &id, "").await.len(), 1);
    gateway.running.stop(Duration::from_secs(5)).await;
}
