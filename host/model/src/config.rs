//! `config.json` in both spellings (transformers 4 and 5), every number bounded, every option that would change
//! the result and is not supported refused by name.
//!
//! Keys that do not bear on inference are ignored. Read next: `config/sliding.rs`, `rope.rs`.

mod sliding;

use crate::error::ModelError;
use crate::json::Object;
use crate::rope::Rope;
pub(crate) use sliding::Sliding;
use tidegate_device::{Activation, DType};
use tidegate_types::Pooling;

/// What architectures build programs from.
#[derive(Debug)]
pub(crate) struct Config {
    /// Of the published weights; absent in some old configs.
    pub(crate) dtype: Option<DType>,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab: usize,
    pub(crate) max_positions: usize,
    pub(crate) rms_norm_eps: f32,
    pub(crate) activation: Activation,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) attention_bias: bool,
    pub(crate) mlp_bias: bool,
    pub(crate) sliding: Sliding,
    pub(crate) rope: Rope,
    pub(crate) eos_token_ids: Vec<u32>,
    /// Of a model that makes vectors; another file says so.
    pub(crate) pooling: Option<Pooling>,
}

impl Config {
    pub(crate) fn read(object: &Object) -> Result<Self, ModelError> {
        refuse_unsupported(object)?;
        let need = |key, range| object.uint(key, range).and_then(|value| object.required(key, value));
        let hidden = need("hidden_size", 1..=1 << 17)?;
        let num_layers = need("num_hidden_layers", 1..=1024)?;
        let num_heads = need("num_attention_heads", 1..=1024)?;
        let vocab = need("vocab_size", 1..=1 << 22)?;
        let rope = Rope::read(object)?;
        Ok(Self {
            dtype: dtype(object)?,
            hidden,
            intermediate: need("intermediate_size", 1..=1 << 20)?,
            num_layers,
            num_heads,
            num_kv_heads: num_kv_heads(object, num_heads)?,
            head_dim: head_dim(object, hidden, num_heads)?,
            vocab,
            max_positions: rope.max_positions(),
            rms_norm_eps: object.float("rms_norm_eps", 0.0..=1.0)?.unwrap_or(1e-6) as f32,
            activation: activation(object)?,
            tie_word_embeddings: object.flag("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: object.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: object.flag("mlp_bias")?.unwrap_or(false),
            sliding: Sliding::read(object, num_layers)?,
            rope,
            eos_token_ids: object.token_ids("eos_token_id", vocab)?.unwrap_or_default(),
            pooling: None,
        })
    }
}

/// The first of `architectures`, which picks the file in `arch/`.
pub(crate) fn architecture(object: &Object) -> Result<&str, ModelError> {
    let names = object.texts("architectures")?;
    let first = names.and_then(|names| names.first().copied());
    object.required("architectures", first)
}

fn refuse_unsupported(object: &Object) -> Result<(), ModelError> {
    for key in ["quantization_config", "compression_config"] {
        if object.get(key).is_some() {
            return Err(object.unsupported(key, "...", "weights in bf16, f16 or f32 without it"));
        }
    }
    if object.flag("is_causal")? == Some(false) {
        return Err(object.unsupported("is_causal", "false", "causal models"));
    }
    Ok(())
}

fn dtype(object: &Object) -> Result<Option<DType>, ModelError> {
    let key = if object.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    let Some(name) = object.text(key)? else { return Ok(None) };
    match name.strip_prefix("torch.").unwrap_or(name) {
        "bfloat16" => Ok(Some(DType::BF16)),
        "float16" => Ok(Some(DType::F16)),
        "float32" => Ok(Some(DType::F32)),
        _ => Err(object.unsupported(key, name, "bfloat16, float16, float32")),
    }
}

fn num_kv_heads(object: &Object, num_heads: usize) -> Result<usize, ModelError> {
    let num_kv_heads = object.uint("num_key_value_heads", 1..=num_heads)?.unwrap_or(num_heads);
    if !num_heads.is_multiple_of(num_kv_heads) {
        let why = format!("is {num_kv_heads}; it must divide the {num_heads} attention heads");
        return Err(object.wrong("num_key_value_heads", why));
    }
    Ok(num_kv_heads)
}

fn head_dim(object: &Object, hidden: usize, num_heads: usize) -> Result<usize, ModelError> {
    let head_dim = match object.uint("head_dim", 2..=1024)? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(num_heads) && hidden / num_heads <= 1024 => hidden / num_heads,
        None => return Err(object.wrong("hidden_size", format!("{hidden} does not divide into {num_heads} heads"))),
    };
    if head_dim % 2 != 0 || head_dim == 0 {
        return Err(object.wrong("head_dim", format!("is {head_dim}; rotation needs an even width")));
    }
    Ok(head_dim)
}

fn activation(object: &Object) -> Result<Activation, ModelError> {
    match object.text("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(object.unsupported("hidden_act", other, "silu, gelu_pytorch_tanh")),
    }
}

#[cfg(test)]
mod tests;
