//! `[auth]`: who else may say who asks, beside the keys of `[[keys]]`.

use super::certificates::CertificateConfig;
use super::login::LoginConfig;
use super::{Config, EgressConfig, keys, quota};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_api::Group;
use tidegate_egress::{AddressPolicy, Network};
use tidegate_identity::{Algorithm, ClaimNames, Tenants, Trust, algorithm};
use tidegate_types::{CallerRole, Class, Quota, TenantId};

/// `[auth]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// Whose bearer tokens are taken.
    pub issuer: Vec<IssuerConfig>,
    /// Whose client certificates are.
    pub certificate: Vec<CertificateConfig>,
    /// How people log in with a browser.
    pub login: Option<LoginConfig>,
}

/// `[[auth.issuer]]`: JWTs of an OpenID provider, or of whoever else publishes keys.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct IssuerConfig {
    /// For logs, metrics, limits and usage, where a key's name would be.
    pub name: String,
    /// `iss` of its tokens, to the letter.
    pub issuer: String,
    /// One of these must be in `aud`.
    pub audience: Vec<String>,
    /// Where its keys are; default: where its discovery document says.
    pub jwks_url: Option<String>,
    /// By which it may sign; default: all with public keys.
    pub algorithms: Option<Vec<String>>,
    /// Networks that are not public and that its documents may be fetched from.
    #[serde(default)]
    pub networks: Vec<String>,
    /// By how much clocks may differ.
    #[serde(default = "a_minute")]
    pub clock_skew_s: u64,
    /// Age at which keys are fetched anew.
    #[serde(default = "ten_minutes")]
    pub jwks_refresh_s: u64,
    /// Age to which keys go on while the issuer is away.
    #[serde(default = "a_day")]
    pub jwks_stale_s: u64,
    /// Time between two fetches, whatever keys tokens name.
    #[serde(default = "ten_seconds")]
    pub jwks_pause_s: u64,
    /// Whose data all of its tokens reach.
    pub tenant: Option<String>,
    /// The tenant's project that all of its tokens are of; default: the tenant's own.
    pub project: Option<String>,
    /// Where `claims.tenant` names the tenant: those that it may name; a `*` at the end stands for anything.
    #[serde(default)]
    pub tenants: Vec<String>,
    /// What roles are called in `claims.role`; default: their names here.
    #[serde(default)]
    pub roles: BTreeMap<String, CallerRole>,
    /// The role of tokens that name none: without `claims.role` member, with it such tokens are refused.
    pub role: Option<CallerRole>,
    /// What its tokens' claims say.
    #[serde(default)]
    pub claims: ClaimsConfig,
    /// `interactive`, `standard` or `batch`, where no claim says it.
    #[serde(default)]
    pub class: Class,
    /// Share of the engine relative to other tenants of the class.
    #[serde(default = "keys::one")]
    pub weight: u32,
    /// The models that its tokens may name; default: all.
    pub models: Option<Vec<String>>,
    /// The plugins whose tools, passages and memories they have; default: all. Guards see their requests in any case.
    pub plugins: Option<Vec<String>>,
    /// The endpoints that they may use; default: all but the administrator's.
    pub endpoints: Option<Vec<String>>,
    /// How much all of its tokens together may ask for.
    #[serde(default)]
    pub limits: Quota,
}

/// `claims` of an issuer: the names of claims; one that starts with a slash is a JSON pointer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ClaimsConfig {
    /// The person or program.
    pub user: String,
    /// The tenant.
    pub tenant: Option<String>,
    /// The class.
    pub class: Option<String>,
    /// The models.
    pub models: Option<String>,
    /// The project, or a list of projects of which each request has one.
    pub project: Option<String>,
    /// The role, or a list in which it is.
    pub role: Option<String>,
}

impl Default for ClaimsConfig {
    fn default() -> Self {
        Self { user: "sub".into(), tenant: None, class: None, models: None, project: None, role: None }
    }
}

fn ten_seconds() -> u64 {
    10
}

fn a_minute() -> u64 {
    60
}

fn ten_minutes() -> u64 {
    600
}

fn a_day() -> u64 {
    24 * 3600
}

