//! One guest per way to misbehave. Each ends in the error that says what it did, its instance is gone, and the next
//! call, like every other plugin, goes on as if nothing had been.

use crate::frozen::summary;
use crate::support::{by, ctx, inspect, load, logged, shared, small, spec};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use tidegate_sandbox::stage::{Action, CallError, Grants, Limits, StageKind, Verdict};
use tidegate_sandbox::{LoadCause, Plugin, PluginSpec, Sandbox, SandboxConfig, Snapshot};

/// The guest with limits of its own.
fn limited(name: &str, limits: impl FnOnce(&mut Limits)) -> std::sync::Arc<Plugin> {
    let mut spec = spec(name);
    limits(&mut spec.limits);
    shared().load(spec).unwrap()
}

async fn allows(plugin: &Plugin, text: &str) {
    let verdict = inspect(plugin, &ctx(), text).await.unwrap();
    assert_eq!(verdict, Verdict { action: Action::Allow, findings: vec![], notes: vec![] });
}

#[tokio::test]
async fn an_endless_loop_ends_at_the_cpu_limit() {
    let plugin = limited("loops", |limits| limits.cpu = Duration::from_millis(20));
    let error = inspect(&plugin, &ctx(), "loop").await.unwrap_err();
    let limit = Duration::from_millis(20);
    assert_eq!(error, CallError::Deadline { plugin: "loops".into(), clock: "cpu", limit });
    allows(&plugin, "go on").await;
}

/// A plugin has its time by the stage in which it is called, and the usual where that has none of its own.
#[tokio::test]
async fn each_kind_of_stage_has_its_own_cpu_time() {
    let ms = Duration::from_millis;
    let mut spec = spec("honest");
    spec.config = serde_json::json!({"linger": "observer"});
    spec.limits.cpu = ms(30);
    for (stage_cpu, expected) in [
        (vec![(StageKind::PromptGuard, ms(20)), (StageKind::Observer, ms(40))], [ms(20), ms(40)]),
        (vec![(StageKind::Observer, ms(10))], [ms(30), ms(10)]),
    ] {
        spec.limits.stage_cpu = stage_cpu.into_iter().collect();
        let plugin = shared().load(spec.clone()).unwrap();
        let [asked, told] =
            [inspect(&plugin, &ctx(), "loop").await.map(drop), plugin.on_complete(&ctx(), summary()).await];
        for (ended, limit) in [asked, told].into_iter().zip(expected) {
            assert_eq!(ended, Err(CallError::Deadline { plugin: "honest".into(), clock: "cpu", limit }));
        }
    }
}

/// By what the kernel charged this thread, on which the guest runs; short limits and long ones. A busy machine may wake the
/// ticker late, or charge this thread what others had of its processor: the series with the least median shows what the sandbox
/// adds, and of all of them few may go on for long. `cargo xtask bench plugins` prints the most.
#[tokio::test]
async fn an_endless_loop_ends_within_10_ms_of_its_deadline_more_often_than_not_and_seldom_past_a_quarter_second() {
    let late = |all: &[Duration]| all.iter().filter(|over| **over >= Duration::from_millis(250)).count();
    // The others are whole ticks of a coarser clock, too.
    for (limit_ms, rounds) in [(20, 10), (43, 10), (100, 5), (500, 3)] {
        let limit = Duration::from_millis(limit_ms);
        let plugin = limited("loops", |limits| limits.cpu = limit);
        let (mut median, mut all) = (Duration::MAX, Vec::new());
        for _ in 0..5 {
            let over = past(limit, &plugin, rounds).await;
            println!("past {limit:?}: {over:?}");
            median = median.min(over[over.len() / 2]);
            all.extend(over);
            if median < Duration::from_millis(10) && late(&all) == 0 {
                break;
            }
        }
        assert!(median < Duration::from_millis(10) && late(&all) * 5 <= all.len(), "past {limit:?}: {all:?}");
    }
}

