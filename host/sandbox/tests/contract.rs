//! Results that break the contract: each is refused, with words that say how, and never turned into a smaller result.

use crate::support::{ctx, inspect, load, saying, shared, spec, user, window};
use tidegate_sandbox::PluginSpec;
use tidegate_sandbox::stage::{
    Action, CallError, Candidate, Edit, Exchange, Inspection, Output, Query, Question, RouteRequest, WindowAction,
};
use tidegate_types::{Message, RequestId, Role, ToolCall};

#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, CallError>, part: &str) {
    match result {
        Err(CallError::BadResult { message, .. }) => assert!(message.contains(part), "{part:?} is not in {message:?}"),
        other => panic!("{part:?}: {other:?}"),
    }
}

#[tokio::test]
async fn a_verdict_names_only_what_is_there() {
    let plugin = load("lies");
    for (lie, part) in [
        ("finding: no message", "no message `m9`"),
        ("finding: span without message", "names no message"),
        ("finding: out of range", "0..9999, out of a text of 21 bytes"),
        ("finding: backwards", "2..1, out of a text"),
        ("finding: score", "the score NaN"),
        ("finding: many", "257 findings; at most 256"),
        ("respond: image", "cannot make an image part"),
        ("edit: no message", "no message `m9`"),
        ("edit: no part", "message `m0` has no part 7"),
        ("edit: out of range", "0..9999, out of a text of 18 bytes"),
        ("edit: cuts ü", "0..12, which cuts a character"),
        ("edit: overlap", "the edits of 0..3 and 2..4 overlap"),
        ("put: id taken", "the id `m0` of a new message is empty or taken"),
        ("put: id twice", "the id `n` of a new message is empty or taken"),
        ("put: after nobody", "no message `m9`"),
        ("put: role", "no role `king`"),
        ("put: after one that was dropped", "the message `m0` was dropped by an edit before"),
        ("put: id of one that was dropped", "the id `m0` of a new message is empty or taken"),
        ("drop: no message", "no message `m9`"),
        ("drop: twice", "the message `m0` was dropped by an edit before"),
        ("drop: a new one twice", "the message `n` was dropped by an edit before"),
        ("drop: all", "it drops every message"),
        ("drop: all and a new one", "it drops every message"),
        ("respond: a call", "it responds with a part that is neither text nor a refusal"),
        ("arguments: no call", "no tool call `c9`"),
        ("param", "it sets the parameter `temperature`, which this host lets no plugin do"),
    ] {
        says(inspect(&plugin, &ctx(), lie).await, part);
    }
    inspect(&plugin, &ctx(), "the truth").await.unwrap();
}

/// Such as `h5` or `m7`, which the host takes for what it has named so itself.
#[tokio::test]
async fn a_new_message_has_an_id_below_its_plugins_name() {
    let verdict = inspect(&load("lies"), &ctx(), "the truth about edits").await.unwrap();
    let Action::Rewrite(edits) = verdict.action else { panic!("{verdict:?}") };
    let shown = edits.iter().map(|edit| match edit {
        Edit::PutMessage { after, message } => format!("{} behind {}", message.id, after.as_deref().unwrap_or("none")),
        Edit::DropMessage(id) => format!("no {id}"),
        other => panic!("{other:?}"),
    });
    let expected = ["lies/n behind m0", "lies/o behind lies/n", "no lies/n", "no m0", "lies/p behind lies/o"];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
}

/// Asked about one passage: what is of a whole prompt is passed over, and what is wrong of its text is not.
#[tokio::test]
async fn a_verdict_on_text_from_outside_is_its_new_texts_or_that_it_is_dropped() {
    let plugin = load("lies");
    let about = async |text: &str| plugin.inspect_outside(&ctx(), &Message::text("m0", Role::User, text)).await;
    for (lie, expected) in [
        ("param", vec![]),
        ("put: id twice", vec![]),
        ("put: role", vec![]),
        ("drop: no message", vec![]),
        ("arguments: no call", vec![]),
        ("drop: all", vec![Edit::DropMessage("m0".into())]),
        ("drop: all and a new one", vec![Edit::DropMessage("m0".into())]),
        ("the truth about edits", vec![Edit::DropMessage("m0".into())]),
    ] {
        assert_eq!(about(lie).await.unwrap().action, Action::Rewrite(expected), "{lie}");
    }
    says(about("edit: overlap").await, "the edits of 0..3 and 2..4 overlap");
    says(about("finding: no message").await, "no message `m9`");
}

#[tokio::test]
async fn an_inspection_never_touches_what_was_sent() {
    let plugin = load("lies");
    let inspect = async |text: &str, settled| plugin.inspect_window(&ctx(), &[], window(text, settled)).await;
    for (text, settled, part) in [
        ("watermark-high", 0, "safe-through is 15, not between 0 and 14"),
        ("a watermark-low", 2, "safe-through is 1, not between 2 and 15"),
        ("carry", 0, "16385 bytes; at most 16384"),
        ("a settled", 2, "starts at 0, but 2 bytes are already sent"),
        ("unsafe", 0, "a redaction ends at 6, past safe-through, which is 0"),
        ("range", 0, "0..6, out of a text of 5 bytes"),
        ("ü character", 0, "1..12, which cuts a character"),
        ("overlap", 3, "3..7 and 6..7 overlap"),
        ("finding", 0, "7..8, out of a text of 7 bytes"),
    ] {
        says(inspect(text, settled).await, part);
    }
}

