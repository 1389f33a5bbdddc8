use super::*;
use crate::head::Head;
use crate::sse::SseReader;
use crate::stream::{StreamEncoder, UsageChunk};
use bytes::BytesMut;
use proptest::prelude::*;
use tidegate_types::{Form, ToolCall};

fn reader(n: u32) -> AnswerReader {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],"n":{n}}}"#);
    AnswerReader::new(&crate::parse_chat(body.as_bytes()).unwrap().chat, String::new)
}

/// What the events say, or the first error.
fn read(n: u32, events: &[&str]) -> Result<Vec<Received>, WireError> {
    let mut reader = reader(n);
    let mut out = VecDeque::new();
    for event in events {
        reader.event(event.as_bytes(), &mut out)?;
    }
    Ok(out.into())
}

/// The same without the pieces of calls, which are told again when they are whole.
fn told(received: impl IntoIterator<Item = Received>) -> Vec<Received> {
    received.into_iter().filter(|received| !matches!(received, Received::Piece(_))).collect()
}

fn reasoning(text: &str) -> Received {
    delta(DeltaKind::Reasoning(text.into()))
}

fn text(text: &str) -> Received {
    delta(DeltaKind::Text { text: text.into(), logprobs: Vec::new() })
}

fn delta(kind: DeltaKind) -> Received {
    Received::Delta(Delta { choice: 0, kind })
}

const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

#[test]
fn a_common_stream_is_read() {
    let got = read(
        1,
        &[
            r#"{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a\n"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"length"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":1}}}"#,
            "[DONE]",
        ],
    );
    let usage = Usage { input_tokens: 5, cached_tokens: 4, output_tokens: 2, reasoning_tokens: Some(1) };
    let expected = [
        text("a\n"),
        text("b"),
        delta(DeltaKind::Finish(FinishReason::Length)),
        Received::Usage(usage),
        Received::Done,
    ];
    assert_eq!(got.unwrap(), expected);
}

#[test]
fn variants_of_servers_are_read() {
    let got = read(1, &[r#"{"choices":[{"delta":{"reasoning":"hm","content":null}}]}"#, STOP]).unwrap();
    assert_eq!(got[0], delta(DeltaKind::Reasoning("hm".into())));
    let got = read(
        1,
        &[STOP, r#"{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#, "[DONE]"],
    );
    assert_eq!(got.unwrap().len(), 3);
    let got = read(1, &[r#"{"choices":[{"text":"t","index":0,"finish_reason":"eos"}]}"#]).unwrap();
    assert_eq!(got, [text("t"), delta(DeltaKind::Finish(FinishReason::Stop))]);
}

#[test]
fn what_a_chunk_says_twice_is_read_once() {
    let twice = r#"{"choices":[{"index":0,"text":"Hello","delta":{"role":"assistant","content":"Hello"}}]}"#;
    assert_eq!(read(1, &[twice]).unwrap(), [text("Hello")]);
    let reasons = r#"{"choices":[{"index":0,"text":"hm","delta":{"content":"","reasoning":"hm"}}]}"#;
    assert_eq!(read(1, &[reasons]).unwrap(), [reasoning("hm")]);
    let chat = crate::parse_completion(br#"{"model":"m","prompt":"x"}"#).unwrap().chat;
    let mut out = VecDeque::new();
    AnswerReader::new(&chat, String::new).event(twice.as_bytes(), &mut out).unwrap();
    assert_eq!(out, [text("Hello")]);
}

#[test]
fn content_in_parts_is_text_and_reasoning() {
    let parts = r#"[{"type":"thinking","thinking":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"type":"text","text":"c"},{"type":"reference","reference_ids":[1]},{"type":"text","text":"d"}]"#;
    let event = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{parts}}}}}]}}"#);
    assert_eq!(read(1, &[&event]).unwrap(), [reasoning("ab"), text("cd")]);
    let whole = format!(r#"{{"choices":[{{"message":{{"content":{parts}}},"finish_reason":"model_length"}}]}}"#);
    let mut out = VecDeque::new();
    reader(1).whole(whole.as_bytes(), &mut out).unwrap();
    let end = delta(DeltaKind::Finish(FinishReason::Length));
    assert_eq!(out, [reasoning("ab"), text("cd"), end, Received::Done]);
}

#[test]
fn more_reasoning_than_was_generated_is_not_part_of_it() {
    let usage =
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":3}}}"#;
    let expected = Usage { input_tokens: 1, output_tokens: 2, ..Usage::default() };
    assert_eq!(read(1, &[usage]).unwrap(), [Received::Usage(expected)]);
}

