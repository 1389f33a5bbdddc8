//! The sandbox of the author's tools: the server's own, with room for few instances and patience for what takes longer than a
//! server would let it. [`remarks`] says so then.

use super::fixture::Fixtures;
use super::script::{ScriptedHttp, ScriptedModels};
use crate::assemble::admission::Found;
use crate::config::{Config, LimitsConfig};
use anyhow::{Context, anyhow};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use tidegate_sandbox::capability::{
    Collection, KvContents, KvStore, MemoryKv, MemoryVectors, Namespace, VectorContents, VectorStore,
};
use tidegate_sandbox::stage::{CallContext, Limits, StageKind};
use tidegate_sandbox::{Anatomy, Fixed, LoadCause, LoadError, Plugin, PluginSpec, Sandbox, SandboxConfig, Snapshot};
use tidegate_types::{Caller, RequestId, Retention};

/// A sandbox that answers as `world` says, with the user's cache, where that can be used.
pub(super) fn sandbox(world: SandboxConfig) -> anyhow::Result<Sandbox> {
    let config = SandboxConfig { for_authors: true, ..small(&Config::default(), world) };
    match Sandbox::new(config.clone()) {
        Err(error) if error.is_of_cache() => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                // Nobody may read it, which is no reason to fail.
                let why = "goes on without; XDG_CACHE_HOME may name a folder of yours";
                let _ = writeln!(std::io::stderr(), "{error}: {why}");
            });
            started(SandboxConfig { cache_dir: None, ..config })
        }
        made => made.context(NO_START),
    }
}

/// One that compiles as a server does, with the cache of its config: what lies there then, the server finds.
pub(super) fn sandbox_of(server: &Config, world: SandboxConfig) -> anyhow::Result<Sandbox> {
    started(small(server, world))
}

fn small(server: &Config, world: SandboxConfig) -> SandboxConfig {
    let cache_dir = Some(server.cache_folder().join("plugins"));
    SandboxConfig { cache_dir, total_instances: 8, total_waiting_instances: 8, ..world }
}

const NO_START: &str = "the plugin host does not start";

fn started(config: SandboxConfig) -> anyhow::Result<Sandbox> {
    Sandbox::new(config).context(NO_START)
}

/// What a component is. It runs where nothing is granted and nobody answers.
pub(super) fn inspect(component: &[u8]) -> anyhow::Result<Anatomy> {
    sandbox(SandboxConfig::default())?.inspect(component).context("the component is not a plugin")
}

/// Bytes that a plugin may keep in `kv`, and in `vectors`, whatever its grants say.
const ROOM_BYTES: usize = 64 << 20;

/// A plugin in the world of its fixtures.
pub(super) struct World {
    pub(super) plugin: Arc<Plugin>,
    /// What answers its requests.
    pub(super) http: Arc<ScriptedHttp>,
    kv: Arc<MemoryKv>,
    vectors: Arc<MemoryVectors>,
    /// How many random bytes calls have drawn.
    drawn: Arc<AtomicU64>,
    /// What its prompt guard noted last, which a server hands to its memory.
    pub(super) notes: RefCell<Vec<(String, String)>>,
}

/// What calls leave in a world: what is in `kv` and `vectors`, how many requests each answer has left, and which random bytes are next.
#[derive(Clone)]
pub(super) struct State {
    kv: KvContents,
    vectors: VectorContents,
    http: Vec<u32>,
    drawn: u64,
}

impl World {
    pub(super) fn state(&self) -> State {
        let (kv, vectors) = (self.kv.contents(), self.vectors.contents());
        State { kv, vectors, http: self.http.left(), drawn: self.drawn.load(Ordering::Relaxed) }
    }

    /// Goes back, or on, to a state of this world.
    pub(super) fn set_state(&self, state: &State) {
        self.kv.put_back(&state.kv);
        self.vectors.put_back(&state.vectors);
        self.http.rearm(&state.http);
        self.drawn.store(state.drawn, Ordering::Relaxed);
    }
}

