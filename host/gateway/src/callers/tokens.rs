//! What the config gives to the tokens of its issuers, and to the people who log in there: whose they are, in which project,
//! and as what.
//!
//! A token is of its tenant's own project where nothing says another. Its issuer's entry or a claim may say which projects it
//! is for; who is a member of a project may be in that one too. A role as a member counts in place of the token's, in that
//! project alone.

use super::{Names, Own, Tenants, both, scope, set};
use crate::config::{Config, IssuerConfig, ProjectConfig, check_tenant, member_id, project_id};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_api::{Grant, GrantTokens, Group, ProjectChoice, no_project};
use tidegate_identity::{Claimed, named_role};
use tidegate_types::{Caller, CallerRole, Fault, ProjectId, Reach, Reject, RejectKind};

/// What the config gives.
pub(super) struct TokenTerms {
    issuers: Vec<IssuerTerms>,
    tenants: Tenants,
}

struct IssuerTerms {
    config: IssuerConfig,
    speaks_for: tidegate_identity::Tenants,
    endpoints: Option<Vec<Group>>,
    models: Option<Names>,
    plugins: Option<Names>,
}

/// Where a request of a token goes on, and as what.
struct Standing<'a> {
    project: Option<(ProjectId, &'a ProjectConfig)>,
    role: CallerRole,
    reach: Reach,
}

impl TokenTerms {
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let terms = |issuer: &IssuerConfig| {
            let (models, plugins) = (set(issuer.models.as_ref()), set(issuer.plugins.as_ref()));
            let (endpoints, speaks_for) = (issuer.groups()?, issuer.of_tenants()?);
            anyhow::Ok(IssuerTerms { config: issuer.clone(), speaks_for, endpoints, models, plugins })
        };
        let issuers = config.auth.issuer.iter().map(terms).collect::<anyhow::Result<_>>()?;
        Ok(Self { issuers, tenants: config.tenants.clone() })
    }

    fn issuer(&self, claimed: &Claimed) -> Result<&IssuerTerms, Reject> {
        let terms = self.issuers.iter().find(|terms| *terms.config.name == *claimed.issuer);
        // A login outlives a reload of the config.
        let message = "the issuer that this credential is of is not known here any more";
        let terms = terms.ok_or_else(|| Reject::new(RejectKind::Unauthenticated, Fault::Client, message))?;
        if terms.config.claims.project.is_some() && claimed.projects.is_none() {
            return Err(session_over("this login is from before logins said their project"));
        }
        // The tenant was checked when the login was made.
        if !terms.speaks_for.has(claimed.tenant.as_str()) {
            return Err(session_over("the issuer of this login may not speak for its tenant any more"));
        }
        if let Err(why) = check_tenant(claimed.tenant.as_str()) {
            let message = format!("{why}; the token's issuer must name it in another way");
            return Err(Reject::new(RejectKind::Unauthenticated, Fault::Client, message).code("invalid_token"));
        }
        Ok(terms)
    }

    /// Where the request goes on; `None` where the token is for several projects, and none was chosen.
    fn standing(
        &self,
        terms: &IssuerTerms,
        claimed: &Claimed,
        chosen: Option<&str>,
    ) -> Result<Option<Standing<'_>>, Reject> {
        let role = role(terms, claimed)?;
        let own = Standing { project: None, role, reach: Reach::Tenant };
        match (chosen, self.named(terms, claimed)) {
            (None, None) => Ok(Some(own)),
            (Some(chosen), None) if chosen == claimed.tenant.as_str() => Ok(Some(own)),
            (None, Some(named)) => {
                let mut all = named.into_iter();
                match (all.next(), all.next()) {
                    (Some(one), None) => Ok(Some(in_project(claimed, role, one))),
                    (Some(_), Some(_)) => Ok(None),
                    (None, _) => Err(unknown_projects()),
                }
            }
            (Some(chosen), named) => {
                let found = self.find(claimed, chosen).ok_or_else(no_project)?;
                let is_named = named.is_some_and(|named| named.contains_key(&found.0));
                match is_named || found.1.members.contains_key(&member(claimed)) {
                    true => Ok(Some(in_project(claimed, role, found))),
                    false => Err(no_project()),
                }
            }
        }
    }

    /// The projects that the issuer's entry or the token names, of those that there are; `None` where neither says any.
    fn named(&self, terms: &IssuerTerms, claimed: &Claimed) -> Option<BTreeMap<ProjectId, &ProjectConfig>> {
        let find = |name: &String| self.find(claimed, name);
        match (&claimed.projects, &terms.config.project) {
            (Some(names), _) if terms.config.claims.project.is_some() => Some(names.iter().filter_map(find).collect()),
            (_, Some(name)) => Some(find(name).into_iter().collect()),
            (_, None) => None,
        }
    }

    /// A project of the token's tenant, by its id or its name in the config.
    fn find(&self, claimed: &Claimed, name: &str) -> Option<(ProjectId, &ProjectConfig)> {
        let tenant = claimed.tenant.as_str();
        let projects = &self.tenants.get(tenant)?.projects;
        let short = || {
            name.strip_prefix(ProjectId::of_tenant(tenant, "").as_str()).and_then(|name| projects.get_key_value(name))
        };
        let (known, project) = projects.get_key_value(name).or_else(short)?;
        Some((project_id(tenant, known), project))
    }
}

