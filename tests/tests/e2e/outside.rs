//! Plugins that reach out of the sandbox, over real sockets: where they are allowed to, and not where they are not.

use crate::tool_turns::{calls, is_told, says, whole};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate::config::Config;
use tidegate::outside::http::PluginHttp;
use tidegate::outside::models::KnownModels;
use tidegate_sandbox::stage::{
    CallContext, CallError, Grants, HttpGrant, Limits, ModelGrant, Prompt, SecretGrant, VectorAccess,
};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_tests::stand_in::{Said, StandIn, completion};
use tidegate_tests::{Gateway, ask};
use tidegate_types::{Caller, Message, RequestId, Retention, Role, ToolCall};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const CHAT: &str = "/v1/chat/completions";

/// A service that answers every request with `status`.
struct Webhook {
    address: SocketAddr,
    reached: Arc<AtomicUsize>,
}

async fn webhook(status: &'static str) -> Webhook {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                while stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                    count.fetch_add(1, Ordering::SeqCst);
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    Webhook { address, reached }
}

fn guest() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/reaches.wasm")
}

/// The guest as a prompt guard that asks `url`, with what it imports granted.
pub(crate) fn guarded_by(url: &str, grants: &str, more: &str) -> String {
    format!(
        "[[pipeline.stage]]\nplugin = \"reaches\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\n\
         config = {{ url = \"{url}\" }}\n[pipeline.stage.limits]\nwall_ms = 20000\n\
         [pipeline.stage.grants]\nrandom = true\nsecrets = {{ key = \"PATH\" }}\nvectors = {{ notes = \"read\" }}\n\
         models = {{ small = \"tidegate-starter\" }}\n{grants}\n{more}",
        guest().display()
    )
}

/// The guest in a sandbox of its own, which asks `url` as a prompt guard.
fn load(grants: Grants, url: &str) -> Arc<Plugin> {
    let cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache/plugins"));
    let (http, models) = (Arc::new(PluginHttp::default()), Arc::new(KnownModels(["any".to_owned()].into())));
    let sandbox = Sandbox::new(SandboxConfig { cache_dir, http, models, ..SandboxConfig::default() }).unwrap();
    let limits = Limits { wall: Duration::from_secs(60), cpu: Duration::from_secs(10), ..Limits::default() };
    let config = serde_json::json!({"url": url});
    let component = std::fs::read(guest()).unwrap();
    sandbox.load(PluginSpec { grants, limits, config, ..PluginSpec::new("reaches", component) }).unwrap()
}

/// What the guest imports beside `http`.
fn grants(http: HttpGrant) -> Grants {
    Grants {
        http: Some(http),
        content: true,
        secrets: [("key".to_owned(), SecretGrant::new("x"))].into(),
        models: [("small".to_owned(), ModelGrant { model: "any".into() })].into(),
        vectors: [("notes".to_owned(), VectorAccess::Read)].into(),
        random: true,
        ..Grants::default()
    }
}

