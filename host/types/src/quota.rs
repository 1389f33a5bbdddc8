//! How much a caller may ask for, and what it is told about it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Limits of a key, a project, a tenant, a user or a model; what is absent is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Requests let in, refilled evenly; as many may come at once.
    pub requests_per_minute: Option<u64>,
    /// Tokens of prompts and answers, refilled evenly; as many may be asked for at once.
    pub tokens_per_minute: Option<u64>,
    /// Requests between admission and the end of their answer.
    pub concurrency: Option<u32>,
    /// Longest prompt plus answer of one request.
    pub max_context_tokens: Option<u32>,
    /// Longest answer of one request.
    pub max_output_tokens: Option<u32>,
}

impl Quota {
    /// Whether something has to be counted for it.
    pub fn counts(&self) -> bool {
        self.requests_per_minute.is_some() || self.tokens_per_minute.is_some() || self.concurrency.is_some()
    }
}

/// What a key may, and how much. Taken with the caller, so that a request keeps what it began with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// The models that it may name; `None` for all.
    pub models: Option<BTreeSet<String>>,
    /// The plugins whose tools, passages and memories its requests have; `None` for all. Whatever this says, guards, routers
    /// and observers see them.
    pub plugins: Option<BTreeSet<String>>,
    /// Limits of the key.
    pub key: Quota,
    /// Limits of its project, all keys together.
    pub project: Quota,
    /// Limits of its tenant, all projects together.
    pub tenant: Quota,
    /// Limits of each user that the tenant's callers name.
    pub user: Quota,
    /// Whether something of the content of its requests may be kept.
    pub retention: Retention,
}

/// Whether something of the content of a request may be kept when it has ended: in a store, in what plugins remember, in
/// a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// What the config and the request say.
    #[default]
    Kept,
    /// Nothing, whatever else is configured.
    Nothing,
}

impl Retention {
    /// The stricter of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if other == Self::Nothing { other } else { self }
    }
}

impl Scope {
    /// Whether the model of that name may be used.
    pub fn allows(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Whether what the plugin of that name brings is for its requests. Not to be asked about guards.
    pub fn has(&self, plugin: &str) -> bool {
        self.plugins.as_ref().is_none_or(|plugins| plugins.contains(plugin))
    }
}

/// What is left of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// The most that may be asked for at once.
    pub limit: u64,
    /// What may be asked for now.
    pub remaining: u64,
    /// Until all of it may be asked for again.
    pub reset: Duration,
}

impl Allowance {
    /// The one that is used up first.
    fn tighter(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) if other.order() < one.order() => Some(other),
            (one, other) => one.or(other),
        }
    }

    fn order(&self) -> (u64, std::cmp::Reverse<Duration>, u64) {
        (self.remaining, std::cmp::Reverse(self.reset), self.limit)
    }
}

/// What is left to a caller, of the tightest limit of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowances {
    /// Of requests, where they are limited.
    pub requests: Option<Allowance>,
    /// Of tokens, where they are limited.
    pub tokens: Option<Allowance>,
}

impl Allowances {
    /// The tighter of each.
    pub fn tighter(self, other: Self) -> Self {
        Self {
            requests: Allowance::tighter(self.requests, other.requests),
            tokens: Allowance::tighter(self.tokens, other.tokens),
        }
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.requests.is_none() && self.tokens.is_none()
    }
}

/// What was asked for too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Counted {
    /// Requests in a time.
    Requests,
    /// Tokens in a time.
    Tokens,
    /// Requests at once.
    Concurrency,
}

/// A limit that refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exceeded {
    /// What it counts.
    pub counted: Counted,
    /// When the same request would be let in; `None` where it never will.
    pub retry_after: Option<Duration>,
}

/// What a refused or failed request says about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limited {
    /// The limit that refused it, where one did.
    pub exceeded: Option<Exceeded>,
    /// What is left.
    pub allowances: Allowances,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_allowance_is_the_one_with_less_left() {
        let of = |limit, remaining, reset| Allowance { limit, remaining, reset: Duration::from_secs(reset) };
        let tighter = |one, other| {
            let [one, other] = [one, other].map(|tokens| Allowances { tokens, requests: None });
            assert_eq!(one.tighter(other), other.tighter(one));
            one.tighter(other).tokens
        };
        assert_eq!(tighter(Some(of(10, 3, 1)), Some(of(5, 4, 9))), Some(of(10, 3, 1)));
        assert_eq!(tighter(Some(of(10, 0, 1)), Some(of(5, 0, 9))), Some(of(5, 0, 9)));
        assert_eq!(tighter(None, Some(of(5, 4, 9))), Some(of(5, 4, 9)));
        assert_eq!(tighter(None, None), None);
    }
}
