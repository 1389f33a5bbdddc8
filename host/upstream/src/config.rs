//! Where a model is, under which name, and with which key.

use crate::retry::RetryConfig;
use std::fmt;
use std::time::Duration;
use tidegate_egress::{ConnectorConfig, EgressError, HeaderValue};
use tidegate_wire::client::RequestOptions;

/// One model at one server.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// For logs: which upstream this is.
    pub name: String,
    /// Base URL with its version prefix (`http://127.0.0.1:8000/v1`), and the bounds of its connections.
    pub connector: ConnectorConfig,
    /// For the head of an answer in one piece, in place of the connections' own bound.
    pub whole_timeout: Duration,
    /// Sent as a bearer token.
    pub api_key: Option<ApiKey>,
    /// The model's name there.
    pub model: String,
    /// What it wants to be asked otherwise than others.
    pub options: RequestOptions,
    /// Who reads of failures.
    pub reader: Reader,
}

/// Who reads what is said of a failure, and so what may be said of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    /// Callers of a gateway, who did not choose the server and cannot mend how it is asked.
    #[default]
    Caller,
    /// Whoever chose the server, its key and its model: that these are refused is told in the server's own words.
    Chooser,
}

impl UpstreamConfig {
    /// `model` at `base_url`, with the default bounds and no key.
    pub fn new(name: impl Into<String>, base_url: impl Into<String>, model: impl Into<String>) -> Self {
        let RetryConfig { whole_timeout, idle_timeout, .. } = RetryConfig::default();
        Self {
            name: name.into(),
            connector: ConnectorConfig { idle_timeout, ..ConnectorConfig::new(base_url) },
            whole_timeout,
            api_key: None,
            model: model.into(),
            options: RequestOptions::default(),
            reader: Reader::Caller,
        }
    }
}

/// A key that does not show itself in logs.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub(crate) fn bearer(&self) -> Result<HeaderValue, UpstreamError> {
        let key = self.0.trim();
        let mut header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| UpstreamError::BadApiKey)?;
        header.set_sensitive(true);
        if key.is_empty() { Err(UpstreamError::BadApiKey) } else { Ok(header) }
    }

    /// `text` without the key, which some servers repeat in their errors.
    pub(crate) fn redact(&self, text: &str) -> String {
        text.replace(self.0.trim(), "[key]")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// Why an upstream cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The URL or TLS.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// The key cannot be sent.
    #[error("the API key is empty or has characters that a header cannot carry")]
    BadApiKey,
    /// None, or more than are told apart.
    #[error("a model has 1 to {max} upstreams, not {found}", max = crate::MAX_SERVERS)]
    Servers {
        /// How many there are.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_shows_nowhere() {
        let key = ApiKey::new(" sk-secret\n");
        assert_eq!(format!("{key:?}"), "ApiKey(..)");
        assert!(format!("{:?}", key.bearer().unwrap()).contains("Sensitive"));
        assert_eq!(key.bearer().unwrap().to_str().unwrap(), "Bearer sk-secret");
        assert_eq!(key.redact("wrong key sk-secret given"), "wrong key [key] given");
        assert!(ApiKey::new("a\nb").bearer().is_err() && ApiKey::new(" ").bearer().is_err());
    }
}
