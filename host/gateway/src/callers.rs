//! Who may ask, from the config: keys, certificates, and what their tenants may; tokens are in `callers/tokens.rs`.

mod tokens;

use crate::config::{CertificateConfig, Config, KeyConfig, LoginConfig, ProjectConfig, TenantConfig};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidegate_api::{ApiKey, Auth, CertificateGrant, Grant, GrantTokens, People};
use tidegate_identity::Issuers;
use tidegate_store::{Db, Sessions};
use tidegate_types::{Caller, ProjectId, Quota, Retention, Scope, TenantId};
use tokens::TokenTerms;

type Tenants = BTreeMap<String, TenantConfig>;

/// All that a config lets in; without a key and an issuer, this machine alone, as the tenant `local`. Who was among
/// `issuers` and did not change goes on with its keys. People log in where there is a database.
pub(crate) fn auth(config: &Config, issuers: &Arc<Issuers>, db: Option<&Db>) -> anyhow::Result<Auth> {
    let local = Caller::local();
    let limits = Quota::default();
    let scope = scope(&config.tenants, &local.tenant, None, Own { models: None, plugins: None, limits: &limits });
    let auth = Auth::new(keys(config)?, Caller { scope, ..local })?;
    let certificates = config.auth.certificate.iter().map(|known| certificate(config, known));
    let auth = auth.with_certificates(certificates.collect::<anyhow::Result<_>>()?);
    let grants: Arc<dyn GrantTokens> = Arc::new(TokenTerms::new(config)?);
    let issuers = issuers.replaced(config.auth.trusted(&config.egress)?);
    let people = match (&config.auth.login, db) {
        (Some(login), Some(db)) => Some(people(login, &issuers, db, &grants)?),
        _ => None,
    };
    Ok(auth.with_tokens(issuers, grants).with_people(people))
}

/// The keys of a config, with who asks with them.
pub(crate) fn keys(config: &Config) -> anyhow::Result<Vec<ApiKey>> {
    config.keys.iter().map(|key| api_key(config, key)).collect()
}

fn people(login: &LoginConfig, issuers: &Issuers, db: &Db, grants: &Arc<dyn GrantTokens>) -> anyhow::Result<People> {
    let terms = login.terms()?;
    let flow = issuers.login(terms).with_context(|| format!("auth.login: there is no issuer `{}`", login.issuer))?;
    Ok(People {
        login: flow,
        sessions: Sessions::new(db.clone()),
        grants: Arc::clone(grants),
        origin: login.origin().to_owned(),
        idle: Duration::from_secs(login.idle_minutes.saturating_mul(60)),
        longest: Duration::from_secs(login.longest_minutes.saturating_mul(60)),
    })
}

fn api_key(config: &Config, key: &KeyConfig) -> anyhow::Result<ApiKey> {
    let own = Own { models: set(key.models.as_ref()), plugins: set(key.plugins.as_ref()), limits: &key.limits };
    let place = Place::new(config, key.tenant(), key.project.as_deref(), own)?;
    let ((role, reach), admin, expires) = (key.role(), key.admin, key.expires.map(|expiry| expiry.0));
    let caller =
        Caller { role, reach, admin, expires, class: key.class, weight: key.weight, ..place.caller(&key.name) };
    Ok(ApiKey { hash: key.hash.clone(), caller, endpoints: key.groups()?, expires })
}

fn certificate(config: &Config, known: &CertificateConfig) -> anyhow::Result<CertificateGrant> {
    let own = Own { models: set(known.models.as_ref()), plugins: set(known.plugins.as_ref()), limits: &known.limits };
    let place = Place::new(config, known.tenant(), known.project.as_deref(), own)?;
    let ((role, reach), class, weight) = (known.role(), known.class, known.weight);
    let caller = Caller { role, reach, admin: false, class, weight, ..place.caller(&known.name) };
    let grant = Grant { caller: Arc::new(caller), endpoints: known.groups()? };
    Ok(CertificateGrant { name: known.certificate_name()?, grant })
}

/// Where a credential belongs, and what it may there.
struct Place {
    tenant: TenantId,
    project: Option<ProjectId>,
    scope: Arc<Scope>,
}

impl Place {
    fn new(config: &Config, tenant: &str, project: Option<&str>, own: Own<'_>) -> anyhow::Result<Self> {
        let (tenant, found) = (TenantId::new(tenant), project.map(|project| config.project(tenant, project)));
        let (project, settings) = found.transpose()?.unzip();
        let scope = scope(&config.tenants, &tenant, settings, own);
        Ok(Self { tenant, project, scope })
    }

    fn caller(self, name: &str) -> Caller {
        let Self { tenant, project, scope } = self;
        Caller { tenant, project, scope, key_name: name.into(), ..Caller::nobody() }
    }
}

/// What the entry of a credential says of it.
struct Own<'a> {
    models: Option<Names>,
    plugins: Option<Names>,
    limits: &'a Quota,
}

type Names = BTreeSet<String>;

fn set(names: Option<&Vec<String>>) -> Option<Names> {
    names.map(|names| names.iter().cloned().collect())
}

/// What both allow; nothing said allows all.
fn both(own: Option<Names>, other: Option<Names>) -> Option<Names> {
    match (own, other) {
        (Some(own), Some(other)) => Some(own.intersection(&other).cloned().collect()),
        (own, other) => own.or(other),
    }
}

/// Models and plugins are those that both the credential and its project allow; nothing is kept where the tenant or the
/// project says so.
fn scope(tenants: &Tenants, tenant: &TenantId, project: Option<&ProjectConfig>, own: Own<'_>) -> Arc<Scope> {
    let tenant = tenants.get(tenant.as_str());
    let zero = tenant.is_some_and(|tenant| tenant.zero_retention) || project.is_some_and(|of| of.zero_retention);
    Arc::new(Scope {
        models: both(own.models, set(project.and_then(|project| project.models.as_ref()))),
        plugins: both(own.plugins, set(project.and_then(|project| project.plugins.as_ref()))),
        key: own.limits.clone(),
        project: project.map(|project| project.limits.clone()).unwrap_or_default(),
        tenant: tenant.map(|tenant| tenant.limits.clone()).unwrap_or_default(),
        user: tenant.map(|tenant| tenant.user_limits.clone()).unwrap_or_default(),
        retention: if zero { Retention::Nothing } else { Retention::Kept },
    })
}
