//! Answers a registry's challenge (RFC 9110, 11; the distribution project's token flow): `Basic` with the credentials,
//! `Bearer` with a token that the named realm gives for them.
//!
//! The realm may be another host, as Docker Hub's is; it is the registry's own word, and must be HTTPS itself, or on this machine as
//! the registry is. Nothing else but the registry ever gets credentials.

use super::credentials::Credentials;
use super::url::{Target, is_loopback};
use super::{Access, refused, retry};
use anyhow::{Context, bail};
use arc_swap::ArcSwapOption;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_egress::{HeaderMap, HeaderValue, Method, Request};

const MAX_TOKEN_BYTES: u64 = 64 << 10;

pub(super) struct Auth {
    credentials: Option<Credentials>,
    repository: String,
    pushes: AtomicBool,
    /// The `Authorization` that worked, or may.
    header: ArcSwapOption<HeaderValue>,
}

/// What a registry wants to see.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: String },
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Auth {
    pub(super) fn new(host: &str, repository: &str) -> anyhow::Result<Self> {
        let (pushes, header) = (AtomicBool::new(false), ArcSwapOption::empty());
        Ok(Self { credentials: Credentials::of(host)?, repository: repository.to_owned(), pushes, header })
    }

    /// Tokens are asked for with the right to write from now on.
    pub(super) fn will_push(&self) {
        self.pushes.store(true, Ordering::Relaxed);
    }

    pub(super) fn sign(&self, headers: &mut HeaderMap) {
        if let Some(value) = self.header.load().as_deref() {
            headers.insert("authorization", value.clone());
        }
    }

    /// Gets what the challenge asks for.
    pub(super) async fn authenticate(&self, headers: &HeaderMap, access: &Access, origin: &str) -> anyhow::Result<()> {
        let said = headers.get_all("www-authenticate").iter().filter_map(|value| value.to_str().ok());
        let value = match choose(said) {
            Some(Challenge::Bearer { realm, service }) => self.token(&realm, &service, access, origin).await?,
            Some(Challenge::Basic) => match &self.credentials {
                Some(credentials) => credentials.basic(),
                None => bail!(
                    "{origin} wants credentials, and there are none for it: set TIDEGATE_REGISTRY_HOST, \
                     TIDEGATE_REGISTRY_USER and TIDEGATE_REGISTRY_PASSWORD, or `docker login`"
                ),
            },
            None => bail!("{origin} wants credentials, and says neither Basic nor Bearer"),
        };
        let mut value = HeaderValue::from_str(&value).context("the credentials do not fit into a header")?;
        value.set_sensitive(true);
        self.header.store(Some(Arc::new(value)));
        Ok(())
    }

    async fn token(&self, realm: &str, service: &str, access: &Access, origin: &str) -> anyhow::Result<String> {
        let actions = if self.pushes.load(Ordering::Relaxed) { "pull,push" } else { "pull" };
        let scope = format!("repository:{}:{actions}", self.repository);
        let mut target = Target::parse(realm).with_context(|| format!("{origin} names a realm"))?;
        if self.credentials.is_some() && !is_told(&target.origin, origin) {
            bail!(
                "{origin} sends for tokens to {}, which has no TLS: the credentials are not sent there",
                target.origin
            );
        }
        if !service.is_empty() {
            target = target.with("service", service);
        }
        let mut headers = HeaderMap::new();
        if let Some(credentials) = &self.credentials {
            let mut basic = HeaderValue::from_str(&credentials.basic())?;
            basic.set_sensitive(true);
            headers.insert("authorization", basic);
        }
        let path = target.clone().with("scope", &scope).path;
        let request = Request { method: Method::GET, path, headers, body: Default::default() };
        let mut answer = retry::send(&access.connector(&target.origin)?, &request).await?;
        if answer.status.as_u16() != 200 {
            return Err(refused("gives no token", answer).await.context(format!("at {}", target.origin)));
        }
        let body = answer.collect(MAX_TOKEN_BYTES).await?;
        let token: Token = serde_json::from_slice(&body).with_context(|| format!("{} gave no token", target.origin))?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        Ok(format!("Bearer {}", token.with_context(|| format!("{} gave no token", target.origin))?))
    }
}

/// Whether a place for tokens is told the credentials for a registry: over TLS, or where neither has any, if both are one host or
/// this machine.
fn is_told(place: &str, registry: &str) -> bool {
    match [place, registry].map(|origin| origin.strip_prefix("http://")) {
        [None, _] => true,
        [Some(_), None] => false,
        [Some(place), Some(registry)] => {
            host_of(place) == host_of(registry) || (is_loopback(place) && is_loopback(registry))
        }
    }
}

fn host_of(authority: &str) -> &str {
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
    if port.bytes().all(|b| b.is_ascii_digit()) { host } else { authority }
}

/// The better of the schemes that are offered.
fn choose<'a>(said: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let mut basic = None;
    for challenge in said.flat_map(parse) {
        match challenge {
            Challenge::Bearer { .. } => return Some(challenge),
            Challenge::Basic => basic = Some(challenge),
        }
    }
    basic
}

/// A scheme with its parameters.
struct Offer<'a> {
    scheme: &'a str,
    realm: Option<String>,
    service: String,
}

impl<'a> Offer<'a> {
    fn new(scheme: &'a str) -> Self {
        Self { scheme, realm: None, service: String::new() }
    }

