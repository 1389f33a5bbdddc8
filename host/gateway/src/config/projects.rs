//! `[tenants.NAME.projects.NAME]`: parts of a tenant with limits, a budget and objects of their own.

use super::{BudgetConfig, Config, IssuerConfig, keys, quota};
use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use tidegate_types::{CallerRole, ProjectId, Quota};

/// One project, of the config or made while the server runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectConfig {
    /// For people; default: its name in the config.
    pub name: Option<String>,
    /// How much its keys together may ask for.
    pub limits: Quota,
    /// What its keys together may spend.
    pub budget: Option<BudgetConfig>,
    /// The models that its keys may name, of those that each may; default: all.
    pub models: Option<Vec<String>>,
    /// The plugins whose tools, passages and memories its keys have, of those that each may; default: all.
    pub plugins: Option<Vec<String>>,
    /// Who is in it, by the issuer's name and the user's (`corp/ann`), and what they may do there.
    pub members: BTreeMap<String, CallerRole>,
    /// Nothing of the content of its requests is stored.
    pub zero_retention: bool,
}

/// How a person is named among a project's members.
pub(crate) fn member_id(issuer: &str, user: &str) -> String {
    format!("{issuer}/{user}")
}

/// Bytes of a member's name: of an issuer's name in the config, and of a user's.
const MAX_MEMBER: usize = 384;

/// Refuses who could never be met, as nobody of these issuers. A tenant's people read what it says.
pub(crate) fn check_member<'a>(
    member: &str,
    mut issuers: impl Iterator<Item = &'a IssuerConfig>,
) -> anyhow::Result<()> {
    let Some((issuer, user)) = member.split_once('/').filter(|(_, user)| !user.is_empty()) else {
        bail!(
            "the member {member:?} must be an issuer's name in the config, a slash, and the user as its tokens have it"
        );
    };
    if member.len() > MAX_MEMBER || user.chars().any(char::is_control) {
        bail!("the member {member:?} must have at most {MAX_MEMBER} bytes and no control characters");
    }
    if !issuers.any(|known| known.name == issuer) {
        bail!("the member {member:?} is of an issuer `{issuer}` that is not known here");
    }
    Ok(())
}

