//! `limits` of keys, tenants, users and models, and `[limits]` of them all.

use anyhow::bail;
use serde::Deserialize;
use tidegate_limits::meter::MAX_PER_MINUTE;
use tidegate_pipeline::GateConfig;
use tidegate_types::Quota;

/// `[limits]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionConfig {
    /// Tokens that an answer is taken for until it has ended, where the request gives no `max_tokens`.
    pub reserve_output_tokens: u32,
    /// Users of one tenant that are told apart; further ones share one limit.
    pub users_per_tenant: usize,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        let GateConfig { reserve_output_tokens, users_per_tenant } = GateConfig::default();
        Self { reserve_output_tokens, users_per_tenant }
    }
}

impl AdmissionConfig {
    /// For the pipeline.
    pub fn to_gate(&self) -> GateConfig {
        let Self { reserve_output_tokens, users_per_tenant } = *self;
        GateConfig { reserve_output_tokens, users_per_tenant }
    }
}

/// Refuses limits that would let nothing in, or that nothing reaches.
pub(super) fn check(quota: &Quota, all: &AdmissionConfig) -> anyhow::Result<()> {
    let Quota { requests_per_minute, tokens_per_minute, concurrency, max_context_tokens, max_output_tokens } = *quota;
    let rates = [("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)];
    let sizes = [
        ("concurrency", concurrency),
        ("max_context_tokens", max_context_tokens),
        ("max_output_tokens", max_output_tokens),
    ];
    for (name, value) in rates.into_iter().chain(sizes.map(|(name, value)| (name, value.map(u64::from)))) {
        match value {
            Some(0) => bail!("`{name}` is 0, so that nothing would be let in; leave it out for no limit"),
            Some(value) if value > MAX_PER_MINUTE => bail!("`{name}` is {value}; the largest is {MAX_PER_MINUTE}"),
            _ => {}
        }
    }
    let answer = max_output_tokens.unwrap_or(u32::MAX).min(all.reserve_output_tokens);
    match tokens_per_minute {
        Some(tokens) if tokens <= u64::from(answer) => bail!(
            "`tokens_per_minute` is {tokens}, and a request without `max_tokens` is taken for {answer} and its prompt, so \
             that it would never be let in; raise it, or lower `max_output_tokens` here or `reserve_output_tokens` in \
             [limits]"
        ),
        _ => Ok(()),
    }
}
