//! What a client and an operator see of a device that fails.

use super::{Ask, MODELS, SMALL_STEPS, config, texts};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidegate::config::Config;
use tidegate_emu::Standin;
use tidegate_tests::Gateway;

const LAUNCH_FAILED: i32 = 719;
const LAST_OF_THE_PROMPT: i32 = 7;

/// By name it is a start that fails, with what is needed; `auto` takes the CPU and says the same in one line.
pub async fn a_driver_that_is_too_old_is_said(standin: &Standin) {
    const WHY: &str = "the driver supports CUDA 12.4; 13.0 is needed (driver 580 or newer)";
    standin.driver(12040, 1);
    let mut named = Config::parse(&config("cuda", &MODELS[..1], SMALL_STEPS)).unwrap();
    named.server.listen.set_port(0);
    let refused = tidegate::start(named).await.err().unwrap();
    assert!(format!("{refused:#}").contains(WHY), "{refused:#}");
    let auto = Gateway::start(&config("auto", &MODELS[..1], SMALL_STEPS)).await;
    let fact = auto.running.facts.iter().find(|fact| fact.starts_with("backend ")).unwrap();
    assert!(fact.contains("cpu (") && fact.ends_with(&format!("; not cuda: {WHY}")), "{fact}");
    standin.driver(13000, 1);
}

/// Kept kernels that were cut short are compiled again, at the start, and nobody sees anything of it.
pub async fn damaged_kernels_are_made_again(standin: &Standin, asks: &[Ask], expected: &[String]) {
    let cache = tempfile::tempdir().unwrap();
    let start = || async {
        let mut config = Config::parse(&config("cuda", &MODELS, SMALL_STEPS)).unwrap();
        config.cache_dir = Some(cache.path().to_owned());
        Gateway::start_with(config).await
    };
    start().await.running.stop(Duration::ZERO).await;
    let kept: Vec<PathBuf> = std::fs::read_dir(cache.path().join("cuda")).unwrap().map(|e| e.unwrap().path()).collect();
    let whole: Vec<Vec<u8>> = kept.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(kept.len() > 8, "kernels and products: {kept:?}");
    for (path, bytes) in kept.iter().zip(&whole) {
        std::fs::write(path, &bytes[..bytes.len() - 3]).unwrap();
    }
    let loaded = standin.calls("cuModuleLoadData");
    let gateway = start().await;
    assert_eq!(texts(&gateway, "cuda", asks).await, expected, "after the damage");
    gateway.running.stop(Duration::ZERO).await;
    assert!(standin.calls("cuModuleLoadData") > loaded);
    assert!(kept.iter().zip(&whole).all(|(path, bytes)| std::fs::read(path).unwrap() == *bytes), "not made again");
}

/// The generation goes on on the next executor, from the prompt and what was drawn.
pub async fn a_lost_device_is_replaced(standin: &Standin, gateway: &Gateway, asks: &[Ask], expected: &[String]) {
    standin.fail("cuLaunchKernel", LAST_OF_THE_PROMPT, LAUNCH_FAILED);
    assert_eq!(texts(gateway, "cuda", asks).await, expected, "through the loss");
    assert_eq!(standin.met(), "cuLaunchKernel");
    standin.heal();
    assert_eq!(texts(gateway, "cuda", asks).await, expected, "after it");
}

/// The device is lost, and its memory is another's when it is loaded again: for a while the request waits; in the end it
/// gets an error of its own, as does everyone after it, at once.
pub async fn memory_that_others_took_is_waited_for_and_then_said(
    standin: &'static Standin,
    gateway: &Gateway,
    asks: &[Ask],
    expected: &[String],
) {
    let lose = || {
        standin.memory(0);
        standin.fail("cuLaunchKernel", LAST_OF_THE_PROMPT, LAUNCH_FAILED);
    };
    lose();
    let given_back = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(400)).await;
        standin.memory(1 << 30);
    });
    assert_eq!(texts(gateway, "cuda", asks).await, expected, "once the memory is back");
    given_back.await.unwrap();
    lose();
    let (model, prompt, tokens) = &asks[0];
    let body = serde_json::json!({"model": format!("{model}-cuda"), "prompt": prompt, "max_tokens": tokens});
    for most in [Duration::from_secs(60), Duration::from_secs(1)] {
        let start = Instant::now();
        let answer = gateway.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 503, "{:?}", answer.body);
        assert!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
        assert!(start.elapsed() < most, "{:?}", start.elapsed());
    }
    assert_eq!(gateway.get("/livez").await.status, 200, "the program goes on");
    standin.heal();
    standin.memory(1 << 30);
}
