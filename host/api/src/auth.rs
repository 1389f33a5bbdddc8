//! Who asks. Keys are known by their BLAKE3 hash only; what is no key may be a token of an issuer that the config trusts, a
//! browser's cookie may stand for a person who logged in, and a connection may show a certificate. All that a request has
//! must be of one tenant. `grant.rs` says what they are for.
//!
//! Without any of them the server serves its own machine (`local.rs`).

use crate::backend::{Answers, Nothing};
use crate::credential::{self, unauthenticated};
use crate::error::ApiError;
use crate::grant::{CertificateGrant, Grant, GrantTokens, agreed, choose_project, no_project};
use crate::local;
use crate::pages::{self, Transport};
use crate::routes::{Group, Route};
use crate::session::{self, People, SESSION_COOKIE, Session};
use arc_swap::ArcSwap;
use hyper::Method;
use hyper::header::HeaderMap;
use metrics::counter;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;
use subtle::ConstantTimeEq;
use tidegate_identity::{Certificate, Issuers, looks_like_one};
use tidegate_types::{Caller, Reject};

/// One key of the config.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// `blake3:` and 64 hex digits: the hash of the key as it is sent.
    pub hash: String,
    /// Who asks with it.
    pub caller: Caller,
    /// The endpoints that it may use; `None` for all but the administrator's and the metrics.
    pub endpoints: Option<Vec<Group>>,
    /// From then on it is refused.
    pub expires: Option<SystemTime>,
}

/// A key, and what it is for.
struct Entry {
    hash: [u8; 32],
    grant: Grant,
    expires: Option<SystemTime>,
}

/// Decides who a request's caller is.
pub struct Auth {
    /// By the first bytes of the hash. Looking up by hash tells an attacker nothing about a key; the rest is
    /// compared in constant time all the same.
    keys: HashMap<[u8; 8], Entry>,
    /// Whose tokens are taken, and as what.
    tokens: Option<(Arc<Issuers>, Arc<dyn GrantTokens>)>,
    certificates: Vec<CertificateGrant>,
    people: Option<Arc<People>>,
    local: Arc<Caller>,
}

/// What a request shows of whom it is from.
pub(crate) struct Shown<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    /// The name that it was sent to.
    pub(crate) host: &'a str,
    pub(crate) peer: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) certificate: Option<&'a Certificate>,
}

/// Who is let in now, and what answers them. Clones are the same: what one is given, all have.
///
/// Both are one: what a caller may have is said by the names that a config gives its stages, and with the stages of another it
/// would have what neither of the two lets it.
#[derive(Clone)]
pub struct SharedAuth(Arc<ArcSwap<Open>>);

struct Open {
    auth: Arc<Auth>,
    answers: Arc<dyn Answers>,
}

impl From<Auth> for SharedAuth {
    /// Nothing answers yet.
    fn from(auth: Auth) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Open { auth: Arc::new(auth), answers: Arc::new(Nothing) })))
    }
}

impl SharedAuth {
    /// New requests are asked for other keys; those that run have been let in.
    pub fn replace(&self, auth: Auth) {
        let auth = Arc::new(auth);
        self.0.rcu(|open| Open { auth: Arc::clone(&auth), answers: Arc::clone(&open.answers) });
    }

    /// The same requests are answered by something else.
    pub fn answer_by(&self, answers: Arc<dyn Answers>) {
        self.0.rcu(|open| Open { auth: Arc::clone(&open.auth), answers: Arc::clone(&answers) });
    }

    /// New requests are asked for other keys and answered by something else; those that were let in go on with what they have.
    pub fn replace_both(&self, auth: Auth, answers: Arc<dyn Answers>) {
        self.0.store(Arc::new(Open { auth: Arc::new(auth), answers }));
    }

    /// As [`Auth::is_local_only`], by the keys that are valid at this moment.
    pub fn is_local_only(&self) -> bool {
        self.0.load().auth.is_local_only()
    }

    /// The issuers of now, whose keys the next ones may go on with.
    pub fn issuers(&self) -> Arc<Issuers> {
        self.0.load().auth.tokens.as_ref().map(|(issuers, _)| Arc::clone(issuers)).unwrap_or_default()
    }

    pub(crate) fn load(&self) -> Arc<Auth> {
        Arc::clone(&self.0.load().auth)
    }

    /// What answers whom nobody is asked to let in.
    pub(crate) fn answers(&self) -> Arc<dyn Answers> {
        Arc::clone(&self.0.load().answers)
    }

