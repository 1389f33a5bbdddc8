//! One issuer: where its keys are, those that were fetched last, and when they are fetched anew.
//!
//! Keys are fetched at the first token, again behind a token once they are older than `refresh`, and at once for a token
//! that names a key which is not among them: but that at most once in `pause`, so that made-up names cost the issuer
//! nothing. One fetch runs at a time (`turn.rs`). While the issuer is away its last keys go on, for `stale` at most. What its
//! discovery document said goes on in the same way.

use crate::claims::{ClaimNames, Tenants};
use crate::document::{fetch, is_safe};
use crate::error::TokenError;
use crate::json;
use crate::keys::Keys;
use crate::turn::Turn;
use arc_swap::ArcSwapOption;
use jsonwebtoken::{Algorithm, DecodingKey};
use metrics::counter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_egress::{AddressPolicy, CertificateDer};
use tidegate_types::CallerRole;

/// Whom to believe, and about what.
#[derive(Clone, Debug, PartialEq)]
pub struct Trust {
    /// For logs, metrics, limits and usage.
    pub name: Arc<str>,
    /// `iss`, to the letter.
    pub issuer: String,
    /// Of these one must be in `aud`.
    pub audience: Vec<String>,
    /// Where the keys are; `None` for where OpenID discovery says.
    pub jwks_url: Option<String>,
    /// By which it may sign.
    pub algorithms: Vec<Algorithm>,
    /// Which addresses its documents may be fetched from.
    pub addresses: AddressPolicy,
    /// Certificates that are trusted besides the public ones where it is asked.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// By how much clocks may differ.
    pub clock_skew: Duration,
    /// Age at which keys are fetched anew.
    pub refresh: Duration,
    /// Age to which keys go on while the issuer is away.
    pub stale: Duration,
    /// Time between two fetches.
    pub pause: Duration,
    /// For one fetch.
    pub timeout: Duration,
    /// Whose data its tokens reach.
    pub tenants: Tenants,
    /// What else its claims say.
    pub claims: ClaimNames,
    /// What roles are called in its claims; empty where they have our names.
    pub roles: BTreeMap<String, CallerRole>,
    /// The role of tokens that name none.
    pub role: Option<CallerRole>,
}

impl Trust {
    /// The defaults: all algorithms with public keys, discovery, public addresses.
    pub fn new(name: &str, issuer: &str, tenants: Tenants) -> Self {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        Self {
            name: name.into(),
            issuer: issuer.into(),
            audience: Vec::new(),
            jwks_url: None,
            algorithms: vec![RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA],
            addresses: AddressPolicy::default(),
            extra_roots: Vec::new(),
            clock_skew: Duration::from_secs(60),
            refresh: Duration::from_secs(600),
            stale: Duration::from_secs(24 * 3600),
            pause: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            tenants,
            claims: ClaimNames { user: "sub".into(), class: None, models: None, projects: None, role: None },
            roles: BTreeMap::new(),
            role: None,
        }
    }

    /// Whether its documents are those of `other`, fetched in the same way.
    pub(crate) fn has_source_of(&self, other: &Self) -> bool {
        self.issuer == other.issuer
            && self.jwks_url == other.jwks_url
            && self.addresses == other.addresses
            && self.extra_roots == other.extra_roots
    }

    /// What is wrong with it, where something is.
    pub fn check(&self) -> Result<(), String> {
        let urls = std::iter::once(("issuer", &self.issuer)).chain(self.jwks_url.iter().map(|url| ("jwks_url", url)));
        if let Some((key, url)) = urls.into_iter().find(|(_, url)| !is_safe(url)) {
            return Err(format!("`{key}` is {url:?}; it must begin with https://, or be on this machine"));
        }
        if self.audience.is_empty() || self.audience.iter().any(String::is_empty) {
            return Err("`audience` must name what its tokens are for, or those for others would be taken".into());
        }
        if self.algorithms.is_empty() {
            return Err("`algorithms` is empty, so that no token would be taken".into());
        }
        match &self.tenants {
            Tenants::Claimed { allowed, .. } if allowed.is_empty() => {
                Err("a claim names the tenant, but `tenants` does not say which; [\"*\"] is any".into())
            }
            _ => Ok(()),
        }
    }
}

/// An issuer with its keys.
pub(crate) struct Issuer {
    pub(crate) trust: Trust,
    fetched: ArcSwapOption<FetchedKeys>,
    keys_turn: Turn,
    discovered: ArcSwapOption<Discovered>,
    discovery_turn: Turn,
}

/// Where things are at an issuer (OpenID Connect Discovery 1.0, section 3).
#[derive(Debug)]
pub(crate) struct Discovered {
    jwks_uri: Option<String>,
    pub(crate) authorization_endpoint: Option<String>,
    pub(crate) token_endpoint: Option<String>,
    at: Instant,
}

struct FetchedKeys {
    keys: Keys,
    /// As they were sent, to know whether they changed.
    sent: Vec<u8>,
    /// Counts changes.
    version: u64,
    at: Instant,
}

impl Issuer {
    pub(crate) fn new(trust: Trust) -> Self {
        let (fetched, discovered) = (ArcSwapOption::empty(), ArcSwapOption::empty());
        Self { trust, fetched, keys_turn: Turn::default(), discovered, discovery_turn: Turn::default() }
    }

    /// The same issuer, otherwise believed: with what was fetched of it.
    pub(crate) fn trusted_as(&self, trust: Trust) -> Self {
        let (fetched, discovered) = (self.fetched.load_full(), self.discovered.load_full());
        Self { fetched: fetched.into(), discovered: discovered.into(), ..Self::new(trust) }
    }

