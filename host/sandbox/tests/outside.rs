//! Capabilities that lead out, seen from inside the guest: what is granted is reached through the host's suppliers, and
//! nothing else is.

use crate::support::{by, guest, inspect, logged, small, spec};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tidegate_sandbox::capability::{
    BoxFuture, CapabilityError, HttpClient, HttpOrigins, HttpRequest, HttpResponse, Labels, ModelAsk, ModelReply,
    ModelService,
};
use tidegate_sandbox::stage::{
    CallContext, CallError, Grants, HttpGrant, Limits, ModelGrant, SecretGrant, StageKind, VectorAccess,
};
use tidegate_sandbox::{LoadCause, Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{Message, Retention, TenantId, ToolCall, Usage};

/// Answers with what it was asked, and says whom it was asked for. It counts what it answers at once: now, and the most.
#[derive(Clone, Default)]
pub struct Outside(pub Arc<Mutex<Vec<String>>>, Arc<Mutex<(usize, usize)>>);

impl HttpClient for Outside {
    fn open(&self, grant: &HttpGrant) -> Result<Arc<dyn HttpOrigins>, String> {
        match grant.origins.iter().any(|origin| origin.contains("no such")) {
            true => Err("the origin is no URL".into()),
            false => Ok(Arc::new(self.clone())),
        }
    }
}

impl HttpOrigins for Outside {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, CapabilityError>> {
        Box::pin(async move {
            let shown = format!("{} {} {:?}", request.method, request.url, request.headers);
            self.0.lock().push(shown.clone());
            if request.url.ends_with("/private") {
                let (told, logged) = ("not granted".into(), "a.example leads to 10.1.2.3".into());
                return Err(CapabilityError::DeniedUntold { told, logged });
            }
            if request.url.ends_with("/slow") {
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            if request.url.ends_with("/held") {
                self.begin();
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.1.lock().0 -= 1;
            }
            Ok(HttpResponse { status: 200, headers: Vec::new(), body: shown.into_bytes(), truncated: false })
        })
    }
}

impl Outside {
    fn begin(&self) {
        let (now, most) = &mut *self.1.lock();
        *now += 1;
        *most = *now.max(most);
    }
}

impl ModelService for Outside {
    fn check(&self, model: &str) -> Result<(), String> {
        if model == "tiny" { Ok(()) } else { Err(format!("there is no model `{model}`")) }
    }
    fn embed(&self, _: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, CapabilityError>> {
        Box::pin(async move { Ok(texts.iter().map(|text| vec![text.len() as f32, 1.0]).collect()) })
    }
    fn complete(
        &self,
        ask: ModelAsk,
        messages: Vec<Message>,
        params: Map<String, Value>,
    ) -> BoxFuture<'_, Result<ModelReply, CapabilityError>> {
        Box::pin(async move {
            let what = format!("{} {params:?} by {} gateways", messages[0].joined_text(), ask.hops);
            let text = format!("{} {} {what}", ask.model, ask.caller.tenant);
            let usage = Usage { input_tokens: 3, cached_tokens: 0, output_tokens: 2, ..Default::default() };
            Ok(ModelReply { text, finish_reason: "stop".into(), usage })
        })
    }
    fn classify(&self, _: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Labels>, CapabilityError>> {
        Box::pin(async move { Ok(texts.into_iter().map(|text| vec![(text, 0.75)]).collect()) })
    }
}

pub fn sandbox(outside: &Outside) -> Sandbox {
    let (http, models) = (Arc::new(outside.clone()), Arc::new(outside.clone()));
    Sandbox::new(SandboxConfig { http, models, ..small() }).unwrap()
}

pub fn grants() -> Grants {
    Grants {
        http: Some(HttpGrant::new(["https://a.example".to_owned()])),
        content: true,
        secrets: [("key".to_owned(), SecretGrant::new("hunter22"))].into(),
        models: [("small".to_owned(), ModelGrant { model: "tiny".into() })].into(),
        vectors: [("notes".to_owned(), VectorAccess::Write), ("books".to_owned(), VectorAccess::Read)].into(),
        random: true,
        ..Grants::default()
    }
}

fn reaches(sandbox: &Sandbox, grants: Grants) -> Arc<Plugin> {
    sandbox.load(PluginSpec { grants, ..spec("reaches") }).unwrap()
}

async fn run(plugin: &Plugin, tenant: &str, function: &str, arguments: &str) -> Result<String, CallError> {
    let call = ToolCall { id: "c".into(), name: function.into(), arguments: arguments.into() };
    plugin.call_tool(&by(tenant), &call).await.map(|outcome| outcome.content)
}

#[track_caller]
fn is(result: Result<String, CallError>, case: &str) {
    match result {
        Err(CallError::Plugin { case: found, .. }) => assert_eq!(found, case),
        other => panic!("{case}: {other:?}"),
    }
}

#[tokio::test]
async fn requests_reach_the_hosts_client_with_secrets_that_the_guest_never_sees() {
    let outside = Outside::default();
    let plugin = reaches(&sandbox(&outside), grants());
    let answer = run(&plugin, "acme", "get", "https://a.example/x").await.unwrap();
    assert_eq!(answer, "200 GET https://a.example/x []");
    let echoed = run(&plugin, "acme", "secret", "https://a.example/x authorization key").await.unwrap();
    assert!(echoed.contains("Bearer [secret]") && !echoed.contains("hunter22"), "{echoed}");
    assert!(outside.0.lock()[1].contains("Bearer hunter22"), "the client has it");
    assert_eq!(run(&plugin, "acme", "secrets", "").await.unwrap(), "key");
    is(run(&plugin, "acme", "secret", "https://a.example/x authorization other").await, "denied");
    is(run(&plugin, "acme", "secret", "https://a.example/x x-request-id key").await, "denied");
    is(run(&plugin, "acme", "header", "https://a.example/x Host b.example").await, "invalid-input");
    is(run(&plugin, "acme", "get", &format!("https://a.example/{}", "x".repeat(9000))).await, "invalid-input");
    assert_eq!(outside.0.lock().len(), 2, "none of those was sent");
    let both = run(&plugin, "acme", "get-all", "https://a.example/1 https://a.example/2").await.unwrap();
    assert_eq!(both, "200 GET https://a.example/1 []|200 GET https://a.example/2 []");
}

/// In an answer that comes encoded, or in parts, nobody would see a secret; also where the request itself has none.
#[tokio::test]
async fn a_plugin_that_has_secrets_asks_for_no_encoded_answer_and_no_part_of_one() {
    let outside = Outside::default();
    let plugin = reaches(&sandbox(&outside), grants());
    for header in ["range bytes=0-1", "Accept-Encoding gzip"] {
        is(run(&plugin, "acme", "header", &format!("https://a.example/x {header}")).await, "invalid-input");
    }
    assert_eq!(outside.0.lock().len(), 0, "nothing was sent");
    run(&plugin, "acme", "header", "https://a.example/x x-own 1").await.unwrap();
}

/// An address within is told to the operator alone, within what a call may log.
#[tokio::test]
async fn what_a_guest_is_not_told_of_a_denial_is_in_the_log_as_often_as_it_may_log() {
    let plugin = reaches(&sandbox(&Outside::default()), grants());
    let urls = ["https://a.example/private"; 16].join(" ");
    let (answer, log) = logged(run(&plugin, "acme", "get-all", &urls)).await;
    let answer = answer.unwrap();
    assert!(answer.contains("not granted") && !answer.contains("10.1.2.3"), "{answer}");
    let lines = |log: &[String]| log.iter().filter(|line| line.contains("a.example leads to 10.1.2.3")).count();
    assert_eq!(lines(&log), 16);
    let limits = Limits { log_bytes: 256, ..Limits::default() };
    let plugin = sandbox(&Outside::default()).load(PluginSpec { grants: grants(), limits, ..spec("reaches") }).unwrap();
    let (_, log) = logged(run(&plugin, "acme", "get-all", &urls)).await;
    assert!(
        lines(&log) < 16 && log.iter().any(|line| line.contains("are over this call's log_bytes = 256")),
        "{log:?}"
    );
}

/// The plugin's manifest is one of the three that a grant is of, also where there is no import to see.
#[tokio::test]
async fn a_plugin_that_does_not_say_that_it_sends_secrets_sends_none() {
    let outside = Outside::default();
    let sandbox = sandbox(&outside);
    let plugin = sandbox.load(PluginSpec { grants: grants(), ..spec("conceals") }).unwrap();
    match inspect(&plugin, &by("acme"), "https://a.example/x").await {
        Err(CallError::Plugin { case: "denied", message, .. }) => assert!(message.contains("`secrets`"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert!(outside.0.lock().is_empty(), "nothing was sent");
    let needs = |name: &str| sandbox.inspect(&guest(name)).unwrap().needs().into_keys().collect::<Vec<_>>();
    assert_eq!(needs("conceals"), ["http"]);
    assert_eq!(needs("reaches"), ["http", "models", "random", "secrets", "vectors"]);
}

#[tokio::test]
async fn a_request_takes_no_longer_than_the_call_may() {
    let plugin = reaches(&sandbox(&Outside::default()), grants());
    let mut hurried = by("acme");
    hurried.deadline = Duration::from_millis(50);
    let call = ToolCall { id: "c".into(), name: "get".into(), arguments: "https://a.example/slow".into() };
    let error = plugin.call_tool(&hurried, &call).await.unwrap_err();
    let late = matches!(&error, CallError::Deadline { clock: "wall", .. } | CallError::Plugin { case: "timeout", .. });
    assert!(late, "{error}");
    run(&plugin, "acme", "get", "https://a.example/x").await.unwrap();
}

#[tokio::test]
async fn requests_that_run_at_once_are_bounded_and_each_has_its_answer() {
    let outside = Outside::default();
    let http = HttpGrant { concurrency: 2, ..HttpGrant::new(["https://a.example".to_owned()]) };
    let plugin = reaches(&sandbox(&outside), Grants { http: Some(http), ..grants() });
    let urls = |count: usize| vec!["https://a.example/held"; count].join(" ");
    let answers = run(&plugin, "acme", "get-all", &urls(16)).await.unwrap();
    assert_eq!((answers.matches("200 GET").count(), *outside.1.lock()), (16, (0, 2)));
    let refused = run(&plugin, "acme", "get-all", &urls(17)).await.unwrap();
    assert_eq!(refused.matches("17 requests at once; at most 16").count(), 17, "{refused}");
    assert_eq!(outside.0.lock().len(), 16, "none of those was sent");
}

#[tokio::test]
async fn models_are_asked_by_alias_as_the_tenants_work() {
    let plugin = reaches(&sandbox(&Outside::default()), grants());
    assert_eq!(run(&plugin, "acme", "embed", "small abc d").await.unwrap(), "[[3.0, 1.0], [1.0, 1.0]]");
    assert!(run(&plugin, "acme", "classify", "small spam").await.unwrap().contains("\"spam\", score: 0.75"));
    let reply = run(&plugin, "acme", "complete", "small hello there").await.unwrap();
    assert!(reply.contains("tiny acme hello there") && reply.contains("max_tokens"), "{reply}");
    assert!(reply.contains("output: 2"), "{reply}");
    let call = ToolCall { id: "c".into(), name: "complete".into(), arguments: "small hello there".into() };
    let behind = plugin.call_tool(&CallContext { hops: 3, ..by("acme") }, &call).await.unwrap().content;
    assert!(reply.contains("by 0 gateways") && behind.contains("by 3 gateways"), "{behind}");
    is(run(&plugin, "acme", "embed", "tiny abc").await, "denied");
    for function in ["embed", "classify"] {
        is(run(&plugin, "acme", function, &format!("small{}", " a".repeat(257))).await, "invalid-input");
    }
}

#[tokio::test]
async fn vectors_are_the_tenants_own_and_written_where_that_is_granted() {
    let plugin = reaches(&sandbox(&Outside::default()), grants());
    assert_eq!(run(&plugin, "acme", "put", "notes a 1 0").await.unwrap(), "put");
    assert_eq!(run(&plugin, "acme", "put", "notes b 0 1").await.unwrap(), "put");
    assert_eq!(run(&plugin, "acme", "search", "notes 1 0.2").await.unwrap(), "a:0.98,b:0.20");
    assert_eq!(run(&plugin, "globex", "search", "notes 1 0.2").await.unwrap(), "");
    assert_eq!(run(&plugin, "acme", "search", "books 1 0.2").await.unwrap(), "");
    is(run(&plugin, "acme", "put", "books a 1 0").await, "denied");
    is(run(&plugin, "acme", "forget", "books a").await, "denied");
    is(run(&plugin, "acme", "search", "others 1 0").await, "denied");
    is(run(&plugin, "acme", "put", "notes a 0 0").await, "invalid-input");
    is(run(&plugin, "acme", "put", "notes a 1 0 0").await, "invalid-input");
    let unkept = CallContext { retention: Retention::Nothing, ..by("acme") };
    let call = ToolCall { id: "c".into(), name: "put".into(), arguments: "notes c 1 1".into() };
    is(plugin.call_tool(&unkept, &call).await.map(|outcome| outcome.content), "denied");
    assert_eq!(run(&plugin, "acme", "search", "notes 1 0.2").await.unwrap(), "a:0.98,b:0.20");
    assert_eq!(run(&plugin, "acme", "forget", "notes a nobody").await.unwrap(), "1");
}

#[tokio::test]
async fn random_bytes_differ_and_are_bounded() {
    let plugin = reaches(&sandbox(&Outside::default()), grants());
    let draws = [run(&plugin, "a", "random", "16").await.unwrap(), run(&plugin, "a", "random", "16").await.unwrap()];
    assert_ne!(draws[0], draws[1]);
    for count in ["0", "4097"] {
        is(run(&plugin, "a", "random", count).await, "invalid-input");
    }
}

#[tokio::test]
async fn what_is_withheld_from_a_tenant_is_denied_to_it_alone() {
    let mut grants = grants();
    let names = ["http", "models", "vectors", "random", "secrets"].map(str::to_owned).into();
    grants.withheld = [(TenantId::new("globex"), names)].into();
    let plugin = reaches(&sandbox(&Outside::default()), grants);
    run(&plugin, "acme", "get", "https://a.example/x").await.unwrap();
    for (function, arguments) in
        [("get", "https://a.example/x"), ("embed", "small a"), ("search", "notes 1"), ("random", "8")]
    {
        is(run(&plugin, "globex", function, arguments).await, "denied");
    }
    assert_eq!(run(&plugin, "globex", "secrets", "").await.unwrap(), "");
}

/// A header that is filled in is a use of `secrets` as well as of `http`.
#[tokio::test]
async fn who_is_denied_secrets_alone_sends_requests_and_none_with_a_secret() {
    let (outside, mut grants) = (Outside::default(), grants());
    grants.withheld = [(TenantId::new("globex"), ["secrets".to_owned()].into())].into();
    let plugin = reaches(&sandbox(&outside), grants);
    is(run(&plugin, "globex", "secret", "https://a.example/x authorization key").await, "denied");
    assert_eq!(outside.0.lock().len(), 0, "nothing was sent");
    run(&plugin, "globex", "get", "https://a.example/x").await.unwrap();
    run(&plugin, "acme", "secret", "https://a.example/x authorization key").await.unwrap();
    assert_eq!(outside.0.lock().len(), 2);
}

#[test]
fn each_missing_grant_is_named_at_load_with_the_line_that_gives_it() {
    let sandbox = sandbox(&Outside::default());
    type Change = fn(&mut Grants);
    let cases: [(Change, &str); 7] = [
        (|grants| grants.http = None, "http = { origins = [\"https://host\"] }"),
        (|grants| grants.content = false, "`content = true`"),
        (|grants| grants.secrets.clear(), "secrets = { name = \"ENVIRONMENT_VARIABLE\" }"),
        (|grants| grants.models.clear(), "models = { alias = \"model\" }"),
        (|grants| grants.vectors.clear(), "vectors = { collection = \"read\" }"),
        (|grants| grants.random = false, "random = true"),
        (|grants| grants.http = Some(HttpGrant::new(["no such".to_owned()])), "the origin is no URL"),
    ];
    for (change, part) in cases {
        let mut grants = grants();
        change(&mut grants);
        let refused = sandbox.load(PluginSpec { grants, ..spec("reaches") }).unwrap_err().to_string();
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    let mut unknown = grants();
    unknown.models.insert("big".into(), ModelGrant { model: "huge".into() });
    let refused = sandbox.load(PluginSpec { grants: unknown, ..spec("reaches") }).unwrap_err();
    assert!(matches!(refused.cause, LoadCause::Grant { capability: "models", .. }), "{refused}");
}

/// What leaves is what a stage sees: a plugin that only provides tools sees arguments, which callers write too.
#[test]
fn content_and_http_together_are_a_grant_of_their_own() {
    let sandbox = sandbox(&Outside::default());
    for stages in [StageKind::PromptGuard, StageKind::ToolProvider] {
        let grants = Grants { content: false, ..grants() };
        let spec = PluginSpec { grants, stages: Some(vec![stages]), ..PluginSpec::new("reaches", guest("reaches")) };
        let refused = sandbox.load(spec).unwrap_err();
        assert!(matches!(refused.cause, LoadCause::ContentLeaves { .. }), "{refused}");
    }
}
