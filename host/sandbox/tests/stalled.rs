//! Stores that come to no end. One of `kv` that answers nobody, as a database that is away: who waits for it is in nobody's
//! way. One of vectors that goes on searching: that ends with the time of who asked.

use crate::outside::{self, Outside};
use crate::support::{WatchedKv, by, ctx, inspect, small, spec};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::{
    BoxFuture, CapabilityError, Collection, KvStore, MemoryKv, VectorEntry, VectorHit, VectorStore,
};
use tidegate_sandbox::stage::{CallError, Grants};
use tidegate_sandbox::{PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::ToolCall;

#[tokio::test]
async fn while_the_store_of_kv_stalls_plugins_without_it_go_on() {
    const CALLS: usize = 8;
    let kv = WatchedKv::stalled();
    // One place to compute, and the same tenant has it.
    let config = SandboxConfig { total_instances: 1, kv: kv.clone(), ..small() };
    let sandbox = Sandbox::new(config).unwrap();
    let documents = [("docs".to_owned(), std::env::temp_dir())].into();
    let grants = Grants { kv_bytes: Some(1 << 20), documents, ..Grants::default() };
    let keeper = sandbox.load(PluginSpec { grants, ..spec("keeper") }).unwrap();
    let honest = sandbox.load(spec("honest")).unwrap();
    let waits = [&keeper, &honest].map(|plugin| (plugin.waits(), plugin.asks_others()));
    assert_eq!(waits, [(true, false), (false, false)], "what is kept stays on this machine");
    let asking: Vec<_> = (0..CALLS)
        .map(|_| {
            let keeper = Arc::clone(&keeper);
            let call = ToolCall { id: "c".into(), name: "get".into(), arguments: "key".into() };
            tokio::spawn(async move { keeper.call_tool(&ctx(), &call).await })
        })
        .collect();
    while kv.reads.load(Ordering::SeqCst) < CALLS {
        assert!(!asking.iter().any(tokio::task::JoinHandle::is_finished));
        tokio::task::yield_now().await;
    }
    inspect(&honest, &ctx(), "calls").await.unwrap();
    kv.gate.as_ref().unwrap().add_permits(CALLS);
    for asked in asking {
        assert_eq!(asked.await.unwrap().unwrap().content, "none");
    }
}

#[test]
fn memory_is_not_waited_for() {
    assert!(!MemoryKv::new(1).waits());
}

/// Looks at entries without end, and lets others have the thread between its pieces.
struct Endless;

impl VectorStore for Endless {
    fn search<'a>(
        &'a self,
        _: &'a Collection,
        _: Vec<f32>,
        _: usize,
        _: Vec<(String, String)>,
    ) -> BoxFuture<'a, Result<Vec<VectorHit>, CapabilityError>> {
        Box::pin(async {
            loop {
                let piece = Instant::now();
                while piece.elapsed() < Duration::from_millis(2) {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        })
    }

    fn put<'a>(&'a self, _: &'a Collection, _: Vec<VectorEntry>) -> BoxFuture<'a, Result<(), CapabilityError>> {
        Box::pin(async { Ok(()) })
    }

    fn delete<'a>(&'a self, _: &'a Collection, _: Vec<String>) -> BoxFuture<'a, Result<u32, CapabilityError>> {
        Box::pin(async { Ok(0) })
    }
}

#[tokio::test]
async fn a_search_that_goes_on_ends_at_the_cpu_limit_of_its_call() {
    let outside = Arc::new(Outside::default());
    let config = SandboxConfig { http: outside.clone(), models: outside, vectors: Arc::new(Endless), ..small() };
    let mut spec = PluginSpec { grants: outside::grants(), ..spec("reaches") };
    spec.limits.cpu = Duration::from_millis(100);
    let plugin = Sandbox::new(config).unwrap().load(spec).unwrap();
    let call = ToolCall { id: "c".into(), name: "search".into(), arguments: "notes 1 0".into() };
    let ended = plugin.call_tool(&by("acme"), &call).await;
    assert!(matches!(ended, Err(CallError::Deadline { clock: "cpu", .. })), "{ended:?}");
}
