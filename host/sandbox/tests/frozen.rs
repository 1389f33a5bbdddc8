//! Components of every released line of the contract, as they were built then: they load and behave for ever. A new
//! line adds a folder to `tests/frozen`; no component there is ever rebuilt. What is frozen is held by digests here, so
//! that neither a component nor a line of the contract changes together with what is compared with it.

use crate::outside::{self, Outside};
use crate::support::{Counted, by, ctx, inspect, logged, shared, window};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tidegate_sandbox::stage::{
    Action, CallError, Candidate, Edit, Exchange, Grants, Inspection, MemoryItem, Output, Query, Question, Refusal,
    RouteRequest, StageKind, Summary, WindowAction,
};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, Snapshot};
use tidegate_types::{Finding, Message, Part, Role, Severity, Span, ToolCall, Usage};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/frozen/0.1.0")
}

/// The files of the components that the tests below run, with their digests (BLAKE3). None of these ever changes.
const RUN: [(&str, &str); 12] = [
    ("capabilities-rust.wasm", "3b8d79c76801b47d71e3b7f52d6144dc5b1179cac4d3db3e0419e833a553c938"),
    ("every-stage-rust.wasm", "516f9839ef2342cfc6e9b17911f5bb09174cc33badeeed7d6670b297dabb57c6"),
    ("glances-of-prompts-rust.wasm", "b3d289fac21f880f67c2bdadc04537fa792efd44348adcbb9bd738fcadf0233c"),
    ("glances-rust.wasm", "cf9f38c40287972a96ab23cd9111aaf283ee8d3c2478d792a0f7cb31f80fbd72"),
    ("honest-rust.wasm", "ec28a061e557209fdf20f244b5117484fa473e7f7f7b9c7cfa36be8bbcd231eb"),
    ("json-guard-javascript.wasm", "2545f75af1ab1964d3e45bfe5a9e76815161b5c2fbae3fcb194caad8d50947fb"),
    ("keeper-rust.wasm", "7b67642b2558dbf4b727bc0899e82069e2150c5251db789eef630cb84b2ebe78"),
    ("length-router-c.wasm", "76a26f3da98407a860b5297c5ea5099629ea0585536146c2ef61872fd3735b05"),
    ("memory-rust.wasm", "ab9816aea0e1f59fe9a6fcefb70547cb0b69cf3cd2ac16e1cb437c1caa64a8f9"),
    ("outside-rust.wasm", "79498b4b2835306038328ba813f6d6080cee3969216d0ec94b686a48fa886b01"),
    ("pii-guard-rust.wasm", "2e2c9ceceb5c641298dc9c7c281dd07c12383dc9288aa699101fb10af52c79ba"),
    ("word-retriever-python.wasm.gz", "f41368dc0ddaa58c95a76ee66f5eb03001a374c94affe9411148141cddf4da6e"),
];

/// The lines of `contract.txt` that are held for ever, and their digest. A new one stands below them; once it is right,
/// these two figures take it in.
const RELEASED: (usize, &str) = (168, "4642d538c2dd4fa578316d82cbee48173c76fb168fd1ea8b8740a3e278a84eaa");

fn frozen(name: &str, grants: Grants) -> Arc<Plugin> {
    frozen_with(name, grants, Value::Null)
}

fn frozen_with(name: &str, grants: Grants, config: Value) -> Arc<Plugin> {
    load(shared(), name, grants, config)
}

fn load(sandbox: &Sandbox, name: &str, grants: Grants, config: Value) -> Arc<Plugin> {
    sandbox.load(PluginSpec { grants, ..of(name, config) }).unwrap()
}

fn of(name: &str, config: Value) -> PluginSpec {
    let limits = crate::support::spec("honest").limits;
    PluginSpec { limits, config, ..PluginSpec::new(name, component(name)) }
}

/// Configured in each instance, and once for all of them where that can be done.
fn with_and_without_a_snapshot(name: &str, config: &Value, can_be_done: bool) -> [Arc<Plugin>; 2] {
    [(Snapshot::Never, false), (Snapshot::Asked, can_be_done)].map(|(snapshot, starts_configured)| {
        let plugin = shared().load(PluginSpec { snapshot, ..of(name, config.clone()) }).unwrap();
        assert_eq!(plugin.starts_configured(), starts_configured, "{snapshot:?}");
        plugin
    })
}

