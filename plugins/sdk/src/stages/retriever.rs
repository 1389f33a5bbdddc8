//! Context for a question.

use crate::plugin::{Error, Plugin};
use crate::types::{Attrs, Context, Span};

/// A retriever. What it returns is screened before the model sees it.
pub trait Retriever: Plugin {
    /// Finds passages for a question, best first.
    ///
    /// # Errors
    /// When the source is not to be had. No match is an empty list.
    fn retrieve(&self, ctx: &Context, query: &Query) -> Result<Vec<Chunk>, Error>;
}

/// A question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// The question.
    pub text: String,
    /// At most this many passages.
    pub top_k: u32,
    /// More about it.
    pub attrs: Attrs,
}

/// A passage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Unique within the retriever.
    pub id: String,
    /// The passage.
    pub text: String,
    /// Where it is from.
    pub uri: Option<String>,
    /// For people.
    pub title: Option<String>,
    /// Higher is better.
    pub score: Option<f32>,
    /// Bytes within the source.
    pub origin: Option<Span>,
    /// More about it.
    pub attrs: Attrs,
}