/// Loads a component into the world of its fixtures.
pub(super) fn load(component: &[u8], fixtures: &Fixtures, config: &toml::Table) -> anyhow::Result<World> {
    world(component, fixtures, config, ROOM_BYTES)
}

/// The same, with so many bytes that it may keep.
pub(super) fn world(
    component: &[u8],
    fixtures: &Fixtures,
    config: &toml::Table,
    room_bytes: usize,
) -> anyhow::Result<World> {
    let host = &fixtures.host;
    let (passed_ms, drawn) = (Arc::default(), Arc::<AtomicU64>::default());
    let kv = Arc::new(MemoryKv::with_passed(room_bytes as u64, Arc::clone(&passed_ms)));
    let vectors = Arc::new(MemoryVectors::new(room_bytes, room_bytes));
    let http = Arc::new(ScriptedHttp::new(host.http.clone()));
    let limits = limits(&fixtures.limits);
    let world = SandboxConfig {
        max_memory_bytes: limits.memory_bytes.max(SandboxConfig::default().max_memory_bytes),
        kv: kv.clone(),
        vectors: vectors.clone(),
        http: http.clone(),
        models: Arc::new(ScriptedModels::new(host.models.clone())),
        fixed: Some(Fixed { now_unix_ms: host.now_unix_ms, passed_ms, seed: host.seed, drawn: drawn.clone() }),
        ..SandboxConfig::default()
    };
    let spec = PluginSpec {
        config: serde_json::to_value(config)?,
        // The machine's own are no part of a test.
        grants: fixtures.grants.to_grants_with(|name, _| Ok(host.secret(name)), &BTreeMap::new())?,
        limits,
        // As in a server that is not told otherwise.
        snapshot: Snapshot::WhereSound,
        ..PluginSpec::new(fixtures.plugin(), component)
    };
    let plugin = sandbox(world)?.load(spec).map_err(explain)?;
    runtime()?.block_on(fill(fixtures, kv.as_ref(), vectors.as_ref()))?;
    Ok(World { plugin, http, kv, vectors, drawn, notes: RefCell::default() })
}

/// Those of the file; times that it does not say are long.
fn limits(said: &LimitsConfig) -> Limits {
    let (cpu_ms, wall_ms) = (said.cpu_ms.or(Some(10_000)), said.wall_ms.or(Some(60_000)));
    LimitsConfig { cpu_ms, wall_ms, ..said.clone() }.to_limits()
}

/// What is no fault of calls since the last look, and goes otherwise in a server than its author may think.
pub(super) fn remarks(plugin: &Plugin, kind: StageKind) -> Vec<String> {
    over_default(plugin, kind).into_iter().chain(undeclared(plugin)).chain(unasked(plugin, kind)).collect()
}

/// What its author has to know of a guard whose glances no server asks for.
fn unasked(plugin: &Plugin, kind: StageKind) -> Option<String> {
    let is_unasked = plugin.exports_glance(kind) && !plugin.is_asked_for_glances(kind);
    is_unasked.then(|| {
        "no server asks it for a glance: its instances must begin configured, without granted capabilities, and its component be of at most 1 MiB (wit/README.md)".into()
    })
}

/// What the operator has to know where a call took more CPU time than a server gives unasked.
fn over_default(plugin: &Plugin, kind: StageKind) -> Option<String> {
    let (took, limit) = (plugin.take_most_cpu(), LimitsConfig::default().cpu(kind));
    let (took_ms, limit_ms, kind) = (took.as_millis(), limit.as_millis(), kind.as_str());
    (took > limit).then(|| {
        format!(
            "took {took_ms} ms of CPU; a server's default for a {kind} is {limit_ms} (`limits.cpu_ms` of the stage)"
        )
    })
}

/// Which metrics nobody will see, though the plugin counts them.
fn undeclared(plugin: &Plugin) -> Option<String> {
    let names: Vec<String> = plugin.take_undeclared().iter().map(|name| format!("`{}`", name.escape_debug())).collect();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!(
            "counts {names}, which `metrics` of its descriptor does not declare: a server leaves that out, and logs it"
        )
    })
}

