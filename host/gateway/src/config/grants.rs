//! What a plugin may reach: `[pipeline.stage.grants]`, and what a tenant's calls may: `[tenants.NAME]`.

use super::{AdmissionConfig, BudgetConfig, ProjectConfig, quota, variable};
use crate::outside::http::outlet;
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_egress::EgressError;
use tidegate_sandbox::capability::{self, is_reserved};
use tidegate_sandbox::stage::{Grants, HttpGrant, ModelGrant, SecretGrant, VectorAccess};
use tidegate_types::{Quota, TenantId};

/// Requests of one plugin at once. All instances that may wait for others are fewer, and each sends 16 at once.
const MAX_CONCURRENCY: usize = 1 << 18;
/// A WebAssembly memory has no more.
const MAX_BODY_KIB: usize = 4 << 20;

/// `[pipeline.stage.grants]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct GrantsConfig {
    /// Key-value storage of this size, private to plugin and project, or tenant, in KiB.
    pub kv_kib: Option<u64>,
    /// Read-only folders, by the name that the plugin sees.
    pub documents: BTreeMap<String, PathBuf>,
    /// Requests to exact origins.
    pub http: Option<HttpGrantConfig>,
    /// The plugin sees content and has `http` as well.
    pub content: bool,
    /// Secrets that the host fills into requests, by the plugin's name for it.
    pub secrets: BTreeMap<String, SecretConfig>,
    /// Models that the plugin may ask: its alias, and the model's name.
    pub models: BTreeMap<String, String>,
    /// Vector collections of the project, or tenant.
    pub vectors: BTreeMap<String, VectorAccess>,
    /// Random bytes.
    pub random: bool,
}

/// `http` among the grants.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct HttpGrantConfig {
    /// `scheme://host[:port]`, exact.
    pub origins: Vec<String>,
    /// Networks that are not public and may be reached all the same.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Requests that run at once. Default 512.
    pub concurrency: Option<usize>,
    /// The longest that one request may take. Default 10000.
    pub timeout_ms: Option<u64>,
    /// Of a request's body. Default 1024.
    pub request_kib: Option<usize>,
    /// Of an answer's body; the rest is cut off. Default 1024.
    pub response_kib: Option<usize>,
}

/// One of `secrets` among the grants: where it comes from and where it goes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(from = "SecretForm")]
pub struct SecretConfig {
    /// The environment variable.
    pub env: String,
    /// Those of `http.origins` that it may go to. Default: the one there is.
    pub origins: Vec<String>,
    /// The headers that it may be in. Default: `authorization`, `x-api-key`, `api-key`.
    pub headers: Vec<String>,
}

/// As it may be written: most need no more than the variable.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a secret is an environment variable's name, or `{ env, origins, headers }`")]
enum SecretForm {
    Variable(String),
    Placed(PlacedForm),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacedForm {
    env: String,
    #[serde(default)]
    origins: Vec<String>,
    #[serde(default)]
    headers: Vec<String>,
}

impl From<SecretForm> for SecretConfig {
    fn from(form: SecretForm) -> Self {
        match form {
            SecretForm::Variable(env) => Self { env, origins: Vec::new(), headers: Vec::new() },
            SecretForm::Placed(PlacedForm { env, origins, headers }) => Self { env, origins, headers },
        }
    }
}

impl SecretConfig {
    /// Refuses one of which it is not clear where it may go: a plugin chooses among the origins, and each has its own secrets.
    fn check(&self, name: &str, http: Option<&HttpGrantConfig>) -> anyhow::Result<()> {
        let all = http.map_or(&[][..], |http| &http.origins);
        if let Some(unknown) = self.origins.iter().find(|origin| !all.contains(origin)) {
            anyhow::bail!("secrets.{name}: the origin `{unknown}` is none of http.origins: {}", all.join(", "));
        }
        let one_of_many = all.len() > 1 && self.origins.is_empty();
        let env = &self.env;
        ensure!(
            !one_of_many,
            "secrets.{name}: to which of http.origins may it go? Write {name} = {{ env = \"{env}\", origins = [..] }}; there \
             are: {}",
            all.join(", ")
        );
        let is_name =
            |header: &&String| header.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match self.headers.iter().find(|header| header.is_empty() || !is_name(header) || is_reserved(header)) {
            Some(header) => anyhow::bail!("secrets.{name}: `{header}` is no header that a plugin may send"),
            None => Ok(()),
        }
    }

