//! What is read, what is written, and what comes back.

use super::*;
use tidegate_types::{About, Citation, GuardAction, ToolRun, Transcript};

fn read_text(text: &str) -> Result<Vec<Message>, Reject> {
    let body = text.to_owned();
    read_whole(crate::json::parse(body.as_bytes()).unwrap(), &Path::ROOT.key("input"))
}

#[test]
fn items_come_back_as_they_were_given() {
    for given in [
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
        json!({"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "no"}]}),
        json!({"type": "message", "role": "user",
            "content": [{"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"}]}),
        json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "c1", "output": "4"}),
        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
    ] {
        let message = read_text(&json!([given]).to_string()).unwrap().remove(0);
        let mut written = item("i", &message, "completed");
        let members = written.as_object_mut().unwrap();
        assert_eq!((members.remove("id"), members.remove("status")), (Some("i".into()), Some("completed".into())));
        assert_eq!(written, given);
    }
}

#[test]
fn an_item_comes_back_with_all_that_was_told_of_it() {
    let mut known = Report { cost: Some(1), model_version: "m-1".into(), omitted: 1, ..Report::default() };
    known.judged("g", About::Answer, GuardAction::Allow, None, &[]);
    let (call_id, name, arguments) = ("c".to_owned(), "f".to_owned(), "{}".to_owned());
    known.tool_runs.push(ToolRun { call_id, name, arguments: Some(arguments), source: "p".into(), is_error: false });
    known.citations.push(Citation { source: "s".into(), file: "a.md".into(), title: None, bytes: None });
    let call = ToolCall { id: "c1".into(), name: "f".into(), arguments: "{}".into() };
    let outcome = ToolOutcome { call_id: "c1".into(), content: "4".into(), structured: None, is_error: false };
    for message in [
        one(Role::User, Part::Text("hi".into())),
        one(Role::Assistant, Part::Text("yes".into())),
        one(Role::Assistant, Part::ToolCall(call)),
        one(Role::Tool, Part::ToolOutcome(outcome)),
        one(Role::Assistant, Part::Reasoning("hm".into())),
    ] {
        let details = Details {
            parent_id: "p",
            message_id: "1",
            response_id: "r",
            model: "m",
            finish_reason: "stop",
            usage: Some(Usage::default()),
            report: Some(&known),
            ..Details::default()
        };
        let listed = detailed(item("i", &message, "completed"), details);
        let missing = DETAILS.iter().chain(&report::MEMBERS).find(|name| listed.get(**name).is_none());
        assert_eq!(missing, None, "{listed}");
        assert_eq!(read_text(&json!([listed]).to_string()).unwrap(), [message]);
    }
}

/// OpenAI's clients send what their `parse()` has read with the item that it is of.
#[test]
fn what_a_client_has_read_in_an_item_is_passed_over() {
    let said = json!({"type": "message", "role": "assistant", "content":
        [{"type": "output_text", "text": "{}", "annotations": [], "parsed": {"name": "x"}}]});
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "parsed_arguments": {}});
    let call_of = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    let expected = [one(Role::Assistant, Part::Text("{}".into())), one(Role::Assistant, Part::ToolCall(call_of))];
    assert_eq!(read_text(&json!([said, call]).to_string()).unwrap(), expected);
}

/// Servers write ids of kilobytes, and models names that nobody has offered.
#[test]
fn a_call_comes_back_as_it_was_handed_out() {
    let (id, name) = ("s".repeat(ToolCall::MAX_ID_BYTES), "functions.search");
    let call = ToolCall { id: id.clone(), name: name.into(), arguments: "{}".into() };
    let items = json!([item("i", &one(Role::Assistant, Part::ToolCall(call.clone())), "completed"),
        {"type": "function_call_output", "call_id": id, "name": name, "output": "x"}]);
    assert_eq!(read_text(&items.to_string()).unwrap()[0].parts, [Part::ToolCall(call)]);
    for (place, member, most) in [(0, "call_id", 65536), (0, "name", 256), (1, "call_id", 65536), (1, "name", 256)] {
        let mut items = items.clone();
        items[place][member] = "x".repeat(most + 1).into();
        let reject = read_text(&items.to_string()).unwrap_err();
        assert_eq!(reject.param, Some(format!("input[{place}].{member}")));
        assert!(reject.message.contains(&format!("at most {most} bytes")), "{}", reject.message);
    }
}

