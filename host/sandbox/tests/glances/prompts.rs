//! Glances at prompts.

use super::direct;
use crate::support::{by, ctx, inspect, shared, spec, window};
use std::sync::Arc;
use tidegate_sandbox::stage::{Action, CallContext, Limits, StageKind};
use tidegate_sandbox::{Plugin, PluginSpec, Snapshot};
use tidegate_types::{Message, Part, Retention, Role};

/// With an instance that waits for a call.
async fn begun() -> Arc<Plugin> {
    let plugin = shared().load(direct()).unwrap();
    assert!(asked(&plugin, "word").await);
    plugin
}

/// Whether the guard answers where it is asked in full.
async fn asked(plugin: &Plugin, text: &str) -> bool {
    matches!(inspect(plugin, &ctx(), text).await.unwrap().action, Action::Respond(said) if said == [Part::Text("asked".into())])
}

fn user(text: &str) -> Message {
    Message::text("m0", Role::User, text)
}

fn allows(plugin: &Plugin, messages: &[Message]) -> bool {
    plugin.allows_at_a_glance(&ctx(), messages)
}

#[tokio::test]
async fn a_prompt_is_allowed_at_a_glance_where_the_guard_says_so_of_who_says_what() {
    let plugin = begun().await;
    assert!(allows(&plugin, &[user("a word")]) && allows(&plugin, &[user(""), user("word")]) && allows(&plugin, &[]));
    assert!(!allows(&plugin, &[user("word"), user("unsure")]));
    assert!(
        !allows(&plugin, &[user("word"), Message::text("m1", Role::Assistant, "word")]),
        "it is unsure of that role"
    );
    assert!(allows(&plugin, &[user("word"), Message::text("m1", Role::Tool, "word")]));
}

/// What a glance is not told of, the guard is asked about.
#[tokio::test]
async fn a_glance_is_of_messages_that_are_a_text_each_and_not_many() {
    let plugin = begun().await;
    for parts in [vec![], vec![Part::Reasoning("word".into())], vec![Part::Text("a".into()), Part::Text("b".into())]] {
        assert!(!allows(&plugin, &[user("word"), Message { parts, ..user("") }]));
    }
    assert!(allows(&plugin, &vec![user("word"); 64]));
    assert!(!allows(&plugin, &vec![user("word"); 65]));
    assert_eq!(plugin.glance_prompt(&ctx(), &vec![user("word"); 65]).await, Ok(false));
}

/// One call cannot have the instance of another, none is made for a glance, and none has seen what may not be kept.
#[tokio::test]
async fn a_glance_at_a_prompt_is_of_an_instance_that_is_there_and_of_a_guard_that_has_it() {
    let plugin = begun().await;
    assert!(!plugin.allows_at_a_glance(&by("another"), &[user("word")]), "it has no instance yet");
    let nothing = CallContext { retention: Retention::Nothing, ..ctx() };
    assert!(!plugin.allows_at_a_glance(&nothing, &[user("word")]));
    let load = |name, snapshot| shared().load(PluginSpec { snapshot, ..spec(name) }).unwrap();
    let honest = load("honest", Snapshot::WhereSound);
    inspect(&honest, &ctx(), "word").await.unwrap();
    assert!(!allows(&honest, &[user("word")]));
    let told = load("glances", Snapshot::Never);
    assert!(asked(&told, "word").await);
    assert!(!allows(&told, &[user("word")]), "its instances do not begin configured");
    let streams = PluginSpec { stages: Some(vec![StageKind::StreamGuard]), ..direct() };
    let streams = shared().load(streams).unwrap();
    streams.inspect_window(&ctx(), &[], window("word", 0)).await.unwrap();
    assert!(!allows(&streams, &[user("word")]), "that stage is not configured");
}

/// What it has seen and done is gone with the instance, and the place is there for the next one.
#[tokio::test]
async fn a_glance_at_a_prompt_that_fails_has_no_answer_and_the_guard_is_asked_in_full_for_a_while() {
    for text in ["panic", "loop", "log"] {
        let spec = direct();
        let limits = Limits { instances: 1, ..spec.limits.clone() };
        let plugin = shared().load(PluginSpec { limits, ..spec }).unwrap();
        assert!(asked(&plugin, "word").await);
        inspect(&plugin, &by("another"), "word").await.unwrap();
        assert!(allows(&plugin, &[user("word")]));
        assert!(!allows(&plugin, &[user(text)]), "{text}");
        assert!(asked(&plugin, text).await, "{text}");
        assert!(plugin.allows_at_a_glance(&by("another"), &[user("word")]), "{text}: it is not that tenant's");
        for _ in 0..1_000 {
            assert!(!allows(&plugin, &[user("word")]), "{text}");
        }
        assert!(allows(&plugin, &[user("word")]), "{text}");
    }
}

/// Whose tools ask for it, whatever became of those before.
#[tokio::test]
async fn authors_are_told_why_a_glance_at_a_prompt_fails() {
    let plugin = shared().load(direct()).unwrap();
    for (text, why) in [("panic", "trapped"), ("log", "it logs or counts")] {
        let error = plugin.glance_prompt(&ctx(), &[user(text)]).await.unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    for (text, said) in [("loop", false), ("unsure", false), ("word", true)] {
        assert_eq!(plugin.glance_prompt(&ctx(), &[user(text)]).await, Ok(said), "{text}");
    }
}
