//! The kinds of stage, and the order in which a request meets them.

use serde::Deserialize;

/// The kinds of stage that a component may export, by their names in the contract and in the config.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum StageKind {
    /// Decides on prompts, retrieved text and tool results.
    PromptGuard,
    /// Decides on generated text.
    StreamGuard,
    /// Orders the models for a request that asks for `auto`.
    Router,
    /// Brings tools.
    ToolProvider,
    /// Brings passages.
    Retriever,
    /// Decides on whole answers.
    OutputGuard,
    /// Remembers callers between conversations.
    Memory,
    /// Is told how requests ended.
    Observer,
}

impl StageKind {
    /// All kinds, in the order of the path.
    pub const ALL: [Self; 8] = [
        Self::PromptGuard,
        Self::Retriever,
        Self::Memory,
        Self::ToolProvider,
        Self::Router,
        Self::StreamGuard,
        Self::OutputGuard,
        Self::Observer,
    ];

    /// The interface's name in the contract and in the config.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PromptGuard => "prompt-guard",
            Self::StreamGuard => "stream-guard",
            Self::Router => "router",
            Self::ToolProvider => "tool-provider",
            Self::Retriever => "retriever",
            Self::OutputGuard => "output-guard",
            Self::Memory => "memory",
            Self::Observer => "observer",
        }
    }

    /// Whether it is shown what callers write or models answer.
    pub fn sees_content(self) -> bool {
        self != Self::Observer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_by_the_name_that_it_is_shown_by() {
        for kind in StageKind::ALL {
            assert_eq!(serde_json::from_value::<StageKind>(kind.as_str().into()).unwrap(), kind);
        }
    }
}
