//! Who asks, and what they may reach. Keys are known by their BLAKE3 hash only. Without any key the server serves
//! callers on its own machine, and only requests that were meant for it: a web page in a browser here must not reach it
//! through a name that points to 127.0.0.1.

use crate::credential::{self, unauthenticated};
use crate::error::ApiError;
use crate::routes::{Access, Group, Route};
use arc_swap::ArcSwap;
use hyper::header::HeaderMap;
use metrics::counter;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;
use subtle::ConstantTimeEq;
use tidegate_types::{Caller, Fault, Reject, RejectKind};

/// One key of the config.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// `blake3:` and 64 hex digits: the hash of the key as it is sent.
    pub hash: String,
    /// Who asks with it.
    pub caller: Caller,
    /// The endpoints that it may use; `None` for all but the administrator's.
    pub endpoints: Option<Vec<Group>>,
    /// From then on it is refused.
    pub expires: Option<SystemTime>,
    /// It may administer the server.
    pub admin: bool,
}

/// What a key may reach.
struct Entry {
    hash: [u8; 32],
    caller: Arc<Caller>,
    endpoints: Option<Vec<Group>>,
    expires: Option<SystemTime>,
    admin: bool,
}

/// Decides who a request's caller is.
pub struct Auth {
    /// By the first bytes of the hash. Looking up by hash tells an attacker nothing about a key; the rest is
    /// compared in constant time all the same.
    keys: HashMap<[u8; 8], Entry>,
    local: Arc<Caller>,
}

/// The keys that are valid now. Clones are the same: what one is given, all have.
#[derive(Clone)]
pub struct SharedAuth(Arc<ArcSwap<Auth>>);

impl From<Auth> for SharedAuth {
    fn from(auth: Auth) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(auth)))
    }
}

impl SharedAuth {
    /// New requests are asked for other keys; those that run have been let in.
    pub fn replace(&self, auth: Auth) {
        self.0.store(Arc::new(auth));
    }

    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<Auth>> {
        self.0.load()
    }
}

impl Auth {
    /// Callers need one of `keys`; without any, only this machine is served, as `local`.
    pub fn new(keys: impl IntoIterator<Item = ApiKey>, local: Caller) -> Result<Self, ApiError> {
        let mut auth = Self { keys: HashMap::new(), local: Arc::new(local) };
        for key in keys {
            let ApiKey { hash, caller, endpoints, expires, admin } = key;
            let name = caller.key_name.to_string();
            let hash = parse_hash(&hash).ok_or_else(|| ApiError::BadKeyHash { name: name.clone() })?;
            let entry = Entry { hash, caller: Arc::new(caller), endpoints, expires, admin };
            if let Some(other) = auth.keys.insert(prefix(&hash), entry) {
                return Err(ApiError::SameKey { first: other.caller.key_name.to_string(), second: name });
            }
        }
        Ok(auth)
    }

    /// Whether a caller may administer the server.
    pub(crate) fn administers(&self, caller: &Caller) -> bool {
        let named = |entry: &Entry| entry.admin && entry.caller.key_name == caller.key_name;
        self.is_local_only() || self.keys.values().any(named)
    }

    /// Whether callers need no key, and only this machine is served.
    pub fn is_local_only(&self) -> bool {
        self.keys.is_empty()
    }

    /// The caller of a request to `route`; `host` is the name it was sent to.
    pub(crate) fn caller(
        &self,
        route: &Route,
        headers: &HeaderMap,
        host: &str,
        peer: SocketAddr,
    ) -> Result<Arc<Caller>, Reject> {
        if self.is_local_only() {
            return self.local_caller(host, peer);
        }
        let hash = *blake3::hash(credential::key(headers)?).as_bytes();
        let entry = self.keys.get(&prefix(&hash)).filter(|entry| bool::from(entry.hash.ct_eq(&hash)));
        let entry = entry.ok_or_else(|| unauthenticated("the API key is not known here"))?;
        entry.check(route)?;
        Ok(Arc::clone(&entry.caller))
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

impl Entry {
    /// Refuses what the key is not for.
    fn check(&self, route: &Route) -> Result<(), Reject> {
        if self.expires.is_some_and(|expires| SystemTime::now() >= expires) {
            counter!("tidegate_scope_denials_total", "reason" => "expired").increment(1);
            return Err(unauthenticated("the API key has expired").code("expired_api_key"));
        }
        match route.access {
            Access::Admin if !self.admin => {
                counter!("tidegate_scope_denials_total", "reason" => "admin").increment(1);
                let message = "this key may not administer the server; set `admin = true` on its entry in the config";
                Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("not_admin"))
            }
            Access::Keyed(group) if self.endpoints.as_ref().is_some_and(|groups| !groups.contains(&group)) => {
                counter!("tidegate_scope_denials_total", "reason" => "endpoint").increment(1);
                let message = format!(
                    "this key may not use {} {}; name `{}` among the `endpoints` of its entry in the config",
                    route.method,
                    route.path,
                    group.as_str()
                );
                Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).code("insufficient_permissions"))
            }
            Access::Keyed(_) | Access::Admin | Access::Open => Ok(()),
        }
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
    use crate::routes::{Found, find};
    use hyper::Method;
    use hyper::header::AUTHORIZATION;
    use std::time::Duration;
    use tidegate_types::{Class, TenantId};