/// A component; those of some languages are large, and kept compressed.
fn component(name: &str) -> Vec<u8> {
    let plain = folder().join(format!("{name}.wasm"));
    if plain.exists() {
        return std::fs::read(plain).unwrap();
    }
    let gunzip = Command::new("gzip").arg("-dc").arg(folder().join(format!("{name}.wasm.gz"))).output().unwrap();
    assert!(gunzip.status.success(), "{}", String::from_utf8_lossy(&gunzip.stderr));
    gunzip.stdout
}

#[test]
fn every_frozen_component_is_run_and_is_the_one_that_was_frozen() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.file_name().is_some_and(|name| name != "contract.txt"));
    files.sort();
    let digest = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, blake3::hash(&std::fs::read(path).unwrap()).to_hex().to_string())
    };
    let found: Vec<(String, String)> = files.iter().map(digest).collect();
    assert_eq!(found, RUN.map(|(name, digest)| (name.to_owned(), digest.to_owned())));
}

/// `cargo xtask tidy` compares the contract with these lines; here is what keeps the lines.
#[test]
fn no_line_of_the_contract_that_was_released_changes() {
    let (count, digest) = RELEASED;
    let noted = std::fs::read_to_string(folder().join("contract.txt")).unwrap();
    let lines: Vec<&str> = noted.lines().filter(|line| !line.starts_with('#')).collect();
    let held = lines.get(..count).unwrap_or_default().join("\n");
    assert_eq!(blake3::hash(held.as_bytes()).to_hex().as_str(), digest, "one of the first {count} lines changed");
    assert_eq!(lines.len(), count, "the lines below the first {count} are not held yet; take them into `RELEASED`");
}

#[tokio::test]
async fn the_stages_of_0_1_0_are_called_as_they_were() {
    let plugin = frozen("honest-rust", Grants::default());
    let stages: Vec<&str> = plugin.exported_stages().iter().map(|stage| stage.as_str()).collect();
    assert_eq!(stages, ["prompt-guard", "stream-guard", "router", "tool-provider", "retriever"]);
    let rewritten = inspect(&plugin, &ctx(), "rewrite").await.unwrap();
    assert!(matches!(&rewritten.action, Action::Rewrite(edits) if edits.len() == 1), "{rewritten:?}");
    let redacted = plugin.inspect_window(&ctx(), &[], window("a ####", 0)).await.unwrap();
    assert!(matches!(&redacted.action, WindowAction::Redact(cuts) if cuts[0].span.start == 2), "{redacted:?}");
    let messages = [Message::text("m0", Role::User, "hi")];
    let request = RouteRequest { messages: &messages, prompt_tokens: 1, findings: &[], attrs: &[] };
    let candidate =
        |id: &str| Candidate { id: id.into(), model: id.into(), healthy: true, context_tokens: 9, attrs: Vec::new() };
    let decision = plugin.route(&ctx(), request, &[candidate("a"), candidate("b")]).await.unwrap();
    assert_eq!(decision.order, ["b", "a"]);
    let call = ToolCall { id: "c".into(), name: "echo".into(), arguments: "{\"a\":1}".into() };
    assert_eq!(plugin.list_tools(&ctx()).await.unwrap()[0].name, "echo");
    assert_eq!(plugin.call_tool(&ctx(), &call).await.unwrap().content, "{\"a\":1}");
    assert_eq!(plugin.retrieve(&ctx(), &Query { text: "x".into(), top_k: 2 }).await.unwrap().len(), 2);
    assert!(!plugin.exported_stages().contains(&StageKind::Observer));
}

