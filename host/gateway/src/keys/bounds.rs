//! What somebody may do with keys who does not administer the server: with those within reach only, of the own tenant or of
//! the own project, and never so that a key could do what its maker may not. Others' keys are as if they were not there.

use super::{invalid, unknown};
use crate::config::{Config, KeyConfig, project_id};
use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_api::Group;
use tidegate_store::KeptKey;
use tidegate_types::{Act, Caller, CallerRole, Fault, ROUTED_MODEL, Reach, Reject, RejectKind};

/// Whether a key is there for `by`.
pub(super) fn sees(by: &Caller, key: &KeptKey) -> bool {
    by.admin || by.reaches(&key.tenant, settings(key)["project"].as_str())
}

/// Fills in whose the key will be, where `by` can make it for one tenant or one project only.
pub(super) fn complete(by: &Caller, settings: &mut Map<String, Value>) {
    if by.admin {
        return;
    }
    let mut fill = |field: &str, value: &str| {
        settings.entry(field).or_insert_with(|| value.into());
    };
    fill("tenant", by.tenant.as_str());
    if let (Reach::Project, Some(project)) = (by.reach, &by.project) {
        fill("project", project.as_str());
        if !settings.contains_key("role") {
            settings.entry("project_role").or_insert_with(|| CallerRole::default().as_str().into());
        }
    }
}

/// Refuses a new key that `by` may not make.
pub(super) fn check_new(by: &Caller, key: &KeyConfig) -> Result<(), Reject> {
    if by.admin {
        return Ok(());
    }
    if key.tenant.as_deref() != Some(by.tenant.as_str()) || key.admin {
        let field = if key.admin { "admin" } else { "tenant" };
        let message = "only who administers the server makes keys of other tenants or of administrators";
        return Err(forbidden(message.into(), "not_admin").at(field));
    }
    check_place(by, key)?;
    check_role(by, key.project_role.is_some(), key.role().0)?;
    check_reach(by, key)
}

/// Refuses a key that would have the use of more than `by` has, whether it is new or takes another's place: who makes it
/// is the one who holds it.
pub(super) fn check_reach(by: &Caller, key: &KeyConfig) -> Result<(), Reject> {
    if by.admin {
        return Ok(());
    }
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
    if key.endpoints.iter().flatten().any(|name| name == Group::Metrics.as_str()) {
        return Err(too_much("endpoints", "the server's metrics are of all its tenants; leave `metrics` out"));
    }
    if key.class < by.class || key.weight > by.weight {
        return Err(too_much("class", "its `class` and `weight` must not come before your own"));
    }
    Ok(())
}

/// Refuses models and plugins that are not there for `by`: those that nobody has, and of what `by` has `said` here those of
/// others, which look the same. The config's own check would list all that there are.
pub(super) fn check_names(
    by: &Caller,
    settings: &Map<String, Value>,
    said: &Map<String, Value>,
    config: &Config,
) -> Result<(), Reject> {
    if by.admin {
        return Ok(());
    }
    let models = config.model_names().into_iter().chain([ROUTED_MODEL]).collect();
    let pipeline = config.pipeline();
    let plugins = pipeline.iter().flat_map(|pipeline| &pipeline.stage).map(|stage| stage.plugin.as_str()).collect();
    let all: [(_, _, Vec<&str>); 2] = [("models", &by.scope.models, models), ("plugins", &by.scope.plugins, plugins)];
    for (field, allowed, known) in all {
        let own = allowed.as_ref().filter(|_| said.contains_key(field));
        let mut names = settings.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        if let Some(name) = names.find(|name| !known.contains(name) || own.is_some_and(|own| !own.contains(*name))) {
            return Err(invalid(format!("`{field}` has `{name}`, and there is none of that name for you")).at(field));
        }
    }
    Ok(())
}

/// Refuses a key that would be valid past `last`, when the key that makes it ends.
pub(super) fn check_end(last: Option<SystemTime>, key: &KeyConfig) -> Result<(), Reject> {
    match last {
        Some(last) if key.expires.is_none_or(|end| end.0 > last) => {
            let at = last.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            Err(too_much("expires", &format!("its `expires` must be no later than your own key's `expires_at`, {at}")))
        }
        _ => Ok(()),
    }
}

