//! What somebody may do with keys who does not administer the server: with those of the own tenant only, and never so that
//! a key could do what its maker may not. Other tenants' keys are for them as if they were not there.

use super::unknown;
use crate::config::KeyConfig;
use serde_json::{Map, Value};
use tidegate_store::KeptKey;
use tidegate_types::{Caller, CallerRole, Fault, Reject, RejectKind};

/// Whether a key is there for `by`.
pub(super) fn sees(by: &Caller, key: &KeptKey) -> bool {
    by.admin || by.tenant.as_str() == key.tenant
}

/// Fills in whose the key will be, where `by` can make it for one tenant only.
pub(super) fn complete(by: &Caller, settings: &mut Map<String, Value>) {
    if !by.admin && !settings.contains_key("tenant") {
        settings.insert("tenant".into(), by.tenant.as_str().into());
    }
}

/// Refuses a new key that `by` may not make.
pub(super) fn check_new(by: &Caller, key: &KeyConfig) -> Result<(), Reject> {
    if by.admin {
        return Ok(());
    }
    let own = by.tenant.as_str();
    if key.tenant.as_deref() != Some(own) || key.admin {
        let field = if key.admin { "admin" } else { "tenant" };
        let message = "only who administers the server makes keys of other tenants or of administrators";
        return Err(forbidden(message.into(), "not_admin").at(field));
    }
    // Names are shared by all tenants: one must neither take another's nor find out about it.
    if !key.name.strip_prefix(own).is_some_and(|rest| rest.len() > 1 && rest.starts_with('.')) {
        let message = format!("the names of keys of this tenant begin with `{own}.`");
        return Err(Reject::invalid("name", message).code("invalid_value"));
    }
    check_role(by, key.role())?;
    if let Some(allowed) = &by.scope.models
        && !key.models.as_ref().is_some_and(|models| models.iter().all(|model| allowed.contains(model)))
    {
        return Err(too_much("models", "name `models`, of those that you may use yourself"));
    }
    if let Some(allowed) = &by.scope.plugins
        && !key.plugins.as_ref().is_some_and(|plugins| plugins.iter().all(|plugin| allowed.contains(plugin)))
    {
        return Err(too_much("plugins", "name `plugins`, of those that you may use yourself"));
    }
    if key.class < by.class || key.weight > by.weight {
        return Err(too_much("class", "its `class` and `weight` must not come before your own"));
    }
    Ok(())
}

/// Refuses to replace or end a key that `by` could not have made.
pub(super) fn check_known(by: &Caller, key: &KeptKey) -> Result<(), Reject> {
    if by.admin {
        return Ok(());
    }
    let settings: Value = serde_json::from_str(&key.settings).unwrap_or_default();
    let role = match settings.get("role") {
        Some(role) => role.as_str().and_then(CallerRole::named),
        None => Some(CallerRole::default()),
    };
    match role {
        _ if !sees(by, key) => Err(unknown(&key.name)),
        Some(role) if settings["admin"] != true => check_role(by, role),
        _ => Err(forbidden("only who administers the server may replace or end this key".into(), "not_admin")),
    }
}

fn check_role(by: &Caller, role: CallerRole) -> Result<(), Reject> {
    if by.role.may_give(role) {
        return Ok(());
    }
    let message = format!("the role `{}` may not make or end a key of the role `{}`", by.role.as_str(), role.as_str());
    Err(forbidden(message, "insufficient_role").at("role"))
}

fn too_much(field: &str, remedy: &str) -> Reject {
    forbidden(format!("a key may not do more than who makes it; {remedy}"), "insufficient_permissions").at(field)
}

fn forbidden(message: String, code: &str) -> Reject {
    Reject::new(RejectKind::Forbidden, Fault::Client, message).code(code)
}
