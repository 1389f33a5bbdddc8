//! Every architecture that there is, once. A new one is a file in `arch/` and a line here.

use crate::arch::{llama, mistral, qwen2, qwen3};
use crate::config::Config;
use tidegate_device::Program;

/// A model family.
#[derive(Debug)]
pub struct Architecture {
    /// As in `architectures` of `config.json`.
    pub name: &'static str,
    /// Composes the program; the error says what is wrong with `layer_types`.
    pub(crate) build: fn(&Config) -> Result<Program, String>,
}

/// All of them.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "LlamaForCausalLM", build: llama::build },
    Architecture { name: "MistralForCausalLM", build: mistral::build },
    Architecture { name: "Qwen2ForCausalLM", build: qwen2::build },
    Architecture { name: "Qwen3ForCausalLM", build: qwen3::build },
];

/// The architecture of that name.
pub fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.name == name)
}

/// All names, for messages.
pub fn names() -> String {
    ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
}
