//! What leaves of turns of an engine that says what a test has written, and what counts of what does not leave.

use super::*;
use crate::models::Makes;
use std::path::Path;
use std::task::Waker;
use std::time::Duration;
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_engine::{EngineConfig, EngineHandle};
use tidegate_text::{AddSpecial, Dialect, TextModel, ToolFormat};
use tidegate_types::{SampledToken, Sampling};

fn starter() -> TextModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    TextModel::open(&dir).expect("the starter model opens")
}

/// What leaves of a turn in which a model says this, token by token, in Mistral's format.
fn deltas(said: &str, single_call: bool) -> Vec<DeltaKind> {
    let model = Arc::new(starter().with_dialect(Dialect { tools: ToolFormat::Mistral, reasoning: None }));
    let reading = Reading::Chat { tools: true };
    let (prompt, sampling, stop) = (Vec::new(), Vec::new(), Vec::new());
    let turn = EngineTurn { prompt, sampling, max_tokens: 100, stop, reading, single_call, grammar: None };
    let text = ChoiceText::new(Arc::clone(&model), &turn).expect("a choice");
    let choice = Choice { stream: None, text, cached_tokens: 0, output_tokens: 0 };
    let (ready, usage) = (VecDeque::new(), Usage::default());
    let mut source =
        EngineSource { choices: vec![choice], turn: 0, ready, usage, single_call, tally: None, _span: Span::none() };
    let ids = model.encode(said, AddSpecial::No).expect("text encodes");
    let tokens = ids.into_iter().map(|id| JobEvent::Token(SampledToken { id, logprob: None, top: Vec::new() }));
    let end = JobEvent::Finished { reason: FinishReason::Stop, usage };
    let mut out = Vec::new();
    for event in tokens.chain([end]) {
        source.take(0, Some(event)).expect("an event");
        out.extend(source.ready.drain(..).filter_map(|event| match event {
            Ok(SourceEvent::Delta(delta)) => Some(delta.kind),
            _ => None,
        }));
        if matches!(out.last(), Some(DeltaKind::Finish(_))) {
            break;
        }
    }
    out
}

#[test]
fn of_a_list_of_calls_one_is_made_where_one_is_asked_for() {
    let said = r#"[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]"#;
    let names = |kinds: &[DeltaKind]| {
        let name = |kind: &DeltaKind| match kind {
            DeltaKind::ToolCall { call, .. } => Some(call.name.clone()),
            _ => None,
        };
        kinds.iter().filter_map(name).collect::<Vec<_>>()
    };
    for (single_call, expected) in [(false, ["f", "g"].as_slice()), (true, ["f"].as_slice())] {
        let kinds = deltas(said, single_call);
        assert_eq!(names(&kinds), expected);
        assert_eq!(kinds.last(), Some(&DeltaKind::Finish(FinishReason::ToolCalls)));
    }
}

/// Two choices of five tokens each, all made before any is read.
async fn made(tally: &Arc<Tally>) -> EngineSource {
    let config = EngineConfig { kv_cache_mib: Some(1), ..EngineConfig::default() };
    let load = |limits| Ok(Box::new(ToyExecutor::new(50, limits, Faults::default())) as Box<_>);
    let engine = EngineModel {
        fingerprint: String::new(),
        handle: EngineHandle::start(config, toy::facts(50, 64), Box::new(load)).expect("it starts"),
        text: Arc::new(starter()),
        grammars: None,
        stop_token_ids: Vec::new(),
        defaults: Sampling::default(),
        makes: Makes::Text,
    };
    let (sampling, stop) = (vec![SamplingParams::greedy(); 2], Vec::new());
    let (reading, single_call, grammar) = (Reading::Verbatim, false, None);
    let turn = EngineTurn { prompt: vec![3; 4], sampling, max_tokens: 5, stop, reading, single_call, grammar };
    let source = EngineSource::start(&engine, turn, &Caller::local(), Some(Arc::clone(tally)));
    engine.handle.drain(Duration::from_secs(60)).await;
    source.expect("it is taken")
}

#[tokio::test]
async fn what_was_made_of_a_choice_counts_also_where_nobody_has_read_it() {
    let tally = Arc::<Tally>::default();
    let mut source = made(&tally).await;
    source.stop(0);
    assert_eq!(tally.tokens().output, 5);
    source.stop(1);
    let end = source.poll_next(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(SourceEvent::Usage(usage)))) = end else { panic!("{end:?}") };
    drop(source);
    assert_eq!((usage.output_tokens, tally.tokens().output), (10, 10));

    let tally = Arc::default();
    drop(made(&tally).await);
    assert_eq!(tally.tokens().output, 10);
}
