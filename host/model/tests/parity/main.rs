//! Every architecture on every backend against transformers, on the checkpoints of `tests/fixtures/models`.
//!
//! A new backend is a line in `BACKENDS`; a new architecture a fixture and a line in `FIXTURES`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod fixture;

use fixture::{Fixture, Run};
use tidegate_device::{Backend, ReferenceBackend};

const FIXTURES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// A backend and how far its logits may be from those of transformers: |a - b| <= atol + rtol * |b|.
struct Tolerance {
    backend: fn() -> Box<dyn Backend>,
    atol: f32,
    rtol: f32,
}

/// The tolerance table.
const BACKENDS: [Tolerance; 1] = [Tolerance { backend: || Box::new(ReferenceBackend), atol: 1e-4, rtol: 1e-5 }];

/// Runs `check` on every fixture and backend, and says which failed.
fn for_each(check: impl Fn(&Fixture, &Tolerance, &dyn Backend)) {
    for name in FIXTURES {
        let fixture = Fixture::load(name);
        for tolerance in &BACKENDS {
            let backend = (tolerance.backend)();
            println!("{name} on {}", backend.name());
            check(&fixture, tolerance, &*backend);
        }
    }
}

#[test]
fn logits_are_those_of_transformers() {
    for_each(|fixture, tolerance, backend| {
        for prompt in &fixture.logits {
            for (position, expected) in prompt.positions.iter().zip(&prompt.expected) {
                let logits = Run::new(fixture, backend).feed(&prompt.tokens[..=*position]);
                for (token, (a, b)) in logits.iter().zip(expected).enumerate() {
                    let limit = tolerance.atol + tolerance.rtol * b.abs();
                    assert!((a - b).abs() <= limit, "position {position}, token {token}: {a} for {b}");
                }
            }
        }
    });
}

#[test]
fn two_hundred_greedy_tokens_are_those_of_transformers() {
    for_each(|fixture, _, backend| {
        for expected in &fixture.greedy {
            let mut run = Run::new(fixture, backend);
            let mut tokens = Vec::new();
            run.feed(&expected.prompt);
            while tokens.len() < expected.tokens.len() {
                let token = run.sample_greedily();
                tokens.push(token);
                run.feed(&[token]);
            }
            assert_eq!(tokens, expected.tokens);
        }
    });
}

#[test]
fn chunks_of_a_prompt_give_the_logits_of_the_whole() {
    for_each(|fixture, _, backend| {
        let tokens = &fixture.logits[2].tokens;
        let whole = Run::new(fixture, backend).feed(tokens);
        let mut run = Run::new(fixture, backend);
        let chunked = tokens.chunks(17).map(|chunk| run.feed(chunk)).last();
        assert_eq!(chunked.as_ref(), Some(&whole));
    });
}

#[test]
fn models_say_of_themselves_what_their_configs_say() {
    let check = |name, architecture, eos: &[u32], temperature| {
        let model = Fixture::load(name).model;
        assert_eq!((model.name.as_str(), model.architecture), (name, architecture));
        assert_eq!((model.max_positions(), model.eos_token_ids.as_slice()), (512, eos));
        assert_eq!(model.sampling.temperature, temperature);
    };
    check("llama", "LlamaForCausalLM", &[378, 381, 382], Some(0.6));
    check("mistral", "MistralForCausalLM", &[2], Some(0.0));
    check("qwen2", "Qwen2ForCausalLM", &[377, 375], Some(0.7));
    check("qwen3", "Qwen3ForCausalLM", &[377, 375], Some(0.6));
}
