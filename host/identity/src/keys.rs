//! The keys that an issuer publishes (JWKS, RFC 7517). A key that this program cannot use is left out, and harms no
//! other: sets hold keys for encryption and of kinds to come. A shared secret is never a key here.

use crate::json;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};

/// Keys of one set that are read. Honest issuers publish two or three.
const MAX_KEYS: usize = 64;
/// Bytes of a key's name.
const MAX_KID_BYTES: usize = 256;

/// Algorithms with public keys, by their names in RFC 7518 and 8037.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// The algorithm of that name; `None` for `none`, for those with a shared secret, and for unknown ones.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
}

/// The usable keys of a set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    kid: Option<String>,
    /// Those that its kind, its curve and its own `alg` leave.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl Keys {
    /// Reads a set; `None` where it is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let set = json::object(bytes)?;
        let keys = set.get("keys")?.as_array()?.iter().take(MAX_KEYS);
        Some(Self(keys.filter_map(|key| read(key.as_object()?)).collect()))
    }

    /// The key of that name for that algorithm. A token may leave the name out where one key alone fits.
    pub(crate) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let named = |key: &&Key| kid.is_none() || key.kid.as_deref() == kid;
        let mut fitting = self.0.iter().filter(|key| key.algorithms.contains(&algorithm)).filter(named);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Some(&key.key),
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn read(jwk: &Map<String, Value>) -> Option<Key> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let kid = text("kid").map(str::to_owned);
    let verifies =
        jwk.get("key_ops").is_none_or(|ops| ops.as_array().is_some_and(|ops| ops.contains(&"verify".into())));
    if text("use").is_some_and(|of| of != "sig")
        || !verifies
        || kid.as_ref().is_some_and(|kid| kid.len() > MAX_KID_BYTES)
    {
        return None;
    }
    let (key, mut algorithms) = match (text("kty")?, text("crv")) {
        ("RSA", _) => (rsa(text("n")?, text("e")?)?, ALGORITHMS[..6].iter().map(|(_, known)| *known).collect()),
        ("EC", Some("P-256")) => (point(text("x")?, text("y")?, 32)?, vec![Algorithm::ES256]),
        ("EC", Some("P-384")) => (point(text("x")?, text("y")?, 48)?, vec![Algorithm::ES384]),
        ("OKP", Some("Ed25519")) => {
            let x = decoded(text("x")?).filter(|x| x.len() == 32)?;
            (DecodingKey::from_ed_der(&x), vec![Algorithm::EdDSA])
        }
        _ => return None,
    };
    if let Some(own) = jwk.get("alg") {
        let own = algorithm(own.as_str()?)?;
        algorithms.retain(|known| *known == own);
    }
    (!algorithms.is_empty()).then_some(Key { kid, algorithms, key })
}

/// Bounds on the modulus are `ring`'s: 2048 to 8192 bits.
fn rsa(n: &str, e: &str) -> Option<DecodingKey> {
    let (n, e) = (decoded(n)?, decoded(e)?);
    // Some issuers write a sign byte, which `ring` takes for a mistake.
    let unsigned = |number: &[u8]| number[number.iter().take_while(|byte| **byte == 0).count()..].to_vec();
    Some(DecodingKey::from_rsa_raw_components(&unsigned(&n), &unsigned(&e)))
}

/// An uncompressed point (SEC 1, 2.3.3).
fn point(x: &str, y: &str, bytes: usize) -> Option<DecodingKey> {
    let (x, y) = (decoded(x)?, decoded(y)?);
    (x.len() == bytes && y.len() == bytes).then(|| DecodingKey::from_ec_der(&[&[4], &x[..], &y[..]].concat()))
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keys(set: &Value) -> Keys {
        Keys::read(json!({"keys": set}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_key_is_found_by_name_and_algorithm_and_secrets_are_no_keys() {
        let x = URL_SAFE_NO_PAD.encode([7; 32]);
        let keys = keys(&json!([
            {"kty": "oct", "kid": "s", "k": x, "alg": "HS256"},
            {"kty": "EC", "crv": "P-256", "kid": "a", "x": x, "y": x},
            {"kty": "OKP", "crv": "Ed25519", "kid": "b", "x": x, "alg": "EdDSA"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "c", "x": x, "alg": "RS256"},
            {"kty": "EC", "crv": "P-256", "kid": "enc", "use": "enc", "x": x, "y": x},
            {"kty": "EC", "crv": "P-256", "kid": "ops", "key_ops": ["sign"], "x": x, "y": x},
            {"kty": "EC", "crv": "P-384", "kid": "short", "x": x, "y": x},
            {"kty": "new", "kid": "n"}, 5, {"kty": "RSA", "kid": "r"},
        ]));
        assert_eq!(keys.len(), 2);
        let found = |kid, algorithm| keys.find(kid, algorithm).is_some();
        assert!(
            found(Some("a"), Algorithm::ES256) && found(Some("b"), Algorithm::EdDSA) && found(None, Algorithm::ES256)
        );
        assert!(!found(Some("a"), Algorithm::RS256) && !found(Some("s"), Algorithm::ES256));
        assert!(!found(Some("s"), Algorithm::HS256) && !found(None, Algorithm::HS256));
    }

    #[test]
    fn of_two_keys_that_fit_none_is_guessed() {
        let x = URL_SAFE_NO_PAD.encode([7; 32]);
        let key = |kid: &str| json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x});
        let two = keys(&json!([key("a"), key("b")]));
        assert!(two.find(None, Algorithm::EdDSA).is_none() && two.find(Some("b"), Algorithm::EdDSA).is_some());
        assert!(keys(&json!([key("a"), key("a")])).find(Some("a"), Algorithm::EdDSA).is_none());
        assert!(Keys::read(b"{}").is_none() && Keys::read(b"<html>").is_none());
    }

    #[test]
    fn only_algorithms_with_public_keys_have_names() {
        assert_eq!(algorithm("ES256"), Some(Algorithm::ES256));
        for name in ["none", "None", "HS256", "HS384", "HS512", "rs256", "", "RS256 "] {
            assert_eq!(algorithm(name), None, "{name}");
        }
    }
}
