//! Plugins of the configured stages.

use super::admission::Admission;
use super::remarks;
use crate::bundled;
use crate::config::{BreakerConfig, Config, PipelineConfig, StageConfig, TenantConfig, WhenConfig, Wrong, entry};
use anyhow::{Context, anyhow, bail, ensure};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidegate_pipeline::stage::{OnError, Stage};
use tidegate_pipeline::{Breaker, MemoryStage, OutputGuardStage, PricedTools, RetrieverStage, Stages};
use tidegate_sandbox::stage::StageKind;
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox};
use tidegate_types::ROUTED_MODEL;

/// Bytes that a stream guard may withhold where its stage says nothing else.
pub const HOLDBACK_BYTES: usize = 512;
/// Passages, or memories, for one question where a stage says nothing else.
pub const TOP_K: u32 = 3;
/// The least score of a passage, where a stage says nothing else.
pub const MIN_SCORE: f32 = 0.0;

/// Loads every stage of which nothing is wrong so far. One that cannot be loaded stays in its place and fails as its `on_error` says;
/// only a stage whose kinds nobody knows, since its component cannot be read either, is wrong. What kinds were found is in
/// `pipeline` then.
pub(super) fn load(
    sandbox: &Sandbox,
    config: &Config,
    pipeline: &mut PipelineConfig,
    admission: &Admission,
    begins: &dyn Fn(&StageConfig),
    facts: &mut Vec<String>,
    wrong: &mut Wrong,
) -> Stages {
    let (default_route, priced) = (pipeline.default.clone(), priced(&pipeline.stage));
    let mut stages = Stages { default_route, priced, ..Stages::default() };
    let mut components = BTreeMap::new();
    let with_kv = |stage: &&StageConfig| stage.grants.kv_kib.is_some();
    let with_kv: Vec<String> = pipeline.stage.iter().filter(with_kv).map(|stage| stage.plugin.clone()).collect();
    for (i, stage) in pipeline.stage.iter_mut().enumerate() {
        let at = entry("pipeline.stage", i);
        if !wrong.is_sound(&at) {
            continue;
        }
        begins(stage);
        let component = component(stage, admission, &mut components);
        let plugin = load_one(sandbox, stage, &config.tenants, &component);
        let here = || format!("{at} (`{}`)", stage.plugin);
        let exported = || sandbox.exported_stages(component.as_ref().ok()?).ok();
        let kinds = wrong.look(&at, &[], || kinds(stage, &plugin, exported).with_context(here));
        let Some(kinds) = kinds else { continue };
        wrong.look(&at, &[], || check_kinds(stage, &kinds).with_context(here));
        facts.push(fact(stage, &plugin, &kinds));
        if let Ok(plugin) = &plugin {
            let shares_kv = with_kv.iter().filter(|name| **name == stage.plugin).count() > 1;
            let told = remarks::of(stage, plugin, &kinds, config, shares_kv);
            facts.extend(told.map(|remark| format!("          {} {remark}", stage.plugin)));
        }
        let plugin = plugin.map_err(|why| Arc::from(format!("{}: {why:#}", here())));
        let breaker = Arc::new(breaker(&stage.breaker));
        for &kind in &kinds {
            place(&mut stages, stage, kind, plugin.clone(), &breaker);
        }
        stage.stages = Some(kinds);
    }
    look_at_routes(config, pipeline, &stages, wrong);
    stages
}

/// What the names of models mean hangs on whether there are routers.
fn look_at_routes(config: &Config, pipeline: &PipelineConfig, stages: &Stages, wrong: &mut Wrong) {
    wrong.look("pipeline.default", &["pipeline.stage"], || {
        let may_route = pipeline.stage.iter().any(|stage| stage.may_be(StageKind::Router));
        ensure!(
            pipeline.default.is_empty() || may_route,
            "pipeline.default is for requests that routers have no opinion about, and no stage is a router; leave it out"
        );
        Ok(())
    });
    // Without routers it is a name as any other.
    if !stages.routers.is_empty() && config.models.iter().any(|model| model.name == ROUTED_MODEL) {
        let why =
            format!("a model is named `{ROUTED_MODEL}`, which asks the routers to choose one; give it another name");
        wrong.add("models", anyhow!(why));
    }
}

/// Which tools have prices of their own. What tools there are is known once their plugins list them.
fn priced(stages: &[StageConfig]) -> PricedTools {
    let of_stage = |stage: &StageConfig| {
        let tools = stage.price.as_ref()?.tools.keys().cloned().collect();
        Some((stage.plugin.clone(), tools))
    };
    PricedTools::new(stages.iter().filter_map(of_stage))
}