    /// The caller of a request to `route`, and what answers it. Waits only for the keys of an issuer whose token it is.
    pub(crate) async fn caller(
        &self,
        route: &Route,
        shown: &Shown<'_>,
    ) -> Result<(Arc<Caller>, Arc<dyn Answers>), Reject> {
        let by_key = {
            let open = self.0.load();
            open.auth.by_key(route, shown).map(|caller| caller.map(|caller| (caller, Arc::clone(&open.answers))))
        };
        match by_key {
            Some(found) => found,
            None => {
                let open = self.0.load_full();
                Ok((open.auth.caller(route, shown).await?, Arc::clone(&open.answers)))
            }
        }
    }
}

impl Auth {
    /// Callers need one of `keys`; without any, only this machine is served, as `local`.
    pub fn new(keys: impl IntoIterator<Item = ApiKey>, local: Caller) -> Result<Self, ApiError> {
        let (local, certificates) = (Arc::new(local), Vec::new());
        let mut auth = Self { keys: HashMap::new(), tokens: None, certificates, people: None, local };
        for key in keys {
            let ApiKey { hash, caller, endpoints, expires } = key;
            let name = caller.key_name.to_string();
            let hash = parse_hash(&hash).ok_or_else(|| ApiError::BadKeyHash { name: name.clone() })?;
            let entry = Entry { hash, grant: Grant { caller: Arc::new(caller), endpoints }, expires };
            if let Some(other) = auth.keys.insert(prefix(&hash), entry) {
                return Err(ApiError::SameKey { first: other.grant.caller.key_name.to_string(), second: name });
            }
        }
        Ok(auth)
    }

    /// Takes the tokens of `issuers` too, each for what `grants` says.
    pub fn with_tokens(mut self, issuers: Arc<Issuers>, grants: Arc<dyn GrantTokens>) -> Self {
        self.tokens = (!issuers.is_empty()).then_some((issuers, grants));
        self
    }

    /// Takes client certificates too; of several entries that mean one, the first counts.
    pub fn with_certificates(mut self, certificates: Vec<CertificateGrant>) -> Self {
        self.certificates = certificates;
        self
    }

    /// Takes people who are logged in too.
    pub fn with_people(mut self, people: Option<People>) -> Self {
        self.people = people.map(Arc::new);
        self
    }

    pub(crate) fn people(&self) -> Option<Arc<People>> {
        self.people.clone()
    }

    /// Whether callers need no credential, and only this machine is served.
    pub fn is_local_only(&self) -> bool {
        self.keys.is_empty() && self.tokens.is_none() && self.certificates.is_empty() && self.people.is_none()
    }

    /// The caller of a request that shows a key of ours and can show nothing else: the checks of [`Self::caller`] that are
    /// left then, in its order. `None` where that must decide. Of what all threads count references of, it touches the
    /// caller alone.
    fn by_key(&self, route: &Route, shown: &Shown<'_>) -> Option<Result<Arc<Caller>, Reject>> {
        if shown.certificate.is_some() || self.people.is_some() {
            return None;
        }
        let project = credential::project(shown.headers).ok()?;
        let grant = self.key(credential::key(shown.headers).ok()??).transpose()?;
        Some(grant.and_then(|grant| {
            grant.check_project(project)?;
            grant.check(route)?;
            Ok(Arc::clone(&grant.caller))
        }))
    }

    async fn caller(&self, route: &Route, shown: &Shown<'_>) -> Result<Arc<Caller>, Reject> {
        let project = credential::project(shown.headers)?;
        if self.is_local_only() {
            local::check(shown)?;
            pages::check(shown)?;
            let fits = project.is_none_or(|project| project == self.local.owner().as_str());
            return if fits { Ok(Arc::clone(&self.local)) } else { Err(no_project()) };
        }
        let by_header = match credential::key(shown.headers)? {
            Some(credential) => Some(match self.key(credential)? {
                Some(grant) => grant.clone(),
                None => self.token(credential, project).await?,
            }),
            None => None,
        };
        let by_certificate = shown.certificate.and_then(|certificate| self.certificate(certificate)).cloned();
        let session = self.session(shown, project).await?;
        let by_session = session.as_ref().and_then(|session| session.grant.as_ref().ok()).cloned();
        self.check_page(shown, [&by_header, &by_session, &by_certificate])?;
        let grants = [by_header, by_session, by_certificate];
        grants.iter().flatten().try_for_each(|grant| grant.check_project(project))?;
        let grant = agreed(grants, session)?;
        grant.check(route)?;
        Ok(grant.caller)
    }