#[test]
fn a_wrong_item_is_refused_by_its_place() {
    for (given, param, code) in [
        (json!([{"role": "user"}]), "input[0].content", "missing_required_parameter"),
        (json!([{"role": "tool", "content": "x"}]), "input[0].role", "invalid_value"),
        (json!([{"role": "user", "content": "x", "foo": 1}]), "input[0].foo", "unsupported_parameter"),
        (
            json!([{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}]),
            "input[0].tool_calls",
            "unsupported_parameter",
        ),
        (json!([{"type": "item_reference", "id": "x"}]), "input[0]", "unsupported_parameter"),
        (json!([{"role": "user", "content": "x"}, {"id": "x"}]), "input[1]", "unsupported_parameter"),
        (json!([{"type": "item_reference"}]), "input[0].id", "missing_required_parameter"),
        (json!([{"type": "item_reference", "id": "x\u{0}"}]), "input[0].id", "invalid_value"),
        (json!([{"type": "item_reference", "id": "x", "content": "y"}]), "input[0].content", "unsupported_parameter"),
        (json!([{"id": "x", "status": "completed"}]), "input[0].role", "missing_required_parameter"),
        (json!([{"type": "web_search_call"}]), "input[0].type", "invalid_value"),
        (json!([{"role": "user", "content": [{"type": "input_file"}]}]), "input[0].content[0].type", "invalid_value"),
        (
            json!([{"role": "user", "content": [{"type": "input_note", "text": "x"}]}]),
            "input[0].content[0].type",
            "invalid_value",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_text", "text": "look", "image_url": "data:x"}]}]),
            "input[0].content[0].image_url",
            "unsupported_parameter",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_image", "text": "what is it?", "image_url": "data:x"}]}]),
            "input[0].content[0].text",
            "unsupported_parameter",
        ),
        (
            json!([{"role": "assistant", "content": [{"type": "refusal", "text": "a", "refusal": "b"}]}]),
            "input[0].content[0].text",
            "unsupported_parameter",
        ),
        (
            json!([{"type": "function_call", "name": "f", "arguments": "{}"}]),
            "input[0].call_id",
            "missing_required_parameter",
        ),
    ] {
        let reject = read_text(&given.to_string()).unwrap_err();
        assert_eq!((reject.param.as_deref(), reject.code.as_deref()), (Some(param), Some(code)), "{given}");
    }
}

#[test]
fn a_part_that_its_role_has_not_is_refused_with_those_that_it_has() {
    let image = json!([{"type": "input_image", "image_url": "data:x"}]);
    let said = |role: &str, content: &Value| json!({"role": role, "content": content});
    for (given, at, allowed) in [
        (
            json!({"type": "function_call_output", "call_id": "c", "output": image}),
            "output",
            "text (tools answer in text)",
        ),
        (said("system", &image), "content", "input_text, output_text, text"),
        (said("developer", &image), "content", "input_text, output_text, text"),
        (said("assistant", &image), "content", "input_text, output_text, text, refusal"),
        (said("user", &json!([{"type": "refusal", "refusal": "no"}])), "content", "output_text, text, input_image"),
    ] {
        let reject = read_text(&json!([given]).to_string()).unwrap_err();
        assert_eq!(reject.param, Some(format!("input[0].{at}[0].type")));
        let (named, found) = reject.message.split_once(", not ").unwrap();
        assert!(named.ends_with(allowed) && !named.contains(found.trim_matches('"')), "{}", reject.message);
    }
}

