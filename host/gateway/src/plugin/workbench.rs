//! The sandbox of the author's tools: the server's own, with room for few instances and patience for slow machines.

use super::fixture::Fixtures;
use super::script::{ScriptedHttp, ScriptedModels};
use crate::config::Config;
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_sandbox::capability::{KvStore, MemoryKv, Namespace};
use tidegate_sandbox::stage::{CallContext, Limits};
use tidegate_sandbox::{Fixed, Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::{Caller, RequestId, Retention};

/// A plugin's name in tests: in front of what it stores.
const NAME: &str = "plugin";

/// A sandbox that answers as `world` says.
pub(super) fn sandbox(world: SandboxConfig) -> anyhow::Result<Sandbox> {
    let cache = Config::default().cache_folder();
    let config = SandboxConfig {
        cache_dir: Some(cache.join("plugins")),
        total_instances: 8,
        total_waiting_instances: 8,
        configure_cpu: Duration::from_secs(10),
        ..world
    };
    Sandbox::new(config).context("the plugin host does not start")
}

/// Loads a component into the world of its fixtures.
pub(super) fn load(component: &[u8], fixtures: &Fixtures, config: &toml::Table) -> anyhow::Result<Arc<Plugin>> {
    Ok(load_with(component, fixtures, config)?.1)
}

/// The same, with the sandbox that it is in.
pub(super) fn load_with(
    component: &[u8],
    fixtures: &Fixtures,
    config: &toml::Table,
) -> anyhow::Result<(Sandbox, Arc<Plugin>)> {
    let host = &fixtures.host;
    let kv = Arc::new(MemoryKv::new(64 << 20));
    let world = SandboxConfig {
        kv: kv.clone(),
        http: Arc::new(ScriptedHttp::new(host.http.clone())),
        models: Arc::new(ScriptedModels::new(host.models.clone())),
        fixed: Some(Fixed { now_unix_ms: host.now_unix_ms, seed: host.seed }),
        ..SandboxConfig::default()
    };
    let limits = Limits { cpu: Duration::from_secs(10), wall: Duration::from_secs(60), ..Limits::default() };
    let spec = PluginSpec {
        config: serde_json::to_value(config)?,
        grants: fixtures.grants.to_grants(&BTreeMap::new())?,
        limits,
        ..PluginSpec::new(NAME, component)
    };
    let sandbox = sandbox(world)?;
    let plugin = sandbox.load(spec)?;
    fill(kv.as_ref(), &host.kv)?;
    Ok((sandbox, plugin))
}

fn fill(kv: &dyn KvStore, pairs: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let namespace = Namespace { plugin: NAME.into(), tenant: Caller::local().tenant };
    runtime()?.block_on(async {
        for (key, value) in pairs {
            kv.set(&namespace, key.clone(), value.clone().into_bytes(), None, u64::MAX).await?;
        }
        Ok(())
    })
}

/// What a call of a test carries.
pub(super) fn context() -> CallContext {
    CallContext {
        request_id: RequestId::new("test"),
        caller: Caller::local().into(),
        retention: Retention::Kept,
        deadline: Duration::from_secs(60),
        began: None,
        streaming: true,
    }
}

/// A runtime of this thread.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime does not start")
}

/// Reads a component; says what to do where there is none.
pub(super) fn component(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}; `tidegate plugin build` makes it", file.display()))
}
