//! Who asks. Every job, cache key, plugin pool, metric and record carries this from the first day.

use crate::quota::Scope;
use crate::role::{Act, CallerRole, Reach};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// The unit of isolation: prefix-cache keys, plugin pools and fair share are per tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// Wraps a tenant's name from the config.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The tenant's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A project of a tenant, by its id. Ids are of the whole server: no other project has it, and no tenant is named so,
/// since they begin with [`ProjectId::PREFIX`] and no tenant's name may.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProjectId(TenantId);

impl ProjectId {
    /// What every project's id begins with, and no tenant's name.
    pub const PREFIX: &str = "proj_";

    /// Wraps an id, which must begin with [`ProjectId::PREFIX`].
    pub fn new(id: &str) -> Option<Self> {
        id.starts_with(Self::PREFIX).then(|| Self(TenantId::new(id)))
    }

    /// The id of a tenant's project that has a name within it; no two have the same where names have no dot.
    pub fn of_tenant(tenant: &str, name: &str) -> Self {
        Self(TenantId::new(format!("{}{tenant}.{name}", Self::PREFIX)))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Priority class; a better class is scheduled first. `Interactive < Standard < Batch` in urgency order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A person waits.
    Interactive,
    /// The default.
    #[default]
    Standard,
    /// Nobody waits; yields to all others.
    Batch,
}

impl Class {
    /// The word for it in the config, the log and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }
}

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Whose data and share this is.
    pub tenant: TenantId,
    /// The tenant's project that the credential is of; `None` for the tenant's own, which needs no entry anywhere.
    pub project: Option<ProjectId>,
    /// The name of the API key that was used, or of the issuer whose token it was; `"local"` when neither is configured.
    pub key_name: Arc<str>,
    /// The person or program that a token names; a key alone names none.
    pub user: Option<Arc<str>>,
    /// What it may do, as far as `reach` goes.
    pub role: CallerRole,
    /// Whether its role is one in its tenant or in its project alone.
    pub reach: Reach,
    /// It administers the server.
    pub admin: bool,
    /// When its key ends, if that is a key with an end.
    pub expires: Option<SystemTime>,
    /// Priority class.
    pub class: Class,
    /// Share of the engine relative to other tenants of the class, at least 1.
    pub weight: u32,
    /// What it may, and how much.
    pub scope: Arc<Scope>,
}

impl Caller {
    /// Whose it is what this caller makes and finds: its project's, by an id that no other project or tenant has. What
    /// lasts (conversations, responses, streams, what plugins keep) goes by this; shares, limits and budgets of the tenant
    /// by the tenant.
    pub fn owner(&self) -> &TenantId {
        self.project.as_ref().map_or(&self.tenant, |project| &project.0)
    }

    /// Whether its role lets it do that, in its tenant or in its project. Administrators of the server are not asked here.
    pub fn may(&self, act: Act) -> bool {
        self.role.may_within(self.reach, act)
    }

    /// Whether something of a tenant is within its reach: of the whole tenant's, or of its own project alone.
    pub fn reaches(&self, tenant: &str, project: Option<&str>) -> bool {
        let own = || project.is_some() && project == self.project.as_ref().map(ProjectId::as_str);
        self.tenant.as_str() == tenant && (self.reach == Reach::Tenant || own())
    }

    /// Whom something that is kept is from: the key, or the person behind an issuer's token.
    pub fn name(&self) -> String {
        match &self.user {
            Some(user) => format!("{}/{user}", self.key_name),
            None => self.key_name.to_string(),
        }
    }

    /// Who asks for what anybody may have.
    pub fn nobody() -> Self {
        Self { role: CallerRole::ReadOnly, admin: false, ..Self::local() }
    }

    /// The caller of a gateway that has no keys (loopback only).
    pub fn local() -> Self {
        Self {
            tenant: TenantId::new("local"),
            project: None,
            key_name: "local".into(),
            user: None,
            role: CallerRole::Owner,
            reach: Reach::Tenant,
            admin: true,
            expires: None,
            class: Class::default(),
            weight: 1,
            scope: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_one_word() {
        for class in [Class::Interactive, Class::Standard, Class::Batch] {
            assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
        }
    }

    #[test]
    fn no_project_owns_what_another_or_a_tenant_does() {
        assert_eq!(ProjectId::new("acme"), None);
        let project = |id: &str| Caller { project: ProjectId::new(id), ..Caller::local() };
        assert_eq!(Caller::local().owner().as_str(), "local");
        assert_ne!(project("proj_a").owner(), project("proj_b").owner());
        assert_ne!(project("proj_a").owner(), Caller::local().owner());
    }

    #[test]
    fn a_role_in_a_project_reaches_that_project_only() {
        let of_tenant = Caller { project: ProjectId::new("proj_a"), ..Caller::local() };
        let of_project = Caller { reach: Reach::Project, ..of_tenant.clone() };
        for (project, whole, part) in [(None, true, false), (Some("proj_a"), true, true), (Some("proj_b"), true, false)]
        {
            assert_eq!((of_tenant.reaches("local", project), of_project.reaches("local", project)), (whole, part));
            assert!(!of_tenant.reaches("other", project) && !of_project.reaches("other", project));
        }
        assert!(!Caller { project: None, ..of_project.clone() }.reaches("local", None));
        assert!(of_project.may(Act::Keys) && !of_project.may(Act::Projects) && of_tenant.may(Act::Projects));
    }
}
