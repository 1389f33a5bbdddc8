//! Loading a plugin, in the order in which it may be refused: limits, component, imports, exports, descriptor,
//! config, `configure`. The guest's own code runs here twice, in an instance of its own each time: to be described,
//! without any capability, and to be configured, with its grants and with storage that is thrown away. Where a snapshot
//! is taken, it is of the instance that was configured. Next: `load/checks.rs`, what a stage's limits and grants must allow.

mod checks;

use crate::blueprint::{Blueprint, StageIndices, configure_wall};
use crate::capability::{Documents, HttpAccess, LogRate, MemoryKv, MemoryVectors, Namespace, for_line};
use crate::descriptor;
use crate::error::LoadCause;
use crate::imports;
use crate::instance::Instance;
use crate::plugin::Plugin;
use crate::registry::Work;
use crate::sandbox::{Core, PluginSpec, Snapshot};
use crate::schema;
use crate::snapshot::{self, NoSnapshot};
use crate::stage::{CallError, Descriptor, StageKind};
use crate::state::{HostState, Phase};
use serde_json::Value;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::TenantId;
use wasmtime::component::{Component, InstancePre};

/// The largest component that is compiled.
pub const MAX_COMPONENT_BYTES: usize = 64 << 20;
/// The largest component of which a snapshot is taken that nobody has asked for, and that may be entered on its caller's stack: those
/// in Rust and C are a quarter of it, while one that carries an interpreter would keep the start waiting for seconds.
pub(crate) const MAX_SMALL: usize = 1 << 20;
/// Bytes of vectors that a plugin may put while it is tried.
const TRIAL_VECTORS: usize = 64 << 20;

pub(crate) fn load(core: &Arc<Core>, spec: PluginSpec) -> Result<Arc<Plugin>, LoadCause> {
    checks::limits(&spec.limits, core)?;
    let component = compile(core, &spec.component)?;
    let used = imports::check(component.component_type().imports(&core.engine).map(|(name, _)| name), &spec.grants)?;
    let pre = core.linker.instantiate_pre(&component).map_err(|e| LoadCause::Contract(format!("{e:#}")))?;
    let mut stages = find_stages(core, &component, &pre)?;
    if let Some(wanted) = &spec.stages {
        select_stages(&mut stages, wanted)?;
    }
    checks::content(&used, &stages.kinds(), &spec.grants)?;
    let opened = Opened::open(core, &spec, &used)?;
    let (bytes, wanted) = (spec.component.clone(), spec.snapshot);
    let config = if spec.config.is_null() { Value::Object(Default::default()) } else { spec.config.clone() };
    let keeps = [("kv", core.config.kv.waits()), ("vectors", core.config.vectors.waits())];
    // A folder may be another machine's, which may be away.
    let waits = asks_others(&used)
        || used.contains("documents")
        || keeps.iter().any(|(capability, waits)| *waits && used.contains(capability));
    let work = if waits { Work::Wait } else { Work::Compute };
    let mut blueprint = Blueprint { work, ..blueprint(core, spec, pre, stages, opened, &config) };

    let descriptor = on_own_thread(describe(core, &blueprint), LoadCause::Describe)?;
    checks::capabilities(&used, &descriptor)?;
    checks::shared(&blueprint, &used, &descriptor)?;
    let config = schema::validate(&descriptor.config_schema, config)
        .map_err(|e| LoadCause::Config { path: format!("config{}", e.path), message: e.message })?;
    blueprint.config = config.to_string().into();
    blueprint.metrics = descriptor.metrics.keys().cloned().collect();
    blueprint.declares_secrets = descriptor.capabilities.contains_key("secrets");
    let blueprint = Arc::new(blueprint);
    let follows = used.is_empty() && descriptor.deterministic;
    let takes = match wanted {
        Snapshot::Asked if !follows => return Err(LoadCause::Snapshot),
        Snapshot::Asked => true,
        Snapshot::WhereSound => follows && bytes.len() <= MAX_SMALL && !checks::reads_clock(core, &component),
        Snapshot::Never => false,
    };
    let blueprint = if takes {
        snapshot(core, &bytes, blueprint, wanted)?
    } else {
        on_own_thread(configure(core, &blueprint), LoadCause::Configure)?;
        blueprint
    };
    Ok(Arc::new(Plugin::new(core.clone(), blueprint, descriptor, used)))
}

