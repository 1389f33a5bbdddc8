//! From a config to a running pipeline: the only place that sees every crate.

mod models;
mod stages;

pub use models::run_worker;

use crate::bundled;
use crate::config::{Config, ModelConfig, PipelineConfig};
use crate::outside::http::PluginHttp;
use crate::outside::models::{KnownModels, PluginModels};
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use tidegate_pipeline::{Limits, Pipeline};
use tidegate_sandbox::capability::ModelService;
use tidegate_sandbox::{Sandbox, SandboxConfig};

/// A pipeline, and a line about each of its parts.
pub struct Assembled {
    /// What answers requests.
    pub pipeline: Arc<Pipeline>,
    /// One fact a line: models, backend, plugins in order.
    pub facts: Vec<String>,
}

/// Loads models and plugins. Blocks for as long as that takes.
pub fn assemble(config: &Config) -> anyhow::Result<Assembled> {
    let cache = config.cache_folder();
    let mut facts = Vec::new();
    let models = models::load(config, &cache, &mut facts)?;
    let service = Arc::new(PluginModels(models.clone()));
    let (stages, pipeline) = load_stages(config, &cache, service, &mut facts)?;
    let limits = Limits { max_inflight: config.server.max_inflight, max_tool_turns: pipeline.max_tool_turns };
    Ok(Assembled { pipeline: Pipeline::new(models, stages, limits), facts })
}

/// Validates a config as `assemble` would, but for the weights: reads the models' configs and loads the
/// plugins. Gives one line for each thing that was checked.
pub fn check(config: &Config) -> anyhow::Result<Vec<String>> {
    let cache = config.cache_folder();
    let mut facts = Vec::new();
    models::check_memory(config)?;
    crate::serve::read_tls(&config.server)?;
    for model in model_configs(config) {
        facts.push(models::check(&model, &cache)?);
    }
    let names = model_configs(config).into_iter().map(|model| model.name).collect();
    let (stages, _) = load_stages(config, &cache, Arc::new(KnownModels(names)), &mut facts)?;
    stages::refuse_failed(&stages)?;
    Ok(facts)
}

fn load_stages(
    config: &Config,
    cache: &Path,
    models: Arc<dyn ModelService>,
    facts: &mut Vec<String>,
) -> anyhow::Result<(tidegate_pipeline::Stages, PipelineConfig)> {
    let sandbox = Sandbox::new(SandboxConfig {
        cache_dir: Some(cache.join("plugins")),
        http: Arc::new(PluginHttp),
        models,
        ..SandboxConfig::default()
    })
    .context("the plugin host does not start")?;
    let pipeline = match &config.pipeline {
        Some(pipeline) => pipeline.clone(),
        None => toml::from_str(bundled::PIPELINE).context("in the bundled pipeline")?,
    };
    let stages = stages::load(&sandbox, &pipeline, &config.tenants, facts)?;
    Ok((stages, pipeline))
}

/// The configured models; without any, the starter.
fn model_configs(config: &Config) -> Vec<ModelConfig> {
    if config.models.is_empty() {
        return vec![ModelConfig::folder(bundled::STARTER_NAME, crate::config::BUNDLED)];
    }
    config.models.clone()
}
