//! How people log in at an issuer: OpenID Connect's code flow (Core 1.0, 3.1) with PKCE (RFC 7636). The browser is sent to
//! the issuer with three random words: `state` ties the answer to the browser that asked, `nonce` ties the ID token to this
//! login, and the verifier, of which the issuer sees the hash first, ties the code to who began. What comes back is an ID
//! token, read as any other token, but for the client's own audience.

use crate::claims::{Claimed, Verified};
use crate::document::send;
use crate::error::TokenError;
use crate::exchanges::Exchanges;
use crate::issuer::Issuer;
use crate::json;
use crate::verify::{Issuers, MAX_TOKEN_BYTES, Parts};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Map, Value};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::clock::unix_s;
use tidegate_types::{Fault, Reject, RejectKind};

/// For a place among those whose codes are exchanged.
const PLACE_WAIT: Duration = Duration::from_secs(5);
/// For an exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the issuer knows us by.
#[derive(Clone, PartialEq, Eq)]
pub struct LoginTerms {
    /// Its name in the config.
    pub issuer: String,
    /// The audience of ID tokens.
    pub client_id: String,
    /// Absent for a public client, which has PKCE alone.
    pub client_secret: Option<String>,
    /// Where the browser comes back to; registered with the issuer.
    pub redirect_uri: String,
    /// `openid` among them.
    pub scopes: Vec<String>,
}

/// Why nobody was logged in.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// Too many at once.
    #[error("too many people log in at this moment; try again")]
    Busy,
    /// The issuer cannot be asked; why is for the log.
    #[error("the issuer cannot be asked at the moment; try again")]
    Away(String),
    /// The issuer takes the code for none.
    #[error("the issuer did not confirm the login; begin again at /auth/login")]
    Refused,
    /// The ID token is not to be believed.
    #[error("the issuer's answer is not to be believed: {0}")]
    Token(#[from] TokenError),
}

impl From<LoginError> for Reject {
    fn from(error: LoginError) -> Self {
        let message = error.to_string();
        match error {
            LoginError::Busy => Reject::unavailable(Fault::Operator, message, 2).code("login_busy"),
            LoginError::Away(why) => Reject::unavailable(Fault::Operator, message, 5).code("issuer_away").because(why),
            LoginError::Refused | LoginError::Token(_) => {
                Reject::new(RejectKind::Unauthenticated, Fault::Client, message).code("login_refused")
            }
        }
    }
}

/// A login that has begun: where to send the browser, and what it must bring back.
#[derive(Clone, Debug)]
pub struct Begun {
    /// At the issuer.
    pub url: String,
    /// Comes back in the URL.
    pub state: String,
    /// Comes back in the ID token.
    pub nonce: String,
    /// Goes to the issuer with the code.
    pub verifier: String,
}

/// Logs people in at one issuer.
pub struct Login {
    terms: LoginTerms,
    issuer: Arc<Issuer>,
    exchanges: Exchanges,
}

impl Issuers {
    /// Logs people in at the issuer that `terms` name; `None` where there is none of that name.
    pub fn login(&self, terms: LoginTerms) -> Option<Login> {
        let issuer = self.named(&terms.issuer)?;
        Some(Login { terms, issuer, exchanges: Exchanges::new() })
    }
}

impl Login {
    /// The issuer's `iss`.
    pub fn issuer(&self) -> &str {
        &self.issuer.trust.issuer
    }

