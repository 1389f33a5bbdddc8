//! `[pipeline]` and its stages.

use super::Config;
use super::grants::GrantsConfig;
use super::prices::CallPriceConfig;
use crate::artifact::reference::{PlaceName, Reference};
use crate::bundled;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_pipeline::{OnError, ToolLimits, WhenStreamed};
use tidegate_sandbox::Snapshot;
use tidegate_sandbox::stage::{Limits, StageKind};

/// `[pipeline]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PipelineConfig {
    /// Turns of one answer in which the model may call the server's tools; 0 offers it none.
    pub max_tool_turns: u32,
    /// Bytes that the server's tools may say for one answer, in all its turns.
    pub max_tool_bytes: usize,
    /// Models that answer requests to `auto` where no router has an opinion, best first; without it all models, in the order
    /// of their entries. Routers are offered these first, and the others behind.
    pub default: Vec<String>,
    /// Stages in order.
    pub stage: Vec<StageConfig>,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        let ToolLimits { max_turns, max_bytes } = ToolLimits::default();
        Self { max_tool_turns: max_turns, max_tool_bytes: max_bytes, default: Vec::new(), stage: Vec::new() }
    }
}

/// `[[pipeline.stage]]`: one plugin.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// A shipped plugin's name; with `file` or `source`, any name of ASCII letters, digits and signs but `/`.
    pub plugin: String,
    /// A component of your own, or the folder of a packed plugin.
    pub file: Option<PathBuf>,
    /// `file` as the config writes it, before it counts from the config's folder: what the lock knows it by.
    #[serde(skip)]
    pub written: Option<PathBuf>,
    /// A packed plugin in a registry, `oci://HOST/REPOSITORY:TAG`; `tidegate plugin lock` fetches and pins it.
    pub source: Option<String>,
    /// The stages that it runs in; default: all that the component exports.
    pub stages: Option<Vec<StageKind>>,
    /// What its failure means; default: `closed` for guards, `open` for the others.
    pub on_error: Option<OnError>,
    /// The plugin's own config.
    #[serde(default)]
    pub config: toml::Table,
    /// What it may reach.
    #[serde(default)]
    pub grants: GrantsConfig,
    /// What it may use up.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// For tool providers and retrievers: what a call costs; absent means nothing.
    pub price: Option<CallPriceConfig>,
    /// For retrievers and memories: passages for one question.
    pub top_k: Option<u32>,
    /// For retrievers: passages that score lower are left out.
    pub min_score: Option<f32>,
    /// All tenants share the plugin's instances; for plugins that are deterministic and import no granted capability.
    #[serde(default)]
    pub shared: bool,
    /// Instances begin with what the plugin has built from its config, instead of building it each. Default: those of a
    /// plugin that is deterministic, imports no granted capability nor the clock, and has at most 1 MiB.
    pub snapshot: Option<bool>,
    /// For prompt guards: when they are asked. Default `before`.
    pub when: Option<WhenConfig>,
    /// For output guards: what they do about streams. Default `hold`.
    pub streamed: Option<WhenStreamed>,
    /// When the plugin is left out because it keeps failing.
    #[serde(default)]
    pub breaker: BreakerConfig,
}

/// `when`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum WhenConfig {
    /// Before anything else is done.
    Before,
    /// While the model reads the prompt; the first word waits for the verdict. For guards that rewrite nothing.
    DuringPrefill,
}

/// `[pipeline.stage.breaker]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// So many of one tenant's requests in which it fails, however often in each, take the plugin out for that tenant; 0 for
    /// never.
    pub failures: usize,
    /// ... within this time.
    pub within_ms: u64,
    /// For how long.
    pub pause_ms: u64,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        let tidegate_pipeline::BreakerConfig { failures, within, pause } = Default::default();
        Self { failures, within_ms: within.as_millis() as u64, pause_ms: pause.as_millis() as u64 }
    }
}