/// How long after its limit each of so many loops ended, the shortest first.
async fn past(limit: Duration, plugin: &Plugin, rounds: usize) -> Vec<Duration> {
    // Of a call's first stretch the wall time counts, as far as one look goes (`meter.rs`).
    let most_lacked = Duration::from_millis(16).min(limit / 2);
    let mut over = Vec::new();
    for _ in 0..rounds {
        let (before, began) = (spent(), Instant::now());
        inspect(plugin, &ctx(), "loop").await.unwrap_err();
        let (took, spent) = (began.elapsed(), spent() - before);
        // It has used all of its limit, but for what others had the processor meanwhile.
        let lacked = took.saturating_sub(spent).min(most_lacked);
        assert!(spent + lacked >= limit, "{spent:?} of {limit:?}, without the processor for {lacked:?}");
        over.push(spent.saturating_sub(limit));
    }
    over.sort();
    over
}

/// CPU of this thread, which the kernel settles when it sleeps.
fn spent() -> Duration {
    std::thread::sleep(Duration::from_nanos(1));
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn an_endless_loop_ends_at_the_wall_limit_or_the_callers_deadline() {
    let plugin = limited("loops", |limits| limits.wall = Duration::from_millis(50));
    let limit = Duration::from_millis(50);
    // Of its CPU time, 10 s, it uses as much as a machine gives it; a busy one may end it some seconds late.
    let began = Instant::now();
    let error = inspect(&plugin, &ctx(), "loop").await.unwrap_err();
    assert_eq!(error, CallError::Deadline { plugin: "loops".into(), clock: "wall", limit });
    let mut hurried = ctx();
    hurried.deadline = Duration::from_millis(10);
    let error = inspect(&plugin, &hurried, "loop").await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "both took {:?}", began.elapsed());
    assert!(matches!(error, CallError::Deadline { clock: "wall", limit, .. } if limit == hurried.deadline), "{error}");
    allows(&plugin, "go on").await;
}

/// By the clock on the wall, which goes on while a busy machine runs others: the least of several shows what the sandbox adds.
#[tokio::test]
async fn an_endless_loop_ends_within_10_ms_of_its_wall_limit_at_best() {
    for limit_ms in [100, 500] {
        let limit = Duration::from_millis(limit_ms);
        let plugin = limited("loops", |limits| limits.wall = limit);
        let mut over = Vec::new();
        while over.len() < 20 && !over.iter().any(|over| *over < Duration::from_millis(10)) {
            // Leaves an instance: making one is of no call's time.
            let _ = inspect(&plugin, &ctx(), "go on").await;
            let began = Instant::now();
            let error = inspect(&plugin, &ctx(), "loop").await.unwrap_err();
            let took = began.elapsed();
            assert_eq!(error, CallError::Deadline { plugin: "loops".into(), clock: "wall", limit });
            over.push(took.checked_sub(limit).unwrap_or_else(|| panic!("{took:?} of {limit:?}")));
        }
        println!("past {limit:?} on the wall: {over:?}");
        assert!(over.iter().any(|over| *over < Duration::from_millis(10)), "past {limit:?}: {over:?}");
    }
}

