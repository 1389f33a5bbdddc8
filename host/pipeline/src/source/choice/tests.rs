//! The bundled model's tokenizer, and tokens as a model could have sampled them.

use super::*;
use crate::holdback::{AtCap, Holdback};
use proptest::prelude::*;
use std::path::Path;
use std::sync::OnceLock;
use tidegate_sandbox::stage::{Inspection, Redaction, WindowAction};
use tidegate_text::{AddSpecial, Dialect, ReasoningTags, ToolFormat};
use tidegate_types::Span;

fn starter() -> Arc<TextModel> {
    static MODEL: OnceLock<Arc<TextModel>> = OnceLock::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    Arc::clone(MODEL.get_or_init(|| Arc::new(TextModel::open(&dir).expect("the starter model opens"))))
}

/// What the client gets of an answer, and the text that its log-probabilities belong to.
#[derive(Debug, Default, PartialEq)]
struct Told {
    text: String,
    calls: Vec<String>,
    stopped: bool,
    tokens: String,
}

/// Generates `text` token by token; then the answer is over, or a limit cuts it off.
fn tell(text: &str, stop: &[&str], is_cut: bool) -> Told {
    let model = starter();
    let turn = EngineTurn {
        prompt: Vec::new(),
        sampling: Vec::new(),
        max_tokens: 100,
        stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
        reading: Reading::Chat { tools: true },
        single_call: false,
        grammar: None,
    };
    let mut choice = ChoiceText::new(Arc::clone(&model), &turn).expect("a choice");
    let (mut out, mut told) = (Vec::new(), Told::default());
    for id in model.encode(text, AddSpecial::No).expect("text encodes") {
        let token = SampledToken { id, logprob: Some(-0.5), top: Vec::new() };
        if choice.push(&token, &mut out) {
            told.stopped = true;
            break;
        }
    }
    told.stopped = told.stopped || choice.finish(is_cut, &mut out);
    for kind in out {
        match kind {
            DeltaKind::Text { text, logprobs } => {
                told.text += &text;
                told.tokens.extend(logprobs.into_iter().map(|logprob| logprob.chosen.token));
            }
            DeltaKind::ToolCall { call, .. } => told.calls.push(call.arguments),
            other => panic!("unexpected {other:?}"),
        }
    }
    told
}

const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"a\\nb STOP\"}}</tool_call>";

#[test]
fn a_stop_string_ends_the_text_and_not_a_tool_call() {
    let told = tell(&format!("Let me see.{CALL}"), &["STOP", "\\n", "}"], false);
    assert_eq!(told.calls, ["{\"x\":\"a\\nb STOP\"}"]);
    assert_eq!((told.text.as_str(), told.stopped), ("Let me see.", false));
    let told = tell("One two STOP three", &["STOP"], false);
    assert_eq!((told.text.as_str(), told.stopped), ("One two ", true));
}

#[test]
fn a_tool_call_that_a_limit_cut_off_is_neither_a_call_nor_text() {
    for end in "<tool_call>".len()..CALL.len() - "}</tool_call>".len() {
        let told = tell(&format!("So.{}", &CALL[..end]), &[], true);
        assert_eq!((told.text.as_str(), told.calls.len()), ("So.", 0), "cut at {end}");
    }
    let ended = tell(&format!("So.{}", &CALL[..30]), &[], false);
    assert_eq!(ended.text, format!("So.{}", &CALL[..30]), "what the model itself left open is text");
}

#[test]
fn logprobs_go_with_their_text() {
    let text = "Boats leave at noon, and again at six. Ask at the pier.";
    let whole = tell(text, &["never"], false);
    assert_eq!((whole.text.as_str(), whole.tokens.as_str()), (text, text));
    for stop in ["noon", "oon", "n,", ". A", " at six", "e", "pier."] {
        let told = tell(text, &[stop], false);
        assert!(told.stopped && told.tokens.starts_with(&told.text), "{stop}: {told:?}");
        assert!(text.starts_with(&told.tokens), "{stop}: {told:?}");
    }
}

#[test]
fn a_stop_string_that_waited_behind_white_space_is_found_at_the_end() {
    let told = tell("Done.\n\n", &["\n\n"], false);
    assert_eq!((told.text.as_str(), told.stopped), ("Done.", true));
}

