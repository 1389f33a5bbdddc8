//! A store of `kv` that answers nobody, as a database that is away: who waits for it is in nobody's way.

use crate::support::{ctx, inspect, small, spec};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, KvStore, MemoryKv, Namespace};
use tidegate_sandbox::stage::Grants;
use tidegate_sandbox::{PluginSpec, Sandbox, SandboxConfig};
use tidegate_types::ToolCall;
use tokio::sync::Semaphore;

/// Keeps what it is told at once, and lets nobody read until it is open.
struct Stalled {
    kept: MemoryKv,
    asked: AtomicUsize,
    open: Semaphore,
}

impl KvStore for Stalled {
    fn waits(&self) -> bool {
        true
    }

    fn get_many<'a>(
        &'a self,
        space: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let _open = self.open.acquire().await.unwrap();
            self.kept.get_many(space, keys, most).await
        })
    }

    fn set<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        self.kept.set(space, key, value, ttl, quota)
    }

    fn increment<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        self.kept.increment(space, key, delta, ttl, quota)
    }

    fn delete<'a>(&'a self, space: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        self.kept.delete(space, key)
    }
}

#[tokio::test]
async fn while_the_store_of_kv_stalls_plugins_without_it_go_on() {
    const CALLS: usize = 8;
    let kv = Arc::new(Stalled { kept: MemoryKv::new(1 << 20), asked: AtomicUsize::new(0), open: Semaphore::new(0) });
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
    while kv.asked.load(Ordering::SeqCst) < CALLS {
        assert!(!asking.iter().any(tokio::task::JoinHandle::is_finished));
        tokio::task::yield_now().await;
    }
    inspect(&honest, &ctx(), "calls").await.unwrap();
    kv.open.add_permits(CALLS);
    for asked in asking {
        assert_eq!(asked.await.unwrap().unwrap().content, "none");
    }
}

#[test]
fn memory_is_not_waited_for() {
    assert!(!MemoryKv::new(1).waits());
}
