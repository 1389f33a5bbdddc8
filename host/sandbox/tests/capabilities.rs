//! What a guest gets from the host, seen from inside the guest: its grants, and nothing of anyone else's.

use crate::support::{by, logged, shared, spec};
use std::path::Path;
use std::sync::Arc;
use tidegate_sandbox::stage::{CallContext, CallError, Grants};
use tidegate_sandbox::{Plugin, PluginSpec};
use tidegate_types::{TenantId, ToolCall};

fn keeping(name: &str, kv_bytes: u64, folder: &Path) -> PluginSpec {
    let documents = [("docs".to_owned(), folder.to_owned())].into();
    let grants = Grants { kv_bytes: Some(kv_bytes), documents, ..Grants::default() };
    PluginSpec { name: name.into(), grants, ..spec("keeper") }
}

fn keeper(name: &str, kv_bytes: u64, folder: &Path) -> Arc<Plugin> {
    shared().load(keeping(name, kv_bytes, folder)).unwrap()
}

fn docs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("a.txt"), "alpha").unwrap();
    std::fs::write(folder.path().join("sub/b.txt"), "beta").unwrap();
    folder
}

async fn run(plugin: &Plugin, ctx: &CallContext, function: &str, arguments: &str) -> Result<String, CallError> {
    let call = ToolCall { id: "c".into(), name: function.into(), arguments: arguments.into() };
    plugin.call_tool(ctx, &call).await.map(|outcome| outcome.content)
}

#[tokio::test]
async fn what_is_kept_is_found_again_by_the_same_plugin_and_tenant_only() {
    let folder = docs();
    let (one, two) = (keeper("kv-one", 1 << 20, folder.path()), keeper("kv-two", 1 << 20, folder.path()));
    let (acme, globex) = (by("acme"), by("globex"));
    assert_eq!(run(&one, &acme, "set", "key secret").await.unwrap(), "set");
    assert_eq!(run(&one, &acme, "get", "key").await.unwrap(), "secret");
    assert_eq!(run(&one, &acme, "get-many", "nothing key").await.unwrap(), "none,secret");
    assert_eq!(run(&one, &globex, "get", "key").await.unwrap(), "none", "another tenant");
    assert_eq!(run(&two, &acme, "get", "key").await.unwrap(), "none", "another plugin");
    assert_eq!(run(&one, &acme, "add", "count 5").await.unwrap(), "5");
    assert_eq!(run(&one, &acme, "add", "count -7").await.unwrap(), "-2");
    assert_eq!(run(&one, &acme, "delete", "key").await.unwrap(), "deleted");
    assert_eq!(run(&one, &acme, "get", "key").await.unwrap(), "none");
}

#[tokio::test]
async fn what_configure_stored_at_load_is_thrown_away() {
    let folder = docs();
    let plugin = keeper("kv-trial", 1 << 20, folder.path());
    // The instance that serves has stored it again, for its own tenant.
    assert_eq!(run(&plugin, &by("acme"), "get", "configured").await.unwrap(), "yes");
    assert_eq!(run(&plugin, &by("acme"), "delete", "configured").await.unwrap(), "deleted");
    assert_eq!(run(&plugin, &by("acme"), "get", "configured").await.unwrap(), "none");
    assert_eq!(run(&plugin, &by("globex"), "get", "configured").await.unwrap(), "yes");
}

#[tokio::test]
async fn a_used_up_quota_is_denied_and_what_is_there_stays() {
    let folder = docs();
    let plugin = keeper("kv-quota", 1000, folder.path());
    run(&plugin, &by("acme"), "fill", "a 600").await.unwrap();
    let full = run(&plugin, &by("acme"), "fill", "b 600").await.unwrap_err();
    let why = "the stage's 1000 bytes of storage (`kv_kib`) are used up";
    assert_eq!(full.to_string(), format!("plugin `kv-quota` answered denied: {why}"));
    assert_eq!(run(&plugin, &by("acme"), "get", "a").await.unwrap().len(), 600);
    run(&plugin, &by("globex"), "fill", "b 600").await.unwrap();
}

#[tokio::test]
async fn one_call_brings_back_no_more_than_the_quota() {
    let folder = docs();
    let plugin = keeper("kv-many", 1 << 20, folder.path());
    let acme = by("acme");
    run(&plugin, &acme, "fill", "a 600000").await.unwrap();
    assert_eq!(run(&plugin, &acme, "get-many", "a nothing").await.unwrap().len(), 600_000 + ",none".len());
    for keys in ["a a".to_owned(), vec!["a"; 1024].join(" ")] {
        let error = run(&plugin, &acme, "get-many", &keys).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "plugin `kv-many` answered invalid-input: more than 1048576 bytes at once; ask for fewer keys"
        );
    }
}

#[tokio::test]
async fn keys_out_of_bounds_are_the_guests_mistake() {
    let folder = docs();
    let plugin = keeper("kv-keys", 1 << 20, folder.path());
    for key in ["", &"k".repeat(513)] {
        let error = run(&plugin, &by("acme"), "get", key).await.unwrap_err();
        assert!(matches!(error, CallError::Plugin { case: "invalid-input", .. }), "{error}");
    }
    run(&plugin, &by("acme"), "get", &"k".repeat(512)).await.unwrap();
}

