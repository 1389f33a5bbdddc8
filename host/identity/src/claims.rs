//! What a verified token says, and whether that can be used. A claim that is there and is no sense is refused; nothing is
//! taken for the nearest thing.

use crate::error::TokenError;
use crate::issuer::Trust;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_types::{CallerRole, Class, TenantId};

/// Bytes of a tenant's name, which is a label of metrics.
const MAX_TENANT_BYTES: usize = 64;
/// Bytes of a user's name.
const MAX_USER_BYTES: usize = 256;
/// Models, or projects, that one token may name.
const MAX_NAMES: usize = 256;

/// Which claims say what: the name of a member, or a JSON pointer (RFC 6901) where it starts with a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNames {
    /// The person or program: text.
    pub user: String,
    /// `interactive`, `standard` or `batch`.
    pub class: Option<String>,
    /// The models that may be named: a list, or words between spaces.
    pub models: Option<String>,
    /// The projects: a name or a list of names.
    pub projects: Option<String>,
    /// The role: text or a list, of which the first that is known counts, in the order of [`CallerRole`].
    pub role: Option<String>,
}

/// Whose data the tokens of an issuer reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenants {
    /// Always this one's.
    One(TenantId),
    /// That of the tenant which a claim names.
    Claimed {
        /// The claim.
        claim: String,
        /// The names that it may have; a `*` at the end stands for anything.
        allowed: Vec<String>,
    },
}

impl Tenants {
    /// Whether a token may be of that one.
    pub fn has(&self, name: &str) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        match self {
            Self::One(tenant) => tenant.as_str() == name,
            Self::Claimed { allowed, .. } => allowed.iter().any(fits),
        }
    }
}

/// What a token says of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// The issuer's name in the config.
    pub issuer: Arc<str>,
    /// Whose data and share.
    pub tenant: TenantId,
    /// The person or program.
    pub user: Arc<str>,
    /// What it might do within its tenant when it was verified.
    pub role: CallerRole,
    /// What it calls its roles, as far as that was known then: a login outlives what the config makes of them ([`named_role`]).
    /// `None` where no claim was to say it.
    #[serde(default)]
    pub role_names: Option<BTreeSet<String>>,
    /// How urgent, where a claim says it.
    pub class: Option<Class>,
    /// The models that may be named, where a claim says it.
    pub models: Option<BTreeSet<String>>,
    /// The projects of the tenant that it is for, where a claim says it.
    #[serde(default)]
    pub projects: Option<BTreeSet<String>>,
}

/// What a token says, and when that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) claimed: Arc<Claimed>,
    times: Times,
}

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    not_before: u64,
    expires: u64,
}

type Claims = Map<String, Value>;

impl Verified {
    /// Reads the claims of a token whose signature is good, and which must be for one of `audience`.
    pub(crate) fn read(trust: &Trust, audience: &[String], claims: &Claims) -> Result<Self, TokenError> {
        check_audience(audience, claims)?;
        let (role, role_names) = role(trust, claims)?;
        let claimed = Claimed {
            issuer: Arc::clone(&trust.name),
            tenant: tenant(trust, claims)?,
            user: user(&trust.claims.user, claims)?,
            role,
            role_names,
            class: class(trust.claims.class.as_deref(), claims)?,
            models: models(trust.claims.models.as_deref(), claims)?,
            projects: projects(trust.claims.projects.as_deref(), claims)?,
        };
        Ok(Self { claimed: Arc::new(claimed), times: Times::read(claims)? })
    }

    /// Refuses what is over, or has not begun. Clocks may differ by `skew_s`.
    pub(crate) fn check_time(&self, now_s: u64, skew_s: u64) -> Result<(), TokenError> {
        let Times { not_before, expires } = self.times;
        if now_s >= expires.saturating_add(skew_s) {
            return Err(TokenError::Expired);
        }
        if not_before > now_s.saturating_add(skew_s) { Err(TokenError::NotYet) } else { Ok(()) }
    }

