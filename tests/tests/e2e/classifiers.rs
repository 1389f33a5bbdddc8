//! Models of the own engine that give labels: what plugins are told of texts, and what nobody is.

use crate::embeddings::fixtures;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::outside::models::PluginModels;
use tidegate_pipeline::{Gate, GateConfig};
use tidegate_sandbox::capability::{CapabilityError, Labels, ModelAsk, ModelService};
use tidegate_tests::{BARE, Gateway};
use tidegate_types::{Caller, Message, RequestId, Role};

/// `[[models]]` of a fixture that gives labels: `moderation` or `sentiment`.
pub fn model(name: &str, more: &str) -> String {
    format!("[[models]]\nname = \"{name}\"\npath = {:?}\n{more}\n", fixtures().join(name))
}

/// Texts with the scores that transformers gives them.
pub fn expected(name: &str) -> Vec<(String, BTreeMap<String, f32>)> {
    let file = std::fs::read(fixtures().join("expected/classifiers.json")).unwrap();
    let mut all: BTreeMap<String, Vec<Value>> = serde_json::from_slice(&file).unwrap();
    let of_text = |text: Value| {
        let scores = serde_json::from_value(text["scores"].clone()).unwrap();
        (text["text"].as_str().unwrap().to_owned(), scores)
    };
    all.remove(name).unwrap().into_iter().map(of_text).collect()
}

/// What plugins ask, without a plugin.
fn service(gateway: &Gateway) -> PluginModels {
    let (models, gate) = (gateway.running.pipeline().models().clone(), Gate::new(GateConfig::default(), None));
    PluginModels { models, gate, ledger: None }
}

fn asks(model: &str) -> ModelAsk {
    let until = Instant::now() + Duration::from_secs(60);
    ModelAsk { model: model.into(), caller: Arc::new(Caller::local()), request_id: RequestId::new("r"), hops: 0, until }
}

async fn classify(gateway: &Gateway, model: &str, texts: Vec<String>) -> Result<Vec<Labels>, CapabilityError> {
    service(gateway).classify(asks(model), texts).await
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_are_told_the_scores_of_transformers_highest_first() {
    let models = model("moderation", "") + &model("sentiment", "");
    let gateway = Gateway::start(&format!("{models}[engine]\nmax_batch_tokens = 100\nmax_seqs = 8\n{BARE}")).await;
    // The best instructions of any processor round activations to bf16 where weights are.
    for (name, limit) in [("moderation", 1e-4), ("sentiment", 6e-2)] {
        let (texts, expected): (Vec<_>, Vec<_>) = expected(name).into_iter().unzip();
        let found = classify(&gateway, name, texts).await.unwrap();
        assert_eq!(found.len(), expected.len());
        for (labels, expected) in found.into_iter().zip(expected) {
            assert!(labels.is_sorted_by(|(_, a), (_, b)| a >= b), "{labels:?}");
            let found: BTreeMap<String, f32> = labels.into_iter().collect();
            assert!(found.keys().eq(expected.keys()), "{found:?}");
            let worst = found.iter().map(|(label, score)| (score - expected[label]).abs()).fold(0.0, f32::max);
            assert!(worst < limit, "{name}: {worst} between {found:?} and {expected:?}");
        }
    }
    assert_eq!(classify(&gateway, "moderation", Vec::new()).await, Ok(Vec::new()));
    let card = gateway.get("/v1/models/moderation").await.json();
    assert_eq!((&card["capabilities"], &card["max_model_len"]), (&json!(["classification"]), &json!(512)));
    let facts = gateway.running.facts.join("\n");
    assert!(facts.contains("moderation (Qwen3ForSequenceClassification, 13 labels, "), "{facts}");
    assert!(facts.contains("listening http://") && !facts.contains("curl"), "there is nobody to ask by hand: {facts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_classifier_answers_nobody_else_and_no_other_model_gives_labels() {
    let starter = "[[models]]\nname = \"tidegate-starter\"\npath = \"bundled\"\n";
    let models = model("moderation", "") + starter + &crate::embeddings::model("");
    let gateway = Gateway::start(&format!("{models}{BARE}")).await;
    let chat = json!({"model": "moderation", "messages": [{"role": "user", "content": "Hello!"}]});
    for (path, body, what) in [
        ("/v1/chat/completions", chat, "gives labels to plugins and no answers"),
        ("/v1/completions", json!({"model": "moderation", "prompt": "Once"}), "gives labels to plugins and no answers"),
        (
            "/v1/responses",
            json!({"model": "moderation", "input": "Hello!", "store": false}),
            "gives labels to plugins and no answers",
        ),
        ("/v1/embeddings", json!({"model": "moderation", "input": "x"}), "gives labels to plugins and no vectors"),
    ] {
        let refused = gateway.post(path, &body).await;
        let (message, at, code) = refused.error();
        assert_eq!((refused.status, at, code), (400, json!("model"), json!("unsupported_model")), "{path}: {message}");
        assert!(message.contains(what), "{path}: {message}");
    }
    let unsupported = |error: CapabilityError, what: &str| match error {
        CapabilityError::Unsupported(message) => assert!(message.contains(what), "{message}"),
        other => panic!("{other}"),
    };
    let service = service(&gateway);
    for name in ["tidegate-starter", "embedding"] {
        unsupported(service.classify(asks(name), vec!["x".into()]).await.unwrap_err(), "gives no labels");
    }
    unsupported(service.embed(asks("moderation"), vec!["x".into()]).await.unwrap_err(), "no vectors");
    let question = vec![Message::text("m0", Role::User, "Hello!")];
    for (name, what) in [("moderation", "gives labels to plugins and no answers"), ("embedding", "no answers")] {
        let asked = service.complete(asks(name), question.clone(), Default::default()).await;
        unsupported(asked.unwrap_err(), what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_too_long_is_the_plugins_and_a_limit_of_the_model_too() {
    let short = model("sentiment", "context_tokens = 20");
    let gateway = Gateway::start(&format!("{}{short}{BARE}", model("moderation", ""))).await;
    let check = async |name: &str, text: &str, what: &str| {
        let refused = classify(&gateway, name, vec!["x".into(), text.to_owned()]).await;
        let Err(CapabilityError::Invalid(message)) = refused else { panic!("{refused:?}") };
        assert!(message.contains(what), "{message}");
    };
    let of_tokens = |count: usize| "x ".repeat(count);
    check("moderation", &of_tokens(1000), "tokens; model `moderation` allows 512").await;
    check("sentiment", &of_tokens(40), "tokens; model `sentiment` allows 20").await;
}

/// A weight of the decoder that is none, which nobody sees before it is computed with.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_number_is_a_failure_and_no_label() {
    let (from, folder) = (fixtures().join("moderation"), tempfile::tempdir().unwrap());
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    let start = end + header["model.norm.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[start..start + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let broken = format!("[[models]]\nname = \"broken\"\npath = {:?}\n{BARE}", folder.path());
    let gateway = Gateway::start(&broken).await;
    let failed = classify(&gateway, "broken", vec!["x".into()]).await;
    assert!(matches!(failed, Err(CapabilityError::Unavailable(_))), "{failed:?}");
}