/// Whether a plugin may tell others what it sees.
pub(crate) fn asks_others(used: &BTreeSet<&'static str>) -> bool {
    used.contains("http") || used.contains("models")
}

/// What grants name, opened.
pub(crate) struct Opened {
    pub(crate) documents: Option<Arc<dyn Documents>>,
    pub(crate) http: Option<Arc<HttpAccess>>,
}

impl Opened {
    fn open(core: &Core, spec: &PluginSpec, used: &BTreeSet<&'static str>) -> Result<Self, LoadCause> {
        let grants = &spec.grants;
        let documents = match used.contains("documents") {
            true => Some(open_documents(core, &spec.name, &grants.documents).map_err(LoadCause::Documents)?),
            false => None,
        };
        let refuse = |capability, message| LoadCause::Grant { capability, message };
        let http = match &grants.http {
            Some(grant) if used.contains("http") => {
                let access = HttpAccess::open(
                    core.config.http.as_ref(),
                    grant,
                    grants.secrets.values().map(|secret| &secret.value),
                );
                Some(Arc::new(access.map_err(|message| refuse("http", message))?))
            }
            _ => None,
        };
        for grant in grants.models.values().filter(|_| used.contains("models")) {
            core.config.models.check(&grant.model).map_err(|message| refuse("models", message))?;
        }
        Ok(Self { documents, http })
    }
}

/// Opens folders, which may be another machine's that is away: what hangs then goes on alone, and the load ends. Where the same
/// hangs already, nothing more is begun.
fn open_documents(core: &Core, plugin: &str, mounts: &BTreeMap<String, PathBuf>) -> Result<Arc<dyn Documents>, String> {
    let wall = configure_wall(core.config.configure_cpu);
    let (store, name, folders) = (core.config.documents.clone(), plugin.to_owned(), mounts.clone());
    let rights = core.openings.of((name.clone(), folders.clone()));
    let opened = ended_on_own_thread(async {
        let opening = async {
            let right = rights.acquire_owned().await;
            let open = move || {
                let opened = store.open(&name, &folders);
                drop(right);
                opened
            };
            tokio::task::spawn_blocking(open).await
        };
        tokio::time::timeout(wall, opening).await
    });
    match opened? {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => Err(format!("they cannot be opened: {error}")),
        Err(_) => {
            let mounts: Vec<String> =
                mounts.iter().map(|(name, folder)| format!("mount `{name}`: `{}`", folder.display())).collect();
            let which = if mounts.len() > 1 { "one of these has" } else { "it has" };
            let mounts = mounts.join("; ");
            Err(format!("{mounts}: {which} not answered within {wall:?}; is it another machine's that is away?"))
        }
    }
}

pub(crate) fn blueprint(
    core: &Core,
    spec: PluginSpec,
    pre: InstancePre<HostState>,
    stages: StageIndices,
    opened: Opened,
    config: &Value,
) -> Blueprint {
    Blueprint {
        memory_peak: Some(core.registry.peak_of(&spec.name)),
        name: spec.name.into(),
        pre,
        stages,
        config: config.to_string().into(),
        log_rate: Arc::new(LogRate::new(spec.limits.log_bytes, Instant::now())),
        limits: spec.limits,
        grants: spec.grants,
        documents: opened.documents,
        http: opened.http,
        kv: core.config.kv.clone(),
        models: core.config.models.clone(),
        vectors: core.config.vectors.clone(),
        fixed: core.config.fixed.clone(),
        metrics: Vec::new(),
        undeclared: core.config.fixed.as_ref().map(|_| Arc::default()),
        declares_secrets: false,
        configure_cpu: core.config.configure_cpu,
        clock: core.ticker.clock().clone(),
        registry: core.registry.clone(),
        work: Work::Compute,
        direct: false,
        shared: spec.shared,
        is_configured: false,
    }
}

pub(crate) fn compile(core: &Core, bytes: &[u8]) -> Result<Component, LoadCause> {
    let header: &[u8] = bytes.get(..8).unwrap_or(bytes);
    match header {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0] => {}
        [0, b'a', b's', b'm', 1, 0, 0, 0] => {
            let message = "it is a core module; link it with `wasm-component-ld`, or wrap it with `wasm-tools`";
            return Err(LoadCause::NotAComponent(message.into()));
        }
        _ => return Err(LoadCause::NotAComponent(format!("it starts with {header:02x?}"))),
    }
    if bytes.len() > MAX_COMPONENT_BYTES {
        return Err(LoadCause::Compile(format!("it has {} bytes; at most {MAX_COMPONENT_BYTES}", bytes.len())));
    }
    core.cache.component(&core.engine, bytes).map_err(|e| LoadCause::Compile(format!("{e:#}")))
}

