use super::*;
use crate::engine::FIBER_STACK;
use crate::meter::EnterAgain;
use crate::registry::Registry;
use crate::sandbox::{PluginSpec, Sandbox, Snapshot};
use crate::stage::Limits;
use crate::{LoadError, SandboxConfig};
use std::time::Instant;
use tidegate_types::{Caller, Class, RequestId, Retention, Role};

/// The guest `loops` in a sandbox of so many instances.
pub(crate) fn load(total_instances: u32, snapshot: Snapshot) -> Result<Arc<Plugin>, LoadError> {
    load_into(total_instances, PluginSpec { snapshot, ..spec("loops") })
}

fn spec(guest: &str) -> PluginSpec {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/dist/");
    PluginSpec::new(guest, std::fs::read(format!("{folder}{guest}.wasm")).unwrap())
}

/// One that may be entered on its caller's stack, and has time.
fn direct(guest: &str) -> PluginSpec {
    let limits = Limits { cpu: Duration::from_secs(10), wall: Duration::from_secs(60), ..Limits::default() };
    PluginSpec { snapshot: Snapshot::Asked, limits, ..spec(guest) }
}

fn load_into(total_instances: u32, spec: PluginSpec) -> Result<Arc<Plugin>, LoadError> {
    let config = SandboxConfig { total_instances, total_waiting_instances: 1, ..SandboxConfig::default() };
    Sandbox::new(config).unwrap().load(spec)
}

async fn ask(plugin: &Plugin, tenant: &str, text: &str) -> Result<Verdict, CallError> {
    let messages = [Message::text("m0", Role::User, text)];
    plugin.inspect_prompt(&by(tenant), Prompt { messages: &messages, tools: &[], params: &[] }).await
}

/// Whether the last call of the instance that is there now was made on its caller's stack.
fn was_direct(plugin: &Plugin, tenant: &str) -> bool {
    let pool = plugin.pool(&by(tenant));
    let idle = pool.last_idle(|instance| instance.store.data().meter.is_direct());
    idle.expect("the instance is kept")
}

