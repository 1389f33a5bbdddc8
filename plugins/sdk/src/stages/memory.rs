//! What is remembered of a caller between conversations.

use crate::plugin::{Error, Plugin};
use crate::types::{Attrs, Context, Message};

/// A memory. An instance serves one project, or a tenant where its requests are in none; within it, [`Context::caller`] says whose memory is meant.
pub trait Memory: Plugin {
    /// Called once per question, before generation. What it answers is screened before the model sees it.
    ///
    /// # Errors
    /// When the memory is not to be had. Nothing known is an empty list.
    fn recall(&self, ctx: &Context, question: &Question) -> Result<Vec<Item>, Error>;

    /// Called at most once per request, after the client has the whole answer; answers what was kept.
    ///
    /// # Errors
    /// When nothing could be kept; logged.
    fn remember(&self, ctx: &Context, exchange: &Exchange) -> Result<Vec<Item>, Error>;

    /// Called when a caller asks for it, with ids as that caller sent them; answers how many were there.
    ///
    /// # Errors
    /// When the memory is not to be had. An unknown id is no error.
    fn forget(&self, ctx: &Context, ids: &[String]) -> Result<u32, Error>;
}

/// A question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The question.
    pub text: String,
    /// At most this many items.
    pub limit: u32,
    /// More about it.
    pub attrs: Attrs,
}

/// Something remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Item {
    /// Unique within plugin and caller.
    pub id: String,
    /// What is remembered.
    pub text: String,
    /// Higher is better.
    pub score: Option<f32>,
    /// More about it.
    pub attrs: Attrs,
}

/// A question as the model saw it and its answer as the client saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchange {
    /// Two: what was asked last, and the answer.
    pub messages: Vec<Message>,
    /// More about it.
    pub attrs: Attrs,
}