/// Where the component exports its stages; at least one.
pub(crate) fn find_stages(
    core: &Core,
    component: &Component,
    pre: &InstancePre<HostState>,
) -> Result<StageIndices, LoadCause> {
    let exports = component.component_type();
    let found: Vec<&str> = exports.exports(&core.engine).map(|(name, _)| name).collect();
    if !StageKind::ALL.into_iter().any(|kind| found.contains(&interface(kind).as_str())) {
        return Err(LoadCause::NoStage { known: list(StageKind::ALL), found: found.join(", ") });
    }
    StageIndices::find(pre).map_err(|e| LoadCause::Contract(format!("{e:#}")))
}

/// Leaves the stages that the config names.
fn select_stages(stages: &mut StageIndices, wanted: &[StageKind]) -> Result<(), LoadCause> {
    let exported = stages.kinds();
    if wanted.is_empty() {
        return Err(LoadCause::NoStageWanted { exported: list(exported) });
    }
    if let Some(stage) = wanted.iter().copied().find(|stage| !exported.contains(stage)) {
        return Err(LoadCause::MissingStage { stage, exported: list(exported) });
    }
    stages.retain(&wanted.iter().copied().collect());
    Ok(())
}

fn list(stages: impl IntoIterator<Item = StageKind>) -> String {
    stages.into_iter().map(StageKind::as_str).collect::<Vec<_>>().join(", ")
}

pub(crate) fn interface(stage: StageKind) -> String {
    format!("tidegate:plugin/{}@0.1.0", stage.as_str())
}

/// Describes the plugin in an instance of its own.
pub(crate) async fn describe(core: &Core, blueprint: &Blueprint) -> Result<Descriptor, LoadCause> {
    let failed = |error: CallError| LoadCause::Describe(for_line(&error.to_string()).into_owned());
    let state = trial_state(blueprint, Phase::Describe { used: None });
    let wall = blueprint.configure_wall();
    let _trial = core.trials.acquire().await;
    let _running = core.ticker.clock().running();
    let said = tokio::time::timeout(wall, async {
        let mut instance = Instance::bare(state, None).await.map_err(|e| match e.downcast_ref::<CallError>() {
            Some(known) => failed(known.clone()),
            None => LoadCause::Contract(format!("{e:#}")),
        })?;
        instance.check_types().map_err(|e| LoadCause::Contract(format!("{e:#}")))?;
        let said = instance.describe().await;
        let state = instance.store.data();
        if let Some(function) = state.used_while_describing() {
            return Err(LoadCause::Describe(format!("it called `{function}`; `describe` must be pure")));
        }
        said.map_err(|e| failed(crate::failure::of_trial(&e, state)))
    });
    let out_of_time = |_| Err(LoadCause::Describe(format!("it did not finish within {wall:?}")));
    descriptor::parse(&said.await.unwrap_or_else(out_of_time)?)
}

/// Configures an instance to learn whether it accepts the config; an operator reads this now, not a caller later.
async fn configure(core: &Core, blueprint: &Blueprint) -> Result<(), LoadCause> {
    let state = trial_state(blueprint, Phase::Serve);
    let _trial = core.trials.acquire().await;
    let _running = core.ticker.clock().running();
    Instance::configured(state, None).await.map(|_| ()).map_err(not_configured)
}

fn not_configured(error: CallError) -> LoadCause {
    match error {
        CallError::Plugin { case, message, .. } => LoadCause::Configure(format!("{case}: {}", for_line(&message))),
        error => LoadCause::Configure(for_line(&error.to_string()).into_owned()),
    }
}

/// The state of an instance that serves nobody: what it stores is thrown away with it.
fn trial_state(blueprint: &Blueprint, phase: Phase) -> HostState {
    let nobody = Namespace::of_tenant(blueprint.name.clone(), TenantId::new(""));
    let kv = Arc::new(MemoryKv::new(blueprint.grants.kv_bytes.unwrap_or(0)));
    let vectors = Arc::new(MemoryVectors::new(TRIAL_VECTORS, TRIAL_VECTORS));
    let blueprint = Blueprint { kv, vectors, memory_peak: None, ..blueprint.clone() };
    HostState::new(Arc::new(blueprint), nobody, phase)
}