impl AuthConfig {
    /// Whether no issuer before it has its name, or is the same.
    pub(super) fn check_issuer_is_one(&self, i: usize) -> anyhow::Result<()> {
        let Some((issuer, before)) = self.issuer.get(..=i).and_then(<[_]>::split_last) else { return Ok(()) };
        if before.iter().any(|other| other.name == issuer.name || other.issuer == issuer.issuer) {
            bail!("two of [[auth.issuer]] have the name `{}` or the same `issuer`", issuer.name);
        }
        Ok(())
    }

    /// Whether no certificate before it has its name, and no issuer.
    pub(super) fn check_certificate_is_one(&self, i: usize) -> anyhow::Result<()> {
        let Some((known, before)) = self.certificate.get(..=i).and_then(<[_]>::split_last) else { return Ok(()) };
        let name = &known.name;
        if before.iter().any(|other| other.name == *name) {
            bail!("two of [[auth.certificate]] have the name `{name}`; limits and usage go by it");
        }
        if self.issuer.iter().any(|issuer| issuer.name == *name) {
            bail!("an issuer and a certificate have the name `{name}`");
        }
        Ok(())
    }

    /// Whether nobody but keys says who asks.
    pub(crate) fn is_empty(&self) -> bool {
        self.issuer.is_empty() && self.certificate.is_empty()
    }

    /// The names that stand where a key's would.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.issuer.iter().map(|issuer| &issuer.name).chain(self.certificate.iter().map(|known| &known.name))
    }

    /// As the verifier of tokens takes them.
    pub(crate) fn trusted(&self, egress: &EgressConfig) -> anyhow::Result<Vec<Trust>> {
        let trust = |issuer: &IssuerConfig| Ok(Trust { extra_roots: egress.roots.clone(), ..issuer.to_trust()? });
        self.issuer.iter().map(trust).collect()
    }
}

impl IssuerConfig {
    pub(super) fn check(&self, config: &Config) -> anyhow::Result<()> {
        if self.name.is_empty() || config.keys.iter().any(|key| key.name == self.name) {
            bail!("limits and usage go by `name`; give it one that no key has");
        }
        if self.weight == 0 {
            bail!("`weight` is 0; the smallest is 1");
        }
        if !self.roles.is_empty() && self.claims.role.is_none() {
            bail!("`roles` are looked up in a claim; name it in `claims.role`");
        }
        if self.name.contains('/') {
            bail!("`name` has a slash, which is between an issuer and a user where both are named");
        }
        match (&self.project, &self.claims.project, &self.tenant) {
            (None, ..) => {}
            (Some(_), Some(_), _) => bail!("it has both `project` and `claims.project`; keep one"),
            (Some(project), None, Some(tenant)) => drop(config.project(tenant, project)?),
            (Some(_), None, None) => {
                bail!("`project` is one of `tenant`; where a claim names the tenant, name a claim in `claims.project`")
            }
        }
        if self.jwks_stale_s < self.jwks_refresh_s {
            bail!("`jwks_stale_s` is less than `jwks_refresh_s`, so that keys would end before they are fetched anew");
        }
        quota::check(&self.limits, &config.limits).context("limits")?;
        keys::check_models(self.models.as_deref(), config)?;
        keys::check_plugins(self.plugins.as_deref(), config)?;
        self.groups()?;
        self.to_trust()?.check().map_err(anyhow::Error::msg)
    }

    /// `endpoints`, as the HTTP side takes it.
    pub(crate) fn groups(&self) -> anyhow::Result<Option<Vec<Group>>> {
        keys::groups(self.endpoints.as_deref())
    }

    fn to_trust(&self) -> anyhow::Result<Trust> {
        let mut trust = Trust::new(&self.name, &self.issuer, self.of_tenants()?);
        let networks = self.networks.iter().map(|text| text.parse::<Network>().map_err(anyhow::Error::msg));
        trust.addresses = AddressPolicy::new(networks.collect::<anyhow::Result<_>>()?);
        if let Some(names) = &self.algorithms {
            trust.algorithms = names.iter().map(|name| known_algorithm(name)).collect::<anyhow::Result<_>>()?;
        }
        trust.audience.clone_from(&self.audience);
        trust.jwks_url.clone_from(&self.jwks_url);
        trust.clock_skew = Duration::from_secs(self.clock_skew_s);
        trust.refresh = Duration::from_secs(self.jwks_refresh_s);
        trust.stale = Duration::from_secs(self.jwks_stale_s);
        trust.pause = Duration::from_secs(self.jwks_pause_s);
        let ClaimsConfig { user, class, models, project: projects, role, tenant: _ } = self.claims.clone();
        trust.claims = ClaimNames { user, class, models, projects, role };
        trust.roles.clone_from(&self.roles);
        trust.role = self.role;
        Ok(trust)
    }

