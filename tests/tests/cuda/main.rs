//! The CUDA backend behind HTTP, on stand-ins for NVIDIA's libraries: no GPU is needed, a C++ compiler is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use futures_util::future::join_all;
use serde_json::{Value, json};
use std::path::PathBuf;
use tidegate_emu::{Standin, standin};
use tidegate_tests::Gateway;

const MODELS: [&str; 3] = ["llama", "mistral", "qwen3"];

/// Words that the fixtures' tokenizers know, of several lengths.
const PROMPTS: [&str; 4] = [
    "the tide",
    "a ship that sails at night keeps its lamp lit and its crew awake",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
    "water",
];

/// The fixtures on a backend; steps small enough that prompts go in pieces.
fn config(backend: &str, names: &[&str]) -> String {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    let model = |name: &&str| format!("[[models]]\nname = \"{name}\"\npath = {:?}\n", models.join(name));
    let models: String = names.iter().map(model).collect();
    let engine = "[engine]\nkv_cache_mib = 1\nmax_batch_tokens = 24\nmax_seqs = 6\n";
    format!("[compute]\nbackend = \"{backend}\"\nthreads = 1\n{engine}[pipeline]\n{models}")
}

fn greedy(model: &str, prompt: &str) -> Value {
    json!({"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0})
}

/// All at once.
async fn texts(gateway: &Gateway, requests: &[Value]) -> Vec<String> {
    let all = requests.iter().map(|request| gateway.post("/v1/completions", request));
    join_all(all).await.iter().map(|answer| answer.text()).collect()
}

fn requests() -> Vec<Value> {
    MODELS.iter().flat_map(|model| PROMPTS.iter().map(|prompt| greedy(model, prompt))).collect()
}

/// One test: a fault is set for the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_as_on_the_cpu_and_outlive_a_lost_device() {
    let Some(standin) = standin() else { return };
    let cpu = Gateway::start(&config("cpu", &MODELS)).await;
    let requests = requests();
    let expected = texts(&cpu, &requests).await;
    assert!(expected.iter().all(|text| !text.is_empty()), "{expected:?}");
    // A context is given back when its last executor goes: one model on the device.
    let alone = Gateway::start(&config("cuda", &MODELS[..1])).await;
    a_lost_device_is_replaced(standin, &alone, &requests[..1], &expected[..1]).await;
    let cuda = Gateway::start(&config("cuda", &MODELS)).await;
    assert_eq!(texts(&cuda, &requests).await, expected, "all at once");
    assert_eq!(texts(&cuda, &requests).await, expected, "from the prefix cache");
    seeds_fix_what_is_drawn(&cuda).await;
}

async fn seeds_fix_what_is_drawn(gateway: &Gateway) {
    let request = |seed: u32| {
        json!({"model": "llama", "prompt": PROMPTS[1], "max_tokens": 12, "temperature": 1.2, "top_p": 0.9,
               "frequency_penalty": 0.5, "seed": seed, "logprobs": 3})
    };
    let alone = gateway.post("/v1/completions", &request(1)).await;
    let beside_others = texts(gateway, &[request(2), request(1), request(3)]).await;
    assert_eq!(beside_others[1], alone.text());
    assert_ne!(beside_others[0], beside_others[2], "seeds do not matter");
    let json = alone.json();
    let logprobs = json["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(logprobs.len() == 12 && logprobs.iter().all(|x| x.as_f64().unwrap() <= 0.0), "{logprobs:?}");
}

async fn a_lost_device_is_replaced(standin: &Standin, gateway: &Gateway, requests: &[Value], expected: &[String]) {
    const LAUNCH_FAILED: i32 = 719;
    standin.fail("cuLaunchKernel", 7, LAUNCH_FAILED);
    // The generation goes on on the next executor, from the prompt and what was drawn.
    assert_eq!(texts(gateway, requests).await, expected, "through the loss");
    standin.heal();
    assert_eq!(texts(gateway, requests).await, expected, "after it");
}
