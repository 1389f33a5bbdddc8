//! A folder with random weights in the shape of a `config.json`: what is measured does not depend on their values, but
//! for the power that random bits take.

use crate::Failure;
use half::bf16;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Elements of the random block that matrices are cut from; odd, so that rows of one matrix differ.
const BLOCK: usize = (4 << 20) + 7919;

/// Of a decoder, by its config.
pub struct Sizes {
    pub layers: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub queries: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub vocab: usize,
    head_norms: bool,
    tied: bool,
}

impl Sizes {
    pub fn of(config: &Value) -> Result<Self, Failure> {
        let size = |key: &str| {
            config[key].as_u64().map(|n| n as usize).ok_or_else(|| Failure::from(format!("the config has no `{key}`")))
        };
        Ok(Self {
            layers: size("num_hidden_layers")?,
            hidden: size("hidden_size")?,
            ffn: size("intermediate_size")?,
            queries: size("num_attention_heads")?,
            keys: size("num_key_value_heads")?,
            head_dim: size("head_dim")?,
            vocab: size("vocab_size")?,
            head_norms: config["model_type"] == "qwen3",
            tied: config["tie_word_embeddings"] == true,
        })
    }

    /// Names and shapes, as Hugging Face has them.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, wide) = (self.hidden, self.queries * self.head_dim);
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab, hidden])];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            };
            add("input_layernorm", &[hidden]);
            add("self_attn.q_proj", &[wide, hidden]);
            add("self_attn.k_proj", &[self.keys * self.head_dim, hidden]);
            add("self_attn.v_proj", &[self.keys * self.head_dim, hidden]);
            add("self_attn.o_proj", &[hidden, wide]);
            if self.head_norms {
                add("self_attn.q_norm", &[self.head_dim]);
                add("self_attn.k_norm", &[self.head_dim]);
            }
            add("post_attention_layernorm", &[hidden]);
            add("mlp.gate_proj", &[self.ffn, hidden]);
            add("mlp.up_proj", &[self.ffn, hidden]);
            add("mlp.down_proj", &[hidden, self.ffn]);
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab, hidden]));
        }
        all
    }
}

/// Writes config, tokenizer and weights into `folder`.
pub fn write(config: &Path, folder: &Path, tokenizer: &Path) -> Result<(), Failure> {
    let text = std::fs::read(config)?;
    let sizes = Sizes::of(&serde_json::from_slice(&text)?)?;
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("config.json"), &text)?;
    std::fs::copy(tokenizer.join("tokenizer_config.json"), folder.join("tokenizer_config.json"))?;
    let tokenizer = serde_json::from_slice(&std::fs::read(tokenizer.join("tokenizer.json"))?)?;
    std::fs::write(folder.join("tokenizer.json"), widened(tokenizer, sizes.vocab)?.to_string())?;
    weights(&folder.join("model.safetensors"), &sizes.tensors())
}

/// The tokenizer with a text for each token of the vocabulary, so that each token that is drawn is sent.
fn widened(mut tokenizer: Value, vocab: usize) -> Result<Value, Failure> {
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten().filter_map(|token| token["id"].as_u64());
    let first = added.max().map_or(0, |id| id as usize + 1);
    let known = tokenizer["model"]["vocab"].as_object_mut().ok_or("the tokenizer has no vocabulary")?;
    let first = known.values().filter_map(Value::as_u64).max().map_or(first, |id| first.max(id as usize + 1));
    known.extend((first..vocab).map(|id| (format!("\u{120}{id}"), json!(id))));
    Ok(tokenizer)
}

fn weights(path: &Path, tensors: &[(String, Vec<usize>)]) -> Result<(), Failure> {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut blocks: Vec<(usize, Vec<u8>)> = Vec::new();
    for (_, shape) in tensors {
        let mut left = 2 * shape.iter().product::<usize>();
        // A vector is a norm's: ones. A matrix keeps activations at the size they had.
        let cols = if shape.len() == 2 { shape[1] } else { 0 };
        if !blocks.iter().any(|(of, _)| *of == cols) {
            blocks.push((cols, block(cols)));
        }
        let block = blocks.iter().find(|(of, _)| *of == cols).map_or(&[][..], |(_, bytes)| bytes);
        while left > 0 {
            let piece = left.min(block.len());
            file.write_all(&block[..piece])?;
            left -= piece;
        }
    }
    Ok(file.flush()?)
}

/// Uniform numbers with a variance of `1 / cols` (splitmix64); ones for 0.
fn block(cols: usize) -> Vec<u8> {
    let spread = if cols == 0 { 0.0 } else { (3.0 / cols as f32).sqrt() };
    let mut state = cols as u64;
    let mut number = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        bf16::from_f32(if cols == 0 { 1.0 } else { unit * spread }).to_le_bytes()
    };
    (0..BLOCK).flat_map(|_| number()).collect()
}
