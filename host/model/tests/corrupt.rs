//! Broken folders: each gives a typed error that names the file, and none a panic.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_device::{Backend, Limits, ReferenceBackend};
use tidegate_model::{Model, ModelError};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
}

/// A copy of a fixture that may be broken.
struct Folder(TempDir);

impl Folder {
    fn copy(name: &str) -> Self {
        let dir = TempDir::new().unwrap();
        for entry in fs::read_dir(fixture(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        Self(dir)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).unwrap();
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&fs::read(self.path(file)).unwrap()).unwrap();
        change(&mut value);
        self.write(file, value.to_string());
    }

    /// Changes the JSON header of a safetensors file and keeps its data.
    fn edit_header(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let bytes = fs::read(self.path(file)).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header = serde_json::from_slice(&bytes[8..end]).unwrap();
        change(&mut header);
        self.write(file, with_header(header.to_string().as_bytes(), &bytes[end..]));
    }

    fn open(&self) -> Result<Model, ModelError> {
        Model::open(self.0.path())
    }

    /// The error must name `file` and contain all of `words`.
    fn refused(&self, file: &str, words: &[&str]) {
        let error = self.open().unwrap_err().to_string();
        for word in words.iter().chain([&file]) {
            assert!(error.contains(word), "`{error}` does not say `{word}`");
        }
    }
}

fn with_header(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn a_folder_without_its_parts_is_refused() {
    let folder = Folder::copy("qwen2");
    fs::remove_file(folder.path("generation_config.json")).unwrap();
    assert!(folder.open().is_ok(), "the generation config is optional");
    fs::remove_file(folder.path("model.safetensors")).unwrap();
    assert!(matches!(folder.open(), Err(ModelError::NoWeights { .. })));
    fs::remove_file(folder.path("config.json")).unwrap();
    folder.refused("config.json", &["cannot read"]);
    assert!(matches!(Model::open(Path::new("/nonexistent")), Err(ModelError::Read { .. })));
}

#[test]
fn a_folder_in_place_of_a_file_is_refused() {
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        let folder = Folder::copy("qwen2");
        fs::remove_file(folder.path(file)).unwrap();
        fs::create_dir(folder.path(file)).unwrap();
        folder.refused(file, &["cannot read"]);
    }
}

#[test]
fn json_that_is_not_an_object_is_refused() {
    for text in ["", "{", "[]", "null", "{\"a\": NaN}", &"[".repeat(100_000), "\u{0}\u{1}"] {
        let folder = Folder::copy("qwen2");
        folder.write("config.json", text);
        folder.refused("config.json", &["is not valid"]);
    }
    let folder = Folder::copy("qwen2");
    folder.write("config.json", " ".repeat(5 << 20));
    assert!(matches!(folder.open(), Err(ModelError::TooLarge { .. })));
}