    /// What the cookie of a browser stands for.
    async fn session(&self, shown: &Shown<'_>, project: Option<&str>) -> Result<Option<Session>, Reject> {
        let Some(people) = &self.people else { return Ok(None) };
        let Some(token) = session::cookie(shown.headers, SESSION_COOKIE)? else { return Ok(None) };
        // Boxed, so that requests without a cookie do not carry its size.
        let found = Box::pin(people.find(token)).await.and_then(|found| found.ok_or_else(session::over));
        let tenant = found.as_ref().ok().map(|open| open.person.claimed.tenant.clone());
        let grant = found.and_then(|open| people.grant(&open.person, project));
        Ok(Some(Session { tenant, grant: grant.map_err(Box::new) }))
    }

    /// Refuses what changes something and may be of another site's page: browsers send cookies and certificates by
    /// themselves, a key they do not.
    fn check_page(&self, shown: &Shown<'_>, grants: [&Option<Grant>; 3]) -> Result<(), Reject> {
        match (grants, &self.people) {
            ([Some(_), ..] | [None, None, None], _) => Ok(()),
            ([None, Some(_), _], Some(people)) => people.check_origin(shown.method, shown.headers),
            ([None, ..], _) => pages::check(shown),
        }
    }

    fn certificate(&self, certificate: &Certificate) -> Option<&Grant> {
        self.certificates.iter().find(|known| certificate.is(&known.name)).map(|known| &known.grant)
    }

    /// What a key is for; `None` where it is not known.
    fn key(&self, key: &[u8]) -> Result<Option<&Grant>, Reject> {
        let hash = *blake3::hash(key).as_bytes();
        let entry = self.keys.get(&prefix(&hash)).filter(|entry| bool::from(entry.hash.ct_eq(&hash)));
        let Some(entry) = entry else { return Ok(None) };
        if entry.expires.is_some_and(|expires| SystemTime::now() >= expires) {
            counter!("tidegate_scope_denials_total", "reason" => "expired").increment(1);
            return Err(unauthenticated("the API key has expired").code("expired_api_key"));
        }
        Ok(Some(&entry.grant))
    }

