//! Every path that names something of a tenant's or a project's, with the names that others have: the answer is that of
//! something that never was. The paths are those of the route table, so that a new one without a case fails here.

use crate::conversations::{Keeping, send};
use hyper::Method;
use serde_json::{Value, json};
use tidegate_tests::{Answer, Gateway};
use tidegate_types::{CallerRole, Reach};

const PROJECTS: &str = "/v1/organization/projects";

/// Paths with a name in them that is no tenant's.
const PUBLIC: &[&str] = &["/v1/models/*"];

fn config() -> String {
    let key =
        |name: &str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(name.as_bytes()));
    let with = |name: &str, more: &str| format!("{}{more}\n", key(name));
    [
        key("ann"),
        key("eve"),
        // Of the same tenant, in another project; and who may ask for projects.
        with("joe", "tenant = \"ann\"\nproject = \"other\""),
        with("root", "admin = true"),
        with("ann-owner", "tenant = \"ann\"\nrole = \"owner\""),
        with("eve-owner", "tenant = \"eve\"\nrole = \"owner\""),
        // Who looks after that other project, and no more of the tenant.
        with("joe-owner", "tenant = \"ann\"\nproject = \"other\"\nproject_role = \"owner\""),
        "[tenants.ann.projects.other]\n[pipeline]\n".into(),
    ]
    .concat()
}

/// What `ann` has.
struct Things {
    conversation: String,
    item: String,
    response: String,
    stream: String,
    key: String,
    project: String,
}

async fn made(gateway: &Gateway) -> Things {
    let post_as = async |key: &str, path: &str, body: Value| {
        let answer = send(gateway, Method::POST, path, key, Some(&body)).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    };
    let post = async |path: &str, body: Value| post_as("ann", path, body).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let conversation = text(&post("/v1/conversations", json!({"title": "mine"})).await["id"]);
    let body = json!({"message_id": "1", "content": "Hello!"});
    let accepted = post(&format!("/v1/conversations/{conversation}/messages"), body).await;
    let background = json!({"model": "tidegate-starter", "input": "Hello!", "background": true});
    let response = text(&post("/v1/responses", background).await["id"]);
    let (item, stream) = (text(&accepted["item_id"]), text(&accepted["stream_id"]));
    let project = text(&post_as("ann-owner", PROJECTS, json!({"name": "mine"})).await["id"]);
    let key = text(&post_as("ann-owner", "/admin/keys", json!({"name": "ann.made"})).await["name"]);
    Things { conversation, item, response, stream, key, project }
}

/// A path of the table with these things in it; `None` where this test does not know what belongs there.
fn filled(pattern: &str, things: &Things) -> Option<String> {
    let first = match pattern {
        _ if pattern.starts_with("/v1/conversations/") => &things.conversation,
        _ if pattern.starts_with("/v1/responses/") => &things.response,
        _ if pattern.starts_with(PROJECTS) => &things.project,
        // A key is named by its name; who makes none learns of none whether it is there.
        "/admin/keys/*" => return Some(format!("/admin/keys/{}", things.key)),
        "/v1/streams/*" => return Some(format!("/v1/streams/{}", things.stream)),
        _ => return None,
    };
    let path = pattern.replacen("{}", first, 1);
    let path =
        path.replacen("/items/{}", &format!("/items/{}", things.item), 1).replacen("/users/*", "/users/corp/ann", 1);
    (!path.contains("{}")).then_some(path)
}

/// A body that the path takes.
fn body(pattern: &str) -> Value {
    match pattern {
        "/v1/conversations/{}/items" => json!({"items": [{"role": "user", "content": "x"}]}),
        "/v1/conversations/{}/items/{}" => json!({"pinned": true}),
        "/v1/conversations/{}/items/{}/feedback" => json!({"rating": 1}),
        "/v1/organization/projects/{}/users" => json!({"user_id": "corp/ann", "role": "member"}),
        "/v1/organization/projects/{}/users/*" => json!({"role": "member"}),
        "/v1/conversations/{}/messages" => json!({"message_id": "9", "content": "x"}),
        _ => json!({}),
    }
}

