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
    for challenge in said.filter_map(parse) {
        match challenge {
            Challenge::Bearer { .. } => return Some(challenge),
            Challenge::Basic => basic = Some(challenge),
        }
    }
    basic
}

/// One header: a scheme and parameters, `key="value"` each.
fn parse(text: &str) -> Option<Challenge> {
    let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service) = (None, String::new());
    while let Some((key, after)) = rest.split_once('=') {
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        match key.trim().trim_start_matches(',').trim().to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => value.clone_into(&mut service),
            _ => {}
        }
        rest = left;
    }
    Some(Challenge::Bearer { realm: realm?, service })
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
        check(&["bearer service=s , realm=\"https://a/?x=y,z\""], Some(bearer("https://a/?x=y,z", "s ")));
        check(&["Basic realm=\"x\"", "Bearer realm=\"https://a/\""], Some(bearer("https://a/", "")));
        check(&["Basic realm=\"x\""], Some(Challenge::Basic));
        check(&["Bearer scope=\"x\"", "Negotiate", ""], None);
    }
}
