//! Configs in both spellings, and what is refused.

use super::*;
use serde_json::{Value, json};
use std::path::Path;

fn object(config: &Value) -> Object {
    Object::parse(Path::new("config.json"), config.to_string().as_bytes()).unwrap()
}

fn read(config: &Value) -> Result<Config, ModelError> {
    Config::read(&object(config))
}

fn minimal() -> Value {
    json!({
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
        "vocab_size": 100, "max_position_embeddings": 256,
    })
}

fn with(more: Value) -> Value {
    let mut config = minimal();
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn refused(more: Value, words: &[&str]) {
    let error = read(&with(more)).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    }
}

#[test]
fn absent_keys_take_the_defaults_of_transformers() {
    let config = read(&minimal()).unwrap();
    assert_eq!((config.num_kv_heads, config.head_dim, config.dtype), (4, 16, None));
    assert!(!config.tie_word_embeddings && !config.attention_bias && !config.mlp_bias);
    assert_eq!((config.activation, config.rms_norm_eps), (Activation::Silu, 1e-6));
    assert!(config.eos_token_ids.is_empty());
    let nulls = json!({"num_key_value_heads": null, "head_dim": null, "rope_scaling": null, "eos_token_id": null});
    assert_eq!(read(&with(nulls)).unwrap().head_dim, 16);
}

#[test]
fn both_spellings_of_the_element_type_are_read() {
    let dtype = |more| read(&with(more)).unwrap().dtype;
    assert_eq!(dtype(json!({"torch_dtype": "bfloat16"})), Some(DType::BF16));
    assert_eq!(dtype(json!({"dtype": "float16"})), Some(DType::F16));
    assert_eq!(dtype(json!({"dtype": "float32", "torch_dtype": "float16"})), Some(DType::F32));
    assert_eq!(dtype(json!({"torch_dtype": "torch.bfloat16"})), Some(DType::BF16));
    refused(json!({"dtype": "float8_e4m3fn"}), &["dtype", "float8_e4m3fn", "bfloat16, float16, float32"]);
}

#[test]
fn end_tokens_are_a_number_or_a_list() {
    let eos = |value: Value| read(&with(json!({"eos_token_id": value}))).unwrap().eos_token_ids;
    assert_eq!(eos(json!(7)), [7]);
    assert_eq!(eos(json!([7, 8])), [7, 8]);
    refused(json!({"eos_token_id": 100}), &["eos_token_id", "below 100"]);
    refused(json!({"eos_token_id": -1}), &["eos_token_id"]);
}

#[test]
fn numbers_out_of_bounds_are_refused_by_key() {
    for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"] {
        for value in [json!(0), json!(-1), json!(1.5), json!("64"), json!(1u64 << 40), json!(true), json!([1])] {
            refused(json!({key: value}), &[key, "config.json", "a whole number from"]);
        }
        let mut config = minimal();
        config.as_object_mut().unwrap().remove(key);
        assert!(read(&config).unwrap_err().to_string().contains(&format!("`{key}` is missing")));
    }
    refused(json!({"num_key_value_heads": 3}), &["num_key_value_heads", "divide"]);
    refused(json!({"num_key_value_heads": 8}), &["num_key_value_heads", "from 1 to 4"]);
    refused(json!({"head_dim": 15}), &["head_dim", "even"]);
    refused(json!({"hidden_size": 66}), &["hidden_size", "4 heads"]);
    refused(json!({"rms_norm_eps": "small"}), &["rms_norm_eps"]);
    refused(json!({"tie_word_embeddings": 1}), &["tie_word_embeddings", "true or false"]);
}

#[test]
fn options_that_are_not_supported_are_refused_by_name() {
    refused(json!({"quantization_config": {"quant_method": "awq"}}), &["quantization_config"]);
    refused(json!({"hidden_act": "relu"}), &["hidden_act", "relu", "silu"]);
    refused(json!({"is_causal": false}), &["is_causal"]);
    refused(json!({"layer_types": ["full_attention", "linear_attention", "full_attention"]}), &["linear_attention"]);
    refused(json!({"layer_types": ["full_attention"]}), &["layer_types", "1 entries for 3 layers"]);
}

#[test]
fn windows_follow_the_rules_of_each_family() {
    let sliding = |more| read(&with(more)).unwrap().sliding;
    assert_eq!(sliding(json!({})).everywhere(), Ok(vec![Some(4096); 3]));
    assert_eq!(sliding(json!({"sliding_window": null})).everywhere(), Ok(vec![None; 3]));
    assert_eq!(sliding(json!({"sliding_window": 8})).everywhere(), Ok(vec![Some(8); 3]));
    assert_eq!(sliding(json!({"sliding_window": 8})).never(), Ok(vec![None; 3]));

    let off = json!({"sliding_window": 8, "use_sliding_window": false, "max_window_layers": 0});
    assert_eq!(sliding(off).by_layer(), Ok(vec![None; 3]));
    let late = json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2});
    assert_eq!(sliding(late).by_layer(), Ok(vec![None, None, Some(8)]));
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    let named = json!({"sliding_window": 8, "use_sliding_window": true, "layer_types": types});
    assert_eq!(sliding(named).by_layer(), Ok(vec![Some(8), None, Some(8)]));

    let contradiction = sliding(json!({"layer_types": types}));
    assert!(contradiction.by_layer().is_err() && contradiction.everywhere().is_err() && contradiction.never().is_err());
}

#[test]
fn the_architecture_is_the_first_that_is_named() {
    assert_eq!(architecture(&object(&json!({"architectures": ["A", "B"]}))).unwrap(), "A");
    for bad in [json!({}), json!({"architectures": []}), json!({"architectures": "A"}), json!({"architectures": [1]})] {
        assert!(architecture(&object(&bad)).unwrap_err().to_string().contains("architectures"));
    }
}
