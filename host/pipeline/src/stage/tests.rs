use super::*;
use crate::breaker::BreakerConfig;
use crate::holdback::AtCap;
use futures_util::FutureExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_sandbox::stage::{Grants, Inspection, Limits};
use tidegate_sandbox::{PluginSpec, Sandbox, SandboxConfig, Snapshot};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A stage of a shipped guard.
pub(crate) fn shipped() -> Stage {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/dist/pii-guard.wasm");
    of(PluginSpec { snapshot: Snapshot::WhereSound, ..PluginSpec::new("pii-guard", std::fs::read(path).unwrap()) })
}

/// One of a plugin that may wait for others.
fn waiting() -> Stage {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/dist/keeper.wasm");
    let documents = [("docs".to_owned(), PathBuf::from(env!("CARGO_MANIFEST_DIR")))].into();
    let grants = Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() };
    of(PluginSpec { grants, ..PluginSpec::new("keeper", std::fs::read(path).unwrap()) })
}

fn of(spec: PluginSpec) -> Stage {
    let config = SandboxConfig { total_instances: 1, total_waiting_instances: 1, ..SandboxConfig::default() };
    let sandbox = Sandbox::new(config).unwrap();
    Stage {
        name: spec.name.as_str().into(),
        plugin: Ok(sandbox.load(spec).unwrap()),
        on_error: OnError::Closed,
        wall: Duration::from_secs(1),
        holdback_bytes: 512,
        breaker: Arc::new(Breaker::new(BreakerConfig::default())),
        figures: StageFigures::default(),
    }
}

#[test]
fn a_guard_sees_as_much_of_what_has_left_as_its_descriptor_says() {
    let mut held = shipped().holdback();
    held.push("to whom", Vec::new());
    held.apply(Inspection::pass(3), false, 512, AtCap::Halt).unwrap();
    assert_eq!(held.window().text, " whom");
}

#[test]
fn a_guard_that_has_failed_of_late_is_asked_about_everything() {
    let stage = shipped();
    let (tenant, other, now) = (TenantId::new("a"), TenantId::new("b"), Instant::now());
    assert!(stage.prefilter(&tenant).is_some());
    let request = RequestId::new("r");
    stage.breaker.begin(&tenant, &request, now).unwrap().end(Outcome::Failed, now);
    assert!(stage.prefilter(&tenant).is_none() && stage.prefilter(&other).is_some());
    stage.breaker.begin(&tenant, &request, now).unwrap().end(Outcome::Fine, now + Duration::from_secs(60));
    assert!(stage.prefilter(&tenant).is_some());
}

#[test]
fn only_what_the_plugin_did_tells_of_its_health() {
    let plugin = || "p".to_owned();
    let said = |case| CallError::Plugin { plugin: plugin(), case, message: String::new() };
    for (error, expected) in [
        (said("invalid-input"), Outcome::Fine),
        (said("denied"), Outcome::Fine),
        (said("unsupported"), Outcome::Fine),
        (CallError::TooLarge { plugin: plugin(), limit: 1 }, Outcome::Fine),
        (CallError::Full { plugin: plugin(), what: "instances", key: "plugins.instances", limit: 1 }, Outcome::Unknown),
        (CallError::Busy { plugin: plugin(), instances: 1 }, Outcome::Unknown),
        (said("unavailable"), Outcome::Failed),
        (CallError::Trap { plugin: plugin(), message: String::new() }, Outcome::Failed),
    ] {
        assert_eq!(health(&error), expected, "{error}");
    }
}