/// The issuers of the config, for its operator; a tenant is not told of those of others.
fn known_issuers(config: &Config) -> String {
    let known: Vec<&str> = config.auth.issuer.iter().map(|known| known.name.as_str()).collect();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// Bytes of a project's name.
const MAX_NAME: usize = 128;

impl ProjectConfig {
    pub(crate) fn check(&self, config: &Config) -> anyhow::Result<()> {
        if self.name.as_ref().is_some_and(|name| name.is_empty() || name.len() > MAX_NAME) {
            bail!("`name` must have 1 to {MAX_NAME} bytes");
        }
        quota::check(&self.limits, &config.limits).context("limits")?;
        keys::check_plugins(self.plugins.as_deref(), config)?;
        keys::check_models(self.models.as_deref(), config)
    }
}

/// The id of a tenant's project. Names of the config have no dot, so that the last one tells whose it is; what is made
/// while the server runs has its id as its name.
pub(crate) fn id(tenant: &str, name: &str) -> ProjectId {
    ProjectId::new(name).unwrap_or_else(|| ProjectId::of_tenant(tenant, name))
}

impl Config {
    /// A tenant's project, by its name in the config or its id.
    pub(crate) fn project(&self, tenant: &str, name: &str) -> anyhow::Result<(ProjectId, &ProjectConfig)> {
        let projects = self.tenants.get(tenant).map(|tenant| &tenant.projects);
        let mut all = projects.into_iter().flatten().map(|(known, project)| (known, id(tenant, known), project));
        let found = all.find(|(known, id, _)| *known == name || id.as_str() == name);
        found.map(|(_, id, project)| (id, project)).with_context(|| {
            let known: Vec<&str> = projects.into_iter().flatten().map(|(known, _)| known.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("the tenant `{tenant}` has no project `{name}`; it has: {known}")
        })
    }

    /// The names of tenants and their projects, as this file may have them.
    pub(super) fn check_names(&self) -> Vec<anyhow::Result<()>> {
        vec![self.check_tenants(), self.check_members(), self.check_projects()]
    }

    fn check_tenants(&self) -> anyhow::Result<()> {
        let keys = self.keys.iter().map(|key| key.tenant.as_ref().unwrap_or(&key.name));
        let certificates = self.auth.certificate.iter().map(|known| known.tenant.as_ref().unwrap_or(&known.name));
        // In a list it stands for any.
        let issuers = self
            .auth
            .issuer
            .iter()
            .flat_map(|issuer| issuer.tenant.iter().chain(issuer.tenants.iter().filter(|tenant| *tenant != "*")));
        let mut all = self.tenants.keys().chain(keys).chain(certificates).chain(issuers);
        all.try_for_each(|tenant| check_tenant(tenant))
    }

    fn check_members(&self) -> anyhow::Result<()> {
        for project in self.tenants.values().flat_map(|of| of.projects.values()) {
            for member in project.members.keys() {
                check_member(member, self.auth.issuer.iter())
                    .map_err(|why| anyhow!("{why}; the issuers in [auth] are: {}", known_issuers(self)))?;
            }
        }
        Ok(())
    }

    fn check_projects(&self) -> anyhow::Result<()> {
        for (tenant, name) in self.tenants.iter().flat_map(|(tenant, of)| of.projects.keys().map(move |p| (tenant, p)))
        {
            let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if name.is_empty() || name.len() > 64 || !name.bytes().all(sane) || name.starts_with(ProjectId::PREFIX) {
                bail!(
                    "tenant `{tenant}`: the project `{name}` must be named by 1 to 64 of A-Z, a-z, 0-9, `-` and `_`, and \
                     not begin with `{}`",
                    ProjectId::PREFIX
                );
            }
        }
        Ok(())
    }
}

/// Bytes of a tenant's name: it is in every line of usage, and databases find it by an index.
const MAX_TENANT_BYTES: usize = 256;

/// Checks what a tenant is named; what a token or a request names could look like a project.
pub(crate) fn check_tenant(name: &str) -> anyhow::Result<()> {
    if name.starts_with(ProjectId::PREFIX) {
        bail!("the tenant `{name}`: what begins with `{}` are ids of projects", ProjectId::PREFIX);
    }
    // Of nobody, and of what all share.
    if ["", "*"].contains(&name) {
        bail!("the tenant {name:?} is no tenant: give it a name");
    }
    if name.len() > MAX_TENANT_BYTES || name.chars().any(char::is_control) {
        bail!(
            "a tenant's name has at most {MAX_TENANT_BYTES} bytes and no control characters: {:?} is none",
            shortened(name)
        );
    }
    Ok(())
}

fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(64)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn a_project_is_found_by_its_name_and_its_id_and_is_its_tenants() {
        let config = Config::parse("[tenants.\"a.b\".projects.web]\n[tenants.a.projects.web]\n").unwrap();
        let (id, _) = config.project("a.b", "web").unwrap();
        assert_eq!(id.as_str(), "proj_a.b.web");
        assert_eq!(config.project("a.b", "proj_a.b.web").unwrap().0, id);
        assert_ne!(config.project("a", "web").unwrap().0, id);
        for (tenant, name) in [("a", "proj_a.b.web"), ("a", "other"), ("c", "web"), ("a", "")] {
            assert!(config.project(tenant, name).is_err(), "{tenant} {name}");
        }
    }

    #[test]
    fn what_makes_no_project_is_refused_by_name() {
        let long = format!("[tenants.{}]\n", "x".repeat(257));
        for (text, word) in [
            ("[tenants.proj_x]\n", "`proj_x`"),
            ("[tenants.\"a\\u0000b\"]\n", "no control characters"),
            (long.as_str(), "at most 256 bytes"),
            ("[tenants.a.projects.\"x.y\"]\n", "`x.y`"),
            ("[tenants.a.projects.proj_x]\n", "`proj_x`"),
            ("[tenants.a.projects.web]\nmodels = [\"no-such\"]\n", "no-such"),
            ("[tenants.a.projects.web]\nlimits = { concurrency = 0 }\n", "concurrency"),
            ("[tenants.a.projects.web]\nbudget = { daily = 1.0 }\n", "[store]"),
            ("[tenants.a.projects.web]\nname = \"\"\n", "`name`"),
            ("[tenants.a.projects.web]\nmembers = { ann = \"member\" }\n", "a slash"),
            ("[tenants.a.projects.web]\nmembers = { \"corp/ann\" = \"member\" }\n", "in [auth] are: none"),
            ("[tenants.a.projects.web]\nmembers = { \"corp/ann\" = \"king\" }\n", "king"),
        ] {
            assert!(why(text).contains(word), "{text}: {}", why(text));
        }
        let key = format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{}\"\n", "0".repeat(64));
        let known = "[tenants.k.projects.web]\n";
        Config::parse(&format!("{key}project = \"web\"\n{known}")).unwrap();
        assert!(why(&format!("{key}project = \"shop\"\n{known}")).contains("it has: web"));
        assert!(why(&format!("{key}tenant = \"proj_k\"\n")).contains("ids of projects"));
    }
}