    /// Begins a login.
    pub async fn begin(&self) -> Result<Begun, LoginError> {
        let discovered = self.issuer.discovered().await.map_err(LoginError::Away)?;
        let missing = || LoginError::Away("the issuer names no `authorization_endpoint` that is safe".into());
        let endpoint = discovered.authorization_endpoint.as_ref().ok_or_else(missing)?;
        let [state, nonce, verifier] = [random()?, random()?, random()?];
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.terms.client_id),
            ("redirect_uri", &self.terms.redirect_uri),
            ("scope", &self.terms.scopes.join(" ")),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let joint = if endpoint.contains('?') { '&' } else { '?' };
        Ok(Begun { url: format!("{endpoint}{joint}{query}"), state, nonce, verifier })
    }

    /// Exchanges the code that the browser at `peer` brought back for an ID token, and reads that.
    pub async fn finish(
        &self,
        code: &str,
        verifier: &str,
        nonce: &str,
        peer: IpAddr,
    ) -> Result<Arc<Claimed>, LoginError> {
        let _place = self.exchanges.enter(peer, PLACE_WAIT).await.ok_or(LoginError::Busy)?;
        let token = self.exchange(code, verifier).await?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong { bytes: token.len(), limit: MAX_TOKEN_BYTES }.into());
        }
        let parts = Parts::read(&token)?;
        if parts.claims.get("iss").and_then(Value::as_str) != Some(self.issuer()) {
            return Err(TokenError::UnknownIssuer.into());
        }
        parts.confirm(&self.issuer).await?;
        self.check_ours(&parts.claims, nonce)?;
        let audience = [self.terms.client_id.clone()];
        let verified = Verified::read(&self.issuer.trust, &audience, &parts.claims)?;
        verified.check_time(unix_s(), self.issuer.trust.clock_skew.as_secs())?;
        Ok(verified.claimed)
    }

    /// OpenID Connect Core 1.0, 3.1.3.7: the nonce is that of this login, and who is authorized is us.
    fn check_ours(&self, claims: &Map<String, Value>, nonce: &str) -> Result<(), TokenError> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if !text("nonce").is_some_and(|told| same_text(told, nonce)) {
            return Err(TokenError::Claim { claim: "nonce".into(), why: "is not that of this login" });
        }
        let several = claims.get("aud").and_then(Value::as_array).is_some_and(|list| list.len() > 1);
        if (several || claims.contains_key("azp")) && text("azp") != Some(&self.terms.client_id) {
            return Err(TokenError::Claim { claim: "azp".into(), why: "is not this client" });
        }
        Ok(())
    }

    async fn exchange(&self, code: &str, verifier: &str) -> Result<String, LoginError> {
        let discovered = self.issuer.discovered().await.map_err(LoginError::Away)?;
        let missing = || LoginError::Away("the issuer names no `token_endpoint` that is safe".into());
        let endpoint = discovered.token_endpoint.as_ref().ok_or_else(missing)?;
        let LoginTerms { client_id, client_secret, redirect_uri, .. } = &self.terms;
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut headers =
            vec![pair("accept", "application/json"), pair("content-type", "application/x-www-form-urlencoded")];
        match client_secret {
            // RFC 6749, 2.3.1: both are encoded as in a form first.
            Some(secret) => {
                let both = STANDARD.encode(format!("{}:{}", encoded(client_id), encoded(secret)));
                headers.push(("authorization".to_owned(), format!("Basic {both}")));
            }
            None => fields.push(("client_id", client_id)),
        }
        let trust = &self.issuer.trust;
        let sent = send("POST", endpoint, &headers, form(&fields).into_bytes(), trust, EXCHANGE_TIMEOUT).await;
        match sent.map_err(LoginError::Away)? {
            (200, body) => {
                let answer = json::object(&body).ok_or(LoginError::Refused)?;
                let token = answer.get("id_token").and_then(Value::as_str);
                token.map(str::to_owned).ok_or(LoginError::Refused)
            }
            (status @ 400..=499, body) => Err(match of_this_server(&body) {
                Some(error) => {
                    LoginError::Away(format!("{endpoint} answers {status}, {error}: is the client's secret right?"))
                }
                None => LoginError::Refused,
            }),
            (status, _) => Err(LoginError::Away(format!("{endpoint} answers {status}"))),
        }
    }
}

/// What an issuer has against this server, and not against the code that a browser brought (RFC 6749, 5.2).
fn of_this_server(body: &[u8]) -> Option<&'static str> {
    let error = json::object(body)?.get("error")?.as_str()?.to_owned();
    ["invalid_client", "unauthorized_client", "unsupported_grant_type"].into_iter().find(|known| *known == error)
}

/// Whether two secrets are the same. By their hashes, so that the time it takes says nothing of how much of them is.
fn same_text(one: &str, other: &str) -> bool {
    digest(&SHA256, one.as_bytes()).as_ref() == digest(&SHA256, other.as_bytes()).as_ref()
}

/// 256 random bits.
fn random() -> Result<String, LoginError> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| LoginError::Away("this machine gives no random numbers".into()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// `application/x-www-form-urlencoded`.
fn form(fields: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    pairs.join("&")
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_and_words_are_random() {
        assert_eq!(form(&[("a", "x y&z=é"), ("b", "~-._")]), "a=x%20y%26z%3D%C3%A9&b=~-._");
        let (one, other) = (random().unwrap(), random().unwrap());
        assert!(one.len() == 43 && !same_text(&one, &other) && same_text(&one, &one.clone()));
    }
}
