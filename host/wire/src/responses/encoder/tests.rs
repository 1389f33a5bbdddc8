use super::*;
use serde_json::Map;
use tidegate_types::{Citation, TextLogprob, ToolCall, TopLogprob};

fn encoder(skin: Skin) -> ResponseEncoder {
    let (id, model, echo) = ("resp_1".into(), "m".into(), Map::new());
    ResponseEncoder::new(Head { id, created: 1, model, store: true, currency: "usd".into(), echo }, "u", skin, 100)
}

fn deltas() -> Vec<DeltaKind> {
    let text = |text: &str| DeltaKind::Text { text: text.into(), logprobs: Vec::new() };
    let call = ToolCall { id: "c1".into(), name: "f".into(), arguments: "{}".into() };
    vec![
        DeltaKind::Reasoning("hm".into()),
        text("a \"b\"\n"),
        text("c"),
        DeltaKind::Refusal("no".into()),
        DeltaKind::ToolCall { index: 0, call },
        DeltaKind::Finish(FinishReason::Stop),
    ]
}

fn run(skin: Skin, deltas: Vec<DeltaKind>, outcome: Result<(), Reject>) -> (ResponseEncoder, Ended, String) {
    let (mut encoder, mut out) = (encoder(skin), BytesMut::new());
    encoder.begin(&mut out);
    for kind in deltas {
        encoder.delta(&Delta { choice: 0, kind }, &mut out).unwrap();
    }
    encoder.usage(Usage { input_tokens: 3, cached_tokens: 1, output_tokens: 2, reasoning_tokens: Some(1) });
    let ended = encoder.end(outcome, &mut out);
    encoder.terminal(&ended, 2, &mut out);
    (encoder, ended, String::from_utf8(out.to_vec()).unwrap())
}

fn events(text: &str) -> Vec<Value> {
    let data = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    text.split("\n\n").filter(|event| !event.is_empty()).map(data).collect()
}

#[test]
fn typed_events_build_what_the_last_one_says() {
    let (encoder, ended, text) = run(Skin::Typed, deltas(), Ok(()));
    let events = events(&text);
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "content_part.added",
        "refusal.delta",
        "refusal.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds, expected.map(|kind| format!("response.{kind}")));
    let last = &events.last().unwrap()["response"];
    let done: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| &e["item"]).collect();
    assert_eq!(done, last["output"].as_array().unwrap().iter().collect::<Vec<_>>());
    assert_eq!(last["output"][1]["content"][0]["text"], "a \"b\"\nc");
    assert_eq!((&last["usage"]["total_tokens"], &last["completed_at"]), (&json!(5), &json!(2)));
    assert_eq!(last["usage"]["output_tokens_details"], json!({"reasoning_tokens": 1}));
    assert_eq!(last["output"].as_array().unwrap().len(), encoder.output().count());
    assert_eq!(last.to_string(), encoder.object(&ended, 2));
}

