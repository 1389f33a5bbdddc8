use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_types::{FinishReason, TopLogprob};

fn head(form: Form) -> Head {
    Head { form, id: "id-\"1\"".into(), created: 9, model: "m\\".into(), citations: Vec::new() }
}

/// The JSON of each event; `[DONE]` as a string.
fn events(out: &BytesMut) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let parse = |event: &str| match event.strip_prefix("data: ").unwrap() {
        "[DONE]" => json!("[DONE]"),
        data => serde_json::from_str(data).unwrap(),
    };
    text.strip_suffix("\n\n").unwrap().split("\n\n").map(parse).collect()
}

fn delta(choice: u32, kind: DeltaKind) -> Delta {
    Delta { choice, kind }
}

fn text(choice: u32, text: &str) -> Delta {
    delta(choice, DeltaKind::Text { text: text.into(), logprobs: Vec::new() })
}

fn encode(form: Form, usage_chunk: UsageChunk, deltas: &[Delta]) -> Vec<Value> {
    let mut out = BytesMut::new();
    let mut encoder = StreamEncoder::new(head(form), 2, usage_chunk);
    deltas.iter().for_each(|delta| encoder.delta(delta, &mut out).unwrap());
    encoder.usage(Some(&Usage { input_tokens: 3, cached_tokens: 1, output_tokens: 4, ..Default::default() }), &mut out);
    encoder.done(&mut out);
    events(&out)
}

#[test]
fn the_last_event_of_a_choice_with_a_text_says_what_it_was_made_from() {
    let citation = Citation { source: "folder".into(), file: "docs/a.md".into(), title: None, bytes: Some((1, 5)) };
    let said = |form, deltas: &[Delta]| {
        let mut out = BytesMut::new();
        let head = Head { citations: vec![citation.clone()], ..head(form) };
        let mut encoder = StreamEncoder::new(head, 2, UsageChunk::Omit);
        deltas.iter().for_each(|delta| encoder.delta(delta, &mut out).unwrap());
        events(&out)
    };
    let stop = |choice| delta(choice, DeltaKind::Finish(FinishReason::Stop));
    let deltas = [text(0, "a"), text(0, "b"), text(1, ""), stop(0), stop(1)];
    let notes: Vec<Value> =
        said(Form::Chat, &deltas).iter().map(|event| event["choices"][0]["delta"]["citations"].clone()).collect();
    let cited = json!([{"type": "file_citation", "index": 0, "file_id": "docs/a.md", "filename": "a.md",
        "source": "folder", "start_byte": 1, "end_byte": 5}]);
    assert_eq!(notes, [json!(null), json!(null), json!(null), json!(null), json!(null), cited, json!(null)]);
    let completion = said(Form::Completion { echo: false }, &deltas);
    assert!(!completion.iter().any(|event| event.to_string().contains("citations")), "{completion:?}");
}

#[test]
fn a_chat_stream_is_openais() {
    let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{\"a\":1}".into() };
    let deltas = [
        text(0, "hi"),
        delta(0, DeltaKind::Reasoning("hm".into())),
        delta(0, DeltaKind::Refusal("no".into())),
        delta(1, DeltaKind::ToolCall { index: 0, call }),
        delta(1, DeltaKind::Finish(FinishReason::ToolCalls)),
        delta(0, DeltaKind::Finish(FinishReason::Stop)),
    ];
    let got = encode(Form::Chat, UsageChunk::Include, &deltas);
    let chunk = |index: u32, delta: Value, finish: Value| {
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
        json!({"id": "id-\"1\"", "object": "chat.completion.chunk", "created": 9, "model": "m\\",
            "choices": [choice], "usage": null})
    };
    let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
    let mut last = chunk(0, json!({}), json!(null));
    last["choices"] = json!([]);
    last["usage"] = json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1}});
    let expected = [
        chunk(0, json!({"role": "assistant", "content": ""}), json!(null)),
        chunk(0, json!({"content": "hi"}), json!(null)),
        chunk(0, json!({"reasoning_content": "hm"}), json!(null)),
        chunk(0, json!({"refusal": "no"}), json!(null)),
        chunk(1, json!({"role": "assistant", "content": null}), json!(null)),
        chunk(1, json!({"tool_calls": [call]}), json!(null)),
        chunk(1, json!({}), json!("tool_calls")),
        chunk(0, json!({}), json!("stop")),
        last,
        json!("[DONE]"),
    ];
    assert_eq!(got, expected);
}