fn call_context() -> CallContext {
    let deadline = Duration::from_secs(60);
    let (request_id, caller, retention) = (RequestId::new("r"), Arc::new(Caller::local()), Retention::Kept);
    CallContext { request_id, caller, hops: 0, retention, deadline, began: None, streaming: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_asks_a_service_and_the_request_goes_as_that_says() {
    for (answer, status) in [("200 OK", 200), ("403 Forbidden", 400), ("500 Oops", 400)] {
        let service = webhook(answer).await;
        let (url, address) = (format!("http://{}/check", service.address), service.address);
        let http = format!("http = {{ origins = [\"http://{address}\"], networks = [\"127.0.0.1/32\"] }}");
        let gateway = Gateway::start(&guarded_by(&url, &format!("{http}\ncontent = true"), "")).await;
        assert_eq!(gateway.chat(ask("Hello!")).await.status, status, "{answer}");
        assert_eq!(service.reached.load(Ordering::SeqCst), 1);
        let facts = gateway.running.facts.join("\n");
        assert!(facts.contains(&format!("MAY SEND WHAT IT SEES TO http://{address}")), "{facts}");
    }
}

/// A service that takes requests and never answers: the stage's own wall time ends the call, long before the request's.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_whose_service_never_answers_fails_at_its_stages_wall_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    let http =
        format!("http = {{ origins = [\"http://{address}\"], networks = [\"127.0.0.1/32\"], timeout_ms = 600000 }}");
    for (on_error, status) in [("closed", 503), ("open", 200), ("skip", 200)] {
        let name = format!("waits-{on_error}");
        let config = guarded_by(&format!("http://{address}/"), &format!("{http}\ncontent = true"), "")
            .replace("plugin = \"reaches\"", &format!("plugin = \"{name}\"\non_error = \"{on_error}\""))
            .replace("wall_ms = 20000", "wall_ms = 1000");
        let gateway = Gateway::start(&config).await;
        let began = Instant::now();
        let answer = gateway.chat(ask("Hello!")).await;
        assert_eq!(answer.status, status, "{on_error}: {:?}", answer.body);
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(60), "{on_error}: {took:?}");
        let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
        // Whether the call or the request in it is out of time first: both have what is left of the same.
        let failed = |case: &str| {
            let failure = format!("tidegate_plugin_failures_total{{plugin=\"{name}\",stage=\"prompt-guard\"");
            metrics.contains(&format!("{failure},case=\"{case}\"}} 1"))
        };
        assert!(failed("deadline") || failed("error"), "{on_error}: {metrics}");
    }
}

/// Without `content`, and for a tenant without the capability: closed each time, nobody reached. Without the network the config is
/// refused: no request could be made under it.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_may_not_reach_its_service_fails_as_its_stage_says() {
    let service = webhook("200 OK").await;
    let (url, address) = (format!("http://{}/check", service.address), service.address);
    let origin = format!("http = {{ origins = [\"http://{address}\"] }}\ncontent = true");
    let content = format!("http = {{ origins = [\"http://{address}\"], networks = [\"127.0.0.1/32\"] }}");
    let other =
        "http = { origins = [\"http://127.0.0.1:9\"], networks = [\"127.0.0.1/32\"] }\ncontent = true".to_owned();
    let tenant = "[tenants.local]\nplugin_capabilities = [\"kv\"]\n";
    let granted = format!("{content}\ncontent = true");
    let why = Config::parse(&guarded_by(&url, &origin, "")).unwrap_err();
    assert!(format!("{why:#}").contains("is at 127.0.0.1, which no plugin may reach"), "{why:#}");
    for (grants, more) in [(&content, ""), (&other, ""), (&granted, tenant)] {
        let gateway = Gateway::start(&guarded_by(&url, grants, more)).await;
        let answer = gateway.chat(ask("Hello!")).await;
        assert_eq!((answer.status, answer.error().2), (503, "plugin_failed".into()), "{grants} {more}");
    }
    assert_eq!(service.reached.load(Ordering::SeqCst), 0);
}