    fn key(name: &str, secret: &str) -> ApiKey {
        let hash = format!("blake3:{}", blake3::hash(secret.as_bytes()));
        let caller = Caller {
            tenant: TenantId::new("t"),
            key_name: name.into(),
            class: Class::Batch,
            weight: 3,
            ..Caller::local()
        };
        ApiKey { hash, caller, endpoints: None, expires: None, admin: false }
    }

    fn auth(keys: impl IntoIterator<Item = ApiKey>) -> Auth {
        Auth::new(keys, Caller::local()).unwrap()
    }

    fn route(method: Method, path: &str) -> &'static Route {
        match find(crate::routes::Door::Every, &method, path) {
            Found::Route(route, _) => route,
            _ => panic!("{path}"),
        }
    }

    fn chat() -> &'static Route {
        route(Method::POST, "/v1/chat/completions")
    }

    fn ask(auth: &Auth, route: &Route, values: &[&str]) -> Result<Arc<Caller>, Reject> {
        let headers = values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect();
        auth.caller(route, &headers, "localhost", "127.0.0.1:9".parse().unwrap())
    }

    #[test]
    fn a_key_names_its_caller_and_any_other_is_refused() {
        let auth = auth([key("ann", "tg-1"), key("bob", "tg-2")]);
        let bob = ask(&auth, chat(), &["bearer  tg-2"]).unwrap();
        assert_eq!((&*bob.key_name, bob.class, bob.weight), ("bob", Class::Batch, 3));
        for wrong in [&[][..], &["Bearer tg-3"], &["Bearer "], &["tg-1"], &["Basic tg-1"]] {
            assert_eq!(ask(&auth, chat(), wrong).unwrap_err().kind, RejectKind::Unauthenticated, "{wrong:?}");
        }
    }

    #[test]
    fn without_keys_only_this_machine_is_served_and_only_by_its_own_names() {
        let auth = auth([]);
        let allowed =
            |host: &str, peer: &str| auth.caller(chat(), &HeaderMap::new(), host, peer.parse().unwrap()).is_ok();
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
        let keys = auth([key("ann", "tg-1"), ApiKey { admin: true, ..key("bob", "tg-2") }]);
        let reload = route(Method::POST, "/admin/reload");
        assert!(ask(&keys, reload, &["Bearer tg-2"]).is_ok());
        assert_eq!(ask(&keys, reload, &["Bearer tg-1"]).unwrap_err().kind, RejectKind::Forbidden);
        assert_eq!(ask(&keys, reload, &[]).unwrap_err().kind, RejectKind::Unauthenticated);
        assert!(ask(&auth([]), reload, &[]).is_ok());
    }

    #[test]
    fn a_key_reaches_its_endpoints_until_it_expires() {
        let models = ApiKey { endpoints: Some(vec![Group::Models]), ..key("ann", "tg-1") };
        let auth = auth([
            ApiKey { expires: Some(SystemTime::now() - Duration::from_secs(1)), ..key("old", "tg-2") },
            ApiKey { expires: Some(SystemTime::now() + Duration::from_secs(60)), ..key("new", "tg-3") },
            models,
        ]);
        assert!(ask(&auth, route(Method::GET, "/v1/models/x"), &["Bearer tg-1"]).is_ok());
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let refused = ask(&auth, route(Method::POST, path), &["Bearer tg-1"]).unwrap_err();
            assert_eq!(refused.kind, RejectKind::Forbidden);
            assert!(refused.message.contains(path), "{refused}");
        }
        let expired = ask(&auth, chat(), &["Bearer tg-2"]).unwrap_err();
        assert_eq!((expired.kind, expired.code.as_deref()), (RejectKind::Unauthenticated, Some("expired_api_key")));
        assert!(ask(&auth, chat(), &["Bearer tg-3"]).is_ok());
    }

    #[test]
    fn hashes_that_are_none_and_keys_given_twice_are_refused() {
        let new = |keys: Vec<ApiKey>| Auth::new(keys, Caller::local());
        let bad = ApiKey { hash: "sha1:00".into(), ..key("x", "y") };
        assert!(matches!(new(vec![bad]), Err(ApiError::BadKeyHash { name }) if name == "x"));
        assert!(matches!(new(vec![key("a", "s"), key("b", "s")]), Err(ApiError::SameKey { .. })));
    }
}
