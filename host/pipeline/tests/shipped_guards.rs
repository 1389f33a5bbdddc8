//! The guards that are shipped, as components, on streams: for any text and any chunking the client reads the same.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tidegate_pipeline::holdback::{AtCap, Holdback};
use tidegate_sandbox::stage::{CallContext, Channel, Limits, Window, WindowAction};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig, Snapshot, StreamPool};
use tidegate_types::{Caller, RequestId, Retention};

/// As where a config says nothing.
const CAP: usize = 512;
/// All that the guards may do about a match.
const ACTIONS: [&str; 3] = ["redact", "block", "flag"];

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
    let snapshot = Snapshot::WhereSound;
    SANDBOX
        .load(PluginSpec { config, limits, snapshot, ..PluginSpec::new(plugin, std::fs::read(path).unwrap()) })
        .unwrap()
}

/// Of an answer behind a guard.
#[derive(Debug, PartialEq)]
struct Read {
    /// What the client has of it.
    text: String,
    /// What the guard told of, where it let the answer come to its end. Where it did not, it may have seen more than it
    /// let go, or not yet.
    findings: Option<usize>,
}

impl Read {
    fn whole(text: &str, findings: usize) -> Self {
        Self { text: text.into(), findings: Some(findings) }
    }

    fn halted(text: &str) -> Self {
        Self { text: text.into(), findings: None }
    }
}

/// What becomes of an answer that comes in these pieces.
async fn reads(guard: &Plugin, pieces: &[String]) -> Read {
    asked(guard, pieces).await.0
}

/// How often a guard was asked.
#[derive(Default)]
struct Asked {
    /// About how many windows.
    windows: usize,
    /// About how many of these a glance was enough.
    glances: usize,
}

/// The same, and how often the guard was asked.
async fn asked(guard: &Plugin, pieces: &[String]) -> (Read, Asked) {
    let context = CallContext {
        request_id: RequestId::new("r"),
        caller: Arc::new(Caller::local()),
        hops: 0,
        retention: Retention::Kept,
        deadline: Duration::from_secs(60),
        began: None,
        streaming: true,
    };
    let mut held = Holdback::with_look_behind(guard.descriptor().look_behind_bytes);
    let (mut read, mut asked, mut pool) = (Read::whole("", 0), Asked::default(), StreamPool::default());
    for piece in pieces.iter().map(Some).chain([None]) {
        let ending = if piece.is_none() { Some("stop") } else { None };
        held.push(piece.map_or("", String::as_str), Vec::new());
        let text = held.window();
        let (text, settled) = (text.text, text.settled);
        let window = Window { seq: held.seq(), choice: 0, channel: &Channel::Text, text, settled, ending };
        let prefilter = guard.descriptor().prefilter.as_ref().filter(|_| ending.is_none());
        let inspection = match prefilter.and_then(|prefilter| held.prefiltered(prefilter, CAP)) {
            Some(passed) => passed,
            None => {
                asked.windows += 1;
                let may_glance = ending.is_none() && held.carry().is_empty() && !held.is_empty();
                let glance = may_glance.then(|| guard.glance_in(&mut pool, &context, &window)).flatten();
                match glance.filter(|passed| text.len() - passed.safe_through as usize <= CAP) {
                    Some(passed) => {
                        asked.glances += 1;
                        passed
                    }
                    None => guard.inspect_window(&context, held.carry(), window).await.unwrap(),
                }
            }
        };
        if let WindowAction::Halt { farewell, .. } = inspection.action {
            return (Read::halted(&(read.text + &farewell.unwrap_or_default())), asked);
        }
        read.findings = read.findings.map(|findings| findings + inspection.findings.len());
        read.text += &held.apply(inspection, ending.is_some(), CAP, AtCap::Halt).unwrap().text;
    }
    (read, asked)
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
        "(",
        "(see ",
        "well-fed ",
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
            let all = |action: &&str| {
                [load("pii-guard", json!({"action": action})), load("word-guard", listed(action))]
            };
            ACTIONS.iter().flat_map(all).collect()
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
    const SAID: &str = "Write to john@example.com about secretword.";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = |guard: Arc<Plugin>| runtime.block_on(reads(&guard, &cut(SAID, &[3])));
    let pii = |action: &str| read(load("pii-guard", json!({"action": action})));
    assert_eq!(read(load("pii-guard", Value::Null)), pii("redact"));
    assert_eq!(pii("redact"), Read::whole("Write to [email] about secretword.", 1));
    assert_eq!(pii("block"), Read::halted("Write to "));
    assert_eq!(pii("flag"), Read::whole(SAID, 1));
    let listed = |action: &str| read(load("word-guard", json!({"words": ["secretword"], "action": action})));
    assert_eq!(listed("redact"), Read::whole("Write to john@example.com about [redacted].", 1));
    assert_eq!(listed("block"), Read::halted("Write to john@example.com about "));
    assert_eq!(listed("flag"), Read::whole(SAID, 1));
}

