//! Qwen3 (dense): queries and keys are normed head by head before they are rotated.

use super::decoder::{Bias, decoder};
use crate::config::Config;
use tidegate_device::Program;

pub(crate) fn build(config: &Config) -> Result<Program, String> {
    let windows = config.sliding.by_layer()?;
    let attention_bias = Bias::when(config.attention_bias);
    Ok(decoder(config, |block, layer| {
        block.norm("input_layernorm");
        block.qkv(attention_bias);
        block.head_norm("q_norm", "k_norm");
        block.attend(windows[layer]);
        block.attention_output(attention_bias);
        block.norm("post_attention_layernorm");
        block.gated_mlp(Bias::Absent);
    }))
}