/// Each stage that did not load is wrong, once, whatever it would fail like.
pub(super) fn look_at_failed(stages: &Stages, wrong: &mut Wrong) {
    let retrievers = stages.retrievers.iter().map(|retriever| &retriever.stage);
    let memories = stages.memories.iter().map(|memory| &memory.stage);
    let outputs = stages.output_guards.iter().map(|guard| &guard.stage);
    let all = stages
        .prompt_guards
        .iter()
        .chain(&stages.late_guards)
        .chain(&stages.stream_guards)
        .chain(&stages.routers)
        .chain(&stages.tools);
    let all = all.chain(&stages.observers).chain(retrievers).chain(memories).chain(outputs);
    let mut failed: Vec<&Arc<str>> = Vec::new();
    for why in all.filter_map(|stage| stage.plugin.as_ref().err()) {
        if !failed.contains(&why) {
            failed.push(why);
        }
    }
    failed.into_iter().for_each(|why| wrong.add("pipeline.stage", anyhow!("{why}")));
}

/// Loads a stage's plugin, if there is a component. The log has why it is not loaded.
fn load_one(
    sandbox: &Sandbox,
    stage: &StageConfig,
    tenants: &BTreeMap<String, TenantConfig>,
    component: &anyhow::Result<Arc<[u8]>>,
) -> anyhow::Result<Arc<Plugin>> {
    let loaded = match component {
        Ok(component) => load_component(sandbox, stage, tenants, component),
        Err(why) => Err(anyhow!("{why:#}")),
    };
    loaded.inspect_err(|why| tracing::error!(plugin = stage.plugin, "{why:#}"))
}

fn load_component(
    sandbox: &Sandbox,
    stage: &StageConfig,
    tenants: &BTreeMap<String, TenantConfig>,
    component: &Arc<[u8]>,
) -> anyhow::Result<Arc<Plugin>> {
    let spec = PluginSpec {
        name: stage.plugin.clone(),
        component: Arc::clone(component),
        config: serde_json::to_value(&stage.config)?,
        grants: stage.grants.to_grants(tenants)?,
        limits: stage.limits.to_limits(),
        stages: stage.stages.clone(),
        shared: stage.shared,
        snapshot: stage.to_snapshot(),
    };
    fits_late(stage, sandbox.load_or_reuse(spec)?)
}

/// A guard that is asked while the model reads the prompt cannot change it any more.
fn fits_late(stage: &StageConfig, plugin: Arc<Plugin>) -> anyhow::Result<Arc<Plugin>> {
    if stage.when == Some(WhenConfig::DuringPrefill) && plugin.descriptor().mutates {
        bail!("`when = \"during-prefill\"` is for guards that rewrite nothing, and this one may; leave `when` out");
    }
    Ok(plugin)
}

/// The bytes that a stage runs; those of several stages with the same ones are the same.
fn component(
    stage: &StageConfig,
    admission: &Admission,
    known: &mut BTreeMap<String, Arc<[u8]>>,
) -> anyhow::Result<Arc<[u8]>> {
    let component = match admission.component(stage)? {
        Some(component) => Cow::Owned(component),
        None => Cow::Borrowed(shipped(&stage.plugin)?),
    };
    let key = blake3::hash(&component).to_hex().to_string();
    Ok(known.entry(key).or_insert_with(|| Arc::from(component.as_ref())).clone())
}

fn shipped(name: &str) -> anyhow::Result<&'static [u8]> {
    bundled::plugin(name).ok_or_else(|| {
        let shipped = bundled::names().join(", ");
        anyhow!("no plugin `{name}` is shipped ({shipped}); name a component with `file` or `source`")
    })
}

/// The configured kinds, else what the component exports. A plugin whose component cannot be read, and that says no
/// kinds, would vanish from the path; then the path is refused.
fn kinds(
    stage: &StageConfig,
    plugin: &anyhow::Result<Arc<Plugin>>,
    exported: impl FnOnce() -> Option<BTreeSet<StageKind>>,
) -> anyhow::Result<Vec<StageKind>> {
    let why = match (&stage.stages, plugin) {
        (Some(kinds), _) => return Ok(kinds.clone()),
        (None, Ok(plugin)) => return Ok(plugin.exported_stages().iter().copied().collect()),
        (None, Err(why)) => why,
    };
    match exported() {
        Some(kinds) if !kinds.is_empty() => Ok(kinds.into_iter().collect()),
        _ => bail!("{why:#}"),
    }
}

/// What would never count, such as a price that nothing is billed by, is a mistake.
fn check_kinds(stage: &StageConfig, kinds: &[StageKind]) -> anyhow::Result<()> {
    use StageKind::{Memory, OutputGuard, PromptGuard, Retriever, StreamGuard};
    let settings: [(&str, bool, &str, &[StageKind]); 5] = [
        ("when", stage.when.is_some(), "prompt guards", &[PromptGuard]),
        ("streamed", stage.streamed.is_some(), "output guards", &[OutputGuard]),
        ("top_k", stage.top_k.is_some(), "retrievers and memories", &[Retriever, Memory]),
        ("min_score", stage.min_score.is_some(), "retrievers", &[Retriever]),
        ("limits.holdback_bytes", stage.limits.holdback_bytes.is_some(), "stream guards", &[StreamGuard]),
    ];
    for (setting, is_set, whose, counts_for) in settings {
        if is_set && !kinds.iter().any(|kind| counts_for.contains(kind)) {
            bail!("`{setting}` is for {whose}, and this stage is none; leave it out");
        }
    }
    let Some(price) = &stage.price else { return Ok(()) };
    if price.is_of_tools() && !kinds.contains(&StageKind::ToolProvider) {
        bail!("`price` says what tools cost, and this stage brings none");
    }
    if price.retrieval.is_some() && !kinds.contains(&StageKind::Retriever) {
        bail!("`price.retrieval` is for retrievers, and this stage is none");
    }
    Ok(())
}