/// Before it is known what follows, white space may be that beside a call, which is none of the answer's text.
#[test]
fn a_stop_string_of_white_space_ends_text_and_leaves_a_call_behind_it() {
    let stop = ["\n", "\n\n"];
    let told = tell("Done.\n\nAnd more.", &stop, false);
    assert_eq!((told.text.as_str(), told.stopped), ("Done.", true));
    let told = tell(&format!("Let me see.\n\n{CALL}\n{CALL}"), &stop, false);
    assert_eq!((told.text.as_str(), told.calls.len(), told.stopped), ("Let me see.", 2, false));
}

#[test]
fn tokens_of_reasoning_are_counted_where_it_is_told_from_the_rest() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    let count = |said: &str, reading, tags: Option<ReasoningTags>| {
        let model = TextModel::open(&dir).expect("the starter model opens");
        let model = Arc::new(model.with_dialect(Dialect { tools: ToolFormat::None, reasoning: tags }));
        let (prompt, sampling, stop) = (Vec::new(), Vec::new(), Vec::new());
        let turn = EngineTurn { prompt, sampling, max_tokens: 100, stop, reading, single_call: false, grammar: None };
        let mut choice = ChoiceText::new(Arc::clone(&model), &turn).expect("a choice");
        let ids = model.encode(said, AddSpecial::No).expect("text encodes");
        let total = ids.len() as u64;
        for id in ids {
            choice.push(&SampledToken { id, logprob: None, top: Vec::new() }, &mut Vec::new());
        }
        (choice.reasoning_tokens(), total)
    };
    let chat = Reading::Chat { tools: false };
    let tags = || Some(ReasoningTags { open: "<think>".into(), close: "</think>".into() });
    assert_eq!(count("Four.", chat, tags()).0, Some(0));
    assert_eq!((count("Four.", chat, None).0, count("Four.", Reading::Verbatim, tags()).0), (None, None));
    let (_, thought) = count("two and two", chat, None);
    let (reasoned, total) = count("<think>two and two</think>Four.", chat, tags());
    assert!(reasoned.is_some_and(|reasoned| reasoned >= thought && reasoned < total), "{reasoned:?} of {total}");
    // What follows the reasoning counts no more.
    let (longer, _) = count("<think>two and two</think>Four. And four more.", chat, tags());
    assert_eq!(longer, reasoned);
}

/// The bundled model's tokens below this are special: they have bytes and no text.
const SPECIAL: u32 = 3;
/// Its ` water`.
const WATER: u32 = 959;

/// The events of a model that draws these tokens, until a stop string ends them.
fn drawn(ids: &[u32], stop: &[&str], reading: Reading) -> Vec<(String, Vec<TextLogprob>)> {
    drawn_by(starter(), ids, stop, reading)
}

/// As [`drawn`]; each token is its own alternative.
fn drawn_by(model: Arc<TextModel>, ids: &[u32], stop: &[&str], reading: Reading) -> Vec<(String, Vec<TextLogprob>)> {
    let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
    let (prompt, sampling) = (Vec::new(), Vec::new());
    let turn = EngineTurn { prompt, sampling, max_tokens: 100, stop, reading, single_call: false, grammar: None };
    let mut choice = ChoiceText::new(model, &turn).expect("a choice");
    let mut out = Vec::new();
    let draw = |id: &u32| SampledToken { id: *id, logprob: Some(-0.5), top: vec![(*id, -0.5)] };
    if !ids.iter().map(draw).any(|token| choice.push(&token, &mut out)) {
        choice.finish(false, &mut out);
    }
    let text = |kind| match kind {
        DeltaKind::Text { text, logprobs } => Some((text, logprobs)),
        _ => None,
    };
    out.into_iter().filter_map(text).collect()
}