    #[cfg(test)]
    pub(crate) fn of(tenant: &str, user: &str) -> Self {
        let (issuer, tenant, user, role) = ("i".into(), TenantId::new(tenant), user.into(), CallerRole::Member);
        let (role_names, class, models, projects) = (None, None, None, None);
        let claimed = Claimed { issuer, tenant, user, role, role_names, class, models, projects };
        Self { claimed: Arc::new(claimed), times: Times { not_before: 0, expires: u64::MAX } }
    }
}

impl Times {
    /// `exp` is required; a token that says when it was made is not valid before.
    fn read(claims: &Claims) -> Result<Self, TokenError> {
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => seconds(value).map(Some).ok_or_else(|| TokenError::claim(name, "is no time")),
        };
        let expires = time("exp")?.ok_or_else(|| TokenError::claim("exp", "is missing"))?;
        Ok(Self { not_before: time("nbf")?.max(time("iat")?).unwrap_or(0), expires })
    }
}

/// A NumericDate: seconds since 1970, which some issuers write with a fraction.
fn seconds(value: &Value) -> Option<u64> {
    const MOST: f64 = 9_007_199_254_740_992.0;
    let number = value.as_f64().filter(|number| (0.0..MOST).contains(number))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Some(number as u64)
}

/// One of the token's audiences must be one of ours.
fn check_audience(audience: &[String], claims: &Claims) -> Result<(), TokenError> {
    let ours = |value: &Value| value.as_str().is_some_and(|text| audience.iter().any(|our| our == text));
    let fits = match claims.get("aud") {
        None => return Err(TokenError::claim("aud", "is missing")),
        Some(Value::Array(list)) if list.iter().all(Value::is_string) => list.iter().any(ours),
        Some(value) if value.is_string() => ours(value),
        Some(_) => return Err(TokenError::claim("aud", "is neither text nor a list of texts")),
    };
    if fits { Ok(()) } else { Err(TokenError::Audience) }
}

fn tenant(trust: &Trust, claims: &Claims) -> Result<TenantId, TokenError> {
    let claim = match &trust.tenants {
        Tenants::One(tenant) => return Ok(tenant.clone()),
        Tenants::Claimed { claim, .. } => claim,
    };
    let name = text(claim, claims)?;
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.len() > MAX_TENANT_BYTES || !name.bytes().all(sane) {
        return Err(TokenError::claim(claim, "must be 1 to 64 of A-Z, a-z, 0-9, `-`, `_` and `.`"));
    }
    match trust.tenants.has(name) {
        true => Ok(TenantId::new(name)),
        false => Err(TokenError::claim(claim, "names a tenant that this issuer may not speak for")),
    }
}

fn user(claim: &str, claims: &Claims) -> Result<Arc<str>, TokenError> {
    let name = text(claim, claims)?;
    if name.len() > MAX_USER_BYTES || name.chars().any(char::is_control) {
        return Err(TokenError::claim(claim, "must be at most 256 bytes without control characters"));
    }
    Ok(name.into())
}

/// The role that tokens call so, by what they are called in the config: by our names where it says nothing.
pub fn named_role(roles: &BTreeMap<String, CallerRole>, name: &str) -> Option<CallerRole> {
    if roles.is_empty() { CallerRole::named(name) } else { roles.get(name).copied() }
}

/// A member, where the config names no claim. Where it does, a token that names no known role gets the one that the config
/// gives to such, and is refused where it gives none. Also what named it.
fn role(trust: &Trust, claims: &Claims) -> Result<(CallerRole, Option<BTreeSet<String>>), TokenError> {
    let Some(claim) = &trust.claims.role else { return Ok((trust.role.unwrap_or(CallerRole::Member), None)) };
    let values = match find(claim, claims) {
        Some(Value::Array(list)) => list.as_slice(),
        Some(value) => std::slice::from_ref(value),
        None => &[],
    };
    let role = |name: &str| named_role(&trust.roles, name);
    let names: BTreeSet<&str> = values.iter().filter_map(Value::as_str).filter(|name| role(name).is_some()).collect();
    let found = names.iter().filter_map(|name| role(name)).min().or(trust.role);
    let found = found.ok_or_else(|| TokenError::claim(claim, "names no role that this server knows"))?;
    Ok((found, Some(names.into_iter().map(str::to_owned).collect())))
}

