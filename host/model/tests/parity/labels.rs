//! The models that give labels, on every backend, against the scores of transformers' own pipeline.

use super::vectors::{fixtures, rows};
use super::{BACKENDS, EXACT};
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_model::Model;
use tidegate_types::Pooling;

#[test]
fn scores_of_labels_are_those_of_transformers() {
    let expected = std::fs::read(fixtures().join("expected/classifiers.json")).unwrap();
    let expected: BTreeMap<String, Vec<Value>> = serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["moderation", "sentiment"]);
    for (name, texts) in &expected {
        let model = Model::open(&fixtures().join(name)).unwrap();
        assert_eq!(model.program.pooling(), Some(Pooling::LastToken), "{name}");
        let classifier = model.classifier.as_ref().unwrap();
        for tolerance in &BACKENDS {
            let Some(backend) = (tolerance.backend)() else { continue };
            let mut worst = 0f32;
            for text in texts {
                let tokens: Vec<u32> = serde_json::from_value(text["tokens"].clone()).unwrap();
                let vectors = rows(&model, &*backend, classifier.without_padding(&tokens));
                let scores = classifier.scores(&vectors[0]).unwrap();
                assert_eq!((vectors.len(), scores.len()), (1, text["scores"].as_object().unwrap().len()));
                for (label, score) in classifier.labels().iter().zip(scores) {
                    let difference = (score - text["scores"][label].as_f64().unwrap() as f32).abs();
                    worst = worst.max(difference);
                    // A score has no digits that a logit lacks.
                    let limit = tolerance.atol + tolerance.rtol;
                    assert!(difference <= limit, "{label} of {:?} on {}: {score}", text["text"], backend.describe());
                }
            }
            println!("{name} on {}, {}: largest difference {worst:e}", backend.name(), backend.describe());
            assert!(tolerance.atol > EXACT || worst < 1e-5, "where nothing is rounded, nothing is lost: {worst:e}");
        }
    }
}

#[test]
fn classifiers_say_of_themselves_what_their_configs_say() {
    let open = |name: &str| Model::open(&fixtures().join(name)).unwrap();
    let (moderation, sentiment) = (open("moderation"), open("sentiment"));
    assert_eq!(moderation.architecture, "Qwen3ForSequenceClassification");
    assert_eq!(sentiment.architecture, "LlamaForSequenceClassification");
    assert_eq!(sentiment.classifier.unwrap().labels(), ["bad", "neither", "good"]);
    // By number: `10` comes behind `9`.
    let moderation = moderation.classifier.unwrap();
    assert_eq!(moderation.labels()[8..11], ["self-harm/instructions", "sexual", "sexual/minors"]);
    assert_eq!(moderation.without_padding(&[5, 375, 6, 375]), [5, 375, 6]);
    assert!(open("qwen3").classifier.is_none() && open("embedding").classifier.is_none());
}