/// How many calls of a tenant are entered on fibers from now on.
fn on_fibers(plugin: &Plugin, tenant: &str) -> u32 {
    plugin.pool(&by(tenant)).on_fibers.left()
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

/// Of an instance that serves nobody.
pub(crate) fn state_of(plugin: &Plugin) -> HostState {
    let nobody = Namespace::of_tenant(plugin.blueprint.name.clone(), TenantId::new(""));
    HostState::new(plugin.blueprint.clone(), nobody, Phase::Serve)
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
    let plugin = load_into(2, PluginSpec { shared: true, ..spec("floods") }).unwrap();
    let rate = &plugin.blueprint.log_rate;
    // A second that is not over before that moment comes.
    let later = Instant::now() + Duration::from_secs(3600);
    assert!(rate.take(&TenantId::new("a"), rate.bytes_per_s(), 0, later).is_within);
    for tenant in ["a", "b", "b", "a"] {
        ask(&plugin, tenant, "5").await.unwrap();
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

/// What a guest logs is there once all the same, as the tests above count.
#[tokio::test]
async fn a_guest_that_takes_long_or_acts_is_entered_again_on_a_fiber_as_the_next_ones_are() {
    for (guest, text) in [("dawdles", "100"), ("floods", "1")] {
        let plugin = load_into(2, PluginSpec { shared: true, ..direct(guest) }).unwrap();
        let left = || on_fibers(&plugin, "a");
        ask(&plugin, "a", "0").await.unwrap();
        assert_eq!((was_direct(&plugin, "a"), left()), (true, 0), "{guest}");
        ask(&plugin, "a", text).await.unwrap();
        assert_eq!((was_direct(&plugin, "a"), left()), (false, 1_000), "{guest}");
        plugin.pool(&by("a")).on_fibers.end_after(1);
        for direct in [false, true] {
            ask(&plugin, "a", "0").await.unwrap();
            assert_eq!((was_direct(&plugin, "a"), left()), (direct, 0), "{guest}");
        }
    }
}

/// As the call that follows, which else would hold the thread as long once more; another tenant's texts had no part in that.
#[tokio::test]
async fn of_a_tenant_whose_glance_takes_long_calls_are_entered_on_fibers() {
    for (text, left) in [("loop", 1_000), ("panic", 0)] {
        let plugin = load_into(2, direct("glances")).unwrap();
        for tenant in ["a", "b"] {
            ask(&plugin, tenant, "word").await.unwrap();
        }
        assert!(!plugin.allows_at_a_glance(&by("a"), &[Message::text("m0", Role::User, text)]));
        let (a, b) = (plugin.pool(&by("a")), plugin.pool(&by("b")));
        let detours = |pool: &Pool| (pool.on_fibers.left(), pool.in_full.left());
        assert_eq!((detours(&a), detours(&b)), ((left, 1_000), (0, 0)), "{text}");
    }
}

#[tokio::test]
async fn a_glance_that_has_an_answer_wears_its_instance_as_a_call_does() {
    let plugin = load_into(1, direct("glances")).unwrap();
    let calls = || plugin.pool(&by("a")).last_idle(|instance| instance.calls).unwrap();
    ask(&plugin, "a", "word").await.unwrap();
    for (text, expected) in [("word", 2), ("unsure", 2), ("word", 3)] {
        plugin.allows_at_a_glance(&by("a"), &[Message::text("m0", Role::User, text)]);
        assert_eq!(calls(), expected, "{text}");
    }
}

/// As without a second attempt (`tests/pools.rs`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_had_an_instance_too_late_is_told_that_all_were_busy_where_it_is_entered_again() {
    let spec = direct("loops");
    let plugin = load_into(2, PluginSpec { limits: Limits { instances: 1, ..spec.limits.clone() }, ..spec }).unwrap();
    let spinning = {
        let plugin = plugin.clone();
        tokio::spawn(async move { ask(&plugin, "a", "loop").await })
    };
    while on_fibers(&plugin, "a") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let hurried = CallContext { deadline: Duration::from_millis(600), ..by("a") };
    let messages = [Message::text("m0", Role::User, "loop")];
    let late = plugin.inspect_prompt(&hurried, Prompt { messages: &messages, tools: &[], params: &[] });
    let end = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        plugin.pool(&by("a")).on_fibers.end_after(0);
        spinning.abort();
    };
    let (answered, late, ()) = tokio::join!(ask(&plugin, "a", "go on"), late, end);
    answered.unwrap();
    assert_eq!(late.unwrap_err(), CallError::Busy { plugin: "loops".into(), instances: 1 });
    assert_ne!(on_fibers(&plugin, "a"), 0, "it was entered again");
}

/// Else it would be done twice.
#[tokio::test]
async fn what_cannot_be_undone_is_not_done_on_the_callers_stack() {
    use crate::bindings::tidegate::plugin::{clock, log, metrics};
    let plugin = load(1, Snapshot::Never).unwrap();
    let mut state = state_of(&plugin);
    for direct in [false, true] {
        state.meter.restart(Duration::from_secs(1), Instant::now());
        if direct {
            state.meter.enter_directly();
        }
        clock::Host::now_unix_ms(&mut state).unwrap();
        let done = [
            log::Host::write(&mut state, log::Level::Debug, "a".into(), Vec::new()),
            metrics::Host::count(&mut state, "a".into(), 1),
            metrics::Host::observe(&mut state, "a".into(), 1.0),
        ];
        for done in done {
            assert_eq!(done.err().map(|error| error.is::<EnterAgain>()), direct.then_some(true));
        }
    }
}

/// Else its recursion would end the program.
#[test]
fn a_guest_is_entered_on_a_fiber_where_its_callers_stack_has_no_room_for_it() {
    let plugin = load(1, Snapshot::Asked).unwrap();
    let deep = load_into(1, direct("recurses")).unwrap();
    let ask_from = |stack: usize| {
        let calls = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                ask(&plugin, "a", "go on").await.unwrap();
                (was_direct(&plugin, "a"), ask(&deep, "a", "go on").await.unwrap_err())
            })
        };
        std::thread::scope(|scope| {
            std::thread::Builder::new().stack_size(stack).spawn_scoped(scope, calls).unwrap().join().unwrap()
        })
    };
    // A thread that ends leaves its stack to one that asks for a quarter of it or more.
    for (stack, direct) in [(FIBER_STACK * 3 / 8, false), (2 * FIBER_STACK, true)] {
        let (was_direct, error) = ask_from(stack);
        assert_eq!(was_direct, direct);
        assert!(matches!(error, CallError::Trap { .. }), "{error}");
    }
}
