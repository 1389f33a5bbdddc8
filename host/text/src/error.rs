//! Everything that can go wrong with text, each condition naming the thing, the limit and the remedy.
//!
//! Whose fault it is: [`TextError::is_callers`] tells a bad request (400) from a broken model folder (500).

use std::path::PathBuf;

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the model folder is absent, unreadable or too large.
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system, or the size check, said.
        cause: String,
    },
    /// A file of the model folder is truncated or malformed.
    #[error("{path} is not usable: {cause}; download the model's folder again or mend the file")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        cause: String,
    },
    /// A well-formed tokenizer that asks for something this crate does not do.
    #[error("{path} asks for {what}; supported: {supported}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it asks for.
        what: String,
        /// What there is instead.
        supported: &'static str,
    },
    /// The model has no chat template, so messages cannot be laid out.
    #[error(
        "this model has no chat template; use completions with a raw prompt, or put a chat_template.jinja in its folder"
    )]
    NoTemplate,
    /// The chat template refused the conversation (`raise_exception`).
    #[error("the model's chat template refuses this conversation: {0}")]
    Template(String),
    /// The chat template failed in another way; it does not fit the conversation, or is broken.
    #[error("the model's chat template failed: {0}")]
    TemplateFailed(String),
    /// The rendered conversation is larger than the cap.
    #[error("the chat template wrote more than {limit_bytes} bytes; shorten the conversation")]
    TemplateTooLong {
        /// The cap.
        limit_bytes: usize,
    },
    /// The template ran for too many steps.
    #[error("the chat template took more than {limit_steps} steps; shorten the conversation or its tools")]
    TemplateTooSlow {
        /// The cap.
        limit_steps: u64,
    },
    /// A template argument by a name that the host sets itself.
    #[error("template argument `{0}` is set by the server and cannot be given by a caller")]
    ReservedArgument(String),
    /// Content that a text model cannot read.
    #[error("message `{message}` has a part of type `{kind}`; this model reads text only")]
    UnsupportedPart {
        /// The message's id.
        message: String,
        /// The part's wire type.
        kind: String,
    },
    /// A tool's schema or a template argument that is nested too deeply.
    #[error("JSON nested deeper than {limit} levels in {place}")]
    TooDeep {
        /// Where.
        place: &'static str,
        /// The cap.
        limit: usize,
    },
    /// The text uses up all private-use characters, which the encoder needs some of.
    #[error("the conversation uses more than {limit} different characters of the private-use plane 16")]
    PrivateCharacters {
        /// The cap.
        limit: usize,
    },
    /// The text is too long for who wants its tokens.
    #[error("the text has at least {at_least} tokens; shorten it")]
    TooManyTokens {
        /// How many were counted before that was sure.
        at_least: usize,
    },
    /// Nobody waits for the tokens any more.
    #[error("nobody waits for the tokens of this text any more")]
    Gone,
    /// The tokenizer cannot encode the text.
    #[error("the tokenizer cannot encode the text: {0}")]
    Encode(String),
    /// A stop string that is empty would end every answer at once.
    #[error("stop string {0} is empty; leave it out")]
    EmptyStop(usize),
}

impl TextError {
    /// True where the request is at fault (400), false where the model's folder is.
    pub fn is_callers(&self) -> bool {
        !matches!(
            self,
            // Any text has tokens: a tokenizer that finds none is not whole.
            Self::Unreadable { .. } | Self::Malformed { .. } | Self::Unsupported { .. } | Self::Encode(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_that_fails_is_not_the_callers_fault() {
        assert!(!TextError::Encode("its description contradicts itself".into()).is_callers());
        assert!(TextError::PrivateCharacters { limit: 9 }.is_callers());
    }
}
