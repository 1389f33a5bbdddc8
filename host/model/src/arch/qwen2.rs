//! Qwen2 and 2.5: biases on queries, keys and values, whatever `attention_bias` says.

use super::decoder::{Bias, decoder};
use crate::config::Config;
use tidegate_device::Program;

pub(crate) fn build(config: &Config) -> Result<Program, String> {
    let windows = config.sliding.by_layer()?;
    Ok(decoder(config, |block, layer| {
        block.norm("input_layernorm");
        block.qkv(Bias::Present);
        block.attend(windows[layer]);
        block.attention_output(Bias::Absent);
        block.norm("post_attention_layernorm");
        block.gated_mlp(Bias::Absent);
    }))
}