#[test]
fn an_unknown_architecture_is_told_the_known_ones() {
    let folder = Folder::copy("qwen2");
    folder.edit("config.json", |c| c["architectures"] = json!(["MambaForCausalLM"]));
    folder.refused("config.json", &["MambaForCausalLM", "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"]);
    // One that spells the rest of its config otherwise.
    folder.write("config.json", r#"{"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}}"#);
    folder.refused("config.json", &["unknown architecture `Gemma3ForConditionalGeneration`"]);
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let folder = Folder::copy("mistral");
    let whole = fs::read(folder.path("model.safetensors")).unwrap();
    for len in [0, 1, 7, 8, 9, 100, 1000, 3000, whole.len() / 2, whole.len() - 1] {
        folder.write("model.safetensors", &whole[..len]);
        folder.refused("model.safetensors", &["corrupt"]);
    }
    folder.write("model.safetensors", [&whole[..], b"x"].concat());
    folder.refused("model.safetensors", &["corrupt", "bytes too many"]);
}

#[test]
fn a_header_that_lies_about_its_length_is_refused() {
    let folder = Folder::copy("mistral");
    let whole = fs::read(folder.path("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap());
    for lie in [0, 1, length - 1, length + 1, whole.len() as u64, 1 << 25, (1 << 25) + 1, u64::MAX / 2, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&lie.to_le_bytes());
        folder.write("model.safetensors", bytes);
        folder.refused("model.safetensors", &["corrupt"]);
    }
}

#[test]
fn tensors_that_overlap_or_leave_gaps_are_refused() {
    let shift = |from: i64, to: i64| {
        let folder = Folder::copy("mistral");
        folder.edit_header("model.safetensors", |h| {
            let offsets = &mut h[QUERY]["data_offsets"];
            let (start, end) = (offsets[0].as_i64().unwrap(), offsets[1].as_i64().unwrap());
            *offsets = json!([start + from, end + to]);
        });
        folder.refused("model.safetensors", &["corrupt"]);
    };
    shift(-2, -2);
    shift(0, -2);
    shift(2, 2);
    shift(0, 2);
    shift(1 << 50, 1 << 50);
}

#[test]
fn headers_with_impossible_numbers_are_refused() {
    let shapes = [
        json!([u64::MAX, 2]),
        json!([1u64 << 63, 1u64 << 63]),
        json!([-1, 64]),
        json!([1.5]),
        json!("64x48"),
        json!(null),
        json!([]),
        json!([3, 5]),
    ];
    for shape in shapes {
        let folder = Folder::copy("mistral");
        folder.edit_header("model.safetensors", |h| h[QUERY]["shape"] = shape);
        folder.refused("model.safetensors", &["corrupt"]);
    }
    // Offsets whose sum wraps round to the file's length.
    let folder = Folder::copy("mistral");
    let huge: serde_json::Map<String, Value> = (0..9u64)
        .map(|i| {
            (format!("t{i}"), json!({"dtype": "U8", "shape": [1u64 << 60], "data_offsets": [i << 60, (i + 1) << 60]}))
        })
        .collect();
    folder.write("model.safetensors", with_header(Value::Object(huge).to_string().as_bytes(), b""));
    folder.refused("model.safetensors", &["corrupt"]);
}

#[test]
fn a_tensor_of_another_shape_or_type_is_refused_by_name() {
    let folder = Folder::copy("mistral");
    folder.edit_header("model.safetensors", |h| {
        let shape = h[QUERY]["shape"].as_array().unwrap().clone();
        h[QUERY]["shape"] = json!([shape[1], shape[0]]);
    });
    folder.refused("model.safetensors", &[QUERY, "[48, 64]", "[64, 48]"]);

    let folder = Folder::copy("mistral");
    folder.edit_header("model.safetensors", |h| h[QUERY]["dtype"] = json!("I16"));
    folder.refused("model.safetensors", &[QUERY, "I16", "F32, F16, BF16"]);

    let folder = Folder::copy("mistral");
    folder.edit_header("model.safetensors", |h| {
        let tensor = h.as_object_mut().unwrap().remove(QUERY).unwrap();
        h["other"] = tensor;
    });
    let error = folder.open().unwrap_err();
    assert!(matches!(&error, ModelError::Tensor { tensor, .. } if tensor == QUERY), "{error}");

    let folder = Folder::copy("mistral");
    folder.edit("config.json", |c| c["intermediate_size"] = json!(97));
    folder.refused("model.safetensors", &["mlp.gate_proj.weight", "[97, 48]"]);
}

/// A tensor without bytes, which needs no room in the file.
fn with_tensor(folder: &Folder, name: &str) {
    folder.edit_header("model.safetensors", |h| {
        let ends = h.as_object().unwrap().values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
        let end = ends.max().unwrap();
        h[name] = json!({"dtype": "F32", "shape": [0], "data_offsets": [end, end]});
    });
}

/// It would answer, and wrongly.
#[test]
fn tensors_of_the_layers_that_nobody_reads_are_refused() {
    // Published as a Llama, without the keys and the code that its biases and norms need.
    let (bias, norm) = ("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.k_norm.weight");
    for (name, words) in
        [("qwen2", [bias, "5 more", "q_proj.bias", "attention_bias"]), ("qwen3", [norm, "3 more", "q_norm", "adapter"])]
    {
        let folder = Folder::copy(name);
        folder.edit("config.json", |c| {
            c["architectures"] = json!(["LlamaForCausalLM"]);
            c["use_sliding_window"] = json!(false);
            drop(c.as_object_mut().unwrap().remove("layer_types"));
        });
        folder.refused("model.safetensors", &words);
    }
    for name in ["model.layers.1.self_attn.q_proj.lora_A.weight", "model.norm.bias", "lm_head.bias"] {
        let folder = Folder::copy("mistral");
        with_tensor(&folder, name);
        folder.refused("model.safetensors", &[name]);
    }
    let folder = Folder::copy("qwen3");
    for name in [
        "lm_head.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.k_proj.k_scale",
        "model.layers.2.mlp.up_proj.weight",
        "visual.blocks.0.attn.qkv.weight",
        "mtp.norm.weight",
    ] {
        with_tensor(&folder, name);
    }
    folder.open().unwrap();
}

const SCORE: &str = "score.weight";

#[test]
fn labels_that_have_no_names_are_numbered() {
    let labels = |folder: &Folder| folder.open().unwrap().classifier.unwrap().labels().to_vec();
    let numbers = ["LABEL_0", "LABEL_1", "LABEL_2"];
    let folder = Folder::copy("sentiment");
    folder.edit("config.json", |c| drop(c.as_object_mut().unwrap().remove("id2label")));
    assert_eq!(labels(&folder), numbers);
    folder.edit("config.json", |c| c["num_labels"] = json!(3));
    assert_eq!(labels(&folder), numbers);
    folder.edit("config.json", |c| c["num_labels"] = json!(2));
    folder.refused("config.json", &["`num_labels` is 2", "rows for 3"]);
    // What the Llama family wrote for no padding at all.
    let folder = Folder::copy("sentiment");
    folder.edit("config.json", |c| c["pad_token_id"] = json!(-1));
    assert_eq!(labels(&folder), ["bad", "neither", "good"]);
}

#[test]
fn labels_and_their_rows_agree_or_are_refused() {
    let named = |id2label: Value, words: &[&str]| {
        let folder = Folder::copy("sentiment");
        folder.edit("config.json", |c| c["id2label"] = id2label);
        folder.refused("config.json", words);
    };
    named(json!({"0": "bad", "1": "good"}), &["`id2label` has 2 labels", "`score.weight` has rows for 3"]);
    named(json!({}), &["`id2label` has 0 labels"]);
    named(json!({"0": "bad", "1": "neither", "3": "good"}), &["a label 3 where 2 is due"]);
    named(json!({"0": "bad", "00": "neither", "1": "good"}), &["a label 0 where 1 is due"]);
    named(json!({"0": "bad", "1": "bad", "2": "good"}), &["two labels \"bad\""]);
    named(json!({"0": "bad", "one": "neither", "2": "good"}), &["`id2label.one` is not the number of a label"]);
    named(json!({"0": "bad", "1": 1, "2": "good"}), &["`id2label.1`", "a string"]);
    named(json!({"0": "bad", "1": "", "2": "x".repeat(257)}), &["`id2label.1` has 0 bytes"]);
    named(json!({"0": "bad", "1": "x".repeat(257), "2": "good"}), &["`id2label.1` has 257 bytes"]);
    named(json!(["bad", "neither", "good"]), &["`id2label`", "an object"]);

    let tensor = |change: fn(&mut Value), words: &[&str]| {
        let folder = Folder::copy("sentiment");
        folder.edit_header("model.safetensors", change);
        folder.refused(SCORE, words);
    };
    let rename = |h: &mut Value| {
        let tensor = h.as_object_mut().unwrap().remove(SCORE).unwrap();
        h["other"] = tensor;
    };
    tensor(rename, &["no file has it"]);
    tensor(|h| h[SCORE]["shape"] = json!([96]), &["[96]", "[96, 32]"]);
    tensor(|h| h[SCORE]["shape"] = json!([4, 24]), &["[4, 24]", "[4, 32]"]);
    tensor(|h| h[SCORE]["dtype"] = json!("I16"), &["I16", "F32, F16, BF16"]);
}

#[test]
fn a_row_of_a_label_is_of_numbers() {
    for (not_finite, shown) in [([0xc0, 0x7f], "NaN"), ([0x80, 0x7f], "inf")] {
        let folder = Folder::copy("sentiment");
        let mut bytes = fs::read(folder.path("model.safetensors")).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
        let start = header[SCORE]["data_offsets"][0].as_u64().unwrap() as usize;
        let at = end + start + 2 * (2 * 32 + 5);
        bytes[at..at + 2].copy_from_slice(&not_finite);
        folder.write("model.safetensors", bytes);
        folder.refused("model.safetensors", &[SCORE, shown, "label \"good\""]);
    }
}

#[test]
fn scores_are_chosen_as_transformers_does_and_others_refused() {
    let with = |folder: Folder, problem: Value| {
        folder.edit("config.json", |c| c["problem_type"] = problem);
        folder
    };
    let sum = |folder: Folder| {
        let classifier = folder.open().unwrap().classifier.unwrap();
        classifier.scores(&[0.0; 32]).unwrap().iter().sum::<f32>()
    };
    let adds_up = |problem: Value, expected: f32| {
        assert_eq!(sum(with(Folder::copy("moderation"), problem.clone())), expected, "{problem}");
    };
    adds_up(json!("multi_label_classification"), 6.5);
    for problem in [json!(null), json!("single_label_classification")] {
        let sum = sum(with(Folder::copy("moderation"), problem));
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }
    let refused = |problem: &str, words: &[&str]| {
        with(Folder::copy("moderation"), json!(problem)).refused("config.json", words);
    };
    refused("regression", &["`problem_type` = regression is not supported", "single_label_classification", "logits"]);
    refused("sorting", &["`problem_type` = sorting"]);
    // One label alone is right or not.
    let single = || {
        let folder = Folder::copy("moderation");
        folder.edit("config.json", |c| c["id2label"] = json!({"0": "violence"}));
        cut_rows(&folder, 1);
        folder
    };
    assert_eq!(sum(with(single(), json!(null))), 0.5);
    assert_eq!(sum(with(single(), json!("multi_label_classification"))), 0.5);
    let always = with(single(), json!("single_label_classification"));
    always.refused("config.json", &["there is one label", "multi_label_classification"]);
}

/// Leaves the first rows of the head, which is of f32; the others become a tensor that nobody reads.
fn cut_rows(folder: &Folder, rows: u64) {
    folder.edit_header("model.safetensors", |h| {
        let offsets = h[SCORE]["data_offsets"].clone();
        let (start, end) = (offsets[0].as_u64().unwrap(), offsets[1].as_u64().unwrap());
        let cut = start + rows * 32 * 4;
        h[SCORE] = json!({"dtype": "F32", "shape": [rows, 32], "data_offsets": [start, cut]});
        h["rest"] = json!({"dtype": "U8", "shape": [end - cut], "data_offsets": [cut, end]});
    });
}

#[test]
fn an_index_that_lies_is_refused() {
    let index = "model.safetensors.index.json";
    let change = |change: fn(&mut Value), file: &str, words: &[&str]| {
        let folder = Folder::copy("llama");
        folder.edit(index, change);
        folder.refused(file, words);
    };
    change(|i| i["weight_map"] = json!(null), index, &["weight_map", "missing"]);
    change(|i| i["weight_map"] = json!(["a"]), index, &["weight_map", "an object"]);
    change(|i| i["weight_map"][QUERY] = json!(7), index, &[QUERY, "a string"]);
    for name in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "model.bin", "a\\b.safetensors"] {
        let folder = Folder::copy("llama");
        folder.edit(index, |i| i["weight_map"][QUERY] = json!(name));
        folder.refused(index, &[QUERY, "in the same folder"]);
    }
    change(|i| i["weight_map"][QUERY] = json!("absent.safetensors"), "absent.safetensors", &["cannot read"]);
    change(
        |i| i["weight_map"]["model.norm.extra"] = json!("model-00001-of-00002.safetensors"),
        "model-00001-of-00002.safetensors",
        &["model.norm.extra", "index"],
    );
    let folder = Folder::copy("llama");
    folder.edit(index, |i| drop(i["weight_map"].as_object_mut().unwrap().remove(QUERY)));
    assert!(matches!(folder.open(), Err(ModelError::Tensor { tensor, .. }) if tensor == QUERY));
}

#[test]
fn a_fingerprint_follows_the_bytes_and_not_the_place() {
    let original = Model::open(&fixture("llama")).unwrap().fingerprint;
    let folder = Folder::copy("llama");
    assert_eq!(folder.open().unwrap().fingerprint, original);
    folder.edit("config.json", |c| c["rms_norm_eps"] = json!(1e-6));
    assert_ne!(folder.open().unwrap().fingerprint, original);

    let folder = Folder::copy("llama");
    let file = "model-00002-of-00002.safetensors";
    let mut bytes = fs::read(folder.path(file)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    folder.write(file, bytes);
    assert_ne!(folder.open().unwrap().fingerprint, original);
}

/// Whatever opens must also load: the backend finds every weight in its place.
fn open_and_load(folder: &Folder) {
    if let Ok(model) = folder.open() {
        let limits = Limits { num_blocks: 1, block_tokens: 16, max_batch_tokens: 1, max_seqs: 1 };
        ReferenceBackend.load(model.program, &*model.weights, limits).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_damage_to_a_header_panics(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let folder = Folder::copy("qwen3");
        let mut bytes = fs::read(folder.path("model.safetensors")).unwrap();
        let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        damage.iter().for_each(|(at, byte)| bytes[at.index(header_end)] = *byte);
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        folder.write("model.safetensors", bytes);
        open_and_load(&folder);
    }

    #[test]
    fn no_damage_to_a_config_panics(
        key in any::<prop::sample::Index>(),
        value in prop_oneof![
            Just(json!(null)), Just(json!({})), Just(json!([])), Just(json!("")), any::<i64>().prop_map(|x| json!(x)),
            any::<f64>().prop_map(|x| json!(x)), (0u64..2000).prop_map(|x| json!(x)), any::<bool>().prop_map(|x| json!(x)),
        ],
    ) {
        for name in ["llama", "qwen2"] {
            let folder = Folder::copy(name);
            folder.edit("config.json", |config| {
                let config = config.as_object_mut().unwrap();
                let key = config.keys().nth(key.index(config.len())).unwrap().clone();
                config.insert(key, value.clone());
            });
            open_and_load(&folder);
        }
    }
}
