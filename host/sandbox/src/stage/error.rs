//! How a call can fail. A message names the limit that was met, and the key that raises it.

use std::time::Duration;

/// Why a call has no result. The stage's `on_error` says what happens then.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The plugin said that it cannot: the contract's `error`.
    #[error("plugin `{plugin}` answered {case}: {message}")]
    Plugin {
        /// The stage's plugin.
        plugin: String,
        /// The error's case: `invalid-input`, `unavailable`, ...
        case: &'static str,
        /// For logs.
        message: String,
    },
    /// It trapped; its instance is gone.
    #[error("plugin `{plugin}` trapped: {message}")]
    Trap {
        /// The stage's plugin.
        plugin: String,
        /// For logs.
        message: String,
    },
    /// It used up CPU or wall time; its instance is gone.
    #[error("plugin `{plugin}` did not finish within {limit:?} of {clock} time (limits.{clock}_ms)")]
    Deadline {
        /// The stage's plugin.
        plugin: String,
        /// `"cpu"` or `"wall"`.
        clock: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// Its `describe` or `configure` used up what all plugins have for that; its instance is gone.
    #[error(
        "plugin `{plugin}` did not start within {limit:?} of {clock} time, which all plugins have and no setting changes"
    )]
    Start {
        /// The stage's plugin.
        plugin: String,
        /// `"cpu"` or `"wall"`.
        clock: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// It asked for more memory than it may have; its instance is gone.
    #[error("plugin `{plugin}` asked for {asked} bytes of memory; its limit is {limit} (limits.memory_mib)")]
    Memory {
        /// The stage's plugin.
        plugin: String,
        /// What it asked for.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// Its result breaks the contract.
    #[error("plugin `{plugin}` broke the contract: {message}")]
    BadResult {
        /// The stage's plugin.
        plugin: String,
        /// How.
        message: String,
    },
    /// Its result is larger than it may be, as that of a plugin in order is where what it was asked about makes it so.
    #[error("plugin `{plugin}` passed more than output_bytes = {limit} bytes to the host at once")]
    TooLarge {
        /// The stage's plugin.
        plugin: String,
        /// The limit.
        limit: usize,
    },
    /// All plugins together are at a limit of the sandbox, and no idle instance is left to drop.
    #[error("plugin `{plugin}` cannot run: all plugins together use the sandbox's {limit} {what} ({key})")]
    Full {
        /// The stage's plugin.
        plugin: String,
        /// `"instances"` or `"bytes of memory"`.
        what: &'static str,
        /// The key of the config that says how many.
        key: &'static str,
        /// The limit.
        limit: usize,
    },
    /// All instances are busy for too long.
    #[error(
        "plugin `{plugin}` is busy: all {instances} instances of the tenant or project are in use (limits.instances)"
    )]
    Busy {
        /// The stage's plugin.
        plugin: String,
        /// The limit.
        instances: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_meets_a_limit_reads_the_key_that_raises_it() {
        let (plugin, limit) = ("p".to_owned(), Duration::from_millis(50));
        let full = |what, key| CallError::Full { plugin: "p".into(), what, key, limit: 7 };
        for (error, key) in [
            (CallError::Deadline { plugin: plugin.clone(), clock: "cpu", limit }, "50ms of cpu time (limits.cpu_ms)"),
            (
                CallError::Deadline { plugin: plugin.clone(), clock: "wall", limit },
                "50ms of wall time (limits.wall_ms)",
            ),
            (CallError::Start { plugin: plugin.clone(), clock: "cpu", limit }, "no setting changes"),
            (CallError::Memory { plugin: plugin.clone(), asked: 9, limit: 8 }, "limit is 8 (limits.memory_mib)"),
            (CallError::TooLarge { plugin: plugin.clone(), limit: 8 }, "output_bytes = 8"),
            (
                CallError::Busy { plugin, instances: 3 },
                "all 3 instances of the tenant or project are in use (limits.instances)",
            ),
            (full("instances", "plugins.waiting_instances"), "7 instances (plugins.waiting_instances)"),
        ] {
            let said = error.to_string();
            assert!(said.contains(key), "{key} is not in {said}");
        }
    }
}
