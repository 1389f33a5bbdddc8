//! Projects below a tenant: of the config and made while the server runs, with limits, budgets, models and retention of
//! their own; and the commands that look after them.

use crate::conversations::send;
use crate::talk::until;
use crate::usage::{clear_of_midnight, today_s};
use clap::Parser;
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate::cli::{Cli, Command};
use tidegate::config::Config;
use tidegate_tests::postgres::Database;
use tidegate_tests::{Answer, Gateway};

const PROJECTS: &str = "/v1/organization/projects";

fn key(name: &str, more: &str) -> String {
    let hash = blake3::hash(name.as_bytes());
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
}

/// Owners of two tenants, who else there is, and what is kept in `folder`.
fn config(folder: &Path, more: &str) -> String {
    let keys = [
        key("root", "admin = true"),
        key("owner", "tenant = \"acme\"\nrole = \"owner\""),
        key("service", "tenant = \"acme\""),
        key("eve", "tenant = \"evil\"\nrole = \"owner\""),
        key("narrow", "tenant = \"acme\"\nrole = \"owner\"\nmodels = [\"tidegate-starter\"]\nplugins = []"),
    ];
    format!(
        "{}[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\nprice = {{ input = 1.0, output = 2.0 }}\n\
         [[models]]\nname = \"other\"\nupstream = \"http://127.0.0.1:9/v1\"\n[store]\npath = {:?}\n[pipeline]\n{more}",
        keys.concat(),
        folder.display().to_string()
    )
}

/// Runs `test` with SQLite, and with Postgres where there is a server, each within one day.
async fn on_each(what: &str, test: impl AsyncFn(Gateway, Config)) {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let parsed = Config::parse(&config(folder.path(), "")).unwrap();
    Box::pin(test(Gateway::start_with(parsed.clone()).await, parsed.clone())).await;
    let Some(database) = Database::new(&format!("projects_{what}")) else { return };
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let mut parsed = Config::parse(&config(folder.path(), "")).unwrap();
    parsed.store.as_mut().unwrap().postgres = Some(database.url());
    Box::pin(test(Gateway::start_with(parsed.clone()).await, parsed)).await;
}

async fn call(gateway: &Gateway, by: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
    send(gateway, method, path, by, body.as_ref()).await
}

async fn post(gateway: &Gateway, by: &str, path: &str, body: Value) -> Answer {
    call(gateway, by, Method::POST, path, Some(body)).await
}

async fn get(gateway: &Gateway, by: &str, path: &str) -> Answer {
    call(gateway, by, Method::GET, path, None).await
}

/// Makes a project; its id.
async fn project(gateway: &Gateway, by: &str, body: Value) -> String {
    let made = post(gateway, by, PROJECTS, body).await;
    assert_eq!(made.status, 200, "{:?}", made.body);
    made.json()["id"].as_str().unwrap().to_owned()
}

/// Makes a key of a project; the key itself.
async fn key_of(gateway: &Gateway, name: &str, project: &str) -> String {
    let made = post(gateway, "owner", "/admin/keys", json!({"name": name, "project": project})).await;
    assert_eq!(made.status, 200, "{:?}", made.body);
    assert_eq!(made.json()["project"], json!(project));
    made.json()["key"].as_str().unwrap().to_owned()
}