#[tokio::test]
async fn a_glance_of_0_1_0_is_asked_for_as_it_was() {
    let snapshot = Snapshot::WhereSound;
    let plugin = shared().load(PluginSpec { snapshot, ..of("glances-rust", Value::Null) }).unwrap();
    for (text, expected) in [("a word", Some(Inspection::pass(6))), ("unsure", None)] {
        assert_eq!(plugin.glance(&ctx(), &window(text, 0)).await, Ok(expected));
    }
    let asked = plugin.inspect_window(&ctx(), &[], window("a word", 0)).await.unwrap();
    assert!(matches!(&asked.action, WindowAction::Redact(cuts) if cuts[0].text == "asked"), "{asked:?}");
}

#[tokio::test]
async fn a_glance_at_a_prompt_of_0_1_0_is_asked_for_as_it_was() {
    let snapshot = Snapshot::WhereSound;
    let plugin = shared().load(PluginSpec { snapshot, ..of("glances-of-prompts-rust", Value::Null) }).unwrap();
    let says = |role| Message::text("m0", role, "a word");
    for (messages, expected) in [(vec![says(Role::User), says(Role::Tool)], true), (vec![says(Role::Assistant)], false)]
    {
        assert_eq!(plugin.glance_prompt(&ctx(), &messages).await, Ok(expected));
    }
    let asked = inspect(&plugin, &ctx(), "a word").await.unwrap();
    assert_eq!(asked.action, Action::Respond(vec![Part::Text("asked".into())]));
}

#[tokio::test]
async fn the_capabilities_of_0_1_0_are_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "alpha").unwrap();
    let documents = [("docs".to_owned(), folder.path().to_owned())].into();
    let plugin = frozen("keeper-rust", Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() });
    for (function, arguments, expected) in [
        ("set", "key value", "set"),
        ("get", "key", "value"),
        ("add", "count 5", "5"),
        ("list", "", "docs/a.txt:5"),
        ("read", "docs/a.txt", "alpha"),
        ("count", "kept", "counted"),
        ("log", "a line", "logged"),
    ] {
        let call = ToolCall { id: "c".into(), name: function.into(), arguments: arguments.into() };
        assert_eq!(plugin.call_tool(&by("acme"), &call).await.unwrap().content, expected, "{function}");
    }
}

/// All on this thread, where the recorder is.
#[test]
fn what_plugins_of_0_1_0_count_and_observe_is_in_the_metrics() {
    let counted = Counted::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let documents = [("docs".to_owned(), folder.path().to_owned())].into();
    let plugin = frozen("capabilities-rust", Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() });
    let told = metrics::with_local_recorder(&counted, || runtime.block_on(tool(&plugin, "count", "kept 3")));
    assert_eq!(told.unwrap(), "counted");
    assert_eq!(counted.count("tidegate_plugin_events_total capabilities-rust acme kept"), 3);
    let observed = ("tidegate_plugin_values capabilities-rust acme kept".to_owned(), 2.5);
    assert_eq!(*counted.observed.lock(), [observed]);
}

/// Today's `keeper`: the rest of `kv`, and the clock.
#[tokio::test]
async fn the_rest_of_kv_and_the_clock_of_0_1_0_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let documents = [("docs".to_owned(), folder.path().to_owned())].into();
    let plugin = frozen("capabilities-rust", Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() });
    for (function, arguments, expected) in [
        ("set", "key value", "set"),
        ("set", "short lived 1", "set"),
        ("add", "count 5", "5"),
        ("add", "count -7", "-2"),
        ("get-many", "key none count key", "value,none,-2,value"),
        ("delete", "key", "deleted"),
        ("delete", "key", "deleted"),
        ("get-many", "key count", "none,-2"),
    ] {
        assert_eq!(tool(&plugin, function, arguments).await.unwrap(), expected, "{function} {arguments}");
    }
    let too_many = vec!["key"; 1025].join(" ");
    let refused = tool(&plugin, "get-many", &too_many).await.unwrap_err();
    assert!(matches!(&refused, CallError::Plugin { case: "invalid-input", .. }), "{refused}");
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let told = tool(&plugin, "clock", "").await.unwrap();
    let (unix_ms, monotonic_ms) = told.split_once(' ').unwrap();
    assert!(unix_ms.parse::<u128>().unwrap().abs_diff(now) < 60_000, "{told}");
    let later = tool(&plugin, "clock", "").await.unwrap();
    let later: u64 = later.split_once(' ').unwrap().1.parse().unwrap();
    assert!(later >= monotonic_ms.parse().unwrap(), "{monotonic_ms} and then {later}");
}

