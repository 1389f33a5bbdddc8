//! The default limits of plugins are those that `docs/plugins.md` and `examples/full/tidegate.toml` say, and they are
//! here once more: who changes one says so in all places, and in `docs/decisions/0027` why.

use super::{BreakerConfig, Config, LimitsConfig};
use crate::assemble::HOLDBACK_BYTES;
use std::path::Path;
use std::time::Duration;
use tidegate_sandbox::SandboxConfig;
use tidegate_sandbox::stage::{HttpGrant, StageKind};

/// By stage: `cpu_ms`, `wall_ms`.
const TIMES: [(StageKind, u64, u64); 8] = [
    (StageKind::PromptGuard, 100, 2000),
    (StageKind::StreamGuard, 100, 250),
    (StageKind::OutputGuard, 100, 2000),
    (StageKind::Router, 50, 1000),
    (StageKind::ToolProvider, 500, 30_000),
    (StageKind::Retriever, 100, 5000),
    (StageKind::Memory, 100, 5000),
    (StageKind::Observer, 20, 5000),
];

/// The others, by the name that the guide has for them.
fn others() -> Vec<(&'static str, usize)> {
    let limits = LimitsConfig::default().to_limits();
    let plugins = Config::default().plugins;
    let http = HttpGrant::new([]);
    vec![
        ("memory_mib", limits.memory_bytes >> 20),
        ("output_bytes", limits.output_bytes),
        ("log_bytes", limits.log_bytes),
        ("holdback_bytes", HOLDBACK_BYTES),
        ("instances", limits.instances),
        ("instances` of a plugin that waits", limits.waiting_instances),
        ("http.concurrency", http.concurrency),
        ("http.timeout_ms", http.timeout.as_millis() as usize),
        ("http.request_kib", http.request_bytes >> 10),
        ("http.response_kib", http.response_bytes >> 10),
        ("plugins.instances", plugins.instances as usize),
        ("plugins.waiting_instances", plugins.waiting_instances as usize),
        ("plugins.memory_mib", plugins.memory_mib),
        ("plugins.instance_memory_mib", plugins.instance_memory_mib),
        ("plugins.kv_mib", plugins.kv_mib as usize),
        ("plugins.vectors_mib", plugins.vectors_mib),
        ("plugins.owner_vectors_mib", plugins.owner_vectors_mib),
    ]
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

#[test]
fn the_guide_says_the_default_times_of_each_stage() {
    let (guide, limits) = (read("docs/plugins.md"), LimitsConfig::default());
    for (stage, cpu, wall) in TIMES {
        let found = (limits.cpu(stage), limits.wall(stage), limits.to_limits().stage_cpu[&stage]);
        let expected = Duration::from_millis(cpu);
        assert_eq!(found, (expected, Duration::from_millis(wall), expected), "{}", stage.as_str());
        let row = format!("| `{}` | {cpu} | {wall} |", stage.as_str());
        assert!(guide.contains(&row), "docs/plugins.md lacks {row}");
    }
}

#[test]
fn the_guide_says_how_long_an_instance_may_take_to_be_made_and_how_long_it_lives() {
    let config = SandboxConfig::default();
    let cpu = config.configure_cpu.as_secs();
    let made = format!("{cpu} s of\nCPU and {} s of wall time of its own", (5 * cpu).max(5));
    let (idle, age, calls) = (config.max_idle.as_secs(), config.max_age.as_secs(), config.recycle_after_calls);
    let lives = format!("idle for {idle} s, {age} s old, after {calls} calls");
    let guide = read("docs/plugins.md");
    assert!(guide.contains(&made) && guide.contains(&lives), "docs/plugins.md lacks {made:?} or {lives:?}");
}

#[test]
fn the_guide_says_the_other_defaults() {
    let guide = read("docs/plugins.md");
    for (name, value) in others() {
        let row = if name.contains('`') { format!("| `{name} | {value} |") } else { format!("| `{name}` | {value} |") };
        assert!(guide.contains(&row), "docs/plugins.md lacks {row}");
    }
}

#[test]
fn the_guide_says_when_a_plugin_is_left_out_for_failing() {
    let BreakerConfig { failures, within_ms, pause_ms } = BreakerConfig::default();
    let row = format!("| `breaker` | `{{ failures = {failures}, within_ms = {within_ms}, pause_ms = {pause_ms} }}` |");
    assert!(read("docs/plugins.md").contains(&row), "docs/plugins.md lacks {row}");
}

#[test]
fn the_full_example_says_the_same() {
    let example = read("examples/full/tidegate.toml");
    let config = Config::parse(&example).unwrap();
    assert_eq!(config.plugins, Config::default().plugins);
    let shown = &config.pipeline.unwrap().stage[0].limits;
    let default = LimitsConfig::default().to_limits();
    assert_eq!(shown.to_limits().memory_bytes, default.memory_bytes);
    assert_eq!((shown.output_bytes, shown.log_bytes), (Some(default.output_bytes), Some(default.log_bytes)));
    assert_eq!(shown.instances, Some(default.instances));
    for said in [
        "# of one call; default 100, routers 50, tool providers 500, observers 20",
        "# of one call; default 2000, stream guards 250, routers 1000, retrievers, memories and",
        "# observers 5000, tool providers 30000",
        "# live instances of one project, or tenant; default 8, or 512 where the plugin waits for others",
    ] {
        assert!(example.contains(said), "examples/full/tidegate.toml lacks {said}");
    }
}
