//! `[pipeline]` and its stages.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_sandbox::stage::{Grants, Limits, StageKind};

/// `[pipeline]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PipelineConfig {
    /// Turns of one answer in which the model may call the server's tools.
    pub max_tool_turns: u32,
    /// Stages in order.
    pub stage: Vec<StageConfig>,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self { max_tool_turns: 8, stage: Vec::new() }
    }
}

/// `[[pipeline.stage]]`: one plugin.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// A shipped plugin's name; with `file`, any name.
    pub plugin: String,
    /// A component of your own.
    pub file: Option<PathBuf>,
    /// The stages that it runs in; default: all that the component exports.
    pub stages: Option<Vec<StageKindConfig>>,
    /// What its failure means; default: `closed` for guards, `open` for the others.
    pub on_error: Option<OnErrorConfig>,
    /// The plugin's own config.
    #[serde(default)]
    pub config: toml::Table,
    /// What it may reach.
    #[serde(default)]
    pub grants: GrantsConfig,
    /// What it may use up.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// For retrievers and memories: passages for one question.
    pub top_k: Option<u32>,
    /// For retrievers: passages that score lower are left out.
    pub min_score: Option<f32>,
    /// For output guards: what they do about streams. Default `hold`.
    pub streamed: Option<StreamedConfig>,
    /// When the plugin is left out because it keeps failing.
    #[serde(default)]
    pub breaker: BreakerConfig,
}

/// `streamed`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum StreamedConfig {
    /// A stream is held until the guard has decided on all of it.
    Hold,
    /// A stream passes, and the guard is not asked.
    Pass,
}

/// `[pipeline.stage.breaker]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Failures of one tenant's calls that take the plugin out for that tenant; 0 for never.
    pub failures: usize,
    /// ... within this time.
    pub within_ms: u64,
    /// For how long.
    pub pause_ms: u64,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, within_ms: 10_000, pause_ms: 10_000 }
    }
}

/// A kind of stage.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum StageKindConfig {
    /// Decides on prompts, retrieved text and tool results.
    PromptGuard,
    /// Decides on generated text.
    StreamGuard,
    /// Orders the models for a request that asks for `auto`.
    Router,
    /// Brings tools.
    ToolProvider,
    /// Brings passages.
    Retriever,
    /// Decides on whole answers.
    OutputGuard,
    /// Remembers callers between conversations.
    Memory,
    /// Is told how requests ended.
    Observer,
}

impl From<StageKindConfig> for StageKind {
    fn from(kind: StageKindConfig) -> Self {
        match kind {
            StageKindConfig::PromptGuard => Self::PromptGuard,
            StageKindConfig::StreamGuard => Self::StreamGuard,
            StageKindConfig::Router => Self::Router,
            StageKindConfig::ToolProvider => Self::ToolProvider,
            StageKindConfig::Retriever => Self::Retriever,
            StageKindConfig::OutputGuard => Self::OutputGuard,
            StageKindConfig::Memory => Self::Memory,
            StageKindConfig::Observer => Self::Observer,
        }
    }
}

/// `on_error`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OnErrorConfig {
    /// The request ends with an error.
    Closed,
    /// The request goes on; logged and counted.
    Open,
    /// The request goes on; counted.
    Skip,
}

/// `[pipeline.stage.grants]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct GrantsConfig {
    /// Key-value storage of this size, private to plugin and tenant, in KiB.
    pub kv_kib: Option<u64>,
    /// Read-only folders, by the name that the plugin sees.
    pub documents: BTreeMap<String, PathBuf>,
    /// Random bytes.
    pub random: bool,
}

/// `[pipeline.stage.limits]`; what is absent takes the default.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Memory of one instance, in MiB. Default 64.
    pub memory_mib: Option<usize>,
    /// CPU time of one call. Default 100.
    pub cpu_ms: Option<u64>,
    /// Wall time of one call. Default 1000; for stream guards 250.
    pub wall_ms: Option<u64>,
    /// Bytes of one result. Default 1 MiB.
    pub output_bytes: Option<usize>,
    /// Log bytes of one call. Default 16 KiB.
    pub log_bytes: Option<usize>,
    /// Live instances of one tenant. Default 8.
    pub instances: Option<usize>,
    /// Bytes that a stream guard may withhold. Default 512.
    pub holdback_bytes: Option<usize>,
}

impl PipelineConfig {
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        for stage in &mut self.stage {
            if let Some(file) = &mut stage.file {
                *file = folder.join(&*file);
            }
            for mount in stage.grants.documents.values_mut() {
                *mount = folder.join(&*mount);
            }
        }
    }
}

impl GrantsConfig {
    /// As the sandbox takes it.
    pub fn to_grants(&self) -> Grants {
        Grants {
            kv_bytes: self.kv_kib.map(|kib| kib << 10),
            documents: self.documents.clone(),
            random: self.random,
            ..Grants::default()
        }
    }
}

impl LimitsConfig {
    /// As the sandbox takes it.
    pub fn to_limits(&self) -> Limits {
        let default = Limits::default();
        Limits {
            memory_bytes: self.memory_mib.map_or(default.memory_bytes, |mib| mib << 20),
            cpu: self.cpu_ms.map_or(default.cpu, Duration::from_millis),
            wall: self.wall_ms.map_or(default.wall, Duration::from_millis),
            output_bytes: self.output_bytes.unwrap_or(default.output_bytes),
            log_bytes: self.log_bytes.unwrap_or(default.log_bytes),
            instances: self.instances.unwrap_or(default.instances),
        }
    }
}