/// Each where its text is said: in the deltas, and wherever those are said again.
#[test]
fn log_probabilities_are_said_with_their_text_each_time() {
    let token = |text: &str, logprob| TopLogprob { token: text.into(), logprob, bytes: text.as_bytes().to_vec() };
    let delta = |text: &str| DeltaKind::Text {
        text: text.into(),
        logprobs: vec![TextLogprob {
            chosen: token(text, -0.1),
            top: vec![token(text, -0.1), token("x", -2.5)],
            end: None,
        }],
    };
    let deltas = vec![
        delta("a"),
        delta("b"),
        DeltaKind::Refusal("no".into()),
        delta("c"),
        DeltaKind::Finish(FinishReason::Stop),
    ];
    let mut encoder = ResponseEncoder { limit_bytes: 10_000, ..encoder(Skin::Typed) };
    let mut out = BytesMut::new();
    for kind in deltas.clone() {
        encoder.delta(&Delta { choice: 0, kind }, &mut out).unwrap();
    }
    let ended = encoder.end(Ok(()), &mut out);
    encoder.terminal(&ended, 2, &mut out);
    let events = events(std::str::from_utf8(&out).unwrap());
    let all = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let said: Vec<&Value> = all("response.output_text.delta").iter().map(|event| &event["logprobs"][0]).collect();
    assert_eq!(
        said[0],
        &json!({"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -0.1, "bytes": [97]}, {"token": "x", "logprob": -2.5, "bytes": [120]}]})
    );
    let texts = [json!([said[0], said[1]]), json!([said[2]])];
    for (event, tokens) in all("response.output_text.done").iter().zip(&texts) {
        assert_eq!(&event["logprobs"], tokens);
    }
    let parts = all("response.content_part.done");
    assert_eq!([&parts[0]["part"]["logprobs"], &parts[2]["part"]["logprobs"]], [&texts[0], &texts[1]]);
    assert_eq!(parts[1]["part"].get("logprobs"), None, "a refusal has none");
    let last = &events.last().unwrap()["response"];
    let content = &last["output"][0]["content"];
    assert_eq!([&content[0]["logprobs"], &content[2]["logprobs"]], [&texts[0], &texts[1]]);
    assert_eq!(all("response.output_item.done")[0]["item"]["content"], *content);
    // Read whole it says the same, and they count for how long an answer may be.
    let mut silent = ResponseEncoder { limit_bytes: 10_000, ..self::encoder(Skin::Silent) };
    for kind in deltas.clone() {
        silent.delta(&Delta { choice: 0, kind }, &mut out).unwrap();
    }
    let ended = silent.end(Ok(()), &mut out);
    assert_eq!(silent.object(&ended, 2), last.to_string());
    let mut short = self::encoder(Skin::Silent);
    let outcome = deltas.into_iter().try_for_each(|kind| short.delta(&Delta { choice: 0, kind }, &mut out));
    assert_eq!(outcome.unwrap_err().code.as_deref(), Some("answer_too_long"));
}

/// Each event that ends a text would be as large as all of its deltas.
#[test]
fn many_log_probabilities_are_said_by_the_deltas_and_the_whole_alone() {
    let chosen = TopLogprob { token: "a".into(), logprob: -0.1, bytes: vec![97] };
    let logprobs = vec![TextLogprob { chosen, top: Vec::new(), end: None }];
    let delta = Delta { choice: 0, kind: DeltaKind::Text { text: "a".into(), logprobs } };
    let finish = Delta { choice: 0, kind: DeltaKind::Finish(FinishReason::Stop) };
    let said = |most_bytes| {
        let mut encoder = ResponseEncoder { limit_bytes: 10_000, ..encoder(Skin::Typed) }.repeating(most_bytes);
        let mut out = BytesMut::new();
        [&delta, &delta, &finish].into_iter().for_each(|delta| encoder.delta(delta, &mut out).unwrap());
        let ended = encoder.end(Ok(()), &mut out);
        encoder.terminal(&ended, 2, &mut out);
        let events = events(std::str::from_utf8(&out).unwrap());
        let num = |kind: &str, at: &str| {
            let event = events.iter().find(|event| event["type"] == kind).unwrap();
            event.pointer(at).unwrap().as_array().unwrap().len()
        };
        [
            num("response.output_text.delta", "/logprobs"),
            num("response.output_text.done", "/logprobs"),
            num("response.content_part.done", "/part/logprobs"),
            num("response.output_item.done", "/item/content/0/logprobs"),
            num("response.completed", "/response/output/0/content/0/logprobs"),
        ]
    };
    assert_eq!((said(1000), said(100)), ([1, 2, 2, 2, 2], [1, 0, 0, 0, 2]));
}

#[test]
fn a_cut_answer_says_so_and_keeps_what_there_is() {
    let text = || DeltaKind::Text { text: "half".into(), logprobs: Vec::new() };
    let says_so = Reject::new(RejectKind::Invalid, Fault::Client, "stop").code("cancelled");
    for (deltas, outcome, status, event, reason) in [
        (
            vec![text(), DeltaKind::Finish(FinishReason::Length)],
            Ok(()),
            "incomplete",
            "incomplete",
            json!({"reason": "max_output_tokens"}),
        ),
        (vec![text()], Err(Reject::cancelled()), "cancelled", "incomplete", Value::Null),
        (vec![text()], Err(says_so), "failed", "failed", Value::Null),
        (vec![text()], Err(Reject::internal(Fault::Engine, "x")), "failed", "failed", Value::Null),
        (vec![text()], Ok(()), "failed", "failed", Value::Null),
    ] {
        let (encoder, ended, text) = run(Skin::Typed, deltas, outcome);
        let last = events(&text).pop().unwrap();
        assert_eq!(last["type"], format!("response.{event}"));
        assert_eq!((&last["response"]["status"], &last["response"]["incomplete_details"]), (&json!(status), &reason));
        assert_eq!(last["response"]["output"][0]["status"], "incomplete", "{status}");
        assert_eq!(last["response"]["output"][0]["content"][0]["text"], "half");
        assert_eq!(ended.status(), status);
        assert_eq!(encoder.output().next().unwrap().2, status == "incomplete");
    }
}

/// Whichever way it is read: of a call what follows says whether it was cut off.
#[test]
fn a_call_that_is_cut_says_so_in_its_event_too() {
    let call = |id: &str, arguments: &str| {
        let call = ToolCall { id: id.into(), name: "f".into(), arguments: arguments.into() };
        DeltaKind::ToolCall { index: 0, call }
    };
    let calls = |reason| vec![call("c1", "{}"), call("c2", "{\"a\":"), DeltaKind::Finish(reason)];
    for (reason, expected) in
        [(FinishReason::Length, ["completed", "incomplete"]), (FinishReason::ToolCalls, ["completed", "completed"])]
    {
        let (_, _, text) = run(Skin::Typed, calls(reason), Ok(()));
        let events = events(&text);
        let done = events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| &e["item"]);
        let last = &events.last().unwrap()["response"]["output"];
        assert_eq!(done.collect::<Vec<_>>(), last.as_array().unwrap().iter().collect::<Vec<_>>());
        assert_eq!([&last[0]["status"], &last[1]["status"]], expected);
    }
}

#[test]
fn what_a_text_is_made_from_is_said_where_it_ends_and_wherever_it_is_said_again() {
    let (mut encoder, mut out) = (encoder(Skin::Typed), BytesMut::new());
    let citation = Citation { source: "folder".into(), file: "docs/a.md".into(), title: None, bytes: Some((1, 5)) };
    encoder.report(Report { citations: vec![citation], ..Report::default() });
    for kind in deltas() {
        encoder.delta(&Delta { choice: 0, kind }, &mut out).unwrap();
    }
    // More that is known in the end does not change what the text was annotated with.
    let report = Report { cost: Some(5_000_000), left_out: 2, ..Report::default() };
    let ended = encoder.end(Ok(()), &mut out);
    encoder.report(report);
    encoder.terminal(&ended, 2, &mut out);
    let events = events(std::str::from_utf8(&out).unwrap());
    let added: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "response.output_text.annotation.added").collect();
    assert_eq!((added.len(), &added[0]["annotation_index"], &added[0]["output_index"]), (1, &json!(0), &json!(1)));
    let notes = json!([added[0]["annotation"]]);
    assert_eq!(notes[0]["file_id"], "docs/a.md");
    let part = events.iter().find(|event| event["part"]["text"] == "a \"b\"\nc").unwrap();
    assert_eq!((&part["type"], &part["part"]["annotations"]), (&json!("response.content_part.done"), &notes));
    let last = &events.last().unwrap()["response"];
    let done: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| &e["item"]).collect();
    assert_eq!(done, last["output"].as_array().unwrap().iter().collect::<Vec<_>>());
    assert_eq!(last["output"][1]["content"][0]["annotations"], notes);
    assert_eq!((&last["cost"], &last["context"]["left_out"]), (&json!({"value": 0.005, "currency": "usd"}), &json!(2)));
}

#[test]
fn the_simple_events_are_tokens_and_an_end() {
    let (_, _, text) = run(Skin::Simple, deltas(), Ok(()));
    let kinds: Vec<Value> = text
        .split("\n\n")
        .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok())
        .map(|event| json!([event["type"], event["text"]]))
        .collect();
    assert_eq!(
        json!(kinds),
        json!([
            ["reasoning", "hm"],
            ["token", "a \"b\"\n"],
            ["token", "c"],
            ["token", "no"],
            ["tool_call", null],
            ["done", null]
        ])
    );
    let (_, _, silent) = run(Skin::Silent, deltas(), Ok(()));
    assert_eq!(silent, "");
}

#[test]
fn an_endless_answer_is_cut() {
    let (mut encoder, mut out) = (encoder(Skin::Silent), BytesMut::new());
    let kind = DeltaKind::Text { text: "x".repeat(101), logprobs: Vec::new() };
    let reject = encoder.delta(&Delta { choice: 0, kind }, &mut out).unwrap_err();
    assert_eq!(reject.code.as_deref(), Some("answer_too_long"));
}
