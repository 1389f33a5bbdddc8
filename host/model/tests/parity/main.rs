//! Every architecture on every backend against transformers, on the checkpoints of `tests/fixtures/models`.
//!
//! A new backend is a line in `BACKENDS`; a new architecture a fixture and a line in `FIXTURES`. Instruction sets that
//! the processor lacks are named on standard error.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod fixture;
mod labels;
mod vectors;

use fixture::{Fixture, Run};
use tidegate_device::{Backend, CacheElem, CpuBackend, CpuOptions, Isa, ReferenceBackend};

const FIXTURES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// A backend and how far its logits may be from those of transformers, which computes them in f32:
/// |a - b| <= atol + rtol * |b|. The numbers of vectors: |a - b| <= vectors * the root mean square of all of |b|.
struct Tolerance {
    /// `None` where this machine lacks what it needs.
    backend: fn() -> Option<Box<dyn Backend>>,
    atol: f32,
    rtol: f32,
    vectors: f32,
}

/// The tolerance table: f32 throughout; keys and values rounded to bf16; activations of linear layers too.
const BACKENDS: [Tolerance; 7] = [
    Tolerance { backend: || Some(Box::new(ReferenceBackend)), atol: 1e-4, rtol: 1e-5, vectors: 2e-5 },
    Tolerance { backend: || cpu(Isa::Portable, CacheElem::F32), atol: 1e-4, rtol: 1e-5, vectors: 2e-5 },
    Tolerance { backend: || cpu(Isa::Avx2, CacheElem::F32), atol: 1e-4, rtol: 1e-5, vectors: 2e-5 },
    Tolerance { backend: || cpu(Isa::Avx512, CacheElem::F32), atol: 1e-4, rtol: 1e-5, vectors: 2e-5 },
    Tolerance { backend: || cpu(Isa::Portable, CacheElem::Bf16), atol: 4e-2, rtol: 0.0, vectors: 3e-2 },
    Tolerance { backend: || cpu(Isa::Avx512Bf16, CacheElem::Bf16), atol: 6e-2, rtol: 0.0, vectors: 3e-2 },
    Tolerance { backend: || cpu(Isa::Amx, CacheElem::Bf16), atol: 6e-2, rtol: 0.0, vectors: 3e-2 },
];

/// The tolerance of backends that must draw the very tokens of transformers.
const EXACT: f32 = 1e-4;

fn cpu(isa: Isa, cache: CacheElem) -> Option<Box<dyn Backend>> {
    match CpuBackend::new(CpuOptions { threads: 2, isa, cache }) {
        Ok(backend) => Some(Box::new(backend)),
        Err(error) => {
            tidegate_skipped::skipped!("{error}");
            None
        }
    }
}

/// Runs `check` on every fixture and backend, and says which failed.
fn for_each(check: impl Fn(&Fixture, &Tolerance, &dyn Backend)) {
    for name in FIXTURES {
        let fixture = Fixture::load(name);
        for tolerance in &BACKENDS {
            if let Some(backend) = (tolerance.backend)() {
                println!("{name} on {}, {}", backend.name(), backend.describe());
                check(&fixture, tolerance, &*backend);
            }
        }
    }
}

#[test]
fn logits_are_those_of_transformers() {
    for_each(|fixture, tolerance, backend| {
        let mut worst = 0f32;
        for prompt in &fixture.logits {
            for (position, expected) in prompt.positions.iter().zip(&prompt.expected) {
                let logits = Run::new(fixture, backend).feed(&prompt.tokens[..=*position]);
                for (token, (a, b)) in logits.iter().zip(expected).enumerate() {
                    let limit = tolerance.atol + tolerance.rtol * b.abs();
                    worst = worst.max((a - b).abs());
                    assert!((a - b).abs() <= limit, "position {position}, token {token}: {a} for {b}");
                }
            }
        }
        println!("largest difference {worst:e}, allowed {:e} + {:e} * |logit|", tolerance.atol, tolerance.rtol);
    });
}

#[test]
fn two_hundred_greedy_tokens_are_those_of_transformers() {
    for_each(|fixture, tolerance, backend| {
        for expected in &fixture.greedy {
            let mut run = Run::new(fixture, backend);
            let mut logits = run.feed(&expected.prompt);
            for (i, &token) in expected.tokens.iter().enumerate() {
                let drawn = run.sample_greedily();
                // Where something is rounded, two tokens that are nearly equal may change places.
                let (a, b) = (logits[drawn as usize], logits[token as usize]);
                let near = tolerance.atol > EXACT && a - b <= 2.0 * (tolerance.atol + tolerance.rtol * b.abs());
                assert!(drawn == token || near, "token {i}: {drawn} ({a}) for {token} ({b})");
                logits = run.feed(&[token]);
            }
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
