//! A router with a table of rules: the first one that fits a request names the models for it.
//!
//! What the table wants is then moved behind what can serve now: a model that is overloaded, too small for the
//! prompt or out of order is a fallback. The same request and load give the same order. Read next: [`rules`],
//! [`code`].

pub mod code;
pub mod rules;

use rules::{Asked, Rule};
use serde::Deserialize;
use std::cell::Cell;
use tidegate_plugin_sdk::host::log;
use tidegate_plugin_sdk::{
    Attrs, Candidate, Context, Decision, Descriptor, Error, Plugin, RouteRequest, Router, Setting, each_once, offered,
};

const MAX_RULES: usize = 64;

/// The settings.
#[derive(Debug, Deserialize)]
pub struct Config {
    rules: Vec<Rule>,
    default: Vec<String>,
    others: bool,
    max_waiting: u64,
}

/// The plugin.
#[derive(Debug)]
pub struct TierRouter {
    config: Config,
    /// That nothing of what is named was offered, which says nothing of the next request.
    has_warned: Cell<bool>,
}

impl Plugin for TierRouter {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("tier-router", env!("CARGO_PKG_VERSION"), "Chooses a model by length, code, caller and load")
            .setting(Setting::new("rules", RULES, "[]", "The first rule that fits a request names its models"))
            .setting(Setting::texts(
                "default",
                &[],
                "Models when no rule fits, or none of its models is offered; none means the server's order",
            ))
            .setting(Setting::switch("others", true, "Models that are not named follow as fallbacks"))
            .setting(Setting::integer(
                "max_waiting",
                32,
                1,
                1_000_000,
                "A model of the built-in engine with more requests in its queue is a fallback",
            ))
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        if config.rules.len() > MAX_RULES {
            let have = config.rules.len();
            return Err(Error::InvalidConfig(format!("`rules` has {have} entries; at most {MAX_RULES} are supported")));
        }
        for (idx, rule) in config.rules.iter().enumerate() {
            rule.check().map_err(|problem| Error::InvalidConfig(format!("rule {}: {problem}", idx + 1)))?;
        }
        if !config.others && config.default.is_empty() {
            return Err(Error::InvalidConfig("`others` is false, so `default` must name a model".into()));
        }
        Ok(Self { config, has_warned: Cell::new(false) })
    }
}

impl Router for TierRouter {
    fn route(&self, _: &Context, request: &RouteRequest, candidates: &[Candidate]) -> Result<Decision, Error> {
        if candidates.is_empty() {
            return Err(Error::Unavailable("no model was offered".into()));
        }
        let asked = Asked::read(request);
        let rules = &self.config.rules;
        let rule = rules.iter().position(|rule| rule.fits(&asked));
        let wanted = rule.map_or(&self.config.default, |idx| &rules[idx].models);
        let mut order = self.order(wanted, candidates);
        order.sort_by_key(|candidate| self.readiness(candidate, request.prompt_tokens));
        let reason = match rule {
            Some(idx) => format!("rule {}: {}", idx + 1, rules[idx].describe()),
            None => "no rule fits".into(),
        };
        Ok(Decision { order: each_once(&order), reason, attrs: Attrs::new() })
    }
}

/// Whether a model can serve now, best first; within one of these the table's order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Readiness {
    Ready,
    Overloaded,
    TooSmall,
    OutOfOrder,
}

impl TierRouter {
    /// What is wanted, else `default`, of what was offered; behind it the others, if they may follow or nothing else is there.
    fn order<'a>(&self, wanted: &[String], candidates: &'a [Candidate]) -> Vec<&'a Candidate> {
        let Config { default, others, .. } = &self.config;
        let mut order = offered(wanted, default, candidates);
        if order.is_empty() && !others && !self.has_warned.replace(true) {
            log::warn(
                "neither what a rule names nor `default` was offered: all others serve, though `others` is false",
            );
        }
        if *others || order.is_empty() {
            order.extend(candidates);
        }
        order
    }

    fn readiness(&self, candidate: &Candidate, prompt_tokens: u32) -> Readiness {
        let waiting = rules::attr::<u64>(&candidate.attrs, "waiting").unwrap_or(0);
        match candidate {
            c if !c.healthy => Readiness::OutOfOrder,
            c if !c.fits(prompt_tokens) => Readiness::TooSmall,
            _ if waiting > self.config.max_waiting => Readiness::Overloaded,
            _ => Readiness::Ready,
        }
    }
}

const RULES: &str = r#"{"type":"array","maxItems":64,"items":{"type":"object","additionalProperties":false,
    "required":["models"],"properties":{
    "models":{"type":"array","minItems":1,"items":{"type":"string"}},
    "min_tokens":{"type":"integer","minimum":0},
    "max_tokens":{"type":"integer","minimum":0},
    "code":{"type":"boolean"},
    "tools":{"type":"boolean"},
    "classes":{"type":"array","minItems":1,"items":{"type":"string","enum":["interactive","standard","batch"]}},
    "keys":{"type":"array","minItems":1,"items":{"type":"string"}}}}}"#;

tidegate_plugin_sdk::export!(TierRouter: Router);

#[cfg(test)]
mod tests;
