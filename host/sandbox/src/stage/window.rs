//! What a stream guard is shown of an answer while it is said, and what it decides.

use super::Refusal;
use tidegate_types::{Finding, Span};

/// Which text of a choice a window is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// The answer.
    Text,
    /// The reasoning.
    Reasoning,
    /// The refusal.
    Refusal,
    /// Arguments of the tool call with this id.
    ToolArguments(String),
}

/// A stretch of generated text: look-behind that the client has, then text that waits.
#[derive(Clone, Debug)]
pub struct Window<'a> {
    /// Counts the windows of this choice and channel from 0.
    pub seq: u32,
    /// Which answer.
    pub choice: u32,
    /// Which text.
    pub channel: &'a Channel,
    /// Look-behind and pending text.
    pub text: &'a str,
    /// Bytes of look-behind.
    pub settled: u32,
    /// On the last window: the finish reason.
    pub ending: Option<&'a str>,
}

/// A replacement within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redaction {
    /// Starts at or after `settled`.
    pub span: Span,
    /// The new text.
    pub text: String,
}

/// What a stream guard decided about a window.
#[derive(Clone, Debug, PartialEq)]
pub enum WindowAction {
    /// Text is fine as it is.
    Pass,
    /// Text is fine with these changes; sorted, not overlapping.
    Redact(Vec<Redaction>),
    /// The answer ends here, with a farewell where one is given.
    Halt {
        /// Why.
        refusal: Refusal,
        /// Said to the client in the model's place.
        farewell: Option<String>,
    },
}

/// A stream guard's answer. The sandbox has checked it: spans in bounds and on characters, `carry` in its cap.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The decision.
    pub action: WindowAction,
    /// Bytes of the window (before redaction) that may leave now; between `settled` and the text's length.
    pub safe_through: u32,
    /// Comes back with the next window of this choice and channel.
    pub carry: Vec<u8>,
    /// What it saw.
    pub findings: Vec<Finding>,
}

impl Inspection {
    /// Everything up to there may leave as it is; nothing was seen, and nothing is remembered.
    pub fn pass(safe_through: usize) -> Self {
        let safe_through = u32::try_from(safe_through).unwrap_or(u32::MAX);
        Self { action: WindowAction::Pass, safe_through, carry: Vec::new(), findings: Vec::new() }
    }
}
