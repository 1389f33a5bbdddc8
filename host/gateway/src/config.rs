//! The config file: one TOML document. Unknown keys are errors that name the nearest key, or all; every key is shown,
//! with its default, in `examples/full/tidegate.toml`, which a test loads. All that is wrong with a config is told at once: next
//! `read.rs`, which reads it, and `checks.rs`, which says what cannot work together.

pub(crate) mod address;
mod at_start;
mod auth;
mod cache;
mod certificates;
mod checks;
mod compute;
#[cfg(test)]
mod default_limits;
mod egress;
mod files;
#[cfg(test)]
mod full_example;
mod grants;
mod keys;
mod login;
mod models;
pub(crate) mod nearest;
mod overrides;
mod pipeline;
mod plugins;
mod prices;
mod projects;
mod quota;
mod read;
mod server;
mod shared;
mod store;
mod streams;
mod tenants;
mod traces;
mod upstream;
mod words;
mod wrong;

pub use auth::{AuthConfig, ClaimsConfig, IssuerConfig};
pub(crate) use cache::variable;
pub use certificates::CertificateConfig;
pub use compute::{BackendConfig, ComputeConfig};
pub use egress::EgressConfig;
pub(crate) use files::Seen;
pub use grants::{GrantsConfig, HttpGrantConfig, TenantConfig};
pub(crate) use pipeline::OWN_NAMES;
pub use pipeline::{BreakerConfig, LimitsConfig, PipelineConfig, StageConfig, WhenConfig};
pub use plugins::{KeptIn, PluginsConfig};

pub(crate) use keys::look_at_loaded_plugins;
pub use keys::{Expiry, KeyConfig};
pub use login::LoginConfig;
pub use models::ModelConfig;
pub use overrides::Overrides;
pub use prices::{CallPriceConfig, PriceConfig};
pub use projects::ProjectConfig;
pub(crate) use projects::{check_member, check_tenant, id as project_id, member_id};
pub use quota::AdmissionConfig;
pub use server::{ClientAuthConfig, ServerConfig, TlsConfig};
pub use shared::SharedConfig;
pub use store::{BudgetConfig, EventsConfig, KafkaConfig, StoreConfig};
pub use streams::StreamsConfig;
pub use traces::TracesConfig;
pub use upstream::{UpstreamBreakerConfig, UpstreamRetryConfig};
pub(crate) use wrong::{Wrong, entry};

use crate::bundled::STARTER_NAME;
use anyhow::Context;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_engine::EngineConfig;

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Listeners and their limits.
    pub server: ServerConfig,
    /// API keys; without any, and without `auth`, only this machine is served.
    pub keys: Vec<KeyConfig>,
    /// Who else may say who asks.
    pub auth: AuthConfig,
    /// Models; none means the bundled starter model.
    pub models: Vec<ModelConfig>,
    /// What the own engine computes on.
    pub compute: ComputeConfig,
    /// The own engine; one of its own for each model.
    pub engine: EngineConfig,
    /// Stages on the path of a request; absent means the bundled pipeline.
    pub pipeline: Option<PipelineConfig>,
    /// Whose plugins are taken, and what they may use together.
    pub plugins: PluginsConfig,
    /// What lasts; absent means that nothing does.
    pub store: Option<StoreConfig>,
    /// What holds for the limits of keys, tenants, users and models.
    pub limits: AdmissionConfig,
    /// What holds wherever others are asked.
    pub egress: EgressConfig,
    /// What is shared with other gateways; absent means nothing.
    pub shared: Option<SharedConfig>,
    /// Where spans of requests go; absent means nowhere.
    pub traces: Option<TracesConfig>,
    /// What differs for some tenants.
    pub tenants: BTreeMap<String, TenantConfig>,
    /// Where compiled plugins and unpacked assets are kept; default: the user's cache folder.
    pub cache_dir: Option<PathBuf>,
    /// The file that it was read from.
    #[serde(skip)]
    pub source: Option<PathBuf>,
    /// What counts in place of some of it.
    #[serde(skip)]
    pub overrides: Overrides,
    /// What that file says, as far as it is of use to say where two differ.
    #[serde(skip)]
    pub(crate) written: Option<Arc<toml::Table>>,
    /// That file, and those that it names.
    #[serde(skip)]
    pub(crate) files: Seen,
    /// What file and overrides said, whatever whoever embeds this program has changed since.
    #[serde(skip)]
    pub(crate) as_read: Option<Arc<Config>>,
    /// The program to run as a worker process; default: this one.
    #[serde(skip)]
    pub worker_program: Option<PathBuf>,
}

