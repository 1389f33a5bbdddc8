//! Sends long prompts to the model with the longest window.

use serde::Deserialize;
use std::cmp::Reverse;
use tidegate_plugin_sdk::{Candidate, Context, Decision, Descriptor, Error, Plugin, RouteRequest, Router, Setting};

/// The settings; the host has checked them against the descriptor.
#[derive(Deserialize)]
struct Config {
    long_tokens: u32,
}

struct ByLength(Config);

impl Plugin for ByLength {
    type Config = Config;

    fn describe() -> Descriptor {
        let summary = "Prompts above this go to the longest window";
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "Routes by the length of the prompt")
            .setting(Setting::integer("long_tokens", 1000, 1, 1_000_000, summary))
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        Ok(Self(config))
    }
}

impl Router for ByLength {
    fn route(&self, _: &Context, request: &RouteRequest, candidates: &[Candidate]) -> Result<Decision, Error> {
        let mut order: Vec<&Candidate> = candidates.iter().collect();
        let long = request.prompt_tokens > self.0.long_tokens;
        if long {
            order.sort_by_key(|candidate| Reverse(candidate.context_tokens));
        }
        let order = order.into_iter().map(|candidate| candidate.id.clone()).collect();
        let reason = if long { "a long prompt" } else { "a short prompt" };
        Ok(Decision { order, reason: reason.into(), attrs: Vec::new() })
    }
}

tidegate_plugin_sdk::export!(ByLength: Router);
