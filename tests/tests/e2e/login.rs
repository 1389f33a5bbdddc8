//! People who log in with a browser, at an OpenID provider of this process.

use hyper::{Method, Request};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate::config::Config;
use tidegate_tests::issuer::{CLIENT, Provider, SECRET, Signer, encoded, now_s};
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, Gateway, ask, collect, with_model};
use tidegate_types::CallerRole;

/// A gateway whose people log in at `provider`.
async fn start(provider: &Provider, folder: &tempfile::TempDir, secret: Option<&str>) -> Gateway {
    start_with(provider, folder, secret, "").await
}

async fn start_with(provider: &Provider, folder: &tempfile::TempDir, secret: Option<&str>, more: &str) -> Gateway {
    Gateway::start_with(config(provider, folder, secret, more)).await
}

fn config(provider: &Provider, folder: &tempfile::TempDir, secret: Option<&str>, more: &str) -> Config {
    let key = |name: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n")
    };
    let store = format!("[store]\npath = {:?}\n", folder.path().display().to_string());
    let text = format!("{}{}{store}{}[pipeline]\n", key("acme"), key("other"), provider.login()) + more;
    let mut config = Config::parse(&text).unwrap();
    config.auth.login.as_mut().unwrap().client_secret = secret.map(str::to_owned);
    config
}

/// A browser, as far as this server sees it.
struct Browser<'a> {
    gateway: &'a Gateway,
    cookies: Vec<(String, String)>,
}

const LOGIN: &str = "__Host-tidegate-login";
const SESSION: &str = "__Host-tidegate-session";

impl<'a> Browser<'a> {
    fn new(gateway: &'a Gateway) -> Self {
        Self { gateway, cookies: Vec::new() }
    }

    async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Answer {
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut request = Request::builder().method(method).uri(self.gateway.url(path));
        request = request.header("cookie", cookies.join("; ")).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let answer = collect(self.gateway.send(request.body(body.into()).unwrap()).await).await;
        for line in answer.headers.get_all("set-cookie") {
            self.take(line.to_str().unwrap());
        }
        answer
    }

    /// Cookies must be this host's alone, unseen by scripts, and sent over TLS only.
    fn take(&mut self, line: &str) {
        for attribute in ["; Path=/;", "; HttpOnly;", "; Secure;", "; SameSite=Lax"] {
            assert!(line.contains(attribute), "{line}");
        }
        assert!(!line.contains("Domain") && line.starts_with("__Host-"), "{line}");
        let (name, rest) = line.split_once('=').unwrap();
        self.cookies.retain(|(known, _)| known != name);
        if !line.contains("Max-Age=0") {
            self.cookies.push((name.into(), rest.split(';').next().unwrap().into()));
        }
    }

    fn cookie(&self, name: &str) -> Option<String> {
        self.cookies.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    async fn get(&mut self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], None).await
    }

    /// Begins; gives the page of the provider.
    async fn begin(&mut self) -> String {
        let answer = self.get("/auth/login?next=/chat%3Fid=1").await;
        assert_eq!((answer.status, &answer.headers["cache-control"]), (303, &"no-store".parse().unwrap()));
        answer.headers["location"].to_str().unwrap().to_owned()
    }

    async fn back(&mut self, query: &str) -> Answer {
        self.get(&format!("/auth/callback?{query}")).await
    }

    async fn log_in(&mut self, provider: &Provider, user: &str, more: Value) {
        let page = self.begin().await;
        let answer = self.back(&provider.log_in(&page, user, more)).await;
        assert_eq!((answer.status, &answer.headers["location"]), (303, &"/chat?id=1".parse().unwrap()), "{answer:?}");
    }
}

fn chat() -> Option<Value> {
    let mut body = with_model(ask("Hello!"));
    body["max_tokens"] = 1.into();
    Some(body)
}

