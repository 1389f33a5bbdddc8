//! The sandbox: one engine, one clock and one set of bounds for all plugins. Read next: `load.rs` for what happens
//! when a plugin is loaded, `plugin/call.rs` for a call.

use crate::cache::Cache;
use crate::capability;
use crate::config::SandboxConfig;
use crate::engine::TRIAL_INSTANCES;
use crate::error::{LoadCause, LoadError, SandboxError};
use crate::inspect::Anatomy;
use crate::load;
use crate::per_key::PerKey;
use crate::plugin::Plugin;
use crate::registry::Registry;
use crate::stage::{Grants, Limits, StageKind};
use crate::state::HostState;
use crate::sweeper::Sweeper;
use crate::ticker::Ticker;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::Linker;

/// Loads plugins. Cheap to clone; the engine lives as long as any plugin.
#[derive(Clone)]
pub struct Sandbox(Arc<Core>);

/// What every plugin needs at run time.
pub(crate) struct Core {
    pub(crate) config: SandboxConfig,
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<HostState>,
    pub(crate) cache: Cache,
    pub(crate) registry: Arc<Registry>,
    pub(crate) ticker: Ticker,
    pub(crate) sweeper: Sweeper,
    /// Bounds the guests that run while they are loaded: the pool has room for so many beside those that serve.
    pub(crate) trials: Semaphore,
    /// Of a plugin's folders one opening at once: one that hangs has no end.
    pub(crate) openings: PerKey<(String, BTreeMap<String, PathBuf>), Semaphore>,
    /// Makes pseudonyms of callers.
    pub(crate) pseudonym_key: [u8; 32],
    /// What was loaded and is still in use, by everything that it was loaded with.
    loaded: Mutex<HashMap<blake3::Hash, Weak<Plugin>>>,
}

/// A plugin to load.
#[derive(Clone, Debug)]
pub struct PluginSpec {
    /// Its name in the config: in logs, metrics, errors, and in front of what it stores.
    pub name: String,
    /// The component.
    pub component: Arc<[u8]>,
    /// The operator's config for it; `null` is an empty object.
    pub config: Value,
    /// What it may reach.
    pub grants: Grants,
    /// What it may use up.
    pub limits: Limits,
    /// The stages that may run; `None` for all that it exports.
    pub stages: Option<Vec<StageKind>>,
    /// All tenants share its instances; only for a plugin that is deterministic and imports no granted capability.
    pub shared: bool,
    /// Whether each instance is configured.
    pub snapshot: Snapshot,
}

/// Whether instances begin with the memory that `configure` has left in one when the plugin was loaded, which is right
/// for a plugin that is deterministic and imports no granted capability: what that memory holds follows from component
/// and config alone. A plugin that builds tables there builds them once, for all tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// Each instance is configured.
    Never,
    /// They do where that is right, where the plugin does not import the clock either, and where its component is small:
    /// it is compiled twice more.
    WhereSound,
    /// They do; a plugin for which that is not right is refused.
    Asked,
}

impl PluginSpec {
    /// A plugin without config and grants, under default limits.
    pub fn new(name: impl Into<String>, component: impl Into<Arc<[u8]>>) -> Self {
        Self {
            name: name.into(),
            component: component.into(),
            config: Value::Null,
            grants: Grants::default(),
            limits: Limits::default(),
            stages: None,
            shared: false,
            snapshot: Snapshot::Never,
        }
    }
}

impl PluginSpec {
    /// Of everything that makes a difference.
    fn digest(&self) -> blake3::Hash {
        let Self { name, component, config, grants, limits, stages, shared, snapshot } = self;
        let mut digest = blake3::Hasher::new();
        let mut add = |part: &[u8]| {
            digest.update(&(part.len() as u64).to_le_bytes()).update(part);
        };
        add(name.as_bytes());
        add(component);
        add(config.to_string().as_bytes());
        add(format!("{grants:?} {limits:?} {stages:?} {shared} {snapshot:?}").as_bytes());
        // Their debug form hides them.
        grants.secrets.values().for_each(|secret| add(secret.value.expose().as_bytes()));
        digest.finalize()
    }
}

/// What the sandbox uses at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Live instances, idle ones included.
    pub instances: usize,
    /// Linear memory that they hold.
    pub memory_bytes: usize,
}

impl Sandbox {
    /// Starts the engine. Reserves address space for all instances; uses memory only as they come.
    pub fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        let cache = Cache::open(&config)?;
        let engine = crate::engine::build(&config, cache.functions())?;
        let mut linker = Linker::new(&engine);
        capability::link(&mut linker).map_err(|e| SandboxError::Engine(format!("{e:#}")))?;
        let registry = Arc::new(Registry::new(&config));
        let ticker = Ticker::start(engine.clone());
        let ticker = ticker.map_err(|e| SandboxError::Engine(format!("its clock does not start: {e}")))?;
        let sweeper = Sweeper::start(registry.clone());
        let sweeper =
            sweeper.map_err(|e| SandboxError::Engine(format!("what drops idle instances does not start: {e}")))?;
        let trials = Semaphore::new(TRIAL_INSTANCES as usize);
        let mut random_key = [0; 32];
        getrandom::fill(&mut random_key).map_err(|e| SandboxError::Random(e.to_string()))?;
        let pseudonym_key = config.pseudonym_key.unwrap_or(random_key);
        Ok(Self(Arc::new(Core {
            config,
            engine,
            linker,
            cache,
            registry,
            ticker,
            sweeper,
            trials,
            openings: PerKey::new(|| Semaphore::new(1)),
            pseudonym_key,
            loaded: Mutex::default(),
        })))
    }

    /// Compiles (or finds in the cache), checks, describes and once configures a plugin. Takes milliseconds to
    /// seconds of CPU time: call it off the runtime's threads (`spawn_blocking`).
    pub fn load(&self, spec: PluginSpec) -> Result<Arc<Plugin>, LoadError> {
        let plugin = spec.name.clone();
        load::load(&self.0, spec).map_err(|cause| LoadError { plugin, cause })
    }

    /// As [`Self::load`], but gives a plugin that was loaded with the same component, config, grants, limits and stages
    /// and is still in use, with its warm instances. One that reads documents is always loaded: they may lie elsewhere.
    pub fn load_or_reuse(&self, spec: PluginSpec) -> Result<Arc<Plugin>, LoadError> {
        let key = spec.digest();
        let known = self.0.loaded.lock().get(&key).and_then(Weak::upgrade);
        if let Some(plugin) = known.filter(|plugin| !plugin.capabilities().contains("documents")) {
            return Ok(plugin);
        }
        let plugin = self.load(spec)?;
        let mut loaded = self.0.loaded.lock();
        loaded.retain(|_, plugin| plugin.strong_count() > 0);
        loaded.insert(key, Arc::downgrade(&plugin));
        Ok(plugin)
    }

    /// What a component exports, imports and says of itself; grants it nothing. As dear as [`Self::load`].
    pub fn inspect(&self, component: &[u8]) -> Result<Anatomy, LoadCause> {
        crate::inspect::inspect(&self.0, component)
    }

    /// The stages that a component exports, also of one that does not load; one that is none fails.
    pub fn exported_stages(&self, component: &[u8]) -> Result<BTreeSet<StageKind>, LoadCause> {
        crate::inspect::exported_stages(&self.0, component)
    }

    /// What is in use now.
    pub fn usage(&self) -> Usage {
        let registry = &self.0.registry;
        Usage { instances: registry.live_instances(), memory_bytes: registry.held_bytes() }
    }
}