impl Config {
    /// Reads a config file. Paths in it are relative to its folder.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        Self::load_with(path, Overrides::default())
    }

    /// The same with some of it overridden.
    pub fn load_with(path: &Path, overrides: Overrides) -> anyhow::Result<Self> {
        Self::load_beside(path, overrides, None)
    }

    /// The same for a server that runs on `running`: what was read from other files at its start goes on.
    pub(crate) fn load_again(path: &Path, running: &Self) -> anyhow::Result<Self> {
        Self::load_beside(path, running.overrides.clone(), Some(running))
    }

    fn load_beside(path: &Path, overrides: Overrides, running: Option<&Self>) -> anyhow::Result<Self> {
        let (config, wrong) = Self::look_beside(path, overrides, running)?;
        wrong.none().with_context(|| named(path))?;
        Ok(config)
    }

    /// As [`Self::load_with`], with all that is wrong beside it: for whoever looks for more of that.
    pub(crate) fn look_at(path: &Path, overrides: Overrides) -> anyhow::Result<(Self, Wrong)> {
        Self::look_beside(path, overrides, None)
    }

    fn look_beside(path: &Path, overrides: Overrides, running: Option<&Self>) -> anyhow::Result<(Self, Wrong)> {
        let files = Seen::of([path.to_owned()]);
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read the config {}", path.display()))?;
        let (mut config, mut wrong) = read::read(&text).with_context(|| named(path))?;
        config.source = Some(path.to_owned());
        config.written = text.parse().ok().map(Arc::new);
        config.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        wrong.look("egress", &[], || config.egress.read(running.map(|running| &running.egress)));
        if let Some(shared) = &mut config.shared {
            shared.read(running.and_then(|running| running.shared.as_ref()));
        }
        config.files = files.with(&config);
        config.override_by(overrides);
        config.look(&mut wrong);
        Ok((config, wrong))
    }

    /// Takes what the command line says, and checks the whole.
    pub fn overridden(mut self, overrides: Overrides) -> anyhow::Result<Self> {
        self.override_by(overrides);
        self.check()?;
        Ok(self)
    }

    fn override_by(&mut self, overrides: Overrides) {
        overrides.apply(self);
        self.overrides = overrides;
        self.as_read = Some(Arc::new(self.clone()));
    }

    /// Parses and checks. Files that it names are not read, so that of those of `egress.ca` and `shared.ca` nothing is known.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let (config, mut wrong) = read::read(text)?;
        config.look(&mut wrong);
        wrong.none()?;
        Ok(config)
    }

    /// Whether callers need no credential, and only this machine is served.
    pub(crate) fn is_open(&self) -> bool {
        self.keys.is_empty() && self.auth.is_empty()
    }

    /// The names of all models; without any in the config, the starter's.
    pub(crate) fn model_names(&self) -> Vec<&str> {
        match &self.models[..] {
            [] => vec![STARTER_NAME],
            models => models.iter().map(|model| model.name.as_str()).collect(),
        }
    }

    fn resolve_paths(&mut self, folder: &Path) {
        for model in &mut self.models {
            if let Some(path) = &mut model.path
                && path != Path::new(BUNDLED)
            {
                *path = folder.join(&*path);
            }
            model.chat_template = model.chat_template.take().map(|file| folder.join(file));
        }
        if let Some(tls) = &mut self.server.tls {
            tls.cert = folder.join(&tls.cert);
            tls.key = folder.join(&tls.key);
            tls.client_ca = tls.client_ca.take().map(|file| folder.join(file));
        }
        self.egress.resolve_paths(folder);
        if let Some(cache) = &mut self.cache_dir {
            *cache = folder.join(&*cache);
        }
        if let Some(store) = &mut self.store {
            store.resolve_paths(folder);
        }
        if let Some(shared) = &mut self.shared {
            shared.resolve_paths(folder);
        }
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.resolve_paths(folder);
        }
    }
}

fn named(path: &Path) -> String {
    format!("in the config {}", path.display())
}

/// The path that means the starter model in the program itself.
pub const BUNDLED: &str = "bundled";

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let why = why("[server]\nlisen = \"127.0.0.1:1\"\n");
        assert!(why.contains("`lisen`") && why.contains("did you mean `listen`?") && why.contains("line 2"), "{why}");
    }

    #[test]
    fn an_unknown_key_that_is_near_none_lists_those_that_are_known() {
        let why = why("[server]\nport = 3\n");
        assert!(why.contains("`port`") && why.contains("`listen`") && !why.contains("did you mean"), "{why}");
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_told_without_rusts_names() {
        for (text, expected) in [
            ("[server]\nmax_inflight = \"x\"\n", "expected a whole number, 0 or more"),
            ("[server]\nmax_inflight = -1\n", "integer `-1`, expected a whole number, 0 or more"),
            ("[server]\nwatch = 1\n", "expected a boolean"),
            ("[store]\nevents = 1\n", "expected a table"),
            ("\n[models]\nname = \"m\"\n", "invalid type: table, expected a list"),
        ] {
            let why = why(text);
            assert!(why.contains("line 2") && why.trim_end().ends_with(expected), "{why}");
        }
    }

    #[test]
    fn a_gpu_is_meant_by_cuda_however_near_a_cpu_is() {
        let why = why("[compute]\nbackend = \"gpu\"\n");
        assert!(why.contains("`gpu`") && why.contains("did you mean `cuda`?") && why.contains("line 2"), "{why}");
    }

    #[test]
    fn a_kind_of_stage_is_named_once() {
        let why = why("[[pipeline.stage]]\nplugin = \"x\"\nstages = [\"memory\", \"observer\", \"memory\"]\n");
        assert!(why.contains("stage `x` names `memory` twice in `stages`"), "{why}");
    }

    #[test]
    fn an_address_that_is_none_is_named_with_one_to_write() {
        let why = why("[server]\nlisten = \"8080\"\n");
        assert!(why.contains("`8080` is no address and port; write it as 127.0.0.1:8080"), "{why}");
        assert!(why.contains("line 2"), "{why}");
    }

    #[test]
    fn an_open_address_needs_keys() {
        assert!(why("[server]\nlisten = \"0.0.0.0:8080\"").contains("tidegate key NAME"));
    }

    #[test]
    fn a_key_is_a_hash() {
        assert!(why("[[keys]]\nname = \"k\"\nhash = \"secret\"").contains("64 hex digits"));
    }
}
