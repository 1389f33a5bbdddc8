//! The wasmtime engine, configured once for all plugins. Invariant: nothing ambient. No WASI, no threads, no
//! component-model async; memory, tables and stacks come from a pool of fixed size.
//!
//! Why these settings: calls are two to four times cheaper with `concurrency_support(false)`; a reservation of
//! exactly one memory per slot keeps the address space small at no measured cost; epochs interrupt guests without
//! counting instructions.

use crate::config::SandboxConfig;
use crate::error::SandboxError;
use std::sync::Arc;
use wasmtime::{CacheStore, Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Wasm pages are 64 KiB; memories are reserved in whole pages.
pub(crate) const PAGE: usize = 64 << 10;
/// Stack of wasm frames. The host functions that a guest calls run on the rest of the fiber's stack, or of its caller's.
const WASM_STACK: usize = 512 << 10;
pub(crate) const FIBER_STACK: usize = 1 << 20;
/// Elements of one table: function pointers of a guest.
pub(crate) const TABLE_ELEMENTS: usize = 20_000;
/// What the pool has for each.
pub(crate) const ELEMENT_BYTES: usize = size_of::<usize>();
/// Bytes of a table that its slot keeps when an instance is gone.
const TABLE_KEPT: usize = 16 << 10;
/// Elements of each table that count for no limit: those that the pool keeps in any case. Plugins of Rust and C seldom have more, so
/// that what their instances may have is linear memory alone.
pub(crate) const FREE_ELEMENTS: usize = TABLE_KEPT / ELEMENT_BYTES;
/// Handles of resources that live in one instance at once, which lie in the host's memory and count for no limit. The contract
/// has no resources: these are between the parts of a component.
pub(crate) const HANDLES: usize = 4096;
/// Core instances, memories and tables that one component may be made of. One memory is enough for Rust and C; QuickJS
/// has three, and CPython is linked of dozens of modules.
pub(crate) const CORE_INSTANCES: u32 = 64;
pub(crate) const MEMORIES: u32 = 4;
pub(crate) const TABLES: u32 = 16;
/// Instances that loading may need beside those that serve.
pub(crate) const TRIAL_INSTANCES: u32 = 4;

/// Builds the engine. Fails where the machine cannot reserve the pool's address space.
pub(crate) fn build(config: &SandboxConfig, functions: Option<Arc<dyn CacheStore>>) -> Result<Engine, SandboxError> {
    let memory = config.max_memory_bytes.next_multiple_of(PAGE);
    let mut settings = Config::new();
    settings
        .concurrency_support(false)
        .epoch_interruption(true)
        .wasm_backtrace_max_frames(None)
        .memory_reservation(memory as u64)
        .memory_guard_size(PAGE as u64)
        .memory_reservation_for_growth(0)
        .memory_may_move(false)
        .memory_init_cow(true)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(FIBER_STACK)
        .parallel_compilation(config.for_authors)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool(config, memory)));
    let failed = |e: wasmtime::Error| SandboxError::Engine(format!("{e:#}"));
    if let Some(functions) = functions {
        settings.enable_incremental_compilation(functions).map_err(failed)?;
    }
    Engine::new(&settings).map_err(failed)
}

/// Instances that there is room for.
pub(crate) fn slots(config: &SandboxConfig) -> u32 {
    let serving = config.total_instances.saturating_add(config.total_waiting_instances);
    // Twice, for what tenants below their share hold past the limits.
    serving.saturating_mul(2).saturating_add(TRIAL_INSTANCES)
}

fn pool(config: &SandboxConfig, memory: usize) -> PoolingAllocationConfig {
    let instances = slots(config);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_stacks(instances)
        // Enough for instances of the largest kind, so that only the count of instances can run out.
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES))
        .total_memories(instances.saturating_mul(MEMORIES))
        .total_tables(instances.saturating_mul(TABLES))
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .max_memory_size(memory)
        // A slot whose guest used little is cleared by hand rather than by the kernel, and keeps its pages: this
        // halves the cost of a new instance.
        .linear_memory_keep_resident(128 << 10)
        .table_keep_resident(TABLE_KEPT)
        .pagemap_scan(Enabled::Auto)
        .max_unused_warm_slots(16);
    pool
}
