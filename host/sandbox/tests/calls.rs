//! Every function of every stage, with a guest that keeps the contract: what goes in arrives, what comes out is whole.

use crate::support::{Counted, by, ctx, inspect, load, shared, small, spec, user, window};
use std::sync::Arc;
use tidegate_sandbox::stage::{
    Action, CallContext, CallError, Candidate, Edit, Exchange, Inspection, MemoryItem, Output, Prompt, Query, Question,
    Redaction, RouteRequest, StageKind, Summary, WindowAction,
};
use tidegate_sandbox::{PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{
    Finding, Message, Part, Provenance, Role, Severity, Span, ToolCall, ToolDef, ToolHints, ToolOutcome,
};

fn responded(action: Action) -> String {
    match action {
        Action::Respond(parts) => match parts.as_slice() {
            [Part::Text(text)] => text.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_prompt_guard_allows_flags_rewrites_responds_and_refuses() {
    let plugin = load("honest");
    let verdict = inspect(&plugin, &ctx(), "hello").await.unwrap();
    assert_eq!((verdict.action, verdict.findings), (Action::Allow, vec![]));

    let flagged = inspect(&plugin, &ctx(), "flag").await.unwrap();
    assert_eq!(
        flagged.findings,
        [Finding {
            category: "x-test:flag".into(),
            severity: Severity::Low,
            score: Some(0.5),
            message_id: Some("m0".into()),
            span: Some(Span { start: 0, end: 4 }),
        }]
    );

    let rewritten = inspect(&plugin, &ctx(), "rewrite").await.unwrap();
    let span = Span { start: 0, end: 7 };
    let edit = Edit::ReplaceText { message_id: "m0".into(), part: 0, span, text: "REWRITE".into() };
    assert_eq!(rewritten.action, Action::Rewrite(vec![edit]));

    assert_eq!(responded(inspect(&plugin, &ctx(), "respond").await.unwrap().action), "from the guard");
    let refused = inspect(&plugin, &ctx(), "refuse").await.unwrap().action;
    assert!(matches!(&refused, Action::Refuse(why) if why.code == "test" && why.public_message == "no"), "{refused:?}");
}

#[tokio::test]
async fn every_kind_of_part_arrives_in_the_guest() {
    let plugin = load("honest");
    let structured = Some("{\"sum\":3}".into());
    let outcome = ToolOutcome { call_id: "c1".into(), content: "three".into(), structured, is_error: false };
    let message = Message {
        id: "m0".into(),
        role: Role::Assistant,
        name: Some("ann".into()),
        parts: vec![
            Part::Text("echo".into()),
            Part::Reasoning("because".into()),
            Part::Refusal("not that".into()),
            Part::ToolCall(ToolCall { id: "c1".into(), name: "add".into(), arguments: "{\"a\":1}".into() }),
            Part::ToolOutcome(outcome),
            Part::Opaque { kind: "image_url".into(), body: serde_json::json!({"url": "x"}) },
        ],
        provenance: Some(Provenance {
            source: "folder".into(),
            uri: Some("docs/a".into()),
            span: Some(Span { start: 1, end: 2 }),
        }),
    };
    let tool = ToolDef {
        name: "add".into(),
        description: "Adds".into(),
        input_schema: serde_json::json!({"type": "object"}),
        strict: false,
        hints: ToolHints::default(),
    };
    let params = [("temperature".to_owned(), "0.5".to_owned())];
    let prompt = Prompt { messages: &[message], tools: &[tool], params: &params };
    let seen = responded(plugin.inspect_prompt(&ctx(), prompt).await.unwrap().action);
    for part in [
        "Role::Assistant",
        "\"ann\"",
        "Part::Text(\"echo\")",
        "Part::Reasoning(\"because\")",
        "Part::Refusal(\"not that\")",
        "name: \"add\", arguments: \"{\\\"a\\\":1}\"",
        "content: \"three\", structured: Some(\"{\\\"sum\\\":3}\")",
        "kind: \"image_url\", body: \"{\\\"url\\\":\\\"x\\\"}\"",
        "(\"source\", \"\\\"folder\\\"\"), (\"uri\", \"\\\"docs/a\\\"\"), (\"span\", \"[1,2]\")",
        "description: \"Adds\", input-schema: \"{\\\"type\\\":\\\"object\\\"}\"",
        "(\"temperature\", \"0.5\")",
    ] {
        assert!(seen.contains(part), "{part} is not in {seen}");
    }
}

#[tokio::test]
async fn the_guest_sees_a_pseudonym_that_is_stable_per_plugin_and_caller() {
    let plugin = load("honest");
    let context = async |plugin: &tidegate_sandbox::Plugin, ctx: &CallContext| {
        responded(inspect(plugin, ctx, "context").await.unwrap().action)
    };
    let (a, b) = (by("acme"), by("globex"));
    let mut second = by("acme");
    Arc::make_mut(&mut second.caller).key_name = "second".into();
    let seen = context(&plugin, &a).await;
    let [id, caller, deadline, streaming] = seen.split(' ').collect::<Vec<_>>()[..] else { panic!("{seen}") };
    assert_eq!((id, streaming), ("r1", "true"));
    assert!((1..=60_000).contains(&deadline.parse::<u32>().unwrap()), "{deadline}");
    assert!(caller.len() == 16 && !caller.contains("acme"));

    let caller_of = |seen: String| seen.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(caller_of(context(&plugin, &a).await), caller);
    assert_ne!(caller_of(context(&plugin, &b).await), caller, "another tenant");
    assert_ne!(caller_of(context(&plugin, &second).await), caller, "another key");
    let other = shared().load(tidegate_sandbox::PluginSpec { name: "other".into(), ..spec("honest") }).unwrap();
    assert_ne!(caller_of(context(&other, &by("acme")).await), caller, "another plugin");

    let keyed = async |key: Option<[u8; 32]>, ctx: &CallContext| {
        let sandbox = Sandbox::new(SandboxConfig { pseudonym_key: key, ..small() }).unwrap();
        caller_of(context(&sandbox.load(spec("honest")).unwrap(), ctx).await)
    };
    let same = keyed(Some([7; 32]), &a).await;
    assert_eq!(keyed(Some([7; 32]), &a).await, same, "another sandbox with that key");
    assert_ne!(keyed(Some([7; 32]), &b).await, same);
    assert_ne!(keyed(Some([8; 32]), &a).await, same);
    assert_ne!(keyed(None, &a).await, keyed(None, &a).await, "without one each sandbox has its own");
}

#[tokio::test]
async fn a_stream_guard_passes_redacts_halts_and_remembers() {
    let plugin = load("honest");
    let pass = plugin.inspect_window(&ctx(), &[], window("hello", 2)).await.unwrap();
    assert_eq!(pass, Inspection { action: WindowAction::Pass, safe_through: 5, carry: vec![1], findings: vec![] });
    let second = plugin.inspect_window(&ctx(), &pass.carry, window("hello", 5)).await.unwrap();
    assert_eq!(second.carry, [2]);

    let redacted = plugin.inspect_window(&ctx(), &[7, 8], window("aü####b", 3)).await.unwrap();
    let span = Span { start: 3, end: 7 };
    assert_eq!(redacted.action, WindowAction::Redact(vec![Redaction { span, text: "[]".into() }]));
    assert_eq!((redacted.safe_through, redacted.carry), (8, vec![8, 8]));
    assert_eq!(redacted.findings[0].span, Some(span));

    let halted = plugin.inspect_window(&ctx(), &[], window("now HALT", 0)).await.unwrap().action;
    assert!(matches!(&halted, WindowAction::Halt { farewell: Some(bye), .. } if bye == "bye"), "{halted:?}");
}

#[tokio::test]
async fn a_router_orders_what_was_offered() {
    let plugin = load("honest");
    let candidate = |id: &str, context_tokens| Candidate {
        id: id.into(),
        model: "m".into(),
        healthy: true,
        context_tokens,
        attrs: vec![("load".into(), "0.5".into())],
    };
    let candidates = [candidate("a", 100), candidate("b", 5), candidate("c", 100)];
    let finding =
        Finding { category: "pii:email".into(), severity: Severity::High, score: None, message_id: None, span: None };
    let attrs = [("tier".to_owned(), "\"gold\"".to_owned())];
    let messages = user("hi");
    let request = RouteRequest { messages: &messages, prompt_tokens: 10, findings: &[finding], attrs: &attrs };
    let decision = plugin.route(&ctx(), request, &candidates).await.unwrap();
    assert_eq!(decision.order, ["c", "a"]);
    assert_eq!(decision.reason, "1 findings, 1 attrs");
}

#[tokio::test]
async fn a_tool_is_listed_and_called() {
    let plugin = load("honest");
    let tools = plugin.list_tools(&ctx()).await.unwrap();
    assert_eq!(tools.len(), 1);
    assert_eq!((tools[0].name.as_str(), &tools[0].input_schema), ("echo", &serde_json::json!({"type": "object"})));
    assert!(tools[0].hints.read_only && !tools[0].hints.destructive);

    let mut call = ToolCall { id: "c1".into(), name: "echo".into(), arguments: "{\"a\":[1]}".into() };
    let outcome = plugin.call_tool(&ctx(), &call).await.unwrap();
    let structured = Some("{\"a\":[1]}".into());
    let expected = ToolOutcome { call_id: "c1".into(), content: "{\"a\":[1]}".into(), structured, is_error: false };
    assert_eq!(outcome, expected);

    call.name = "rm".into();
    let unknown = plugin.call_tool(&ctx(), &call).await.unwrap_err();
    assert_eq!(unknown.to_string(), "plugin `honest` answered invalid-input: no tool `rm`");
}

#[tokio::test]
async fn a_retriever_finds_passages() {
    let plugin = load("honest");
    let chunks = plugin.retrieve(&ctx(), &Query { text: "tides".into(), top_k: 2 }).await.unwrap();
    assert_eq!(chunks.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["c0", "c1"]);
    assert_eq!((chunks[0].text.as_str(), chunks[1].score), ("about tides", Some(0.5)));
    assert_eq!((chunks[0].uri.as_deref(), chunks[0].origin), (Some("docs/a.txt"), Some(Span { start: 3, end: 9 })));
}

#[tokio::test]
async fn an_error_of_the_plugin_is_passed_on_and_keeps_its_instance() {
    let plugin = load("honest");
    let tenant = by("errors");
    assert_eq!(responded(inspect(&plugin, &tenant, "calls").await.unwrap().action), "1");
    let failed = inspect(&plugin, &tenant, "fail").await.unwrap_err();
    let expected =
        CallError::Plugin { plugin: "honest".into(), case: "unavailable", message: "as the test asked".into() };
    assert_eq!(failed, expected);
    assert_eq!(responded(inspect(&plugin, &tenant, "calls").await.unwrap().action), "3");
}

#[tokio::test]
async fn a_stage_that_the_config_leaves_out_cannot_be_called() {
    let plugin = shared()
        .load(tidegate_sandbox::PluginSpec { stages: Some(vec![StageKind::Router]), ..spec("honest") })
        .unwrap();
    assert_eq!(plugin.exported_stages().iter().copied().collect::<Vec<_>>(), [StageKind::Router]);
    let refused = inspect(&plugin, &ctx(), "hello").await.unwrap_err();
    assert!(matches!(refused, CallError::Plugin { case: "unsupported", .. }), "{refused}");
}

#[tokio::test]
async fn an_output_guard_sees_the_whole_answer_and_decides() {
    let choices = [Message::text("choice-0", Role::Assistant, "hello")];
    let usage =
        Some(tidegate_types::Usage { input_tokens: 3, cached_tokens: 1, output_tokens: 2, ..Default::default() });
    let attrs = [("model".to_owned(), "\"m\"".to_owned())];
    let output = Output { choices: &choices, finish_reasons: &["stop"], usage, attrs: &attrs };
    let asked = async |config: &str| {
        let config = serde_json::json!({"output": config});
        let plugin = shared().load(tidegate_sandbox::PluginSpec { config, ..spec("honest") }).unwrap();
        plugin.inspect_output(&ctx(), output).await.unwrap().action
    };
    assert_eq!(asked("allow").await, Action::Allow);
    assert!(matches!(asked("refuse").await, Action::Refuse(refusal) if refusal.public_message == "no"));
    let seen = responded(asked("respond").await);
    for part in ["hello", "[\"stop\"]", "input-cached: 1", "(\"model\", \"\\\"m\\\"\")"] {
        assert!(seen.contains(part), "{part} is not in {seen}");
    }
    match asked("shout").await {
        Action::Rewrite(edits) => assert!(
            matches!(&edits[..], [Edit::ReplaceText { message_id, text, .. }] if message_id == "choice-0" && text == "HELLO")
        ),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_memory_recalls_remembers_and_forgets() {
    let plugin = load("honest");
    let items = plugin.recall(&ctx(), Question { text: "tea", limit: 1 }).await.unwrap();
    let item = MemoryItem { id: "i0".into(), text: "known of tea".into(), score: Some(0.5) };
    assert_eq!(items, [item]);
    let messages = [Message::text("m0", Role::User, "a"), Message::text("m1", Role::Assistant, "b")];
    let kept = plugin.remember(&ctx(), Exchange { messages: &messages, attrs: &[] }).await.unwrap();
    assert_eq!(kept.iter().map(|item| item.text.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(plugin.forget(&ctx(), &["i0"]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_memory_in_kv_keeps_callers_and_tenants_apart() {
    let grants = tidegate_sandbox::stage::Grants { kv_bytes: Some(1 << 20), ..Default::default() };
    let plugin = shared().load(tidegate_sandbox::PluginSpec { grants, ..spec("remembers") }).unwrap();
    let mut other = by("acme");
    Arc::make_mut(&mut other.caller).key_name = "other".into();
    let said = [Message::text("m0", Role::User, "the harbour opens at nine")];
    plugin.remember(&by("acme"), Exchange { messages: &said, attrs: &[] }).await.unwrap();
    let question = Question { text: "when does the harbour open", limit: 3 };
    assert_eq!(plugin.recall(&by("acme"), question).await.unwrap()[0].text, "the harbour opens at nine");
    assert!(plugin.recall(&other, question).await.unwrap().is_empty());
    assert!(plugin.recall(&by("globex"), question).await.unwrap().is_empty());
    assert_eq!(plugin.forget(&by("acme"), &["line-0"]).await.unwrap(), 1);
    assert!(plugin.recall(&by("acme"), question).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_observer_is_told_everything_about_the_end() {
    let plugin = load("honest");
    let findings = [Finding {
        category: "x-test:flag".into(),
        severity: Severity::High,
        score: None,
        message_id: None,
        span: None,
    }];
    let attrs = [("stream".to_owned(), "true".to_owned())];
    let summary = Summary {
        outcome: "answered",
        detail: "stop",
        model: "m",
        usage: tidegate_types::Usage { input_tokens: 3, cached_tokens: 1, output_tokens: 2, ..Default::default() },
        first: Some(std::time::Duration::from_millis(5)),
        total: std::time::Duration::from_millis(9),
        findings: &findings,
        attrs: &attrs,
    };
    let caller = ctx();
    let (told, log) = crate::support::logged(plugin.on_complete(&caller, summary)).await;
    told.unwrap();
    for part in ["answered", "stop", "first-ms: Some(5)", "total-ms: 9", "x-test:flag", "output: 2", "stream"] {
        assert!(log[0].contains(part), "{part} is not in {log:?}");
    }
}

/// As in its lines of the log; all on this thread, where the recorder is.
#[test]
fn what_a_plugin_counts_is_of_the_tenant_that_calls_also_where_tenants_share_its_instances() {
    let counted = Counted::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let spec = PluginSpec { shared: true, name: "counts".into(), ..spec("honest") };
    let plugin = shared().load(spec).unwrap();
    let summary = Summary {
        outcome: "answered",
        detail: "stop",
        model: "m",
        usage: tidegate_types::Usage::default(),
        first: None,
        total: std::time::Duration::from_millis(9),
        findings: &[],
        attrs: &[],
    };
    metrics::with_local_recorder(&counted, || {
        runtime.block_on(async {
            for tenant in ["acme", "globex", "acme"] {
                plugin.on_complete(&by(tenant), summary).await.unwrap();
            }
        });
    });
    let told = |tenant: &str| counted.count(&format!("tidegate_plugin_events_total counts {tenant} told"));
    assert_eq!((told("acme"), told("globex"), counted.counts.lock().len()), (2, 1, 2), "{:?}", counted.counts);
}
