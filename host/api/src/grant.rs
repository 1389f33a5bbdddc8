//! What a credential is for: who asks with it, and what its endpoints and its role let it do.

use crate::credential;
use crate::routes::{Access, Group, Route};
use crate::session::Session;
use metrics::counter;
use serde::Serialize;
use std::sync::Arc;
use tidegate_identity::{CertificateName, Claimed};
use tidegate_types::{Act, Caller, CallerRole, Fault, Reach, Reject, RejectKind};

/// Who asks with a credential, and what it is for.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Who asks.
    pub caller: Arc<Caller>,
    /// The endpoints that it may use; `None` for all but the administrator's and the metrics.
    pub endpoints: Option<Vec<Group>>,
}

/// Client certificates, and who comes with them.
#[derive(Clone, Debug)]
pub struct CertificateGrant {
    /// Which.
    pub name: CertificateName,
    /// Who comes with one of these.
    pub grant: Grant,
}

/// What the claims of tokens let their senders do.
pub trait GrantTokens: Send + Sync {
    /// What a token is for, in the project of that id; `None` where it is for several projects, and none was chosen. A
    /// refusal says what is wrong with it; a project that is not one of its own is refused as one that never was
    /// ([`no_project`]).
    fn grant(&self, claimed: &Claimed, project: Option<&str>) -> Result<Option<Grant>, Reject>;

    /// The projects that its person may choose from.
    fn projects(&self, claimed: &Claimed) -> Vec<ProjectChoice>;
}

/// A project that somebody may be in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProjectChoice {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// What they may do there.
    pub role: CallerRole,
}

/// Refuses a project that is not there for who asks: another's, or one that never was.
pub fn no_project() -> Reject {
    let message =
        "there is no such project for this caller; leave `OpenAI-Project` out, or give it the id of one of yours";
    Reject::new(RejectKind::Forbidden, Fault::Client, message).code("project_not_found")
}

/// Refuses to guess.
pub(crate) fn choose_project(tokens: &dyn GrantTokens, claimed: &Claimed) -> Reject {
    let ids: Vec<String> = tokens.projects(claimed).into_iter().map(|choice| choice.id).collect();
    let message =
        format!("this token is for several projects; name one in the header `OpenAI-Project`: {}", ids.join(", "));
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("project_required")
}

/// The first that there is; all must be of one tenant, and so must be a login that lets nobody in: why it does not is said
/// where nothing else does.
pub(crate) fn agreed<const N: usize>(grants: [Option<Grant>; N], session: Option<Session>) -> Result<Grant, Reject> {
    let (tenant, refused) = session.map_or((None, None), |session| (session.tenant, session.grant.err()));
    let mut grants = grants.into_iter().flatten();
    let Some(first) = grants.next() else { return Err(refused.map_or_else(credential::missing, |why| *why)) };
    if grants.map(|other| other.caller.tenant.clone()).chain(tenant).any(|other| other != first.caller.tenant) {
        return Err(credential::different_tenants());
    }
    Ok(first)
}

impl Grant {
    /// Refuses another project than the credential's own.
    pub(crate) fn check_project(&self, chosen: Option<&str>) -> Result<(), Reject> {
        match chosen {
            Some(chosen) if chosen != self.caller.owner().as_str() => Err(no_project()),
            _ => Ok(()),
        }
    }

    /// Refuses what the credential is not for.
    pub(crate) fn check(&self, route: &Route) -> Result<(), Reject> {
        let (Access::Keyed(_, act) | Access::Admin(act)) = route.access else { return Ok(()) };
        match route.access {
            Access::Admin(_) if self.caller.admin => return Ok(()),
            Access::Keyed(group, _) if self.endpoints.as_ref().is_some_and(|groups| !groups.contains(&group)) => {
                return Err(self.not_among_endpoints(route, group));
            }
            Access::Keyed(Group::Metrics, _) if self.caller.admin || self.endpoints.is_some() => return Ok(()),
            Access::Keyed(Group::Metrics, _) => {
                let message = "the server's metrics are of all its tenants; they are for administrators, and for keys \
                               that name `metrics` among the `endpoints` of their entry in the config";
                return Err(denied("endpoint", message.into(), "not_admin"));
            }
            Access::Admin(_) if act == Act::Operate || self.endpoints.is_some() => {
                let message = "this caller may not administer the server; set `admin = true` on the entry of a key in the \
                               config";
                return Err(denied("admin", message.into(), "not_admin"));
            }
            _ => {}
        }
        if self.caller.may(act) {
            return Ok(());
        }
        let (role, method, path) = (self.caller.role.as_str(), &route.method, route.path);
        let message = match self.caller.reach {
            Reach::Tenant => format!("the role `{role}` may not use {method} {path}; its owner can give you another"),
            Reach::Project => {
                format!("the role `{role}` in a project may not use {method} {path}; its owner can give you another")
            }
        };
        Err(denied("role", message, "insufficient_role"))
    }

    fn not_among_endpoints(&self, route: &Route, group: Group) -> Reject {
        let message = format!(
            "this key may not use {} {}; name `{}` among the `endpoints` of its entry in the config",
            route.method,
            route.path,
            group.as_str()
        );
        denied("endpoint", message, "insufficient_permissions")
    }
}

fn denied(reason: &'static str, message: String, code: &str) -> Reject {
    counter!("tidegate_scope_denials_total", "reason" => reason).increment(1);
    Reject::new(RejectKind::Forbidden, Fault::Client, message).code(code)
}
