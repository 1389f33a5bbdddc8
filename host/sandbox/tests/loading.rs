//! What is refused at load, and what the operator reads then.

use crate::support::{guest, load, saying, shared, small, spec};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::{DocumentStore, Documents};
use tidegate_sandbox::stage::{Grants, Limits, StageKind};
use tidegate_sandbox::{LoadCause, PluginSpec, Sandbox, SandboxConfig, Snapshot};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

fn refused(spec: PluginSpec) -> LoadCause {
    match shared().load(spec) {
        Ok(plugin) => panic!("{plugin:?} was loaded"),
        Err(error) => error.cause,
    }
}

#[test]
fn a_plugin_says_who_it_is_and_what_it_exports() {
    let plugin = load("honest");
    assert_eq!(plugin.name(), "honest");
    assert_eq!(plugin.exported_stages().len(), StageKind::ALL.len());
    let descriptor = plugin.descriptor();
    assert_eq!((descriptor.name.as_str(), descriptor.version.as_str()), ("honest", "0.1.0"));
    assert!(descriptor.mutates && descriptor.deterministic);
    assert_eq!(descriptor.holdback_bytes, Some(64));
}

#[test]
fn an_ungranted_import_is_refused_by_name_with_the_line_that_grants_it() {
    let error = shared().load(spec("keeper")).map(|_| ()).unwrap_err().to_string();
    for part in ["plugin `keeper`", "`tidegate:plugin/", "kv_kib = 1024", "[pipeline.stage.grants]"] {
        assert!(error.contains(part), "{error}");
    }
    let only_kv = Grants { kv_bytes: Some(1 << 20), ..Grants::default() };
    let cause = refused(PluginSpec { grants: only_kv, ..spec("keeper") });
    assert!(matches!(&cause, LoadCause::Ungranted { import, .. } if import.contains("documents")), "{cause}");
}