impl BreakerConfig {
    /// Refuses what never takes the plugin out though it counts failures. One failure alone is within any time.
    fn check(&self) -> anyhow::Result<()> {
        let useless = [("within_ms", self.within_ms == 0 && self.failures > 1), ("pause_ms", self.pause_ms == 0)];
        match useless.iter().find(|(_, is_useless)| *is_useless && self.failures > 0) {
            Some((key, _)) => bail!(
                "breaker.{key} is 0, with which the plugin is never left out, however often it fails; write 1 or more, or say \
                 so by `failures = 0`"
            ),
            None => Ok(()),
        }
    }
}

/// `[pipeline.stage.limits]`; what is absent takes the default.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Memory of one instance, in MiB. Default 64, or what `plugins.instance_memory_mib` says where that is less.
    pub memory_mib: Option<usize>,
    /// CPU time of one call. Default 100; for routers 50, tool providers 500, observers 20.
    pub cpu_ms: Option<u64>,
    /// Wall time of one call. Default 2000; for stream guards 250, routers 1000, retrievers, memories and observers
    /// 5000, tool providers 30000.
    pub wall_ms: Option<u64>,
    /// Bytes of one result, and of what one call of a capability hands over. Default 1 MiB.
    pub output_bytes: Option<usize>,
    /// Log bytes of one call. Default 16 KiB.
    pub log_bytes: Option<usize>,
    /// Live instances of one project, or of a tenant where its requests are in none. Default 8; 512 for a plugin that waits
    /// for others (`http`, `models`, `documents`, `kv` and `vectors` in the store).
    pub instances: Option<usize>,
    /// Bytes that a stream guard may withhold. Default 512.
    pub holdback_bytes: Option<usize>,
}

/// What the server calls its own text by, where messages of plugins have their stage's name: in ids and as a source.
pub(crate) const OWN_NAMES: [&str; 2] = ["conversation", "tidegate"];

impl StageConfig {
    pub(super) fn check(&self) -> Vec<anyhow::Result<()>> {
        let name = &self.plugin;
        let grants = self.grants.check(self.limits.to_limits().output_bytes);
        vec![
            check_name(name),
            self.check_kinds(),
            self.check_wanted(),
            self.breaker.check().with_context(|| format!("stage `{name}`")),
            grants.with_context(|| format!("stage `{name}`: grants")),
            self.check_source(),
        ]
    }

    fn check_kinds(&self) -> anyhow::Result<()> {
        let name = &self.plugin;
        if self.stages.as_ref().is_some_and(Vec::is_empty) {
            bail!("stage `{name}` runs in no stage: `stages` is empty; leave it out for all, or remove the stage");
        }
        let kinds = self.stages.iter().flatten();
        if let Some((_, twice)) = kinds.clone().enumerate().find(|(i, kind)| kinds.clone().take(*i).any(|k| k == *kind))
        {
            bail!("stage `{name}` names `{}` twice in `stages`; once is enough", twice.as_str());
        }
        Ok(())
    }

    fn check_wanted(&self) -> anyhow::Result<()> {
        let name = &self.plugin;
        if self.top_k == Some(0) {
            bail!("stage `{name}`: top_k is 0, which asks for nothing; give 1 or more, or remove the stage");
        }
        if self.min_score.is_some_and(f32::is_nan) {
            bail!(
                "stage `{name}`: min_score is no number, and no passage scores higher or lower; give one, or leave it out"
            );
        }
        Ok(())
    }

    fn check_source(&self) -> anyhow::Result<()> {
        let (name, Some(source)) = (&self.plugin, &self.source) else { return Ok(()) };
        if self.file.is_some() {
            bail!("stage `{name}` has both `file` and `source`; keep one");
        }
        let place = Reference::parse(source).with_context(|| format!("stage `{name}`: `source`"))?.place;
        if matches!(place, PlaceName::Folder(_)) {
            bail!("stage `{name}`: `source` is for registries (oci://...); name a folder by `file`");
        }
        Ok(())
    }
}

