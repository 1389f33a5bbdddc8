//! Glances: what is an answer, what is none, and that no harm comes of those. Of prompts: `glances/prompts.rs`.

mod prompts;

use crate::support::{by, ctx, shared, spec, window};
use std::sync::Arc;
use tidegate_sandbox::stage::{CallContext, CallError, Inspection, Limits, WindowAction};
use tidegate_sandbox::{Plugin, PluginSpec, Snapshot, StreamPool};
use tidegate_types::Retention;

/// With an instance that waits for a call.
async fn begun() -> Arc<Plugin> {
    let plugin = shared().load(direct()).unwrap();
    assert!(asked(&plugin, "word").await);
    plugin
}

/// As a server loads it.
fn direct() -> PluginSpec {
    PluginSpec { snapshot: Snapshot::WhereSound, ..spec("glances") }
}

/// Whether the guard answers where it is asked in full.
async fn asked(plugin: &Plugin, text: &str) -> bool {
    let said = plugin.inspect_window(&ctx(), &[], window(text, 0)).await.unwrap();
    matches!(said.action, WindowAction::Redact(cuts) if cuts[0].text == "asked")
}

fn glance_of(plugin: &Plugin, ctx: &CallContext, text: &str, settled: u32) -> Option<Inspection> {
    plugin.glance_in(&mut StreamPool::default(), ctx, &window(text, settled))
}

/// How far a glance lets text go.
fn through(plugin: &Plugin, text: &str) -> Option<u32> {
    let said = glance_of(plugin, &ctx(), text, 0)?;
    assert_eq!(said, Inspection::pass(said.safe_through as usize));
    Some(said.safe_through)
}

#[tokio::test]
async fn a_glance_lets_text_go_to_the_start_of_a_character_or_has_no_answer() {
    let plugin = begun().await;
    for (text, expected) in
        [("a word", Some(6)), ("", Some(0)), ("half é", Some(5)), ("unsure", None), ("word", Some(4))]
    {
        assert_eq!(through(&plugin, text), expected, "{text}");
    }
    assert_eq!(glance_of(&plugin, &ctx(), "é word", 2), Some(Inspection::pass(7)));
}

/// One call cannot have the instance of another, and none is made for a glance.
#[tokio::test]
async fn a_glance_is_of_an_instance_that_is_there_and_of_a_guard_that_has_it() {
    let plugin = begun().await;
    assert_eq!(glance_of(&plugin, &by("another"), "word", 0), None, "it has no instance yet");
    let watches = shared().load(PluginSpec { snapshot: Snapshot::WhereSound, ..spec("watches") }).unwrap();
    watches.inspect_window(&ctx(), &[], window("word", 0)).await.unwrap();
    assert_eq!(through(&watches, "word"), None);
    let told = shared().load(PluginSpec { snapshot: Snapshot::Never, ..spec("glances") }).unwrap();
    assert!(asked(&told, "word").await);
    assert_eq!(through(&told, "word"), None, "its instances do not begin configured");
}

/// Of an instance that has seen it nothing may be kept.
#[tokio::test]
async fn of_a_request_of_which_nothing_is_kept_no_glance_is_asked_for() {
    let plugin = begun().await;
    let nothing = CallContext { retention: Retention::Nothing, ..ctx() };
    assert_eq!(glance_of(&plugin, &nothing, "word", 0), None);
    assert_eq!(through(&plugin, "word"), Some(4));
}

/// What it has seen and done is gone with the instance, and the place is there for the next one.
#[tokio::test]
async fn a_glance_that_fails_has_no_answer_and_the_guard_is_asked_in_full_for_a_while() {
    let single = || {
        let spec = direct();
        PluginSpec { limits: Limits { instances: 1, ..spec.limits.clone() }, ..spec }
    };
    for (text, settled) in [("far", 0), ("back", 2), ("panic", 0), ("loop", 0), ("log", 0)] {
        let plugin = shared().load(single()).unwrap();
        assert!(asked(&plugin, "word").await);
        plugin.inspect_window(&by("another"), &[], window("word", 0)).await.unwrap();
        assert_eq!(through(&plugin, "word"), Some(4));
        assert_eq!(glance_of(&plugin, &ctx(), text, settled), None, "{text}");
        assert!(asked(&plugin, text).await, "{text}");
        assert!(glance_of(&plugin, &by("another"), "word", 0).is_some(), "{text}: it is not that tenant's");
        for _ in 0..1_000 {
            assert_eq!(through(&plugin, "word"), None, "{text}");
        }
        assert_eq!(through(&plugin, "word"), Some(4), "{text}");
    }
}

/// Whose tools ask for it, whatever became of those before.
#[tokio::test]
async fn authors_are_told_why_a_glance_fails() {
    let plugin = shared().load(direct()).unwrap();
    for (text, why) in [("far", "safe-through is 4"), ("panic", "trapped"), ("log", "it logs or counts")] {
        let error = plugin.glance(&ctx(), &window(text, 0)).await.unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    for text in ["loop", "unsure"] {
        assert_eq!(plugin.glance(&ctx(), &window(text, 0)).await, Ok(None), "{text}");
    }
    assert_eq!(plugin.glance(&ctx(), &window("word", 0)).await, Ok(Some(Inspection::pass(4))));
}

/// As a server does, which asks in full then: what there is no memory for is not the guard's doing.
#[tokio::test]
async fn authors_are_not_told_of_a_glance_for_which_there_is_no_memory() {
    let spec = direct();
    let limits = Limits { memory_bytes: 2 << 20, ..spec.limits.clone() };
    let plugin = shared().load(PluginSpec { limits, ..spec }).unwrap();
    let large = "word".repeat(1 << 20);
    assert_eq!(plugin.glance(&ctx(), &window(&large, 0)).await, Ok(None));
    let asked = plugin.inspect_window(&ctx(), &[], window(&large, 0)).await;
    assert!(matches!(asked, Err(CallError::Memory { .. })), "{asked:?}");
    assert_eq!(plugin.glance(&ctx(), &window("word", 0)).await, Ok(Some(Inspection::pass(4))));
}