#[test]
fn tool_calls_leave_whole_before_the_end_and_correct_a_wrong_reason() {
    let got = read(
        1,
        &[
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#,
            STOP,
            "[DONE]",
        ],
    );
    let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    let end = delta(DeltaKind::Finish(FinishReason::ToolCalls));
    let pieces = [Received::Piece(2), Received::Piece(2)];
    let expected = [&pieces[..], &[delta(DeltaKind::ToolCall { index: 0, call }), end, Received::Done]].concat();
    assert_eq!(got.unwrap(), expected);
}

/// Whatever comes besides, for a stream may have as many events as it likes.
#[test]
fn what_waits_for_the_end_or_for_text_is_bounded() {
    let long = "x".repeat(4 << 20);
    let piece = format!(
        r#"{{"choices":[{{"delta":{{"content":"a","tool_calls":[{{"index":0,"id":"c","function":{{"arguments":"{long}"}}}}]}}}}]}}"#
    );
    let token = format!(
        r#"{{"choices":[{{"index":1,"delta":{{}},"logprobs":{{"content":[{{"token":"{long}","logprob":-1}}]}}}}]}}"#
    );
    let feed = |events: &[&str]| {
        let (mut reader, mut out) = (reader(2), VecDeque::new());
        (0..40).find_map(|i| {
            out.clear();
            reader.event(events[i % events.len()].as_bytes(), &mut out).err().map(|error| (i, error))
        })
    };
    let too_long = WireError::TooLong { limit_bytes: 64 << 20 };
    assert_eq!(feed(&[&piece]), Some((15, too_long.clone())));
    assert_eq!(feed(&[&token]), Some((7, too_long.clone())), "once as text and once as bytes");
    assert_eq!(feed(&[&piece, &token]), Some((10, too_long)));
    let text = r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#;
    assert_eq!(feed(&[&token, text]), None, "what has its text waits no more");
}

#[test]
fn other_servers_words_for_an_end_are_known_in_any_case() {
    for (word, reason) in [
        ("STOP", FinishReason::Stop),
        ("MAX_TOKENS", FinishReason::Length),
        ("tool_use", FinishReason::ToolCalls),
        ("SAFETY", FinishReason::ContentFilter),
        ("PROHIBITED_CONTENT", FinishReason::ContentFilter),
        ("RECITATION", FinishReason::ContentFilter),
        ("refusal", FinishReason::ContentFilter),
    ] {
        let end = format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{word}"}}]}}"#);
        let got = read(1, &[&end, "[DONE]"]).unwrap();
        assert_eq!(got, [delta(DeltaKind::Finish(reason)), Received::Done], "{word}");
    }
}

#[test]
fn usage_that_cannot_be_read_is_none() {
    for usage in [r#"{"prompt_tokens":null,"completion_tokens":3}"#, r#"{"prompt_tokens":-1}"#, "[]", "null", r#""9""#]
    {
        let chunk = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"a"}}}}],"usage":{usage}}}"#);
        assert_eq!(read(1, &[&chunk]).unwrap(), [text("a")], "{usage}");
    }
}