/// Refuses a name that could not stand where names of stages do: in headers, and in front of a `/` and the id of a memory or of a
/// passage.
fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() {
        bail!("a stage's `plugin` is empty; name a shipped plugin, or give your own a name");
    }
    if name.chars().any(|c| c == '/' || !c.is_ascii() || c.is_ascii_control()) {
        bail!(
            "a stage's `plugin` is `{}`; a name has no `/`, no control characters, and no others than ASCII, since it stands in \
             headers and in ids of memories: give the plugin another one, and its component by `file` or `source`; what it keeps in \
             `kv` stays under the old one",
            name.escape_debug()
        );
    }
    if OWN_NAMES.contains(&name) {
        bail!("a stage is named `{name}`, by which the server knows its own messages; give it another name");
    }
    Ok(())
}

impl Config {
    /// `[pipeline]`, or the bundled one.
    pub(crate) fn pipeline(&self) -> anyhow::Result<Cow<'_, PipelineConfig>> {
        match &self.pipeline {
            Some(pipeline) => Ok(Cow::Borrowed(pipeline)),
            None => Ok(Cow::Owned(toml::from_str(bundled::PIPELINE).context("in the bundled pipeline")?)),
        }
    }
}

impl StageConfig {
    /// Whether it is, or may be, one that brings something to a request: tools, passages, memories.
    pub(super) fn may_bring(&self) -> bool {
        use StageKind::{Memory, Retriever, ToolProvider};
        [ToolProvider, Retriever, Memory].into_iter().any(|kind| self.may_be(kind))
    }

    /// Whether it is, or may be, one of a kind: what it is where the config does not say so is known when it has been loaded. That
    /// none of its kinds could be read, of which the config is refused, says nothing either.
    pub(crate) fn may_be(&self, kind: StageKind) -> bool {
        self.stages.as_ref().is_none_or(|kinds| kinds.is_empty() || kinds.contains(&kind))
    }

    /// As the sandbox takes it.
    pub(crate) fn to_snapshot(&self) -> Snapshot {
        match self.snapshot {
            None => Snapshot::WhereSound,
            Some(true) => Snapshot::Asked,
            Some(false) => Snapshot::Never,
        }
    }
}

impl PipelineConfig {
    pub(super) fn check(&self, models: &[&str]) -> anyhow::Result<()> {
        if self.max_tool_bytes == 0 {
            bail!(
                "pipeline.max_tool_bytes is 0, with which the model reads of no tool what it says; write 1 or more, or have it \
                 offered none by `max_tool_turns = 0`"
            );
        }
        for (i, name) in self.default.iter().enumerate() {
            if !models.contains(&name.as_str()) {
                bail!("pipeline.default names `{name}`, which is no model; there are: {}", models.join(", "));
            }
            if self.default[..i].contains(name) {
                bail!("pipeline.default names `{name}` twice");
            }
        }
        Ok(())
    }

    /// As the pipeline takes it.
    pub(crate) fn tool_limits(&self) -> ToolLimits {
        ToolLimits { max_turns: self.max_tool_turns, max_bytes: self.max_tool_bytes }
    }

    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        for stage in &mut self.stage {
            if let Some(file) = &mut stage.file {
                let resolved = folder.join(&*file);
                stage.written = Some(std::mem::replace(file, resolved));
            }
            for mount in stage.grants.documents.values_mut() {
                *mount = folder.join(&*mount);
            }
        }
    }
}

impl LimitsConfig {
    /// As the sandbox takes it.
    pub fn to_limits(&self) -> Limits {
        let default = Limits::default();
        let longest = StageKind::ALL.into_iter().map(|kind| self.wall(kind)).max().unwrap_or(default.wall);
        Limits {
            memory_bytes: self.memory_mib.map_or(default.memory_bytes, |mib| mib << 20),
            cpu: self.cpu_ms.map_or(default.cpu, Duration::from_millis),
            stage_cpu: StageKind::ALL.into_iter().map(|kind| (kind, self.cpu(kind))).collect(),
            wall: longest,
            output_bytes: self.output_bytes.unwrap_or(default.output_bytes),
            log_bytes: self.log_bytes.unwrap_or(default.log_bytes),
            instances: self.instances.unwrap_or(default.instances),
            waiting_instances: self.instances.unwrap_or(default.waiting_instances),
        }
    }

