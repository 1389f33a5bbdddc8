//! An issuer of tokens in this process: it publishes the keys that it is told to, and signs whatever a test wants signed.

use crate::stand_in::{Said, StandIn};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A P-256 key with a name.
pub struct Signer {
    pub kid: String,
    pair: EcdsaKeyPair,
}

impl Signer {
    pub fn new(kid: &str) -> Self {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self { kid: kid.into(), pair: EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap() }
    }

    pub fn jwk(&self) -> Value {
        let point = self.public();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.kid, "x": part(&point[1..33]), "y": part(&point[33..])})
    }

    /// The public point, uncompressed.
    pub fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// A good token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.signed(&json!({"alg": "ES256", "kid": self.kid}).to_string(), &claims.to_string())
    }

    /// Whatever header and claims are.
    pub fn signed(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encoded(header), encoded(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(signature))
    }
}

pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The server of an issuer.
pub struct TestIssuer {
    pub server: StandIn,
    published: Arc<Mutex<Vec<Value>>>,
    away: Arc<AtomicBool>,
}

impl TestIssuer {
    /// Publishes `keys`, with a discovery document.
    pub async fn start(keys: &[&Signer]) -> Self {
        let published = Arc::new(Mutex::new(keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()));
        let (away, origin) = (Arc::<AtomicBool>::default(), Arc::<OnceLock<String>>::default());
        let script = {
            let (published, away, origin) = (Arc::clone(&published), Arc::clone(&away), Arc::clone(&origin));
            move |path: &str, _: &Value| match path {
                _ if away.load(Ordering::SeqCst) => Said::raw(503, ""),
                "/.well-known/openid-configuration" => {
                    let origin = origin.get().unwrap();
                    Said::json(&json!({"issuer": origin, "jwks_uri": format!("{origin}/jwks")}))
                }
                "/jwks" => Said::json(&json!({"keys": *published.lock().unwrap()})),
                _ => Said::raw(404, ""),
            }
        };
        let server = StandIn::start(script).await;
        origin.set(server.origin()).unwrap();
        Self { server, published, away }
    }

    pub fn publish(&self, keys: &[&Signer]) {
        *self.published.lock().unwrap() = keys.iter().map(|key| key.jwk()).collect();
    }

    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// How often its keys were asked for.
    pub fn fetches(&self) -> usize {
        self.server.asked("/jwks").len()
    }

    /// An entry of the config that takes its tokens for `tidegate`.
    pub fn entry(&self, name: &str, more: &str) -> String {
        format!(
            "[[auth.issuer]]\nname = \"{name}\"\nissuer = \"{}\"\naudience = [\"tidegate\"]\nnetworks = [\"127.0.0.1\"]\n\
             {more}\n",
            self.server.origin()
        )
    }

    /// Claims of a good token of `user`.
    pub fn claims(&self, user: &str) -> Value {
        json!({"iss": self.server.origin(), "aud": "tidegate", "sub": user, "exp": now_s() + 600})
    }
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A login that an issuer's page has taken, until its code is exchanged.
struct Taken {
    code: String,
    challenge: String,
    redirect_uri: String,
    id_token: String,
}

/// An OpenID provider: an issuer with pages at which people log in.
pub struct Provider {
    pub server: StandIn,
    pub signer: Arc<Signer>,
    taken: Arc<Mutex<Vec<Taken>>>,
}

/// What the provider knows the gateway by.
pub const CLIENT: &str = "tidegate client";
pub const SECRET: &str = "s3cret & more";

impl Provider {
    pub async fn start() -> Self {
        let (signer, taken) = (Arc::new(Signer::new("one")), Arc::<Mutex<Vec<Taken>>>::default());
        let origin = Arc::<OnceLock<String>>::default();
        let script = {
            let (origin, taken, jwk) = (Arc::clone(&origin), Arc::clone(&taken), signer.jwk());
            move |path: &str, body: &Value| match path {
                "/.well-known/openid-configuration" => {
                    let origin = origin.get().unwrap();
                    Said::json(&json!({
                        "issuer": origin, "jwks_uri": format!("{origin}/jwks"), "token_endpoint": format!("{origin}/token"),
                        "authorization_endpoint": format!("{origin}/authorize?tenant=x"),
                    }))
                }
                "/jwks" => Said::json(&json!({"keys": [jwk]})),
                "/token" => exchange(&mut taken.lock().unwrap(), body),
                _ => Said::raw(404, ""),
            }
        };
        let server = StandIn::start(script).await;
        origin.set(server.origin()).unwrap();
        Self { server, signer, taken }
    }

