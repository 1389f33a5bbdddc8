//! Models that say what a test has written: folders for the own engine, with the tokenizer and the template of a fixture, whose
//! weights let each token be followed by the one that the script names, whatever was before.
//!
//! One layer that adds nothing, and a number of its own for each token of the script: `lm_head` reads off it what comes next.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Numbers of a token; one is of all tokens that the script does not name.
const HIDDEN: usize = 64;
/// Far enough from the other tokens for any temperature.
const LOGIT: f32 = 100.0;

/// The folder; gone when dropped.
pub struct Scripted {
    folder: TempDir,
}

impl Scripted {
    /// `follows` names tokens by their texts as tokenizer.json writes them; a text that is no token becomes one. Any other
    /// token is followed by the end of the answer.
    pub fn new(fixture: &str, follows: &[(&str, &str)]) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(fixture);
        let folder = tempfile::tempdir().unwrap();
        let mut tokenizer = read(&from.join("tokenizer.json"));
        let mut config = read(&from.join("config.json"));
        for file in ["tokenizer_config.json", "generation_config.json"] {
            std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
        }
        let end = read(&from.join("tokenizer_config.json"))["eos_token"].as_str().unwrap().to_owned();
        // Templates of some lie in a file of their own.
        if let Ok(template) = std::fs::read(from.join("chat_template.jinja")) {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        }
        let ids: Vec<[usize; 2]> =
            follows.iter().map(|(token, next)| [token, next].map(|text| id(&mut tokenizer, text))).collect();
        let end = id(&mut tokenizer, &end);
        let vocab = 1 + tokenizer["added_tokens"].as_array().unwrap().iter().map(id_of).max().unwrap();
        let vocab = vocab.max(tokenizer["model"]["vocab"].as_object().unwrap().len());
        let config_members = config.as_object_mut().unwrap();
        config_members.remove("layer_types");
        config_members.extend(shape(vocab));
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("tokenizer.json", tokenizer.to_string().into_bytes());
        write("config.json", config.to_string().into_bytes());
        write("model.safetensors", weights(vocab, &ids, end));
        Self { folder }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// `[[models]]` of it.
    pub fn model(&self, name: &str) -> String {
        format!("[[models]]\nname = \"{name}\"\npath = {:?}\n", self.folder.path())
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn id_of(added: &Value) -> usize {
    added["id"].as_u64().unwrap() as usize
}

/// The id of a token, which is added where there is none.
fn id(tokenizer: &mut Value, text: &str) -> usize {
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let known = added.iter().find(|token| token["content"] == text).map(id_of);
    let known = known.or_else(|| vocab.get(text)?.as_u64().map(|id| id as usize));
    let next = added.iter().map(|token| id_of(token) + 1).max().unwrap().max(vocab.len());
    known.unwrap_or_else(|| {
        let token = json!({"id": next, "content": text, "special": false, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
        next
    })
}

fn shape(vocab: usize) -> Map<String, Value> {
    let shape = json!({
        "vocab_size": vocab, "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": HIDDEN / 4, "max_position_embeddings": 4096,
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": false, "dtype": "float32", "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    });
    shape.as_object().unwrap().clone()
}

fn weights(vocab: usize, follows: &[[usize; 2]], end: usize) -> Vec<u8> {
    assert!(follows.len() < HIDDEN, "too long a script");
    let (mut embed, mut head) = (vec![0.0_f32; vocab * HIDDEN], vec![0.0_f32; vocab * HIDDEN]);
    (0..vocab).for_each(|token| embed[token * HIDDEN] = 1.0);
    head[end * HIDDEN] = LOGIT;
    for (i, [token, next]) in follows.iter().enumerate() {
        embed[token * HIDDEN] = 0.0;
        embed[token * HIDDEN + i + 1] = 1.0;
        head[next * HIDDEN + i + 1] = LOGIT;
    }
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, HIDDEN], embed),
        ("lm_head.weight".to_owned(), vec![vocab, HIDDEN], head),
        ("model.norm.weight".to_owned(), vec![HIDDEN], vec![1.0; HIDDEN]),
    ];
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((format!("model.layers.0.{norm}.weight"), vec![HIDDEN], vec![1.0; HIDDEN]));
    }
    for matrix in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"] {
        let zeros = vec![0.0; HIDDEN * HIDDEN];
        tensors.push((format!("model.layers.0.{matrix}_proj.weight"), vec![HIDDEN, HIDDEN], zeros));
    }
    safetensors(&tensors)
}

/// Eight bytes of the header's length, the header, the numbers.
fn safetensors(tensors: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let begin = data.len();
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
