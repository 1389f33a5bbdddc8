//! A guard made of a scanner: what [`Rules`] find is redacted, blocked or flagged, in prompts and in streams.
//!
//! A [`Screen`] does what every such guard must get right: spans and edits of prompts, arguments of tool calls that
//! stay JSON, streams whose client reads the same for any chunking. Read next: [`crate::scan`] for rules, `window.rs`
//! for streams.

mod json;
mod prompt;
mod window;

use crate::descriptor::{Setting, some_of};
use crate::plugin::Error;
use crate::scan::Scanner;
use crate::types::{Finding, Refusal, Role};
use serde::{Deserialize, Serialize};

/// What is looked for, and what is said about it. Rules are those of the scanner's matches.
pub trait Rules: Scanner {
    /// What stands in a match's place. It must be able to stand in JSON text: see [`is_json_safe`].
    fn replacement(&self, rule: usize) -> String;

    /// What is reported of a match; its place is filled in.
    fn finding(&self, rule: usize) -> Finding;

    /// Why a request ends at a match.
    fn refusal(&self, rule: usize) -> Refusal;
}

/// What is done about a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMatch {
    /// It is replaced.
    Redact,
    /// The request is refused, the answer ends.
    Block,
    /// It is reported.
    Flag,
}

/// Settings that such guards have in common. (Name the keys in a plugin's own config: serde's `flatten` would double
/// the size of a small component.)
#[derive(Clone, Debug)]
pub struct ScreenConfig {
    /// What is done about a match.
    pub action: OnMatch,
    /// Whose messages are looked at in prompts.
    pub roles: Vec<String>,
    /// Look at arguments of tool calls too.
    pub tool_arguments: bool,
}

impl ScreenConfig {
    /// What such a guard's descriptor says of look-behind: of what has left a scan looks at the last character alone.
    pub const LOOK_BEHIND_BYTES: u32 = 0;

    /// Checks what no schema was held to.
    ///
    /// # Errors
    /// Where `roles` names none: a prompt guard that looks at nothing.
    pub fn check(&self) -> Result<(), Error> {
        some_of("roles", &self.roles)
    }

    /// The settings' part of a descriptor.
    pub fn settings() -> [Setting; 3] {
        let roles = ["system", "developer", "user", "assistant", "tool"];
        [
            Setting::choice("action", &["redact", "block", "flag"], "redact", "What to do about a match"),
            Setting::some_choices("roles", &roles, &roles[2..], "Whose messages are looked at in prompts"),
            Setting::switch("tool_arguments", true, "Look at arguments of tool calls too"),
        ]
    }
}

/// A guard made of rules.
#[derive(Debug)]
pub struct Screen<R> {
    rules: R,
    config: ScreenConfig,
    /// The counter for matches; declare it in the descriptor.
    metric: &'static str,
}

/// What a stream must remember: where the scan of its channel stopped.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ScreenState {
    resume: crate::scan::Resume,
}

impl<R: Rules> Screen<R> {
    /// A guard that counts matches as `metric`.
    pub fn new(rules: R, config: ScreenConfig, metric: &'static str) -> Self {
        Self { rules, config, metric }
    }

    /// The rules.
    pub fn rules(&self) -> &R {
        &self.rules
    }

    fn looks_at(&self, role: &Role) -> bool {
        let name = match role {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            // Roles that nobody could have named in the config are looked at.
            Role::Other(_) => return true,
        };
        self.config.roles.iter().any(|chosen| chosen == name)
    }

    fn count(&self, matches: usize) {
        if matches > 0 {
            crate::host::metrics::count(self.metric, matches as u64);
        }
    }
}

/// Whether a replacement may stand in JSON text as it is.
pub fn is_json_safe(replacement: &str) -> bool {
    !replacement.chars().any(|c| c.is_control() || c == '"' || c == '\\')
}