impl GrantTokens for TokenTerms {
    /// Models are those that the entry, the claim and the project allow; the class is the claim's, where there is one.
    fn grant(&self, claimed: &Claimed, project: Option<&str>) -> Result<Option<Grant>, Reject> {
        let terms = self.issuer(claimed)?;
        let Some(Standing { project, role, reach }) = self.standing(terms, claimed, project)? else { return Ok(None) };
        let own = Own {
            models: both(terms.models.clone(), claimed.models.clone()),
            plugins: terms.plugins.clone(),
            limits: &terms.config.limits,
        };
        let (project, settings) = project.unzip();
        let caller = Caller {
            tenant: claimed.tenant.clone(),
            project,
            key_name: Arc::clone(&claimed.issuer),
            user: Some(Arc::clone(&claimed.user)),
            role,
            reach,
            admin: false,
            expires: None,
            class: claimed.class.unwrap_or(terms.config.class),
            weight: terms.config.weight,
            scope: scope(&self.tenants, &claimed.tenant, settings, own),
        };
        Ok(Some(Grant { caller: Arc::new(caller), endpoints: terms.endpoints.clone() }))
    }

    fn projects(&self, claimed: &Claimed) -> Vec<ProjectChoice> {
        let Ok((terms, role)) = self.issuer(claimed).and_then(|terms| Ok((terms, role(terms, claimed)?))) else {
            return Vec::new();
        };
        let (tenant, member) = (claimed.tenant.as_str(), member(claimed));
        let mut open = self.named(terms, claimed).unwrap_or_default();
        let projects = self.tenants.get(tenant).into_iter().flat_map(|tenant| &tenant.projects);
        let joined = projects.filter(|(_, project)| project.members.contains_key(&member));
        open.extend(joined.map(|(name, project)| (project_id(tenant, name), project)));
        let choice = |(id, project): (ProjectId, &ProjectConfig)| ProjectChoice {
            name: project.name.clone().unwrap_or_else(|| short_name(tenant, &id)),
            role: project.members.get(&member).copied().unwrap_or(role),
            id: id.to_string(),
        };
        open.into_iter().map(choice).collect()
    }
}

/// What a token may do within its tenant, by what the config makes now of what it calls its roles.
fn role(terms: &IssuerTerms, claimed: &Claimed) -> Result<CallerRole, Reject> {
    let config = &terms.config;
    if config.claims.role.is_none() {
        return Ok(config.role.unwrap_or(CallerRole::Member));
    }
    let names = claimed.role_names.as_ref();
    let names = names.ok_or_else(|| session_over("this login is from before logins said what their role is called"))?;
    let known = names.iter().filter_map(|name| named_role(&config.roles, name)).min();
    known.or(config.role).ok_or_else(|| session_over("this login names no role that is known here any more"))
}

fn session_over(why: &str) -> Reject {
    let message = format!("{why}; log in again at /auth/login");
    Reject::new(RejectKind::Unauthenticated, Fault::Client, message).code("session_over")
}

fn in_project<'a>(claimed: &Claimed, role: CallerRole, (id, project): (ProjectId, &'a ProjectConfig)) -> Standing<'a> {
    let (role, reach) = match project.members.get(&member(claimed)) {
        Some(role) => (*role, Reach::Project),
        None => (role, Reach::Tenant),
    };
    Standing { project: Some((id, project)), role, reach }
}

fn member(claimed: &Claimed) -> String {
    member_id(&claimed.issuer, &claimed.user)
}

/// What a project without a name for people is called: as in the config.
fn short_name(tenant: &str, id: &ProjectId) -> String {
    let prefix = ProjectId::of_tenant(tenant, "");
    id.as_str().strip_prefix(prefix.as_str()).unwrap_or(id.as_str()).to_owned()
}

/// To a token whose projects are all gone, or were never here.
fn unknown_projects() -> Reject {
    let message = "the projects that this token is for are not known here; its issuer must name one that is";
    Reject::new(RejectKind::Forbidden, Fault::Client, message).code("project_not_found")
}
