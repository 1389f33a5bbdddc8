//! Sends the outbox to a webhook, in the form of Standard Webhooks (<https://www.standardwebhooks.com>): an id that stays
//! the same however often an event is sent, a time, and a signature. At least once: an event leaves the outbox when the
//! receiver has answered 2xx.

use crate::config::{EventsConfig, variable};
use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use metrics::{counter, gauge};
use ring::hmac;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_egress::{Connector, ConnectorConfig, HeaderMap, HeaderName, HeaderValue, Method, Request};
use tidegate_store::{Db, Outbox, Waiting};

/// Posts what waits.
pub(crate) struct Sender {
    outbox: Outbox,
    connector: Connector,
    path: String,
    key: Option<hmac::Key>,
}

/// How often the outbox is looked at while it is empty.
const LOOK: Duration = Duration::from_millis(500);
/// The first pause after a failure, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];
/// Events that are fetched at once.
const BATCH: u32 = 100;
/// For the receiver's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Of the receiver's answer, which nobody reads.
const ANSWER_BYTES: u64 = 64 << 10;

impl Sender {
    pub(crate) fn new(config: &EventsConfig, db: Db) -> anyhow::Result<Self> {
        let (base_url, path) = split(&config.webhook)?;
        let mut to = ConnectorConfig::new(base_url);
        (to.first_byte_timeout, to.max_response_bytes) = (ANSWER, ANSWER_BYTES);
        let secret = config.secret_env.as_deref().map(variable).transpose().context("in store.events.secret_env")?;
        Ok(Self {
            outbox: Outbox::new(db),
            connector: Connector::new(to).context("in store.events.webhook")?,
            path,
            key: secret.as_deref().map(key).transpose().context("in store.events.secret_env")?,
        })
    }

    pub(crate) async fn run(self) {
        let mut pause = PAUSES[0];
        loop {
            match self.send_waiting().await {
                Ok(0) => tokio::time::sleep(LOOK).await,
                Ok(_) => pause = PAUSES[0],
                Err(error) => {
                    counter!("tidegate_event_failures_total").increment(1);
                    tracing::warn!("events wait, since the webhook does not take them: {error:#}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES[1]);
                }
            }
        }
    }

    /// Sends the oldest, in order; gives how many were taken.
    async fn send_waiting(&self) -> anyhow::Result<usize> {
        let waiting = self.outbox.oldest(BATCH).await?;
        gauge!("tidegate_events_waiting").set(waiting.len() as f64);
        for event in &waiting {
            self.send(event).await?;
            self.outbox.taken(&event.id).await?;
            counter!("tidegate_events_sent_total").increment(1);
        }
        Ok(waiting.len())
    }

    async fn send(&self, event: &Waiting) -> anyhow::Result<()> {
        let headers = self.headers(event)?;
        let body = event.payload.clone().into_bytes().into();
        let request = Request { method: Method::POST, path: self.path.clone(), headers, body };
        let mut response = self.connector.send(&request).await?;
        let status = response.status;
        response.collect(ANSWER_BYTES).await?;
        if !status.is_success() {
            bail!("{} answers {status}", self.connector.origin());
        }
        Ok(())
    }

    fn headers(&self, event: &Waiting) -> anyhow::Result<HeaderMap> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().to_string();
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: &str| -> anyhow::Result<()> {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
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