/// Nobody who logs in can mend that, and beginning again is no use.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_no_fault_of_who_logs_in() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, Some("wrong")).await;
    let mut browser = Browser::new(&gateway);
    let page = browser.begin().await;
    let answer = browser.back(&provider.log_in(&page, "ann", json!({}))).await;
    assert_eq!((answer.status, answer.error().2), (503, json!("issuer_away")), "{:?}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_logs_in_asks_and_logs_out() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, None).await;
    let mut browser = Browser::new(&gateway);
    assert_eq!(browser.get("/v1/models").await.status, 401);
    browser.log_in(&provider, "ann", json!({"role": "admin"})).await;
    assert!(browser.cookie(LOGIN).is_none(), "the login is over with its answer");
    let me = browser.get("/auth/me").await.json();
    assert_eq!((&me["user"], &me["tenant"], &me["role"]), (&json!("ann"), &json!("acme"), &json!("admin")));
    assert!(me["expires_at"].as_u64().unwrap() > now_s() + 11 * 3600);
    assert_eq!(browser.get("/v1/models").await.status, 200);
    assert_eq!(browser.get("/admin/keys").await.status, 200);
    // What costs or changes something must come from a page of this server.
    let path = "/v1/chat/completions";
    for (headers, status) in [
        (vec![], 403),
        (vec![("origin", "https://evil.example")], 403),
        (vec![("origin", "https://ai.example.evil.example")], 403),
        (vec![("origin", "null")], 403),
        (vec![("origin", "https://ai.example"), ("origin", "https://evil.example")], 403),
        (vec![("sec-fetch-site", "cross-site")], 403),
        (vec![("sec-fetch-site", "same-site")], 403),
        (vec![("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")], 403),
        (vec![("sec-fetch-site", "same-origin")], 200),
        (vec![("origin", "https://ai.example")], 200),
        // With a key of the same tenant the key says who asks; with another tenant's, nobody does.
        (vec![("x-api-key", "acme")], 200),
        (vec![("x-api-key", "other"), ("origin", "https://ai.example")], 400),
    ] {
        let answer = browser.send(Method::POST, path, &headers, chat()).await;
        assert_eq!(answer.status, status, "{headers:?}: {:?}", answer.body);
        match status {
            403 => assert_eq!(answer.error().2, json!("cross_site")),
            400 => assert_eq!(answer.error().2, json!("conflicting_credentials")),
            _ => {}
        }
    }
    let token = browser.cookie(SESSION).unwrap();
    assert_eq!(browser.send(Method::POST, "/auth/logout", &[], None).await.status, 403);
    let ours = [("origin", "https://ai.example")];
    assert_eq!(browser.send(Method::POST, "/auth/logout", &ours, None).await.status, 204);
    assert!(browser.cookie(SESSION).is_none());
    browser.cookies.push((SESSION.into(), token.clone()));
    let over = browser.get("/v1/models").await;
    assert_eq!((over.status, over.error().2), (401, json!("session_over")));
    gateway.running.stop(Duration::from_secs(5)).await;
    for file in std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!bytes.windows(token.len()).any(|window| window == token.as_bytes()), "{} has it", file.display());
    }
}