/// Here grants are those of `tests.toml`; the sandbox knows a server's config only.
fn explain(error: LoadError) -> anyhow::Error {
    let leaves = "could leave a server's machine";
    let (why, line) = match &error.cause {
        LoadCause::Ungranted { import, line } => (format!("imports `{import}`, which is not granted"), line.as_str()),
        LoadCause::ContentLeaves { stages } => {
            (format!("sees content ({stages}) and imports `http`: what callers write {leaves}"), CONTENT)
        }
        LoadCause::KeptContentLeaves { collections } => {
            let reads =
                format!("reads what other plugins keep in `vectors` ({collections}), which may be what callers write");
            (format!("{reads}, and imports `http`: that {leaves}"), CONTENT)
        }
        _ => return error.into(),
    };
    anyhow!(
        "plugin `{}`: it {why}; to allow it, add `{line}` to [grants] in tests.toml (a server has that in \
         [pipeline.stage.grants])",
        error.plugin
    )
}

/// The grant that lets a plugin that may reach out see content.
const CONTENT: &str = "content = true";

/// Puts what is there before the first case where calls of a test find it.
async fn fill(fixtures: &Fixtures, kv: &dyn KvStore, vectors: &dyn VectorStore) -> anyhow::Result<()> {
    let (host, tenant) = (&fixtures.host, Caller::local().tenant);
    let namespace = Namespace::of_tenant(fixtures.plugin(), tenant.clone());
    let quota = fixtures.grants.kv_kib.unwrap_or(0) << 10;
    for (key, value) in &host.kv {
        let set = kv.set(&namespace, key.clone(), value.clone().into_bytes(), None, quota).await;
        set.with_context(|| format!("[host] kv: `{}`", key.escape_debug()))?;
    }
    for entry in &host.vectors {
        let collection = Collection::of_tenant(entry.collection.as_str(), tenant.clone());
        let put = vectors.put(&collection, vec![entry.stored()]).await;
        put.with_context(|| format!("[[host.vectors]]: `{}`", entry.id.escape_debug()))?;
    }
    Ok(())
}

/// What a call of a test carries, of a request that is answered as a stream or not.
pub(super) fn context(streaming: bool) -> CallContext {
    CallContext {
        request_id: RequestId::new("test"),
        caller: Caller::local().into(),
        hops: 0,
        retention: Retention::Kept,
        deadline: Duration::from_secs(60),
        began: None,
        streaming,
    }
}

/// A runtime of this thread.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime does not start")
}

/// Reads a component, or that of a packed plugin's folder.
pub(super) fn component(path: &Path) -> anyhow::Result<Vec<u8>> {
    Found::read(path).map(Found::into_component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_is_missing_is_told_where_tests_have_it() {
        let check = |cause: LoadCause, what: &str, line: &str| {
            let said = explain(LoadError { plugin: "asker".into(), cause }).to_string();
            let remedy = format!("add `{line}` to [grants] in tests.toml");
            assert!(said.starts_with("plugin `asker`: it ") && said.contains(what) && said.contains(&remedy), "{said}");
            assert!(!said.contains("the stage's"), "{said}");
        };
        let (import, line) = ("tidegate:plugin/kv@0.1.0".to_owned(), "kv_kib = 64".to_owned());
        check(LoadCause::Ungranted { import, line }, "imports `tidegate:plugin/kv@0.1.0`", "kv_kib = 64");
        check(LoadCause::ContentLeaves { stages: "prompt-guard".into() }, "sees content (prompt-guard)", CONTENT);
        check(LoadCause::KeptContentLeaves { collections: "notes".into() }, "keep in `vectors` (notes)", CONTENT);
    }

    #[test]
    fn what_no_grant_mends_is_told_as_it_is() {
        let error = LoadError { plugin: "asker".into(), cause: LoadCause::Shared };
        assert_eq!(explain(error.clone()).to_string(), error.to_string());
    }
}