#[test]
fn what_a_model_said_in_one_turn_is_one_message() {
    let items = read_text(
        r#"[{"role":"user","content":"2+2?"},
            {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"add"}]},
            {"role":"assistant","content":"I will look."},
            {"type":"function_call","call_id":"a","name":"f","arguments":"{}"},
            {"type":"function_call","call_id":"b","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"b","output":"4"},
            {"type":"function_call_output","call_id":"a","output":"4"},
            {"role":"assistant","content":"4"},{"role":"assistant","content":"!"}]"#,
    );
    let messages = joined(items.unwrap()).unwrap();
    let shape: Vec<_> = messages.iter().map(|m| (m.role.as_str(), m.parts.len())).collect();
    assert_eq!(shape, [("user", 1), ("assistant", 4), ("tool", 1), ("tool", 1), ("assistant", 1), ("assistant", 1)]);
    let lonely = read_text(r#"[{"type":"function_call_output","call_id":"x","output":"4"}]"#).unwrap();
    assert_eq!(joined(lonely).unwrap_err().param.as_deref(), Some("input"));
}

/// A model reads them as one text, so that is what guards judge; kept items stay what they are.
#[test]
fn what_a_model_thought_or_declined_in_several_pieces_is_one_part() {
    let thought = |text: &str| json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]});
    let refusal = |text: &str| json!({"type": "refusal", "refusal": text});
    let said = json!({"role": "assistant", "content": [refusal("john.roe@exa"), refusal("mple.com")]});
    let items = read_text(&json!([thought("jane@exa"), thought("mple.com"), said]).to_string()).unwrap();
    assert_eq!(items[2].parts.len(), 2);
    let messages = joined(items).unwrap();
    let parts = [Part::Reasoning("jane@example.com".into()), Part::Refusal("john.roe@example.com".into())];
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].parts, parts);
}

/// As histories of reasoning models have them, and as callers do who say something while a tool runs.
#[test]
fn outcomes_are_put_behind_their_calls() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let outcome = |id: &str, output: &str| json!({"type": "function_call_output", "call_id": id, "output": output});
    let thought = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let user = json!({"role": "user", "content": "And?"});
    let shape = |items: Value| -> Vec<String> {
        let messages = joined(read_text(&items.to_string()).unwrap()).unwrap();
        let part = |part: &Part| match part {
            Part::ToolCall(call) => format!("call {}", call.id),
            Part::ToolOutcome(outcome) => format!("{} {}", outcome.call_id, outcome.content),
            Part::Reasoning(_) => "thought".to_owned(),
            _ => "text".to_owned(),
        };
        messages.iter().map(|message| message.parts.iter().map(part).collect::<Vec<_>>().join(", ")).collect()
    };
    assert_eq!(shape(json!([call("a"), user, outcome("a", "1")])), ["call a", "a 1", "text"]);
    let reasoned = json!([thought, call("a"), thought, call("b"), outcome("a", "1"), outcome("b", "2"), user]);
    assert_eq!(shape(reasoned), ["thought, call a", "a 1", "thought, call b", "b 2", "text"]);
    let apart = json!([call("a"), call("b"), outcome("a", "1"), user, outcome("b", "2")]);
    assert_eq!(shape(apart), ["call a, call b", "a 1", "b 2", "text"]);
    // An id that comes again is that of the last call.
    let again = json!([call("a"), outcome("a", "1"), call("a"), outcome("a", "2")]);
    assert_eq!(shape(again), ["call a", "a 1", "call a", "a 2"]);
}

#[test]
fn outcomes_whose_calls_do_not_stand_before_them_are_known_by_their_places() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let outcome = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "4"});
    let places = |items: Value| uncalled(&read_text(&items.to_string()).unwrap());
    let user = json!({"role": "user", "content": "And?"});
    assert_eq!(places(json!([call("a"), user, outcome("a"), outcome("a")])), [0; 0]);
    assert_eq!(places(json!([outcome("a"), call("a"), outcome("b"), call("b"), outcome("b")])), [0, 2]);
}