    /// What somebody who logs in at the page of `url` brings back: the query of the callback. `more` are claims.
    pub fn log_in(&self, url: &str, user: &str, more: Value) -> String {
        let asked = fields(url.split_once('?').unwrap().1);
        let asked = |name: &str| asked.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap();
        assert!(url.starts_with(&format!("{}/authorize?tenant=x&", self.server.origin())), "{url}");
        assert_eq!((asked("response_type"), asked("code_challenge_method")), ("code".into(), "S256".into()));
        assert_eq!(asked("client_id"), CLIENT);
        let mut claims = json!({
            "iss": self.server.origin(), "aud": CLIENT, "sub": user, "exp": now_s() + 600, "nonce": asked("nonce"),
        });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.answer(url, self.signer.token(&claims))
    }

    /// The same with any ID token.
    pub fn answer(&self, url: &str, id_token: String) -> String {
        let asked = fields(url.split_once('?').unwrap().1);
        let asked = |name: &str| asked.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap();
        let mut taken = self.taken.lock().unwrap();
        let code = format!("code+{}", taken.len());
        let (challenge, redirect_uri) = (asked("code_challenge"), asked("redirect_uri"));
        let query = format!("code={}&state={}&session_state=x", code.replace('+', "%2B"), asked("state"));
        taken.push(Taken { code, challenge, redirect_uri, id_token });
        query
    }

    /// The config that makes people log in here.
    pub fn login(&self) -> String {
        format!(
            "[[auth.issuer]]\nname = \"corp\"\nissuer = \"{}\"\naudience = [\"tidegate\"]\nnetworks = [\"127.0.0.1\"]\n\
             tenant = \"acme\"\nclaims = {{ role = \"role\" }}\nrole = \"member\"\n[auth.login]\nissuer = \"corp\"\n\
             client_id = \"{CLIENT}\"\npublic_url = \"https://ai.example\"\n",
            self.server.origin()
        )
    }
}

/// A code is good once, for whoever began and proves it. One that begins with `slow` is looked for a while.
fn exchange(taken: &mut [Taken], body: &Value) -> Said {
    let form = fields(body["form"].as_str().unwrap_or_default());
    let field = |name: &str| form.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let secret = format!("{}:{}", CLIENT.replace(' ', "%20"), SECRET.replace(' ', "%20").replace('&', "%26"));
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(secret));
    let known =
        body["authorization"] == json!(basic) || body["authorization"].is_null() && field("client_id") == CLIENT;
    let found = taken.iter_mut().find(|login| !login.code.is_empty() && login.code == field("code"));
    if !known {
        return Said::raw(401, "{\"error\":\"invalid_client\"}");
    }
    let Some(login) = found.filter(|_| field("grant_type") == "authorization_code") else {
        let pause = Duration::from_secs(u64::from(field("code").starts_with("slow")));
        return Said::raw(400, "{\"error\":\"invalid_grant\"}").after(pause);
    };
    let proof = ring::digest::digest(&ring::digest::SHA256, field("code_verifier").as_bytes());
    if encoded(proof) != login.challenge || field("redirect_uri") != login.redirect_uri {
        return Said::raw(400, "{\"error\":\"invalid_grant\"}");
    }
    login.code.clear();
    Said::json(&json!({"token_type": "Bearer", "access_token": "x", "id_token": login.id_token}))
}

/// The fields of a form.
fn fields(form: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((first, tail)) = rest.split_first() {
            if *first == b'%' {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
                rest = &tail[2..];
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        String::from_utf8(bytes).unwrap()
    };
    form.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}
