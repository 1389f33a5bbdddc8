//! Is told how a request ended.

use crate::plugin::{Error, Plugin};
use crate::types::{Attrs, Context, Finding, Usage};

/// An observer. It sees figures and findings, no content.
pub trait Observer: Plugin {
    /// Called once per request, or prompt of one that has several, after its record was written; nobody waits for it.
    ///
    /// # Errors
    /// When the observer could not do its work; logged.
    fn on_complete(&self, ctx: &Context, summary: &Summary) -> Result<(), Error>;
}

/// How a request ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// `answered`, `failed`, `refused` or `client-gone`; more may come.
    pub outcome: String,
    /// The finish reason of an answer, the code of a failure; may be empty.
    pub detail: String,
    /// The model that answered; empty where none did.
    pub model: String,
    /// What it cost.
    pub usage: Usage,
    /// Milliseconds until the first event, where one came.
    pub first_ms: Option<u32>,
    /// Milliseconds until the end.
    pub total_ms: u32,
    /// What all guards saw.
    pub findings: Vec<Finding>,
    /// More about it.
    pub attrs: Attrs,
}
