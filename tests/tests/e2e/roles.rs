//! What each role may do, on every path that exists, and that nobody makes a key that may do more.

use hyper::{Method, Request};
use serde_json::{Value, json};
use tidegate_tests::{Answer, Gateway, collect};
use tidegate_types::{Act, CallerRole};

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
    let of_role = |role: CallerRole| key(role.as_str(), &format!("tenant = \"t\"\nrole = \"{}\"", role.as_str()));
    let keys: String = CallerRole::ALL.into_iter().map(of_role).collect();
    let gateway = start(&folder, &(keys + &key("root", "admin = true"))).await;
    println!("{}", CallerRole::table());
    let mut checked = 0;
    for (method, pattern, act) in tidegate_api::routes() {
        let path = pattern.replace("{}", "none").replace('*', "none");
        // A body that is refused everywhere: what is of interest comes before it.
        let ask =
            async |key: &str| call(&gateway, key, method, &path, (method == Method::POST).then(|| json!([]))).await;
        for role in CallerRole::ALL {
            let answer = ask(role.as_str()).await;
            let refused = answer.status == 403;
            assert_eq!(
                !refused,
                act.is_none_or(|act| role.may(act)),
                "{role:?} at {method} {pattern}: {}",
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
    println!("{checked} pairs of a role and a path, all of them checked");
    assert!(checked >= 5 * 35, "{checked}");
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
    assert_eq!(call(&gateway, "admin", &Method::DELETE, "/admin/keys/acme.one", None).await.status, 200);
    assert_eq!(call(&gateway, "owner", &Method::DELETE, "/admin/keys/acme.two", None).await.status, 200);
    assert_eq!(call(&gateway, made, &Method::GET, "/v1/models", None).await.status, 401);
    assert!(!CallerRole::Owner.may(Act::Operate));
}
