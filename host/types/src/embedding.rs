//! Texts as vectors: what is asked of a model that makes them, and what it answers.

use crate::delta::Usage;
use serde::{Deserialize, Serialize};

/// What the one vector of a text is made of, where a model computes one for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// That of the last token.
    LastToken,
    /// The mean of all.
    Mean,
}

/// What one vector is asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedInput {
    /// A text.
    Text(String),
    /// The tokens that its caller made of it: all of them, with those that the model's tokenizer would add.
    Tokens(Vec<u32>),
}

/// A parsed and validated request for vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedRequest {
    /// The model as the caller named it.
    pub model: String,
    /// One vector is made of each; never empty.
    pub inputs: Vec<EmbedInput>,
    /// How many numbers of each vector are wanted; all where absent.
    pub dimensions: Option<u32>,
    /// The person on whose behalf it is asked, where the caller says.
    pub user: Option<String>,
}

/// The vectors of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// One for each input, in their order.
    pub vectors: Vec<Vec<f32>>,
    /// What they cost: nothing is generated.
    pub usage: Usage,
}