#[tokio::test]
async fn documents_are_listed_and_read_and_nothing_else_is() {
    let folder = docs();
    let outside = folder.path().parent().unwrap().join("outside.txt");
    let plugin = keeper("documents", 1 << 20, folder.path());
    let run = async |function, arguments: &str| run(&plugin, &by("acme"), function, arguments).await;
    assert_eq!(run("list", "").await.unwrap(), "docs/a.txt:5,docs/sub/b.txt:4");
    assert_eq!(run("list", " 1").await.unwrap(), "docs/a.txt:5");
    assert_eq!(run("list", "docs/a.txt 1").await.unwrap(), "docs/sub/b.txt:4");
    assert_eq!(run("list", "docs/sub/b.txt").await.unwrap(), "");
    assert_eq!(run("read", "docs/sub/b.txt").await.unwrap(), "beta");
    assert_eq!(run("read", "docs/a.txt 1 3").await.unwrap(), "lph");
    for path in ["docs/../outside.txt", "/etc/hostname", "a.txt", "docs/missing", "docs/sub", outside.to_str().unwrap()]
    {
        let error = run("read", path).await.unwrap_err();
        assert!(matches!(error, CallError::Plugin { case: "invalid-input", .. }), "{path}: {error}");
        assert!(!error.to_string().contains(folder.path().to_str().unwrap()), "no host path: {error}");
    }
}

#[tokio::test]
async fn documents_that_are_withheld_from_a_tenant_are_denied_to_it_alone() {
    let folder = docs();
    let mut spec = keeping("withheld", 1 << 20, folder.path());
    spec.grants.withheld = [(TenantId::new("globex"), ["documents".to_owned()].into())].into();
    let plugin = shared().load(spec).unwrap();
    for (function, arguments) in [("list", ""), ("read", "docs/a.txt")] {
        let error = run(&plugin, &by("globex"), function, arguments).await.unwrap_err();
        assert!(matches!(error, CallError::Plugin { case: "denied", .. }), "{function}: {error}");
        run(&plugin, &by("acme"), function, arguments).await.unwrap();
    }
    run(&plugin, &by("globex"), "set", "key value").await.unwrap();
}

/// A folder may be another machine's, while the `kv` of these tests is in memory.
#[test]
fn a_plugin_that_reads_documents_is_one_that_waits() {
    let plugin = keeper("documents-wait", 1 << 20, docs().path());
    assert!(plugin.waits());
    assert_eq!(plugin.max_instances(), spec("keeper").limits.waiting_instances);
}

#[tokio::test]
async fn a_document_of_any_size_is_read_in_pieces_of_at_most_1_mib() {
    let folder = docs();
    std::fs::write(folder.path().join("big"), vec![b'x'; (1 << 20) + 5]).unwrap();
    let mut spec = keeping("documents-big", 1 << 20, folder.path());
    // Above what is read at once: else it would be this limit that ends a longer read.
    spec.limits.output_bytes = 4 << 20;
    let plugin = shared().load(spec).unwrap();
    assert_eq!(run(&plugin, &by("acme"), "read", "docs/big 1048576").await.unwrap(), "xxxxx");
    assert_eq!(run(&plugin, &by("acme"), "read", "docs/big").await.unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn a_log_line_names_plugin_tenant_and_request() {
    let folder = docs();
    let plugin = keeper("logger", 1 << 20, folder.path());
    let acme = by("acme");
    let (done, log) = logged(run(&plugin, &acme, "log", "two words")).await;
    done.unwrap();
    let [line] = log.as_slice() else { panic!("{log:?}") };
    for part in
        ["WARN", "message=two words", "plugin=\"logger\"", "tenant=\"acme\"", "request=\"r1\"", "key=\\\"value\\\""]
    {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[tokio::test]
async fn a_metric_that_was_not_declared_is_refused_and_logged() {
    let folder = docs();
    let plugin = keeper("meters", 1 << 20, folder.path());
    let acme = by("acme");
    let (done, log) = logged(run(&plugin, &acme, "count", "kept")).await;
    assert_eq!((done.unwrap().as_str(), log.len()), ("counted", 0));
    let (done, log) = logged(run(&plugin, &acme, "count", "made\u{1b}up")).await;
    done.unwrap();
    assert!(log[0].contains("metric `made\\u{1b}up` is not declared"), "{log:?}");
}

/// The host keeps each until it is read: a loop of them would fill its memory.
#[tokio::test]
async fn a_call_observes_so_much_and_numbers_only() {
    let folder = docs();
    let plugin = keeper("observes", 1 << 20, folder.path());
    let acme = by("acme");
    for (what, told) in [
        ("kept 256", None),
        ("kept 300", Some("44 observations are over the 256 of one call")),
        ("kept 256", None),
        ("kept 1 NaN", Some("an observation is NaN")),
        ("kept 1 inf", Some("an observation is inf")),
    ] {
        let (done, log) = logged(run(&plugin, &acme, "observe", what)).await;
        assert_eq!(done.unwrap(), "observed");
        assert_eq!(log.len(), usize::from(told.is_some()), "{what}: {log:?}");
        assert!(log.iter().all(|line| line.contains(told.unwrap())), "{what}: {log:?}");
    }
}

#[tokio::test]
async fn the_clock_tells_the_time_of_day() {
    let folder = docs();
    let plugin = keeper("clock", 1 << 20, folder.path());
    let told = run(&plugin, &by("acme"), "clock", "").await.unwrap();
    let told: u64 = told.split(' ').next().unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(told <= now && now - told < 600_000, "{told} is not about {now}");
}
