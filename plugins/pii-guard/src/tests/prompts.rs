//! The guard on prompts.

use super::*;

pub(super) fn inspect(config: &str, messages: Vec<Message>) -> Verdict {
    let guard: PiiGuard = plugin(config);
    guard.inspect_prompt(&Context::default(), &Prompt { messages, ..Prompt::default() }).unwrap()
}

fn user(text: &str) -> Message {
    Message::text("m0", Role::User, text)
}

#[test]
fn a_prompt_is_redacted_by_default() {
    let mut message = user("Hi, ");
    message.parts.push(Part::Text("I am jo@example.com, +49 30 1234567".into()));
    let verdict = inspect("", vec![message]);
    let edit = |start, end, text: &str| Edit::ReplaceText {
        message_id: "m0".into(),
        part: 1,
        span: Span { start, end },
        text: text.into(),
    };
    assert_eq!(verdict.action, Action::Rewrite(vec![edit(5, 19, "[email]"), edit(21, 35, "[phone]")]));
    assert_eq!(verdict.findings[0].category, "pii:email");
    assert_eq!(verdict.findings[0].span, Some(Span { start: 9, end: 23 }), "spans count in joined text");
}

#[test]
fn block_refuses_and_flag_only_reports() {
    let verdict = inspect(r#"{"action":"block"}"#, vec![user("jo@example.com")]);
    let Action::Refuse(refusal) = verdict.action else { panic!("{verdict:?}") };
    assert_eq!((refusal.code.as_str(), refusal.private_reason.as_deref()), ("pii", Some("found email")));
    assert!(!refusal.public_message.contains("jo@"));
    let verdict = inspect(r#"{"action":"flag"}"#, vec![user("jo@example.com")]);
    assert_eq!((verdict.action, verdict.findings.len()), (Action::Allow, 1));
}

#[test]
fn only_chosen_kinds_and_roles_are_looked_at() {
    let text = "jo@example.com 4111111111111111";
    assert_eq!(inspect(r#"{"kinds":["card"]}"#, vec![user(text)]).findings.len(), 1);
    assert_eq!(inspect("", vec![Message::text("m0", Role::System, text)]).findings.len(), 0);
    assert_eq!(inspect(r#"{"roles":["system"]}"#, vec![user(text)]).findings.len(), 0);
}

#[test]
fn results_and_arguments_of_tools_are_redacted() {
    let call = ToolCall {
        id: "c1".into(),
        name: "send".into(),
        arguments: r#"{"to":"jo@example.com","card":4111111111111111}"#.into(),
    };
    let outcome = ToolOutcome::text(&call, "sent to jo@example.com");
    let mut message = Message::text("m0", Role::Assistant, "");
    message.parts = vec![Part::ToolCall(call), Part::ToolOutcome(outcome)];
    let Action::Rewrite(edits) = inspect("", vec![message]).action else { panic!() };
    assert_eq!(edits[0], Edit::SetArguments("c1".into(), r#"{"to":"[email]","card":"[card]"}"#.into()));
    assert!(matches!(&edits[1], Edit::ReplaceText { part: 1, .. }));
}

#[test]
fn what_is_split_over_parts_of_a_message_is_found() {
    let text = "I am jo@example.com, +49 30 1234567; 4111 1111 1111 1111 是 DE89 3704 0044 0532 0130 00.";
    let action = |message: &Message| inspect("", vec![message.clone()]).action;
    let left = assert_same_for_any_parts(text, action);
    assert_eq!(left, "I am [email], [phone]; [card] 是 [iban].");
    let mut hidden = user("x");
    hidden.parts.push(Part::Text("4111 1111 1111 1111".into()));
    assert_eq!(edited(&hidden, &action(&hidden)).parts[1], Part::Text("[card]".into()), "found alone");
}

#[test]
fn a_prompt_with_thousands_of_finds_is_redacted() {
    let padding = "and ".repeat(40);
    for (text, expected) in [
        ("jo@example.com\n".repeat(5_000), "[email]\n".repeat(5_000)),
        (format!("jo@example.com {padding}").repeat(5_000), format!("[email] {padding}").repeat(5_000)),
    ] {
        let message = user(&text);
        let verdict = inspect("", vec![message.clone()]);
        assert!(matches!(&verdict.action, Action::Rewrite(edits) if edits.len() <= 4_096));
        assert_eq!(edited(&message, &verdict.action).parts, [Part::Text(expected)]);
        assert_eq!(verdict.findings.len(), 256);
    }
    // More than a verdict can say: what is left would not be redacted.
    let verdict =
        inspect("", (0..5_000).map(|n| Message::text(&format!("m{n}"), Role::User, "jo@example.com")).collect());
    assert!(matches!(&verdict.action, Action::Refuse(refusal) if refusal.code == "pii"));
}

#[test]
fn escape_sequences_in_arguments_hide_nothing() {
    let json = r#"{"to":"jo\u0040example.com","card":-4111111111111111,"n":"密\u94a5"}"#;
    let expected = r#"{"to":"[email]","card":"[card]","n":"密\u94a5"}"#;
    assert_eq!(redacted("", Channel::ToolArguments("c1".into()), json), expected);
    let call = ToolCall { id: "c1".into(), name: "send".into(), arguments: json.into() };
    let message = Message { parts: vec![Part::ToolCall(call)], ..Message::text("m0", Role::Assistant, "") };
    let left = edited(&message, &inspect("", vec![message.clone()]).action);
    assert!(matches!(&left.parts[0], Part::ToolCall(call) if call.arguments == expected), "{left:?}");
}

#[test]
fn arguments_that_are_no_json_become_a_json_string() {
    let call = ToolCall { id: "c1".into(), name: "send".into(), arguments: "to jo@example.com".into() };
    let mut message = Message::text("m0", Role::Assistant, "");
    message.parts = vec![Part::ToolCall(call)];
    let Action::Rewrite(edits) = inspect("", vec![message]).action else { panic!() };
    assert_eq!(edits, [Edit::SetArguments("c1".into(), r#""to [email]""#.into())]);
}
