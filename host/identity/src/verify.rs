//! The path of a token: its whole hash among those that were verified, or else its parts, its issuer, the issuer's key,
//! the signature, the claims.
//!
//! The library's own `decode` is not used for claims: it takes a list for `iss`, and a token without `aud`.

use crate::cache::{Cache, Fingerprint, Known};
use crate::claims::{Claimed, Verified};
use crate::crypto;
use crate::error::TokenError;
use crate::issuer::{Issuer, Trust};
use crate::json;
use crate::keys::algorithm;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use metrics::counter;
use serde_json::{Map, Value};
use std::sync::Arc;
use tidegate_types::clock::unix_s;

/// Bytes of a token.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Verified tokens that are remembered: some hundred bytes each.
const REMEMBERED: usize = 20_000;

/// Everybody who may sign for callers.
pub struct Issuers {
    issuers: Vec<Arc<Issuer>>,
    verified: Cache,
}

impl Default for Issuers {
    fn default() -> Self {
        Self { issuers: Vec::new(), verified: Cache::new(REMEMBERED) }
    }
}

/// Whether a credential that is no key is to be read as a token: it has three parts.
pub fn looks_like_one(credential: &[u8]) -> bool {
    credential.iter().filter(|byte| **byte == b'.').count() == 2
}

impl Issuers {
    /// Nothing is fetched before the first token. To be called within a tokio runtime, as all of it.
    pub fn new(trusted: Vec<Trust>) -> Arc<Self> {
        crypto::install();
        let issuers = trusted.into_iter().map(|trust| Arc::new(Issuer::new(trust))).collect();
        Arc::new(Self { issuers, ..Self::default() })
    }

    /// These issuers in the place of the ones before. Who did not change stays, and whose keys come from where they came from keeps
    /// those: it may be away now.
    pub fn replaced(self: &Arc<Self>, trusted: Vec<Trust>) -> Arc<Self> {
        if self.issuers.iter().map(|issuer| &issuer.trust).eq(&trusted) {
            return Arc::clone(self);
        }
        crypto::install();
        let issuer = |trust: Trust| match self.issuers.iter().find(|known| known.trust.has_source_of(&trust)) {
            Some(known) if known.trust == trust => Arc::clone(known),
            Some(known) => Arc::new(known.trusted_as(trust)),
            None => Arc::new(Issuer::new(trust)),
        };
        Arc::new(Self { issuers: trusted.into_iter().map(issuer).collect(), ..Self::default() })
    }

    /// Whether nobody may.
    pub fn is_empty(&self) -> bool {
        self.issuers.is_empty()
    }

    /// What a token says, where it is to be believed now. Waits for the issuer where its keys are not there.
    pub async fn verify(&self, token: &str) -> Result<Arc<Claimed>, TokenError> {
        let outcome = self.verified(token).await;
        let label = outcome.as_ref().map_or_else(|error| error.label(), |_| "taken");
        counter!("tidegate_tokens_total", "outcome" => label).increment(1);
        outcome
    }

    async fn verified(&self, token: &str) -> Result<Arc<Claimed>, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong { bytes: token.len(), limit: MAX_TOKEN_BYTES });
        }
        let now_s = unix_s();
        let fingerprint = Fingerprint::of(token);
        let known = self.verified.get(&fingerprint).filter(|known| self.issuers[known.issuer].still_has(known.keys));
        if let Some(Known { verified, issuer, .. }) = known {
            verified.check_time(now_s, self.issuers[issuer].trust.clock_skew.as_secs())?;
            return Ok(verified.claimed);
        }
        let parts = Parts::read(token)?;
        let position = self.position(&parts.claims)?;
        let issuer = &self.issuers[position];
        let keys = parts.confirm(issuer).await?;
        let verified = Verified::read(&issuer.trust, &issuer.trust.audience, &parts.claims)?;
        verified.check_time(now_s, issuer.trust.clock_skew.as_secs())?;
        let claimed = Arc::clone(&verified.claimed);
        self.verified.put(fingerprint, Known { verified, issuer: position, keys });
        Ok(claimed)
    }

    /// The issuer of that name in the config.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Issuer>> {
        self.issuers.iter().find(|issuer| &*issuer.trust.name == name).cloned()
    }

    /// Whom a token claims to be from; nothing else of it is believed before its signature was checked.
    fn position(&self, claims: &Map<String, Value>) -> Result<usize, TokenError> {
        let named = claims.get("iss").ok_or_else(|| TokenError::claim("iss", "is missing"))?;
        let named = named.as_str().ok_or_else(|| TokenError::claim("iss", "is no text"))?;
        self.issuers.iter().position(|issuer| issuer.trust.issuer == named).ok_or(TokenError::UnknownIssuer)
    }
}

/// A token taken apart (RFC 7515, 3.1). Of its header only `alg`, `kid` and `crit` are read: `jku`, `x5u`, `jwk` and `x5c`
/// would let its sender choose the key.
pub(crate) struct Parts<'a> {
    /// Header and claims, as they were signed.
    message: &'a str,
    signature: &'a str,
    algorithm: Algorithm,
    kid: Option<String>,
    pub(crate) claims: Map<String, Value>,
}

impl<'a> Parts<'a> {
    /// Checks that `issuer` signed it; gives the version of the keys that say so.
    pub(crate) async fn confirm(&self, issuer: &Arc<Issuer>) -> Result<u64, TokenError> {
        if !issuer.trust.algorithms.contains(&self.algorithm) {
            return Err(TokenError::Algorithm);
        }
        let (key, version) = issuer.key(self.kid.as_deref(), self.algorithm).await?;
        match crypto::confirms(&key, self.algorithm, self.message.as_bytes(), self.signature) {
            true => Ok(version),
            false => Err(TokenError::Signature),
        }
    }

    pub(crate) fn read(token: &'a str) -> Result<Self, TokenError> {
        let malformed = TokenError::Malformed;
        let (message, signature) = token.rsplit_once('.').ok_or(malformed("it has not three parts"))?;
        let (header, claims) = message.split_once('.').ok_or(malformed("it has not three parts"))?;
        let object = |part: &str| URL_SAFE_NO_PAD.decode(part).ok().and_then(|bytes| json::object(&bytes));
        let header =
            object(header).ok_or(malformed("its header is no JSON object in base64url, or names a member twice"))?;
        let claims =
            object(claims).ok_or(malformed("its claims are no JSON object in base64url, or name a member twice"))?;
        if header.contains_key("crit") {
            return Err(malformed("its header has `crit`, and no extension is known here"));
        }
        let named = header.get("alg").and_then(Value::as_str).ok_or(malformed("its header names no `alg`"))?;
        let algorithm = algorithm(named).ok_or(TokenError::Algorithm)?;
        let kid = match header.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => return Err(malformed("`kid` in its header is no text")),
        };
        Ok(Self { message, signature, algorithm, kid, claims })
    }
}
