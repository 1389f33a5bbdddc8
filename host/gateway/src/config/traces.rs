//! `[traces]`: where spans of requests go.

use super::EgressConfig;
use anyhow::{Context, bail};
use serde::Deserialize;
use tidegate_trace::TraceConfig;

/// `[traces]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// A collector's endpoint for OTLP over HTTP, `http://host:4318`.
    pub endpoint: String,
    /// What this program is called there.
    #[serde(default = "our_name")]
    pub service: String,
    /// The part of requests that is traced, 0 to 1, where the client does not say.
    #[serde(default = "all")]
    pub sample: f64,
}

fn our_name() -> String {
    "tidegate".into()
}

fn all() -> f64 {
    1.0
}

impl TracesConfig {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if !(0.0..=1.0).contains(&self.sample) {
            bail!("traces.sample is {}; it must be a part of all requests, from 0 to 1", self.sample);
        }
        if self.service.is_empty() {
            bail!("traces.service is empty; write what this program is called in traces, or leave it out");
        }
        self.to_traces(&EgressConfig::default()).check().context("in [traces]")
    }

    /// As the exporter takes it.
    pub fn to_traces(&self, egress: &EgressConfig) -> TraceConfig {
        let (endpoint, service, extra_roots) = (self.endpoint.clone(), self.service.clone(), egress.roots.clone());
        TraceConfig { endpoint, service, sample: self.sample, extra_roots }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn what_is_wrong_is_said_with_its_remedy() {
        let wrong = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        assert!(wrong("[traces]\nendpoint = \"collector\"").contains("in [traces]"));
        assert!(wrong("[traces]\nendpoint = \"http://c:4318\"\nsample = 2.0").contains("from 0 to 1"));
        assert!(wrong("[traces]\nendpoint = \"http://c:4318\"\nservise = \"x\"").contains("service"));
        let config = Config::parse("[traces]\nendpoint = \"http://c:4318\"").unwrap();
        assert_eq!(config.traces.unwrap().sample, 1.0);
    }
}
