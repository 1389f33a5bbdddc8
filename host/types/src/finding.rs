//! What guards report.

use serde::{Deserialize, Serialize};

/// Half-open byte range of UTF-8 text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For statistics.
    Info,
    /// Worth a look.
    Low,
    /// Suspicious.
    Medium,
    /// Should not pass.
    High,
    /// Must not pass.
    Critical,
}

/// One thing that a guard saw. `category` is namespaced: `pii:email`, `openai:hate`, `x-acme:...`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Namespaced category.
    pub category: String,
    /// How bad it is.
    pub severity: Severity,
    /// Confidence between 0 and 1, where the plugin has one.
    pub score: Option<f32>,
    /// The message it is in, for prompts.
    pub message_id: Option<String>,
    /// Where in the text.
    pub span: Option<Span>,
}