    async fn token(&self, credential: &[u8], project: Option<&str>) -> Result<Grant, Reject> {
        let token = std::str::from_utf8(credential).ok().filter(|_| looks_like_one(credential));
        match (&self.tokens, token) {
            (Some((issuers, grants)), Some(token)) => {
                let claimed = issuers.verify(token).await?;
                grants.grant(&claimed, project)?.ok_or_else(|| choose_project(&**grants, &claimed))
            }
            _ => Err(unauthenticated("the API key is not known here")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{Found, find};
    use hyper::header::AUTHORIZATION;
    use std::time::Duration;
    use tidegate_types::{CallerRole, Class, RejectKind, TenantId};

    fn key(name: &str, secret: &str) -> ApiKey {
        let hash = format!("blake3:{}", blake3::hash(secret.as_bytes()));
        let caller = Caller {
            tenant: TenantId::new("t"),
            key_name: name.into(),
            class: Class::Batch,
            weight: 3,
            role: CallerRole::Service,
            admin: false,
            ..Caller::local()
        };
        ApiKey { hash, caller, endpoints: None, expires: None }
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

    /// The caller, however that is found out.
    async fn ask(auth: &Auth, route: &Route, values: &[&str]) -> Result<Arc<Caller>, Reject> {
        let headers = values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect();
        ask_with(auth, route, &headers).await.0
    }

    /// The same, and whether the key alone decides it.
    async fn ask_with(auth: &Auth, route: &Route, headers: &HeaderMap) -> (Result<Arc<Caller>, Reject>, bool) {
        let peer = "127.0.0.1:9".parse().unwrap();
        let shown = Shown {
            method: &route.method,
            headers,
            host: "localhost",
            peer,
            transport: Transport::Plain,
            certificate: None,
        };
        let caller = auth.caller(route, &shown).await;
        let by_key = auth.by_key(route, &shown);
        if let Some(by_key) = &by_key {
            assert_eq!(format!("{by_key:?}"), format!("{caller:?}"), "{headers:?}");
        }
        (caller, by_key.is_some())
    }

    #[tokio::test]
    async fn a_key_names_its_caller_and_any_other_is_refused() {
        let auth = auth([key("ann", "tg-1"), key("bob", "tg-2")]);
        let bob = ask(&auth, chat(), &["bearer  tg-2"]).await.unwrap();
        assert_eq!((&*bob.key_name, bob.class, bob.weight), ("bob", Class::Batch, 3));
        for wrong in [&[][..], &["Bearer tg-3"], &["Bearer "], &["tg-1"], &["Basic tg-1"]] {
            assert_eq!(ask(&auth, chat(), wrong).await.unwrap_err().kind, RejectKind::Unauthenticated, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn where_no_credential_is_asked_for_none_is_looked_at() {
        for shown in [&["Bearer tg-1", "Bearer tg-2"][..], &["Basic tg-1"]] {
            assert!(ask(&auth([]), chat(), shown).await.is_ok(), "{shown:?}");
        }
    }

    #[tokio::test]
    async fn an_administrator_is_a_key_that_was_named_or_this_machine() {
        let mut bob = key("bob", "tg-2");
        bob.caller.admin = true;
        let keys = auth([key("ann", "tg-1"), bob]);
        let reload = route(Method::POST, "/admin/reload");
        assert!(ask(&keys, reload, &["Bearer tg-2"]).await.is_ok());
        assert_eq!(ask(&keys, reload, &["Bearer tg-1"]).await.unwrap_err().kind, RejectKind::Forbidden);
        assert_eq!(ask(&keys, reload, &[]).await.unwrap_err().kind, RejectKind::Unauthenticated);
        assert!(ask(&auth([]), reload, &[]).await.is_ok());
    }

    #[tokio::test]
    async fn a_key_reaches_its_endpoints_until_it_expires() {
        let models = ApiKey { endpoints: Some(vec![Group::Models]), ..key("ann", "tg-1") };
        let auth = auth([
            ApiKey { expires: Some(SystemTime::now() - Duration::from_secs(1)), ..key("old", "tg-2") },
            ApiKey { expires: Some(SystemTime::now() + Duration::from_secs(60)), ..key("new", "tg-3") },
            models,
        ]);
        assert!(ask(&auth, route(Method::GET, "/v1/models/x"), &["Bearer tg-1"]).await.is_ok());
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let refused = ask(&auth, route(Method::POST, path), &["Bearer tg-1"]).await.unwrap_err();
            assert_eq!(refused.kind, RejectKind::Forbidden);
            assert!(refused.message.contains(path), "{refused}");
        }
        let expired = ask(&auth, chat(), &["Bearer tg-2"]).await.unwrap_err();
        assert_eq!((expired.kind, expired.code.as_deref()), (RejectKind::Unauthenticated, Some("expired_api_key")));
        assert!(ask(&auth, chat(), &["Bearer tg-3"]).await.is_ok());
    }

    #[tokio::test]
    async fn what_a_key_alone_decides_is_what_all_checks_decide() {
        let reads = ApiKey { endpoints: Some(vec![Group::Models]), ..key("reads", "tg-2") };
        let over = ApiKey { expires: Some(SystemTime::UNIX_EPOCH), ..key("over", "tg-3") };
        let auth = auth([key("all", "tg-1"), reads, over]);
        let routes = [chat(), route(Method::GET, "/v1/models/x"), route(Method::POST, "/admin/reload")];
        let projects = [&[][..], &["t"], &["other"], &["t", "other"]];
        let keys = [&["tg-1"][..], &["tg-2"], &["tg-3"], &["tg-4"], &[], &["tg-1", "tg-2"]];
        let mut by_key = 0;
        for (route, case) in
            routes.into_iter().flat_map(|route| (0..projects.len() * keys.len()).map(move |n| (route, n)))
        {
            let mut headers = HeaderMap::new();
            for key in keys[case % keys.len()] {
                headers.append(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
            }
            for id in projects[case / keys.len()] {
                headers.append("openai-project", id.parse().unwrap());
            }
            by_key += u32::from(ask_with(&auth, route, &headers).await.1);
        }
        assert_eq!(by_key, 3 * 3 * 3, "of one known key and one project at most, it decides all");
    }

    #[test]
    fn hashes_that_are_none_and_keys_given_twice_are_refused() {
        let new = |keys: Vec<ApiKey>| Auth::new(keys, Caller::local());
        let bad = ApiKey { hash: "sha1:00".into(), ..key("x", "y") };
        assert!(matches!(new(vec![bad]), Err(ApiError::BadKeyHash { name }) if name == "x"));
        assert!(matches!(new(vec![key("a", "s"), key("b", "s")]), Err(ApiError::SameKey { .. })));
    }
}
