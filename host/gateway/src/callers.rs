//! Who may ask, from the config: keys, tokens of issuers, and what their tenants may.

use crate::config::{CertificateConfig, Config, IssuerConfig, KeyConfig, LoginConfig, TenantConfig};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidegate_api::{ApiKey, Auth, CertificateGrant, Grant, GrantToken, Group, People};
use tidegate_identity::{Claimed, Issuers};
use tidegate_store::{Db, Sessions};
use tidegate_types::{Caller, Fault, Quota, Reject, RejectKind, Scope, TenantId};

type Tenants = BTreeMap<String, TenantConfig>;

/// All that a config lets in; without a key and an issuer, this machine alone, as the tenant `local`. Who was among
/// `issuers` and did not change goes on with its keys. People log in where there is a database.
pub(crate) fn auth(config: &Config, issuers: &Arc<Issuers>, db: Option<&Db>) -> anyhow::Result<Auth> {
    let local = Caller::local();
    let scope = scope(&config.tenants, &local.tenant, None, &Quota::default());
    let keys = config.keys.iter().map(|key| api_key(config, key)).collect::<anyhow::Result<Vec<_>>>()?;
    let auth = Auth::new(keys, Caller { scope, ..local })?;
    let certificates = config.auth.certificate.iter().map(|known| certificate(config, known));
    let auth = auth.with_certificates(certificates.collect::<anyhow::Result<_>>()?);
    let terms = TokenTerms::new(config)?;
    let issuers = issuers.replaced(config.auth.trusted()?);
    let grant: GrantToken = Arc::new(move |claimed: &Claimed| terms.grant(claimed));
    let people = match (&config.auth.login, db) {
        (Some(login), Some(db)) => Some(people(login, &issuers, db, &grant)?),
        _ => None,
    };
    Ok(auth.with_tokens(issuers, grant).with_people(people))
}

fn people(login: &LoginConfig, issuers: &Issuers, db: &Db, grant: &GrantToken) -> anyhow::Result<People> {
    let terms = login.terms()?;
    let flow = issuers.login(terms).with_context(|| format!("auth.login: there is no issuer `{}`", login.issuer))?;
    Ok(People {
        login: flow,
        sessions: Sessions::new(db.clone()),
        grant: Arc::clone(grant),
        origin: login.origin().to_owned(),
        idle: Duration::from_secs(login.idle_minutes * 60),
        longest: Duration::from_secs(login.longest_minutes * 60),
    })
}

fn api_key(config: &Config, key: &KeyConfig) -> anyhow::Result<ApiKey> {
    let tenant = TenantId::new(key.tenant.as_deref().unwrap_or(&key.name));
    let models = key.models.as_ref().map(|models| models.iter().cloned().collect());
    let scope = scope(&config.tenants, &tenant, models, &key.limits);
    let key_name = key.name.as_str().into();
    let (role, admin) = (key.role(), key.admin);
    let caller = Caller { tenant, key_name, user: None, role, admin, class: key.class, weight: key.weight, scope };
    let expires = key.expires.map(|expiry| expiry.0);
    Ok(ApiKey { hash: key.hash.clone(), caller, endpoints: key.groups()?, expires })
}

fn certificate(config: &Config, known: &CertificateConfig) -> anyhow::Result<CertificateGrant> {
    let tenant = TenantId::new(known.tenant.as_deref().unwrap_or(&known.name));
    let models = known.models.as_ref().map(|models| models.iter().cloned().collect());
    let scope = scope(&config.tenants, &tenant, models, &known.limits);
    let (key_name, role) = (known.name.as_str().into(), known.role);
    let caller =
        Caller { tenant, key_name, user: None, role, admin: false, class: known.class, weight: known.weight, scope };
    let grant = Grant { caller: Arc::new(caller), endpoints: known.groups()? };
    Ok(CertificateGrant { name: known.certificate_name()?, grant })
}

fn scope(tenants: &Tenants, tenant: &TenantId, models: Option<BTreeSet<String>>, key: &Quota) -> Arc<Scope> {
    let tenant = tenants.get(tenant.as_str());
    Arc::new(Scope {
        models,
        key: key.clone(),
        tenant: tenant.map(|tenant| tenant.limits.clone()).unwrap_or_default(),
        user: tenant.map(|tenant| tenant.user_limits.clone()).unwrap_or_default(),
    })
}

/// What the config gives to the tokens of its issuers.
struct TokenTerms {
    issuers: Vec<IssuerTerms>,
    tenants: Tenants,
}

struct IssuerTerms {
    config: IssuerConfig,
    endpoints: Option<Vec<Group>>,
    models: Option<BTreeSet<String>>,
}

impl TokenTerms {
    fn new(config: &Config) -> anyhow::Result<Self> {
        let terms = |issuer: &IssuerConfig| {
            let models = issuer.models.as_ref().map(|models| models.iter().cloned().collect());
            anyhow::Ok(IssuerTerms { config: issuer.clone(), endpoints: issuer.groups()?, models })
        };
        let issuers = config.auth.issuer.iter().map(terms).collect::<anyhow::Result<_>>()?;
        Ok(Self { issuers, tenants: config.tenants.clone() })
    }

    /// Models are those that both the entry and the claim allow; the class is the claim's, where there is one.
    fn grant(&self, claimed: &Claimed) -> Result<Grant, Reject> {
        let terms = self.issuers.iter().find(|terms| *terms.config.name == *claimed.issuer);
        // A login outlives a reload of the config.
        let message = "the issuer that this credential is of is not known here any more";
        let unknown = || Reject::new(RejectKind::Unauthenticated, Fault::Client, message);
        let terms = terms.ok_or_else(unknown)?;
        let models = match (&terms.models, &claimed.models) {
            (Some(may), Some(says)) => Some(may.intersection(says).cloned().collect()),
            (may, says) => may.clone().or_else(|| says.clone()),
        };
        let caller = Caller {
            tenant: claimed.tenant.clone(),
            key_name: Arc::clone(&claimed.issuer),
            user: Some(Arc::clone(&claimed.user)),
            role: claimed.role,
            admin: false,
            class: claimed.class.unwrap_or(terms.config.class),
            weight: terms.config.weight,
            scope: scope(&self.tenants, &claimed.tenant, models, &terms.config.limits),
        };
        Ok(Grant { caller: Arc::new(caller), endpoints: terms.endpoints.clone() })
    }
}
