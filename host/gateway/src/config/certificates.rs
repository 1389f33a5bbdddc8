//! `[[auth.certificate]]`: who comes with a client certificate.

use super::{Config, keys, quota};
use anyhow::{Context, bail};
use serde::Deserialize;
use tidegate_api::Group;
use tidegate_identity::CertificateName;
use tidegate_types::{CallerRole, Class, Quota, Reach};

/// One certificate, or those with one name.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CertificateConfig {
    /// For logs, metrics, limits and usage, where a key's name would be.
    pub name: String,
    /// A DNS name or an address among the certificate's alternative names.
    pub host: Option<String>,
    /// A URI among them: a SPIFFE id.
    pub uri: Option<String>,
    /// Or the SHA-256 of the whole certificate (DER), in hex.
    pub sha256: Option<String>,
    /// Whose data and share; default: the entry's name.
    pub tenant: Option<String>,
    /// The tenant's project that it is of; default: the tenant's own.
    pub project: Option<String>,
    /// What it may do within its tenant; default: `service`.
    pub role: Option<CallerRole>,
    /// In place of `role`: what it may do in its project, and nowhere else.
    pub project_role: Option<CallerRole>,
    /// `interactive`, `standard` or `batch`.
    #[serde(default)]
    pub class: Class,
    /// Share of the engine relative to other tenants of the class.
    #[serde(default = "keys::one")]
    pub weight: u32,
    /// The models that it may name; default: all.
    pub models: Option<Vec<String>>,
    /// The plugins whose tools, passages and memories it has; default: all. Guards see its requests in any case.
    pub plugins: Option<Vec<String>>,
    /// The endpoints that it may use; default: all but the administrator's.
    pub endpoints: Option<Vec<String>>,
    /// How much it may ask for.
    #[serde(default)]
    pub limits: Quota,
}

impl CertificateConfig {
    /// Whose data and share.
    pub(crate) fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or(&self.name)
    }

    pub(super) fn check(&self, config: &Config) -> anyhow::Result<()> {
        if self.name.is_empty() || config.keys.iter().any(|key| key.name == self.name) {
            bail!("limits and usage go by `name`; give it one that no key has");
        }
        if config.server.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
            bail!("no certificate would be taken without `client_ca` in [server.tls], which names who signs them");
        }
        if let Some(project) = &self.project {
            config.project(self.tenant(), project)?;
        }
        keys::check_roles(self.role, self.project_role, self.project.as_deref())?;
        if self.weight == 0 {
            bail!("`weight` is 0; the smallest is 1");
        }
        quota::check(&self.limits, &config.limits).context("limits")?;
        keys::check_models(self.models.as_deref(), config)?;
        keys::check_plugins(self.plugins.as_deref(), config)?;
        self.groups()?;
        self.certificate_name().map(|_| ())
    }

    /// What it may do, and how far that goes.
    pub(crate) fn role(&self) -> (CallerRole, Reach) {
        keys::role(self.role, self.project_role, CallerRole::default())
    }

    /// `endpoints`, as the HTTP side takes it.
    pub(crate) fn groups(&self) -> anyhow::Result<Option<Vec<Group>>> {
        keys::groups(self.endpoints.as_deref())
    }

    /// Which certificates are meant.
    pub(crate) fn certificate_name(&self) -> anyhow::Result<CertificateName> {
        match (&self.host, &self.uri, &self.sha256) {
            (Some(host), None, None) => CertificateName::host(host)
                .with_context(|| format!("`host` {host:?} is neither a DNS name nor an address")),
            (None, Some(uri), None) if !uri.is_empty() => Ok(CertificateName::Uri(uri.clone())),
            (None, None, Some(digits)) => CertificateName::sha256(digits)
                .context("`sha256` must be 64 hex digits; `openssl x509 -noout -fingerprint -sha256` prints them"),
            _ => bail!("give it one of `host`, `uri` and `sha256`"),
        }
    }
}