#[tokio::test]
async fn a_loop_does_not_hold_the_thread_from_others() {
    // One thread for both: the second call is served while the first one spins.
    let (loops, honest) = (load("loops"), load("honest"));
    let spinning = tokio::spawn(async move { inspect(&loops, &ctx(), "loop").await });
    tokio::task::yield_now().await;
    for _ in 0..10 {
        allows(&honest, "hello").await;
    }
    assert!(!spinning.is_finished(), "it still spins, within its 10 s of CPU time");
    spinning.abort();
    assert!(spinning.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn slow_work_within_the_limits_gets_its_result() {
    let plugin = load("dawdles");
    allows(&plugin, "30").await;
}

#[tokio::test]
async fn a_call_whose_caller_went_away_leaves_nothing_behind() {
    let plugin = limited("loops", |limits| limits.instances = 1);
    let ctx = ctx();
    for _ in 0..3 {
        let abandoned = tokio::time::timeout(Duration::from_millis(20), inspect(&plugin, &ctx, "loop"));
        assert!(abandoned.await.is_err());
        // The one instance that the tenant may have is free again, and it is not the one that was left in a loop.
        allows(&plugin, "go on").await;
    }
}

#[tokio::test]
async fn memory_over_the_limit_is_named_as_such() {
    let plugin = limited("hoards", |limits| limits.memory_bytes = 8 << 20);
    let error = inspect(&plugin, &ctx(), "100").await.unwrap_err();
    match error {
        CallError::Memory { limit, asked, .. } => assert!(limit == 8 << 20 && asked > limit, "{asked} of {limit}"),
        other => panic!("{other}"),
    }
    allows(&plugin, "2").await;
    allows(&plugin, "2").await;
}

#[tokio::test]
async fn memory_that_an_instance_keeps_counts_in_later_calls() {
    let plugin = limited("hoards", |limits| limits.memory_bytes = 8 << 20);
    let tenant = by("hoarder");
    for _ in 0..2 {
        inspect(&plugin, &tenant, "3").await.unwrap();
    }
    let error = inspect(&plugin, &tenant, "3").await.unwrap_err();
    assert!(matches!(error, CallError::Memory { .. }), "{error}");
    inspect(&plugin, &tenant, "3").await.unwrap();
}

#[tokio::test]
async fn recursion_without_end_is_a_trap() {
    let plugin = load("recurses");
    for _ in 0..3 {
        let error = inspect(&plugin, &ctx(), "").await.unwrap_err();
        assert!(matches!(&error, CallError::Trap { message, .. } if message.contains("recursion")), "{error}");
    }
}

#[tokio::test]
async fn a_panic_is_a_trap_and_the_next_call_works() {
    let plugin = load("panics");
    let error = inspect(&plugin, &ctx(), "panic").await.unwrap_err();
    assert!(matches!(&error, CallError::Trap { message, .. } if message.contains("unreachable")), "{error}");
    assert!(!error.to_string().contains("0x"), "no addresses, no backtrace: {error}");
    allows(&plugin, "go on").await;
}

#[tokio::test]
async fn a_result_over_the_limit_is_refused() {
    let plugin = limited("bloats", |limits| limits.memory_bytes = 64 << 20);
    let error = inspect(&plugin, &ctx(), "20").await.unwrap_err();
    assert_eq!(error, CallError::TooLarge { plugin: "bloats".into(), limit: 1 << 20 });
    let small = limited("bloats", |limits| limits.output_bytes = 4 << 20);
    let verdict = inspect(&small, &ctx(), "3").await.unwrap();
    assert!(matches!(verdict.action, Action::Respond(_)));
}

#[tokio::test]
async fn a_result_of_100_mb_is_refused_too() {
    let config = SandboxConfig { max_memory_bytes: 256 << 20, ..small() };
    let sandbox = Sandbox::new(config).unwrap();
    let mut spec = spec("bloats");
    spec.limits.memory_bytes = 256 << 20;
    let plugin = sandbox.load(spec).unwrap();
    let error = inspect(&plugin, &ctx(), "100").await.unwrap_err();
    assert!(matches!(error, CallError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn a_flood_of_log_lines_is_cut_off_and_the_call_goes_on() {
    let plugin = load("floods");
    let (verdict, log) = logged(inspect(&plugin, &ctx(), "1000")).await;
    verdict.unwrap();
    let lines: Vec<&str> = log.iter().map(String::as_str).filter(|line| line.contains("line  ")).collect();
    assert_eq!(lines.len(), (16 << 10) / 103, "each line has 101 bytes, and two more by its escape");
    assert!(lines.iter().all(|line| line.contains("\\nforged") && !line.contains('\n')), "{}", lines[0]);
    assert!(log.iter().any(|line| line.contains("841 log lines of 86623 bytes are over")), "{:?}", log.last());
}

/// What a plugin may use up of CPU time outside of calls, here.
const START: Duration = Duration::from_millis(100);

/// Where nothing but the guest that is asked runs: another one would keep the sandbox's clock going.
fn alone() -> Sandbox {
    Sandbox::new(SandboxConfig { configure_cpu: START, ..small() }).unwrap()
}

/// What came of work on a thread of its own: a guest that nobody ends fails its test and does not hold it.
fn ended<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let (tell, told) = sync_channel(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tell.send(runtime.block_on(work))
    });
    told.recv_timeout(Duration::from_secs(120)).expect("the guest is ended")
}

/// Why it does not load; others do then, and serve.
fn refused(sandbox: &Sandbox, spec: PluginSpec) -> LoadCause {
    let own = sandbox.clone();
    let refused = ended(async move { own.load(spec).map(drop) }).unwrap_err().cause;
    serves_another(sandbox);
    refused
}

fn serves_another(sandbox: &Sandbox) {
    let plugin = sandbox.load(spec("loops")).unwrap();
    ended(async move { allows(&plugin, "go on").await });
}

#[test]
fn a_configure_that_never_ends_refuses_the_load_whether_a_snapshot_is_taken_or_not() {
    let sandbox = alone();
    for snapshot in [Snapshot::Never, Snapshot::WhereSound, Snapshot::Asked] {
        let cause =
            refused(&sandbox, PluginSpec { config: serde_json::json!({"spin": true}), snapshot, ..spec("honest") });
        let why = "plugin `honest` did not start within 100ms of cpu time";
        assert!(matches!(&cause, LoadCause::Configure(said) if said.contains(why)), "{snapshot:?}: {cause}");
    }
}

#[test]
fn a_describe_that_never_ends_refuses_the_load() {
    let cause = refused(&alone(), spec("ponders"));
    let why = "plugin `ponders` did not start within 100ms of cpu time";
    assert!(matches!(&cause, LoadCause::Describe(said) if said.contains(why)), "{cause}");
}

/// It has shown nothing of that when it was loaded.
#[test]
fn a_configure_that_never_ends_for_one_tenant_ends_that_tenants_calls() {
    let sandbox = alone();
    let grants = Grants { kv_bytes: Some(1 << 10), ..Grants::default() };
    let plugin = sandbox.load(PluginSpec { grants, ..spec("balks") }).unwrap();
    let (trapped, error, other) = ended(async move {
        let ask = async |tenant, text| inspect(&plugin, &by(tenant), text).await;
        (ask("a", "balk").await, ask("a", "go on").await, ask("b", "go on").await)
    });
    assert!(matches!(trapped, Err(CallError::Trap { .. })), "{trapped:?}");
    assert_eq!(error, Err(CallError::Start { plugin: "balks".into(), clock: "cpu", limit: START }));
    assert_eq!(other.map(|verdict| verdict.action), Ok(Action::Allow));
    serves_another(&sandbox);
}

/// What a prompt of many finds costs a guard of the SDK: for sixteen times as many, sixteen times as much, where their square
/// would be 256 times. The standard library that components are built with takes other ways than this machine's.
#[tokio::test]
async fn a_prompt_of_dense_finds_costs_by_its_length() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/dist/pii-guard.wasm");
    let limits = spec("honest").limits;
    let plugin = PluginSpec { limits, ..PluginSpec::new("pii-guard", std::fs::read(path).unwrap()) };
    let plugin = shared().load(plugin).unwrap();
    let mut costs = Vec::new();
    for kib in [16, 256] {
        let text = "jo@example.com\n".repeat(kib * 1024 / 15);
        let mut each = Vec::new();
        for _ in 0..3 {
            let before = spent();
            let verdict = inspect(&plugin, &ctx(), &text).await.unwrap();
            each.push(spent() - before);
            assert!(matches!(verdict.action, Action::Rewrite(_)), "{:?}", verdict.action);
        }
        costs.push(each.into_iter().min().unwrap());
    }
    println!("16 KiB {:?}, 256 KiB {:?}", costs[0], costs[1]);
    assert!(costs[1] < costs[0] * 32, "{costs:?}");
}
