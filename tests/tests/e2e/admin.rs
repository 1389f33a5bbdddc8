//! Keys that are made, replaced and taken back while the server runs.

use crate::talk::until;
use clap::Parser;
use hyper::Request;
use serde_json::{Value, json};
use sqlx::{AnyConnection, Connection};
use std::path::Path;
use std::time::Duration;
use tidegate::cli::{Cli, Command};
use tidegate_store::{Added, Db, KeptKey, Keys, Place};
use tidegate_tests::postgres::Database;
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};

fn config(folder: &Path, more: &str) -> String {
    let hash = blake3::hash(b"tg-root");
    format!(
        "[[keys]]\nname = \"root\"\nhash = \"blake3:{hash}\"\nadmin = true\n[[models]]\nname = \"tidegate-starter\"\n\
         path = \"bundled\"\nprice = {{ input = 1.0, output = 2.0 }}\n[store]\npath = {:?}\n{more}\n[pipeline]\n",
        folder.display().to_string()
    )
}

async fn call(gateway: &Gateway, key: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
    call_at(gateway, &gateway.url(path), key, method, body).await
}

async fn call_at(gateway: &Gateway, url: &str, key: &str, method: &str, body: Option<Value>) -> Answer {
    let text = body.map(|body| body.to_string()).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .body(text.into())
        .unwrap();
    collect(gateway.send(request).await).await
}

async fn chat(gateway: &Gateway, key: &str) -> Answer {
    let mut body = with_model(ask("Hello!"));
    body["max_tokens"] = 3.into();
    call(gateway, key, "POST", "/v1/chat/completions", Some(body)).await
}

