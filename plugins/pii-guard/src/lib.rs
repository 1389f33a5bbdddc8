//! A guard that keeps personal data and secrets out of prompts and answers: e-mail addresses, card numbers, phone
//! numbers, IBANs, keys.
//!
//! What is done about a find is the SDK's [`Screen`]; what is found is [`detect`].

pub mod detect;

use detect::{Detector, Kind, MAX_HELD_BYTES};
use serde::Deserialize;
use tidegate_plugin_sdk::scan::{Place, Scanner, Step};
use tidegate_plugin_sdk::screen::{OnMatch, Rules, Screen, ScreenConfig, ScreenState, is_json_safe};
use tidegate_plugin_sdk::{
    Context, Descriptor, Error, Finding, Inspection, Plugin, Prompt, PromptGlance, PromptGuard, Refusal, Role, Setting,
    Severity, StreamGlance, StreamGuard, Verdict, Window, some_of,
};

/// The settings.
#[derive(Debug, Deserialize)]
pub struct Config {
    kinds: Vec<Kind>,
    replacement: String,
    message: String,
    action: OnMatch,
    roles: Vec<String>,
    tool_arguments: bool,
}

/// The plugin.
#[derive(Debug)]
pub struct PiiGuard(Screen<Pii>);

/// What is looked for, and what is said about it.
#[derive(Debug)]
pub struct Pii {
    detector: Detector,
    replacement: String,
    message: String,
}

const MESSAGE: &str = "The request contains personal data or secrets; take them out and try again.";

impl Plugin for PiiGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        let kinds = Kind::ALL.map(Kind::as_str);
        Descriptor::new("pii-guard", env!("CARGO_PKG_VERSION"), "Redacts personal data and secrets")
            .setting(Setting::some_choices("kinds", &kinds, &kinds, "What to look for"))
            .setting(Setting::text("replacement", "[{kind}]", "What stands in its place"))
            .setting(Setting::text("message", MESSAGE, "What the client reads when a request is blocked"))
            .settings(ScreenConfig::settings())
            .metric("pii_found", "pieces of personal data")
            .holdback(MAX_HELD_BYTES)
            .look_behind(ScreenConfig::LOOK_BEHIND_BYTES)
            .prefilter(detect::prefilter())
            .mutates()
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        let Config { kinds, replacement, message, action, roles, tool_arguments } = config;
        some_of("kinds", &kinds)?;
        if !is_json_safe(&replacement) {
            let problem = format!("`replacement` is {replacement:?}; quotes, backslashes and controls break JSON text");
            return Err(Error::InvalidConfig(problem));
        }
        let config = ScreenConfig { action, roles, tool_arguments };
        config.check()?;
        Ok(Self(Screen::new(Pii { detector: Detector::new(kinds), replacement, message }, config, "pii_found")))
    }
}

impl PromptGuard for PiiGuard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        Ok(self.0.prompt(prompt))
    }
}

impl PromptGlance for PiiGuard {
    fn glance_prompt(&self, messages: &[(Role, String)]) -> bool {
        self.0.glance_prompt(messages)
    }
}

impl StreamGuard for PiiGuard {
    type State = ScreenState;

    fn inspect_window(&self, _: &Context, state: &mut ScreenState, window: &Window) -> Result<Inspection, Error> {
        Ok(self.0.window(state, window))
    }
}

impl StreamGlance for PiiGuard {
    fn glance(&self, text: &str, settled: usize) -> Option<usize> {
        self.0.glance(text, settled)
    }
}

impl Scanner for Pii {
    fn end(&self) {
        self.detector.end();
    }

    fn step(&self, at: Place<'_>) -> Step {
        self.detector.step(at)
    }

    fn idle(&self, at: Place<'_>) -> usize {
        self.detector.idle(at)
    }
}

impl Rules for Pii {
    fn replacement(&self, rule: usize) -> String {
        self.replacement.replace("{kind}", Detector::kind(rule).as_str())
    }

    fn finding(&self, rule: usize) -> Finding {
        let kind = Detector::kind(rule);
        let severity = if kind == Kind::ApiKey { Severity::High } else { Severity::Medium };
        Finding::new(format!("pii:{}", kind.as_str()), severity)
    }

    fn refusal(&self, rule: usize) -> Refusal {
        let reason = format!("found {}", Detector::kind(rule).as_str());
        Refusal::new("pii", self.message.clone()).because(reason)
    }
}

tidegate_plugin_sdk::export!(PiiGuard: PromptGuard, PromptGlance, StreamGuard, StreamGlance);

#[cfg(test)]
mod labelled;
#[cfg(test)]
mod tests;