async fn chat(gateway: &Gateway, by: &str) -> Answer {
    let body =
        json!({"model": "tidegate-starter", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello!"}]});
    post(gateway, by, "/v1/chat/completions", body).await
}

/// The sums by project that `by` sees, once there are `requests` of them.
async fn used(gateway: &Gateway, by: &str, requests: u64, more: &str) -> Vec<(String, u64)> {
    let path = format!("/v1/usage?start_time={}&group_by=project_id{more}", today_s());
    until(&format!("{by} sees {requests} requests"), async || {
        let answer = get(gateway, by, &path).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let results = answer.json()["data"][0]["results"].as_array().unwrap().clone();
        let sum =
            |sum: &Value| (sum["project_id"].as_str().unwrap().to_owned(), sum["num_model_requests"].as_u64().unwrap());
        let sums: Vec<_> = results.iter().map(sum).collect();
        (sums.iter().map(|(_, n)| n).sum::<u64>() == requests).then_some(sums)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_made_used_changed_and_archived() {
    Box::pin(on_each("life", async |gateway, config| {
        let web = project(&gateway, "owner", json!({"name": "Web"})).await;
        let shop = project(&gateway, "root", json!({"name": "Shop", "tenant": "acme"})).await;
        let (by_web, by_shop) = (key_of(&gateway, "acme.web", &web).await, key_of(&gateway, "acme.shop", &shop).await);
        for (by, times) in [(&*by_web, 2), (&by_shop, 1), ("service", 1)] {
            for _ in 0..times {
                assert_eq!(chat(&gateway, by).await.status, 200);
            }
        }
        // Who answers for the tenant sees all of its projects, others their own.
        let mut all = vec![("acme".to_owned(), 1), (web.clone(), 2), (shop.clone(), 1)];
        all.sort();
        assert_eq!(used(&gateway, "owner", 4, "").await, all);
        assert_eq!(used(&gateway, "root", 4, "").await, all);
        assert_eq!(used(&gateway, "root", 3, &format!("&project_ids={web},acme")).await.len(), 2);
        assert_eq!(used(&gateway, &by_web, 2, "").await, [(web.clone(), 2)]);
        assert_eq!(used(&gateway, "service", 1, "").await, [("acme".to_owned(), 1)]);
        assert!(used(&gateway, "eve", 0, &format!("&project_ids={web}")).await.is_empty());
        let foreign = get(&gateway, &by_web, &format!("/v1/usage?start_time=1&project_ids={shop}")).await;
        assert_eq!((foreign.status, foreign.error().2), (403, json!("not_admin")));
        // As OpenAI has it.
        let listed = get(&gateway, "owner", PROJECTS).await.json();
        assert_eq!((&listed["first_id"], &listed["last_id"]), (&json!(web), &json!(shop)));
        let first = &listed["data"][0];
        assert_eq!((&first["object"], &first["status"]), (&json!("organization.project"), &json!("active")));
        let page = get(&gateway, "owner", &format!("{PROJECTS}?limit=1&after={web}")).await.json();
        assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!(shop), &json!(false)));
        let one = format!("{PROJECTS}/{web}");
        let changed = post(&gateway, "owner", &one, json!({"name": "Site", "models": ["other"]})).await.json();
        assert_eq!((&changed["name"], &changed["models"]), (&json!("Site"), &json!(["other"])));
        let refused = chat(&gateway, &by_web).await;
        assert_eq!((refused.status, refused.error().2), (404, json!("model_not_found")));
        assert_eq!(post(&gateway, "owner", &one, json!({"models": null})).await.status, 200);
        assert_eq!(chat(&gateway, &by_web).await.status, 200);
        let archived = post(&gateway, "owner", &format!("{one}/archive"), json!({})).await.json();
        assert!(archived["status"] == "archived" && archived["archived_at"].is_u64(), "{archived}");
        assert_eq!(chat(&gateway, &by_web).await.status, 401);
        let again = post(&gateway, "owner", "/admin/keys/acme.web/rotate", json!({})).await;
        assert_eq!((again.status, again.error().2), (409, json!("project_archived")));
        assert_eq!(post(&gateway, "owner", &one, json!({"name": "x"})).await.error().2, json!("project_archived"));
        for (more, count) in [("", 1), ("?include_archived=true", 2)] {
            let listed = get(&gateway, "owner", &format!("{PROJECTS}{more}")).await.json();
            assert_eq!(listed["data"].as_array().unwrap().len(), count, "{listed}");
        }
        // A restart forgets none of it.
        gateway.running.stop(Duration::from_secs(5)).await;
        let again = Gateway::start_with(config).await;
        assert_eq!((chat(&again, &by_web).await.status, chat(&again, &by_shop).await.status), (401, 200));
        assert_eq!(used(&again, "owner", 6, "").await.len(), 3);
        again.running.stop(Duration::from_secs(5)).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_has_limits_and_a_budget_that_its_keys_share() {
    Box::pin(on_each("bounds", async |gateway, _| {
        let busy = project(&gateway, "owner", json!({"name": "b", "limits": {"requests_per_minute": 2}})).await;
        let poor = project(&gateway, "owner", json!({"name": "p", "budget": {"daily": 0.000001}})).await;
        let [one, two] = [key_of(&gateway, "acme.one", &busy).await, key_of(&gateway, "acme.two", &busy).await];
        assert_eq!((chat(&gateway, &one).await.status, chat(&gateway, &two).await.status), (200, 200));
        let third = chat(&gateway, &one).await;
        assert_eq!((third.status, third.error().2), (429, json!("rate_limit_exceeded")));
        assert!(third.error().0.contains(&format!("project `{busy}`")), "{:?}", third.error());
        let poorer = key_of(&gateway, "acme.poor", &poor).await;
        let refused = chat(&gateway, &poorer).await;
        assert_eq!((refused.status, refused.error().2), (429, json!("insufficient_quota")));
        assert!(refused.error().0.contains(&format!("project `{poor}`")), "{:?}", refused.error());
        assert_eq!(chat(&gateway, "service").await.status, 200, "the tenant's own project has neither");
        // More is given at once.
        let more = json!({"budget": {"daily": 1.0}});
        assert_eq!(post(&gateway, "owner", &format!("{PROJECTS}/{poor}"), more).await.status, 200);
        assert_eq!(chat(&gateway, &poorer).await.status, 200);
        gateway.running.stop(Duration::from_secs(5)).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_are_their_tenants_and_what_makes_none_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let more = "[tenants.acme.projects.fixed]\nname = \"Fixed\"\nlimits = { concurrency = 3 }\n";
    let gateway = Gateway::start(&config(folder.path(), more)).await;
    let mine = project(&gateway, "owner", json!({"name": "Mine"})).await;
    for (by, body, status, param) in [
        ("owner", json!({"name": "x", "tenant": "evil"}), 403, "tenant"),
        ("root", json!({"name": "x", "tenant": "proj_x"}), 400, "tenant"),
        ("owner", json!({}), 400, "name"),
        ("service", json!({"name": "x"}), 403, ""),
    ] {
        let refused = post(&gateway, by, PROJECTS, body.clone()).await;
        assert_eq!(refused.status, status, "{body}: {:?}", refused.body);
        assert!(param.is_empty() || refused.error().1 == param, "{body}: {:?}", refused.error());
    }
    for (body, word) in [
        (json!({"name": ""}), "`name`"),
        (json!({"name": "x", "limit": 3}), "limit"),
        (json!({"name": "x", "models": ["no-such"]}), "no-such"),
        (json!({"name": "x", "plugins": ["no-such"]}), "no-such"),
        (json!({"name": "x", "limits": {"requests_per_minute": 0}}), "requests_per_minute"),
        (json!({"name": "x", "budget": {"daily": -1.0}}), "amount"),
        (json!([1]), "object"),
    ] {
        let refused = post(&gateway, "owner", PROJECTS, body.clone()).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.error().0.contains(word), "{body}: {:?}", refused.error());
    }
    // Keys are made for projects of their own tenant only.
    let foreign = post(&gateway, "eve", "/admin/keys", json!({"name": "evil.x", "project": mine})).await;
    assert_eq!((foreign.status, foreign.error().1), (400, json!("project")));
    assert_eq!(post(&gateway, "eve", &format!("{PROJECTS}/{mine}/archive"), json!({})).await.status, 404);
    // Those of the config are seen, and changed in the config.
    let seen = get(&gateway, "owner", &format!("{PROJECTS}/proj_acme.fixed")).await.json();
    assert_eq!((&seen["name"], &seen["limits"]["concurrency"]), (&json!("Fixed"), &json!(3)));
    let fixed = post(&gateway, "owner", &format!("{PROJECTS}/proj_acme.fixed"), json!({"name": "x"})).await;
    assert_eq!((fixed.status, fixed.error().2), (409, json!("project_of_config")));
    for query in ["?limit=0", "?limit=101", "?include_archived=1", "?after=proj_none", "?what=1"] {
        assert!([400, 404].contains(&get(&gateway, "owner", &format!("{PROJECTS}{query}")).await.status), "{query}");
    }
}

/// A model or a plugin that an owner may not use looks as one that does not exist, also where a project would name it.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_learns_of_no_model_and_plugin_beyond_the_own() {
    let folder = tempfile::tempdir().unwrap();
    let more = "[[pipeline.stage]]\nplugin = \"calculator\"\n";
    let gateway = Gateway::start(&config(folder.path(), more)).await;
    let ours = project(&gateway, "owner", json!({"name": "Ours", "models": ["tidegate-starter", "other"]})).await;
    let path = format!("{PROJECTS}/{ours}");
    for (field, hidden) in [("models", "other"), ("plugins", "calculator")] {
        for path in [PROJECTS, &*path] {
            let refused = async |by: &str, name: &str| {
                let answer = post(&gateway, by, path, json!({"name": "x", field: [name]})).await;
                let (message, param, code) = answer.error();
                assert_eq!((answer.status, param, code), (400, json!(field), json!("invalid_value")), "{by} {name}");
                message.replace(name, "NAME")
            };
            assert_eq!(refused("narrow", hidden).await, refused("narrow", "no-such").await, "{path} {field}");
            assert!(!refused("narrow", "no-such").await.contains(hidden), "{path} {field}");
            assert!(!refused("owner", "no-such").await.contains(hidden), "{path} {field}");
        }
    }
    // What others gave the project may stay.
    assert_eq!(post(&gateway, "narrow", &path, json!({"name": "New"})).await.status, 200);
    assert_eq!(post(&gateway, "narrow", &path, json!({"models": ["tidegate-starter"]})).await.status, 200);
    let listed = post(&gateway, "root", &path, json!({"models": ["no-such"]})).await;
    assert!(listed.error().0.contains("there are: tidegate-starter, other"), "{:?}", listed.error());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_of_the_config_has_its_own_terms() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let more = "[tenants.acme.projects.quiet]\nzero_retention = true\nmodels = [\"tidegate-starter\"]\n";
    let keys = key("quiet", "tenant = \"acme\"\nproject = \"quiet\"\nmodels = [\"tidegate-starter\", \"other\"]");
    let gateway = Gateway::start(&(keys + &config(folder.path(), more))).await;
    let models = get(&gateway, "quiet", "/v1/models").await.json();
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    let refused = post(&gateway, "quiet", "/v1/conversations", json!({})).await;
    assert_eq!((refused.status, refused.error().2), (403, json!("zero_retention")));
    let stored = json!({"model": "tidegate-starter", "store": true, "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(post(&gateway, "quiet", "/v1/chat/completions", stored).await.error().2, json!("zero_retention"));
    let answered = post(&gateway, "quiet", "/v1/responses", json!({"model": "tidegate-starter", "input": "x"})).await;
    assert_eq!((answered.status, &answered.json()["store"]), (200, &json!(false)));
    assert_eq!(post(&gateway, "service", "/v1/conversations", json!({})).await.status, 200);
    assert_eq!(used(&gateway, "quiet", 1, "").await, [("proj_acme.quiet".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_names_the_keys_whose_project_or_name_it_takes_away() {
    let folder = tempfile::tempdir().unwrap();
    let (file, store) = (folder.path().join("tidegate.toml"), folder.path().join("store"));
    let write = |more: &str| std::fs::write(&file, config(&store, more)).unwrap();
    write("[tenants.acme.projects.web]\n");
    let gateway = Gateway::start_with(Config::load(&file).unwrap()).await;
    let shop = key_of(&gateway, "acme.shop", "proj_acme.web").await;
    let reload = async || {
        let answer = post(&gateway, "root", "/admin/reload", json!({})).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        String::from_utf8(answer.body.to_vec()).unwrap()
    };
    let gone = "keys      that let nobody in, since the config has their project no longer: acme.shop\n";
    assert!(!reload().await.contains(gone));
    assert_eq!(get(&gateway, &shop, "/v1/models").await.status, 200);
    write("");
    assert!(reload().await.contains(gone));
    assert_eq!(get(&gateway, &shop, "/v1/models").await.status, 401);
    // So does one that takes their name: two would have one budget and one limit.
    let taken = "keys      that let nobody in, since the config has their name itself: acme.shop\n";
    let of_config = key("acme.shop", "tenant = \"acme\"");
    write(&format!("[tenants.acme.projects.web]\n{of_config}"));
    assert!(reload().await.contains(taken));
    assert_eq!(get(&gateway, &shop, "/v1/models").await.status, 401);
    assert_eq!(get(&gateway, "acme.shop", "/v1/models").await.status, 200);
    let rotated = post(&gateway, "owner", "/admin/keys/acme.shop/rotate", json!({})).await;
    assert_eq!((rotated.status, rotated.error().2), (409, json!("key_exists")));
    write("[tenants.acme.projects.web]\n");
    assert!(!reload().await.contains(taken));
    assert_eq!(get(&gateway, &shop, "/v1/models").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_do_what_the_requests_do() {
    clear_of_midnight().await;
    let folder = tempfile::tempdir().unwrap();
    let gateway =
        Gateway::start(&format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string())).await;
    let server = ["--server".to_owned(), format!("http://{}", gateway.addr)];
    let run = async |args: &[&str]| {
        let args = ["tidegate"].iter().chain(args).map(|arg| (*arg).to_owned()).chain(server.clone());
        let cli = Cli::try_parse_from(args).unwrap();
        let mut out = Vec::new();
        let done = match cli.command {
            Some(Command::Project(command)) => tidegate::remote::project(command, &mut out).await,
            Some(Command::Usage(args)) => tidegate::remote::usage(args, &mut out).await,
            _ => panic!("{args:?}", args = cli.command),
        };
        done.map(|()| String::from_utf8(out).unwrap())
    };
    let made = run(&["project", "new", "Web shop", "--limits", "{\"concurrency\": 4}"]).await.unwrap();
    assert!(made.starts_with("ID ") && made.contains("Web shop") && made.contains("active"), "{made}");
    let id = made.lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let shown = run(&["project", "change", &id, "--zero-retention", "true", "--json"]).await.unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["zero_retention"], &shown["limits"]["concurrency"]), (&json!(true), &json!(4)));
    assert!(run(&["project", "change", &id]).await.unwrap_err().to_string().contains("nothing is to be changed"));
    assert!(run(&["project", "change", &id, "--limits", "x"]).await.unwrap_err().to_string().contains("no JSON"));
    assert_eq!(chat(&gateway, "").await.status, 200);
    used(&gateway, "", 1, "").await;
    let table = run(&["usage", "--group-by", "project_id,model"]).await.unwrap();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[1], row[4], row[5], row[6]), ("local", "tidegate-starter", "-", "1"), "{table}");
    let kinds = run(&["usage", "--group-by", "kind"]).await.unwrap();
    assert!(kinds.lines().next().unwrap().contains(" KIND ") && kinds.contains(" generation "), "{kinds}");
    let csv = run(&["usage", "--csv", "--since", "2026-01-01"]).await.unwrap();
    assert_eq!(csv.lines().filter(|line| line.starts_with("start_time")).count(), 1, "{csv}");
    assert!(csv.contains(",local,,,tidegate-starter,1,"), "{csv}");
    let json: Value = serde_json::from_str(&run(&["usage", "--json", "--days", "2"]).await.unwrap()).unwrap();
    assert_eq!(json["data"].as_array().unwrap().len(), 2);
    assert!(run(&["usage", "--since", "soon"]).await.unwrap_err().to_string().contains("`soon`"));
    let bob = run(&["project", "add-member", &id, "bob"]).await.unwrap_err().to_string();
    assert!(bob.contains("a slash"), "{bob}");
    assert!(run(&["project", "members", &id]).await.unwrap().starts_with("USER"));
    assert!(run(&["project", "remove-member", &id, "corp/bob"]).await.unwrap_err().to_string().contains("corp/bob"));
    assert!(run(&["project", "archive", &id]).await.unwrap().contains("archived"));
    assert!(!run(&["project", "list"]).await.unwrap().contains(&id));
    assert!(run(&["project", "list", "--all"]).await.unwrap().contains(&id));
    let gone = run(&["project", "archive", "proj_none"]).await.unwrap_err().to_string();
    assert!(gone.contains("no such project"), "{gone}");
}
