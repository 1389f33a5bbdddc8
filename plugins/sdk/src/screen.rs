//! A guard made of a scanner: what [`Rules`] find is redacted, blocked or flagged, in prompts and in streams.
//!
//! A [`Screen`] does what every such guard must get right: spans and edits of prompts, arguments of tool calls that
//! stay JSON, streams whose client reads the same for any chunking. Read next: [`crate::scan`] for rules, `window.rs`
//! for streams.
//!
//! A guard that takes tickets' numbers out of prompts and answers:
//!
//! ```
//! use tidegate_plugin_sdk::scan::{Place, Scanner, Step};
//! use tidegate_plugin_sdk::screen::{OnMatch, Rules, Screen, ScreenConfig, ScreenState};
//! use tidegate_plugin_sdk::*;
//!
//! /// `PX-` and four digits.
//! struct Tickets;
//!
//! impl Scanner for Tickets {
//!     fn step(&self, at: Place<'_>) -> Step {
//!         let fits = |(c, form): (char, char)| if form == '0' { c.is_ascii_digit() } else { c == form };
//!         match at.rest.chars().zip("PX-0000".chars()).take_while(|pair| fits(*pair)).count() {
//!             7 => Step::Match { len: 7, rule: 0 },
//!             // All that is there fits, and the rest may follow.
//!             len if len == at.rest.len() && !at.is_last => Step::More,
//!             _ => Step::No,
//!         }
//!     }
//! }
//!
//! impl Rules for Tickets {
//!     fn replacement(&self, _: usize) -> String {
//!         "[ticket]".into()
//!     }
//!     fn finding(&self, _: usize) -> Finding {
//!         Finding::new("tickets:number", Severity::Low)
//!     }
//!     fn refusal(&self, _: usize) -> Refusal {
//!         Refusal::new("ticket", "Numbers of tickets stay here.")
//!     }
//! }
//!
//! #[derive(serde::Deserialize)]
//! struct Config {
//!     action: OnMatch,
//!     roles: Vec<String>,
//!     tool_arguments: bool,
//! }
//!
//! struct Guard(Screen<Tickets>);
//!
//! impl Plugin for Guard {
//!     type Config = Config;
//!
//!     fn describe() -> Descriptor {
//!         Descriptor::new("tickets", env!("CARGO_PKG_VERSION"), "Takes out tickets' numbers")
//!             .settings(ScreenConfig::settings())
//!             .metric("tickets", "numbers that were found")
//!             .holdback(7)
//!             .look_behind(ScreenConfig::LOOK_BEHIND_BYTES)
//!             .mutates()
//!             .deterministic()
//!     }
//!
//!     fn configure(Config { action, roles, tool_arguments }: Config) -> Result<Self, Error> {
//!         let config = ScreenConfig { action, roles, tool_arguments };
//!         config.check()?;
//!         Ok(Self(Screen::new(Tickets, config, "tickets")))
//!     }
//! }
//!
//! impl PromptGuard for Guard {
//!     fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
//!         Ok(self.0.prompt(prompt))
//!     }
//! }
//!
//! impl StreamGuard for Guard {
//!     type State = ScreenState;
//!
//!     fn inspect_window(&self, _: &Context, state: &mut ScreenState, window: &Window) -> Result<Inspection, Error> {
//!         Ok(self.0.window(state, window))
//!     }
//! }
//!
//! tidegate_plugin_sdk::export!(Guard: PromptGuard, StreamGuard);
//!
//! let said = testing::Host::default().stream(&testing::plugin::<Guard>(""), &["It is P", "X-12", "34, not PX-1."]);
//! assert_eq!(said.unwrap().text, "It is [ticket], not PX-1.");
//! ```

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
