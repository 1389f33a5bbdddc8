//! Tables against those that transformers computes, and what is refused.

use super::*;
use serde_json::{Value, json};
use std::path::Path;

fn read(config: &Value) -> Result<Rope, ModelError> {
    Rope::read(&Object::parse(Path::new("config.json"), config.to_string().as_bytes()).unwrap())
}

#[test]
fn frequencies_are_those_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/expected/rope.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for case in cases.as_array().unwrap() {
        let head_dim = case["head_dim"].as_u64().unwrap() as usize;
        let table = read(&case["config"]).unwrap().table(head_dim);
        let expected = case["inv_freq"].as_array().unwrap();
        assert_eq!(table.inv_freq.len(), expected.len());
        for (i, (a, b)) in table.inv_freq.iter().zip(expected).enumerate() {
            let b = b.as_f64().unwrap();
            // Two units in the last place: powf differs by one between libraries.
            assert!((f64::from(*a) - b).abs() <= 2.4e-7 * b, "{} [{i}]: {a} for {b}", case["name"]);
        }
        let scale = case["attention_scale"].as_f64().unwrap();
        assert!((f64::from(table.attention_scale) - scale).abs() < 1e-6, "{}: {}", case["name"], table.attention_scale);
    }
}

#[test]
fn what_depends_on_the_length_of_the_sequence_is_refused_by_name() {
    for kind in ["dynamic", "longrope", "su", "mrope"] {
        let config = json!({"max_position_embeddings": 64, "rope_scaling": {"type": kind, "factor": 2.0}});
        let error = read(&config).unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains("default, linear, llama3, yarn"), "{error}");
    }
    let config = json!({"max_position_embeddings": 64, "partial_rotary_factor": 0.5});
    assert!(read(&config).unwrap_err().to_string().contains("partial_rotary_factor"));
    let layers =
        json!({"max_position_embeddings": 64, "rope_parameters": {"full_attention": {"rope_type": "default"}}});
    assert!(read(&layers).unwrap_err().to_string().contains("one per layer type"));
}

#[test]
fn missing_and_absurd_numbers_are_refused_by_key() {
    let check = |scaling: Value, key: &str| {
        let error = read(&json!({"max_position_embeddings": 64, "rope_scaling": scaling})).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    };
    check(json!({"type": "linear"}), "rope_scaling.factor");
    check(json!({"type": "linear", "factor": 0.0}), "rope_scaling.factor");
    check(
        json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}),
        "high_freq_factor",
    );
    check(json!({"type": 3}), "rope_scaling.type");
    check(json!([]), "rope_scaling");
    assert!(read(&json!({"rope_theta": 1e4})).unwrap_err().to_string().contains("max_position_embeddings"));
    assert!(read(&json!({"max_position_embeddings": 64, "rope_theta": -1})).is_err());
}

#[test]
fn scaling_lengthens_the_context_where_the_config_states_the_one_before_it() {
    let max = |scaling: Value| {
        read(&json!({"max_position_embeddings": 1024, "rope_scaling": scaling})).unwrap().max_positions()
    };
    assert_eq!(max(Value::Null), 1024);
    assert_eq!(max(json!({"type": "linear", "factor": 4.0})), 4096);
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
    assert_eq!(max(yarn), 2048);
    let llama3 = json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    assert_eq!(max(llama3), 1024);
}
