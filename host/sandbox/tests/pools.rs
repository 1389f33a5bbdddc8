//! Who gets an instance: reuse, replacement, bounds, and that no instance crosses a tenant.

use crate::support::{by, ctx, guest, inspect, load, small, spec};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{
    Action, CallContext, CallError, Grants, HttpGrant, Limits, SecretGrant, StageKind, Verdict,
};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig, Snapshot, StreamPool};
use tidegate_types::{Part, ProjectId, Retention};
use tokio::task::JoinHandle;

/// Which call of its instance this was.
async fn nth_call(plugin: &Plugin, tenant: &str) -> u32 {
    match inspect(plugin, &by(tenant), "calls").await.unwrap().action {
        Action::Respond(parts) => match &parts[..] {
            [Part::Text(count)] => count.parse().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn sandbox(config: impl FnOnce(&mut SandboxConfig)) -> Sandbox {
    let mut settings = small();
    config(&mut settings);
    Sandbox::new(settings).unwrap()
}

#[tokio::test]
async fn an_instance_is_reused_by_its_tenant_only() {
    let plugin = load("honest");
    assert_eq!(nth_call(&plugin, "reuse-a").await, 1);
    assert_eq!(nth_call(&plugin, "reuse-a").await, 2);
    assert_eq!(nth_call(&plugin, "reuse-b").await, 1);
    assert_eq!(nth_call(&plugin, "reuse-a").await, 3);
}

#[tokio::test]
async fn an_instance_is_replaced_after_its_calls_or_its_age() {
    let by_calls = sandbox(|config| config.recycle_after_calls = 2).load(spec("honest")).unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(nth_call(&by_calls, "a").await);
    }
    assert_eq!(seen, [1, 2, 1, 2, 1]);
    let by_age = sandbox(|config| config.max_age = Duration::ZERO).load(spec("honest")).unwrap();
    assert_eq!((nth_call(&by_age, "a").await, nth_call(&by_age, "a").await), (1, 1));
}

#[tokio::test]
async fn the_next_call_finds_the_successor_of_an_instance_that_was_replaced() {
    let sandbox = sandbox(|config| config.recycle_after_calls = 2);
    let plugin = sandbox.load(spec("honest")).unwrap();
    for _ in 0..3 {
        assert_eq!((nth_call(&plugin, "a").await, nth_call(&plugin, "a").await), (1, 2));
        // Nobody calls meanwhile.
        let is_made = async {
            while sandbox.usage().memory_bytes == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_made).await.expect("a successor is made");
        assert_eq!(sandbox.usage().instances, 1);
    }
}

#[tokio::test]
async fn idle_instances_are_dropped_in_the_end() {
    let sandbox = sandbox(|config| config.max_idle = Duration::ZERO);
    let plugin = sandbox.load(spec("honest")).unwrap();
    nth_call(&plugin, "a").await;
    assert_eq!(sandbox.usage().instances, 1);
    while sandbox.usage().instances > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sandbox.usage().memory_bytes, 0);
}

#[tokio::test]
async fn the_instance_that_was_idle_longest_gives_way_to_another_tenant() {
    let sandbox = sandbox(|config| config.total_instances = 2);
    let plugin = sandbox.load(spec("honest")).unwrap();
    for tenant in ["a", "b", "c"] {
        assert_eq!(nth_call(&plugin, tenant).await, 1);
        assert!(sandbox.usage().instances <= 2);
    }
    assert_eq!(nth_call(&plugin, "b").await, 2, "`a` was the one to go");
    assert_eq!(nth_call(&plugin, "a").await, 1);
}

#[tokio::test]
async fn memory_of_all_instances_is_bounded_and_idle_ones_give_way() {
    let sandbox = sandbox(|config| config.total_memory_bytes = 24 << 20);
    let hoards = sandbox.load(spec("hoards")).unwrap();
    inspect(&hoards, &by("a"), "8").await.unwrap();
    assert!(sandbox.usage().memory_bytes > 8 << 20);
    inspect(&hoards, &by("b"), "8").await.unwrap();
    inspect(&hoards, &by("c"), "8").await.unwrap();
    assert!(sandbox.usage().memory_bytes <= 24 << 20);
    let full = inspect(&hoards, &by("d"), "30").await.unwrap_err();
    let expected = CallError::Full {
        plugin: "hoards".into(),
        what: "bytes of memory",
        key: "plugins.memory_mib",
        limit: 24 << 20,
    };
    assert_eq!(full, expected);
    inspect(&hoards, &by("d"), "8").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_an_instance_and_then_is_told_that_all_are_busy() {
    let limits = Limits { instances: 1, ..spec("loops").limits };
    let plugin = crate::support::shared().load(PluginSpec { limits, ..spec("loops") }).unwrap();
    let spinning = {
        let plugin = plugin.clone();
        tokio::spawn(async move { inspect(&plugin, &by("busy"), "loop").await })
    };
    while nothing_runs(&plugin).await {
        tokio::task::yield_now().await;
    }
    let mut hurried = by("busy");
    hurried.deadline = Duration::from_millis(20);
    let error = inspect(&plugin, &hurried, "go on").await.unwrap_err();
    assert_eq!(error, CallError::Busy { plugin: "loops".into(), instances: 1 });
    inspect(&plugin, &by("free"), "another tenant").await.unwrap();

    let waiting = {
        let plugin = plugin.clone();
        tokio::spawn(async move { inspect(&plugin, &by("busy"), "go on").await })
    };
    spinning.abort();
    waiting.await.unwrap().unwrap();
}

/// Others were answered meanwhile, whether their instance stays or not, and nothing is said against the plugin; where none was, it
/// hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_had_an_instance_too_late_is_told_that_all_were_busy() {
    let limits = Limits { instances: 1, ..spec("loops").limits };
    let plugin = crate::support::shared().load(PluginSpec { limits, ..spec("loops") }).unwrap();
    let mut hurried = by("busy");
    hurried.deadline = Duration::from_millis(600);
    let deadline = CallError::Deadline { plugin: "loops".into(), clock: "wall", limit: hurried.deadline };
    for another in [Some(Retention::Kept), Some(Retention::Nothing), None] {
        let spinning = {
            let plugin = plugin.clone();
            tokio::spawn(async move { inspect(&plugin, &by("busy"), "loop").await })
        };
        while nothing_runs(&plugin).await {
            tokio::task::yield_now().await;
        }
        let answered = async {
            match another {
                Some(retention) => inspect(&plugin, &CallContext { retention, ..by("busy") }, "go on").await.map(drop),
                None => Ok(()),
            }
        };
        let end = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            spinning.abort();
        };
        let (answered, late, ()) = tokio::join!(answered, inspect(&plugin, &hurried, "loop"), end);
        answered.unwrap();
        let busy = CallError::Busy { plugin: "loops".into(), instances: 1 };
        assert_eq!(late.unwrap_err(), if another.is_some() { busy } else { deadline.clone() }, "{another:?}");
    }
    assert_eq!(inspect(&plugin, &hurried, "loop").await.unwrap_err(), deadline);
}

