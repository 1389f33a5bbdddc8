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
