//! Questions to models by alias. Needs [`crate::Capability::Models`]; the operator says which model an alias means.

use crate::plugin::Error;
use crate::types::{Message, Usage};

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::models::tidegate::plugin::models as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake;

/// What a model said.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The answer.
    pub message: Message,
    /// Why it ended.
    pub finish_reason: String,
    /// What it cost.
    pub usage: Usage,
}

/// A label of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// From 0 to 1.
    pub score: f32,
}

/// One vector for each text, in their order.
///
/// # Errors
/// What the host says: no grant, the model is not ready, or it makes no vectors.
pub fn embed(alias: &str, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
    #[cfg(target_arch = "wasm32")]
    return Ok(imp::embed(alias, texts)?);
    #[cfg(not(target_arch = "wasm32"))]
    fake::embed(alias, texts)
}

/// An answer; `params` is JSON (`max_tokens`, `temperature`, `top_p`, `seed`, `stop`) or empty.
///
/// # Errors
/// What the host says: no grant, no messages, a parameter that it does not take, or the model is not ready.
pub fn complete(alias: &str, messages: &[Message], params: &str) -> Result<Reply, Error> {
    #[cfg(target_arch = "wasm32")]
    {
        let messages: Vec<_> = messages.iter().cloned().map(Into::into).collect();
        Ok(imp::complete(alias, &messages, params)?.into())
    }
    #[cfg(not(target_arch = "wasm32"))]
    fake::complete(alias, messages, params)
}

/// The labels of each text, highest score first.
///
/// # Errors
/// What the host says: no grant, the model is not ready, or it gives no labels.
pub fn classify(alias: &str, texts: &[String]) -> Result<Vec<Vec<Label>>, Error> {
    #[cfg(target_arch = "wasm32")]
    {
        let label = |label: imp::Label| Label { name: label.name, score: label.score };
        Ok(imp::classify(alias, texts)?.into_iter().map(|of| of.into_iter().map(label).collect()).collect())
    }
    #[cfg(not(target_arch = "wasm32"))]
    fake::classify(alias, texts)
}
