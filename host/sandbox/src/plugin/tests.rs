use super::*;
use crate::registry::Registry;
use crate::sandbox::{PluginSpec, Sandbox, Snapshot};
use crate::{LoadError, SandboxConfig};
use tidegate_types::{Caller, Class, RequestId, Role};

/// The guest `loops` in a sandbox of so many instances.
pub(crate) fn load(total_instances: u32, snapshot: Snapshot) -> Result<Arc<Plugin>, LoadError> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/dist/loops.wasm");
    let config = SandboxConfig { total_instances, total_waiting_instances: 1, ..SandboxConfig::default() };
    let spec = PluginSpec::new("loops", std::fs::read(path).unwrap());
    Sandbox::new(config).unwrap().load(PluginSpec { snapshot, ..spec })
}

pub(crate) fn registry(plugin: &Plugin) -> &Registry {
    &plugin.core.registry
}

pub(crate) fn core_of(plugin: &Plugin) -> Arc<Core> {
    Arc::clone(&plugin.core)
}

/// What it was loaded in, and as.
pub(crate) fn parts(plugin: &Plugin) -> (&Core, &Arc<Blueprint>) {
    (&plugin.core, &plugin.blueprint)
}

pub(crate) fn by(tenant: &str) -> CallContext {
    CallContext {
        request_id: RequestId::new("r1"),
        caller: Arc::new(Caller { tenant: TenantId::new(tenant), ..Caller::local() }),
        hops: 0,
        retention: Retention::Kept,
        deadline: Duration::from_secs(60),
        began: None,
        streaming: false,
    }
}

/// Each is within its own budget.
#[tokio::test]
async fn what_a_tenants_calls_together_may_not_log_is_left_out_and_counted_and_others_lines_are_there() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/dist/floods.wasm");
    let config = SandboxConfig { total_instances: 2, total_waiting_instances: 1, ..SandboxConfig::default() };
    let spec = PluginSpec { shared: true, ..PluginSpec::new("floods", std::fs::read(path).unwrap()) };
    let plugin = Sandbox::new(config).unwrap().load(spec).unwrap();
    let messages = [Message::text("m0", Role::User, "5")];
    let prompt = Prompt { messages: &messages, tools: &[], params: &[] };
    let rate = &plugin.blueprint.log_rate;
    // A second that is not over before that moment comes.
    let later = Instant::now() + Duration::from_secs(3600);
    assert!(rate.take(&TenantId::new("a"), rate.bytes_per_s(), 0, later).is_within);
    for tenant in ["a", "b", "b", "a"] {
        plugin.inspect_prompt(&by(tenant), prompt).await.unwrap();
    }
    let told = rate.take(&TenantId::new("c"), 0, 0, later + Duration::from_secs(1)).left_out;
    assert_eq!(told, [(TenantId::new("a"), 10)]);
}

/// Where all calls may log no more, what is said of a call is left out and counted, too.
#[tokio::test]
async fn what_a_call_may_not_log_is_told_also_where_it_comes_to_no_end() {
    let plugin = load(1, Snapshot::Never).unwrap();
    let (rate, later) = (&plugin.blueprint.log_rate, Instant::now() + Duration::from_secs(3600));
    let tenant = TenantId::new("a");
    assert!(rate.take(&tenant, rate.bytes_per_s(), 0, later).is_within);
    let pool = plugin.pool(&by("a"));
    for over in [3, 0] {
        let mut lease = pool.lease(&tenant, Class::default(), Instant::now() + Duration::from_secs(60)).await.unwrap();
        let log = &mut lease.instance.store.data_mut().log;
        assert_eq!((0..over).filter(|_| log.take(1 << 20)).count(), 0);
        drop(lease);
    }
    let told = rate.take(&TenantId::new("b"), 0, 0, later + Duration::from_secs(1)).left_out;
    assert_eq!(told, [(tenant, 3)]);
}

#[test]
fn what_reading_a_snapshot_takes_is_no_plugins_peak() {
    let peak = |snapshot| {
        let plugin = load(1, snapshot).unwrap();
        assert_eq!(plugin.starts_configured(), snapshot == Snapshot::Asked);
        plugin.blueprint.memory_peak.as_ref().unwrap().load(Ordering::Relaxed)
    };
    assert_eq!(peak(Snapshot::Asked), peak(Snapshot::Never));
}
