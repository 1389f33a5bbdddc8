//! `retry` and `breaker` of a model that is elsewhere.

use anyhow::bail;
use serde::Deserialize;
use std::time::Duration;
use tidegate_upstream::{BreakerConfig, RetryConfig};

/// `models.retry`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamRetryConfig {
    /// How often one request is sent again.
    pub retries: u32,
    /// How many of the requests of the last ten seconds are, in percent.
    pub budget_percent: u32,
    /// ... and how many besides, however few requests there were.
    pub budget_min: u32,
    /// The pause before the first retry; doubled for each further one.
    pub backoff_ms: u64,
    /// The longest pause, and the longest `Retry-After` that is waited for.
    pub max_backoff_ms: u64,
    /// How long a server may take to begin its answer.
    pub start_timeout_ms: u64,
    /// How long it may take for an answer that is not streamed.
    pub whole_timeout_ms: u64,
    /// How long it may be silent once its answer has begun.
    pub idle_timeout_ms: u64,
    /// How long all attempts and pauses together may take until an answer has begun.
    pub deadline_ms: u64,
}

impl Default for UpstreamRetryConfig {
    fn default() -> Self {
        let retry = RetryConfig::default();
        let ms = |time: Duration| time.as_millis() as u64;
        Self {
            retries: retry.retries,
            budget_percent: retry.budget_percent,
            budget_min: retry.budget_min,
            backoff_ms: ms(retry.backoff),
            max_backoff_ms: ms(retry.max_backoff),
            start_timeout_ms: ms(retry.start_timeout),
            whole_timeout_ms: ms(retry.whole_timeout),
            idle_timeout_ms: ms(retry.idle_timeout),
            deadline_ms: ms(retry.deadline),
        }
    }
}

/// More would be a storm, whatever the budget.
const MAX_RETRIES: u32 = 10;
/// The longest time that makes sense to wait for the beginning of an answer.
const MAX_MS: u64 = 3_600_000;

impl UpstreamRetryConfig {
    /// For the upstream.
    pub(crate) fn to_retry(&self) -> RetryConfig {
        RetryConfig {
            retries: self.retries,
            budget_percent: self.budget_percent,
            budget_min: self.budget_min,
            backoff: Duration::from_millis(self.backoff_ms),
            max_backoff: Duration::from_millis(self.max_backoff_ms),
            start_timeout: Duration::from_millis(self.start_timeout_ms),
            whole_timeout: Duration::from_millis(self.whole_timeout_ms),
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            deadline: Duration::from_millis(self.deadline_ms),
        }
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.retries > MAX_RETRIES {
            bail!("`retries` is {}; the largest is {MAX_RETRIES}", self.retries);
        }
        if self.budget_percent > 100 {
            bail!(
                "`budget_percent` is {}; the largest is 100, which doubles what a failing server sees",
                self.budget_percent
            );
        }
        let times = [
            ("backoff_ms", self.backoff_ms),
            ("max_backoff_ms", self.max_backoff_ms),
            ("start_timeout_ms", self.start_timeout_ms),
            ("whole_timeout_ms", self.whole_timeout_ms),
            ("idle_timeout_ms", self.idle_timeout_ms),
            ("deadline_ms", self.deadline_ms),
        ];
        for (name, value) in times {
            if !(1..=MAX_MS).contains(&value) {
                bail!("`{name}` is {value}; it is 1 to {MAX_MS}");
            }
        }
        if self.max_backoff_ms < self.backoff_ms {
            bail!("`max_backoff_ms` is {}, which is less than `backoff_ms`, {}", self.max_backoff_ms, self.backoff_ms);
        }
        if self.deadline_ms < self.start_timeout_ms {
            bail!(
                "`deadline_ms` is {}, which is less than `start_timeout_ms`, {}: the first attempt alone may take that; \
                 set both",
                self.deadline_ms,
                self.start_timeout_ms
            );
        }
        Ok(())
    }
}

/// `models.breaker`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamBreakerConfig {
    /// So many failures in a row take a server out; 0 for never.
    pub failures: u32,
    /// For how long, until one request tries it.
    pub pause_ms: u64,
}

impl Default for UpstreamBreakerConfig {
    fn default() -> Self {
        let BreakerConfig { failures, pause } = BreakerConfig::default();
        Self { failures, pause_ms: pause.as_millis() as u64 }
    }
}

impl UpstreamBreakerConfig {
    /// For the upstream.
    pub(crate) fn to_breaker(&self) -> BreakerConfig {
        BreakerConfig { failures: self.failures, pause: Duration::from_millis(self.pause_ms) }
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        if !(1..=MAX_MS).contains(&self.pause_ms) {
            bail!("`breaker.pause_ms` is {}; it is 1 to {MAX_MS}", self.pause_ms);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_server_has_the_times_that_the_config_gives_it() {
        assert_eq!(UpstreamRetryConfig::default().to_retry(), RetryConfig::default());
        let times = "start_timeout_ms = 1\nwhole_timeout_ms = 2\nidle_timeout_ms = 3\ndeadline_ms = 4";
        let retry = toml::from_str::<UpstreamRetryConfig>(times).unwrap().to_retry();
        let given = [retry.start_timeout, retry.whole_timeout, retry.idle_timeout, retry.deadline];
        assert_eq!(given, [1, 2, 3, 4].map(Duration::from_millis));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let why = |more: &str| {
            let text = format!("[[models]]\nname = \"m\"\n{more}");
            format!("{:#}", Config::parse(&text).unwrap_err())
        };
        let at = "upstream = \"http://a\"\n";
        for (more, expected) in [
            (format!("{at}retry = {{ retries = 11 }}"), "the largest is 10"),
            (format!("{at}retry = {{ budget_percent = 101 }}"), "`budget_percent` is 101"),
            (format!("{at}retry = {{ backoff_ms = 0 }}"), "`backoff_ms` is 0"),
            (format!("{at}retry = {{ idle_timeout_ms = 3600001 }}"), "`idle_timeout_ms` is 3600001"),
            (format!("{at}retry = {{ backoff_ms = 5000 }}"), "less than `backoff_ms`, 5000"),
            (format!("{at}retry = {{ deadline_ms = 1000 }}"), "less than `start_timeout_ms`, 120000"),
            (format!("{at}breaker = {{ pause_ms = 0 }}"), "`breaker.pause_ms` is 0"),
            (format!("{at}fallbacks = [\"n\"]"), "falls back to `n`, which is no model"),
            (format!("{at}fallbacks = [\"m\"]"), "falls back to itself"),
            (format!("{at}upstreams = [\"http://b\"]"), "keep one"),
            ("upstreams = []".into(), "needs `path`"),
            ("upstreams = [\"http://b\", \"http://b/\"]".into(), "names http://b/ twice"),
            (
                format!("upstreams = {:?}", (0..65).map(|i| format!("http://h{i}")).collect::<Vec<_>>()),
                "the most is 64",
            ),
            ("path = \"bundled\"\nretry = { retries = 1 }".into(), "go with `upstream`"),
        ] {
            let why = why(&more);
            assert!(why.contains(expected) && why.contains("model `m`"), "{more}: {why}");
        }
        Config::parse(
            "[[models]]\nname = \"m\"\nupstreams = [\"http://a\", \"http://b\"]\nfallbacks = [\"n\"]\n\
            [[models]]\nname = \"n\"\npath = \"bundled\"\nfallbacks = [\"m\"]",
        )
        .unwrap();
    }
}
