//! What is true of a plugin whether a snapshot can be taken of it or not: it loads, is configured once, and serves.

use crate::support::{by, guest, inspect, logged, small, spec};
use tidegate_sandbox::{Plugin, PluginSpec, Sandbox, SandboxConfig, Snapshot};

/// Pages of the guests' memories as they are built; they need no more for what is asked of them here.
const PAGES: usize = 18;
const PAGE: usize = 64 << 10;
const FULL: usize = PAGES * PAGE;

/// The guest, whose memory may have no more than that.
fn of_fixed_memory(name: &str) -> Vec<u8> {
    let component = guest(name);
    let (before, module, after) = first_module(&component);
    let memory = [5, 3, 1, 0, PAGES as u8];
    let at = module.windows(memory.len()).position(|bytes| bytes == memory).expect("a memory without a maximum");
    let fixed = [5, 4, 1, 1, PAGES as u8, PAGES as u8];
    let module = [&module[..at], &fixed, &module[at + memory.len()..]].concat();
    [before, &[1], &leb128(module.len()), &module, after].concat()
}

/// The first core module of a component, and what is before and behind that section.
fn first_module(component: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let mut at = 8;
    loop {
        let (len, from) = read_leb128(component, at + 1);
        if component[at] == 1 {
            return (&component[..at], &component[from..from + len], &component[from + len..]);
        }
        at = from + len;
    }
}

fn read_leb128(bytes: &[u8], mut at: usize) -> (usize, usize) {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[at];
        value |= usize::from(byte & 0x7f) << shift;
        (at, shift) = (at + 1, shift + 7);
        if byte & 0x80 == 0 {
            return (value, at);
        }
    }
}

fn leb128(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        bytes.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return bytes;
        }
    }
}

fn sandbox(config: impl FnOnce(&mut SandboxConfig)) -> Sandbox {
    let mut settings = small();
    config(&mut settings);
    Sandbox::new(settings).unwrap()
}

async fn serves(plugin: &Plugin) {
    inspect(plugin, &by("a"), "hello").await.unwrap();
}

#[tokio::test]
async fn a_plugin_whose_memory_cannot_be_read_is_configured_for_each_instance() {
    let sandbox = sandbox(|_| ());
    for snapshot in [Snapshot::WhereSound, Snapshot::Asked] {
        let component = of_fixed_memory("honest").into();
        let plugin = sandbox.load(PluginSpec { component, snapshot, ..spec("honest") }).unwrap();
        assert!(!plugin.starts_configured());
        serves(&plugin).await;
        assert_eq!(sandbox.usage().memory_bytes, FULL, "all that it may have");
    }
}

#[tokio::test]
async fn a_snapshot_is_taken_of_a_plugin_that_has_all_the_memory_it_may_have() {
    let load = |sandbox: &Sandbox| {
        let mut spec = PluginSpec { snapshot: Snapshot::Asked, ..spec("honest") };
        spec.limits.memory_bytes = FULL;
        sandbox.load(spec).unwrap()
    };
    // Two of it at once would be more than all instances may have.
    let roomy = sandbox(|config| config.total_memory_bytes = FULL + 2 * PAGE);
    let plugin = load(&roomy);
    assert!(plugin.starts_configured());
    serves(&plugin).await;
    assert_eq!(roomy.usage().memory_bytes, FULL);
    let narrow = sandbox(|config| config.max_memory_bytes = FULL);
    let plugin = load(&narrow);
    assert!(!plugin.starts_configured(), "the sandbox has no page more for any");
    serves(&plugin).await;
}

#[tokio::test]
async fn what_configure_logs_at_load_is_there_once() {
    let sandbox = sandbox(|_| ());
    for (component, snapshot, starts_configured) in [
        (guest("watches"), Snapshot::Never, false),
        (guest("watches"), Snapshot::WhereSound, true),
        (guest("watches"), Snapshot::Asked, true),
        (of_fixed_memory("watches"), Snapshot::WhereSound, false),
    ] {
        let config = serde_json::json!({"say": "here I am"});
        let spec = PluginSpec { component: component.into(), config, snapshot, ..spec("watches") };
        let (plugin, log) = logged(async { sandbox.load(spec).unwrap() }).await;
        assert_eq!(plugin.starts_configured(), starts_configured, "{snapshot:?}");
        assert_eq!(log.iter().filter(|line| line.contains("here I am")).count(), 1, "{snapshot:?}: {log:?}");
    }
}

#[test]
fn a_config_that_the_plugin_refuses_is_named_whether_a_snapshot_is_to_be_taken_or_not() {
    let sandbox = sandbox(|_| ());
    for snapshot in [Snapshot::Never, Snapshot::WhereSound, Snapshot::Asked] {
        let config = serde_json::json!({"refuse": true});
        let refused = sandbox.load(PluginSpec { config, snapshot, ..spec("honest") }).unwrap_err();
        let expected = "plugin `honest`: `configure` failed: invalid-config: as the test asked";
        assert_eq!(refused.to_string(), expected, "{snapshot:?}");
    }
}
