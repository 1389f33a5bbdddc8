//! Tools that the model may call.

use crate::plugin::{Error, Plugin};
use crate::types::{Context, ToolCall, ToolDef, ToolOutcome};

/// A provider of tools.
pub trait ToolProvider: Plugin {
    /// The tools on offer for this request.
    ///
    /// # Errors
    /// When the list is not to be had; the request then goes on as the stage's `on_error` says.
    fn list_tools(&self, ctx: &Context) -> Result<Vec<ToolDef>, Error>;

    /// Runs one call. What the model can mend (a missing argument, a division by zero) is an outcome with
    /// `is_error`, not an error: it reads the outcome's `content`.
    ///
    /// # Errors
    /// When the tool itself is out of order, or its name is not one of this provider. The model is told no more than
    /// that the tool failed.
    fn call_tool(&self, ctx: &Context, call: &ToolCall) -> Result<ToolOutcome, Error>;
}
