//! From a config to a running pipeline: the only place that sees every crate.

pub(crate) mod admission;
mod backends;
mod check;
mod models;
mod remarks;
mod stages;
mod tokens;

pub use check::{check, check_file};
pub use models::run_worker;
pub use stages::{HOLDBACK_BYTES, MIN_SCORE, TOP_K};

use crate::bundled;
use crate::config::{Config, ModelConfig, PipelineConfig, StageConfig, Wrong, look_at_loaded_plugins};
use crate::outside::InStore;
use crate::outside::http::PluginHttp;
use crate::outside::models::PluginModels;
use admission::Admission;
use anyhow::{Context, anyhow};
use std::sync::Arc;
use tidegate_ledger::Ledger;
use tidegate_limits::shared::SharedLimits;
use tidegate_pipeline::{Gate, Limits, Pipeline};
use tidegate_sandbox::capability::ModelService;
use tidegate_sandbox::{Sandbox, SandboxConfig};

/// A pipeline, and a line about each of its parts.
pub struct Assembled {
    /// What answers requests.
    pub pipeline: Arc<Pipeline>,
    /// Its `[pipeline]`, with the kinds that its stages were found to be.
    pub(crate) loaded: PipelineConfig,
    /// Where its plugins run.
    pub(crate) plugins: Plugins,
    /// One fact a line: models, backend, plugins in order.
    pub facts: Vec<String>,
}

/// Loads models and plugins; `limits` count what several gateways share, plugins know callers by pseudonyms made with
/// `pseudonym_key`, and keep what they keep in `in_store` where the config says so, or in this process's memory. Blocks for
/// as long as that takes.
pub(crate) fn assemble(
    config: &Config,
    ledger: Option<Arc<Ledger>>,
    limits: Option<Arc<dyn SharedLimits>>,
    pseudonym_key: Option<[u8; 32]>,
    in_store: Option<&InStore>,
) -> anyhow::Result<Assembled> {
    let cache = config.cache_folder();
    let mut facts = Vec::new();
    let models = models::load(config, &cache, &mut facts)?;
    let gate = Gate::new(config.limits.to_gate(), limits);
    let asked = PluginModels { models: models.clone(), gate: gate.clone(), ledger: ledger.clone() };
    let plugins = Plugins::start(config, Arc::new(asked), pseudonym_key, in_store)?;
    let mut wrong = Wrong::default();
    let (stages, loaded) = load_stages(&plugins, config, &|_| {}, &mut facts, &mut wrong)?;
    wrong.none()?;
    let (max_inflight, tools) = (config.server.max_inflight, loaded.tool_limits());
    let limits = Limits { max_inflight, tools, ..Limits::default() };
    let pipeline = Pipeline::new(models, stages.clone(), limits, gate, ledger);
    check_default_route(&pipeline, &stages)?;
    Ok(Assembled { pipeline, loaded, plugins, facts })
}

/// What a model makes is known once it is loaded; of an upstream's nobody here knows.
pub(crate) fn check_default_route(pipeline: &Pipeline, stages: &tidegate_pipeline::Stages) -> anyhow::Result<()> {
    pipeline.check_default_route(stages).map_err(|why| anyhow!("pipeline.default: {}", why.message))
}

/// The plugin host. Clones are the same one: what it runs is bounded together, across reloads.
#[derive(Clone)]
pub(crate) struct Plugins(Sandbox);

impl Plugins {
    fn start(
        config: &Config,
        models: Arc<dyn ModelService>,
        pseudonym_key: Option<[u8; 32]>,
        in_store: Option<&InStore>,
    ) -> anyhow::Result<Self> {
        let world = SandboxConfig {
            cache_dir: Some(config.cache_folder().join("plugins")),
            http: Arc::new(PluginHttp { extra_roots: config.egress.roots.clone() }),
            models,
            pseudonym_key,
            ..SandboxConfig::default()
        };
        let sandbox = Sandbox::new(config.plugins.sandbox(world, in_store));
        Ok(Self(sandbox.context("the plugin host does not start")?))
    }
}

/// Loads the stages of which nothing is wrong so far; one that cannot be loaded stays in its place, and fails there as its `on_error`
/// says. Gives `[pipeline]` too, with the kinds that were found of each. Says of each where it `begins`.
fn load_stages(
    plugins: &Plugins,
    config: &Config,
    begins: &dyn Fn(&StageConfig),
    facts: &mut Vec<String>,
    wrong: &mut Wrong,
) -> anyhow::Result<(tidegate_pipeline::Stages, PipelineConfig)> {
    let mut pipeline = config.pipeline()?.into_owned();
    config.plugins.fit(&mut pipeline);
    let admission = Admission::new(config)?;
    let stages = stages::load(&plugins.0, config, &mut pipeline, &admission, begins, facts, wrong);
    look_at_loaded_plugins(config, &pipeline, wrong);
    facts.extend(admission.fact(config));
    Ok((stages, pipeline))
}

/// Loads the stages; it is an error, which names them all, where some cannot be loaded.
pub(crate) fn load_all_stages(
    plugins: &Plugins,
    config: &Config,
    begins: &dyn Fn(&StageConfig),
    facts: &mut Vec<String>,
) -> anyhow::Result<(tidegate_pipeline::Stages, PipelineConfig)> {
    let mut wrong = Wrong::default();
    let (stages, pipeline) = load_stages(plugins, config, begins, facts, &mut wrong)?;
    stages::look_at_failed(&stages, &mut wrong);
    wrong.none()?;
    Ok((stages, pipeline))
}

/// The configured models; without any, the starter.
fn model_configs(config: &Config) -> Vec<ModelConfig> {
    if config.models.is_empty() {
        return vec![ModelConfig::folder(bundled::STARTER_NAME, crate::config::BUNDLED)];
    }
    config.models.clone()
}
