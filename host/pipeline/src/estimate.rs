//! How many tokens a prompt has, where no tokenizer is at hand.

use tidegate_types::{Chat, Part};

/// Bytes of text for a token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// Bytes of all text in a request.
pub(crate) fn text_bytes(chat: &Chat) -> usize {
    let parts = chat.messages.iter().flat_map(|message| &message.parts);
    parts
        .map(|part| match part {
            Part::Text(text) | Part::Reasoning(text) | Part::Refusal(text) => text.len(),
            Part::ToolOutcome(outcome) => outcome.content.len(),
            Part::ToolCall(call) => call.arguments.len(),
            Part::Opaque { .. } => 0,
        })
        .sum()
}

/// About how many tokens the prompt has.
pub(crate) fn estimated_input(chat: &Chat) -> u64 {
    text_bytes(chat).div_ceil(BYTES_PER_TOKEN) as u64
}
