//! A guard that keeps personal data and secrets out of prompts and answers: e-mail addresses, card numbers, phone
//! numbers, IBANs, keys.
//!
//! On streams the client's bytes do not hang on how the text is cut into events. Read next: [`detect`] for what is
//! found, [`prompt`] and [`stream`] for what is done about it.

pub mod detect;
mod json;
mod prompt;
mod stream;

use detect::{Detector, Kind, MAX_HELD_BYTES};
use serde::Deserialize;
use tidegate_plugin_sdk::{Descriptor, Error, Finding, Plugin, Refusal, Setting, Severity};

/// What is done about a find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is replaced.
    Redact,
    /// The request is refused, the answer ends.
    Block,
    /// It is reported.
    Flag,
}

/// The settings.
#[derive(Debug, Deserialize)]
pub struct Config {
    kinds: Vec<Kind>,
    action: Action,
    replacement: String,
    roles: Vec<String>,
    tool_arguments: bool,
    message: String,
}

/// The plugin.
#[derive(Debug)]
pub struct PiiGuard {
    plain: Detector,
    json: Detector,
    config: Config,
}

impl Plugin for PiiGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        let kinds = Kind::ALL.map(Kind::as_str);
        let roles = ["system", "developer", "user", "assistant", "tool"];
        Descriptor::new("pii-guard", env!("CARGO_PKG_VERSION"), "Redacts personal data and secrets")
            .setting(Setting::choices("kinds", &kinds, &kinds, "What to look for"))
            .setting(Setting::choice("action", &["redact", "block", "flag"], "redact", "What to do about a find"))
            .setting(Setting::text("replacement", "[{kind}]", "What stands in its place"))
            .setting(Setting::choices("roles", &roles, &roles[2..], "Whose messages are looked at in prompts"))
            .setting(Setting::switch("tool_arguments", true, "Look at arguments of tool calls too"))
            .setting(Setting::text("message", MESSAGE, "What the client reads when a request is blocked"))
            .metric("pii_found")
            .holdback(MAX_HELD_BYTES)
            .mutates()
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        if config.kinds.is_empty() {
            return Err(Error::InvalidConfig("`kinds` is empty: name one, or leave the key out for all".into()));
        }
        let is_unsafe = |c: char| c.is_control() || c == '"' || c == '\\';
        if let Some(c) = config.replacement.chars().find(|c| is_unsafe(*c)) {
            return Err(Error::InvalidConfig(format!("`replacement` has {c:?}, which may not stand in JSON text")));
        }
        let plain = Detector::new(&config.kinds);
        Ok(Self { json: plain.in_json(), plain, config })
    }
}

const MESSAGE: &str = "The request contains personal data or secrets; take them out and try again.";

impl PiiGuard {
    fn replacement(&self, kind: Kind) -> String {
        self.config.replacement.replace("{kind}", kind.as_str())
    }

    fn finding(kind: Kind) -> Finding {
        let severity = if kind == Kind::ApiKey { Severity::High } else { Severity::Medium };
        Finding::new(format!("pii:{}", kind.as_str()), severity)
    }

    fn refusal(&self, kind: Kind) -> Refusal {
        let reason = format!("found {}", kind.as_str());
        Refusal::new("pii", self.config.message.clone()).because(reason)
    }
}

tidegate_plugin_sdk::export!(PiiGuard: PromptGuard, StreamGuard);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::plugin::configure;
    use tidegate_plugin_sdk::testing::assert_readme_is_true;

    #[test]
    fn the_readme_names_every_setting() {
        assert_readme_is_true::<PiiGuard>(include_str!("../README.md"));
    }

    #[test]
    fn a_config_that_cannot_work_is_refused() {
        for json in [r#"{"kinds":[]}"#, r#"{"kinds":["mail"]}"#, r#"{"replacement":"\"x\""}"#, r#"{"action":"drop"}"#] {
            assert!(matches!(configure::<PiiGuard>(json), Err(Error::InvalidConfig(_))), "{json}");
        }
    }
}
