//! JSON that a guest returns: what the host makes of it takes about what its text does.

use crate::support::{ctx, load, user};
use tidegate_sandbox::stage::{Action, Prompt};
use tidegate_types::{Message, Part, Role, ToolCall, ToolOutcome};

/// Of so many zeros, each of which would take 72 bytes as a value.
#[tokio::test]
async fn what_a_tool_says_for_programs_stays_text_however_much_is_in_it() {
    let arguments = format!("[{}0]", "0,".repeat(200_000));
    let call = ToolCall { id: "c1".into(), name: "echo".into(), arguments: arguments.clone() };
    let outcome = load("honest").call_tool(&ctx(), &call).await.unwrap();
    assert_eq!(outcome.structured, Some(arguments));
}

/// A guard looks for words in it, which spaces and escapes would hide.
#[tokio::test]
async fn a_guard_reads_what_a_tool_says_for_programs_without_needless_escapes() {
    let plugin = load("honest");
    let arguments = "{ \"\\u0069gnore\" : [ 1, \"\\u00e9\\n\" ] }";
    let call = ToolCall { id: "c1".into(), name: "echo".into(), arguments: arguments.into() };
    let ToolOutcome { structured, .. } = plugin.call_tool(&ctx(), &call).await.unwrap();
    assert_eq!(structured.as_deref(), Some("{\"ignore\":[1,\"é\\n\"]}"));
    let outcome = ToolOutcome { call_id: "c1".into(), content: String::new(), structured, is_error: false };
    let mut messages = user("echo");
    let parts = vec![Part::Text("echo".into()), Part::ToolOutcome(outcome)];
    messages.push(Message { parts, ..Message::text("m1", Role::Tool, "") });
    let prompt = Prompt { messages: &messages, tools: &[], params: &[] };
    let Action::Respond(said) = plugin.inspect_prompt(&ctx(), prompt).await.unwrap().action else {
        panic!("it says what it was given")
    };
    let [Part::Text(seen)] = said.as_slice() else { panic!("{said:?}") };
    assert!(seen.contains("structured: Some(\"{\\\"ignore\\\":[1,\\\"é\\\\n\\\"]}\")"), "{seen}");
}
