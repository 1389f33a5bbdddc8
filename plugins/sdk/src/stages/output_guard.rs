//! Decides on a whole answer before the client has any of it.

use crate::plugin::{Error, Plugin};
use crate::stages::Verdict;
use crate::types::{Attrs, Context, Message, Usage};

/// A guard on whole answers.
pub trait OutputGuard: Plugin {
    /// Called once per answer, after the last token, and about what an upstream says when it refuses. Of edits,
    /// [`crate::Edit::ReplaceText`] and [`crate::Edit::SetArguments`] are followed.
    ///
    /// # Errors
    /// When the guard cannot decide; the stage's `on_error` then does.
    fn inspect_output(&self, ctx: &Context, output: &Output) -> Result<Verdict, Error>;
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// One message for each choice, with the ids `choice-0`, `choice-1`, ...
    pub choices: Vec<Message>,
    /// In the order of `choices`.
    pub finish_reasons: Vec<String>,
    /// What it cost, where somebody counted.
    pub usage: Option<Usage>,
    /// `model`, and more.
    pub attrs: Attrs,
}