/// Reading a config of megabytes takes longer than a call has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_an_instance_takes_nothing_of_the_time_of_the_call_that_needs_it() {
    let sandbox = sandbox(|config| config.configure_cpu = Duration::from_secs(20));
    // Each byte is one that the guest looks for.
    let config = serde_json::json!({"pad": "e".repeat(16 << 20)});
    let plugin = sandbox.load(PluginSpec { config, snapshot: Snapshot::Never, ..spec("honest") }).unwrap();
    let making = Instant::now();
    plugin.make_instance().await.unwrap();
    let mut hurried = by("a");
    hurried.deadline = making.elapsed() / 2;
    let verdict = inspect(&plugin, &hurried, "calls").await.unwrap();
    assert!(matches!(&verdict.action, Action::Respond(parts) if parts == &[Part::Text("1".into())]), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_one_after_the_other_have_their_instance_made_in_the_end() {
    let sandbox = sandbox(|config| config.configure_cpu = Duration::from_secs(20));
    let config = serde_json::json!({"pad": "e".repeat(16 << 20)});
    let plugin = sandbox.load(PluginSpec { config, snapshot: Snapshot::Never, ..spec("honest") }).unwrap();
    let making = Instant::now();
    plugin.make_instance().await.unwrap();
    let patience = making.elapsed() / 4;
    let served = async {
        while tokio::time::timeout(patience, nth_call(&plugin, "a")).await.is_err() {
            // None where one was cut off in the call itself, which ends its instance.
            assert!(sandbox.usage().instances <= 1, "they all wait for the same one");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served).await.expect("none of them has to begin again");
}

/// Whether tenant `busy` can still be served at once.
async fn nothing_runs(plugin: &Plugin) -> bool {
    let mut hurried = by("busy");
    hurried.deadline = Duration::from_millis(20);
    inspect(plugin, &hurried, "go on").await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_get_their_instance_in_the_order_in_which_they_came() {
    let limits = Limits { instances: 1, ..spec("loops").limits };
    let plugin = crate::support::shared().load(PluginSpec { limits, ..spec("loops") }).unwrap();
    let spinning = {
        let plugin = plugin.clone();
        tokio::spawn(async move { inspect(&plugin, &by("busy"), "loop").await })
    };
    while nothing_runs(&plugin).await {
        tokio::task::yield_now().await;
    }
    let served = Mutex::new(Vec::new());
    let wait = |n: u32| {
        let (plugin, served) = (&plugin, &served);
        async move {
            inspect(plugin, &by("busy"), "go on").await.unwrap();
            served.lock().push(n);
        }
    };
    // Each is asked for its future once, in order, before anything else is.
    futures_util::future::join(join_all((0..8).map(wait)), async { spinning.abort() }).await;
    assert_eq!(*served.lock(), (0..8).collect::<Vec<u32>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_way_to_end_a_call_costs_its_place() {
    let limits = Limits { instances: 1, ..spec("honest").limits };
    let plugin = crate::support::shared().load(PluginSpec { limits, ..spec("honest") }).unwrap();
    let call = |n: u64| {
        let plugin = plugin.clone();
        tokio::spawn(async move {
            let mut ctx = by("places");
            if n.is_multiple_of(3) {
                ctx.deadline = Duration::from_micros(20 * n);
            }
            let _ = inspect(&plugin, &ctx, "calls").await;
        })
    };
    let calls: Vec<_> = (0..400).map(call).collect();
    for (n, call) in calls.into_iter().enumerate() {
        if n % 4 == 0 {
            call.abort();
        }
        let _ = call.await;
    }
    inspect(&plugin, &by("places"), "calls").await.unwrap();
}

/// A thread that makes a call each time that it is told to, and says which of its instance it was.
struct Calling {
    go: SyncSender<()>,
    counts: Receiver<u32>,
}

impl Calling {
    fn start(plugin: &Arc<Plugin>) -> Self {
        let ((go, told), (tell, counts), plugin) = (sync_channel(1), sync_channel(1), plugin.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            while let Ok(()) = told.recv() {
                tell.send(runtime.block_on(nth_call(&plugin, "a"))).unwrap();
            }
        });
        Self { go, counts }
    }

    fn call(&self) -> u32 {
        self.go.send(()).unwrap();
        self.counts.recv().unwrap()
    }
}

#[test]
fn a_thread_gets_the_instance_that_it_used_last_and_any_other_before_a_new_one() {
    // On a busy machine it takes many calls before two are made at once.
    let sandbox = sandbox(|config| config.recycle_after_calls = u32::MAX);
    let plugin = sandbox.load(spec("honest")).unwrap();
    let [a, b, c] = [(); 3].map(|()| Calling::start(&plugin));
    while sandbox.usage().instances < 2 {
        a.go.send(()).unwrap();
        b.go.send(()).unwrap();
        for calling in [&a, &b] {
            calling.counts.recv().unwrap();
        }
    }
    let first = [a.call(), b.call()];
    assert_eq!([a.call(), b.call()], first.map(|count| count + 1));
    assert_eq!(c.call(), first[1] + 2, "the one that was used last");
    assert_eq!(a.call(), first[0] + 2);
    assert_eq!(sandbox.usage().instances, 2);
}

#[tokio::test]
async fn a_busy_sandbox_says_that_all_plugins_are() {
    let sandbox = sandbox(|config| config.total_instances = 1);
    let plugin = sandbox.load(spec("loops")).unwrap();
    let spinning = {
        let plugin = plugin.clone();
        tokio::spawn(async move { inspect(&plugin, &by("a"), "loop").await })
    };
    while sandbox.usage().instances == 0 {
        tokio::task::yield_now().await;
    }
    let mut hurried = by("a");
    hurried.deadline = Duration::from_millis(20);
    let error = inspect(&plugin, &hurried, "go on").await.unwrap_err();
    assert_eq!(
        error,
        CallError::Full { plugin: "loops".into(), what: "instances", key: "plugins.instances", limit: 1 }
    );
    inspect(&plugin, &by("b"), "another tenant has its share").await.unwrap();
    spinning.abort();
    inspect(&plugin, &by("a"), "go on").await.unwrap();
}

/// A call that ends when it is aborted.
fn spin(plugin: &Arc<Plugin>, ctx: CallContext) -> JoinHandle<Result<Verdict, CallError>> {
    let plugin = plugin.clone();
    tokio::spawn(async move { inspect(&plugin, &ctx, "loop").await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_fills_all_places_shuts_out_itself_alone_however_many_projects_it_has() {
    let sandbox = sandbox(|config| config.total_instances = 3);
    let plugin = sandbox.load(spec("loops")).unwrap();
    let in_project = |name: &str| {
        let mut ctx = by("greedy");
        Arc::make_mut(&mut ctx.caller).project = ProjectId::new(&format!("proj_greedy.{name}"));
        ctx
    };
    let spinning = ["a", "b", "c"].map(|name| spin(&plugin, in_project(name)));
    while sandbox.usage().instances < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut hurried = in_project("d");
    hurried.deadline = Duration::from_millis(20);
    let error = inspect(&plugin, &hurried, "go on").await.unwrap_err();
    assert_eq!(
        error,
        CallError::Full { plugin: "loops".into(), what: "instances", key: "plugins.instances", limit: 3 }
    );
    inspect(&plugin, &by("other"), "go on").await.unwrap();
    spinning.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_all_places_of_a_tenant_hang_others_keep_their_warm_instances() {
    let sandbox = sandbox(|config| config.total_instances = 2);
    let (loops, honest) = (sandbox.load(spec("loops")).unwrap(), sandbox.load(spec("honest")).unwrap());
    let spinning = [(); 2].map(|()| spin(&loops, by("greedy")));
    while sandbox.usage().instances < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((nth_call(&honest, "other").await, nth_call(&honest, "other").await), (1, 2));
    let mut hurried = by("greedy");
    hurried.deadline = Duration::from_millis(20);
    inspect(&loops, &hurried, "go on").await.unwrap_err();
    assert_eq!(nth_call(&honest, "other").await, 3, "who has all there is takes nobody's for nothing");
    let waiting = tokio::spawn(async move { inspect(&loops, &by("greedy"), "go on").await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((nth_call(&honest, "other").await, nth_call(&honest, "other").await), (4, 5), "while somebody waits");
    spinning[0].abort();
    let served = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    served.expect("within the limit what is idle gives way").unwrap().unwrap();
    spinning[1].abort();
}

/// Two calls that need the one place there is, again and again: each must see that the other leaves an idle instance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_what_is_idle() {
    let sandbox = sandbox(|config| config.total_instances = 1);
    let load = |name: &str| sandbox.load(PluginSpec { name: name.into(), ..spec("loops") }).unwrap();
    let plugins = [load("one"), load("other")];
    for round in 0..3000 {
        let call = |plugin: &Arc<Plugin>| {
            let plugin = plugin.clone();
            tokio::spawn(async move { inspect(&plugin, &by("a"), "go on").await })
        };
        let both = join_all(plugins.each_ref().map(call));
        let both = tokio::time::timeout(Duration::from_secs(20), both).await;
        let both = both.unwrap_or_else(|_| panic!("somebody waits, in round {round}"));
        both.into_iter().for_each(|call| drop(call.unwrap().unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_fills_all_memory_shuts_out_itself_alone() {
    let sandbox = sandbox(|config| config.total_memory_bytes = 4 << 20);
    let [plugin, honest] = ["loops", "honest"].map(|guest| sandbox.load(spec(guest)).unwrap());
    let mut spinning = Vec::new();
    let error = loop {
        let before = sandbox.usage().memory_bytes;
        let call = spin(&plugin, by("greedy"));
        while sandbox.usage().memory_bytes == before && !call.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if call.is_finished() {
            break call.await.unwrap().unwrap_err();
        }
        spinning.push(call);
    };
    assert_eq!(
        error,
        CallError::Full { plugin: "loops".into(), what: "bytes of memory", key: "plugins.memory_mib", limit: 4 << 20 }
    );
    assert_eq!(nth_call(&honest, "other").await, 1);
    assert_eq!(inspect(&plugin, &by("greedy"), "go on").await.unwrap_err(), error);
    assert_eq!(nth_call(&honest, "other").await, 2, "what there is too little of is taken from nobody's idle ones");
    spinning.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_of_many_tenants_all_get_their_own_answer() {
    let sandbox = sandbox(|config| config.total_instances = 6);
    let plugin = sandbox.load(spec("honest")).unwrap();
    let panics = sandbox.load(spec("panics")).unwrap();
    let calls: Vec<_> = (0..200).map(|n| tokio::spawn(one_of_many(plugin.clone(), panics.clone(), n))).collect();
    for call in calls {
        call.await.unwrap();
    }
    assert!(sandbox.usage().instances <= 6);
}

async fn one_of_many(plugin: Arc<Plugin>, panics: Arc<Plugin>, n: usize) {
    let tenant = by(["a", "b", "c", "d"][n % 4]);
    match n % 5 {
        0 => {
            let trapped = inspect(&panics, &tenant, "panic").await.unwrap_err();
            assert!(matches!(trapped, CallError::Trap { .. }), "{trapped}");
        }
        _ => {
            let text = format!("####{n}");
            let window = crate::support::window(&text, 0);
            let inspection = plugin.inspect_window(&tenant, &[], window).await.unwrap();
            assert_eq!(inspection.safe_through as usize, text.len());
        }
    }
}

#[tokio::test]
async fn a_plugin_goes_on_when_its_sandbox_handle_is_gone() {
    let plugin = sandbox(|_| ()).load(spec("honest")).unwrap();
    inspect(&plugin, &ctx(), "hello").await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_is_loaded_the_same_way_again_has_its_warm_instances() {
    let sandbox = sandbox(|_| ());
    let spec = || PluginSpec { config: serde_json::json!({"a": 1}), ..spec("honest") };
    let first = sandbox.load_or_reuse(spec()).unwrap();
    assert_eq!(nth_call(&first, "a").await, 1);
    let again = sandbox.load_or_reuse(spec()).unwrap();
    assert_eq!(nth_call(&again, "a").await, 2, "component, config, grants and limits are the same");
    let other = sandbox.load_or_reuse(PluginSpec { config: serde_json::json!({"a": 2}), ..spec() }).unwrap();
    assert_eq!(nth_call(&other, "a").await, 1, "another config");
    let limits = Limits { instances: 3, ..spec().limits };
    let limited = sandbox.load_or_reuse(PluginSpec { limits, ..spec() }).unwrap();
    assert_eq!(nth_call(&limited, "a").await, 1, "other limits");
    drop((first, again));
    let fresh = sandbox.load_or_reuse(spec()).unwrap();
    assert_eq!(nth_call(&fresh, "a").await, 1, "nobody kept it");
}

/// A plugin that may do less since the config was changed is another; so it is in all that a spec says.
#[test]
fn a_plugin_that_is_loaded_in_any_other_way_is_another() {
    let sandbox = sandbox(|_| ());
    let http =
        |origins: &[&str]| Some(HttpGrant::new(origins.iter().map(|origin| format!("https://{origin}.example"))));
    let secrets =
        |values: [&str; 2]| ["a", "b"].into_iter().map(str::to_owned).zip(values.map(SecretGrant::new)).collect();
    let grants = Grants { http: http(&["a", "b"]), secrets: secrets(["hunter", "22"]), ..Grants::default() };
    let stages = |kinds: &[StageKind]| Some(kinds.to_vec());
    let both = stages(&[StageKind::PromptGuard, StageKind::StreamGuard]);
    let spec = || PluginSpec { grants: grants.clone(), stages: both.clone(), ..spec("honest") };
    let load = |spec: &PluginSpec| sandbox.load_or_reuse(spec.clone()).unwrap();
    let first = load(&spec());
    for (what, other) in [
        ("name", PluginSpec { name: "other".into(), ..spec() }),
        ("component", PluginSpec { component: guest("lies").into(), ..spec() }),
        ("config", PluginSpec { config: serde_json::json!({"a": 1}), ..spec() }),
        ("an origin", PluginSpec { grants: Grants { http: http(&["b"]), ..grants.clone() }, ..spec() }),
        ("a secret", PluginSpec { grants: Grants { secrets: secrets(["hunter", "23"]), ..grants.clone() }, ..spec() }),
        (
            "whose it is",
            PluginSpec { grants: Grants { secrets: secrets(["hunter2", "2"]), ..grants.clone() }, ..spec() },
        ),
        ("limits", PluginSpec { limits: Limits { instances: 3, ..spec().limits }, ..spec() }),
        ("stages", PluginSpec { stages: stages(&[StageKind::StreamGuard]), ..spec() }),
        ("shared", PluginSpec { shared: true, ..spec() }),
        ("snapshot", PluginSpec { snapshot: Snapshot::Asked, ..spec() }),
    ] {
        let loaded = load(&other);
        assert!(!Arc::ptr_eq(&loaded, &first), "{what}");
        assert!(Arc::ptr_eq(&loaded, &load(&other)) && Arc::ptr_eq(&first, &load(&spec())), "{what}");
    }
}

#[tokio::test]
async fn tenants_share_instances_only_where_the_operator_says_so_and_nothing_could_leak() {
    let sandbox = sandbox(|_| ());
    let shared = sandbox.load(PluginSpec { shared: true, ..spec("honest") }).unwrap();
    assert_eq!((nth_call(&shared, "a").await, nth_call(&shared, "b").await), (1, 2));
    let grants = tidegate_sandbox::stage::Grants { kv_bytes: Some(1024), ..Default::default() };
    let refused = sandbox.load(PluginSpec { shared: true, grants, ..spec("remembers") }).unwrap_err();
    assert_eq!(refused.cause, tidegate_sandbox::LoadCause::Shared);
}

/// The shipped word guard with so many words that its automaton takes a while to build.
fn many_words(snapshot: Snapshot) -> PluginSpec {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/dist/word-guard.wasm");
    let words: Vec<String> = (0..5000).map(|n| format!("word{n}x{}", n * 7919)).collect();
    let config = serde_json::json!({"words": words, "action": "block"});
    let limits = spec("honest").limits;
    PluginSpec { config, snapshot, limits, ..PluginSpec::new("words", std::fs::read(path).unwrap()) }
}

/// Prints what a fresh instance's first call costs either way; what is tested is that both decide the same.
#[tokio::test]
async fn an_instance_from_a_snapshot_decides_as_one_that_was_configured() {
    let sandbox = sandbox(|config| config.recycle_after_calls = 1);
    let [built, taken] =
        [Snapshot::Never, Snapshot::WhereSound].map(|snapshot| sandbox.load(many_words(snapshot)).unwrap());
    assert!(taken.starts_configured() && !built.starts_configured());
    for (text, blocked) in [("a word7x55433 here", true), ("nothing of it", false), ("word4999x39587081", true)] {
        let mut times = Vec::new();
        for plugin in [&built, &taken] {
            let started = std::time::Instant::now();
            let verdict = inspect(plugin, &by("a"), text).await.unwrap();
            times.push(started.elapsed());
            assert_eq!(matches!(verdict.action, Action::Refuse(_)), blocked, "{text}");
        }
        println!("a fresh instance and its first call: configured {:?}, from a snapshot {:?}", times[0], times[1]);
    }
}

#[tokio::test]
async fn a_snapshot_knows_its_config_and_nothing_of_calls() {
    let sandbox = sandbox(|config| config.recycle_after_calls = 2);
    let config = serde_json::json!({"output": "refuse"});
    let plugin = sandbox.load(PluginSpec { config, snapshot: Snapshot::Asked, ..spec("honest") }).unwrap();
    assert!(plugin.starts_configured());
    assert_eq!((nth_call(&plugin, "a").await, nth_call(&plugin, "a").await), (1, 2));
    assert_eq!(nth_call(&plugin, "a").await, 1, "a new instance begins where `configure` ended");
    let choices = [tidegate_types::Message::text("choice-0", tidegate_types::Role::Assistant, "hello")];
    let output =
        tidegate_sandbox::stage::Output { choices: &choices, finish_reasons: &["stop"], usage: None, attrs: &[] };
    let verdict = plugin.inspect_output(&by("b"), output).await.unwrap();
    assert!(matches!(verdict.action, Action::Refuse(_)), "{verdict:?}");
}

#[test]
fn a_snapshot_that_could_hold_what_is_a_tenants_is_refused_and_never_taken_unasked() {
    let sandbox = sandbox(|_| ());
    let load = |snapshot| {
        let grants = tidegate_sandbox::stage::Grants { kv_bytes: Some(1024), ..Default::default() };
        sandbox.load(PluginSpec { snapshot, grants, ..spec("remembers") })
    };
    assert_eq!(load(Snapshot::Asked).unwrap_err().cause, tidegate_sandbox::LoadCause::Snapshot);
    assert!(!load(Snapshot::WhereSound).unwrap().starts_configured());
}

#[tokio::test]
async fn a_pool_that_is_kept_for_a_stream_serves_its_own_plugin_and_owner_only() {
    let sandbox = sandbox(|_| ());
    let [plugin, other] =
        ["one", "other"].map(|name| sandbox.load(PluginSpec { name: name.into(), ..spec("honest") }).unwrap());
    let mut pool = StreamPool::default();
    for (plugin, tenant) in [(&plugin, "a"), (&plugin, "a"), (&plugin, "b"), (&other, "b"), (&plugin, "a")] {
        let window = crate::support::window("hello", 0);
        plugin.inspect_window_in(&mut pool, &by(tenant), &[], window).await.unwrap();
    }
    assert_eq!(nth_call(&plugin, "a").await, 4, "three windows");
    assert_eq!(nth_call(&plugin, "b").await, 2);
    assert_eq!(nth_call(&other, "b").await, 2);
}