    /// Whether keys of that version still hold. Looks for newer ones behind the caller's back where it is time.
    pub(crate) fn still_has(self: &Arc<Self>, version: u64) -> bool {
        let Some(fetched) = self.usable() else { return false };
        self.look_behind(&fetched);
        fetched.version == version
    }

    /// The key of a token, and the version of the set that has it.
    pub(crate) async fn key(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(DecodingKey, u64), TokenError> {
        if let Some(fetched) = &self.usable()
            && let Some(key) = fetched.keys.find(kid, algorithm)
        {
            self.look_behind(fetched);
            return Ok((key.clone(), fetched.version));
        }
        // Boxed, so that requests whose key is known do not carry its size.
        Box::pin(self.fetch()).await;
        let fetched = self.usable().ok_or(TokenError::Away)?;
        let key = fetched.keys.find(kid, algorithm).ok_or(TokenError::UnknownKey)?;
        Ok((key.clone(), fetched.version))
    }

    fn usable(&self) -> Option<Arc<FetchedKeys>> {
        self.fetched.load_full().filter(|fetched| fetched.at.elapsed() < self.trust.stale)
    }

    fn look_behind(self: &Arc<Self>, fetched: &FetchedKeys) {
        if fetched.at.elapsed() >= self.trust.refresh && self.keys_turn.is_free(self.trust.pause) {
            let issuer = Arc::clone(self);
            // Bounded by its time limits; one at a time.
            tokio::spawn(async move { issuer.fetch().await });
        }
    }

    /// Fetches the keys, unless somebody did meanwhile, or a moment ago.
    async fn fetch(self: &Arc<Self>) {
        let issuer = Arc::clone(self);
        // What went wrong was logged.
        let _ = self.keys_turn.take(self.trust.pause, async move { issuer.fetch_keys().await }).await;
    }

    async fn fetch_keys(self: &Arc<Self>) -> Result<(), String> {
        let outcome = self.take_keys().await;
        let label = if outcome.is_ok() { "taken" } else { "failed" };
        counter!("tidegate_issuer_fetches_total", "issuer" => self.trust.name.to_string(), "outcome" => label)
            .increment(1);
        if let Err(why) = &outcome {
            tracing::warn!(issuer = &*self.trust.name, "the issuer's keys cannot be fetched: {why}");
        }
        outcome
    }

    async fn take_keys(self: &Arc<Self>) -> Result<(), String> {
        let url = match &self.trust.jwks_url {
            Some(url) => url.clone(),
            None => self
                .discovered()
                .await?
                .jwks_uri
                .clone()
                .ok_or("the issuer names no `jwks_uri` that is safe to fetch")?,
        };
        let sent = fetch(&url, &self.trust, self.trust.timeout).await?;
        let keys = Keys::read(&sent).ok_or_else(|| format!("{url} is no set of keys"))?;
        let last = self.fetched.load_full();
        let version = last.as_ref().map_or(0, |last| last.version + u64::from(last.sent != sent));
        if last.is_none_or(|last| last.version != version) {
            tracing::info!(issuer = &*self.trust.name, keys = keys.len(), "the issuer's keys were taken");
        }
        self.fetched.store(Some(Arc::new(FetchedKeys { keys, sent, version, at: Instant::now() })));
        Ok(())
    }

    /// What the issuer says of itself: what it said before, which is looked for anew behind the caller's back where it is
    /// time; past `stale` whoever asks waits for it. The error is for the log.
    pub(crate) async fn discovered(self: &Arc<Self>) -> Result<Arc<Discovered>, String> {
        if let Some(known) = self.usable_discovery() {
            if known.at.elapsed() >= self.trust.refresh && self.discovery_turn.is_free(self.trust.pause) {
                let issuer = Arc::clone(self);
                // Bounded by its time limit; one at a time.
                tokio::spawn(async move { issuer.discover_anew().await });
            }
            return Ok(known);
        }
        self.discover().await?;
        self.usable_discovery().ok_or_else(|| "what the issuer says of itself is too old".into())
    }

    fn usable_discovery(&self) -> Option<Arc<Discovered>> {
        self.discovered.load_full().filter(|known| known.at.elapsed() < self.trust.stale)
    }

    async fn discover_anew(self: &Arc<Self>) {
        if let Err(why) = self.discover().await {
            tracing::warn!(issuer = &*self.trust.name, "the issuer's discovery document cannot be fetched: {why}");
        }
    }

    async fn discover(self: &Arc<Self>) -> Result<(), String> {
        let issuer = Arc::clone(self);
        let fetch = async move {
            issuer.discovered.store(Some(Arc::new(issuer.read_discovery().await?)));
            Ok(())
        };
        self.discovery_turn.take(self.trust.pause, fetch).await
    }

    /// OpenID Connect Discovery 1.0, section 4: the document must be about the issuer that was asked for.
    async fn read_discovery(&self) -> Result<Discovered, String> {
        let issuer = &self.trust.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let sent = fetch(&url, &self.trust, self.trust.timeout).await?;
        let document = json::object(&sent).ok_or_else(|| format!("{url} is no JSON object"))?;
        let text = |name: &str| document.get(name).and_then(|value| value.as_str());
        if text("issuer") != Some(issuer) {
            return Err(format!("{url} is about another issuer"));
        }
        // A public issuer does not send us to this machine.
        let safe = |url: &&str| is_safe(url) && (url.starts_with("https:") || issuer.starts_with("http:"));
        let place = |name: &str| text(name).filter(safe).map(str::to_owned);
        Ok(Discovered {
            jwks_uri: place("jwks_uri"),
            authorization_endpoint: place("authorization_endpoint"),
            token_endpoint: place("token_endpoint"),
            at: Instant::now(),
        })
    }
}
