//! `tidegate key`, `tidegate project` and `tidegate usage`: what is asked of a running server, with a key. Tables for
//! people, the server's own JSON for programs.

mod keys;
mod projects;
mod table;
mod usage;

pub use keys::key;
pub use projects::project;
pub use usage::usage;

use crate::artifact::registry::certificates;
use crate::cli::ServerArgs;
use crate::config::variable;
use crate::terminal::shown_lines;
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use tidegate_egress::{
    CertificateDer, Connector, ConnectorConfig, HeaderMap, HeaderName, HeaderValue, Method, Request,
};

/// A running server, asked with a key.
struct Remote {
    connector: Connector,
    key: Option<String>,
}

const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Names the server where no option does.
pub(crate) const SERVER: &str = "TIDEGATE_SERVER";

impl Remote {
    fn to(args: &ServerArgs) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = server(args.server.as_deref());
        let extra_roots = authorities(&server, args.ca.as_deref())?;
        let connector = Connector::new(ConnectorConfig { extra_roots, ..ConnectorConfig::new(server) })?;
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
        let mut response = sent.with_context(|| {
            let origin = self.connector.origin();
            format!("no server answers at {origin}; --server or {SERVER} names another{}", no_trust(origin))
        })?;
        let status = response.status;
        let body = response.collect(MAX_ANSWER_BYTES).await?;
        if !status.is_success() {
            let error: Value = serde_json::from_slice(&body).unwrap_or_default();
            match error["error"]["message"].as_str() {
                Some(message) => bail!("{}{}", shown_lines(message), remedy(status.as_u16(), message)),
                None => bail!("the server answers {status}"),
            }
        }
        Ok(body)
    }
}

/// What whoever asks can do about a refusal, where the server cannot know it.
fn remedy(status: u16, message: &str) -> &'static str {
    match status {
        401 => "; the environment variable of --api-key-env holds the key",
        404 if message.starts_with("there is no such path here") => {
            "; administration may be at an address of its own, `server.admin_listen`: name that by --server"
        }
        _ => "",
    }
}

/// The URL of the server that an option names, or the environment, or nobody.
pub(crate) fn server(named: Option<&str>) -> String {
    let url = named.map(str::to_owned).or_else(|| variable(SERVER).ok());
    url.as_deref().unwrap_or("http://127.0.0.1:8080").trim_end_matches('/').to_owned()
}

/// Who signs the certificate of a server, beside the public authorities.
pub(crate) fn authorities(server: &str, ca: Option<&Path>) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let Some(file) = ca else { return Ok(Vec::new()) };
    ensure!(is_secured(server), "--ca is about certificates, and {server} shows none; write https:// where it does");
    certificates(file)
}

/// What else may help where no server answers.
pub(crate) fn no_trust(server: &str) -> &'static str {
    if is_secured(server) { "; --ca names who signs its certificate, where that is no public authority" } else { "" }
}

fn is_secured(server: &str) -> bool {
    server.starts_with("https://")
}

/// What the server said, on lines of its own.
fn answer(out: &mut dyn Write, body: &[u8]) -> anyhow::Result<()> {
    let body: Value = serde_json::from_slice(body)?;
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(&body)?)?)
}

/// For a path or a query.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn or_dash(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn listed(value: &Value) -> String {
    match value.as_array() {
        Some(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        None => "all".into(),
    }
}

/// A day, of Unix seconds.
fn when(seconds: &Value) -> String {
    seconds.as_u64().map_or_else(|| "-".into(), tidegate_ledger::day_of)
}