/// Else who sends much at once would take it away from others.
#[test]
fn a_plugin_that_lacked_a_processor_has_not_failed() {
    let (alone, waits, cpu) = (shipped(), waiting(), Limits::default().cpu);
    let more = cpu + Duration::from_millis(1);
    let deadline = |clock, limit| CallError::Deadline { plugin: "p".into(), clock, limit };
    let start = |clock| CallError::Start { plugin: "p".into(), clock, limit: Duration::from_secs(5) };
    for (stage, error, has_failed) in [
        (&alone, deadline("wall", more), false),
        (&alone, deadline("wall", cpu), true),
        (&alone, deadline("cpu", cpu), true),
        (&alone, start("wall"), false),
        (&alone, start("cpu"), true),
        (&waits, deadline("wall", more), true),
        (&waits, start("wall"), true),
    ] {
        let stage = Stage { breaker: Arc::new(Breaker::new(BreakerConfig::default())), ..stage.clone() };
        let cx = under_way::tests::context();
        let called = stage.call(StageKind::PromptGuard, &cx, async |_| Err::<(), _>(error.clone()));
        assert!(called.now_or_never().unwrap().is_err(), "it is closed");
        assert_eq!(stage.breaker.has_failures(&cx.caller.tenant), has_failed, "{}: {error}", stage.name);
    }
}

/// Counts the lines of a log.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.0.fetch_add(usize::from(*event.metadata().level() == Level::WARN), Ordering::Relaxed);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A text of many windows about which a guard is not asked, or asked in vain, also where no failure has it paused.
#[test]
fn a_text_that_a_guard_does_not_judge_is_one_line_of_the_log_for_each_reason() {
    let not_there = Stage { plugin: Err("it is not there".into()), on_error: OnError::Open, ..shipped() };
    let fails = Stage { on_error: OnError::Open, ..shipped() };
    let (kind, cx) = (StageKind::StreamGuard, under_way::tests::context());
    for stage in [not_there, fails] {
        let lines = Arc::<AtomicUsize>::default();
        let full = || CallError::Full { plugin: "p".into(), what: "instances", key: "plugins.instances", limit: 1 };
        tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
            for _ in 0..2 {
                let mut failures = Failures::default();
                for _ in 0..3 {
                    let asked = stage.timed(Size::Said(1), kind, &cx, &mut failures, async |_| Err::<(), _>(full()));
                    assert!(asked.now_or_never().unwrap().opinion.unwrap().is_none());
                }
                stage.withholds_too_much(kind, &cx.request_id, &mut failures);
            }
        });
        assert_eq!(lines.load(Ordering::Relaxed), 4, "of two texts, one for each reason");
    }
}

/// Each window would wait for another deadline, and the breaker counts the request once.
#[test]
fn a_text_is_not_judged_any_more_once_the_guard_has_failed_as_often_as_requests_may() {
    let stage = Stage { on_error: OnError::Open, ..shipped() };
    let (kind, cx) = (StageKind::StreamGuard, under_way::tests::context());
    let limit = Duration::from_millis(1);
    let ask = |failures: &mut Failures| {
        let mut is_asked = false;
        let asked = stage.timed(Size::Said(1), kind, &cx, failures, async |_| {
            is_asked = true;
            Err::<(), _>(CallError::Deadline { plugin: "p".into(), clock: "cpu", limit })
        });
        let failure = asked.now_or_never().unwrap().failure;
        (is_asked, failure)
    };
    let mut failures = Failures::default();
    for _ in 0..5 {
        assert_eq!(ask(&mut failures), (true, Some("deadline")));
    }
    assert_eq!(ask(&mut failures), (false, Some("paused")));
    assert_eq!(ask(&mut Failures::default()), (true, Some("deadline")), "another text of the request");
}

/// An operator looks there for what a series means.
#[test]
fn every_case_of_a_failure_is_in_the_contract() {
    let readme = include_str!("../../../../wit/README.md");
    let row = readme.lines().find(|line| line.starts_with("| `tidegate_plugin_failures_total` |")).unwrap();
    let source = include_str!("../stage.rs");
    // Those of calls are read where they are given: a list of them would not know of another.
    let arms = source.split("\nfn case(").nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap();
    let of_calls = arms.split("=> \"").skip(1).map(|arm| arm.split('"').next().unwrap());
    assert_eq!(of_calls.clone().count(), arms.matches("=>").count(), "each arm is a word");
    let not_called = ["load", "paused", "unfit"];
    for case in of_calls.chain(not_called).chain([HOLDBACK_CAP, CUT_OFF]) {
        assert!(row.contains(&format!("`{case}`")), "{case}");
    }
    for case in not_called {
        assert!(source.contains(&format!("\"{case}\"")), "{case}");
    }
}
