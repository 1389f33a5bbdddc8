//! Posts events in the form of Standard Webhooks (<https://www.standardwebhooks.com>): an id, a time, and a signature. An
//! event is taken when the receiver has answered 2xx.

use super::events::ANSWER;
use crate::config::{EgressConfig, variable};
use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use tidegate_egress::{Connector, ConnectorConfig, HeaderMap, HeaderName, HeaderValue, Method, Request};
use tidegate_store::Waiting;
use tidegate_types::clock::unix_s;

/// Where events are posted.
pub(super) struct Webhook {
    connector: Connector,
    path: String,
    key: Option<hmac::Key>,
}

/// Of the receiver's answer, which nobody reads.
const ANSWER_BYTES: u64 = 64 << 10;

impl Webhook {
    /// `secret` names the variable that holds it.
    pub(super) fn new(url: &str, secret: Option<&str>, egress: &EgressConfig) -> anyhow::Result<Self> {
        let (base_url, path) = split(url)?;
        let mut to = ConnectorConfig::new(base_url);
        to.extra_roots.clone_from(&egress.roots);
        (to.first_byte_timeout, to.max_response_bytes) = (ANSWER, ANSWER_BYTES);
        Ok(Self {
            connector: Connector::new(to).context("in store.events.webhook")?,
            path,
            key: secret.map(|name| key(&variable(name)?)).transpose().context("in store.events.secret_env")?,
        })
    }

    pub(super) async fn send(&self, event: &Waiting) -> anyhow::Result<()> {
        let headers = self.headers(event)?;
        let body = event.payload.clone().into_bytes().into();
        let request = Request { method: Method::POST, path: self.path.clone(), headers, body };
        let response = self.connector.send(&request).await?;
        let status = response.status;
        // Whatever else it says, however long, or however that ends: its status is the answer.
        response.settle();
        if !status.is_success() {
            bail!("{} answers {status}", self.connector.origin());
        }
        Ok(())
    }

    fn headers(&self, event: &Waiting) -> anyhow::Result<HeaderMap> {
        let seconds = unix_s().to_string();
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: &str| -> anyhow::Result<()> {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes())?);
            Ok(())
        };
        add("content-type", "application/json")?;
        add("webhook-id", &event.id)?;
        add("webhook-timestamp", &seconds)?;
        if let Some(key) = &self.key {
            let signed = [&event.id, ".", &seconds, ".", &event.payload].concat();
            let signature = hmac::sign(key, signed.as_bytes());
            add("webhook-signature", &format!("v1,{}", BASE64.encode(signature.as_ref())))?;
        }
        Ok(headers)
    }
}

/// The origin, and the path with its query.
fn split(url: &str) -> anyhow::Result<(&str, String)> {
    let rest = url.find("://").map(|at| at + 3).context("store.events.webhook is no URL, such as https://host/path")?;
    match url[rest..].find('/') {
        Some(slash) => Ok((&url[..rest + slash], url[rest + slash..].to_owned())),
        None => Ok((url, "/".to_owned())),
    }
}

/// Receivers' libraries know secrets as `whsec_` and base64; any other is taken as it is.
fn key(secret: &str) -> anyhow::Result<hmac::Key> {
    let bytes = match secret.strip_prefix("whsec_") {
        Some(coded) => BASE64.decode(coded).context("the secret is `whsec_`, but no base64 follows")?,
        None => secret.as_bytes().to_vec(),
    };
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_where_the_path_begins() {
        assert_eq!(split("https://a.b:1/c?d").unwrap(), ("https://a.b:1", "/c?d".into()));
        assert_eq!(split("http://a").unwrap(), ("http://a", "/".into()));
        assert!(split("a/b").is_err());
    }
}
