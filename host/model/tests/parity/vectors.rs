//! The model that makes vectors, on every backend, against what transformers and numpy make of the same texts.

use super::BACKENDS;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_device::{Backend, Batch, BlockId, Limits, Segment};
use tidegate_model::Model;
use tidegate_types::Pooling;

const FOLDER: &str = "embedding";

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
}

/// The same checkpoint by the mean of its rows.
fn with_mean() -> (tempfile::TempDir, Model) {
    let (from, to) = (fixtures().join(FOLDER), tempfile::tempdir().unwrap());
    for file in ["config.json", "model.safetensors", "modules.json"] {
        std::fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    std::fs::create_dir(to.path().join("1_Pooling")).unwrap();
    std::fs::write(to.path().join("1_Pooling/config.json"), r#"{"pooling_mode_mean_tokens": true}"#).unwrap();
    let model = Model::open(to.path()).unwrap();
    (to, model)
}

/// The kept rows of a prompt that is computed in pieces.
pub fn rows(model: &Model, backend: &dyn Backend, tokens: &[u32]) -> Vec<Vec<f32>> {
    let limits = Limits { num_blocks: 32, block_tokens: 16, max_batch_tokens: 100, max_seqs: 1 };
    let mut executor = backend.load(Arc::clone(&model.program), &*model.weights, limits).unwrap();
    let blocks: Vec<BlockId> = (0..32).rev().map(BlockId).collect();
    let mut kept = Vec::new();
    for (i, piece) in tokens.chunks(100).enumerate() {
        let start = i * 100;
        let want_result = start + piece.len() == tokens.len();
        let segment = Segment { tokens: piece, start, blocks: &blocks, want_result, fed: None };
        executor.forward(&Batch { segments: vec![segment] }).unwrap();
        executor.sample(&[]).unwrap();
        assert_eq!(executor.collect().unwrap().len(), 0);
        assert!(executor.logits(0).is_none(), "there is nothing to draw from");
        kept.extend((0..).map_while(|row| executor.vector(0, row)).map(<[f32]>::to_vec));
    }
    kept
}

fn unit_mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let sums = (0..rows[0].len()).map(|i| rows.iter().map(|row| f64::from(row[i])).sum::<f64>());
    let sums: Vec<f64> = sums.collect();
    let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
    sums.iter().map(|x| (x / length) as f32).collect()
}

#[test]
fn vectors_are_those_of_transformers() {
    let expected = std::fs::read(fixtures().join("expected/embedding.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let last = Model::open(&fixtures().join(FOLDER)).unwrap();
    let (_folder, mean) = with_mean();
    assert_eq!((last.program.pooling(), mean.program.pooling()), (Some(Pooling::LastToken), Some(Pooling::Mean)));
    for tolerance in &BACKENDS {
        let Some(backend) = (tolerance.backend)() else { continue };
        let mut worst = 0f32;
        for text in expected["texts"].as_array().unwrap() {
            let tokens: Vec<u32> = serde_json::from_value(text["tokens"].clone()).unwrap();
            for (model, name, num_rows) in [(&last, "lasttoken", 1), (&mean, "mean", tokens.len())] {
                let found = rows(model, &*backend, &tokens);
                assert_eq!(found.len(), num_rows, "{name}");
                let expected: Vec<f32> = serde_json::from_value(text[name].clone()).unwrap();
                let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
                for (a, b) in unit_mean(&found).iter().zip(&expected) {
                    let share = (a - b).abs() / rms;
                    worst = worst.max(share);
                    let what = format!("{name} on {}", backend.describe());
                    assert!(share <= tolerance.vectors, "{what}: {a} for {b}, {share:e} of the rms");
                }
            }
        }
        let allowed = tolerance.vectors;
        println!(
            "{}, {}: largest difference {worst:e} of the rms, allowed {allowed:e}",
            backend.name(),
            backend.describe()
        );
    }
}

#[test]
fn a_text_is_no_longer_than_sentence_transformers_would_read() {
    let (folder, model) = with_mean();
    assert_eq!(model.max_positions(), 512);
    let longest = |max_seq_length: usize| {
        let config = format!(r#"{{"max_seq_length": {max_seq_length}, "do_lower_case": false}}"#);
        std::fs::write(folder.path().join("sentence_bert_config.json"), config).unwrap();
        Model::open(folder.path()).unwrap().max_positions()
    };
    assert_eq!((longest(100), longest(8192)), (100, 512));
}
