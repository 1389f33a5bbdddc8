//! What each role may do, in a tenant and in a project, on every path that exists, and that nobody makes a key that may do
//! more.

use hyper::{Method, Request};
use serde_json::{Value, json};
use tidegate_tests::{Answer, Gateway, collect};
use tidegate_types::{Act, CallerRole, Reach};

fn key(name: &str, more: &str) -> String {
    let hash = blake3::hash(name.as_bytes());
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
}

async fn start(folder: &tempfile::TempDir, keys: &str) -> Gateway {
    let store = format!("[store]\npath = {:?}\n", folder.path().display().to_string());
    Gateway::start(&format!("{keys}{store}[pipeline]\n")).await
}

async fn call(gateway: &Gateway, key: &str, method: &Method, path: &str, body: Option<Value>) -> Answer {
    let request = Request::builder().method(method).uri(gateway.url(path)).header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {key}"));
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    collect(gateway.send(request.body(body.into()).unwrap()).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_on_each_path_what_the_table_says() {
    let folder = tempfile::tempdir().unwrap();
    let all = CallerRole::ALL.into_iter().flat_map(|role| [(role, Reach::Tenant), (role, Reach::Project)]);
    let named = |role: CallerRole, reach: Reach| match reach {
        Reach::Tenant => (role.as_str().to_owned(), "role"),
        Reach::Project => (format!("{}-of-p", role.as_str()), "project_role"),
    };
    let of_role = |(role, reach): (CallerRole, Reach)| {
        let (name, field) = named(role, reach);
        key(&name, &format!("tenant = \"t\"\nproject = \"p\"\n{field} = \"{}\"", role.as_str()))
    };
    let keys: String = all.clone().map(of_role).collect();
    let more = key("root", "admin = true") + "[tenants.t.projects.p]\n";
    let gateway = start(&folder, &(keys + &more)).await;
    println!("{}", CallerRole::table());
    let mut checked = 0;
    for (method, pattern, act) in tidegate_api::routes() {
        let path = pattern.replace("{}", "none").replace('*', "none");
        // A body that is refused everywhere: what is of interest comes before it.
        let ask =
            async |key: &str| call(&gateway, key, method, &path, (method == Method::POST).then(|| json!([]))).await;
        for (role, reach) in all.clone() {
            let answer = ask(&named(role, reach).0).await;
            let refused = answer.status == 403;
            assert_eq!(
                !refused,
                act.is_none_or(|act| role.may_within(reach, act)),
                "{role:?} of {reach:?} at {method} {pattern}: {}",
                answer.status
            );
            if refused {
                let code = answer.error().2;
                assert!(code == "insufficient_role" || code == "not_admin", "{role:?} at {method} {pattern}: {code}");
            }
            checked += 1;
        }
        assert_ne!(ask("root").await.status, 403, "{method} {pattern}");
    }
    println!("{checked} pairs of a role, in the tenant or in a project, and a path, all of them checked");
    assert!(checked >= 10 * 35, "{checked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_tenant_are_its_owners_and_nobody_makes_one_that_may_do_more() {
    let folder = tempfile::tempdir().unwrap();
    let terms = "tenant = \"acme\"\nclass = \"standard\"\nweight = 2\nmodels = [\"tidegate-starter\"]\nrole = ";
    let keys = [
        key("root", "admin = true"),
        key("owner", &format!("{terms}\"owner\"")),
        key("admin", &format!("{terms}\"admin\"")),
        key("eve", "tenant = \"eve\"\nrole = \"owner\""),
        key("narrow", "tenant = \"acme\"\nrole = \"owner\"\nendpoints = [\"models\"]"),
    ];
    let gateway = start(&folder, &keys.concat()).await;
    let make = async |by: &str, body: Value| call(&gateway, by, &Method::POST, "/admin/keys", Some(body)).await;
    let models = json!(["tidegate-starter"]);
    let good = json!({"name": "acme.one", "models": models});
    let with = |more: Value| {
        let mut body = good.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (by, body, field) in [
        ("owner", with(json!({"tenant": "eve"})), "tenant"),
        ("owner", with(json!({"admin": true})), "admin"),
        ("owner", with(json!({"weight": 3})), "class"),
        ("owner", with(json!({"class": "interactive"})), "class"),
        ("owner", with(json!({"models": null})), "models"),
        ("owner", with(json!({"models": ["tidegate-starter", "auto"]})), "models"),
        ("owner", with(json!({"endpoints": ["chat", "metrics"]})), "endpoints"),
        ("admin", with(json!({"role": "owner"})), "role"),
        ("admin", with(json!({"role": "admin"})), "role"),
    ] {
        let refused = make(by, body.clone()).await;
        assert_eq!((refused.status, refused.error().1), (403, json!(field)), "{by}: {body}");
    }
    assert_eq!(make("owner", with(json!({"name": "one"}))).await.error().1, json!("name"));
    assert_eq!(make("owner", with(json!({"name": "acme."}))).await.error().1, json!("name"));
    assert_eq!(make("narrow", good.clone()).await.status, 403);
    // What may be made is made, for the own tenant without saying so.
    let first = make("admin", with(json!({"role": "member"}))).await.json();
    assert_eq!(
        (&first["tenant"], &first["role"], &first["created_by"]),
        (&json!("acme"), &json!("member"), &json!("admin"))
    );
    let second = make("owner", with(json!({"name": "acme.two", "role": "owner"}))).await.json();
    assert_eq!(make("root", json!({"name": "acme.boss", "tenant": "acme", "admin": true})).await.status, 200);
    let made = second["key"].as_str().unwrap();
    assert_eq!(call(&gateway, made, &Method::GET, "/v1/models", None).await.status, 200);
    // Others' keys are not there, and one's betters' are not to be touched.
    let listed = async |by: &str| call(&gateway, by, &Method::GET, "/admin/keys", None).await.json()["data"].clone();
    assert_eq!((listed("eve").await, listed("owner").await.as_array().unwrap().len()), (json!([]), 3));
    for (by, name, status) in [
        ("eve", "acme.two", 404),
        ("eve", "acme.none", 404),
        ("admin", "acme.two", 403),
        ("admin", "acme.boss", 403),
        ("owner", "acme.boss", 403),
    ] {
        for (method, path) in [(Method::DELETE, ""), (Method::POST, "/rotate")] {
            let body = (method == Method::POST).then(|| json!({}));
            let answer = call(&gateway, by, &method, &format!("/admin/keys/{name}{path}"), body).await;
            assert_eq!(answer.status, status, "{by} {method} {name}");
        }
    }
    // Whoever rotates a key holds it then: it may do no more than they. Ended it may be.
    for (name, more, field) in [
        ("acme.all", json!({"models": null}), Some("models")),
        ("acme.fast", json!({"class": "interactive"}), Some("class")),
        ("acme.heavy", json!({"weight": 3}), Some("class")),
        ("acme.seer", json!({"endpoints": ["metrics"], "class": "standard"}), Some("endpoints")),
        ("acme.like", json!({"class": "standard", "weight": 2}), None),
    ] {
        let mut body = with(more);
        body.as_object_mut().unwrap().extend([("name".into(), json!(name)), ("tenant".into(), json!("acme"))]);
        assert_eq!(make("root", body).await.status, 200, "{name}");
        let path = format!("/admin/keys/{name}");
        let rotated = call(&gateway, "admin", &Method::POST, &format!("{path}/rotate"), Some(json!({}))).await;
        match field {
            Some(field) => assert_eq!((rotated.status, rotated.error().1), (403, json!(field)), "{name}"),
            None => assert_eq!(rotated.status, 200, "{name}: {:?}", rotated.body),
        }
        assert_eq!(call(&gateway, "admin", &Method::DELETE, &path, None).await.status, 200, "{name}");
    }
    assert_eq!(call(&gateway, "admin", &Method::DELETE, "/admin/keys/acme.one", None).await.status, 200);
    assert_eq!(call(&gateway, "owner", &Method::DELETE, "/admin/keys/acme.two", None).await.status, 200);
    assert_eq!(call(&gateway, made, &Method::GET, "/v1/models", None).await.status, 401);
    assert!(!CallerRole::Owner.may(Act::Operate));
}

/// Also where one tenant's name begins with another's.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_or_learns_of_a_key_name_of_another_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [
        key("root", "admin = true"),
        key("owner", "tenant = \"acme\"\nrole = \"owner\""),
        key("eu-owner", "tenant = \"acme.eu\"\nrole = \"owner\""),
    ];
    let gateway = start(&folder, &keys.concat()).await;
    let make = async |by: &str, name: &str| {
        call(&gateway, by, &Method::POST, "/admin/keys", Some(json!({"name": name}))).await
    };
    assert_eq!(make("eu-owner", "acme.eu.there").await.status, 200);
    let there = make("owner", "acme.eu.there").await;
    assert_eq!((there.status, there.error().1), (400, json!("name")));
    for name in ["acme.eu.not-there", "acme.none.x", "acme..x"] {
        assert_eq!(make("owner", name).await.body, there.body, "{name}");
    }
    for (by, name) in [("owner", "acme.eu"), ("owner", "acme.one"), ("eu-owner", "acme.eu.two")] {
        assert_eq!(make(by, name).await.status, 200, "{name}");
    }
}

/// Whatever a tenant is called, its owners make, use, replace and end keys, and so do those of its projects.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_of_a_tenant_of_any_name_makes_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (tenant, long) = ("M\u{fc}ller & S\u{f6}hne/K\u{f6}ln, Ost", "x".repeat(256));
    let keys = [
        key("root", "admin = true"),
        key("owner", &format!("tenant = \"{tenant}\"\nrole = \"owner\"")),
        key("web-owner", &format!("tenant = \"{tenant}\"\nproject = \"web\"\nproject_role = \"owner\"")),
        key("long-owner", &format!("tenant = \"{long}\"\nrole = \"owner\"")),
    ];
    let gateway = start(&folder, &(keys.concat() + &format!("[tenants.\"{tenant}\".projects.web]\n"))).await;
    let call =
        async |by: &str, method: Method, path: &str, body: Option<Value>| call(&gateway, by, &method, path, body).await;
    for (by, prefix) in
        [("owner", tenant.to_owned()), ("web-owner", format!("proj_{tenant}.web")), ("long-owner", long)]
    {
        let make = async |name: &str| call(by, Method::POST, "/admin/keys", Some(json!({"name": name}))).await;
        for word in ["x y", "\u{fc}", "", &"x".repeat(65), "a.b"] {
            let refused = make(&format!("{prefix}.{word}")).await;
            assert_eq!((refused.status, refused.error().1), (400, json!("name")), "{by} {word}");
        }
        let name = format!("{prefix}.{}", "x".repeat(64));
        let made = make(&name).await;
        assert_eq!(made.status, 200, "{by}: {:?}", made.body);
        let made = made.json()["key"].as_str().unwrap().to_owned();
        assert_eq!(call(&made, Method::GET, "/v1/models", None).await.status, 200, "{by}");
        let path = name.bytes().fold("/admin/keys/".to_owned(), |path, byte| format!("{path}%{byte:02X}"));
        let rotated = call(by, Method::POST, &format!("{path}/rotate"), Some(json!({}))).await;
        assert_eq!((rotated.status, &rotated.json()["name"]), (200, &json!(name)), "{by}");
        assert_eq!(call(by, Method::DELETE, &path, None).await.status, 200, "{by}");
    }
    // Administrators name others' keys so as well, and their own as ever.
    let body = |name: &str| Some(json!({"name": name, "tenant": tenant}));
    for (name, status) in [(format!("{tenant}.y"), 200), ("y".to_owned(), 200), (format!("{tenant}y"), 400)] {
        assert_eq!(call("root", Method::POST, "/admin/keys", body(&name)).await.status, status, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_ends_makes_none_that_outlives_it() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [key("root", "admin = true\nexpires = 2150-01-01"), key("boss", "tenant = \"acme\"\nrole = \"owner\"")];
    let gateway = start(&folder, &keys.concat()).await;
    let make = async |by: &str, body: Value| call(&gateway, by, &Method::POST, "/admin/keys", Some(body)).await;
    let rotate = async |by: &str, name: &str| {
        call(&gateway, by, &Method::POST, &format!("/admin/keys/{name}/rotate"), Some(json!({}))).await
    };
    let secret = |answer: Answer| answer.json()["key"].as_str().unwrap().to_owned();
    // Of the config: whoever has such a key is trusted by the operator for longer than it lasts.
    assert_eq!(make("root", json!({"name": "acme.always", "tenant": "acme"})).await.status, 200);
    let ends = json!("2100-01-01");
    let terms = json!({"name": "acme.ends", "tenant": "acme", "role": "owner", "expires": ends});
    let owner = secret(make("root", terms).await);
    let terms = json!({"name": "admin.ends", "tenant": "ops", "admin": true, "expires": ends});
    let admin = secret(make("root", terms).await);
    for by in [&owner, &admin] {
        for expires in [Value::Null, json!("2100-01-01T00:00:01Z")] {
            let refused = make(by, json!({"name": "acme.x", "tenant": "acme", "expires": expires})).await;
            assert_eq!((refused.status, refused.error().1), (403, json!("expires")), "{expires}");
            assert!(refused.error().0.contains("4102444800"), "{:?}", refused.error());
        }
        let refused = rotate(by, "acme.always").await;
        assert_eq!((refused.status, refused.error().1), (403, json!("expires")));
    }
    let first = secret(make(&owner, json!({"name": "acme.first", "role": "admin", "expires": ends})).await);
    assert_eq!(make(&first, json!({"name": "acme.second", "expires": "2099-01-01"})).await.status, 200);
    assert_eq!(rotate(&owner, "acme.second").await.status, 200);
    assert_eq!(make("boss", json!({"name": "acme.lasts"})).await.status, 200);
    assert_eq!(rotate("boss", "acme.first").await.status, 200);
    // For as long as the old one goes on beside the new one, it makes nothing for longer than that.
    assert_eq!(
        call(&gateway, "root", &Method::POST, "/admin/keys/acme.ends/rotate?grace_s=600", Some(json!({}))).await.status,
        200
    );
    let refused = make(&owner, json!({"name": "acme.late", "expires": ends})).await;
    assert_eq!((refused.status, refused.error().1), (403, json!("expires")));
}

/// What is made for the test below: keys of two projects of one tenant, and of the tenant.
async fn projects(folder: &tempfile::TempDir) -> Gateway {
    let of =
        |project: &str, role: &str| format!("tenant = \"acme\"\nproject = \"{project}\"\nproject_role = \"{role}\"");
    let keys = [
        key("root", "admin = true"),
        key("owner", "tenant = \"acme\"\nrole = \"owner\""),
        key("web-owner", &of("web", "owner")),
        key("web-admin", &of("web", "admin")),
        key("web-reader", &of("web", "read-only")),
        key("shop-owner", &of("shop", "owner")),
    ];
    start(folder, &(keys.concat() + "[tenants.acme.projects.web]\n[tenants.acme.projects.shop]\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_in_a_project_makes_and_ends_keys_of_that_project_and_sees_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = projects(&folder).await;
    let make = async |by: &str, body: Value| call(&gateway, by, &Method::POST, "/admin/keys", Some(body)).await;
    for (by, body, status, param) in [
        ("web-owner", json!({"name": "proj_acme.web.x", "project": "shop"}), 403, "project"),
        ("web-owner", json!({"name": "proj_acme.web.x", "project": null}), 403, "project"),
        ("web-owner", json!({"name": "proj_acme.web.x", "role": "read-only"}), 403, "role"),
        ("web-owner", json!({"name": "proj_acme.web.x", "tenant": "evil"}), 403, "tenant"),
        ("web-owner", json!({"name": "proj_acme.web.x", "admin": true}), 403, "admin"),
        ("web-owner", json!({"name": "acme.x"}), 400, "name"),
        ("web-owner", json!({"name": "proj_acme.shop.x"}), 400, "name"),
        ("web-admin", json!({"name": "proj_acme.web.x", "project_role": "admin"}), 403, "project_role"),
        ("web-admin", json!({"name": "proj_acme.web.x", "project_role": "owner"}), 403, "project_role"),
    ] {
        let refused = make(by, body.clone()).await;
        assert_eq!((refused.status, refused.error().1), (status, json!(param)), "{by}: {body}: {:?}", refused.body);
    }
    assert_eq!(make("web-reader", json!({"name": "proj_acme.web.x"})).await.error().2, json!("insufficient_role"));
    let first = make("web-admin", json!({"name": "proj_acme.web.one"})).await.json();
    assert_eq!((&first["project"], &first["project_role"]), (&json!("proj_acme.web"), &json!("service")));
    let owner = json!({"name": "proj_acme.web.two", "project": "web", "project_role": "owner"});
    assert_eq!(make("web-owner", owner).await.status, 200);
    let other = make("shop-owner", json!({"name": "proj_acme.shop.one"})).await.json();
    // One of the tenant, in the project: it may more than anybody there.
    let tenants = json!({"name": "acme.web", "project": "web", "role": "member"});
    assert_eq!(make("owner", tenants).await.status, 200);
    assert_eq!(make("owner", json!({"name": "acme.in", "project": "web", "project_role": "owner"})).await.status, 200);
    let listed = async |by: &str| {
        let all = call(&gateway, by, &Method::GET, "/admin/keys", None).await.json()["data"].clone();
        let mut names: Vec<String> =
            all.as_array().unwrap().iter().map(|key| key["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(listed("shop-owner").await, ["proj_acme.shop.one"]);
    assert_eq!(listed("web-admin").await, ["acme.in", "acme.web", "proj_acme.web.one", "proj_acme.web.two"]);
    assert_eq!(listed("owner").await.len(), 5);
    for (by, name, status) in [
        ("web-owner", "proj_acme.shop.one", 404),
        ("web-owner", "acme.web", 403),
        ("web-admin", "proj_acme.web.two", 403),
        ("shop-owner", "acme.in", 404),
    ] {
        for (method, path) in [(Method::DELETE, ""), (Method::POST, "/rotate")] {
            let body = (method == Method::POST).then(|| json!({}));
            let answer = call(&gateway, by, &method, &format!("/admin/keys/{name}{path}"), body).await;
            assert_eq!(answer.status, status, "{by} {method} {name}: {:?}", answer.body);
        }
    }
    assert_eq!(call(&gateway, "web-admin", &Method::DELETE, "/admin/keys/proj_acme.web.one", None).await.status, 200);
    assert_eq!(call(&gateway, "web-owner", &Method::DELETE, "/admin/keys/acme.in", None).await.status, 200);
    // A key is what was made: a service in its project, which makes no keys.
    let made = other["key"].as_str().unwrap();
    assert_eq!(call(&gateway, made, &Method::GET, "/v1/models", None).await.status, 200);
    assert_eq!(make(made, json!({"name": "proj_acme.shop.two"})).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_in_a_project_sees_that_project_and_its_usage_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = projects(&folder).await;
    let get = async |by: &str, path: &str| call(&gateway, by, &Method::GET, path, None).await;
    let all = "/v1/organization/projects";
    let seen = get("web-admin", all).await.json();
    assert_eq!((seen["data"].as_array().unwrap().len(), &seen["data"][0]["id"]), (1, &json!("proj_acme.web")));
    assert_eq!(get("owner", all).await.json()["data"].as_array().unwrap().len(), 2);
    assert_eq!(get("web-admin", &format!("{all}/proj_acme.shop")).await.status, 404);
    assert_eq!(get("web-reader", all).await.status, 403);
    for path in [String::new(), "/proj_acme.web".into(), "/proj_acme.web/archive".into()] {
        let refused =
            call(&gateway, "web-owner", &Method::POST, &format!("{all}{path}"), Some(json!({"name": "x"}))).await;
        assert_eq!((refused.status, refused.error().2), (403, json!("insufficient_role")), "{path}");
    }
    let usage = async |by: &str, more: &str| get(by, &format!("/v1/usage?start_time=1{more}")).await.status;
    assert_eq!((usage("web-reader", "").await, usage("web-owner", "&project_ids=proj_acme.web").await), (200, 200));
    assert_eq!(
        (usage("web-owner", "&project_ids=proj_acme.shop").await, usage("web-owner", "&project_ids=acme").await),
        (403, 403)
    );
    assert_eq!(usage("owner", "&project_ids=proj_acme.shop").await, 200);
    // What is made in a project is read there by its readers, and changed by others.
    let made = call(&gateway, "web-owner", &Method::POST, "/v1/conversations", Some(json!({}))).await.json();
    let path = format!("/v1/conversations/{}", made["id"].as_str().unwrap());
    assert_eq!((get("web-reader", &path).await.status, get("shop-owner", &path).await.status), (200, 404));
    assert_eq!(call(&gateway, "web-reader", &Method::DELETE, &path, None).await.status, 403);
    assert_eq!(call(&gateway, "shop-owner", &Method::DELETE, &path, None).await.status, 404);
    assert_eq!(call(&gateway, "web-admin", &Method::DELETE, &path, None).await.status, 200);
}
