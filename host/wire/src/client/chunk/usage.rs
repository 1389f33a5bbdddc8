//! What an upstream counted. Servers differ in whether the tokens of reasoning are among those that were generated.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tidegate_types::Usage;

#[derive(Deserialize)]
pub(super) struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

/// Nothing where it cannot be read: that is no reason to throw an answer away.
pub(super) fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WireUsage>, D::Error> {
    Ok(WireUsage::deserialize(Value::deserialize(deserializer)?).ok())
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl WireUsage {
    /// What is generated and reasoned together, where the total says that one is counted beside the other (xAI).
    fn with_reasoning_beside(&self, reasoning: u64) -> Option<u64> {
        let output = self.completion_tokens.checked_add(reasoning)?;
        (self.total_tokens? == self.prompt_tokens.checked_add(output)?).then_some(output)
    }
}

impl From<WireUsage> for Usage {
    fn from(usage: WireUsage) -> Self {
        let reasoning = usage.completion_tokens_details.as_ref().and_then(|details| details.reasoning_tokens);
        let output = reasoning.and_then(|reasoning| usage.with_reasoning_beside(reasoning));
        let output_tokens = output.unwrap_or(usage.completion_tokens);
        Self {
            input_tokens: usage.prompt_tokens,
            cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
            output_tokens,
            // More than was generated is no part of it, and no total says that it is counted beside.
            reasoning_tokens: reasoning.filter(|reasoning| *reasoning <= output_tokens),
        }
    }
}