fn class(claim: Option<&str>, claims: &Claims) -> Result<Option<Class>, TokenError> {
    let Some((claim, value)) = claim.and_then(|claim| Some((claim, find(claim, claims)?))) else { return Ok(None) };
    let class = serde_json::from_value(value.clone());
    class.map(Some).map_err(|_| TokenError::claim(claim, "must be interactive, standard or batch"))
}

fn models(claim: Option<&str>, claims: &Claims) -> Result<Option<BTreeSet<String>>, TokenError> {
    let Some(claim) = claim else { return Ok(None) };
    // A token that was to name its models and does not is not one for all of them.
    let value = find(claim, claims).ok_or_else(|| TokenError::claim(claim, "is missing"))?;
    let list: Option<BTreeSet<String>> = match value {
        Value::String(words) => Some(words.split_ascii_whitespace().map(str::to_owned).collect()),
        Value::Array(list) => list.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let list = list.filter(|list| list.len() <= MAX_NAMES);
    list.map(Some)
        .ok_or_else(|| TokenError::claim(claim, "must be a list of at most 256 names, or words between spaces"))
}

fn projects(claim: Option<&str>, claims: &Claims) -> Result<Option<BTreeSet<String>>, TokenError> {
    let Some(claim) = claim else { return Ok(None) };
    // A token that was to name its projects and does not is not one of the tenant's own.
    let list: Option<BTreeSet<String>> =
        match find(claim, claims).ok_or_else(|| TokenError::claim(claim, "is missing"))? {
            Value::String(name) => Some([name.clone()].into()),
            Value::Array(list) => list.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
    let list = list.filter(|list| list.len() <= MAX_NAMES);
    list.map(Some).ok_or_else(|| TokenError::claim(claim, "must be a name, or a list of at most 256"))
}

fn text<'a>(claim: &str, claims: &'a Claims) -> Result<&'a str, TokenError> {
    let value = find(claim, claims).ok_or_else(|| TokenError::claim(claim, "is missing"))?;
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .ok_or_else(|| TokenError::claim(claim, "is no text, or an empty one"))
}