/// Bytes that a stream guard may withhold in this stage.
pub(super) fn holdback(stage: &StageConfig) -> usize {
    stage.limits.holdback_bytes.unwrap_or(HOLDBACK_BYTES)
}

fn breaker(config: &BreakerConfig) -> Breaker {
    Breaker::new(tidegate_pipeline::BreakerConfig {
        failures: config.failures,
        within: Duration::from_millis(config.within_ms),
        pause: Duration::from_millis(config.pause_ms),
    })
}

fn place(
    stages: &mut Stages,
    config: &StageConfig,
    kind: StageKind,
    plugin: Result<Arc<Plugin>, Arc<str>>,
    breaker: &Arc<Breaker>,
) {
    let guard = matches!(kind, StageKind::PromptGuard | StageKind::StreamGuard | StageKind::OutputGuard);
    let stage = Stage {
        name: config.plugin.as_str().into(),
        plugin,
        on_error: config.on_error.unwrap_or(if guard { OnError::Closed } else { OnError::Open }),
        wall: config.limits.wall(kind),
        holdback_bytes: holdback(config),
        breaker: Arc::clone(breaker),
        figures: Default::default(),
    };
    match kind {
        StageKind::PromptGuard if config.when == Some(WhenConfig::DuringPrefill) => stages.late_guards.push(stage),
        StageKind::PromptGuard => stages.prompt_guards.push(stage),
        StageKind::StreamGuard => stages.stream_guards.push(stage),
        StageKind::Router => stages.routers.push(stage),
        StageKind::ToolProvider => stages.tools.push(stage),
        StageKind::Retriever => stages.retrievers.push(RetrieverStage {
            stage,
            top_k: config.top_k.unwrap_or(TOP_K),
            min_score: config.min_score.unwrap_or(MIN_SCORE),
        }),
        StageKind::OutputGuard => {
            stages.output_guards.push(OutputGuardStage { stage, streamed: config.streamed.unwrap_or_default() })
        }
        StageKind::Memory => {
            stages.memories.push(MemoryStage { stage, top_k: config.top_k.unwrap_or(TOP_K) });
        }
        StageKind::Observer => stages.observers.push(stage),
    }
}

fn fact(stage: &StageConfig, plugin: &anyhow::Result<Arc<Plugin>>, kinds: &[StageKind]) -> String {
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    match plugin {
        Ok(plugin) => {
            let begin = if plugin.starts_configured() { "; instances begin configured" } else { "" };
            format!("plugin    {} {} ({}){begin}", stage.plugin, plugin.descriptor().version, kinds.join(", "))
        }
        Err(why) => format!("plugin    {} DID NOT LOAD: {why:#}", stage.plugin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sandbox::SandboxConfig;

    /// Of all kinds, with that in the config. It does not load, and has its places all the same.
    fn loaded(more: &str) -> Stages {
        let kinds = StageKind::ALL.map(StageKind::as_str);
        let stage = format!("plugin = \"p\"\nfile = \"nowhere.wasm\"\nstages = {kinds:?}\n{more}");
        let config = Config::parse(&format!("[[pipeline.stage]]\n{stage}\n")).unwrap();
        let (admission, mut pipeline) = (Admission::new(&config).unwrap(), config.pipeline.clone().unwrap());
        let few = SandboxConfig { total_instances: 1, total_waiting_instances: 1, ..SandboxConfig::default() };
        let (sandbox, mut facts, mut wrong) = (Sandbox::new(few).unwrap(), Vec::new(), Wrong::default());
        let stages = load(&sandbox, &config, &mut pipeline, &admission, &|_| {}, &mut facts, &mut wrong);
        wrong.none().unwrap();
        stages
    }

    /// As the guide says (`config/default_limits.rs`).
    #[test]
    fn each_kind_of_stage_is_called_for_as_long_as_its_kind_may_be() {
        for (more, own) in [("", None), ("limits = { wall_ms = 7 }", Some(7))] {
            let stages = loaded(more);
            for (stage, expected) in [
                (&stages.prompt_guards[0], 2000),
                (&stages.stream_guards[0], 250),
                (&stages.output_guards[0].stage, 2000),
                (&stages.routers[0], 1000),
                (&stages.tools[0], 30_000),
                (&stages.retrievers[0].stage, 5000),
                (&stages.memories[0].stage, 5000),
                (&stages.observers[0], 5000),
            ] {
                assert_eq!(stage.wall, Duration::from_millis(own.unwrap_or(expected)), "{more} {expected}");
            }
        }
    }
}
