//! The guards that are shipped, as components, on streams: for any text and any chunking the client reads the same.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tidegate_pipeline::holdback::{AtCap, Holdback};
use tidegate_sandbox::stage::{CallContext, Channel, Limits, Window, WindowAction};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{Caller, RequestId, Retention};

/// As where a config says nothing.
const CAP: usize = 512;

static SANDBOX: LazyLock<Sandbox> = LazyLock::new(|| {
    let cache_dir = Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    Sandbox::new(SandboxConfig {
        cache_dir,
        total_instances: 8,
        total_waiting_instances: 8,
        ..SandboxConfig::default()
    })
    .unwrap()
});

fn load(plugin: &str, config: Value) -> Arc<Plugin> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../plugins/dist/{plugin}.wasm"));
    // Patient: tests run beside others on busy machines.
    let limits = Limits { cpu: Duration::from_secs(10), wall: Duration::from_secs(60), ..Limits::default() };
    SANDBOX.load(PluginSpec { config, limits, ..PluginSpec::new(plugin, std::fs::read(path).unwrap()) }).unwrap()
}

/// What a client reads of an answer that comes in these pieces, and whether the guard let it come to its end.
async fn reads(guard: &Plugin, pieces: &[String]) -> (String, bool) {
    let context = CallContext {
        request_id: RequestId::new("r"),
        caller: Arc::new(Caller::local()),
        retention: Retention::Kept,
        deadline: Duration::from_secs(60),
        began: None,
        streaming: true,
    };
    let (mut held, mut read) = (Holdback::default(), String::new());
    for piece in pieces.iter().map(Some).chain([None]) {
        let ending = if piece.is_none() { Some("stop") } else { None };
        held.push(piece.map_or("", String::as_str), Vec::new());
        let text = held.window();
        let (text, settled) = (text.text, text.settled);
        let window = Window { seq: held.seq(), choice: 0, channel: &Channel::Text, text, settled, ending };
        let inspection = guard.inspect_window(&context, held.carry(), window).await.unwrap();
        if let WindowAction::Halt { farewell, .. } = inspection.action {
            return (read + &farewell.unwrap_or_default(), false);
        }
        read += &held.apply(inspection, ending.is_some(), CAP, AtCap::Halt).unwrap().text;
    }
    (read, true)
}

/// Whole and in parts: what the guards look for, what looks like its beginning, and what is around it.
fn words() -> impl Strategy<Value = Vec<&'static str>> {
    let words = [
        "john@example.com",
        "jane.",
        "roe@",
        "example",
        ".org",
        "4111 1111 ",
        "1111 1111",
        "4111-1111-1111-1112",
        "+49 30 ",
        "1234567",
        "DE89 3704 0044 0532 0130 00",
        "GB82WEST12345698765432",
        "sk-abcdefghijklmnopqrstuvwx",
        "secretword",
        "secret",
        "word",
        "Secret",
        "word",
        "code-1234",
        "code-",
        "77",
        " ",
        "\n",
        ".",
        "é€",
        "😀",
        "the answer is ",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..12)
}

fn cut(text: &str, sizes: &[usize]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let (mut pieces, mut at) = (Vec::new(), 0);
    for size in sizes.iter().cycle() {
        if at == chars.len() {
            break;
        }
        let end = (at + size).min(chars.len());
        pieces.push(chars[at..end].iter().collect());
        at = end;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn however_an_answer_is_cut_its_client_reads_the_same_behind_a_shipped_guard(
        words in words(),
        cuts in prop::collection::vec(1_usize..9, 1..6),
    ) {
        static GUARDS: LazyLock<Vec<Arc<Plugin>>> = LazyLock::new(|| {
            let listed = |action: &str| {
                json!({"words": ["secretword"], "patterns": ["code-[0-9]+"], "action": action})
            };
            vec![
                load("pii-guard", Value::Null),
                load("word-guard", listed("redact")),
                load("word-guard", listed("block")),
            ]
        });
        let text = words.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for guard in GUARDS.iter() {
            let whole = runtime.block_on(reads(guard, std::slice::from_ref(&text)));
            let pieces = cut(&text, &cuts);
            prop_assert_eq!(&runtime.block_on(reads(guard, &pieces)), &whole, "{:?}", pieces);
        }
    }
}

/// What the property would not notice: a guard that does nothing.
#[test]
fn the_guards_find_what_they_are_for() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = |guard: Arc<Plugin>| {
        let pieces = cut("Write to john@example.com about secretword.", &[3]);
        runtime.block_on(reads(&guard, &pieces))
    };
    assert_eq!(read(load("pii-guard", Value::Null)), ("Write to [email] about secretword.".into(), true));
    let listed = |action: &str| load("word-guard", json!({"words": ["secretword"], "action": action}));
    assert_eq!(read(listed("redact")), ("Write to john@example.com about [redacted].".into(), true));
    assert_eq!(read(listed("block")), ("Write to john@example.com about ".into(), false));
}
