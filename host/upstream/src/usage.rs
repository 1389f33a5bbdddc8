//! Whether the usage that an upstream reports can be true. Money depends on it, so figures that cannot be are
//! not passed on: the answer then has no usage, which the accounting treats as unknown.

use tidegate_types::{Chat, Part, Usage};

/// What we know ourselves about one request and its answer.
pub(crate) struct Bounds {
    /// A token has at least one byte, so a prompt has at most as many tokens as bytes, plus what the server's
    /// own template adds. `None` where parts that are not text (images) weigh what they like.
    max_input: Option<u64>,
    max_output: u64,
    /// Of the answer, so far.
    pub(crate) text_bytes: u64,
}

const TEMPLATE_TOKENS: u64 = 64 << 10;
/// No tokenizer has longer tokens.
const MAX_TOKEN_BYTES: u64 = 1024;

impl Bounds {
    pub(crate) fn new(chat: &Chat, request_bytes: usize) -> Self {
        let mut parts = chat.messages.iter().flat_map(|message| &message.parts);
        let text_only = !parts.any(|part| matches!(part, Part::Opaque { .. }));
        Self {
            max_input: text_only.then_some(request_bytes as u64 + TEMPLATE_TOKENS),
            max_output: chat.max_tokens.map_or(u64::from(u32::MAX), |max| u64::from(max) * u64::from(chat.n)),
            text_bytes: 0,
        }
    }

    /// Says which figure cannot be true.
    pub(crate) fn check(&self, usage: &Usage) -> Result<(), String> {
        let Usage { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = *usage;
        match self.max_input {
            Some(max) if input_tokens > max => return Err(format!("{input_tokens} prompt tokens, at most {max}")),
            _ => {}
        }
        if input_tokens > u64::from(u32::MAX) || cached_tokens > input_tokens {
            return Err(format!("{cached_tokens} cached of {input_tokens} prompt tokens"));
        }
        // Servers that count reasoning beside what is generated (xAI) bound the latter alone.
        let bounded = output_tokens.saturating_sub(reasoning_tokens.unwrap_or(0));
        if bounded > self.max_output || output_tokens > u64::from(u32::MAX) {
            return Err(format!("{output_tokens} generated tokens, at most {}", self.max_output));
        }
        if output_tokens.saturating_mul(MAX_TOKEN_BYTES) < self.text_bytes {
            return Err(format!("{output_tokens} generated tokens for {} bytes of text", self.text_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(max_tokens: Option<u32>, n: u32) -> Bounds {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
        let chat = tidegate_wire::parse_chat(body).unwrap().chat;
        Bounds::new(&Chat { max_tokens, n, ..chat }, 1000)
    }

    fn usage(input_tokens: u64, cached_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, cached_tokens, output_tokens, ..Usage::default() }
    }

    #[test]
    fn plausible_usage_passes_and_impossible_usage_does_not() {
        let mut limited = bounds(Some(10), 2);
        limited.text_bytes = 2000;
        assert!(limited.check(&usage(900, 900, 20)).is_ok());
        assert!(limited.check(&usage(900, 0, 2)).is_ok());
        assert!(limited.check(&usage(900, 0, 21)).unwrap_err().contains("at most 20"));
        assert!(limited.check(&usage(900, 901, 20)).unwrap_err().contains("cached"));
        assert!(limited.check(&usage(900, 0, 1)).unwrap_err().contains("2000 bytes"));
        assert!(limited.check(&usage(1 << 30, 0, 20)).unwrap_err().contains("prompt tokens"));
        assert!(bounds(None, 1).check(&usage(1, 0, 1 << 40)).is_err());
        let reasoned =
            |reasoning: u64, output: u64| Usage { reasoning_tokens: Some(reasoning), ..usage(900, 0, output) };
        assert!(limited.check(&reasoned(317, 337)).is_ok());
        assert!(limited.check(&reasoned(317, 338)).unwrap_err().contains("at most 20"));
        assert!(limited.check(&reasoned(1 << 40, 1 << 40)).is_err());
    }
}