    /// Whether its tokens may be of that tenant.
    pub(crate) fn speaks_for(&self, tenant: &str) -> bool {
        self.of_tenants().is_ok_and(|tenants| tenants.has(tenant))
    }

    /// Whose data its tokens reach.
    pub(crate) fn of_tenants(&self) -> anyhow::Result<Tenants> {
        match (&self.tenant, &self.claims.tenant) {
            (Some(tenant), None) if self.tenants.is_empty() => Ok(Tenants::One(TenantId::new(tenant.as_str()))),
            (None, Some(claim)) => Ok(Tenants::Claimed { claim: claim.clone(), allowed: self.tenants.clone() }),
            _ => bail!("give it `tenant`, whose data all of its tokens reach; or `claims.tenant` and `tenants`"),
        }
    }
}

fn known_algorithm(name: &str) -> anyhow::Result<Algorithm> {
    algorithm(name).with_context(|| {
        format!(
            "`{name}` is no algorithm with a public key; there are: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, \
             EdDSA"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[auth.issuer]]\nname = \"corp\"\nissuer = \"https://i.example\"\naudience = [\"us\"]\n";

    #[test]
    fn an_issuer_without_bounds_is_refused_by_name() {
        let why = |more: &str| format!("{:#}", Config::parse(&format!("{GOOD}{more}")).unwrap_err());
        Config::parse(&format!("{GOOD}tenant = \"t\"")).unwrap();
        Config::parse(&format!("{GOOD}tenants = [\"*\"]\nclaims.tenant = \"org\"")).unwrap();
        for (more, word) in [
            ("", "`tenant`"),
            ("tenant = \"*\"", "the tenant \"*\" is no tenant"),
            ("claims.tenant = \"org\"", "`tenants`"),
            ("tenant = \"t\"\nclaims.tenant = \"org\"", "`tenant`"),
            ("tenant = \"t\"\nalgorithms = [\"HS256\"]", "no algorithm with a public key"),
            ("tenant = \"t\"\nalgorithms = [\"none\"]", "no algorithm with a public key"),
            ("tenant = \"t\"\nalgorithms = []", "empty"),
            ("tenant = \"t\"\njwks_url = \"http://k.example/\"", "https://"),
            ("tenant = \"t\"\nnetworks = [\"ten\"]", "no network"),
            ("tenant = \"t\"\njwks_stale_s = 5", "jwks_stale_s"),
            ("tenant = \"t\"\nmodels = [\"no-such\"]", "no-such"),
            ("tenant = \"t\"\nendpoints = [\"no-such\"]", "no-such"),
            ("tenant = \"t\"\nweight = 0", "weight"),
            ("tenant = \"t\"\nrole = \"root\"", "root"),
            ("tenant = \"t\"\nroles = { x = \"admin\" }", "claims.role"),
            ("tenant = \"t\"\nproject = \"no-such\"", "no-such"),
            ("tenant = \"t\"\nproject = \"x\"\nclaims.project = \"y\"", "keep one"),
            ("tenants = [\"*\"]\nclaims.tenant = \"org\"\nproject = \"x\"", "claims.project"),
            ("tenant = \"t\"\nclaims.usr = \"x\"", "usr"),
        ] {
            assert!(why(more).contains(word), "{more}: {}", why(more));
        }
        let slashed = GOOD.replace("\"corp\"", "\"corp/eu\"");
        assert!(format!("{:#}", Config::parse(&format!("{slashed}tenant = \"t\"")).unwrap_err()).contains("a slash"));
        let none = GOOD.replace("[\"us\"]", "[]");
        let why = format!("{:#}", Config::parse(&format!("{none}tenant = \"t\"")).unwrap_err());
        assert!(why.contains("`audience`"), "{why}");
    }
}