    /// As the sandbox takes it, with that value; fails where it is nothing that a header can have.
    fn to_grant(&self, name: &str, value: &str) -> anyhow::Result<SecretGrant> {
        let (env, value) = (&self.env, value.trim());
        let fits = !value.is_empty() && value.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
        ensure!(
            fits,
            "the secret `{name}`: ${env} has what no header can have: it is to be printable ASCII, on one line"
        );
        let mut grant = SecretGrant { origins: self.origins.clone(), ..SecretGrant::new(value) };
        if !self.headers.is_empty() {
            grant.headers = self.headers.iter().map(|header| header.to_ascii_lowercase()).collect();
        }
        Ok(grant)
    }
}

/// `[tenants.NAME]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct TenantConfig {
    /// The capabilities that plugins have in this tenant's calls, of those that they are granted; default: all.
    pub plugin_capabilities: Option<BTreeSet<String>>,
    /// What it may spend.
    pub budget: Option<BudgetConfig>,
    /// Nothing of the content of this tenant's requests is stored.
    pub zero_retention: bool,
    /// How much its keys together may ask for.
    pub limits: Quota,
    /// Parts of it, with limits, a budget and objects of their own.
    pub projects: BTreeMap<String, ProjectConfig>,
    /// How much each user may ask for that its callers name, in `safety_identifier` or `user`.
    pub user_limits: Quota,
}

impl TenantConfig {
    /// Looks at it but for its projects.
    pub(super) fn check(&self, name: &str, all: &AdmissionConfig) -> Vec<anyhow::Result<()>> {
        let limited = |limits, what| quota::check(limits, all).with_context(|| format!("tenant `{name}`: {what}"));
        let limits = [(&self.limits, "limits"), (&self.user_limits, "user_limits")];
        limits.map(|(limits, what)| limited(limits, what)).into_iter().chain([self.check_capabilities(name)]).collect()
    }

    fn check_capabilities(&self, name: &str) -> anyhow::Result<()> {
        let is_known = |name: &&String| capability::names().any(|known| known == name.as_str());
        match self.plugin_capabilities.iter().flatten().find(|name| !is_known(name)) {
            Some(unknown) => {
                let known = capability::names().collect::<Vec<_>>().join(", ");
                anyhow::bail!("tenant `{name}`: there is no capability `{unknown}`; there are: {known}")
            }
            None => Ok(()),
        }
    }

    fn withheld(&self) -> BTreeSet<String> {
        let Some(allowed) = &self.plugin_capabilities else { return BTreeSet::new() };
        capability::names().filter(|name| !allowed.contains(*name)).map(str::to_owned).collect()
    }
}

impl GrantsConfig {
    /// Refuses what no request could be made under, or not as large a one as is granted, by a stage whose calls hand over
    /// at most `output_bytes` at once.
    pub(crate) fn check(&self, output_bytes: usize) -> anyhow::Result<()> {
        for (name, secret) in &self.secrets {
            secret.check(name, self.http.as_ref())?;
        }
        let Some(http) = &self.http else { return Ok(()) };
        http.check_origins()?;
        let concurrency = http.concurrency.unwrap_or(1);
        ensure!(
            (1..=MAX_CONCURRENCY).contains(&concurrency),
            "http.concurrency is {concurrency}; it may be 1 to {MAX_CONCURRENCY}"
        );
        ensure!(http.timeout_ms != Some(0), "http.timeout_ms is 0, in which nobody answers; leave it out for 10000");
        for (key, kib) in [("request_kib", http.request_kib), ("response_kib", http.response_kib)] {
            let kib = kib.unwrap_or(0);
            ensure!(kib <= MAX_BODY_KIB, "http.{key} is {kib}; it may be at most {MAX_BODY_KIB}");
        }
        let kib = http.request_kib.unwrap_or(0);
        ensure!(
            kib << 10 <= output_bytes,
            "http.request_kib is {kib}, and one call hands over at most limits.output_bytes = {output_bytes}, with the \
             request's URL and headers; raise that, too"
        );
        Ok(())
    }