/// What a client reads of events behind a guard that redacts `water` and lets the rest go at once, and the tokens it gets.
fn redacted(events: Vec<(String, Vec<TextLogprob>)>) -> (String, Vec<TextLogprob>) {
    let (mut held, mut read, mut tokens) = (Holdback::default(), String::new(), Vec::new());
    for (text, logprobs) in events.into_iter().chain([(String::new(), Vec::new())]) {
        held.push(&text, logprobs);
        let (settled, safe_through) = (held.window().settled, held.window().text.len() as u32);
        let redact = |(at, word): (usize, &str)| {
            let start = settled + at as u32;
            Redaction { span: Span { start, end: start + word.len() as u32 }, text: "[x]".into() }
        };
        let action = WindowAction::Redact(held.pending().match_indices("water").map(redact).collect());
        let inspection = Inspection { action, safe_through, carry: Vec::new(), findings: Vec::new() };
        let released = held.apply(inspection, true, 0, AtCap::Halt).expect("it can be followed");
        read += &released.text;
        tokens.extend(released.logprobs);
    }
    (read, tokens)
}

fn joined(tokens: &[TextLogprob]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.chosen.bytes.iter().copied()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #[test]
    fn tokens_say_where_their_own_text_ends(
        ids in prop::collection::vec(prop_oneof![0..SPECIAL, 0..4096_u32, Just(WATER)], 0..40),
        stop in prop::option::of(prop::sample::select(vec!["ter", "e", " ", "wat"])),
        reading in prop::sample::select(vec![Reading::Verbatim, Reading::Chat { tools: true }]),
    ) {
        let stop: Vec<&str> = stop.into_iter().collect();
        let events = drawn(&ids, &stop, reading);
        let told: String = events.iter().map(|(text, _)| text.as_str()).collect();
        let placed: usize = events.iter().flat_map(|(_, tokens)| tokens).filter(|token| token.end.is_some()).count();
        let (read, tokens) = redacted(events);
        for token in &tokens {
            let end = usize::try_from(token.end.expect("a place")).expect("in the text");
            prop_assert_eq!(&read.as_bytes()[end - token.chosen.bytes.len()..end], &*token.chosen.bytes);
        }
        // Characters that no token began whole are replaced in the text, and are none of a token's.
        if stop.is_empty() && reading == Reading::Verbatim && !told.contains(['\u{fffd}']) {
            prop_assert_eq!(placed, ids.iter().filter(|id| **id >= SPECIAL).count());
            if !told.contains("water") {
                prop_assert_eq!(joined(&tokens), read);
            }
        }
    }
}

/// A special token before each word: by the bytes of the tokens, all behind the first would be of other text.
#[test]
fn tokens_without_text_move_no_other_past_a_redaction() {
    let words = [0, WATER].repeat(6);
    for reading in [Reading::Verbatim, Reading::Chat { tools: false }] {
        let (read, tokens) = redacted(drawn(&words, &[], reading));
        assert_eq!((read.as_str(), tokens), (" [x]".repeat(6).as_str(), Vec::new()));
    }
}

#[test]
fn a_token_that_a_stop_string_cuts_says_no_more_to_a_guard_than_its_text() {
    let events = drawn(&[WATER], &["ter"], Reading::Verbatim);
    let names: Vec<&str> = events.iter().flat_map(|(_, of)| of).map(|of| of.chosen.token.as_str()).collect();
    assert_eq!(names, [" water"], "without a guard it is told");
    assert_eq!(redacted(events), (" wa".into(), Vec::new()));
}

/// Its tokenizer has a space before each word, and drops that before a text of its own.
#[test]
fn the_first_token_of_a_text_is_what_it_wrote() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/mistral");
    let model = Arc::new(TextModel::open(&dir).expect("the fixture opens"));
    let ids = model.encode("the tide", AddSpecial::No).expect("text encodes");
    let first = model.token_bytes(ids[0]);
    assert!(first.starts_with(b" ") && first.len() > 1, "{first:?}");
    for (reading, text) in [(Reading::Chat { tools: false }, "the tide"), (Reading::Verbatim, " the tide")] {
        let (read, tokens) = redacted(drawn_by(Arc::clone(&model), &ids, &[], reading));
        assert_eq!((read.as_str(), joined(&tokens)), (text, text.to_owned()));
        assert!(tokens.iter().all(|token| token.top == [token.chosen.clone()]), "{tokens:?}");
    }
}

