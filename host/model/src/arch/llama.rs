//! Llama 1 to 3.x (and the many models that publish as it): the plain decoder block.

use super::decoder::{Bias, decoder};
use crate::config::Config;
use tidegate_device::Program;

pub(crate) fn build(config: &Config) -> Result<Program, String> {
    let windows = config.sliding.never()?;
    let (attention_bias, mlp_bias) = (Bias::when(config.attention_bias), Bias::when(config.mlp_bias));
    Ok(decoder(config, |block, layer| {
        block.norm("input_layernorm");
        block.qkv(attention_bias);
        block.attend(windows[layer]);
        block.attention_output(attention_bias);
        block.norm("post_attention_layernorm");
        block.gated_mlp(mlp_bias);
    }))
}
