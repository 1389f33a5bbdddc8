//! The bundled model's tokenizer, and tokens as a model could have sampled them.

use super::*;
use std::path::Path;
use std::sync::OnceLock;
use tidegate_text::{AddSpecial, Dialect, ReasoningTags, ToolFormat};

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

#[test]
fn tokens_of_reasoning_are_counted_where_it_is_told_from_the_rest() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    let count = |said: &str, reading, tags: Option<ReasoningTags>| {
        let model = TextModel::open(&dir).expect("the starter model opens");
        let model = Arc::new(model.with_dialect(Dialect { tools: ToolFormat::None, reasoning: tags }));
        let (prompt, sampling, stop) = (Vec::new(), Vec::new(), Vec::new());
        let turn = EngineTurn { prompt, sampling, max_tokens: 100, stop, reading, single_call: false };
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