/// Nor would it notice that no glance is ever asked for.
#[test]
fn a_glance_is_enough_where_the_guards_find_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let text = "word24543 a@b, ".repeat(20);
    for guard in [load("pii-guard", Value::Null), load("word-guard", json!({"words": ["secretword"]}))] {
        let pieces = cut(&text, &[15]);
        let (read, asked) = runtime.block_on(asked(&guard, &pieces));
        assert_eq!(read, Read::whole(&text, 0));
        // The first has no instance yet; the end is asked about in full.
        assert_eq!((asked.windows, asked.glances), (pieces.len() + 1, pieces.len() - 1), "{}", guard.name());
    }
}

/// What a guard remembers may be the beginning of something: then it is asked about plain words too.
#[test]
fn words_that_go_on_with_a_key_do_not_pass_for_words() {
    let pieces = [format!("Key: sk-{}", "a1B2".repeat(70)), "abcdefgh".into(), " and ".into(), "words ".into()];
    let guard = load("pii-guard", Value::Null);
    let prefilter = guard.descriptor().prefilter.as_ref().unwrap();
    assert!(pieces[1..].iter().all(|piece| prefilter.through(piece).is_some()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(reads(&guard, &pieces)), Read::whole("Key: [api-key] and words ", 1));
}

/// Cut into pieces as long as a token is on average. `-- --nocapture` prints how many of them the guard is asked about, the
/// last aside.
#[test]
fn about_most_of_prose_with_code_and_figures_no_guard_is_asked() {
    const PROSE: &str = include_str!("../../../xtask/bench/prose.txt");
    const LANGUAGES: [&str; 4] = [
        "Die Fähre fährt um 10:30 Uhr; im Jahr 2024 waren es über 300 Gäste – „so viele wie nie“, sagt er. ",
        "Le prix a baissé de 10\u{a0}%, à 3,50 € l’unité : c’est « presque » donné. Où est-il passé en 2023 ? ",
        "В 2024 году их было 17, а теперь — больше; «это хорошо», сказала она. Ёлка стоит у окна. ",
        "2024年有17个人参加了会议，他们讨论了3个问题。结果如何？大家都很满意！",
    ];
    let (guard, runtime) =
        (load("pii-guard", Value::Null), tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    for (text, one_in) in [(PROSE, 80)].into_iter().chain(LANGUAGES.map(|text| (text, usize::MAX))) {
        let pieces = cut(text, &[4]);
        let (read, asked) = runtime.block_on(asked(&guard, &pieces));
        let asked = asked.windows;
        println!("asked about {} of {} pieces: {:.30}...", asked - 1, pieces.len(), text);
        assert_eq!(read, Read::whole(text, 0));
        assert!(asked - 1 <= pieces.len() / one_in, "{asked} of {}: {text}", pieces.len());
    }
}
