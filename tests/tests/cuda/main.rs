//! The CUDA backend behind HTTP, on stand-ins for NVIDIA's libraries: no GPU is needed, a C++ compiler is.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod faults;
mod ties;

use futures_util::future::join_all;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_emu::{Standin, standin};
use tidegate_tests::Gateway;
use ties::{answers, compare};

const MODELS: [&str; 3] = ["llama", "mistral", "qwen3"];

/// Words that the fixtures' tokenizers know, of several lengths.
const PROMPTS: [&str; 4] = [
    "the tide",
    "a ship that sails at night keeps its lamp lit and its crew awake",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
    "water",
];

/// Steps so small that prompts go in pieces.
const SMALL_STEPS: &str = "max_batch_tokens = 24\nmax_seqs = 6\n";

const ALL_AT_ONCE: &str = "max_batch_tokens = 2048\nmax_seqs = 80\n";

/// Of 72 answers. More would hide a defect. Those of the reference are the same on every machine, which a CPU's are not: one
/// without products of bf16 keeps activations in f32, and comes to other near ties.
const MOST_TIES: usize = 4;

/// The fixtures at a place: a backend, and what follows a dash makes the models' names, and so their figures, a gateway's own.
fn config(place: &str, names: &[&str], engine: &str) -> String {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    let model = |name: &&str| format!("[[models]]\nname = \"{name}-{place}\"\npath = {:?}\n", models.join(name));
    let backend = place.split('-').next().unwrap();
    let models: String = names.iter().map(model).collect();
    let compute = format!("[compute]\nbackend = \"{backend}\"\nthreads = 1\n");
    format!("{compute}[engine]\nkv_cache_mib = 1\n{engine}[pipeline]\n{models}")
}

/// A model at a place, with a cache that never preempts.
async fn roomy(place: &str, model: &str) -> Gateway {
    let config = config(place, &[model], ALL_AT_ONCE);
    Gateway::start(&config.replace("kv_cache_mib = 1", "kv_cache_mib = 8")).await
}