/// One that writes nothing is told by its name, as a special one is.
#[test]
fn a_space_alone_that_is_dropped_is_still_a_token() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/mistral");
    let model = Arc::new(TextModel::open(&dir).expect("the fixture opens"));
    let space = model.token_to_id("▁").expect("a space");
    let word = model.encode("the", AddSpecial::No).expect("text encodes");
    let events = drawn_by(Arc::clone(&model), &[&[space][..], &word].concat(), &[], Reading::Chat { tools: false });
    let names: Vec<&str> = events.iter().flat_map(|(_, of)| of).map(|of| of.chosen.token.as_str()).collect();
    assert_eq!((names.concat().as_str(), redacted(events.clone()).0.as_str()), ("  the", " the"));
}

/// What a model says that reasons and calls tools, and draws the tokens of these pieces.
fn reasoned(pieces: &[&str], stop: &[&str]) -> Vec<(String, Vec<TextLogprob>)> {
    static MODEL: OnceLock<Arc<TextModel>> = OnceLock::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    let tags = ReasoningTags { open: "<think>".into(), close: "</think>".into() };
    let dialect = Dialect { tools: ToolFormat::Hermes, reasoning: Some(tags) };
    let open = || Arc::new(TextModel::open(&dir).expect("the starter model opens").with_dialect(dialect));
    let model = MODEL.get_or_init(open);
    let encode = |piece: &&str| model.encode(piece, AddSpecial::No).expect("text encodes");
    let ids: Vec<u32> = pieces.iter().flat_map(encode).collect();
    drawn_by(Arc::clone(model), &ids, stop, Reading::Chat { tools: true })
}

/// The text of an answer, and that of the tokens that came with it.
fn text_and_tokens(events: &[(String, Vec<TextLogprob>)]) -> (String, String) {
    let tokens: Vec<TextLogprob> = events.iter().flat_map(|(_, tokens)| tokens).cloned().collect();
    (events.iter().map(|(text, _)| text.as_str()).collect(), joined(&tokens))
}

#[test]
fn tokens_of_reasoning_and_marks_do_not_come_with_the_text() {
    let call = "{\"name\":\"f\",\"arguments\":{}}";
    for (pieces, text) in [
        (&["<think>", "\n\n", "</think>", "\n\n", "Hello"][..], "Hello"),
        (&["<think>", "\n", "Two and two", ".", "\n", "</think>", "\n\n", "Four."], "Four."),
        (&["<tool_call>", call, "\n", "</tool_call>", "\n", "Done."], "\nDone."),
        (&["<think>", "</think>", "One.", "\n", "<tool_call>", call, "</tool_call>"], "One."),
        (&["One.", "<tool_call>", call, "</tool_call>", "Two."], "One.Two."),
    ] {
        for stop in [&[][..], &["never"]] {
            assert_eq!(text_and_tokens(&reasoned(pieces, stop)), (text.into(), text.into()), "{pieces:?}, {stop:?}");
        }
    }
}

proptest! {
    /// Without a stop string, each token that comes has text of its own in the answer, and all of the text has tokens.
    #[test]
    fn what_comes_with_the_text_is_its_tokens(
        pieces in prop::collection::vec(
            prop::sample::select(vec!["<think>", "</think>", "\n\n", " ", "One.", " two", "<tool_call>", "</tool_call>", "{}"]),
            0..10,
        ),
    ) {
        let events = reasoned(&pieces, &[]);
        let (text, tokens) = text_and_tokens(&events);
        prop_assert!(tokens.len() >= text.len() && tokens.contains(&text), "{text:?} of {tokens:?}");
        prop_assert!(events.iter().flat_map(|(_, tokens)| tokens).all(|token| token.end.is_some()), "{events:?}");
    }
}

#[test]
fn a_mark_of_a_call_is_no_text_where_no_tools_are_offered() {
    for (folder, mark) in [("mistral", "[TOOL_CALLS]"), ("llama", "<|python_tag|>")] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(folder);
        let model = Arc::new(TextModel::open(&dir).expect("the fixture opens"));
        let said = model.encode("the tide", AddSpecial::No).expect("text encodes");
        let ids = [&[model.token_to_id(mark).expect("a mark")], said.as_slice()].concat();
        let read = |tools| text_and_tokens(&drawn_by(Arc::clone(&model), &ids, &[], Reading::Chat { tools })).0;
        assert!(read(true).contains(mark), "{folder}: what is no call is text, its mark included");
        assert_eq!(read(false), "the tide", "{folder}");
    }
}