    fn note(&mut self, key: &str, value: &str) {
        let Some(value) = unquoted(value.trim()) else { return };
        match key.trim().to_ascii_lowercase().as_str() {
            "realm" => self.realm = Some(value),
            "service" => self.service = value,
            _ => {}
        }
    }

    /// What can be answered.
    fn read(self) -> Option<Challenge> {
        match self.scheme.to_ascii_lowercase().as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer { realm: self.realm?, service: self.service }),
            _ => None,
        }
    }
}

/// One header: challenges, of a scheme and its parameters each, `key="value"`. Commas part both, so that a part which does not
/// begin as a parameter begins the next challenge.
fn parse(text: &str) -> Vec<Challenge> {
    let mut offers: Vec<Offer<'_>> = Vec::new();
    for part in parts(text).map(str::trim).filter(|part| !part.is_empty()) {
        let (word, rest) = part.split_at(part.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(part.len()));
        let param = match rest.trim_start().strip_prefix('=') {
            Some(value) => Some((word, value)),
            None => {
                offers.push(Offer::new(word));
                rest.split_once('=')
            }
        };
        if let (Some(offer), Some((key, value))) = (offers.last_mut(), param) {
            offer.note(key, value);
        }
    }
    offers.into_iter().filter_map(Offer::read).collect()
}

/// What stands between commas, but for those within quotes.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c| {
        let is_end = c == ',' && !is_quoted;
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_quoted && !is_escaped;
        is_end
    })
}

/// A value without its quotes; `None` where these have no end.
fn unquoted(value: &str) -> Option<String> {
    let Some(quoted) = value.strip_prefix('"') else { return Some(value.to_owned()) };
    let (mut text, mut rest) = (String::new(), quoted.chars());
    loop {
        match rest.next()? {
            '"' => return Some(text),
            '\\' => text.push(rest.next()?),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_without_tls_to_nobody_but_the_registry_and_this_machine() {
        let (far, here) = ("http://other.example", "http://127.0.0.1:9999");
        for (place, registry, told) in [
            ("https://auth.example", "https://registry.example", true),
            (far, "https://registry.example", false),
            (here, "https://registry.example", false),
            (far, "http://registry.example", false),
            ("http://registry.example", "http://registry.example", true),
            ("http://registry.example:5001", "http://registry.example:5000", true),
            ("http://10.0.0.5:5001", "http://10.0.0.5", true),
            ("http://10.0.0.6:5000", "http://10.0.0.5:5000", false),
            ("http://[fd00::5]:5001", "http://[fd00::5]:5000", true),
            ("http://[fd00::5]", "http://[fd00::6]", false),
            ("http://[fd00::5]", "http://[fd00::5]:5000", true),
            (here, "http://127.0.0.1:5000", true),
            (here, "http://registry.example", false),
            ("http://[::1]", "http://localhost:5000", true),
        ] {
            assert_eq!(is_told(place, registry), told, "{place} for {registry}");
        }
    }

    #[test]
    fn challenges_are_read() {
        let bearer = |realm: &str, service: &str| Challenge::Bearer { realm: realm.into(), service: service.into() };
        let check = |said: &[&str], expected: Option<Challenge>| assert_eq!(choose(said.iter().copied()), expected);
        check(
            &["Bearer realm=\"https://a/token\",service=\"s t\",scope=\"repository:x:pull,push\""],
            Some(bearer("https://a/token", "s t")),
        );
        check(&["bearer service=s , realm=\"https://a/?x=y,z\""], Some(bearer("https://a/?x=y,z", "s")));
        check(&["Basic realm=\"x\"", "Bearer realm=\"https://a/\""], Some(bearer("https://a/", "")));
        check(&["Basic realm=\"x\""], Some(Challenge::Basic));
        check(&["Bearer scope=\"x\"", "Negotiate", ""], None);
        check(&["Bearer realm=\"https://a/"], None);
        check(&["realm=\"https://a/\", =, \"Bearer\""], None);
    }

    /// As registries do that take either (RFC 9110, 11.6.1).
    #[test]
    fn challenges_of_one_header_are_read_apart() {
        let bearer = |service: &str| Some(Challenge::Bearer { realm: "https://a/".into(), service: service.into() });
        let check =
            |said: &str, expected: Option<Challenge>| assert_eq!(choose([said].into_iter()), expected, "{said}");
        check("Basic realm=\"x\", Bearer realm=\"https://a/\"", bearer(""));
        check("Basic realm=\"x\", charset=\"UTF-8\", bearer realm=\"https://a/\", service=\"s\"", bearer("s"));
        check("Bearer service = \"s\", realm = \"https://a/\",,Basic realm=\"x\", service=\"t\"", bearer("s"));
        check("Negotiate YWJj==, Basic, Bearer realm=https://a/", bearer(""));
        // What is within quotes begins nothing.
        check("Basic realm=\"x, Bearer realm=https://b/\"", Some(Challenge::Basic));
        check("Basic realm=\"x\\\", Bearer realm=\"https://b/", Some(Challenge::Basic));
        check("Bearer realm=\"https://a/\", service=\"a\\\"b\\\\, c\"", bearer("a\"b\\, c"));
        check("Bearer, Basic realm=\"https://a/\"", Some(Challenge::Basic));
    }
}
