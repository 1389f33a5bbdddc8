//! Why a grammar cannot be had, or an answer cannot go on.

/// What went wrong with one grammar. It concerns the request that it is of, and no other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A schema asks for what cannot be held, contradicts itself, or is too much: the caller's to change.
    #[error("{0}")]
    Schema(String),
    /// The tokens of the model cannot be put into a grammar: the operator's to know.
    #[error("the vocabulary cannot be held to a grammar: {0}")]
    Vocabulary(String),
    /// An answer has come to where no token may follow, or where finding that out takes too much.
    #[error("the answer cannot go on in its grammar: {0}")]
    Stuck(String),
}
