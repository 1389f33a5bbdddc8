//! Who may ask, from the config: keys, and what their tenants may.

use crate::config::{Config, KeyConfig};
use std::sync::Arc;
use tidegate_api::{ApiKey, Auth};
use tidegate_types::{Caller, Quota, Scope, TenantId};

/// All keys of a config; without any, this machine alone, as the tenant `local`.
pub(crate) fn auth(config: &Config) -> anyhow::Result<Auth> {
    let local = Caller::local();
    let scope = scope(config, &local.tenant, None, &Quota::default());
    let keys = config.keys.iter().map(|key| api_key(config, key)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Auth::new(keys, Caller { scope, ..local })?)
}

fn api_key(config: &Config, key: &KeyConfig) -> anyhow::Result<ApiKey> {
    let tenant = TenantId::new(key.tenant.as_deref().unwrap_or(&key.name));
    let scope = scope(config, &tenant, key.models.as_deref(), &key.limits);
    let caller = Caller { tenant, key_name: key.name.as_str().into(), class: key.class, weight: key.weight, scope };
    let expires = key.expires.map(|expiry| expiry.0);
    Ok(ApiKey { hash: key.hash.clone(), caller, endpoints: key.groups()?, expires, admin: key.admin })
}

fn scope(config: &Config, tenant: &TenantId, models: Option<&[String]>, key: &Quota) -> Arc<Scope> {
    let tenant = config.tenants.get(tenant.as_str());
    Arc::new(Scope {
        models: models.map(|models| models.iter().cloned().collect()),
        key: key.clone(),
        tenant: tenant.map(|tenant| tenant.limits.clone()).unwrap_or_default(),
        user: tenant.map(|tenant| tenant.user_limits.clone()).unwrap_or_default(),
    })
}