#[tokio::test]
async fn a_plugin_of_the_sdk_of_0_1_0_goes_on() {
    let plugin = frozen("pii-guard-rust", Grants::default());
    let text = "write to jane.roe@example.com today, please";
    let inspection = plugin.inspect_window(&ctx(), &[], window(text, 0)).await.unwrap();
    assert!(matches!(&inspection.action, WindowAction::Redact(cuts) if cuts.len() == 1), "{inspection:?}");
}

/// Built by clang 14 and wit-bindgen 0.63 from `plugins/languages/c-router`.
#[tokio::test]
async fn a_router_in_c_goes_on() {
    let plugins = with_and_without_a_snapshot("length-router-c", &json!({"long_tokens": 100}), true);
    let candidate = |id: &str, context_tokens| Candidate {
        id: id.into(),
        model: id.into(),
        healthy: true,
        context_tokens,
        attrs: Vec::new(),
    };
    let candidates = [candidate("small", 1000), candidate("large", 9000)];
    let messages = [Message::text("m0", Role::User, "größe")];
    for (prompt_tokens, expected) in [(5, ["small", "large"]), (500, ["large", "small"])] {
        for plugin in &plugins {
            let request = RouteRequest { messages: &messages, prompt_tokens, findings: &[], attrs: &[] };
            assert_eq!(plugin.route(&ctx(), request, &candidates).await.unwrap().order, expected);
        }
    }
}

