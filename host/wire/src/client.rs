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

/// Names of the models in an upstream's `GET /v1/models`.
pub fn model_names(body: &[u8]) -> Result<Vec<String>, WireError> {
    #[derive(serde::Deserialize)]
    struct List {
        data: Vec<Card>,
    }
    #[derive(serde::Deserialize)]
    struct Card {
        id: String,
    }
    let list: List = serde_json::from_slice(body)
        .map_err(|error| WireError::Malformed(format!("the list of models is not OpenAI's: {error}")))?;
    Ok(list.data.into_iter().map(|card| card.id).collect())
}