/// Instances that wait have a pool of their own: one tenant's 8 computing ones would let 8 through at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_service_behind_a_guard_serves_hundreds_of_calls_at_once() {
    const CALLS: usize = 300;
    let service = StandIn::holding(CALLS, |_, _| Said::raw(200, "")).await;
    let (networks, timeout) = (vec!["127.0.0.1/32".into()], Duration::from_secs(60));
    let http = HttpGrant { networks, timeout, ..HttpGrant::new([service.origin()]) };
    let plugin = load(grants(http), &format!("{}/", service.origin()));
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let plugin = Arc::clone(&plugin);
            tokio::spawn(async move {
                let messages = [Message::text("m0", Role::User, "hi")];
                let prompt = Prompt { messages: &messages, tools: &[], params: &[] };
                plugin.inspect_prompt(&call_context(), prompt).await
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((service.most_at_once(), service.asked("/").len()), (CALLS, CALLS));
}

/// Calls a function of the guest's as a model does, and gives what the model is told: client, model, guest, host and back.
/// The guest may reach `service`, and its model `small` is the one that calls it.
async fn told(function: &str, arguments: &str, service: &str) -> (String, StandIn) {
    told_by(function, arguments, &guarded_by("", service, "")).await
}

/// The same, where the guest has that config.
async fn told_by(function: &str, arguments: &str, config: &str) -> (String, StandIn) {
    let (call, words) = (function.to_owned(), serde_json::Value::from(arguments).to_string());
    let upstream = StandIn::start(move |_, body| match body["messages"][0]["content"].as_str() {
        Some("hello there") => completion("It is known."),
        _ if is_told(body) => says("Done."),
        _ => whole(&calls(&call, &words), "tool_calls", 10, 8),
    })
    .await;
    let config = upstream.model("tidegate-starter") + &config.replace("prompt-guard", "tool-provider");
    let gateway = Gateway::start(&config).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.text(), "Done.");
    let messages = upstream.asked(CHAT).pop().unwrap()["messages"].clone();
    (messages[2]["content"].as_str().unwrap().to_owned(), upstream)
}

const NOWHERE: &str = "http = { origins = [\"http://127.0.0.1:9\"], networks = [\"127.0.0.1\"] }\ncontent = true";

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_asks_a_model_and_has_its_answer() {
    let (reply, upstream) = told("complete", "small hello there", NOWHERE).await;
    assert!(reply.contains("It is known.") && reply.contains("output: 5"), "{reply}");
    let asked = upstream.asked(CHAT);
    assert_eq!((asked.len(), &asked[1]["max_tokens"]), (3, &24.into()), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_draws_random_bytes_and_others_each_time() {
    let (one, _) = told("random", "16", NOWHERE).await;
    let (other, _) = told("random", "16", NOWHERE).await;
    assert!(one.split(", ").count() == 16 && one != other, "{one} {other}");
}

/// The service sees the secret, and the guest what it answers to it: none of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_reaches_the_service_and_never_the_model() {
    let secret = std::env::var("PATH").unwrap();
    let repeated = Said::raw(200, secret.clone());
    let service = StandIn::start(move |_, _| repeated.clone()).await;
    let arguments = format!("{}/secret authorization key", service.origin());
    let (said, _) = told("secret", &arguments, &service.http_grant()).await;
    assert_eq!(said, "200 [secret]");
    assert_eq!(service.authorizations("/secret"), [format!("Bearer {secret}")]);
}

/// A plugin chooses where its requests go, and the operator which of them may have the secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_goes_to_the_origins_of_its_grant_and_to_no_other_that_the_plugin_may_reach() {
    let [mine, other] = [
        StandIn::start(|_, _| Said::raw(200, "reached")).await,
        StandIn::start(|_, _| Said::raw(200, "reached")).await,
    ];
    let http = mine.http_grant().replace(&mine.origin(), &format!("{}\", \"{}", mine.origin(), other.origin()));
    let placed = format!("key = {{ env = \"PATH\", origins = [\"{}\"] }}", mine.origin());
    let config = guarded_by("", &http, "").replace("key = \"PATH\"", &placed);
    let with_secret = |service: &StandIn| format!("{}/secret authorization key", service.origin());
    let (said, _) = told_by("secret", &with_secret(&mine), &config).await;
    let secret = std::env::var("PATH").unwrap();
    assert_eq!(
        (said.as_str(), mine.authorizations("/secret")),
        ("200 reached", vec![format!("Bearer {secret}").into()])
    );
    let (said, _) = told_by("secret", &with_secret(&other), &config).await;
    assert_eq!((said.contains("reached"), other.asked("/secret").len()), (false, 0), "{said}");
    let (said, _) = told_by("get-all", &format!("{}/open", other.origin()), &config).await;
    assert_eq!((said.as_str(), other.asked("/open").len()), ("200 reached", 1), "without a secret it may");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_told_that_a_secret_is_not_for_that_origin() {
    let [mine, other] = [webhook("200 OK").await, webhook("200 OK").await];
    let [origin, elsewhere] = [&mine, &other].map(|service| format!("http://{}", service.address));
    let networks = vec!["127.0.0.1/32".into()];
    let http = HttpGrant { networks, ..HttpGrant::new([origin.clone(), elsewhere.clone()]) };
    let secret = SecretGrant { origins: vec![origin.clone()], ..SecretGrant::new("hunter22") };
    let plugin = load(Grants { secrets: [("key".to_owned(), secret)].into(), ..grants(http) }, "");
    let send = async |to: &str| {
        let arguments = format!("{to}/x authorization key");
        let call = ToolCall { id: "c".into(), name: "secret".into(), arguments };
        plugin.call_tool(&call_context(), &call).await
    };
    assert_eq!(send(&origin).await.unwrap().content, "200 ");
    match send(&elsewhere).await {
        Err(CallError::Plugin { case: "denied", message, .. }) => {
            assert_eq!(message, "a secret of the request is not granted for that origin");
        }
        told => panic!("{told:?}"),
    }
    assert_eq!([mine, other].map(|service| service.reached.load(Ordering::SeqCst)), [1, 0]);
}

/// What a tenant may not use it has no part of, in a header neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_secrets_reaches_the_service_and_its_secret_does_not() {
    let service = StandIn::start(|_, _| Said::raw(200, "reached")).await;
    let tenant = "[tenants.local]\nplugin_capabilities = [\"http\", \"models\", \"vectors\", \"random\"]";
    let grants = format!("{}\n{tenant}", service.http_grant());
    let (said, _) = told("get-all", &format!("{}/open", service.origin()), &grants).await;
    assert_eq!(said, "200 reached");
    let arguments = format!("{}/secret authorization key", service.origin());
    let (said, _) = told("secret", &arguments, &grants).await;
    assert!(!said.contains("reached"), "{said}");
    assert_eq!((service.asked("/open").len(), service.asked("/secret").len()), (1, 0));
}

