//! `tidegate key --server` and `tidegate usage`: what an administrator asks of a running server.

use crate::cli::{KeyArgs, ServerArgs, UsageArgs};
use crate::config::variable;
use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_egress::{Connector, ConnectorConfig, HeaderMap, HeaderName, HeaderValue, Method, Request};

/// A running server, asked with a key.
struct Remote {
    connector: Connector,
    key: Option<String>,
}

const MAX_ANSWER_BYTES: u64 = 64 << 20;

impl Remote {
    fn to(args: &ServerArgs) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = args.server.as_deref().unwrap_or("http://127.0.0.1:8080");
        let connector = Connector::new(ConnectorConfig::new(url.trim_end_matches('/')))?;
        Ok(Self { connector, key: variable(&args.api_key_env).ok() })
    }

    async fn call(&self, method: Method, path: String, body: Option<Value>) -> anyhow::Result<Vec<u8>> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("content-type"), HeaderValue::from_static("application/json"));
        if let Some(key) = &self.key {
            let value = HeaderValue::from_str(&format!("Bearer {key}")).context("the API key is no header's value")?;
            headers.insert(HeaderName::from_static("authorization"), value);
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default().into();
        let sent = self.connector.send(&Request { method, path, headers, body }).await;
        let mut response = sent.with_context(|| format!("no server answers at {}", self.connector.origin()))?;
        let status = response.status;
        let body = response.collect(MAX_ANSWER_BYTES).await?;
        if !status.is_success() {
            let error: Value = serde_json::from_slice(&body).unwrap_or_default();
            match error["error"]["message"].as_str() {
                Some(message) => bail!("{message}"),
                None => bail!("the server answers {status}"),
            }
        }
        Ok(body)
    }
}

/// Makes, replaces or takes back a key.
pub async fn key(args: KeyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (remote, name) = (Remote::to(&args.at)?, encoded(&args.name));
    if args.revoke {
        remote.call(Method::DELETE, format!("/admin/keys/{name}"), None).await?;
        writeln!(out, "The key `{}` is refused from now on.", args.name)?;
        return Ok(());
    }
    let answer = if args.rotate {
        let path = format!("/admin/keys/{name}/rotate?grace_s={}", args.grace_s);
        remote.call(Method::POST, path, Some(json!({}))).await?
    } else {
        remote.call(Method::POST, "/admin/keys".into(), Some(description(&args))).await?
    };
    let answer: Value = serde_json::from_slice(&answer)?;
    let key = answer["key"].as_str().context("the server's answer has no key")?;
    writeln!(out, "The key, shown this once:\n\n    {key}\n")?;
    Ok(())
}

fn description(args: &KeyArgs) -> Value {
    let mut body = Map::new();
    body.insert("name".into(), args.name.clone().into());
    let mut add = |field: &str, value: Option<Value>| value.map(|value| body.insert(field.into(), value));
    add("tenant", args.tenant.clone().map(Into::into));
    add("expires", args.expires.clone().map(Into::into));
    add("admin", args.admin.then_some(Value::Bool(true)));
    add("role", args.role.clone().map(Into::into));
    add("models", (!args.models.is_empty()).then(|| args.models.clone().into()));
    Value::Object(body)
}

fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Prints what was used, as CSV.
pub async fn usage(args: UsageArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let remote = Remote::to(&args.at)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let start = now.saturating_sub(args.days.saturating_sub(1).saturating_mul(86_400));
    let by = args.by.join(",");
    let path = format!("/v1/usage?format=csv&bucket_width=1d&start_time={start}&limit={}&group_by={by}", args.days);
    out.write_all(&remote.call(Method::GET, path, None).await?)?;
    Ok(())
}
