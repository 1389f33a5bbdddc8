//! What plugins keep in `kv`, wherever the operator keeps it: in memory, or in the store, over restarts and for several
//! gateways.

mod alike;
mod away;

use crate::conversations::{Keeping, in_files, send};
use crate::talk::until;
use hyper::Method;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate::config::Config;
use tidegate::outside::kv::StoreKv;
use tidegate_sandbox::capability::{KvStore, Namespace};
use tidegate_sandbox::stage::{CallContext, Grants, Limits};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig};
use tidegate_store::{Db, Place};
use tidegate_tests::Gateway;
use tidegate_tests::postgres::Database;
use tidegate_types::{Caller, RequestId, Retention, ToolCall};

/// For a database on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

const SAID: &str = "The harbour of Oban opens at seven.";

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{name}.wasm"))
}

/// A memory that keeps what is said in `kv`, which is in the store.
fn remembering() -> String {
    format!(
        "[plugins]\nkv = \"store\"\n[[pipeline.stage]]\nplugin = \"kept-remembers\"\nfile = {:?}\nstages = [\"memory\"]\n\
         on_error = \"closed\"\n[pipeline.stage.grants]\nkv_kib = 64\n[pipeline.stage.limits]\nwall_ms = 20000\n",
        guest("remembers").display().to_string()
    )
}

async fn known(gateway: &Gateway) -> Option<String> {
    let answer = send(gateway, Method::GET, "/v1/memories?q=When+does+Oban+harbour+open", "", None).await;
    // A store that is slow for once is no answer.
    (answer.status == 200).then(|| answer.json()["data"][0]["text"].as_str().map(str::to_owned)).flatten()
}

async fn say(gateway: &Gateway) {
    let body = json!({"model": "tidegate-starter", "max_tokens": 2, "messages": [{"role": "user", "content": SAID}]});
    until("it is answered", async || {
        (send(gateway, Method::POST, "/v1/chat/completions", "", Some(&body)).await.status == 200).then_some(())
    })
    .await;
}

const FACT: &str = "kv        of plugins in the store, 64 MiB at most; it outlives a restart";

/// And asks no store.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_where_plugins_keep_things() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let config = Config::parse(&format!("[store]\npath = {data:?}\n{}", remembering())).unwrap();
    let facts = tokio::task::spawn_blocking(move || tidegate::check(&config)).await.unwrap().unwrap().join("\n");
    assert!(facts.contains(FACT), "{facts}");
    assert!(!data.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_keeps_in_the_store_is_there_after_a_restart() {
    let kept = Keeping::start(&remembering()).await;
    let facts = kept.gateway.running.facts.join("\n");
    assert!(facts.contains(FACT), "{facts}");
    assert_eq!(known(&kept.gateway).await, None);
    say(&kept.gateway).await;
    until("it is remembered", async || known(&kept.gateway).await).await;
    let kept = kept.again().await;
    assert_eq!(until("it is still known", async || known(&kept.gateway).await).await, SAID);
}

/// Nobody else would ever remove what callers wrote.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_goes_also_when_plugins_keep_things_in_memory_again() {
    const WORD: &str = "canary-of-a-caller";
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(&Place::Folder(folder.path().into())).await.unwrap();
    let kv = StoreKv::with_patience(&db, 1 << 20, PATIENCE);
    assert!(kv.waits(), "who uses it takes no place of those that compute");
    let space = Namespace::of_tenant("p", Caller::local().tenant);
    kv.set(&space, "k".into(), WORD.into(), Some(Duration::from_millis(1)), 1000).await.unwrap();
    db.close().await;
    assert_ne!(in_files(folder.path(), WORD), 0);
    let gateway = Gateway::start(&format!("[store]\npath = {:?}\n", folder.path())).await;
    until("it is removed", async || (in_files(folder.path(), WORD) == 0).then_some(())).await;
    gateway.running.stop(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_learned_at_one_gateway_is_known_at_another_with_the_same_postgres() {
    let Some(database) = Database::new("kv_gateways") else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = remembering();
    let (one, two) =
        tokio::join!(database.gateway(&config, folders[0].path()), database.gateway(&config, folders[1].path()));
    say(&one).await;
    assert_eq!(until("it is known there", async || known(&two).await).await, SAID);
    for gateway in [one, two] {
        gateway.running.stop(Duration::from_secs(5)).await;
    }
}

/// A plugin that does with `kv` what it is told, in a sandbox as a gateway has one.
fn keeper(kv: Arc<dyn KvStore>) -> Arc<Plugin> {
    let cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache/plugins"));
    let sandbox = Sandbox::new(SandboxConfig { cache_dir, kv, ..SandboxConfig::default() }).unwrap();
    let limits = Limits { wall: PATIENCE, cpu: Duration::from_secs(10), ..Limits::default() };
    let documents = [("docs".to_owned(), std::env::temp_dir())].into();
    let grants = Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() };
    let component = std::fs::read(guest("keeper")).unwrap();
    sandbox.load(PluginSpec { grants, limits, ..PluginSpec::new("keeper", component) }).unwrap()
}

async fn call(plugin: &Plugin, function: &str, words: &str) -> String {
    let (request_id, caller, retention) = (RequestId::new("r"), Arc::new(Caller::local()), Retention::Kept);
    let context =
        CallContext { request_id, caller, hops: 0, retention, deadline: PATIENCE, began: None, streaming: false };
    let call = ToolCall { id: "c".into(), name: function.into(), arguments: words.into() };
    plugin.call_tool(&context, &call).await.map_or_else(|error| error.to_string(), |outcome| outcome.content)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugins_counter_is_one_for_two_gateways_with_one_postgres() {
    let Some(database) = Database::new("kv_counter") else { return };
    let place = Place::Postgres(database.url());
    let mut plugins = Vec::new();
    for _ in 0..2 {
        let kv = Arc::new(StoreKv::with_patience(&Db::open(&place).await.unwrap(), 1 << 20, PATIENCE));
        plugins.push(keeper(kv.clone()));
        // What `configure` keeps at load is thrown away: it is not even asked for.
        let space = Namespace::of_tenant("keeper", Caller::local().tenant);
        assert_eq!(kv.get_many(&space, &["configured".to_owned()], 9).await.unwrap(), [None]);
    }
    let counting = (0..40).map(|n: usize| {
        let plugin = Arc::clone(&plugins[n % 2]);
        async move { call(&plugin, "add", "n 5").await }
    });
    let mut sums: Vec<u64> =
        futures_util::future::join_all(counting).await.iter().map(|sum| sum.parse().unwrap()).collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=40).map(|n| 5 * n).collect::<Vec<_>>(), "each sum once");
    for plugin in &plugins {
        assert_eq!(call(plugin, "get", "n").await, "200");
    }
}
