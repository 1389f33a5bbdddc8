//! Mistral: Llama's block without biases, with a sliding window in the early releases.

use super::decoder::{Bias, decoder};
use crate::config::Config;
use tidegate_device::Program;

pub(crate) fn build(config: &Config) -> Result<Program, String> {
    let windows = config.sliding.everywhere()?;
    Ok(decoder(config, |block, layer| {
        block.norm("input_layernorm");
        block.qkv(Bias::Absent);
        block.attend(windows[layer]);
        block.attention_output(Bias::Absent);
        block.norm("post_attention_layernorm");
        block.gated_mlp(Bias::Absent);
    }))
}