/// What does not differ between two answers to the same question, but for the name that was asked for.
fn seen(answer: &Answer, asked: &str) -> (u16, String) {
    (answer.status, String::from_utf8_lossy(&answer.body).replace(asked, "NAME"))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_tenant_is_there_for_another_on_any_path() {
    let keeping = Keeping::start(&config()).await;
    let gateway = &keeping.gateway;
    let things = made(gateway).await;
    let never = Things {
        conversation: format!("conv_{}", "0".repeat(32)),
        item: format!("msg_{}", "0".repeat(32)),
        response: format!("resp_{}", "0".repeat(32)),
        stream: format!("stream_{}", "0".repeat(32)),
        key: "ann.never".into(),
        project: format!("proj_{}", "0".repeat(32)),
    };
    let objects = tidegate_api::routes().filter(|(_, path, _)| path.contains("{}") || path.ends_with('*'));
    let mut checked = 0;
    for (method, pattern, act) in objects.filter(|(_, path, _)| !PUBLIC.contains(path)) {
        let mut path = filled(pattern, &things)
            .unwrap_or_else(|| panic!("{method} {pattern} names something, and this test has no case for it"));
        let mut nowhere = filled(pattern, &never).unwrap();
        let behind = match pattern {
            "/v1/streams/*" if method == Method::POST => "/cancel",
            "/admin/keys/*" if method == Method::POST => "/rotate",
            _ => "",
        };
        (path, nowhere) = (path + behind, nowhere + behind);
        let body = (method == Method::POST).then(|| body(pattern));
        let administrates = pattern.starts_with(PROJECTS) || pattern.starts_with("/admin/");
        let strangers: &[&str] = match administrates {
            true => &["eve-owner", "joe-owner", "eve", "joe"],
            false => &["eve", "joe", "joe-owner"],
        };
        for stranger in strangers {
            let theirs = send(gateway, method.clone(), &path, stranger, body.as_ref()).await;
            let nobodys = send(gateway, method.clone(), &nowhere, stranger, body.as_ref()).await;
            // What a role in a project is not enough for is refused before anything is looked for.
            let act = act.expect("what names something is not for everybody");
            let may_ask = match *stranger {
                "eve-owner" => CallerRole::Owner.may(act),
                "joe-owner" => CallerRole::Owner.may_within(Reach::Project, act),
                _ => CallerRole::Service.may(act),
            };
            let status = if may_ask { 404 } else { 403 };
            assert_eq!(theirs.status, status, "{stranger}: {method} {path}: {:?}", theirs.body);
            assert_eq!(seen(&theirs, &things.key), seen(&nobodys, &never.key), "{stranger}: {method} {pattern}");
            checked += 1;
        }
    }
    println!("{checked} pairs of a stranger and a path with a name, all of them checked");
    assert!(checked >= 80, "{checked}");
    // Names within a request are no way in either.
    for (key, id) in [("conversation", &things.conversation), ("previous_response_id", &things.response)] {
        let body = |id: &str| json!({"model": "tidegate-starter", "input": "x", key: id});
        let absent = body(&format!("resp_{}", "0".repeat(32)));
        for stranger in ["eve", "joe"] {
            let theirs = send(gateway, Method::POST, "/v1/responses", stranger, Some(&body(id))).await;
            let nobodys = send(gateway, Method::POST, "/v1/responses", stranger, Some(&absent)).await;
            assert_eq!((theirs.status, seen(&theirs, "-")), (404, seen(&nobodys, "-")), "{stranger}: {key}");
        }
    }
    let referring = |id: &str| json!({"model": "tidegate-starter", "input": [{"type": "item_reference", "id": id}]});
    for stranger in ["eve", "joe"] {
        let ask = async |id: &str| send(gateway, Method::POST, "/v1/responses", stranger, Some(&referring(id))).await;
        let (theirs, nobodys) = (ask(&things.item).await, ask(&never.item).await);
        assert_eq!((theirs.status, seen(&theirs, &things.item)), (404, seen(&nobodys, &never.item)), "{stranger}");
    }
    for stranger in ["eve", "joe"] {
        let listed = send(gateway, Method::GET, "/v1/conversations", stranger, None).await.json();
        assert_eq!(listed["data"], json!([]));
    }
    let projects = send(gateway, Method::GET, PROJECTS, "eve-owner", None).await.json();
    assert_eq!(projects["data"], json!([]));
    // And what was asked by the other has changed nothing.
    for pattern in ["/v1/conversations/{}", "/v1/conversations/{}/items/{}", "/v1/responses/{}"] {
        let path = filled(pattern, &things).unwrap();
        let mine = send(gateway, Method::GET, &path, "ann", None).await;
        assert_eq!(mine.status, 200, "{path}");
        assert!(!mine.json()["pinned"].as_bool().unwrap_or_default());
    }
}
