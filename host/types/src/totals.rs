//! What was used, summed.

/// A sum. It has the names that it is of one of: where it was not asked for by a name, or is of what has none, that is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// The project's id; the tenant's name for what is the tenant's own.
    pub project: Option<String>,
    /// The key's name.
    pub key: Option<String>,
    /// The end user, as callers named it.
    pub user: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// What for: `generation`, `summary` or `title`.
    pub kind: Option<String>,
    /// Generations.
    pub requests: u64,
    /// Prompt tokens, cached ones included.
    pub input_tokens: u64,
    /// Of those, cached.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Calls of tools.
    pub tool_calls: u64,
    /// Calls of retrievers.
    pub retrieval_calls: u64,
    /// Billionths of the operator's currency.
    pub amount: u64,
    /// Of those, for calls.
    pub calls_amount: u64,
}