/// Built by componentize-qjs 0.4.5 from `plugins/languages/javascript-json-guard`.
#[tokio::test]
async fn a_guard_in_javascript_goes_on() {
    let config = json!({"required": {"name": "string"}});
    let plugins = with_and_without_a_snapshot("json-guard-javascript", &config, false);
    for (text, passes) in [(r#"{"name": "größe"}"#, true), (r#"{"name": 3}"#, false), ("hello", false)] {
        let choices = [Message::text("choice-0", Role::Assistant, text)];
        for plugin in &plugins {
            let output = Output { choices: &choices, finish_reasons: &["stop"], usage: None, attrs: &[] };
            let verdict = plugin.inspect_output(&ctx(), output).await.unwrap();
            assert_eq!(verdict.action == Action::Allow, passes, "{text}: {verdict:?}");
        }
    }
}

/// Built by componentize-py 0.25.1 from `plugins/languages/python-retriever`.
#[tokio::test]
async fn a_retriever_in_python_goes_on() {
    let config =
        json!({"passages": [{"id": "a", "text": "The ferry leaves."}, {"id": "b", "text": "Granite, at größe."}]});
    let plugin = frozen_with("word-retriever-python", Grants::default(), config);
    let found = plugin.retrieve(&ctx(), &Query { text: "größe of granite".into(), top_k: 2 }).await.unwrap();
    assert_eq!(found.iter().map(|chunk| chunk.id.as_str()).collect::<Vec<_>>(), ["b"]);
}

/// Today's `honest`: every kind of stage of the line, those after generation included.
#[tokio::test]
async fn the_stages_after_generation_of_0_1_0_are_called_as_they_were() {
    let plugin = frozen("every-stage-rust", Grants::default());
    assert_eq!(plugin.exported_stages().len(), StageKind::ALL.len());
    assert_eq!(plugin.descriptor().holdback_bytes, Some(64));
    let item = MemoryItem { id: "i0".into(), text: "known of tea".into(), score: Some(0.5) };
    assert_eq!(plugin.recall(&ctx(), Question { text: "tea", limit: 1 }).await.unwrap(), [item]);
    let messages = [Message::text("m0", Role::User, "a"), Message::text("m1", Role::Assistant, "b")];
    let kept = plugin.remember(&ctx(), Exchange { messages: &messages, attrs: &[] }).await.unwrap();
    assert_eq!(kept.iter().map(|item| item.text.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(plugin.forget(&ctx(), &["i0", "i1"]).await.unwrap(), 2);

    let (told, log) = logged(plugin.on_complete(&ctx(), summary())).await;
    told.unwrap();
    let shown = "Summary { outcome: \"answered\", detail: \"stop\", model: \"m\", usage: Usage { input: 3, input-cached: 1, \
                 output: 2, attrs: [] }";
    assert!(log[0].contains(shown), "{log:?}");
    let shown = "findings: [Finding { category: \"x-test:flag\", severity: Severity::High, score: Some(0.5), \
                 message-id: Some(\"m0\"), span: Some(Span { start: 1, end: 2 })";
    for part in ["first-ms: Some(5)", "total-ms: 9", shown, "attrs: [(\"stream\", \"true\")]"] {
        assert!(log[0].contains(part), "{part} is not in {log:?}");
    }
}

/// What else guards may say than the older `honest-rust` was asked for.
#[tokio::test]
async fn what_guards_of_0_1_0_refuse_answer_and_halt_they_do_as_they_did() {
    let plugin = frozen("every-stage-rust", Grants::default());
    let refusal = || Refusal {
        code: "test".into(),
        public_message: "no".into(),
        private_reason: Some("as the test asked".into()),
    };
    let asked = async |text: &str| inspect(&plugin, &ctx(), text).await.unwrap();
    assert_eq!(asked("refuse").await.action, Action::Refuse(refusal()));
    assert_eq!(asked("respond").await.action, Action::Respond(vec![Part::Text("from the guard".into())]));
    let finding = Finding {
        category: "x-test:flag".into(),
        severity: Severity::Low,
        score: Some(0.5),
        message_id: Some("m0".into()),
        span: Some(Span { start: 0, end: 4 }),
    };
    assert_eq!(asked("flag").await.findings, [finding]);
    let halted = plugin.inspect_window(&ctx(), &[], window("to HALT", 0)).await.unwrap();
    assert_eq!(halted.action, WindowAction::Halt { refusal: refusal(), farewell: Some("bye".into()) });
}

pub fn summary() -> Summary<'static> {
    static FINDINGS: std::sync::LazyLock<[Finding; 1]> = std::sync::LazyLock::new(|| {
        [Finding {
            category: "x-test:flag".into(),
            severity: Severity::High,
            score: Some(0.5),
            message_id: Some("m0".into()),
            span: Some(Span { start: 1, end: 2 }),
        }]
    });
    static ATTRS: std::sync::LazyLock<[(String, String); 1]> =
        std::sync::LazyLock::new(|| [("stream".into(), "true".into())]);
    Summary {
        outcome: "answered",
        detail: "stop",
        model: "m",
        usage: Usage { input_tokens: 3, cached_tokens: 1, output_tokens: 2, ..Default::default() },
        first: Some(Duration::from_millis(5)),
        total: Duration::from_millis(9),
        findings: &*FINDINGS,
        attrs: &*ATTRS,
    }
}

#[tokio::test]
async fn an_output_guard_of_0_1_0_is_told_all_of_an_answer() {
    let usage = Usage { input_tokens: 3, cached_tokens: 1, output_tokens: 2, ..Default::default() };
    let choices = [Message::text("choice-0", Role::Assistant, "hello")];
    let attrs = [("model".to_owned(), "\"m\"".to_owned())];
    let output = Output { choices: &choices, finish_reasons: &["stop"], usage: Some(usage), attrs: &attrs };
    let asked = async |what: &str| {
        let plugin = frozen_with("every-stage-rust", Grants::default(), json!({ "output": what }));
        plugin.inspect_output(&ctx(), output).await.unwrap().action
    };
    assert_eq!(asked("allow").await, Action::Allow);
    assert!(matches!(asked("refuse").await, Action::Refuse(refusal) if refusal.public_message == "no"));
    let Action::Respond(parts) = asked("respond").await else { panic!("it does not answer") };
    let expected = "[Part::Text(\"hello\")] [\"stop\"] Some(Usage { input: 3, input-cached: 1, output: 2, attrs: [] }) \
                    [(\"model\", \"\\\"m\\\"\")]";
    assert!(matches!(&parts[..], [Part::Text(text)] if text == expected), "{parts:?}");
    let Action::Rewrite(edits) = asked("shout").await else { panic!("it does not rewrite") };
    assert!(
        matches!(&edits[..], [Edit::ReplaceText { message_id, text, .. }] if message_id == "choice-0" && text == "HELLO")
    );
}

/// Today's `reaches`: a tool for each function of `http`, `secrets`, `models`, `vectors` and `random`.
#[tokio::test]
async fn what_leads_out_of_0_1_0_is_there() {
    let outside = Outside::default();
    let plugin = load(&outside::sandbox(&outside), "outside-rust", outside::grants(), Value::Null);
    let url = "https://a.example/x";
    for (function, arguments, expected) in [
        ("get", url.to_owned(), "200 GET https://a.example/x []"),
        ("header", format!("{url} x-a b"), "200 GET https://a.example/x [(\"x-a\", \"b\")]"),
        (
            "secret",
            format!("{url} authorization key"),
            "200 GET https://a.example/x [(\"authorization\", \"Bearer [secret]\")]",
        ),
        ("get-all", format!("{url} {url}"), "200 GET https://a.example/x []|200 GET https://a.example/x []"),
        ("secrets", String::new(), "key"),
        ("embed", "small abc d".to_owned(), "[[3.0, 1.0], [1.0, 1.0]]"),
        ("classify", "small spam".to_owned(), "[[Label { name: \"spam\", score: 0.75 }]]"),
        ("put", "notes a 1 0".to_owned(), "put"),
        ("put", "notes b 0 1".to_owned(), "put"),
        ("search", "notes 1 0.2".to_owned(), "a:0.98,b:0.20"),
        ("forget", "notes a nobody".to_owned(), "1"),
    ] {
        let content = tool(&plugin, function, &arguments).await.unwrap();
        assert_eq!(content, expected, "{function}");
    }
    assert!(outside.0.lock().iter().any(|asked| asked.contains("Bearer hunter22")), "the secret is filled in");
    let reply = tool(&plugin, "complete", "small hello there").await.unwrap();
    assert!(reply.contains("tiny acme hello there") && reply.contains("input: 3"), "{reply}");
    assert_eq!(tool(&plugin, "random", "16").await.unwrap().split(',').count(), 16);
    for (function, arguments, expected) in
        [("embed", "tiny abc", "denied"), ("random", "0", "invalid-input"), ("shell", "", "unsupported")]
    {
        let error = tool(&plugin, function, arguments).await.unwrap_err();
        assert!(matches!(&error, CallError::Plugin { case, .. } if *case == expected), "{function}: {error}");
    }
}

async fn tool(plugin: &Plugin, function: &str, arguments: &str) -> Result<String, CallError> {
    let call = ToolCall { id: "c".into(), name: function.into(), arguments: arguments.into() };
    plugin.call_tool(&by("acme"), &call).await.map(|outcome| outcome.content)
}

/// Today's `remembers`, which exports `memory` alone and keeps what it remembers in `kv`.
#[tokio::test]
async fn a_memory_of_0_1_0_goes_on() {
    let plugin = frozen("memory-rust", Grants { kv_bytes: Some(1 << 20), ..Grants::default() });
    assert_eq!(plugin.exported_stages().iter().copied().collect::<Vec<_>>(), [StageKind::Memory]);
    let said = [Message::text("m0", Role::User, "the harbour opens at nine")];
    plugin.remember(&by("acme"), Exchange { messages: &said, attrs: &[] }).await.unwrap();
    let question = Question { text: "when does the harbour open", limit: 3 };
    assert_eq!(plugin.recall(&by("acme"), question).await.unwrap()[0].text, "the harbour opens at nine");
    assert!(plugin.recall(&by("globex"), question).await.unwrap().is_empty());
    assert_eq!(plugin.forget(&by("acme"), &["line-0"]).await.unwrap(), 1);
    assert!(plugin.recall(&by("acme"), question).await.unwrap().is_empty());
}