fn find<'a>(claim: &str, claims: &'a Claims) -> Option<&'a Value> {
    let Some(path) = claim.strip_prefix('/') else { return claims.get(claim) };
    let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = claims.get(&first.replace("~1", "/").replace("~0", "~"))?;
    match rest {
        Some(rest) => value.pointer(&format!("/{rest}")),
        None => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Claims {
        value.as_object().unwrap().clone()
    }

    fn trust() -> Trust {
        Trust { audience: vec!["us".into()], ..Trust::new("i", "https://i", Tenants::One(TenantId::new("t"))) }
    }

    #[test]
    fn claims_are_found_by_name_and_by_path() {
        let claims = object(json!({"https://x/y": "a", "b": {"c": ["d"]}, "e/f": {"g": 1}}));
        assert_eq!(find("https://x/y", &claims), Some(&json!("a")));
        assert_eq!(find("/b/c/0", &claims), Some(&json!("d")));
        assert_eq!(find("/e~1f/g", &claims), Some(&json!(1)));
        assert_eq!(find("/b/x", &claims), None);
    }

    #[test]
    fn an_issuer_speaks_for_its_tenants_only() {
        let allowed = vec!["one".into(), "acme-*".into()];
        let trust = Trust { tenants: Tenants::Claimed { claim: "org".into(), allowed }, ..trust() };
        let found = |org: Value| tenant(&trust, &object(json!({"org": org})));
        assert_eq!(found(json!("acme-eu")), Ok(TenantId::new("acme-eu")));
        assert_eq!(found(json!("one")), Ok(TenantId::new("one")));
        for bad in [json!("two"), json!("one "), json!("acme-é"), json!(""), json!(1), json!(["one"]), Value::Null] {
            assert!(found(bad.clone()).is_err(), "{bad}");
        }
        assert!(tenant(&trust, &object(json!({}))).is_err());
    }

    #[test]
    fn a_role_is_one_that_is_known_or_the_one_for_others() {
        let named = ClaimNames { role: Some("groups".into()), ..trust().claims };
        let found =
            |trust: &Trust, groups: Value| role(trust, &object(json!({"groups": groups}))).ok().map(|found| found.0);
        let plain = Trust { claims: named, ..trust() };
        assert_eq!(found(&plain, json!("read-only")), Some(CallerRole::ReadOnly));
        assert_eq!(found(&plain, json!(["staff", "service", "admin"])), Some(CallerRole::Admin));
        assert_eq!((found(&plain, json!("root")), found(&plain, json!({"admin": true}))), (None, None));
        let mapped = Trust { roles: [("staff".to_owned(), CallerRole::Member)].into(), ..plain.clone() };
        assert_eq!(
            (found(&mapped, json!(["staff"])), found(&mapped, json!("owner"))),
            (Some(CallerRole::Member), None)
        );
        let others = Trust { role: Some(CallerRole::ReadOnly), ..mapped };
        assert_eq!(found(&others, json!([])), Some(CallerRole::ReadOnly));
        assert_eq!(role(&trust(), &object(json!({"groups": "owner"}))), Ok((CallerRole::Member, None)));
        let names = role(&others, &object(json!({"groups": ["x", "staff", 1]}))).unwrap().1.unwrap();
        assert_eq!(names, ["staff".to_owned()].into(), "what means nothing here is nobody's to keep");
    }

    #[test]
    fn times_are_checked_with_the_skew_of_clocks() {
        let claims = |value: Value| {
            let mut all = object(json!({"aud": ["them", "us"], "sub": "u"}));
            all.extend(object(value));
            Verified::read(&trust(), &trust().audience, &all)
        };
        let claimed = claims(json!({"exp": 1000.5, "nbf": 500})).unwrap();
        assert_eq!(claimed.check_time(999, 0), Ok(()));
        assert_eq!((claimed.check_time(1000, 0), claimed.check_time(1000, 1)), (Err(TokenError::Expired), Ok(())));
        assert_eq!((claimed.check_time(499, 0), claimed.check_time(499, 1)), (Err(TokenError::NotYet), Ok(())));
        assert_eq!(claims(json!({"exp": 9, "iat": 5})).unwrap().check_time(4, 0), Err(TokenError::NotYet));
        for bad in
            [json!({}), json!({"exp": "9"}), json!({"exp": -1}), json!({"exp": 1e300}), json!({"exp": 9, "nbf": null})]
        {
            assert!(matches!(claims(bad.clone()), Err(TokenError::Claim { .. })), "{bad}");
        }
    }

    #[test]
    fn a_claim_that_makes_no_sense_is_refused() {
        let trust = Trust {
            claims: ClaimNames {
                user: "sub".into(),
                class: Some("class".into()),
                models: Some("models".into()),
                projects: Some("teams".into()),
                role: None,
            },
            ..trust()
        };
        let read = |value: Value| {
            let mut all = object(json!({"aud": "us", "sub": "u", "exp": 9, "models": [], "teams": "web"}));
            all.extend(object(value));
            Verified::read(&trust, &trust.audience, &all)
        };
        let good = read(json!({"class": "batch", "models": "a b"})).unwrap();
        let good = good.claimed;
        assert_eq!((good.class, good.models.as_ref().unwrap().len()), (Some(Class::Batch), 2));
        assert_eq!(good.projects, Some(["web".to_owned()].into()));
        assert_eq!(read(json!({"teams": ["a", "b", "a"]})).unwrap().claimed.projects.as_ref().unwrap().len(), 2);
        for bad in [
            json!({"class": "royal"}),
            json!({"class": ["batch"]}),
            json!({"models": {"a": 1}}),
            json!({"models": [["a"]]}),
            json!({"models": null}),
            json!({"teams": null}),
            json!({"teams": 5}),
            json!({"teams": ["a", 5]}),
            json!({"sub": "a\u{0}b"}),
            json!({"sub": "x".repeat(257)}),
            json!({"sub": ["u"]}),
            json!({"aud": 5}),
            json!({"aud": ["us", 5]}),
            json!({"aud": "US"}),
            json!({"aud": [["us"]]}),
            json!({"aud": []}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