/// The same plugin, configured, whose instances begin so. Where the component does not allow that, for whatever reason, it
/// goes on as it is.
fn snapshot(
    core: &Core,
    bytes: &[u8],
    blueprint: Arc<Blueprint>,
    wanted: Snapshot,
) -> Result<Arc<Blueprint>, LoadCause> {
    let trial = |blueprint: &Blueprint| trial_state(blueprint, Phase::Serve);
    let mut is_accepted = false;
    let taken = ended_on_own_thread(async {
        let _trial = core.trials.acquire().await;
        let _running = core.ticker.clock().running();
        snapshot::take(core, bytes, &blueprint, trial, &mut is_accepted).await
    });
    let why = match taken {
        Ok(Ok(taken)) => return Ok(Arc::new(taken)),
        Ok(Err(NoSnapshot::Refused(error))) => return Err(not_configured(error)),
        Ok(Err(NoSnapshot::Failed(error))) => format!("{error:#}"),
        // What reads a component asserts what it takes for granted of it.
        Err(why) => why,
    };
    let plugin = &blueprint.name;
    match wanted {
        Snapshot::Asked => tracing::warn!(%plugin, "no snapshot can be taken of it: {why}"),
        _ => tracing::debug!(%plugin, "each instance is configured, for no snapshot can be taken: {why}"),
    }
    if !is_accepted {
        on_own_thread(configure(core, &blueprint), LoadCause::Configure)?;
    }
    Ok(blueprint)
}

/// Runs a guest to its end on a thread and a runtime of its own: the caller may or may not be on a runtime. What the guest
/// logs goes where the caller's lines go. `failed` is what it is for the operator where that comes to no end.
pub(crate) fn on_own_thread<T: Send>(
    work: impl Future<Output = Result<T, LoadCause>> + Send,
    failed: fn(String) -> LoadCause,
) -> Result<T, LoadCause> {
    ended_on_own_thread(work).unwrap_or_else(|why| Err(failed(format!("it cannot be run: {why}"))))
}

/// As [`on_own_thread`]; an error says why the work came to no end.
fn ended_on_own_thread<T: Send>(work: impl Future<Output = T> + Send) -> Result<T, String> {
    let log = tracing::dispatcher::get_default(Clone::clone);
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            let _log = tracing::dispatcher::set_default(&log);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let outcome = runtime.block_on(work);
            // A read of a document that hangs must not hang the load.
            runtime.shutdown_timeout(Duration::from_millis(100));
            Ok(outcome)
        });
        ran.join().unwrap_or_else(|panic| Err(format!("its thread panicked: {}", said(&*panic))))
    })
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Collection, VectorEntry};
    use crate::plugin::tests::parts;

    #[tokio::test]
    async fn what_is_put_into_a_collection_while_a_plugin_is_tried_is_thrown_away() {
        let plugin = crate::plugin::tests::load(1, Snapshot::Never).unwrap();
        let (core, blueprint) = parts(&plugin);
        let state = trial_state(blueprint, Phase::Serve);
        let collection = Collection::of_tenant("notes", TenantId::new(""));
        let entry = VectorEntry { id: "a".into(), vector: vec![1.0], payload: Vec::new() };
        state.blueprint.vectors.put(&collection, vec![entry]).await.unwrap();
        for (store, found) in [(&state.blueprint.vectors, 1), (&core.config.vectors, 0)] {
            assert_eq!(store.search(&collection, vec![1.0], 9, Vec::new()).await.unwrap().len(), found);
        }
    }

    #[test]
    fn what_a_guest_says_of_its_config_stays_one_line() {
        let message = format!("no\n2026-11-29 INFO forged\u{1b}[2J{}", "x".repeat(1 << 20));
        let said = CallError::Plugin { plugin: "p".into(), case: "invalid-config", message };
        let told = not_configured(said).to_string();
        assert!(told.len() < 2_000 && !told.contains(char::is_control), "{told}");
        assert!(told.contains("invalid-config: no\\n2026"), "{told}");
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        assert_eq!(ended_on_own_thread(async { 1 }), Ok(1));
        let ended = ended_on_own_thread(async { assert_eq!(1, 2, "as the test asked") });
        assert!(
            ended.unwrap_err().contains("its thread panicked: assertion `left == right` failed: as the test asked")
        );
    }
}