/// Greedy requests: (model, prompt, tokens).
type Ask = (&'static str, String, u32);

fn short() -> Vec<Ask> {
    MODELS.iter().flat_map(|model| PROMPTS.iter().map(|prompt| (*model, (*prompt).to_owned(), 16))).collect()
}

/// Together more than the cache holds once they have grown: some 394 tokens in 25 blocks each, of Mistral's 128, and of the
/// others' 256. The last is admitted with the first, and all of them need a block more before they end.
fn long(model: &'static str) -> Vec<Ask> {
    let prompt = |n: usize| format!("number {n}: {}", format!("{} ", PROMPTS[1]).repeat(8));
    let count = if model == "mistral" { 6 } else { 11 };
    (0..count).map(|n| (model, prompt(n), 20)).collect()
}

/// Many small ones, more than the cache holds.
fn many(model: &'static str) -> Vec<Ask> {
    (0..72).map(|n| (model, format!("number {n}: {}", PROMPTS[1]), 16)).collect()
}

fn body((model, prompt, tokens): &Ask, place: &str) -> Value {
    json!({"model": format!("{model}-{place}"), "prompt": prompt, "max_tokens": tokens, "temperature": 0})
}

/// All at once.
async fn texts(gateway: &Gateway, place: &str, asks: &[Ask]) -> Vec<String> {
    let bodies: Vec<Value> = asks.iter().map(|ask| body(ask, place)).collect();
    let all = bodies.iter().map(|body| gateway.post("/v1/completions", body));
    join_all(all).await.iter().map(|answer| answer.text()).collect()
}

/// A figure of a model at a place. Gateways of one process that give a model the same name have its figures together.
async fn figure(gateway: &Gateway, name: &str, model: &str, place: &str) -> f64 {
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    let start = format!("tidegate_engine_{name}{{model=\"{model}-{place}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("no {start} in {metrics}")).parse().unwrap()
}

/// Faults are set for the whole process, and a lost device is given back when nothing holds it.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_as_on_the_cpu_with_everything_on_and_through_faults() {
    let Some(standin) = standin() else { return };
    let _alone = ALONE.lock().await;
    faults::a_driver_that_is_too_old_is_said(standin).await;
    let cpu = Gateway::start(&config("cpu", &MODELS, SMALL_STEPS)).await;
    let asks = short();
    let expected = texts(&cpu, "cpu", &asks).await;
    assert!(expected.iter().all(|text| !text.is_empty()), "{expected:?}");
    Box::pin(faults::damaged_kernels_are_made_again(standin, &asks, &expected)).await;
    // A context is given back when its last executor goes: one model on the device.
    let alone = Gateway::start(&config("cuda", &MODELS[..1], SMALL_STEPS)).await;
    faults::a_lost_device_is_replaced(standin, &alone, &asks[..1], &expected[..1]).await;
    faults::memory_that_others_took_is_waited_for_and_then_said(standin, &alone, &asks[..1], &expected[..1]).await;
    let cuda = Gateway::start(&config(ALL_ON, &MODELS, SMALL_STEPS)).await;
    everything_gives_the_tokens_of_the_cpu(standin, &cuda, &asks, &expected).await;
    seeds_fix_what_is_drawn(&cuda).await;
    let fixed = config("cuda", &MODELS, SMALL_STEPS).replace("threads = 1", "threads = 1\ndeterministic = true");
    assert_eq!(texts(&Gateway::start(&fixed).await, "cuda", &asks).await, expected, "deterministic");
}

const ALL_ON: &str = "cuda-all-on";

/// Batches, prompts in pieces, recorded steps, the prefix cache.
async fn everything_gives_the_tokens_of_the_cpu(standin: &Standin, cuda: &Gateway, asks: &[Ask], expected: &[String]) {
    let played = standin.calls("cuGraphLaunch");
    assert_eq!(texts(cuda, ALL_ON, asks).await, expected, "all at once");
    assert!(standin.calls("cuGraphLaunch") > played, "no step was recorded");
    let mut hits = Vec::new();
    for model in MODELS {
        let steps = figure(cuda, "steps_total", model, ALL_ON).await;
        let tokens = figure(cuda, "prompt_tokens_total", model, ALL_ON).await;
        // One by one they would take a step for each token that is drawn, and more.
        assert!(steps < 4.0 * 16.0, "{model}: {steps} steps: nothing was batched");
        assert!(tokens > 4.0 * 24.0, "{model}: {tokens} tokens in four prompts: none of them had to go in pieces");
        hits.push(figure(cuda, "prefix_hits_total", model, ALL_ON).await);
    }
    assert_eq!(texts(cuda, ALL_ON, asks).await, expected, "from the prefix cache");
    for (model, before) in MODELS.into_iter().zip(hits) {
        let hits = figure(cuda, "prefix_hits_total", model, ALL_ON).await;
        assert!(hits > before, "{model}: nothing came from the prefix cache");
    }
}

/// The CPU's cache holds them all.
#[tokio::test(flavor = "multi_thread")]
async fn preempted_sequences_give_the_tokens_of_the_cpu() {
    if standin().is_none() {
        return;
    }
    let _alone = ALONE.lock().await;
    for model in MODELS {
        let asks = long(model);
        let expected = texts(&roomy("cpu", model).await, "cpu", &asks).await;
        let cuda = Gateway::start(&config("cuda-grown", &[model], ALL_AT_ONCE)).await;
        assert_eq!(texts(&cuda, "cuda-grown", &asks).await, expected, "{model}");
        assert!(figure(&cuda, "preemptions_total", model, "cuda-grown").await > 0.0, "{model}: nothing was preempted");
        cuda.running.stop(Duration::ZERO).await;
    }
}

/// Of so many answers some come to two tokens that are as good as equal. Each is shown to be so, and counted; and each
/// answer is also, to the bit, what its request gives alone on the device.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_answers_those_that_are_not_the_references_end_in_a_tie() {
    if standin().is_none() {
        return;
    }
    let _alone = ALONE.lock().await;
    for model in ["llama", "qwen3"] {
        let asks = many(model);
        let expected = answers(&roomy("reference", model).await, "reference", &asks).await;
        let cuda = Gateway::start(&config("cuda-many", &[model], ALL_AT_ONCE)).await;
        let together = answers(&cuda, "cuda-many", &asks).await;
        assert!(figure(&cuda, "preemptions_total", model, "cuda-many").await > 0.0, "{model}: nothing was preempted");
        let (mut apart, mut ties) = (0f64, 0);
        for ((ask, reference), found) in asks.iter().zip(&expected).zip(&together) {
            assert_eq!(
                &answers(&cuda, "cuda-many", std::slice::from_ref(ask)).await[0],
                found,
                "{ask:?} alone, and with all"
            );
            let found = compare(ask, reference, found);
            apart = apart.max(found.apart);
            ties += usize::from(found.tie.is_some());
            found.tie.iter().for_each(|tie| println!("{model}, {:?}: {tie}", ask.1));
        }
        println!(
            "{model}: {ties} ties in {} answers, allowed {MOST_TIES}; log-probabilities {apart:.4} apart",
            asks.len()
        );
        assert!(ties <= MOST_TIES, "{model}: {ties} ties");
        cuda.running.stop(Duration::ZERO).await;
    }
}

async fn seeds_fix_what_is_drawn(gateway: &Gateway) {
    for model in MODELS {
        let request = |seed: u32| {
            json!({"model": format!("{model}-{ALL_ON}"), "prompt": PROMPTS[1], "max_tokens": 12, "temperature": 1.2,
                   "top_p": 0.9, "frequency_penalty": 0.5, "seed": seed, "logprobs": 3})
        };
        let alone = gateway.post("/v1/completions", &request(1)).await;
        let bodies = [request(2), request(1), request(3)];
        let beside = join_all(bodies.iter().map(|body| gateway.post("/v1/completions", body))).await;
        assert_eq!(beside[1].text(), alone.text(), "{model}");
        assert_ne!(beside[0].text(), beside[2].text(), "{model}: seeds do not matter");
        let json = alone.json();
        let logprobs = json["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        assert!(logprobs.len() == 12 && logprobs.iter().all(|x| x.as_f64().unwrap() <= 0.0), "{logprobs:?}");
    }
}
