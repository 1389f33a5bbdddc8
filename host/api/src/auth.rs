//! Who asks. Keys are known by their BLAKE3 hash only. Without any key the server serves callers on its own
//! machine, and only requests that were meant for it: a web page in a browser here must not reach it through a
//! name that points to 127.0.0.1.

use crate::error::ApiError;
use hyper::header::{AUTHORIZATION, HeaderMap};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tidegate_types::{Caller, Class, Fault, Reject, RejectKind, TenantId};

/// One key of the config.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// For logs and metrics.
    pub name: String,
    /// `blake3:` and 64 hex digits: the hash of the key as it is sent.
    pub hash: String,
    /// Whose data and share.
    pub tenant: TenantId,
    /// Priority class.
    pub class: Class,
    /// Share of the engine relative to other tenants of the class.
    pub weight: u32,
}

/// Decides who a request's caller is.
pub struct Auth {
    /// By the first bytes of the hash. Looking up by hash tells an attacker nothing about a key; the rest is
    /// compared in constant time all the same.
    keys: HashMap<[u8; 8], ([u8; 32], Arc<Caller>)>,
    local: Arc<Caller>,
    /// Names of the keys that may administer the server.
    administrators: HashSet<String>,
}

impl Auth {
    /// Callers need one of `keys`; without any, only this machine is served.
    pub fn new(keys: impl IntoIterator<Item = ApiKey>) -> Result<Self, ApiError> {
        let administrators = HashSet::new();
        let mut auth = Self { keys: HashMap::new(), local: Arc::new(Caller::local()), administrators };
        for key in keys {
            let hash = parse_hash(&key.hash).ok_or_else(|| ApiError::BadKeyHash { name: key.name.clone() })?;
            let caller = Arc::new(Caller {
                tenant: key.tenant,
                key_name: key.name.as_str().into(),
                class: key.class,
                weight: key.weight.max(1),
            });
            if let Some((_, other)) = auth.keys.insert(prefix(&hash), (hash, caller)) {
                return Err(ApiError::SameKey { first: other.key_name.to_string(), second: key.name });
            }
        }
        Ok(auth)
    }

    /// Lets the keys of these names administer the server.
    pub fn with_administrators(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.administrators.extend(names);
        self
    }

    /// The caller of a request that administers the server; without keys that is whoever is on this machine.
    pub(crate) fn administrator(
        &self,
        headers: &HeaderMap,
        host: &str,
        peer: SocketAddr,
    ) -> Result<Arc<Caller>, Reject> {
        let caller = self.caller(headers, host, peer)?;
        if self.administers(&caller) {
            return Ok(caller);
        }
        let message = "this key may not administer the server; set `admin = true` on its entry in the config";
        Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("not_admin"))
    }

    /// Whether a caller may administer the server.
    pub(crate) fn administers(&self, caller: &Caller) -> bool {
        self.is_local_only() || self.administrators.contains(caller.key_name.as_ref())
    }

    /// Whether callers need no key, and only this machine is served.
    pub fn is_local_only(&self) -> bool {
        self.keys.is_empty()
    }

    /// The caller of a request; `host` is the name it was sent to.
    pub(crate) fn caller(&self, headers: &HeaderMap, host: &str, peer: SocketAddr) -> Result<Arc<Caller>, Reject> {
        if self.is_local_only() {
            return self.local_caller(host, peer);
        }
        let hash = *blake3::hash(bearer(headers)?).as_bytes();
        match self.keys.get(&prefix(&hash)) {
            Some((known, caller)) if bool::from(known.ct_eq(&hash)) => Ok(Arc::clone(caller)),
            _ => Err(unauthenticated("the API key is not known here")),
        }
    }

    fn local_caller(&self, host: &str, peer: SocketAddr) -> Result<Arc<Caller>, Reject> {
        let message = if !peer.ip().to_canonical().is_loopback() {
            "this server has no API keys, so it answers only its own machine; add a key to its config"
        } else if !is_local_name(host) {
            "this server has no API keys, so it answers only under the names of its own machine; \
             send the request to 127.0.0.1, or add a key to its config"
        } else {
            return Ok(Arc::clone(&self.local));
        };
        Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("local_only"))
    }
}