/// Nothing is answered before two wait; a third would come meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_requests_run_at_once_as_are_granted() {
    let service = StandIn::holding(2, |_, _| Said::raw(200, "held").after(Duration::from_millis(50))).await;
    let http = service.http_grant().replace("http = {", "http = { concurrency = 2,");
    let (said, _) = told("get-all", &vec![format!("{}/held", service.origin()); 6].join(" "), &http).await;
    assert_eq!((said.matches("200 held").count(), service.asked("/held").len(), service.most_at_once()), (6, 6, 2));
}

/// The whole way: guest, sandbox, egress. Some of the URLs are of granted origins that lead to loopback.
#[tokio::test(flavor = "multi_thread")]
async fn of_all_hostile_urls_a_guest_reaches_none() {
    let service = webhook("200 OK").await;
    let port = service.address.port();
    let origins =
        ["http://localhost", "http://127.0.0.1", "http://[::1]", "http://[::ffff:127.0.0.1]", "http://0.0.0.0"]
            .map(|origin| format!("{origin}:{port}"));
    let plugin = load(grants(HttpGrant::new(origins)), "");
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/hostile-urls.json")).unwrap();
    let urls: Vec<String> = serde_json::from_str(&text).unwrap();
    assert!(urls.len() >= 200, "{}", urls.len());
    for url in urls {
        // The guest's words are separated by spaces: a URL with one is another URL for it, and hostile all the same.
        let arguments = url.replace("PORT", &port.to_string());
        let call = ToolCall { id: "c".into(), name: "get".into(), arguments };
        let refused = plugin.call_tool(&call_context(), &call).await;
        assert!(refused.is_err(), "{url:?}: {refused:?}");
    }
    assert_eq!(service.reached.load(Ordering::SeqCst), 0);
}