/// Whatever the operator grants: the manifest says what a plugin is for.
#[test]
fn an_import_that_the_manifest_gives_no_reason_for_is_refused() {
    let changed = saying("remembers", r#"{"name":"kv""#, r#"{"name":"xv""#);
    let grants = Grants { kv_bytes: Some(1 << 20), ..Grants::default() };
    let load = |component| PluginSpec { grants: grants.clone(), ..PluginSpec::new("remembers", component) };
    shared().load(load(guest("remembers"))).unwrap();
    let cause = refused(load(changed));
    let named = |message: &str| message == "it imports `kv` and does not say why";
    assert!(
        matches!(&cause, LoadCause::Descriptor { key, message } if key == "capabilities" && named(message)),
        "{cause}"
    );
}

#[test]
fn wasi_and_unknown_imports_are_refused_by_name() {
    let wasi = refused(spec("wanders"));
    assert!(matches!(&wasi, LoadCause::Wasi { import } if import.starts_with("wasi:random/random@0.2.")), "{wasi}");
    let unknown = refused(spec("strays"));
    assert!(matches!(&unknown, LoadCause::UnknownImport { import, .. } if import == "shell"), "{unknown}");
}

#[test]
fn a_descriptor_must_be_json_and_pure() {
    let words = refused(spec("mumbles"));
    assert!(matches!(&words, LoadCause::Descriptor { message, .. } if message.contains("not JSON")), "{words}");
    let impure = refused(spec("misdescribes"));
    assert!(matches!(&impure, LoadCause::Describe(why) if why.contains("`clock.now-unix-ms`")), "{impure}");
}

#[test]
fn what_is_no_component_is_refused() {
    for (bytes, part) in [
        (&b""[..], "starts with []"),
        (b"\0asm\x01\0\0\0", "core module"),
        (b"#!/bin/sh", "starts with [23, 21"),
        (b"\0asm\x0d\0\x01", "starts with"),
    ] {
        let cause = refused(PluginSpec::new("x", bytes));
        assert!(matches!(&cause, LoadCause::NotAComponent(why) if why.contains(part)), "{cause}");
    }
    let empty = refused(PluginSpec::new("x", &b"\0asm\x0d\0\x01\0"[..]));
    assert!(matches!(&empty, LoadCause::NoStage { known, .. } if known.contains("prompt-guard")), "{empty}");
    let mut cut = guest("honest");
    cut.truncate(cut.len() / 2);
    assert!(matches!(refused(PluginSpec::new("x", cut)), LoadCause::Compile(_)));
}

#[test]
fn a_component_with_any_byte_changed_never_harms_the_host() {
    let whole = guest("panics");
    for at in (8..whole.len()).step_by(3001) {
        let mut broken = whole.clone();
        broken[at] ^= 0x40;
        // Refused or not: it is told apart from a crash.
        let _ = shared().load(PluginSpec::new("broken", broken));
    }
}

#[test]
fn a_stage_that_is_not_exported_is_named() {
    let cause = refused(PluginSpec { stages: Some(vec![StageKind::Router]), ..spec("loops") });
    assert_eq!(cause.to_string(), "it does not export the stage `router`; it exports prompt-guard");
    assert!(matches!(refused(PluginSpec { stages: Some(vec![]), ..spec("loops") }), LoadCause::NoStageWanted { .. }));
}

#[test]
fn a_config_that_does_not_fit_is_refused_at_load() {
    let not_object = refused(PluginSpec { config: json!([]), ..spec("honest") });
    assert!(matches!(&not_object, LoadCause::Config { path, .. } if path == "config"), "{not_object}");
    let by_plugin = refused(PluginSpec { config: json!({"refuse": true}), ..spec("honest") });
    assert_eq!(by_plugin.to_string(), "`configure` failed: invalid-config: as the test asked");
}

/// A log that nobody can write to.
struct NoLog;

impl Subscriber for NoLog {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.target() == "plugin"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        panic!("the disk is full")
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn where_the_host_breaks_while_configure_runs_the_operator_reads_that() {
    let spec = PluginSpec { config: json!({"say": "here I am"}), ..spec("watches") };
    let refused = tracing::subscriber::with_default(NoLog, || shared().load(spec)).unwrap_err();
    let expected = "`configure` failed: it cannot be run: its thread panicked: the disk is full";
    assert_eq!(refused.cause.to_string(), expected);
}

/// `configure` would not end.
#[test]
fn a_config_is_held_to_the_plugins_schema_before_the_plugin_sees_it() {
    let cause = refused(PluginSpec { config: json!({"refuse": "yes", "spin": true}), ..spec("honest") });
    assert!(matches!(&cause, LoadCause::Config { path, .. } if path.contains("refuse")), "{cause}");
}

#[test]
fn limits_out_of_bounds_are_refused() {
    for (limits, name) in [
        (Limits { memory_bytes: 65 << 20, ..Limits::default() }, "memory_bytes"),
        (Limits { instances: 0, ..Limits::default() }, "instances"),
        (Limits { output_bytes: 10, ..Limits::default() }, "output_bytes"),
        (Limits { cpu: Duration::ZERO, ..Limits::default() }, "cpu_ms"),
        (Limits { wall: Duration::MAX, ..Limits::default() }, "wall_ms"),
    ] {
        let cause = refused(PluginSpec { limits, ..spec("honest") });
        assert!(matches!(&cause, LoadCause::Limit { limit, .. } if *limit == name), "{cause}");
    }
}

#[test]
fn a_guest_that_is_larger_than_its_memory_limit_is_not_loaded() {
    let limits = Limits { memory_bytes: 64 << 10, ..Limits::default() };
    let cause = refused(PluginSpec { limits, ..spec("honest") }).to_string();
    assert!(cause.contains("its limit is 65536"), "{cause}");
}

#[test]
fn a_mount_that_is_no_folder_is_refused_at_load() {
    let documents = [("docs".to_owned(), "/nonexistent/folder".into())].into();
    let grants = Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() };
    let cause = refused(PluginSpec { grants, ..spec("keeper") });
    assert!(matches!(&cause, LoadCause::Documents(why) if why.contains("mount `docs`")), "{cause}");
}

/// A later version may read it; this one has nothing to miss there.
#[test]
fn a_mount_that_its_component_cannot_read_is_not_looked_for_and_keeps_no_plugin_from_being_used_again() {
    let (sandbox, documents) =
        (Sandbox::new(small()).unwrap(), [("docs".to_owned(), "/nonexistent/folder".into())].into());
    let spec = PluginSpec { grants: Grants { documents, ..Grants::default() }, ..spec("honest") };
    let first = sandbox.load_or_reuse(spec.clone()).unwrap();
    assert!(Arc::ptr_eq(&first, &sandbox.load_or_reuse(spec).unwrap()));
}

/// It reaches nothing: that it may decide otherwise on the same is all that there is against it.
#[test]
fn what_is_not_deterministic_is_neither_shared_nor_made_alike() {
    let other = saying("watches", r#","stream":{"holdback-bytes":4096}"#, r#","deterministic":false"#);
    let [alike, other] = [guest("watches"), other].map(Arc::<[u8]>::from);
    let load = |component: &Arc<[u8]>, is_shared, snapshot| {
        let spec = PluginSpec { component: component.clone(), shared: is_shared, snapshot, ..spec("watches") };
        shared().load(spec).map(|plugin| plugin.starts_configured()).map_err(|refused| refused.cause)
    };
    for (is_shared, snapshot, expected) in [
        (true, Snapshot::Never, Err(LoadCause::Shared)),
        (false, Snapshot::Asked, Err(LoadCause::Snapshot)),
        (false, Snapshot::WhereSound, Ok(false)),
    ] {
        assert_eq!(load(&alike, is_shared, snapshot), Ok(snapshot != Snapshot::Never), "{is_shared} {snapshot:?}");
        assert_eq!(load(&other, is_shared, snapshot), expected, "{is_shared} {snapshot:?}");
    }
}

/// As a folder of another machine that is away.
#[derive(Default)]
struct Away(AtomicUsize);

impl DocumentStore for Away {
    fn open(&self, _: &str, _: &BTreeMap<String, PathBuf>) -> Result<Arc<dyn Documents>, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_secs(60));
        Err("it is back, too late".into())
    }
}

/// A reload waits for what it loads, and with it one that shuts a key out.
#[test]
fn a_folder_that_is_away_refuses_each_load_in_time_and_hangs_one_thread() {
    let away = Arc::new(Away::default());
    let sandbox = Sandbox::new(SandboxConfig { documents: away.clone(), ..small() }).unwrap();
    let began = Instant::now();
    let loads = [(); 2].map(|()| {
        let documents = [("docs".to_owned(), "/far/away".into())].into();
        let grants = Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() };
        let (sandbox, spec) = (sandbox.clone(), PluginSpec { grants, ..spec("keeper") });
        std::thread::spawn(move || sandbox.load(spec))
    });
    for load in loads {
        let cause = load.join().unwrap().unwrap_err().cause;
        let why = "mount `docs`: `/far/away`: it has not answered within 5s; is it another machine's that is away?";
        assert_eq!(cause, LoadCause::Documents(why.into()));
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    assert_eq!(away.0.load(Ordering::SeqCst), 1);
}