/// Whose the key is, and what it is called: names are shared by all, and one must neither take another's nor find out
/// about it. So what stands behind the last dot is the key's own and what stands before it whose it is, also where one
/// tenant's name begins with another's and a dot.
fn check_place(by: &Caller, key: &KeyConfig) -> Result<(), Reject> {
    let (own, what) = match (by.reach, &by.project) {
        (Reach::Tenant, _) => (by.tenant.as_str(), "tenant"),
        (Reach::Project, Some(project)) => {
            let named = key.project.as_ref().map(|name| project_id(by.tenant.as_str(), name));
            if named.as_ref() != Some(project) {
                let message = "a role in a project makes keys of that project only";
                return Err(forbidden(message.into(), "insufficient_role").at("project"));
            }
            (project.as_str(), "project")
        }
        (Reach::Project, None) => return Err(forbidden("this key is of no project".into(), "insufficient_role")),
    };
    if !key.name.rsplit_once('.').is_some_and(|(whose, word)| whose == own && !word.is_empty()) {
        let message = format!("the names of keys of this {what} are `{own}.` and a word without a dot");
        return Err(Reject::invalid("name", message).code("invalid_value"));
    }
    Ok(())
}

/// Of a key's name, beside whose it is: it is a label of metrics.
const MAX_NAME: usize = 64;

/// Refuses a name that nobody could write or read. Behind its tenant or its project that is asked of the rest alone: what those
/// are called has a rule of its own, and their owners have to begin names so.
pub(super) fn check_name(key: &KeyConfig) -> Result<(), Reject> {
    let project = key.project.as_ref().map(|name| project_id(key.tenant(), name));
    let behind = |whose: &str| key.name.strip_prefix(whose)?.strip_prefix('.');
    let own = behind(key.tenant()).or_else(|| behind(project.as_ref()?.as_str())).unwrap_or(&key.name);
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=MAX_NAME).contains(&own.len()) && own.bytes().all(sane) {
        return Ok(());
    }
    let message = format!(
        "`name` must be 1 to {MAX_NAME} of A-Z, a-z, 0-9, `-`, `_` and `.`; before that may be its tenant or its project's id, \
         and a dot"
    );
    Err(invalid(message).at("name"))
}

/// Refuses to replace or end a key that `by` could not have made.
pub(super) fn check_known(by: &Caller, key: &KeptKey) -> Result<(), Reject> {
    if by.admin {
        return Ok(());
    }
    let settings = settings(key);
    let named = |field: &str| settings.get(field).filter(|role| !role.is_null());
    let in_project = named("project_role");
    let role = match in_project.or_else(|| named("role")) {
        Some(role) => role.as_str().and_then(CallerRole::named),
        None => Some(CallerRole::default()),
    };
    match role {
        _ if !sees(by, key) => Err(unknown(&key.name)),
        Some(role) if settings["admin"] != true => check_role(by, in_project.is_some(), role),
        _ => Err(forbidden("only who administers the server may replace or end this key".into(), "not_admin")),
    }
}

/// Refuses a role that `by` may not give. Who makes keys of a tenant may more than any role in a project of it; a role in
/// the tenant takes a giver with one there.
fn check_role(by: &Caller, in_project: bool, role: CallerRole) -> Result<(), Reject> {
    let may = match by.reach {
        Reach::Project => in_project && by.role.may_give(role),
        Reach::Tenant => by.role.may_give(role) || (in_project && by.role.may(Act::Keys)),
    };
    if may {
        return Ok(());
    }
    let (own, role) = (by.role.as_str(), role.as_str());
    let (field, message) = match (by.reach, in_project) {
        (Reach::Project, true) => (
            "project_role",
            format!("the role `{own}` in a project may not make or end a key of the role `{role}` in it"),
        ),
        (Reach::Project, false) => {
            ("role", "a role in a project makes and ends keys with a `project_role` only".into())
        }
        (Reach::Tenant, _) => ("role", format!("the role `{own}` may not make or end a key of the role `{role}`")),
    };
    Err(forbidden(message, "insufficient_role").at(field))
}

fn settings(key: &KeptKey) -> Value {
    serde_json::from_str(&key.settings).unwrap_or_default()
}

fn too_much(field: &str, remedy: &str) -> Reject {
    forbidden(format!("a key may not do more than who makes it; {remedy}"), "insufficient_permissions").at(field)
}

fn forbidden(message: String, code: &str) -> Reject {
    Reject::new(RejectKind::Forbidden, Fault::Client, message).code(code)
}
