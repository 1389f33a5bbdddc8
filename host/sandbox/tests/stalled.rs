//! A store of `kv` that answers nobody, as a database that is away: who waits for it is in nobody's way.

use crate::support::{WatchedKv, ctx, inspect, small, spec};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_sandbox::capability::{KvStore, MemoryKv};
use tidegate_sandbox::stage::Grants;
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