    /// As the sandbox takes it; fails where the variable of a secret is not set.
    pub fn to_grants(&self, tenants: &BTreeMap<String, TenantConfig>) -> anyhow::Result<Grants> {
        let value = |name: &str, env: &str| {
            variable(env).with_context(|| format!("the secret `{name}` is to come from ${env}"))
        };
        self.to_grants_with(value, tenants)
    }

    /// The same, where `value` has a secret's value, by its name and its variable.
    pub(crate) fn to_grants_with(
        &self,
        value: impl Fn(&str, &str) -> anyhow::Result<String>,
        tenants: &BTreeMap<String, TenantConfig>,
    ) -> anyhow::Result<Grants> {
        let secret = |(name, secret): (&String, &SecretConfig)| {
            let value = value(name, &secret.env)?;
            Ok((name.clone(), secret.to_grant(name, &value)?))
        };
        let withheld = tenants.iter().map(|(name, tenant)| (TenantId::new(name.as_str()), tenant.withheld()));
        let model = |(alias, model): (&String, &String)| (alias.clone(), ModelGrant { model: model.clone() });
        Ok(Grants {
            kv_bytes: self.kv_kib.map(|kib| kib << 10),
            documents: self.documents.clone(),
            http: self.http.as_ref().map(HttpGrantConfig::to_grant),
            content: self.content,
            secrets: self.secrets.iter().map(secret).collect::<anyhow::Result<_>>()?,
            models: self.models.iter().map(model).collect(),
            vectors: self.vectors.clone(),
            random: self.random,
            withheld: withheld.filter(|(_, names)| !names.is_empty()).collect(),
        })
    }
}

impl HttpGrantConfig {
    /// Each request to an address that is not public and not among `networks` would be refused.
    fn check_origins(&self) -> anyhow::Result<()> {
        // What is no origin or no network is refused when the plugin is loaded, by its name.
        let Ok(outlet) = outlet(&self.to_grant(), Vec::new()) else { return Ok(()) };
        match outlet.check_origins() {
            Err(EgressError::AddressDenied { origin, address }) => anyhow::bail!(
                "http.origins: `{origin}` is at {address}, which no plugin may reach unless it is named: networks = \
                 [\"{address}\"]"
            ),
            _ => Ok(()),
        }
    }

