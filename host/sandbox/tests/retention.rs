//! A request of which nothing may be kept leaves nothing: in `kv`, in `vectors`, in an instance that serves again, in the
//! log. And what is kept is an owner's: a project's, not its tenant's.

use crate::outside::{self, Outside};
use crate::support::{WatchedKv, by, inspect, load, logged, small, spec, user};
use std::sync::Arc;
use tidegate_sandbox::stage::{Action, CallContext, CallError, Grants, ModelGrant, Prompt, VectorAccess};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{Part, ProjectId, Retention, ToolCall};

const CANARY: &str = "canary7d20aa";

fn keeper(kv: &Arc<WatchedKv>, grants: Grants) -> Arc<Plugin> {
    let sandbox = Sandbox::new(SandboxConfig { kv: kv.clone(), ..small() }).unwrap();
    let documents = [("docs".to_owned(), std::env::temp_dir())].into();
    let grants = Grants { kv_bytes: Some(1 << 20), documents, ..grants };
    sandbox.load(PluginSpec { name: "keeper".into(), grants, ..spec("keeper") }).unwrap()
}

fn unkept(tenant: &str) -> CallContext {
    CallContext { retention: Retention::Nothing, ..by(tenant) }
}

async fn run(plugin: &Plugin, ctx: &CallContext, function: &str, arguments: &str) -> Result<String, CallError> {
    let call = ToolCall { id: "c".into(), name: function.into(), arguments: arguments.into() };
    plugin.call_tool(ctx, &call).await.map(|outcome| outcome.content)
}

#[tokio::test]
async fn what_may_not_be_kept_is_refused_by_the_store_and_what_is_there_can_be_forgotten() {
    let kv = WatchedKv::open();
    let plugin = keeper(&kv, Grants::default());
    run(&plugin, &by("t"), "set", "known before").await.unwrap();
    for (function, arguments) in
        [("set", format!("key {CANARY}")), ("set", format!("{CANARY} 1")), ("add", format!("{CANARY} 1"))]
    {
        let denied = run(&plugin, &unkept("t"), function, &arguments).await.unwrap_err();
        assert!(matches!(&denied, CallError::Plugin { case: "denied", .. }), "{denied}");
    }
    assert!(!kv.has(CANARY), "{:?}", kv.written.lock());
    assert_eq!(run(&plugin, &unkept("t"), "get", "known").await.unwrap(), "before", "what others kept is read");
    assert_eq!(run(&plugin, &unkept("t"), "delete", "known").await.unwrap(), "deleted");
    run(&plugin, &by("t"), "set", &format!("key {CANARY}")).await.unwrap();
    assert!(kv.has(CANARY), "the scan finds what is there");
}

#[tokio::test]
async fn an_instance_that_saw_it_serves_nobody_again() {
    let plugin = load("honest");
    let nth = async |ctx: CallContext| match inspect(&plugin, &ctx, "calls").await.unwrap().action {
        Action::Respond(parts) => match &parts[..] {
            [Part::Text(count)] => count.parse::<u32>().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let mut seen = Vec::new();
    for retention in [Retention::Kept, Retention::Kept, Retention::Nothing, Retention::Kept, Retention::Nothing] {
        seen.push(nth(CallContext { retention, ..by("unkept-instances") }).await);
    }
    assert_eq!(seen, [1, 2, 3, 1, 2]);
    // An error is no way to stay either.
    let failed = inspect(&plugin, &unkept("unkept-instances"), "fail").await.unwrap_err();
    assert!(!failed.to_string().contains("as the test asked"), "{failed}");
    assert!(inspect(&plugin, &by("unkept-instances"), "fail").await.unwrap_err().to_string().contains("as the test"));
    assert_eq!(nth(by("unkept-instances")).await, 2, "one failed call, which was not unkept, came before");
}

#[tokio::test]
async fn the_log_has_the_line_and_not_what_it_says() {
    let kv = WatchedKv::open();
    let plugin = keeper(&kv, Grants::default());
    for function in ["log", "count"] {
        let (done, log) = logged(run(&plugin, &unkept("t"), function, CANARY)).await;
        done.unwrap();
        assert!(!log.is_empty(), "{function}");
        for line in log {
            assert!(line.contains("WARN") && line.contains("bytes are left out") && !line.contains(CANARY), "{line}");
        }
        let (done, log) = logged(run(&plugin, &by("t"), function, CANARY)).await;
        done.unwrap();
        assert!(log[0].contains(CANARY), "{log:?}");
    }
}

/// What a verdict notes is for the plugin's own memory: a vector says much of the question that it was made of.
#[tokio::test]
async fn what_a_verdict_notes_is_in_no_log() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/dist/semantic-cache.wasm");
    let grants = Grants {
        kv_bytes: Some(1 << 20),
        models: [("embedder".to_owned(), ModelGrant { model: "tiny".into() })].into(),
        vectors: [("answers".to_owned(), VectorAccess::Write)].into(),
        ..Grants::default()
    };
    let limits = spec("honest").limits;
    let cache = PluginSpec { grants, limits, ..PluginSpec::new("cache", std::fs::read(path).unwrap()) };
    let cache = outside::sandbox(&Outside::default()).load(cache).unwrap();
    let params = [("model", "\"m\""), ("form", "\"chat\""), ("temperature", "0")];
    let (messages, params) = (user(CANARY), params.map(|(name, json)| (name.to_owned(), json.to_owned())));
    for ctx in [by("t"), unkept("t")] {
        let prompt = Prompt { messages: &messages, tools: &[], params: &params };
        let (verdict, log) = logged(cache.inspect_prompt(&ctx, prompt)).await;
        assert!(!verdict.unwrap().notes.is_empty());
        assert!(log.is_empty(), "{log:?}");
    }
}

#[tokio::test]
async fn a_project_keeps_apart_from_its_tenant_and_has_no_more_than_it() {
    let kv = WatchedKv::open();
    let in_project = |id: &str| {
        let mut ctx = by("acme");
        Arc::make_mut(&mut ctx.caller).project = ProjectId::new(id);
        ctx
    };
    let plugin = keeper(&kv, Grants::default());
    let (web, shop) = (in_project("proj_web"), in_project("proj_shop"));
    run(&plugin, &web, "set", "key web").await.unwrap();
    for other in [&by("acme"), &shop, &by("globex")] {
        assert_eq!(run(&plugin, other, "get", "key").await.unwrap(), "none");
    }
    assert_eq!(run(&plugin, &web, "get", "key").await.unwrap(), "web");
    // What is withheld from the tenant is withheld from its projects.
    let withheld = [(web.caller.tenant.clone(), ["kv".to_owned()].into())].into();
    let poorer = keeper(&kv, Grants { withheld, ..Grants::default() });
    for ctx in [&by("acme"), &web] {
        assert!(matches!(run(&poorer, ctx, "get", "key").await, Err(CallError::Plugin { case: "denied", .. })));
    }
    assert_eq!(run(&poorer, &by("globex"), "get", "key").await.unwrap(), "none");
}
