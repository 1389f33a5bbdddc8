//! Asking another server: `client/request.rs` writes what we ask, `client/chunk.rs` reads what it answers
//! (`client/calls.rs` puts tool calls together), `client/texts.rs` asks for vectors and labels, `client/failure.rs`
//! reads how it fails.
//!
//! What an upstream says is never trusted: every reader bounds what it keeps, and anything outside of the
//! protocol is a [`WireError`] rather than a guess.

mod calls;
mod chunk;
mod failure;
mod request;
mod texts;

pub use chunk::{AnswerReader, Received};
pub use failure::Failure;
pub use request::{RequestOptions, TokenBound, endpoint_path, request_body};
pub use texts::{embeddings, labels, labels_body, prompt_tokens, vectors_body};

/// How an upstream's answer can be unusable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WireError {
    /// An event is longer than it may be.
    #[error("an event of the stream is longer than {limit_bytes} bytes")]
    EventTooLong {
        /// The bound.
        limit_bytes: usize,
    },
    /// What has to be gathered of the answer is longer than it may be.
    #[error("more than {limit_bytes} bytes of tool calls and log-probabilities in one answer")]
    TooLong {
        /// The bound.
        limit_bytes: usize,
    },
    /// Not what the protocol says.
    #[error("{0}")]
    Malformed(String),
    /// The upstream reported an error in its stream.
    #[error("the upstream reported: {}", .0.message)]
    Failed(Failure),
    /// The answer stopped before it was complete.
    #[error("the answer broke off: choice {choice} has no finish reason")]
    BrokeOff {
        /// The first choice without an end.
        choice: u32,
    },
}

/// A model that an upstream lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// The name callers use.
    pub id: String,
    /// What it can do, where the upstream says it as Tidegate does ([`crate::models::ModelCard::capabilities`]).
    pub capabilities: Option<Vec<String>>,
}

impl ListedModel {
    /// Whether it answers chats, as far as the upstream says.
    pub fn chats(&self) -> bool {
        self.capabilities.as_ref().is_none_or(|all| all.iter().any(|can| can == "chat"))
    }
}

/// The models in an upstream's `GET /v1/models`.
pub fn listed_models(body: &[u8]) -> Result<Vec<ListedModel>, WireError> {
    #[derive(serde::Deserialize)]
    struct List {
        data: Vec<Card>,
    }
    #[derive(serde::Deserialize)]
    struct Card {
        id: String,
        #[serde(default)]
        capabilities: serde_json::Value,
    }
    let list: List = serde_json::from_slice(body)
        .map_err(|error| WireError::Malformed(format!("the list of models is not OpenAI's: {error}")))?;
    // Some servers have an object of that name, which says nothing here.
    let listed = |card: Card| ListedModel { id: card.id, capabilities: serde_json::from_value(card.capabilities).ok() };
    Ok(list.data.into_iter().map(listed).collect())
}