    /// As the sandbox takes it, with the defaults of what is left out.
    pub(crate) fn to_grant(&self) -> HttpGrant {
        let default = HttpGrant::new(self.origins.iter().cloned());
        HttpGrant {
            networks: self.networks.clone(),
            concurrency: self.concurrency.unwrap_or(default.concurrency),
            timeout: self.timeout_ms.map_or(default.timeout, Duration::from_millis),
            request_bytes: self.request_kib.map_or(default.request_bytes, |kib| kib << 10),
            response_bytes: self.response_kib.map_or(default.response_bytes, |kib| kib << 10),
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn http_under_which_every_request_would_fail_is_refused_by_name() {
        let config = |more: &str| {
            let http = format!("{{ origins = [\"https://a.example\"], {more} }}");
            Config::parse(&format!("[[pipeline.stage]]\nplugin = \"x\"\ngrants = {{ http = {http} }}\n"))
        };
        for (more, expected) in [
            ("concurrency = 0", "http.concurrency is 0; it may be 1 to 262144"),
            // More than a semaphore of tokio has: it would panic.
            ("concurrency = 4611686018427387904", "http.concurrency is 4611686018427387904; it may be 1 to 262144"),
            ("timeout_ms = 0", "http.timeout_ms is 0"),
            (
                "request_kib = 2048",
                "http.request_kib is 2048, and one call hands over at most limits.output_bytes = 1048576",
            ),
            ("request_kib = 4194305", "http.request_kib is 4194305; it may be at most 4194304"),
            ("response_kib = 4194305", "http.response_kib is 4194305; it may be at most 4194304"),
        ] {
            let why = format!("{:#}", config(more).unwrap_err());
            assert!(why.contains(expected) && why.contains("stage `x`: grants"), "{more}: {why}");
        }
        config("concurrency = 1, timeout_ms = 1, request_kib = 0, response_kib = 0").unwrap();
        config("concurrency = 262144").unwrap();
    }

    #[test]
    fn an_origin_at_an_address_that_is_not_public_needs_its_network() {
        let config = |http: &str| {
            Config::parse(&format!("[[pipeline.stage]]\nplugin = \"x\"\ngrants = {{ http = {{ {http} }} }}\n"))
        };
        let expected = "http.origins: `http://10.0.0.7:9000` is at 10.0.0.7, which no plugin may reach unless it is named: \
                        networks = [\"10.0.0.7\"]";
        let why = format!("{:#}", config("origins = [\"https://a.example\", \"http://10.0.0.7:9000\"]").unwrap_err());
        assert!(why.contains(expected), "{why}");
        for origin in ["http://localhost", "http://[::1]:9000", "http://[::ffff:169.254.169.254]", "http://0.0.0.0"] {
            let why = format!("{:#}", config(&format!("origins = [\"{origin}\"]")).unwrap_err());
            assert!(why.contains("which no plugin may reach"), "{origin}: {why}");
        }
        config("origins = [\"http://10.0.0.7:9000\"], networks = [\"10.0.0.7\"]").unwrap();
        config("origins = [\"http://localhost:9000\"], networks = [\"127.0.0.1/32\"]").unwrap();
        config("origins = [\"https://a.example\", \"http://8.8.8.8\"]").unwrap();
    }

    #[test]
    fn it_is_said_where_a_secret_goes() {
        let config = |secret: &str| {
            let http = "{ origins = [\"https://a.example\", \"https://b.example\"] }";
            let grants = format!("{{ http = {http}, secrets = {{ key = {secret} }} }}");
            Config::parse(&format!("[[pipeline.stage]]\nplugin = \"x\"\ngrants = {grants}\n"))
        };
        for (secret, expected) in [
            (
                "\"PATH\"",
                "secrets.key: to which of http.origins may it go? Write key = { env = \"PATH\", origins = [..] }",
            ),
            ("{ env = \"PATH\" }", "secrets.key: to which of http.origins may it go?"),
            (
                "{ env = \"PATH\", origins = [\"https://a.example\"], headers = [\"Host\"] }",
                "secrets.key: `Host` is no header that a plugin may send",
            ),
            (
                "{ env = \"PATH\", origins = [\"https://a.example\"], headers = [\"x vendor\"] }",
                "secrets.key: `x vendor` is no header that a plugin may send",
            ),
            (
                "{ env = \"PATH\", origins = [\"https://c.example\"] }",
                "secrets.key: the origin `https://c.example` is none of http.origins: https://a.example, https://b.example",
            ),
        ] {
            let why = format!("{:#}", config(secret).unwrap_err());
            assert!(why.contains(expected) && why.contains("stage `x`: grants"), "{secret}: {why}");
        }
        let misspelt = format!("{:#}", config("{ env = \"PATH\", header = \"x\" }").unwrap_err());
        assert!(
            misspelt.contains("a secret is an environment variable's name, or `{ env, origins, headers }`"),
            "{misspelt}"
        );
        let parsed = config("{ env = \"PATH\", origins = [\"https://b.example\"], headers = [\"X-Vendor\"] }").unwrap();
        let stage = &parsed.pipeline.as_ref().unwrap().stage[0];
        let grants = stage.grants.to_grants(&parsed.tenants).unwrap();
        assert_eq!(
            (&*grants.secrets["key"].origins, &*grants.secrets["key"].headers),
            (&["https://b.example".to_owned()][..], &["x-vendor".to_owned()][..])
        );
    }

    #[test]
    fn a_tenant_goes_without_every_capability_that_it_is_not_given() {
        let withheld = |said: &str| {
            let config = Config::parse(&format!("[tenants.t]\n{said}\n"))?;
            Ok::<_, anyhow::Error>(config.tenants["t"].withheld().into_iter().collect::<Vec<_>>())
        };
        assert!(withheld("").unwrap().is_empty());
        let all: BTreeSet<&str> = capability::names().collect();
        assert!(withheld("plugin_capabilities = []").unwrap().iter().eq(&all));
        let but_kv = ["documents", "http", "models", "random", "secrets", "vectors"];
        assert_eq!(withheld("plugin_capabilities = [\"kv\"]").unwrap(), but_kv);
        let why = format!("{:#}", withheld("plugin_capabilities = [\"files\"]").unwrap_err());
        assert!(why.contains("no capability `files`; there are: kv, documents, secrets, http, models, "), "{why}");
    }
}