    /// CPU time of one call of a stage. `docs/decisions/0027` says why so much, as of the other defaults.
    pub fn cpu(&self, kind: StageKind) -> Duration {
        let default = match kind {
            // They see no content.
            StageKind::Observer => 20,
            StageKind::Router => 50,
            StageKind::PromptGuard
            | StageKind::StreamGuard
            | StageKind::OutputGuard
            | StageKind::Retriever
            | StageKind::Memory => 100,
            StageKind::ToolProvider => 500,
        };
        Duration::from_millis(self.cpu_ms.unwrap_or(default))
    }

    /// Wall time of one call of a stage.
    pub fn wall(&self, kind: StageKind) -> Duration {
        let default = match kind {
            // The longest that text may wait for its guard.
            StageKind::StreamGuard => 250,
            StageKind::Router => 1000,
            StageKind::PromptGuard | StageKind::OutputGuard => 2000,
            StageKind::Retriever | StageKind::Memory | StageKind::Observer => 5000,
            StageKind::ToolProvider => 30_000,
        };
        Duration::from_millis(self.wall_ms.unwrap_or(default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_a_name_that_can_stand_in_headers_and_ids() {
        let parse = |name: &str| {
            let name = toml::Value::from(name);
            Config::parse(&format!("[[pipeline.stage]]\nplugin = {name}\nfile = \"x.wasm\"\n"))
        };
        for (name, shown) in [
            ("a/b", "`a/b`"),
            ("/", "`/`"),
            ("a\nb", "`a\\nb`"),
            ("a\u{7f}", "`a\\u{7f}`"),
            ("größe", "`größe`"),
            ("\u{85}", "`\\u{85}`"),
        ] {
            let why = format!("{:#}", parse(name).unwrap_err());
            assert!(why.contains(&format!("a stage's `plugin` is {shown}; a name has no `/`")), "{why}");
        }
        assert!(format!("{:#}", parse("").unwrap_err()).contains("a stage's `plugin` is empty"));
        for name in ["pii-guard", "My guard: 2.0 (of_us)~", "a:b"] {
            parse(name).unwrap();
        }
    }

    #[test]
    fn tools_may_say_something_or_are_not_offered() {
        let why = format!("{:#}", Config::parse("[pipeline]\nmax_tool_bytes = 0\n").unwrap_err());
        assert!(why.contains("pipeline.max_tool_bytes is 0") && why.contains("`max_tool_turns = 0`"), "{why}");
        let config = Config::parse("[pipeline]\nmax_tool_bytes = 1\n").unwrap();
        assert_eq!(config.pipeline.unwrap().tool_limits(), ToolLimits { max_bytes: 1, ..ToolLimits::default() });
        assert_eq!(PipelineConfig::default().tool_limits(), ToolLimits::default());
    }

    #[test]
    fn a_breaker_that_would_never_open_is_refused_unless_that_is_said() {
        let parse =
            |breaker: &str| Config::parse(&format!("[[pipeline.stage]]\nplugin = \"x\"\nbreaker = {breaker}\n"));
        for (breaker, key) in [
            ("{ within_ms = 0 }", "within_ms"),
            ("{ pause_ms = 0 }", "pause_ms"),
            ("{ failures = 1, pause_ms = 0 }", "pause_ms"),
        ] {
            let why = format!("{:#}", parse(breaker).unwrap_err());
            assert!(why.contains(&format!("stage `x`: breaker.{key} is 0")) && why.contains("`failures = 0`"), "{why}");
        }
        parse("{ failures = 0, within_ms = 0, pause_ms = 0 }").unwrap();
        parse("{ failures = 1, within_ms = 0, pause_ms = 1 }").unwrap();
    }
}