/// For a whole login, or for one request of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_chooses_one_of_the_own_projects() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let more = "[tenants.acme.projects.web]\nname = \"Web shop\"\nmembers = { \"corp/ann\" = \"read-only\" }\n\
                [tenants.acme.projects.shop.members]\n\"corp/ann\" = \"admin\"\n[tenants.acme.projects.other]\n";
    let gateway = start_with(&provider, &folder, None, more).await;
    let mut browser = Browser::new(&gateway);
    browser.log_in(&provider, "ann", json!({})).await;
    let me = browser.get("/auth/me").await.json();
    assert_eq!((&me["project"], &me["role"]), (&json!("acme"), &json!("member")));
    let own = json!([
        {"id": "proj_acme.shop", "name": "shop", "role": "admin"},
        {"id": "proj_acme.web", "name": "Web shop", "role": "read-only"},
    ]);
    assert_eq!(me["projects"], own);
    let ours = ("origin", "https://ai.example");
    let make = async |browser: &mut Browser<'_>, project: &[(&str, &str)]| {
        let headers = [&[ours], project].concat();
        browser.send(Method::POST, "/v1/conversations", &headers, Some(json!({}))).await.status
    };
    assert_eq!(make(&mut browser, &[]).await, 200);
    assert_eq!(make(&mut browser, &[("openai-project", "proj_acme.web")]).await, 403);
    assert_eq!(make(&mut browser, &[("openai-project", "proj_acme.shop")]).await, 200);
    assert_eq!(make(&mut browser, &[("openai-project", "proj_acme.other")]).await, 403);
    // The login is for one project; a request of it may still be for another.
    let page = browser.get("/auth/login?project=proj_acme.shop").await;
    let page = page.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(browser.back(&provider.log_in(&page, "ann", json!({}))).await.status, 303);
    let me = browser.get("/auth/me").await.json();
    assert_eq!((&me["project"], &me["role"]), (&json!("proj_acme.shop"), &json!("admin")));
    assert_eq!(browser.get("/admin/keys").await.status, 200);
    assert_eq!(make(&mut browser, &[("openai-project", "proj_acme.web")]).await, 403);
    // Nobody logs in to a project of others.
    for project in ["proj_acme.other", "proj_none"] {
        let mut stranger = Browser::new(&gateway);
        let page = stranger.get(&format!("/auth/login?project={project}")).await;
        let page = page.headers["location"].to_str().unwrap().to_owned();
        let refused = stranger.back(&provider.log_in(&page, "ann", json!({}))).await;
        assert_eq!((refused.status, refused.error().2), (403, json!("project_not_found")), "{project}");
        assert!(stranger.cookie(SESSION).is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_outlives_its_project_and_a_key_beside_it_goes_on() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, None).await;
    let (mut ann, mut bob) = (Browser::new(&gateway), Browser::new(&gateway));
    bob.log_in(&provider, "bob", json!({"role": "admin"})).await;
    let (all, ours) = ("/v1/organization/projects", [("origin", "https://ai.example")]);
    let made = bob.send(Method::POST, all, &ours, Some(json!({"name": "Web"}))).await.json();
    let id = made["id"].as_str().unwrap().to_owned();
    let member = Some(json!({"user_id": "corp/ann", "role": "member"}));
    assert_eq!(bob.send(Method::POST, &format!("{all}/{id}/users"), &ours, member).await.status, 200);
    let page = ann.get(&format!("/auth/login?project={id}")).await;
    let page = page.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(ann.back(&provider.log_in(&page, "ann", json!({}))).await.status, 303);
    assert_eq!(ann.get("/auth/me").await.json()["project"], json!(id));
    assert_eq!(bob.send(Method::POST, &format!("{all}/{id}/archive"), &ours, None).await.status, 200);
    // She is told who she is, and chooses another.
    let me = ann.get("/auth/me").await;
    assert_eq!((me.status, &me.json()["user"], &me.json()["project"]), (200, &json!("ann"), &Value::Null));
    let mut get = async |path: &str, header: Option<(&str, &str)>| {
        let answer = ann.send(Method::GET, path, header.as_slice(), None).await;
        (answer.status, if answer.status == 200 { Value::Null } else { answer.error().2 })
    };
    let gone = (403, json!("project_not_found"));
    assert_eq!(get("/v1/models", None).await, gone);
    assert_eq!(get("/auth/me", Some(("openai-project", &id))).await, gone);
    assert_eq!(get("/v1/models", Some(("openai-project", "acme"))).await.0, 200);
    // What her browser sends beside a key that is good takes nothing from that, but is still of one tenant with it.
    assert_eq!(get("/v1/models", Some(("x-api-key", "acme"))).await.0, 200);
    assert_eq!(get("/v1/models", Some(("x-api-key", "other"))).await, (400, json!("conflicting_credentials")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_gives_a_new_cookie_and_ends_the_one_before() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, Some(SECRET)).await;
    let mut browser = Browser::new(&gateway);
    // One that somebody else has put there is not taken over.
    browser.cookies.push((SESSION.into(), "a".repeat(64)));
    browser.log_in(&provider, "ann", json!({})).await;
    let first = browser.cookie(SESSION).unwrap();
    assert_ne!(first, "a".repeat(64));
    browser.log_in(&provider, "ann", json!({})).await;
    assert_ne!(browser.cookie(SESSION).unwrap(), first);
    let mut thief = Browser::new(&gateway);
    thief.cookies.push((SESSION.into(), first));
    assert_eq!((thief.get("/auth/me").await.status, browser.get("/auth/me").await.status), (401, 200));
    // A restart forgets nobody.
    let cookies = browser.cookies.clone();
    gateway.running.stop(Duration::from_secs(5)).await;
    let again = start(&provider, &folder, Some(SECRET)).await;
    let mut browser = Browser { gateway: &again, cookies };
    assert_eq!(browser.get("/v1/models").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_over_when_its_issuer_may_not_speak_for_its_tenant_any_more() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, None).await;
    let mut browser = Browser::new(&gateway);
    browser.log_in(&provider, "ann", json!({})).await;
    let cookies = browser.cookies.clone();
    gateway.running.stop(Duration::from_secs(5)).await;
    for (tenants, status) in [("ac*", 200), ("other", 401)] {
        let mut config = config(&provider, &folder, None, "");
        let issuer = &mut config.auth.issuer[0];
        (issuer.tenant, issuer.claims.tenant, issuer.tenants) = (None, Some("org".into()), vec![tenants.into()]);
        let again = Gateway::start_with(config).await;
        let mut browser = Browser { gateway: &again, cookies: cookies.clone() };
        let answer = browser.get("/v1/models").await;
        assert_eq!(answer.status, status, "{tenants}");
        assert!(status == 200 || answer.error().2 == json!("session_over"), "{tenants}: {:?}", answer.body);
        again.running.stop(Duration::from_secs(5)).await;
    }
}

/// As a token, which is read anew each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_has_the_role_that_the_config_gives_its_name_now() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let with = |roles: &[(&str, CallerRole)]| {
        let mut config = config(&provider, &folder, None, "");
        let issuer = &mut config.auth.issuer[0];
        (issuer.claims.role, issuer.role) = (Some("groups".into()), None);
        issuer.roles = roles.iter().map(|(name, role)| ((*name).to_owned(), *role)).collect();
        config
    };
    let gateway = Gateway::start_with(with(&[("it", CallerRole::Admin), ("staff", CallerRole::Member)])).await;
    let mut browser = Browser::new(&gateway);
    browser.log_in(&provider, "ann", json!({"groups": ["it", "staff"]})).await;
    assert_eq!(browser.get("/auth/me").await.json()["role"], "admin");
    let cookies = browser.cookies.clone();
    gateway.running.stop(Duration::from_secs(5)).await;
    for (roles, role) in [
        (&[("it", CallerRole::ReadOnly)][..], Some("read-only")),
        (&[("staff", CallerRole::Member)], Some("member")),
        (&[("others", CallerRole::Admin)], None),
    ] {
        let again = Gateway::start_with(with(roles)).await;
        let mut browser = Browser { gateway: &again, cookies: cookies.clone() };
        let asked = browser.get("/v1/models").await;
        match role {
            Some(role) => assert_eq!(browser.get("/auth/me").await.json()["role"], role),
            None => assert_eq!((asked.status, asked.error().2), (401, json!("session_over"))),
        }
        again.running.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_forged_login_gets_a_cookie() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, None).await;
    let other = Signer::new("one");
    let claims = |nonce: &str| json!({"iss": provider.server.origin(), "aud": CLIENT, "sub": "eve", "exp": now_s() + 60, "nonce": nonce});
    let nonce = |page: &str| page.split("nonce=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    let mut checked = 0;
    let mut refused = |answer: Answer, browser: &Browser<'_>, what: &str| {
        assert!([400, 401].contains(&answer.status), "{what}: {answer:?}");
        assert!(browser.cookie(SESSION).is_none(), "{what}");
        checked += 1;
    };
    // What the provider says is not to be believed.
    for (what, more) in [
        ("another nonce", json!({"nonce": "x"})),
        ("a nonce that is none", json!({"nonce": null})),
        ("another audience", json!({"aud": "tidegate"})),
        ("another party", json!({"azp": "other"})),
        ("several audiences and no party", json!({"aud": [CLIENT, "other"]})),
        ("over", json!({"exp": now_s() - 120})),
        ("another issuer", json!({"iss": "https://evil.example"})),
        ("no user", json!({"sub": ""})),
    ] {
        let mut browser = Browser::new(&gateway);
        let page = browser.begin().await;
        let answer = browser.back(&provider.log_in(&page, "eve", more)).await;
        refused(answer, &browser, what);
    }
    type Forge<'a> = &'a dyn Fn(&str) -> String;
    let unsigned: Forge<'_> =
        &|page| format!("{}.{}.", encoded("{\"alg\":\"none\"}"), encoded(claims(&nonce(page)).to_string()));
    let by_other: Forge<'_> = &|page| other.token(&claims(&nonce(page)));
    let nothing: Forge<'_> = &|_| "x".into();
    for (what, token) in [("unsigned", unsigned), ("signed by another", by_other), ("no token", nothing)] {
        let mut browser = Browser::new(&gateway);
        let page = browser.begin().await;
        let answer = browser.back(&provider.answer(&page, token(&page))).await;
        refused(answer, &browser, what);
    }
    // What the browser brings back is another's, or made up.
    let (mut eve, mut ann) = (Browser::new(&gateway), Browser::new(&gateway));
    let evil = provider.log_in(&eve.begin().await, "eve", json!({}));
    ann.begin().await;
    let answer = ann.back(&evil).await;
    refused(answer, &ann, "another browser's answer");
    let answer = Browser::new(&gateway).back(&evil).await;
    refused(answer, &Browser::new(&gateway), "no login begun");
    let answer = eve.back(&format!("{evil}&iss=https%3A%2F%2Fevil.example")).await;
    refused(answer, &eve, "an answer of another issuer");
    let answer = eve.back(&evil.replace("code%2B", "code%2B9")).await;
    refused(answer, &eve, "another code");
    let state = eve.cookie(LOGIN).unwrap();
    let changed = state.splitn(4, '.').enumerate().map(|(i, part)| if i == 2 { "v".repeat(43) } else { part.into() });
    let changed = changed.collect::<Vec<String>>().join(".");
    let mut forger = Browser { gateway: &gateway, cookies: vec![(LOGIN.into(), changed)] };
    let answer = forger.back(&evil).await;
    refused(answer, &forger, "another verifier");
    for query in ["", "error=access_denied&state=x", "code=1", "state=&code=1", "state=a&state=b&code=1"] {
        let answer = eve.back(query).await;
        refused(answer, &eve, query);
    }
    // The one that is right is taken, once.
    let held = eve.cookies.clone();
    assert_eq!(eve.back(&evil).await.status, 303);
    let mut again = Browser { gateway: &gateway, cookies: held };
    let answer = again.back(&evil).await;
    refused(answer, &again, "a code that was used");
    for next in ["//evil.example", "https://evil.example", "/%5Cevil.example", "x"] {
        let answer = Browser::new(&gateway).get(&format!("/auth/login?next={next}")).await;
        refused(answer, &Browser::new(&gateway), next);
    }
    println!("{checked} forged logins, none taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_codes_keep_nobody_from_logging_in() {
    let (provider, folder) = (Provider::start().await, tempfile::tempdir().unwrap());
    let gateway = start(&provider, &folder, None).await;
    // As many as are exchanged at once.
    let made_up = (0..16).map(|_| async {
        let mut eve = Browser::new(&gateway);
        let page = eve.begin().await;
        let state = page.split("state=").nth(1).unwrap().split('&').next().unwrap();
        eve.back(&format!("code=slow&state={state}")).await.status
    });
    let honest = async {
        while provider.server.asked("/token").len() < 16 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Browser::new(&gateway).log_in(&provider, "ann", json!({})).await;
    };
    let both = futures_util::future::join(futures_util::future::join_all(made_up), honest);
    let (refused, ()) = tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
    assert!(refused.iter().all(|status| *status == 401), "{refused:?}");
}