/// Makes a key; the key itself.
async fn make(gateway: &Gateway, by: &str, body: Value) -> String {
    let answer = call(gateway, by, "POST", "/admin/keys", Some(body)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["key"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_shown_once_works_at_once_and_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let key = make(&gateway, "tg-root", json!({"name": "shop", "tenant": "t", "class": "batch"})).await;
    assert_eq!(chat(&gateway, &key).await.status, 200);
    let list = call(&gateway, "tg-root", "GET", "/admin/keys", None).await;
    let text = String::from_utf8(list.body.to_vec()).unwrap();
    assert!(!text.contains(&key), "the key is shown again");
    let listed = &list.json()["data"][0];
    assert_eq!((&listed["name"], &listed["tenant"], &listed["class"]), (&json!("shop"), &json!("t"), &json!("batch")));
    assert_eq!((&listed["created_by"], &listed["revoked_at"]), (&json!("root"), &Value::Null));
    assert_eq!(call(&gateway, &key, "GET", "/admin/keys", None).await.status, 403);
    assert_eq!(call(&gateway, "tg-root", "DELETE", "/admin/keys/shop", None).await.status, 200);
    assert_eq!(chat(&gateway, &key).await.status, 401);
    assert_eq!(call(&gateway, "tg-root", "DELETE", "/admin/keys/shop", None).await.status, 404);
    gateway.running.stop(Duration::from_secs(5)).await;
    for file in std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!bytes.windows(key.len()).any(|window| window == key.as_bytes()), "{} has the key", file.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_of_the_config_has_somebody_once_a_key_is_made_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let start = async || Gateway::start(&config(folder.path(), "[tenants.late]\nzero_retention = true\n")).await;
    let deserted = |gateway: &Gateway| gateway.running.facts.iter().any(|fact| fact.contains("NOBODY IS OF `late`"));
    let gateway = start().await;
    assert!(deserted(&gateway));
    let body = json!({"name": "shop", "tenant": "late"});
    assert_eq!(call(&gateway, "tg-root", "POST", "/admin/keys", Some(body)).await.status, 200);
    gateway.running.stop(Duration::from_secs(5)).await;
    assert!(!deserted(&start().await));
}

/// What has begun is done, with its line in the log, though a client may give up in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_done_though_nobody_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    sqlx::any::install_default_drivers();
    let url = format!("sqlite://{}", folder.path().join("tidegate.db").display());
    let mut other = AnyConnection::connect(&url).await.unwrap();
    // Somebody else writes, so that the change waits.
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let body = json!({"name": "shop"});
    let making = call(&gateway, "tg-root", "POST", "/admin/keys", Some(body));
    assert!(tokio::time::timeout(Duration::from_millis(500), making).await.is_err(), "it waits");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    until("the key is made", async || {
        let list = call(&gateway, "tg-root", "GET", "/admin/keys", None).await.json();
        (list["data"][0]["name"] == "shop").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_replaced_with_time_for_the_old_one_and_a_restart_forgets_none() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let first = make(&gateway, "tg-root", json!({"name": "shop", "models": ["tidegate-starter"]})).await;
    let rotate = async |path: &str| {
        let answer = call(&gateway, "tg-root", "POST", path, Some(json!({}))).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        assert_eq!(answer.json()["models"], json!(["tidegate-starter"]));
        answer.json()["key"].as_str().unwrap().to_owned()
    };
    let second = rotate("/admin/keys/shop/rotate?grace_s=600").await;
    assert_eq!((chat(&gateway, &first).await.status, chat(&gateway, &second).await.status), (200, 200));
    let third = rotate("/admin/keys/shop/rotate").await;
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = Gateway::start(&config(folder.path(), "")).await;
    // The second's time was over with the third; the first's grace was cut short with it.
    assert_eq!(chat(&again, &first).await.status, 401);
    assert_eq!(chat(&again, &second).await.status, 401);
    assert_eq!(chat(&again, &third).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_key_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    make(&gateway, "tg-root", json!({"name": "taken"})).await;
    for (body, status, word) in [
        (json!({"name": "root"}), 409, "config has a key"),
        (json!({"name": "taken"}), 409, "rotate it"),
        (json!({"name": "x y"}), 400, "`name`"),
        (json!({}), 400, "name"),
        (json!({"name": "a", "hash": "blake3:00"}), 400, "the server makes the key"),
        (json!({"name": "a", "wait": 3}), 400, "wait"),
        (json!({"name": "a", "weight": 0}), 400, "weight"),
        (json!({"name": "a", "models": ["no-such"]}), 400, "no-such"),
        (json!({"name": "a", "expires": "tomorrow"}), 400, "no moment"),
        (json!({"name": "a", "expires": "2020-01-01"}), 400, "is past"),
        (json!({"name": "a", "budget": {"daily": -1.0}}), 400, "amount"),
        (json!([1]), 400, "object"),
        (json!({"name": "a", "models": vec!["tidegate-starter"; 1 << 14]}), 413, "at most 262144"),
    ] {
        let answer = call(&gateway, "tg-root", "POST", "/admin/keys", Some(body.clone())).await;
        assert_eq!(answer.status, status, "{body}: {:?}", answer.body);
        assert!(answer.error().0.contains(word), "{body}: {:?}", answer.error());
    }
    assert_eq!(call(&gateway, "tg-root", "POST", "/admin/keys/nobody/rotate", Some(json!({}))).await.status, 404);
    assert_eq!(call(&gateway, "tg-root", "POST", "/admin/keys/taken", Some(json!({}))).await.status, 404);
}

fn kept(name: &str, settings: &Value) -> KeptKey {
    KeptKey {
        name: name.into(),
        tenant: name.into(),
        hash: format!("blake3:{}", blake3::hash(name.as_bytes())),
        settings: settings.to_string(),
        created_ms: 1,
        created_by: "root".into(),
        expires_ms: None,
        revoked_ms: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_has_ended_is_not_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
    let ended = KeptKey { expires_ms: Some(2), ..kept("ended", &json!({"name": "ended"})) };
    assert_eq!(Keys::new(db.clone()).add(&ended, 1000).await.unwrap(), Added::Done);
    db.close().await;
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let answer = call(&gateway, "tg-root", "POST", "/admin/keys/ended/rotate", Some(json!({}))).await;
    assert_eq!((answer.status, answer.error().2), (409, json!("key_ended")), "{:?}", answer.body);
}

/// As after a gateway of a newer version has made one.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_key_that_is_not_understood_lets_nobody_in_and_keeps_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
    for (name, more) in [
        ("endpoint", json!({"endpoints": ["chat", "future"]})),
        ("budget", json!({"budget": {"daily": -1.0}})),
        ("field", json!({"future": true})),
    ] {
        let mut settings = json!({"name": name});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(Keys::new(db.clone()).add(&kept(name, &settings), 1000).await.unwrap(), Added::Done);
    }
    db.close().await;
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    for name in ["endpoint", "budget", "field"] {
        assert_eq!(chat(&gateway, name).await.status, 401, "{name}");
    }
    let key = make(&gateway, "tg-root", json!({"name": "shop"})).await;
    assert_eq!(chat(&gateway, &key).await.status, 200);
    assert_eq!(call(&gateway, "tg-root", "DELETE", "/admin/keys/shop", None).await.status, 200);
    assert_eq!(chat(&gateway, &key).await.status, 401);
    assert_eq!(call(&gateway, "tg-root", "DELETE", "/admin/keys/endpoint", None).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_server_is_closed_by_an_administrators_key_first_and_never_locked() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string());
    let gateway = Gateway::start(&text).await;
    // One that ends would leave nobody who administers it.
    for body in [json!({"name": "shop"}), json!({"name": "root", "admin": true, "expires": "2999-01-31"})] {
        let refused = call(&gateway, "", "POST", "/admin/keys", Some(body)).await;
        assert_eq!((refused.status, refused.error().1), (400, json!("admin")));
    }
    let root = make(&gateway, "", json!({"name": "root", "admin": true})).await;
    assert_eq!(chat(&gateway, "tg-other").await.status, 401);
    make(&gateway, &root, json!({"name": "guest", "admin": true, "expires": "2999-01-31"})).await;
    let shop = make(&gateway, &root, json!({"name": "shop"})).await;
    assert_eq!(chat(&gateway, &shop).await.status, 200);
    let last = call(&gateway, &root, "DELETE", "/admin/keys/root", None).await;
    assert_eq!((last.status, last.error().2), (409, json!("last_administrator")));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_administrators_who_end_their_keys_at_once_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string());
    let gateway = Gateway::start(&text).await;
    let mut root = make(&gateway, "", json!({"name": "root0", "admin": true})).await;
    let mut name = "root0".to_owned();
    for round in 1..=5 {
        let other_name = format!("root{round}");
        let other = make(&gateway, &root, json!({"name": other_name, "admin": true})).await;
        let end = async |key: &str, name: &str| {
            let answer = call(&gateway, key, "DELETE", &format!("/admin/keys/{name}"), None).await;
            (answer.status, if answer.status == 200 { Value::Null } else { answer.error().2 })
        };
        let (one, two) = tokio::join!(end(&root, &name), end(&other, &other_name));
        let mut both = [&one, &two];
        both.sort_by_key(|(status, _)| *status);
        assert_eq!(both, [&(200, Value::Null), &(409, json!("last_administrator"))], "{round}");
        if one.0 == 200 {
            (root, name) = (other, other_name);
        }
    }
    assert_eq!(call(&gateway, &root, "GET", "/admin/keys", None).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_made_key_has_its_own_budget() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let key = make(&gateway, "tg-root", json!({"name": "poor", "budget": {"daily": 0.000001}})).await;
    let answer = chat(&gateway, &key).await;
    assert_eq!((answer.status, answer.error().2), (429, json!("insufficient_quota")));
}

/// What is spent of budgets takes its time to be summed, and may not be had.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_and_a_new_one_is_shown_whatever_becomes_of_the_books() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&config(folder.path(), "")).await;
    let key = make(&gateway, "tg-root", json!({"name": "shop"})).await;
    make(&gateway, "tg-root", json!({"name": "other", "budget": {"daily": 1.0}})).await;
    assert_eq!(chat(&gateway, &key).await.status, 200);
    sqlx::any::install_default_drivers();
    let url = format!("sqlite://{}", folder.path().join("tidegate.db").display());
    let mut books = AnyConnection::connect(&url).await.unwrap();
    sqlx::query("ALTER TABLE spent_by_day RENAME TO elsewhere").execute(&mut books).await.unwrap();
    assert_eq!(call(&gateway, "tg-root", "DELETE", "/admin/keys/shop", None).await.status, 500);
    assert_eq!(chat(&gateway, &key).await.status, 401);
    let key = make(&gateway, "tg-root", json!({"name": "new"})).await;
    assert_eq!(chat(&gateway, &key).await.status, 401, "of what it has spent nothing is known");
    sqlx::query("ALTER TABLE elsewhere RENAME TO spent_by_day").execute(&mut books).await.unwrap();
    until("it lets its caller in", async || (chat(&gateway, &key).await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_have_an_address_of_their_own_where_they_want_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = tidegate::config::Config::parse(&config(folder.path(), "")).unwrap();
    config.server.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let gateway = Gateway::start_with(config).await;
    assert_eq!(call(&gateway, "tg-root", "GET", "/admin/keys", None).await.status, 404);
    let admin = format!("http://{}", gateway.running.admin_addr.unwrap());
    let at = async |path: &str| call_at(&gateway, &format!("{admin}{path}"), "tg-root", "GET", None).await.status;
    assert_eq!((at("/admin/keys").await, at("/v1/models").await, at("/livez").await), (200, 404, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_on_one_store_have_the_same_keys() {
    let Some(database) = Database::new("admin_keys") else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = async |folder: &Path| {
        let mut config = tidegate::config::Config::parse(&config(folder, "")).unwrap();
        config.store.as_mut().unwrap().postgres = Some(database.url());
        Gateway::start_with(config).await
    };
    let (one, other) = (start(folders[0].path()).await, start(folders[1].path()).await);
    let key = make(&one, "tg-root", json!({"name": "shop"})).await;
    let known = tokio::time::timeout(Duration::from_secs(30), async {
        while chat(&other, &key).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    known.await.expect("the other gateway does not know the key");
    for gateway in [one, other] {
        gateway.running.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_do_what_the_requests_do() {
    let folder = tempfile::tempdir().unwrap();
    let gateway =
        Gateway::start(&format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string())).await;
    let server = ["--server".to_owned(), format!("http://{}", gateway.addr)];
    let key = async |args: &[&str]| {
        let args = ["tidegate", "key"].iter().chain(args).map(|arg| (*arg).to_owned()).chain(server.clone());
        let Ok(Cli { command: Some(Command::Key(args)), .. }) = Cli::try_parse_from(args) else {
            panic!("the command line is not understood")
        };
        let mut out = Vec::new();
        tidegate::remote::key(args.command.unwrap(), &mut out).await.map(|()| String::from_utf8(out).unwrap())
    };
    let refused = key(&["new", "shop"]).await.unwrap_err();
    assert!(refused.to_string().contains("administrator's key first"), "{refused}");
    assert!(key(&["new", "shop", "--admin", "--role", "king"]).await.unwrap_err().to_string().contains("king"));
    assert!(
        key(&["new", "shop", "--admin", "--plugin", "no-such"]).await.unwrap_err().to_string().contains("`no-such`")
    );
    let shown = key(&["new", "shop", "--admin", "--tenant", "t", "--role", "member"]).await.unwrap();
    let secret = shown.lines().find_map(|line| line.trim().strip_prefix("tg-")).unwrap();
    assert_eq!(chat(&gateway, &format!("tg-{secret}")).await.status, 200);
    for args in [&["new", "other"][..], &["list"], &["rotate", "shop"], &["revoke", "shop"]] {
        let refused = key(args).await.unwrap_err().to_string();
        assert!(refused.contains("--api-key-env"), "the command has no key: {refused}");
    }
}

/// On a server without keys the commands need none, as long as none is made that counts.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_listed_replaced_and_taken_back_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let open = format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string());
    let gateway = Gateway::start(&open).await;
    let server = ["--server".to_owned(), format!("http://{}", gateway.addr)];
    let parse = |args: &[&str]| {
        let args = ["tidegate", "key"].iter().chain(args).map(|arg| (*arg).to_owned()).chain(server.clone());
        Cli::try_parse_from(args)
    };
    let run = async |args: &[&str]| {
        let Ok(Cli { command: Some(Command::Key(args)), .. }) = parse(args) else { panic!("{args:?}") };
        let mut out = Vec::new();
        tidegate::remote::key(args.command.unwrap(), &mut out).await.map(|()| String::from_utf8(out).unwrap())
    };
    let list = run(&["list"]).await.unwrap();
    assert_eq!(list.split_whitespace().collect::<Vec<_>>()[..3], ["NAME", "TENANT", "PROJECT"]);
    assert!(run(&["rotate", "nobody"]).await.unwrap_err().to_string().contains("nobody"));
    assert!(run(&["revoke", "nobody"]).await.unwrap_err().to_string().contains("nobody"));
    let made = run(&["new", "root", "--admin", "--endpoint", "metrics", "--json"]).await.unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    let said = (&made["name"], &made["admin"], &made["endpoints"]);
    assert_eq!(said, (&json!("root"), &json!(true), &json!(["metrics"])));
    // `key NAME` alone makes one for the config.
    let Cli { command: Some(Command::Key(args)), .. } = Cli::try_parse_from(["tidegate", "key", "shop"]).unwrap()
    else {
        panic!("no key command")
    };
    assert!(args.command.is_none() && args.name.as_deref() == Some("shop"));
    assert!(Cli::try_parse_from(["tidegate", "key"]).is_err());
    assert!(Cli::try_parse_from(["tidegate", "key", "new", "x", "--admin"]).is_err(), "that is asked of a server");
}