#[test]
fn logprobs_wait_for_their_text() {
    let got = read(
        1,
        &[
            r#"{"choices":[{"index":0,"delta":{"content":""},"logprobs":{"content":[{"token":"\\xe2","logprob":-1,"bytes":[226],"top_logprobs":[]}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"b","logprob":null,"bytes":null,"top_logprobs":[{"token":"c","logprob":-2.5}]}]}}]}"#,
        ],
    );
    let got = got.unwrap();
    let [Received::Delta(Delta { kind: DeltaKind::Text { logprobs, .. }, .. })] = &got[..] else { panic!("{got:?}") };
    assert_eq!(logprobs.len(), 2);
    assert_eq!((&logprobs[0].chosen.bytes[..], logprobs[1].chosen.bytes.as_slice()), (&[226][..], &b"b"[..]));
    assert_eq!((logprobs[1].chosen.logprob, logprobs[1].top[0].logprob), (f32::NEG_INFINITY, -2.5));
    let legacy = r#"{"choices":[{"index":0,"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[null,-1.5],"top_logprobs":[null,{"b":-1.5,"a":-0.5}],"text_offset":[0,1]}}]}"#;
    let got = read(1, &[legacy]).unwrap();
    let [Received::Delta(Delta { kind: DeltaKind::Text { logprobs, .. }, .. })] = &got[..] else { panic!("{got:?}") };
    assert_eq!(logprobs[1].top.iter().map(|top| top.token.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn what_is_outside_of_the_protocol_is_an_error() {
    let malformed = |events: &[&str], words: &str| {
        let error = read(1, events).unwrap_err();
        assert!(matches!(&error, WireError::Malformed(what) if what.contains(words)), "{error}");
    };
    malformed(&["not json"], "not OpenAI's");
    malformed(&[r#"{"choices":[{"index":0,"delta":{"content":5}}]}"#], "not OpenAI's");
    malformed(&[r#"{"choices":[{"index":0,"delta":{"content":[{"type":"audio"}]}}]}"#], "a part of the type \"audio\"");
    malformed(&[r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#], "choice 1 of 1");
    malformed(&[r#"{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#], "\"abort\"");
    malformed(&[STOP, r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#], "after the end");
    assert!(
        matches!(read(1, &[r#"{"error":{"message":"boom","code":500}}"#]), Err(WireError::Failed(f)) if f.message == "boom")
    );
    assert_eq!(read(2, &[STOP, "[DONE]"]), Err(WireError::BrokeOff { choice: 1 }));
}

#[test]
fn a_whole_answer_is_read_like_a_stream() {
    let body = br#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi",
        "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
        "finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
    let mut out = VecDeque::new();
    reader(1).whole(body, &mut out).unwrap();
    assert_eq!(out.len(), 5);
    assert!(reader(1).whole(br#"{"choices":[]}"#, &mut out).is_err());
}

#[test]
fn of_an_answer_that_is_said_twice_a_stream_takes_what_is_new_and_a_body_the_whole() {
    let said = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"The sea"},"delta":{"content":" sea"},
        "finish_reason":"stop"}]}"#;
    let stop = delta(DeltaKind::Finish(FinishReason::Stop));
    assert_eq!(read(1, &[said]).unwrap(), [text(" sea"), stop.clone()]);
    let mut out = VecDeque::new();
    reader(1).whole(said.as_bytes(), &mut out).unwrap();
    assert_eq!(Vec::from(out), [text("The sea"), stop.clone(), Received::Done]);
    let none = r#"{"choices":[{"index":0,"message":null,"delta":{"content":"x"}}]}"#;
    assert_eq!(read(1, &[none, STOP]).unwrap(), [text("x"), stop]);
}

#[test]
fn each_entry_of_a_whole_answer_is_a_call_of_its_own() {
    for id in ["", r#""id":"","#, r#""id":"same","#] {
        let call = |city: &str| format!(r#"{{{id}"function":{{"name":"w","arguments":"{{\"c\":\"{city}\"}}"}}}}"#);
        let (a, b) = (call("A"), call("B"));
        let body = format!(r#"{{"choices":[{{"message":{{"tool_calls":[{a},{b}]}},"finish_reason":"tool_calls"}}]}}"#);
        let mut out = VecDeque::new();
        reader(1).whole(body.as_bytes(), &mut out).unwrap();
        let arguments = |received: &Received| match received {
            Received::Delta(Delta { kind: DeltaKind::ToolCall { call, .. }, .. }) => Some(call.arguments.clone()),
            _ => None,
        };
        let calls: Vec<String> = out.iter().filter_map(arguments).collect();
        assert_eq!(calls, [r#"{"c":"A"}"#, r#"{"c":"B"}"#], "{body}");
    }
}

#[test]
fn reasoning_that_is_counted_beside_what_is_generated_is_part_of_it() {
    let read_usage = |completion: u64, reasoning: u64, total: u64| {
        let details = format!(r#""completion_tokens_details":{{"reasoning_tokens":{reasoning}}}"#);
        let usage = format!(
            r#"{{"usage":{{"prompt_tokens":12,"completion_tokens":{completion},"total_tokens":{total},{details}}}}}"#
        );
        match read(1, &[&usage]).unwrap().as_slice() {
            [Received::Usage(usage)] => (usage.output_tokens, usage.reasoning_tokens),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read_usage(2, 317, 331), (319, Some(317)));
    assert_eq!(read_usage(400, 317, 729), (717, Some(317)));
    assert_eq!(read_usage(400, 317, 412), (400, Some(317)));
    assert_eq!(read_usage(2, 317, 14), (2, None));
    assert_eq!(read_usage(2, u64::MAX, u64::MAX), (2, None));
}

#[test]
fn an_event_that_is_an_error_itself_is_a_failure() {
    let failure = |event: &str| match read(1, &[event]) {
        Err(WireError::Failed(failure)) => (failure.message, failure.status),
        other => panic!("{event}: {other:?}"),
    };
    let flat = r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#;
    assert_eq!(failure(flat), ("too long".into(), Some(400)));
    assert_eq!(failure(r#"{"detail":"Not Found"}"#), ("Not Found".into(), None));
    assert_eq!(failure(r#"{"choices":[],"message":"busy","code":503}"#), ("busy".into(), Some(503)));
    assert_eq!(read(1, &[r#"{"choices":[],"message":null,"detail":null}"#]).unwrap(), []);
}

#[test]
fn the_mark_of_the_end_may_have_white_space_behind_it() {
    for mark in ["[DONE]", "[DONE] ", "[DONE]\t\n"] {
        assert_eq!(read(1, &[STOP, mark]).unwrap().last(), Some(&Received::Done), "{mark:?}");
    }
}

#[test]
fn calls_behind_the_end_of_their_choice_belong_to_it_until_all_has_ended() {
    let end = |id: &str| {
        let call = format!(r#"{{"index":0,"id":"{id}","function":{{"name":"f","arguments":"{{}}"}}}}"#);
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}},"finish_reason":"tool_calls"}}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#
        )
    };
    let (a, b) = (end("a"), end("b"));
    let usage = Received::Usage(Usage { input_tokens: 1, output_tokens: 2, ..Usage::default() });
    let call = |index: u32, id: &str| {
        let call = ToolCall { id: id.into(), name: "f".into(), arguments: "{}".into() };
        delta(DeltaKind::ToolCall { index, call })
    };
    let ended = [call(0, "a"), call(1, "b"), delta(DeltaKind::Finish(FinishReason::ToolCalls))];
    // What is counted before the calls leave is of them, too.
    let counted = [&ended[..], &[usage]].concat();
    assert_eq!(told(read(1, &[&a, &b]).unwrap()), []);
    assert_eq!(told(read(1, &[&a, &b, "[DONE]"]).unwrap()), [&counted[..], &[Received::Done]].concat());
    let last = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    assert_eq!(told(read(1, &[&a, &b, last]).unwrap()), counted);
    for events in [[STOP, b.as_str()], [&a, r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#]] {
        let error = read(1, &events).unwrap_err();
        assert!(matches!(&error, WireError::Malformed(what) if what.contains("after the end of choice 0")), "{error}");
    }
    let (mut reader, mut out) = (reader(1), VecDeque::new());
    reader.event(a.as_bytes(), &mut out).unwrap();
    reader.end(&mut out).unwrap();
    assert_eq!(told(out), [&ended[..1], &counted[2..]].concat());
}

#[test]
fn an_event_without_data_says_nothing() {
    assert_eq!(read(1, &["", "\n", STOP]).unwrap(), read(1, &[STOP]).unwrap());
}

fn any_delta() -> impl Strategy<Value = DeltaKind> {
    let text = "(?s).{1,12}";
    prop_oneof![
        text.prop_map(|text| DeltaKind::Text { text, logprobs: Vec::new() }),
        text.prop_map(DeltaKind::Reasoning),
        text.prop_map(DeltaKind::Refusal),
    ]
}

proptest! {
    /// What our own server streams, our own client reads back, through any chunking of the network.
    #[test]
    fn our_own_streams_read_back(
        kinds in prop::collection::vec((0u32..2, any_delta()), 0..20),
        arguments in "[ -~]{1,20}",
        reasoning_tokens in prop::option::of(0u64..=2),
        step in 1usize..90,
    ) {
        let call = ToolCall { id: "c".into(), name: "f".into(), arguments: format!("x{arguments}") };
        let mut deltas: Vec<Delta> = kinds.into_iter().map(|(choice, kind)| Delta { choice, kind }).collect();
        deltas.push(Delta { choice: 0, kind: DeltaKind::ToolCall { index: 0, call } });
        deltas.push(Delta { choice: 0, kind: DeltaKind::Finish(FinishReason::ToolCalls) });
        deltas.push(Delta { choice: 1, kind: DeltaKind::Finish(FinishReason::Length) });
        let usage = Usage { input_tokens: 1, cached_tokens: 1, output_tokens: 2, reasoning_tokens };

        let head = Head { form: Form::Chat, id: "i".into(), created: 1, model: "m".into(), citations: vec![] };
        let mut encoder = StreamEncoder::new(head, 2, UsageChunk::Include);
        let mut bytes = BytesMut::new();
        deltas.iter().for_each(|delta| encoder.delta(delta, &mut bytes).unwrap());
        encoder.usage(Some(&usage), &mut bytes);
        encoder.done(&mut bytes);

        let (mut sse, mut reader, mut out) = (SseReader::new(1 << 16), reader(2), VecDeque::new());
        for chunk in bytes.chunks(step) {
            sse.push(chunk);
            while let Some(event) = sse.next_event().unwrap() {
                reader.event(event, &mut out).unwrap();
            }
        }
        let mut expected: Vec<Received> = deltas.into_iter().map(Received::Delta).collect();
        expected.extend([Received::Usage(usage), Received::Done]);
        prop_assert_eq!(told(out), expected);
    }

    #[test]
    fn no_bytes_of_an_upstream_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut out = VecDeque::new();
        let _ = reader(1).event(&data, &mut out);
        let _ = Failure::parse(&data);
        let _ = crate::client::listed_models(&data);
    }
}
