//! Every guest is run: each is asked what makes it do the one thing that it is for, and does it. The other files say what
//! follows from that; here none is left out.

use crate::outside::{self, Outside};
use crate::support::{ctx, inspect, spec, window};
use std::path::Path;
use std::time::Duration;
use tidegate_sandbox::stage::{CallError, Question, StageKind};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox};
use tidegate_types::ToolCall;

/// A guest, what it is asked, and what becomes of that: words of the answer, or of the error.
const RUN: [(&str, &str, &str); 22] = [
    ("balks", "balk", "trapped"),
    ("bloats", "2", "passed more than output_bytes = 1048576 bytes"),
    ("conceals", "https://a.example/x", "does not name `secrets` among its `capabilities`"),
    ("dawdles", "5", "Allow"),
    ("floods", "1000", "Allow"),
    ("glances", "word", "asked"),
    ("hoards", "100", "its limit is 16777216"),
    ("honest", "refuse", "Refuse"),
    ("keeper", "set key value", "set"),
    ("lies", "edit: no part", "has no part 7"),
    ("loops", "loop", "did not finish within 2s of cpu time"),
    ("misdescribes", "", "`describe` failed"),
    ("mumbles", "", "its descriptor is wrong"),
    ("panics", "panic", "trapped"),
    ("ponders", "", "`describe` failed: plugin `ponders` did not start within 1s of cpu time"),
    ("reaches", "get https://a.example/x", "200 GET https://a.example/x"),
    ("recurses", "", "trapped"),
    ("remembers", "tea", "[]"),
    ("strays", "", "it imports `shell`"),
    ("tarries", "tarry 1 refuse", "Refuse"),
    ("wanders", "", "it imports `wasi:random/random"),
    ("watches", "HALT", "Halt"),
];

/// What is built, and what could be: a folder that the workspace forgot is a guest that nobody runs.
#[test]
fn the_list_has_every_guest() {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests");
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let built = files(&guests.join("dist")).into_iter().filter_map(|file| Some(file.strip_suffix(".wasm")?.to_owned()));
    let crates =
        files(&guests).into_iter().filter(|name| name != "kit" && guests.join(name).join("Cargo.toml").exists());
    for mut names in [built.collect::<Vec<_>>(), crates.collect()] {
        names.sort();
        assert_eq!(names, RUN.map(|(guest, ..)| guest), "the guests and the list of those that are run disagree");
    }
}

#[tokio::test]
async fn every_guest_does_what_it_is_for() {
    let documents = tempfile::tempdir().unwrap();
    let sandbox = outside::sandbox(&Outside::default());
    for (guest, words, expected) in RUN {
        let found = match load(&sandbox, guest, documents.path()) {
            Ok(plugin) => asked(&plugin, words).await.unwrap_or_else(|error| error.to_string()),
            Err(refused) => refused,
        };
        assert!(found.contains(expected), "{guest}: {expected} is not in {found}");
    }
}

/// With every capability, so that what is refused is refused for what it is.
fn load(sandbox: &Sandbox, guest: &str, documents: &Path) -> Result<std::sync::Arc<Plugin>, String> {
    let mut spec = PluginSpec { grants: outside::grants(), config: serde_json::json!({"halt": "HALT"}), ..spec(guest) };
    spec.grants.kv_bytes = Some(1 << 20);
    spec.grants.documents = [("docs".to_owned(), documents.to_owned())].into();
    spec.limits.memory_bytes = 16 << 20;
    spec.limits.cpu = Duration::from_secs(2);
    sandbox.load(spec).map_err(|error| error.to_string())
}

/// By the stage that the guest is of: its tools, where it has some.
async fn asked(plugin: &Plugin, words: &str) -> Result<String, CallError> {
    let stages = plugin.exported_stages();
    if stages.contains(&StageKind::PromptGuard) && !words.starts_with("get ") {
        return inspect(plugin, &ctx(), words).await.map(|verdict| format!("{:?}", verdict.action));
    }
    if stages.contains(&StageKind::StreamGuard) {
        return plugin.inspect_window(&ctx(), &[], window(words, 0)).await.map(|seen| format!("{:?}", seen.action));
    }
    if stages.contains(&StageKind::Memory) {
        return plugin.recall(&ctx(), Question { text: words, limit: 1 }).await.map(|items| format!("{items:?}"));
    }
    let (name, arguments) = words.split_once(' ').unwrap_or_default();
    let call = ToolCall { id: "c".into(), name: name.into(), arguments: arguments.into() };
    plugin.call_tool(&ctx(), &call).await.map(|outcome| outcome.content)
}
