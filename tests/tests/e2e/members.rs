//! People in projects: which project a token or a login is for, who is in one, and what they may do there.

use hyper::{Method, Request};
use serde_json::{Value, json};
use tidegate_tests::issuer::{Signer, TestIssuer};
use tidegate_tests::{Answer, Gateway, collect};

const PROJECTS: &str = "/v1/organization/projects";

fn key(name: &str, more: &str) -> String {
    let hash = blake3::hash(name.as_bytes());
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
}

/// A gateway, and an issuer whose tokens it takes.
struct Scene {
    gateway: Gateway,
    issuer: TestIssuer,
    signer: Signer,
    _folder: tempfile::TempDir,
}

impl Scene {
    /// `terms` are the issuer's; `more` is behind all else.
    async fn start(terms: &str, more: &str) -> Self {
        let (signer, folder) = (Signer::new("one"), tempfile::tempdir().unwrap());
        let issuer = TestIssuer::start(&[&signer]).await;
        let keys = [
            key("root", "admin = true"),
            key("owner", "tenant = \"acme\"\nrole = \"owner\""),
            key("eve", "tenant = \"evil\"\nrole = \"owner\""),
            key("web-key", "tenant = \"acme\"\nproject = \"web\""),
        ];
        let text = format!(
            "{}{}[tenants.acme.projects.web]\nname = \"Web shop\"\n[tenants.acme.projects.shop]\n\
             [tenants.evil.projects.web]\n[store]\npath = {:?}\n[pipeline]\n{more}",
            keys.concat(),
            issuer.entry("corp", terms),
            folder.path().display().to_string()
        );
        Self { gateway: Gateway::start(&text).await, issuer, signer, _folder: folder }
    }

    /// A token of that user, with claims beside the usual ones.
    fn token(&self, user: &str, more: Value) -> String {
        let mut claims = self.issuer.claims(user);
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.signer.token(&claims)
    }