fn prefix(hash: &[u8; 32]) -> [u8; 8] {
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&hash[..8]);
    prefix
}

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let hash = blake3::Hash::from_hex(text.strip_prefix("blake3:")?).ok()?;
    Some(*hash.as_bytes())
}

fn bearer(headers: &HeaderMap) -> Result<&[u8], Reject> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (Some(value), None) => value.as_bytes(),
        (None, _) => return Err(unauthenticated("send your API key as `Authorization: Bearer KEY`")),
        (Some(_), Some(_)) => return Err(unauthenticated("the request has several `Authorization` headers; send one")),
    };
    match value.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => Ok(key.trim_ascii()),
        _ => Err(unauthenticated("`Authorization` must be `Bearer KEY`")),
    }
}

fn unauthenticated(message: &str) -> Reject {
    Reject::new(RejectKind::Unauthenticated, Fault::Client, message)
}

/// `localhost`, a name below it, or a loopback address; with or without a port.
fn is_local_name(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = port.strip_prefix(':').is_none_or(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    if !(port.is_empty() || port.starts_with(':') && is_port) {
        return false;
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let address = name.parse::<IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, secret: &str) -> ApiKey {
        let hash = format!("blake3:{}", blake3::hash(secret.as_bytes()));
        ApiKey { name: name.into(), hash, tenant: TenantId::new("t"), class: Class::Batch, weight: 3 }
    }

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn a_key_names_its_caller_and_any_other_is_refused() {
        let auth = Auth::new([key("ann", "tg-1"), key("bob", "tg-2")]).unwrap();
        let far: SocketAddr = "192.0.2.1:9".parse().unwrap();
        let caller = |values: &[&str]| auth.caller(&headers(values), "example.com", far);
        let bob = caller(&["bearer  tg-2"]).unwrap();
        assert_eq!((&*bob.key_name, bob.class, bob.weight), ("bob", Class::Batch, 3));
        for wrong in
            [&[][..], &["Bearer tg-3"], &["Bearer "], &["tg-1"], &["Basic tg-1"], &["Bearer tg-1", "Bearer tg-2"]]
        {
            assert_eq!(caller(wrong).unwrap_err().kind, RejectKind::Unauthenticated, "{wrong:?}");
        }
    }

    #[test]
    fn without_keys_only_this_machine_is_served_and_only_by_its_own_names() {
        let auth = Auth::new([]).unwrap();
        let allowed = |host: &str, peer: &str| auth.caller(&HeaderMap::new(), host, peer.parse().unwrap()).is_ok();
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:8080", "[::1]", "a.localhost"] {
            assert!(allowed(host, "127.0.0.1:9") && allowed(host, "[::1]:9") && allowed(host, "[::ffff:127.0.0.1]:9"));
        }
        assert!(!allowed("localhost", "192.0.2.1:9"));
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "10.0.0.1"] {
            assert!(!allowed(host, "127.0.0.1:9"), "{host}");
        }
    }

    #[test]
    fn an_administrator_is_a_key_that_was_named_or_this_machine() {
        let auth = Auth::new([key("ann", "tg-1"), key("bob", "tg-2")]).unwrap().with_administrators(["bob".to_owned()]);
        let near: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let of = |auth: &Auth, values: &[&str]| auth.administrator(&headers(values), "localhost", near).map(|_| ());
        assert!(of(&auth, &["Bearer tg-2"]).is_ok());
        assert_eq!(of(&auth, &["Bearer tg-1"]).unwrap_err().kind, RejectKind::Forbidden);
        assert_eq!(of(&auth, &[]).unwrap_err().kind, RejectKind::Unauthenticated);
        assert!(of(&Auth::new([]).unwrap(), &[]).is_ok());
    }

    #[test]
    fn hashes_that_are_none_and_keys_given_twice_are_refused() {
        let bad = ApiKey { hash: "sha1:00".into(), ..key("x", "y") };
        assert!(matches!(Auth::new([bad]), Err(ApiError::BadKeyHash { name }) if name == "x"));
        assert!(matches!(Auth::new([key("a", "s"), key("b", "s")]), Err(ApiError::SameKey { .. })));
    }
}
