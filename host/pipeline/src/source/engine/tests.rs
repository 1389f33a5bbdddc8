//! What leaves of turns of an engine that says what a test has written.

use super::*;
use std::path::Path;
use tidegate_text::{AddSpecial, Dialect, TextModel, ToolFormat};
use tidegate_types::SampledToken;

/// What leaves of a turn in which a model says this, token by token, in Mistral's format.
fn deltas(said: &str, single_call: bool) -> Vec<DeltaKind> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    let model = TextModel::open(&dir).expect("the starter model opens");
    let model = Arc::new(model.with_dialect(Dialect { tools: ToolFormat::Mistral, reasoning: None }));
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