    async fn ask(&self, who: &str, project: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
        let request = Request::builder().method(method).uri(self.gateway.url(path));
        let mut request =
            request.header("content-type", "application/json").header("authorization", format!("Bearer {who}"));
        if !project.is_empty() {
            request = request.header("OpenAI-Project", project);
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        collect(self.gateway.send(request.body(body.into()).unwrap()).await).await
    }

    async fn get(&self, who: &str, project: &str, path: &str) -> Answer {
        self.ask(who, project, Method::GET, path, None).await
    }

    async fn post(&self, who: &str, project: &str, path: &str, body: Value) -> Answer {
        self.ask(who, project, Method::POST, path, Some(body)).await
    }

    /// Makes a conversation; whether those who ask in each of `projects` by `reader` see it.
    async fn seen(&self, who: &str, project: &str, reader: &str, projects: &[&str]) -> Vec<bool> {
        let made = self.post(who, project, "/v1/conversations", json!({})).await;
        assert_eq!(made.status, 200, "{:?}", made.body);
        let path = format!("/v1/conversations/{}", made.json()["id"].as_str().unwrap());
        let mut seen = Vec::new();
        for project in projects {
            let answer = self.get(reader, project, &path).await;
            assert!([200, 404].contains(&answer.status), "{project}: {:?}", answer.body);
            seen.push(answer.status == 200);
        }
        seen
    }

    async fn set(&self, by: &str, user: &str, role: &str) -> Answer {
        self.post(by, "", &format!("{PROJECTS}/{}/users", self.made().await), json!({"user_id": user, "role": role}))
            .await
    }

    /// A project that was made while the server runs; the same each time.
    async fn made(&self) -> String {
        self.made_by("owner").await
    }

    async fn made_by(&self, owner: &str) -> String {
        let all = self.get(owner, "", PROJECTS).await.json();
        let known = all["data"].as_array().unwrap().iter().find(|project| project["name"] == "Made").cloned();
        let made = match known {
            Some(made) => made,
            None => self.post(owner, "", PROJECTS, json!({"name": "Made"})).await.json(),
        };
        made["id"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuers_entry_or_a_claim_says_the_project_of_a_token() {
    let fixed = Scene::start("tenant = \"acme\"\nproject = \"web\"", "").await;
    let ann = fixed.token("ann", json!({}));
    assert_eq!(fixed.seen(&ann, "", "web-key", &[""]).await, [true]);
    assert_eq!(fixed.seen(&ann, "proj_acme.web", &ann, &["", "proj_acme.web"]).await, [true, true]);
    for other in ["acme", "proj_acme.shop", "web"] {
        assert_eq!(fixed.get(&ann, other, "/v1/models").await.error().2, json!("project_not_found"), "{other}");
    }

    let claimed = Scene::start("tenant = \"acme\"\nclaims = { project = \"/team/names\" }", "").await;
    let of = |names: Value| claimed.token("ann", json!({"team": {"names": names}}));
    assert_eq!(claimed.seen(&of(json!("web")), "", "web-key", &[""]).await, [true]);
    assert_eq!(claimed.seen(&of(json!(["proj_acme.web", "web", "gone"])), "", "web-key", &[""]).await, [true]);
    // Of several projects none is guessed.
    let two = of(json!(["web", "shop", "gone"]));
    let (message, _, code) = claimed.get(&two, "", "/v1/models").await.error();
    assert_eq!(code, json!("project_required"));
    assert!(message.contains("proj_acme.shop, proj_acme.web"), "{message}");
    let in_each = ["proj_acme.web", "proj_acme.shop"];
    assert_eq!(claimed.seen(&two, "proj_acme.web", &two, &in_each).await, [true, false]);
    for (names, status) in
        [(json!("gone"), 403), (json!([]), 403), (json!(5), 401), (json!(null), 401), (json!([5]), 401)]
    {
        assert_eq!(claimed.get(&of(names.clone()), "", "/v1/models").await.status, status, "{names}");
    }
    assert_eq!(claimed.get(&claimed.token("ann", json!({})), "", "/v1/models").await.status, 401);
    assert_eq!(claimed.get(&of(json!("web")), "acme", "/v1/models").await.status, 403, "it is not of the tenant's own");
}

/// Whatever names a project that is not one's own, the answer is that to a name that nothing has.
#[tokio::test(flavor = "multi_thread")]
async fn a_project_of_others_is_answered_as_one_that_never_was() {
    let scene = Scene::start("tenants = [\"acme\", \"evil\"]\nclaims = { tenant = \"org\" }", "").await;
    let ann = scene.token("ann", json!({"org": "acme"}));
    let made = scene.made().await;
    let never = format!("proj_{}", "0".repeat(32));
    let mut checked = 0;
    for who in [ann.as_str(), "owner", "eve", "web-key", "root"] {
        for (method, path) in
            [(Method::GET, "/v1/models"), (Method::POST, "/v1/conversations"), (Method::GET, PROJECTS)]
        {
            let ask = async |project: &str| {
                let body = (method == Method::POST).then(|| json!({}));
                let answer = scene.ask(who, project, method.clone(), path, body).await;
                (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
            };
            let nobodys = ask(&never).await;
            assert!(nobodys.0 == 403 && nobodys.1.contains("project_not_found"), "{nobodys:?}");
            for other in [made.as_str(), "proj_acme.shop", "proj_evil.web", "web", "shop", "proj_acme.", "proj_", "x y"]
            {
                assert_eq!(ask(other).await, nobodys, "{who}: {method} {path} in {other}");
                checked += 1;
            }
        }
    }
    println!("{checked} questions in projects of others, all of them answered as one that never was");
    // One's own is, by its id; a tenant's own has the tenant's name.
    for (who, project) in [(ann.as_str(), "acme"), ("owner", "acme"), ("web-key", "proj_acme.web")] {
        assert_eq!(scene.get(who, project, "/v1/models").await.status, 200, "{who} {project}");
    }
    // A name that is said twice, and differently, is no name.
    let request = Request::get(scene.gateway.url("/v1/models")).header("authorization", "Bearer web-key");
    let request = request.header("OpenAI-Project", "proj_acme.web").header("OpenAI-Project", "proj_acme.shop");
    let twice = collect(scene.gateway.send(request.body(Default::default()).unwrap()).await).await;
    assert_eq!((twice.status, twice.error().2), (400, json!("conflicting_projects")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_has_its_role_in_the_project_and_the_tokens_elsewhere() {
    let terms = "tenant = \"acme\"\nclaims = { role = \"role\" }\nrole = \"read-only\"";
    let members = "[tenants.acme.projects.fixed.members]\n\"corp/bob\" = \"admin\"\n";
    let scene = Scene::start(terms, members).await;
    let made = scene.made().await;
    let ann = scene.token("ann", json!({"role": "owner"}));
    let reader = scene.token("joe", json!({}));
    // Stronger than in the tenant, and weaker.
    assert_eq!(scene.get(&reader, &made, "/v1/models").await.status, 403, "not in it yet");
    assert_eq!(scene.set("owner", "corp/joe", "member").await.status, 200);
    assert_eq!(scene.set("owner", "corp/ann", "read-only").await.status, 200);
    assert_eq!(scene.post(&reader, "", "/v1/conversations", json!({})).await.status, 403);
    assert_eq!(scene.seen(&reader, &made, &ann, &[&made, "", "acme"]).await, [true, false, false]);
    assert_eq!(scene.post(&ann, &made, "/v1/conversations", json!({})).await.status, 403);
    assert_eq!(scene.post(&ann, "", "/v1/conversations", json!({})).await.status, 200);
    assert_eq!(scene.get(&ann, &made, "/admin/keys").await.status, 403, "an owner in the tenant, a reader here");
    assert_eq!(scene.get(&ann, "", "/admin/keys").await.status, 200);
    // One of the config; its admin makes keys of it and sees no other project.
    let bob = scene.token("bob", json!({}));
    let fixed = "proj_acme.fixed";
    let new = json!({"name": "proj_acme.fixed.ci", "project_role": "service"});
    assert_eq!(scene.post(&bob, fixed, "/admin/keys", new.clone()).await.status, 200);
    assert_eq!(scene.post(&bob, "", "/admin/keys", new).await.status, 403);
    let seen = scene.get(&bob, fixed, PROJECTS).await.json();
    assert_eq!((seen["data"].as_array().unwrap().len(), &seen["data"][0]["id"]), (1, &json!(fixed)));
    let people = scene.get(&bob, fixed, &format!("{PROJECTS}/{fixed}/users")).await.json();
    assert_eq!(people["data"], json!([{"object": "organization.project.user", "id": "corp/bob", "role": "admin"}]));
    let change = json!({"user_id": "corp/joe", "role": "member"});
    let refused = scene.post(&bob, fixed, &format!("{PROJECTS}/{fixed}/users"), change).await;
    assert_eq!((refused.status, refused.error().2), (409, json!("project_of_config")));
    // Of another issuer's or tenant's user of the same name, nothing is known.
    assert_eq!(scene.get(&scene.token("corp/joe", json!({})), &made, "/v1/models").await.status, 403);
    // Taken out, nobody is let in any more.
    let path = format!("{PROJECTS}/{made}/users/corp%2Fjoe");
    assert_eq!(scene.ask("owner", "", Method::DELETE, &path, None).await.status, 200);
    assert_eq!(scene.get(&reader, &made, "/v1/models").await.status, 403);
    assert_eq!(scene.post("owner", "", &format!("{PROJECTS}/{made}/archive"), json!({})).await.status, 200);
    assert_eq!(scene.get(&ann, &made, "/v1/models").await.status, 403, "the project is archived");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gives_or_takes_a_role_in_a_project_that_is_not_theirs_to_give() {
    let scene = Scene::start("tenant = \"acme\"", "").await;
    let made = scene.made().await;
    for (user, role) in [("corp/own", "owner"), ("corp/adm", "admin"), ("corp/mem", "member")] {
        assert_eq!(scene.set("owner", user, role).await.status, 200);
    }
    let [own, adm, mem] = ["own", "adm", "mem"].map(|user| scene.token(user, json!({})));
    let users = format!("{PROJECTS}/{made}/users");
    let add = async |who: &str, user: &str, role: &str| {
        scene.post(who, &made, &users, json!({"user_id": user, "role": role})).await.status
    };
    for (who, user, role, status) in [
        (&adm, "corp/new", "member", 200),
        (&adm, "corp/new", "admin", 403),
        (&adm, "corp/own", "member", 403),
        (&adm, "corp/adm", "owner", 403),
        (&mem, "corp/mem", "owner", 403),
        (&own, "corp/new", "owner", 200),
        (&own, "corp/adm", "member", 200),
        (&adm, "corp/x", "member", 403),
    ] {
        assert_eq!(add(who, user, role).await, status, "{user} {role}");
    }
    let gone = async |who: &str, user: &str| {
        scene.ask(who, &made, Method::DELETE, &format!("{users}/{user}"), None).await.status
    };
    assert_eq!(
        (gone(&mem, "corp/own").await, gone(&own, "corp/new").await, gone(&own, "corp/new").await),
        (403, 200, 404)
    );
    // Another's project has no people that one could see or change; neither has one that never was.
    for (who, project) in [("eve", made.as_str()), ("eve", "proj_none"), ("owner", "proj_evil.web")] {
        let path = format!("{PROJECTS}/{project}/users");
        let asked = [
            scene.get(who, "", &path).await,
            scene.post(who, "", &path, json!({"user_id": "corp/eve", "role": "owner"})).await,
            scene.get(who, "", &format!("{path}/corp/own")).await,
            scene.post(who, "", &format!("{path}/corp/own"), json!({"role": "member"})).await,
            scene.ask(who, "", Method::DELETE, &format!("{path}/corp/own"), None).await,
        ];
        for answer in asked {
            assert_eq!((answer.status, answer.error().2), (404, json!("project_not_found")), "{who} {project}");
        }
    }
    for (body, word) in [
        (json!({"user_id": "ann", "role": "member"}), "a slash"),
        (json!({"user_id": "other/ann", "role": "member"}), "`other` that is not known here"),
        (json!({"user_id": "corp/a\u{7}", "role": "member"}), "control"),
        (json!({"user_id": "corp/ann", "role": "king"}), "king"),
        (json!({"user_id": "corp/ann"}), "role"),
        (json!({"user_id": "corp/ann", "role": "member", "more": 1}), "more"),
    ] {
        let refused = scene.post("owner", "", &users, body.clone()).await;
        assert_eq!(refused.status, 400, "{body}");
        let (message, ..) = refused.error();
        assert!(message.contains(word), "{body}: {message}");
        // Issuers may be other tenants'; the config's check alone lists them.
        assert!(word == "control" || !message.contains("corp"), "{body}: {message}");
    }
    // Of an issuer of others nobody could come.
    let (evil, user) =
        (format!("{PROJECTS}/{}/users", scene.made_by("eve").await), json!({"user_id": "corp/x", "role": "member"}));
    let refused = scene.post("eve", "", &evil, user).await;
    assert!(refused.error().0.contains("`corp` that is not known here"), "{:?}", refused.error());
    let around = scene.post("owner", "", &format!("{PROJECTS}/{made}"), json!({"members": {"corp/x": "owner"}})).await;
    assert_eq!((around.status, around.error().1), (400, json!("members")));
}

/// Two change the same project at once; neither's change is lost.
#[tokio::test(flavor = "multi_thread")]
async fn people_who_are_added_at_once_are_all_in_it() {
    let scene = Scene::start("tenant = \"acme\"", "").await;
    let made = scene.made().await;
    let users = format!("{PROJECTS}/{made}/users");
    let (all, path) = (&scene, &users);
    let add = |n: usize| async move {
        loop {
            let body = json!({"user_id": format!("corp/user {n}"), "role": "member"});
            let answer = all.post("owner", "", path, body).await;
            match answer.status {
                409 => assert_eq!(answer.error().2, json!("project_changed")),
                status => break assert_eq!(status, 200, "{:?}", answer.body),
            }
        }
    };
    futures_util::future::join_all((0..12).map(add)).await;
    let page = scene.get("owner", "", &format!("{users}?limit=5")).await.json();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (5, &json!(true)));
    let last = page["last_id"].as_str().unwrap().replace(' ', "%20");
    let rest = scene.get("owner", "", &format!("{users}?limit=100&after={last}")).await.json();
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (7, &json!(false)));
    let one = scene.get("owner", "", &format!("{users}/corp%2Fuser%203")).await.json();
    assert_eq!(one, json!({"object": "organization.project.user", "id": "corp/user 3", "role": "member"}));
}