#[test]
fn usage_stays_out_unless_asked_for() {
    let got = encode(Form::Chat, UsageChunk::Omit, &[text(0, "x")]);
    assert_eq!(got.len(), 3);
    assert!(got.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn reasoning_is_counted_where_it_is_known() {
    let mut out = BytesMut::new();
    let usage = Usage { output_tokens: 5, reasoning_tokens: Some(3), ..Usage::default() };
    StreamEncoder::new(head(Form::Chat), 1, UsageChunk::Include).usage(Some(&usage), &mut out);
    let told = &events(&out)[0]["usage"];
    assert_eq!(told["completion_tokens_details"], json!({"reasoning_tokens": 3}));
    assert_eq!((&told["completion_tokens"], &told["total_tokens"]), (&json!(5), &json!(5)));
}

#[test]
fn unknown_usage_is_said_to_be_unknown() {
    let mut out = BytesMut::new();
    StreamEncoder::new(head(Form::Chat), 1, UsageChunk::Include).usage(None, &mut out);
    assert_eq!((&events(&out)[0]["usage"], &events(&out)[0]["choices"]), (&Value::Null, &json!([])));
}

#[test]
fn a_completion_stream_counts_offsets_in_characters() {
    let token = |token: &str| TextLogprob {
        chosen: TopLogprob { token: token.into(), logprob: -0.5, bytes: token.into() },
        top: Vec::new(),
        end: None,
    };
    let with = |text: &str| DeltaKind::Text { text: text.into(), logprobs: vec![token(text)] };
    let deltas = [
        text(0, "pö"),
        delta(0, with("ä")),
        delta(0, with("b")),
        text(1, "pö"),
        text(1, "c"),
        delta(0, DeltaKind::Finish(FinishReason::Length)),
    ];
    let got = encode(Form::Completion { echo: true }, UsageChunk::Omit, &deltas);
    let choices: Vec<&Value> = got[..6].iter().map(|event| &event["choices"][0]).collect();
    let texts: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["pö", "ä", "b", "pö", "c", ""]);
    let offsets: Vec<&Value> = choices[1..3].iter().map(|choice| &choice["logprobs"]["text_offset"]).collect();
    assert_eq!(offsets, [&json!([2]), &json!([3])]);
    assert_eq!(choices[1]["logprobs"]["top_logprobs"], json!([{"ä": -0.5}]));
    assert_eq!(choices[5]["finish_reason"], "length");
    assert_eq!(got[0]["object"], "text_completion");
}

#[test]
fn logprobs_go_with_their_text() {
    let alternative = TopLogprob { token: "b".into(), logprob: f32::NEG_INFINITY, bytes: vec![98] };
    let token = TextLogprob {
        chosen: TopLogprob { token: "a".into(), logprob: -0.25, bytes: vec![97] },
        top: vec![alternative],
        end: None,
    };
    let kind = DeltaKind::Text { text: "a".into(), logprobs: vec![token] };
    let got = encode(Form::Chat, UsageChunk::Omit, &[delta(0, kind)]);
    let expected = json!({"content": [{"token": "a", "logprob": -0.25, "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": -9999.0, "bytes": [98]}]}], "refusal": null});
    assert_eq!(got[1]["choices"][0]["logprobs"], expected);
}

#[test]
fn an_error_ends_a_stream_in_band() {
    let mut out = BytesMut::new();
    error_event(
        &Reject::new(tidegate_types::RejectKind::BadUpstream, tidegate_types::Fault::Upstream, "cut"),
        &mut out,
    );
    assert_eq!(events(&out)[0]["error"]["message"], "cut");
}

#[test]
fn a_choice_nobody_asked_for_is_an_error() {
    let mut out = BytesMut::new();
    let mut encoder = StreamEncoder::new(head(Form::Chat), 2, UsageChunk::Omit);
    assert!(encoder.delta(&text(2, "x"), &mut out).is_err());
    assert!(out.is_empty());
}

proptest! {
    #[test]
    fn any_text_survives(texts in prop::collection::vec(any::<String>(), 1..8), chat in any::<bool>()) {
        let form = if chat { Form::Chat } else { Form::Completion { echo: false } };
        let deltas: Vec<Delta> = texts.iter().map(|t| text(0, t)).collect();
        let got = encode(form, UsageChunk::Include, &deltas);
        let skip = usize::from(chat);
        let back: Vec<&str> = got[skip..skip + texts.len()].iter().map(|event| {
            let choice = &event["choices"][0];
            if chat { &choice["delta"]["content"] } else { &choice["text"] }.as_str().unwrap()
        }).collect();
        prop_assert_eq!(back, texts);
    }
}

proptest! {
    /// What is read from outside an encrypted stream is the size of each event.
    #[test]
    fn the_size_of_an_event_says_nothing_of_a_token(token in "[ -~äß€]{0,8}", form in prop_oneof![
        Just(Form::Chat), Just(Form::Completion { echo: false })
    ]) {
        let sizes = |word: &str, padded: bool| {
            let mut out = BytesMut::new();
            let mut encoder = StreamEncoder::new(head(form), 1, UsageChunk::Omit).padded(padded);
            encoder.delta(&text(0, "first"), &mut out).unwrap();
            let before = out.len();
            encoder.delta(&text(0, word), &mut out).unwrap();
            let event = events(&out).pop().unwrap();
            prop_assert_eq!(event.get("obfuscation").is_some(), padded);
            Ok(out.len() - before)
        };
        prop_assert_eq!(sizes(&token, true)?, sizes("I", true)?);
        // And it could be read without.
        if token.is_ascii() && token.len() > 3 {
            prop_assert!(sizes(&token, false)? > sizes("I", false)?);
        }
    }
}