#[test]
fn calls_of_which_nothing_comes_behind_them_are_known_by_their_places() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let outcome = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "4"});
    let thought = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let user = json!({"role": "user", "content": "And?"});
    for (items, asked, places) in [
        (json!([call("a"), user, outcome("a")]), json!([user]), vec![]),
        (json!([user, call("a"), call("b")]), json!([outcome("b"), user, outcome("a")]), vec![]),
        (json!([user, call("a"), call("b"), outcome("a")]), json!([user]), vec![2]),
        (json!([outcome("a"), call("a")]), json!([user]), vec![1]),
        // Ids that are given again: each call has an outcome for itself.
        (json!([call("a"), user, call("a"), outcome("a")]), json!([call("a"), outcome("a")]), vec![0]),
        (json!([call("a"), call("a"), outcome("a"), outcome("a")]), json!([]), vec![]),
        // What was thought goes with all that came of it, and not without.
        (json!([user, thought, call("a"), call("b"), user]), json!([user]), vec![1, 2, 3]),
        (json!([user, thought, call("a"), call("b"), outcome("b")]), json!([user]), vec![2]),
        (json!([user, thought, user, call("a")]), json!([user]), vec![3]),
    ] {
        let [read, asked] = [&items, &asked].map(|items| read_text(&items.to_string()).unwrap());
        assert_eq!(unreturned(&read, &asked), places, "{items}");
    }
}

/// Neither a call without its outcome nor that without the call can be said to a model.
#[test]
fn what_is_pinned_of_a_turn_keeps_its_calls_and_what_came_of_them() {
    let turn = [
        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
        json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}),
        json!({"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "a", "output": "4"}),
        json!({"type": "function_call_output", "call_id": "b", "output": "5"}),
        json!({"role": "assistant", "content": "9"}),
    ];
    for (pinned, ids) in [
        (None, ["h0", "h3", "h4", "h5"]),
        (Some(0), ["p0", "p3", "p4", "h5"]),
        (Some(2), ["p0", "p3", "p4", "h5"]),
        (Some(3), ["p0", "p3", "p4", "h5"]),
        (Some(5), ["h0", "h3", "h4", "p5"]),
    ] {
        let mut items = read_text(&json!(turn).to_string()).unwrap();
        for (n, item) in items.iter_mut().enumerate() {
            item.id = if pinned == Some(n) { Transcript::pinned(n) } else { Transcript::earlier(n) };
        }
        let messages = joined(items).unwrap();
        let said: Vec<&str> = messages.iter().map(|message| message.id.as_str()).collect();
        assert_eq!(said, ids, "{pinned:?}");
    }
}

#[test]
fn outcomes_of_one_call_are_checked_in_one_pass() {
    let call = ToolCall { id: "a".into(), name: "f".into(), arguments: "{}".into() };
    let outcome = |id: &str| {
        let outcome = ToolOutcome { call_id: id.into(), content: "".into(), structured: None, is_error: false };
        one(Role::Tool, Part::ToolOutcome(outcome))
    };
    let mut messages = vec![one(Role::Assistant, Part::ToolCall(call))];
    messages.extend((0..200_000).map(|_| outcome("a")));
    messages.push(outcome("b"));
    // Looking back from each of them would take minutes.
    let (sender, checked) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || sender.send(unanswered(&messages).map(|(i, id)| (i, id.to_owned()))));
    let found = checked.recv_timeout(std::time::Duration::from_secs(30)).expect("it ends soon");
    assert_eq!(found, Some((200_001, "b".to_owned())));
}

#[test]
fn an_item_that_says_no_more_than_its_id_is_a_reference() {
    for given in [
        json!({"type": "item_reference", "id": "msg_1"}),
        json!({"type": null, "id": "msg_1"}),
        json!({"id": "msg_1"}),
        json!({"id": "msg_1", "role": null}),
    ] {
        let body = json!([given]).to_string();
        let read = read_list(crate::json::parse(body.as_bytes()).unwrap(), &Path::ROOT.key("input")).unwrap();
        assert_eq!(read, [Given::Reference("msg_1".into())], "{given}");
    }
    let message = read_text(r#"[{"type":null,"id":"msg_1","role":"user","content":"x"}]"#).unwrap();
    assert_eq!(message, [one(Role::User, Part::Text("x".into()))]);
}