/// Logins of an issuer that is away are refused together, not one after another; what it said before goes on.
#[tokio::test(flavor = "multi_thread")]
async fn logins_do_not_queue_behind_an_issuer_that_is_away() {
    const DOCUMENT: &str = "/.well-known/openid-configuration";
    let away = Arc::new(AtomicBool::new(true));
    let origin = Arc::new(std::sync::OnceLock::<String>::new());
    let script = {
        let (away, origin) = (Arc::clone(&away), Arc::clone(&origin));
        move |path: &str, _: &Value| match path {
            DOCUMENT if !away.load(Ordering::SeqCst) => {
                let origin = origin.get().unwrap();
                Said::json(&json!({"issuer": origin, "authorization_endpoint": format!("{origin}/authorize")}))
            }
            _ => Said::raw(503, "").after(Duration::from_secs(1)),
        }
    };
    let server = StandIn::start(script).await;
    origin.set(server.origin()).unwrap();
    let start = async |folder: &tempfile::TempDir, pause_s: u64| {
        Gateway::start(&format!(
            "[[auth.issuer]]\nname = \"corp\"\nissuer = \"{}\"\naudience = [\"tidegate\"]\ntenant = \"acme\"\n\
             networks = [\"127.0.0.1\"]\njwks_refresh_s = 1\njwks_pause_s = {pause_s}\n[auth.login]\nissuer = \"corp\"\n\
             client_id = \"x\"\npublic_url = \"https://ai.example\"\n[store]\npath = {:?}\n[pipeline]\n",
            server.origin(),
            folder.path().display().to_string()
        ))
        .await
    };
    // One after another they would take half a minute, and a busy machine may take long, but not each time.
    let mut took = Vec::new();
    while !took.iter().any(|took| *took < Duration::from_secs(15)) {
        assert!(took.len() < 3, "{took:?}");
        let folder = tempfile::tempdir().unwrap();
        let gateway = start(&folder, 60).await;
        let began = Instant::now();
        let many = futures_util::future::join_all((0..30).map(|_| gateway.get("/auth/login"))).await;
        for refused in many.into_iter().chain([gateway.get("/auth/login").await]) {
            assert_eq!((refused.status, refused.error().2), (503, json!("issuer_away")));
        }
        took.push(began.elapsed());
        assert_eq!(server.asked(DOCUMENT).len(), took.len());
    }

    away.store(false, Ordering::SeqCst);
    let folder = tempfile::tempdir().unwrap();
    let gateway = start(&folder, 0).await;
    assert_eq!(gateway.get("/auth/login").await.status, 303);
    away.store(true, Ordering::SeqCst);
    let asked = server.asked(DOCUMENT).len();
    let goes_on = async {
        // Until the document is old enough to be asked for anew.
        while server.asked(DOCUMENT).len() == asked {
            assert_eq!(gateway.get("/auth/login").await.status, 303);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), goes_on).await.unwrap();
    assert_eq!(gateway.get("/auth/login").await.status, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_login_there_is_none() {
    let gateway = Gateway::start("[pipeline]\n").await;
    for path in ["/auth/login", "/auth/callback?state=1&code=2", "/auth/me"] {
        let answer = gateway.get(path).await;
        assert_eq!((answer.status, answer.error().2), (404, json!("login_not_configured")), "{path}");
    }
}
