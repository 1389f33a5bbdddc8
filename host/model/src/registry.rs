//! Every architecture that there is, once. A new one is a file in `arch/` and a line here.

use crate::arch::{llama, mistral, qwen2, qwen3};
use crate::config::Config;
use tidegate_device::Program;

/// A model family.
#[derive(Debug)]
pub struct Architecture {
    /// As in `architectures` of `config.json`.
    pub name: &'static str,
    /// The same of a checkpoint that gives labels instead of tokens.
    pub classifier: &'static str,
    /// Composes the program; the error says what is wrong with `layer_types`.
    pub(crate) build: fn(&Config) -> Result<Program, String>,
}

/// All of them.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "LlamaForCausalLM", classifier: "LlamaForSequenceClassification", build: llama::build },
    Architecture { name: "MistralForCausalLM", classifier: "MistralForSequenceClassification", build: mistral::build },
    Architecture { name: "Qwen2ForCausalLM", classifier: "Qwen2ForSequenceClassification", build: qwen2::build },
    Architecture { name: "Qwen3ForCausalLM", classifier: "Qwen3ForSequenceClassification", build: qwen3::build },
];

/// The architecture of that name.
pub fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.name == name || a.classifier == name)
}

/// Whether checkpoints of that name give labels.
pub fn is_classifier(name: &str) -> bool {
    ARCHITECTURES.iter().any(|a| a.classifier == name)
}

/// All names, for messages.
pub fn names() -> String {
    let names = ARCHITECTURES.iter().map(|a| a.name).chain(ARCHITECTURES.iter().map(|a| a.classifier));
    names.collect::<Vec<_>>().join(", ")
}