#[tokio::test]
async fn who_says_that_it_changes_nothing_redacts_nothing() {
    let component = saying("honest", r#","stream":{"holdback-bytes":64}"#, r#","mutates":false"#).into();
    let plugin = shared().load(PluginSpec { component, ..spec("honest") }).unwrap();
    let redacted = plugin.inspect_window(&ctx(), &[], window("####", 0)).await;
    says(redacted, "it redacts, but its descriptor says `\"mutates\": false`");
    plugin.inspect_window(&ctx(), &[], window("hello", 0)).await.unwrap();
}

#[tokio::test]
async fn a_watermark_inside_a_character_is_lowered_to_its_start() {
    let plugin = load("lies");
    let inspection = plugin.inspect_window(&ctx(), &[], window("aü watermark-inside", 0)).await.unwrap();
    assert_eq!(inspection, Inspection { action: WindowAction::Pass, safe_through: 1, carry: vec![], findings: vec![] });
}

#[tokio::test]
async fn redactions_come_back_in_order() {
    let plugin = load("lies");
    match plugin.inspect_window(&ctx(), &[], window("unsorted", 0)).await.unwrap().action {
        WindowAction::Redact(redactions) => {
            let starts: Vec<u32> = redactions.iter().map(|redaction| redaction.span.start).collect();
            assert_eq!(starts, [0, 7]);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_router_names_only_what_was_offered_and_each_once() {
    let plugin = load("lies");
    let attrs = Vec::new();
    let candidates = [Candidate { id: "a".into(), model: "m".into(), healthy: true, context_tokens: 1, attrs }];
    let messages = user("hi");
    for (prompt_tokens, part) in [(0, "names no candidate"), (1, "`nobody` was not offered"), (2, "`a` is named twice")]
    {
        let request = RouteRequest { messages: &messages, prompt_tokens, findings: &[], attrs: &[] };
        says(plugin.route(&ctx(), request, &candidates).await, part);
    }
}

#[tokio::test]
async fn tools_have_names_and_schemas_that_every_wire_can_carry() {
    let plugin = load("lies");
    for (lie, part) in [
        ("name", "tool name `no spaces allowed`"),
        ("empty", "tool name ``"),
        ("twice", "tool `a` is there twice"),
        ("schema", "the schema of tool `a` is not JSON"),
        ("schema-kind", "the schema of tool `a` is not an object"),
        ("many", "129 tools; at most 128"),
    ] {
        let mut ctx = ctx();
        ctx.request_id = RequestId::new(lie);
        says(plugin.list_tools(&ctx).await, part);
    }
}

#[tokio::test]
async fn an_outcome_answers_the_call_that_was_made() {
    let plugin = load("lies");
    for (name, part) in
        [("another", "answers call `another`, not `c1`"), ("structured", "structured result is not JSON")]
    {
        let call = ToolCall { id: "c1".into(), name: name.into(), arguments: "{}".into() };
        says(plugin.call_tool(&ctx(), &call).await, part);
    }
}

#[tokio::test]
async fn chunks_are_no_more_than_asked_for_and_have_ids_of_their_own() {
    let plugin = load("lies");
    for (lie, part) in [
        ("many", "3 chunks; at most 2 were asked for"),
        ("twice", "chunk `a` is there twice"),
        ("empty", "a chunk's id is empty"),
        ("score", "is not a number"),
        ("origin", "the origin of chunk `a` is 2..1"),
    ] {
        says(plugin.retrieve(&ctx(), &Query { text: lie.into(), top_k: 2 }).await, part);
    }
}

/// Its choices are as many as were asked for: none comes, and none goes.
#[tokio::test]
async fn an_answer_is_changed_within_its_choices_only() {
    let plugin = load("lies");
    for lie in ["put: one", "drop: all"] {
        let choices = [("m0", lie), ("m1", "more")].map(|(id, text)| Message::text(id, Role::Assistant, text));
        let output = Output { choices: &choices, finish_reasons: &["stop", "stop"], usage: None, attrs: &[] };
        let inspected = plugin.inspect_output(&ctx(), output).await;
        says(inspected, "an answer's edits are `replace-text` and `set-arguments` only");
    }
}

#[tokio::test]
async fn what_is_remembered_is_no_more_than_asked_for_and_has_ids_of_its_own() {
    let plugin = load("lies");
    let recall = async |text: &str| plugin.recall(&ctx(), Question { text, limit: 3 }).await;
    let remember = async |text: &str| plugin.remember(&ctx(), Exchange { messages: &user(text), attrs: &[] }).await;
    says(recall("many").await, "4 items; at most 3");
    says(remember("many").await, "257 items; at most 256");
    for (lie, part) in [
        ("empty", "the id `` of an item is empty or there twice"),
        ("twice", "the id `a` of an item is empty or there twice"),
        ("score", "the score of item `a` is not a number"),
    ] {
        says(recall(lie).await, part);
        says(remember(lie).await, part);
    }
    assert_eq!((recall("the truth").await.unwrap().len(), remember("the truth").await.unwrap().len()), (3, 256));
    says(plugin.forget(&ctx(), &["a", "b"]).await, "it forgot 3 items of 2");
}
